//! The matcher: which of some candidates is a place's own link, if any is. Pure, no I/O.
//!
//! *No link is better than a wrong one.* A candidate is judged by itself, by rules and not by a sum: what
//! speaks against it ends it, whatever speaks for it.
//!
//! 1. The **link** must be on one of the provider's hosts, and a venue's own page ([`link`]).
//! 2. The **city** must be the place's: in the path, by any of its names or as part of an area, or in the
//!    text; another city is refused ([`city`]). Without a city, the address may have it.
//! 3. The **name**: all words of it that say which place it is must be in the title or in the path, and
//!    nothing that says it is another one ([`likeness`], [`vocabulary`]). A snippet is no evidence of a
//!    name: it may speak of others. A name of generic words alone is none either; it needs the same street and
//!    number.
//! 4. The **address**, if both have one, must not be another; a word that only one side has may be a branch's
//!    ([`address`]).
//!
//! Of those that are left the best is taken; if two venues are equally good, neither.
//!
//! The work is linear in the number of candidates: of each text only a beginning is looked at.

mod address;
mod city;
mod gazetteer;
mod hebrew;
mod likeness;
mod link;
mod name;
mod seen;
mod subject;
mod text;
mod vocabulary;

use serde::Serialize;

use super::finder::{Candidate, Place};
use city::{City, Whereabouts};
pub use link::is_allowed;
use subject::Subject;

/// What was decided, and why.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The candidate that is the place's own link, if there is one.
    pub accepted: Option<Accepted>,
    /// What was thought of each.
    pub verdicts: Vec<Verdict>,
}

/// A candidate that was accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// Which one.
    pub candidate: usize,
    /// Its link, without what only tells where a visitor came from.
    pub url: String,
    /// How sure it is, up to 1.
    pub score: f64,
    /// What speaks for it.
    pub why: Vec<Why>,
}

/// What is thought of a candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// How sure it is, up to 1; nothing if it is refused.
    pub score: Option<f64>,
    /// What speaks for it, or what ended it.
    pub why: Vec<Why>,
}

/// A reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The title is the name.
    NameInTitle,
    /// The path's last part is the name.
    NameInPath,
    /// A word of the name is written a little differently.
    SpeltDifferently,
    /// The path is of the city, or of its area.
    CityInPath,
    /// The title or the snippet names the city.
    CityInText,
    /// The same street.
    SameStreet,
    /// The same street and number.
    SameAddress,
    /// Not on one of the provider's hosts.
    HostRefused,
    /// Not a venue's own page.
    PathRefused,
    /// It is in another city.
    OtherCity,
    /// It is in an area, and does not say that it is of the city.
    CityUnclear,
    /// It is another name.
    OtherName,
    /// The title and the path name different places.
    TitleAndPathDiffer,
    /// It serves something else.
    OtherDish,
    /// It is a shop of that name.
    OtherShop,
    /// It is another kind of place.
    OtherKind,
    /// It is another branch, or may be.
    OtherBranch,
    /// It has another address.
    OtherAddress,
    /// The name says nothing, and the address is not the same.
    NameSaysNothing,
    /// Another venue is as good.
    Ambiguous,
}

impl Why {
    /// For a person.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::NameInTitle => "the title is the name",
            Self::NameInPath => "the path has the name",
            Self::SpeltDifferently => "a word of the name is written a little differently",
            Self::CityInPath => "the path is of the city",
            Self::CityInText => "the text names the city",
            Self::SameStreet => "it is in the same street",
            Self::SameAddress => "it is at the same street and number",
            Self::HostRefused => "the link is not on an allowed host",
            Self::PathRefused => "the link is not a venue's own page",
            Self::OtherCity => "it is in another city",
            Self::CityUnclear => "its area may not be the city's, and it does not say so",
            Self::OtherName => "it is another name",
            Self::TitleAndPathDiffer => "its title and its path name different places",
            Self::OtherDish => "it serves something else",
            Self::OtherKind => "it is another kind of place",
            Self::OtherShop => "it is a shop of that name",
            Self::OtherBranch => "it may be another branch",
            Self::OtherAddress => "it has another address",
            Self::NameSaysNothing => "the name is of generic words alone, and the address is not the same",
            Self::Ambiguous => "another venue is as good",
        }
    }
}

/// Of two venues one must be better by this much.
const MARGIN: f64 = 0.02;

/// Decides. Of several the best, and of one venue's pages the first.
pub fn decide(place: &Place, hosts: &[String], candidates: &[Candidate]) -> Decision {
    let subject = Subject::of(place, hosts);
    let mut judged: Vec<Judged> = candidates.iter().map(|candidate| subject.judge(candidate)).collect();
    let mut best: Option<usize> = None;
    for (nth, one) in judged.iter().enumerate() {
        if let Ok(case) = &one.case
            && best.and_then(|best| judged[best].score()).is_none_or(|best| case.score > best)
        {
            best = Some(nth);
        }
    }
    if let Some(first) = best {
        let score = judged[first].score().unwrap_or_default();
        let rivals = |one: &Judged| {
            one.venue != judged[first].venue && one.score().is_some_and(|other| score - other < MARGIN)
        };
        // Where nobody knows the city, one of its name elsewhere is as good.
        let elsewhere = |one: &Judged| {
            let cities = (&one.namesake, &judged[first].namesake);
            subject.near().is_none() && matches!(cities, (Some(one), Some(other)) if one != other)
        };
        if judged.iter().any(rivals) || judged.iter().any(elsewhere) {
            for one in &mut judged {
                if one.score().is_some_and(|other| score - other < MARGIN) {
                    one.case = Err(Why::Ambiguous);
                }
            }
            best = None;
        }
    }
    let accepted = best.and_then(|nth| {
        let case = judged[nth].case.as_ref().ok()?;
        let url = link::without_tracking(&candidates[nth].url);
        Some(Accepted { candidate: nth, url, score: case.score, why: case.why.clone() })
    });
    let verdicts = judged.into_iter().map(|judged| match judged.case {
        Ok(case) => Verdict { score: Some(case.score), why: case.why },
        Err(why) => Verdict { score: None, why: vec![why] },
    });
    Decision { accepted, verdicts: verdicts.collect() }
}

/// Whether a city, by any of its names, is the one that a slug or another name means.
pub fn is_in(city: &str, slug: &str) -> bool {
    let here =
        |city: City| matches!(city.whereabouts(&text::slug(slug)), Whereabouts::Here | Whereabouts::InArea);
    City::of(city).is_some_and(here)
}

struct Judged {
    venue: String,
    /// Its city, if it has the name or more.
    namesake: Option<String>,
    case: Result<Case, Why>,
}

impl Judged {
    fn score(&self) -> Option<f64> {
        self.case.as_ref().ok().map(|case| case.score)
    }
}

/// What speaks for a candidate.
#[derive(Clone, Debug)]
struct Case {
    score: f64,
    why: Vec<Why>,
}

impl Case {
    fn add(&mut self, score: f64, why: Why) {
        self.score += score;
        self.why.push(why);
    }
}

#[cfg(test)]
mod tests;
