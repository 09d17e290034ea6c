use super::*;
use crate::limits;

fn picked(name: &str, candidates: &[(&str, &str)]) -> Option<usize> {
    let place = Place { name: name.to_owned(), ..Place::default() };
    let candidate = |(title, url): &(&str, &str)| Candidate {
        title: (*title).into(),
        url: (*url).into(),
        ..Candidate::default()
    };
    let candidates: Vec<Candidate> = candidates.iter().map(candidate).collect();
    decide(&place, &["wolt.com".to_owned()], &candidates).accepted.map(|accepted| accepted.candidate)
}

const HOUSE: &str = "https://wolt.com/en/isr/tel-aviv/restaurant/pizza-house";
const BASE: &str = "https://wolt.com/en/isr/tel-aviv/restaurant";

#[test]
fn the_name_must_be_in_the_title_or_the_path() {
    let burger = format!("{BASE}/burger");
    assert_eq!(picked("Pizza House", &[("Burger Bar", &burger), ("…", HOUSE)]), Some(1));
    assert_eq!(picked("Pizza House", &[("Pizza House | Wolt", &format!("{BASE}/x1"))]), Some(0));
    assert_eq!(picked("Pizza House", &[("Pizza Hut", &format!("{BASE}/pizza-hut"))]), None);
}

#[test]
fn the_better_one_is_picked_whatever_the_order() {
    let other = format!("{BASE}/x9");
    let other = ("Pizza House", other.as_str());
    assert_eq!(picked("Pizza House", &[other, ("Pizza House", HOUSE)]), Some(1));
    assert_eq!(picked("Pizza House", &[("Pizza House", HOUSE), other]), Some(0));
}

#[test]
fn a_name_of_generic_words_matches_nothing() {
    let bar = format!("{BASE}/cafe-bar");
    for name in ["The Restaurant", "Cafe Bar", "", " | ", "קפה"] {
        assert_eq!(picked(name, &[(name, HOUSE), ("The Restaurant", &bar)]), None, "{name}");
    }
}

#[test]
fn a_huge_candidate_is_looked_at_and_no_more() {
    let huge = "Pizza House ".repeat(100_000);
    assert_eq!(picked("Pizza House", &[(&huge, HOUSE)]), None);
    assert_eq!(picked("Pizza House", &[(&format!("Pizza House{}", " ".repeat(1_000_000)), HOUSE)]), Some(0));
    let url = format!("{BASE}/{}", "x".repeat(limits::LINK_BYTES_MAX));
    assert_eq!(picked(&huge, &[(&huge, &url)]), None);
}
