//! The matcher: which of some candidates is a place's own link, if any is. Pure, no I/O.
//!
//! A link must be on one of the provider's hosts, or below it. Of a name only the words count that say
//! something: every one of them must be in the title (before a `|`) or in the last part of the path. A
//! name of generic words alone is no evidence, and matches nothing. No link is better than a wrong one.

use reqwest::Url;

use super::finder::{Candidate, Place};
use crate::limits;

/// A candidate that was accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// Which one.
    pub place: usize,
    /// How sure it is, up to 1.
    pub score: f64,
}

/// Words that say what a place is, and not which.
const GENERIC: &[&str] = &[
    "restaurant",
    "restaurants",
    "bar",
    "cafe",
    "coffee",
    "grill",
    "kitchen",
    "pizzeria",
    "bistro",
    "eatery",
    "diner",
    "tavern",
    "pub",
    "the",
    "and",
    "of",
    "מסעדה",
    "מסעדת",
    "בר",
    "קפה",
    "גריל",
    "מטבח",
    "פיצריה",
    "ביסטרו",
];

/// The candidate that is the place's own link. Of several the best, and of equals the first.
pub fn pick(place: &Place, hosts: &[String], candidates: &[Candidate]) -> Option<Accepted> {
    let name = words(&place.name);
    if name.iter().all(|word| is_generic(word)) {
        return None;
    }
    let mut best: Option<Accepted> = None;
    for (nth, candidate) in candidates.iter().enumerate() {
        let Some(score) = score(&name, hosts, candidate) else { continue };
        if best.as_ref().is_none_or(|best| score > best.score) {
            best = Some(Accepted { place: nth, score });
        }
    }
    best
}

/// Whether a link may be shown: of the web, not too long, and on one of the hosts or below it. No hosts: on
/// any.
pub fn is_allowed(url: &str, hosts: &[String]) -> bool {
    if url.len() > limits::LINK_BYTES_MAX {
        return false;
    }
    let Ok(url) = Url::parse(url) else { return false };
    let Some(host) = url.host_str().filter(|_| matches!(url.scheme(), "http" | "https")) else {
        return false;
    };
    let below = |allowed: &String| {
        let allowed = allowed.to_lowercase();
        host == allowed || host.strip_suffix(&allowed).is_some_and(|rest| rest.ends_with('.'))
    };
    hosts.is_empty() || hosts.iter().any(below)
}

fn score(name: &[String], hosts: &[String], candidate: &Candidate) -> Option<f64> {
    if !is_allowed(&candidate.url, hosts) {
        return None;
    }
    let title = words(candidate.title.split('|').next().unwrap_or_default());
    let url = Url::parse(&candidate.url).ok()?;
    let slug = words(url.path_segments()?.next_back().unwrap_or_default());
    let of = |found: &[String]| {
        let telling = name.iter().filter(|word| !is_generic(word));
        let all_there = telling.clone().all(|word| found.contains(word));
        #[expect(clippy::cast_precision_loss, reason = "a title has few words")]
        all_there.then(|| name.len().min(found.len()) as f64 / name.len().max(found.len()) as f64)
    };
    [of(&title), of(&slug)].into_iter().flatten().max_by(f64::total_cmp)
}

fn is_generic(word: &str) -> bool {
    GENERIC.contains(&word)
}

/// The words of a text, in lower case.
fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked(name: &str, candidates: &[(&str, &str)]) -> Option<usize> {
        let place = Place { name: name.to_owned(), ..Place::default() };
        let candidate = |(title, url): &(&str, &str)| Candidate {
            title: (*title).into(),
            url: (*url).into(),
            ..Candidate::default()
        };
        let candidates: Vec<Candidate> = candidates.iter().map(candidate).collect();
        pick(&place, &["wolt.com".to_owned()], &candidates).map(|accepted| accepted.place)
    }

    const HOUSE: &str = "https://wolt.com/en/isr/tel-aviv/restaurant/pizza-house";

    #[test]
    fn the_name_must_be_in_the_title_or_the_path() {
        assert_eq!(
            picked("Pizza House", &[("Burger Bar", "https://wolt.com/x/burger"), ("…", HOUSE)]),
            Some(1)
        );
        assert_eq!(picked("Pizza House", &[("Pizza House | Wolt", "https://wolt.com/x/1")]), Some(0));
        assert_eq!(picked("Pizza House", &[("Pizza Hut", "https://wolt.com/x/pizza-hut")]), None);
    }

    #[test]
    fn the_better_one_is_picked_whatever_the_order() {
        let other = ("Pizza House Express North", "https://wolt.com/x/9");
        assert_eq!(picked("Pizza House", &[other, ("Pizza House", HOUSE)]), Some(1));
        assert_eq!(picked("Pizza House", &[("Pizza House", HOUSE), other]), Some(0));
    }

    #[test]
    fn a_link_elsewhere_is_never_accepted() {
        for url in [
            "https://evil.com/wolt.com/pizza-house",
            "https://notwolt.com/pizza-house",
            "https://wolt.com.evil.com/pizza-house",
            "javascript:alert('pizza-house')",
            "pizza-house",
            &format!("https://wolt.com/{}/pizza-house", "x".repeat(limits::LINK_BYTES_MAX)),
        ] {
            assert_eq!(picked("Pizza House", &[("Pizza House", url)]), None, "{url}");
        }
        assert_eq!(picked("Pizza House", &[("Pizza House", "https://www.WOLT.com/pizza-house")]), Some(0));
    }

    #[test]
    fn a_name_of_generic_words_matches_nothing() {
        for name in ["The Restaurant", "Cafe Bar", "", " | ", "קפה"] {
            assert_eq!(
                picked(name, &[(name, HOUSE), ("The Restaurant", "https://wolt.com/a/cafe-bar")]),
                None,
                "{name}"
            );
        }
    }
}
