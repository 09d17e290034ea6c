//! `solely match`: decides which of some candidates is a place's own link, and says why. Nothing is called, nothing is
//! kept: it is the matcher that lookups use.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use serde::Deserialize;
use serde_json::{Value, json};
use solely_core::enrich::finder::{Candidate, Place};
use solely_core::enrich::matcher::{self, Decision, Why};

use super::Failed;
use crate::output::say;

/// Bytes that are read.
const INPUT_MAX: u64 = 32 * 1024 * 1024;

/// A place, and where its candidates are.
#[derive(clap::Args)]
pub(crate) struct MatchOptions {
    /// The place's name
    #[arg(long)]
    name: String,
    /// The city it was searched in
    #[arg(long)]
    city: Option<String>,
    /// Its address
    #[arg(long)]
    address: Option<String>,
    /// A host that a link may be on, or below; may be given again
    #[arg(long = "host", value_name = "HOST", default_value = "wolt.com")]
    hosts: Vec<String>,
    /// Candidates, as JSON: [{"title":"…","url":"…","snippet":"…"}], or {"candidates":[…]}; standard input if left out
    file: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// As a finder answers, or the candidates alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Bare(Vec<Candidate>),
    Answer { candidates: Vec<Candidate> },
}

pub(crate) fn run(options: MatchOptions) -> Result<(), Failed> {
    let MatchOptions { name, city, address, hosts, file, json } = options;
    let candidates = read(file.as_deref())?;
    let place = Place { place_id: String::new(), name, city_text: city, address_text: address };
    let decision = matcher::decide(&place, &hosts, &candidates);
    if json {
        say!("{:#}", as_json(&decision, &candidates));
    } else {
        print(&decision, &candidates);
    }
    Ok(())
}

fn read(file: Option<&Path>) -> Result<Vec<Candidate>, Failed> {
    let mut text = Vec::new();
    let from = file.map_or_else(|| "standard input".to_owned(), |file| file.display().to_string());
    let source: Box<dyn Read> = match file {
        Some(file) => Box::new(std::fs::File::open(file).with_context(|| format!("{from} cannot be read"))?),
        None => Box::new(std::io::stdin()),
    };
    source.take(INPUT_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > INPUT_MAX {
        return Err(anyhow!("{from} has more than {INPUT_MAX} bytes").into());
    }
    let input: Input = serde_json::from_slice(&text).map_err(|_| {
        anyhow!(
            "{from} is not a list of candidates such as [{{\"title\":\"…\",\"url\":\"…\",\"snippet\":\"…\"}}]"
        )
    })?;
    Ok(match input {
        Input::Bare(candidates) | Input::Answer { candidates } => candidates,
    })
}

fn as_json(decision: &Decision, candidates: &[Candidate]) -> Value {
    let accepted = decision.accepted.as_ref().map(|accepted| {
        json!({
            "candidate": accepted.candidate, "url": accepted.url, "score": accepted.score, "why": accepted.why,
        })
    });
    let judged = candidates.iter().zip(&decision.verdicts);
    let judged: Vec<Value> = judged
        .map(|(candidate, verdict)| {
            json!({"title": candidate.title, "url": candidate.url, "score": verdict.score, "why": verdict.why})
        })
        .collect();
    json!({"accepted": accepted, "candidates": judged})
}

fn print(decision: &Decision, candidates: &[Candidate]) {
    match &decision.accepted {
        Some(accepted) => say!("accepted  {} (score {:.2})", accepted.url, accepted.score),
        None => say!("no link   none of {} candidates is surely this place's own", candidates.len()),
    }
    let best = decision.accepted.as_ref().map(|accepted| accepted.candidate);
    for (nth, (candidate, verdict)) in candidates.iter().zip(&decision.verdicts).enumerate() {
        let word = match verdict.score {
            _ if best == Some(nth) => "accepted".to_owned(),
            Some(score) => format!("would do, {score:.2}"),
            None => "refused".to_owned(),
        };
        let why: Vec<&str> = verdict.why.iter().map(|why| Why::sentence(*why)).collect();
        say!();
        say!("{:>3}. {} [{word}]", nth + 1, candidate.title);
        say!("     {}", candidate.url);
        say!("     {}", why.join("; "));
    }
}
