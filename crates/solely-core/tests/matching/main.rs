//! The matcher on labelled cases: how often what it accepts is right, and how much of what is right it
//! accepts. `development.jsonl` is what it was made with; `held_out.jsonl` was written apart and is only
//! measured.

mod fuzz;

use serde::Deserialize;
use solely_core::enrich::finder::{Candidate, Place};
use solely_core::enrich::matcher;

/// A place, what was found for it, and which link is its own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    kind: String,
    name: String,
    city: Option<String>,
    address: Option<String>,
    #[serde(default = "wolt")]
    hosts: Vec<String>,
    candidates: Vec<Candidate>,
    expect: Option<String>,
}

fn wolt() -> Vec<String> {
    vec!["wolt.com".to_owned()]
}

/// What came of a set.
#[derive(Default)]
struct Tally {
    right: usize,
    wrong: usize,
    /// Links that were not accepted,
    missed: usize,
    /// and cases without any, where none was.
    none: usize,
}

impl Tally {
    #[expect(clippy::cast_precision_loss, reason = "hundreds of cases")]
    fn ratio(part: usize, rest: usize) -> f64 {
        part as f64 / (part + rest).max(1) as f64
    }

    fn precision(&self) -> f64 {
        Self::ratio(self.right, self.wrong)
    }

    fn recall(&self) -> f64 {
        Self::ratio(self.right, self.missed)
    }
}

fn cases(text: &str) -> Vec<Case> {
    let parse = |(nth, line): (usize, &str)| {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("line {}: {error}", nth + 1))
    };
    text.lines().enumerate().map(parse).collect()
}

fn place_of(case: &Case) -> Place {
    Place {
        place_id: "place".to_owned(),
        name: case.name.clone(),
        city_text: case.city.clone(),
        address_text: case.address.clone(),
    }
}

/// Decides all cases, and prints every one that it gets wrong.
fn measure(set: &str, cases: &[Case]) -> Tally {
    let mut tally = Tally::default();
    for (nth, case) in cases.iter().enumerate() {
        let decision = matcher::decide(&place_of(case), &case.hosts, &case.candidates);
        let got = decision.accepted.as_ref().map(|accepted| accepted.url.as_str());
        match (got, case.expect.as_deref()) {
            (None, None) => tally.none += 1,
            (Some(got), Some(expected)) if got == expected => tally.right += 1,
            (got, expected) => {
                // A wrong link where there is a right one is both.
                tally.wrong += usize::from(got.is_some());
                tally.missed += usize::from(expected.is_some());
                let line = nth + 1;
                println!("{set}:{line} [{}] {} ({:?}, {:?})", case.kind, case.name, case.city, case.address);
                println!("    expected {expected:?}, got {got:?}");
                for (candidate, verdict) in case.candidates.iter().zip(&decision.verdicts) {
                    println!(
                        "    {:?} {} {:?}: {verdict:?}",
                        candidate.title, candidate.url, candidate.snippet
                    );
                }
            }
        }
    }
    println!(
        "{set}: {} cases, {} links right, {} wrong, {} missed, {} rightly none: precision {:.3}, recall {:.3}",
        cases.len(),
        tally.right,
        tally.wrong,
        tally.missed,
        tally.none,
        tally.precision(),
        tally.recall()
    );
    tally
}

#[test]
fn the_development_set_is_decided_well() {
    let tally = measure("development", &cases(include_str!("development.jsonl")));
    assert!(tally.precision() >= 0.98 && tally.recall() >= 0.9);
}

#[test]
fn the_held_out_set_is_decided_as_well() {
    let tally = measure("held-out", &cases(include_str!("held_out.jsonl")));
    assert!(tally.precision() >= 0.98 && tally.recall() >= 0.9);
}
