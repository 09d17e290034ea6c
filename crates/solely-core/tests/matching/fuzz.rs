//! A million inputs, long and hostile ones among them: nothing panics, nothing takes longer than its length, and what
//! must never be accepted never is.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use solely_core::enrich::finder::{Candidate, Place};
use solely_core::enrich::matcher;

use crate::{Case, cases, place_of, wolt};

const INPUTS: u64 = 1_000_000;
const THREADS: u64 = 2;

/// Pieces that texts are made of.
const PIECES: &[&str] = &[
    " ",
    "|",
    " - ",
    "…",
    "...",
    "'",
    "׳",
    "״",
    "\"",
    "&",
    "%",
    "%D7",
    "%D7%A4",
    "/",
    "//",
    "?",
    "#",
    "-",
    "_",
    ".",
    ",",
    "(",
    "\u{0}",
    "\u{200f}",
    "\u{202e}",
    "\u{feff}",
    "\u{301}\u{301}\u{301}",
    "ﷺ",
    "ﬃ",
    "Ｗｏｌｔ",
    "🍕",
    "👩\u{200d}🍳",
    "İ",
    "ß",
    "ẞ",
    "ſ",
    "Ω",
    "ა",
    "東京",
    "ｶﾞ",
    "the",
    "restaurant",
    "cafe",
    "bar",
    "pizza",
    "קפה",
    "מסעדת",
    "בר",
    "פיצה",
    "תל אביב",
    "Tel Aviv",
    "in",
    "ב",
    "50",
    "Dizengoff 50",
    "St",
    "s",
    "0",
    "18446744073709551616",
    "area",
    "and",
    "wolt",
    "x",
    "ו",
    "י",
    "ה",
    "צ'",
    "ck",
    "aaaaaaaa",
    "\n",
    "\t",
    "<b>",
    "}{",
    "\\",
];

const URLS: &[&str] = &[
    "https://wolt.com/en/isr/tel-aviv/restaurant/",
    "https://wolt.com/",
    "https://wolt.com@evil.com/restaurant/",
    "http://[::1]/restaurant/x",
    "https://evil.com/wolt.com/restaurant/",
    "https://wolt.com:99999/",
    "https://wolt.com/%00/restaurant/%ff%fe",
    "javascript:",
    "",
    "//wolt.com/x",
    "https://wolt.com/he/isr/haifa/venue/",
    "https://www.wolt.com/restaurant/",
];

struct Maker<'a> {
    random: SmallRng,
    cases: &'a [Case],
}

impl Maker<'_> {
    fn text(&mut self, known: &str) -> String {
        match self.random.random_range(0..8) {
            0 => String::new(),
            1 | 2 => self.mutated(known),
            3 => self.pieces(200),
            4 => (0..self.random.random_range(0..60)).map(|_| self.random.random::<char>()).collect(),
            _ => self.pieces(8),
        }
    }

    fn pieces(&mut self, most: usize) -> String {
        let count = self.random.random_range(0..most);
        (0..count).map(|_| *PIECES.choose(&mut self.random).expect("some")).collect()
    }

    /// A text with a piece put in, or a stretch taken out or written twice.
    fn mutated(&mut self, known: &str) -> String {
        let letters: Vec<char> = known.chars().collect();
        let from = self.random.random_range(0..=letters.len());
        let to = self.random.random_range(from..=letters.len());
        let stretch: String = letters[from..to].iter().collect();
        let (before, after): (String, String) =
            (letters[..from].iter().collect(), letters[to..].iter().collect());
        match self.random.random_range(0..3) {
            0 => format!("{before}{}{stretch}{after}", PIECES.choose(&mut self.random).expect("some")),
            1 => format!("{before}{after}"),
            _ => format!("{before}{stretch}{stretch}{after}"),
        }
    }

    fn url(&mut self, known: &str) -> String {
        if self.random.random_bool(0.5) {
            self.mutated(known)
        } else {
            let base = *URLS.choose(&mut self.random).expect("some");
            format!("{base}{}", self.text(known))
        }
    }

    fn input(&mut self) -> (Place, Vec<Candidate>) {
        let cases = self.cases;
        let case = cases.choose(&mut self.random).expect("some");
        let mut place = place_of(case);
        place.name = self.text(&case.name);
        place.city_text = place.city_text.map(|city| self.text(&city));
        place.address_text = place.address_text.map(|address| self.text(&address));
        let mut candidates = Vec::new();
        for candidate in case.candidates.iter().take(2) {
            candidates.push(Candidate {
                title: self.text(&candidate.title),
                url: self.url(&candidate.url),
                snippet: self.text(&candidate.snippet),
            });
        }
        (place, candidates)
    }
}

#[test]
fn a_million_inputs_are_survived() {
    let cases = cases(include_str!("development.jsonl"));
    let seed: u64 =
        std::env::var("SOLELY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    println!("seed {seed} (SOLELY_SEED={seed} repeats it)");
    let accepted: u64 = std::thread::scope(|scope| {
        let work = |thread: u64| {
            let mut maker = Maker { random: SmallRng::seed_from_u64(seed ^ thread), cases: &cases };
            scope.spawn(move || {
                let mut accepted = 0;
                for _ in 0..INPUTS / THREADS {
                    let (place, candidates) = maker.input();
                    let decision = matcher::decide(&place, &wolt(), &candidates);
                    assert_eq!(decision.verdicts.len(), candidates.len());
                    if let Some(link) = decision.accepted {
                        assert!((0.0..=1.0).contains(&link.score), "{place:?} {candidates:?}");
                        assert!(matcher::is_allowed(&link.url, &wolt()), "{place:?} {candidates:?}");
                        accepted += 1;
                    }
                }
                accepted
            })
        };
        let threads: Vec<_> = (0..THREADS).map(work).collect();
        threads.into_iter().map(|thread| thread.join().expect("survives")).sum()
    });
    println!("{accepted} of {INPUTS} accepted");
    assert!(accepted > INPUTS / 1_000, "some inputs are near enough to be accepted");
}

fn time_of(place: &Place, candidates: &[Candidate]) -> Duration {
    let best = (0..3).map(|_| {
        let began = Instant::now();
        std::hint::black_box(matcher::decide(place, &wolt(), candidates));
        began.elapsed()
    });
    best.min().expect("three")
}

/// Texts that make as much work as they can.
fn hostile(words: usize) -> (Place, Candidate) {
    let latin: Vec<String> =
        (0..words).map(|nth| format!("shavarmat{}", ["a", "b", "c", "d", "e"][nth % 5])).collect();
    let hebrew: Vec<String> =
        (0..words).map(|nth| format!("שוורמהטבת{}", ["א", "ב", "ג"][nth % 3])).collect();
    let place = Place {
        name: hebrew.join(" "),
        city_text: Some(latin.join(" ")),
        address_text: Some(latin.join(", ")),
        ..Place::default()
    };
    let url = "https://wolt.com/en/isr/tel-aviv/restaurant/shavarmata-shavarmatb-shavarmatc".to_owned();
    (place, Candidate { title: latin.join(" "), url, snippet: latin.join(" 5, ") })
}

/// Of a text only a beginning is looked at, and each candidate by itself.
#[test]
fn the_work_has_bounds() {
    let (place, candidate) = hostile(100);
    let plain = time_of(&place, std::slice::from_ref(&candidate)).max(Duration::from_micros(50));
    let (long_place, long_candidate) = hostile(1_000_000);
    let long = time_of(&long_place, &[long_candidate]);
    println!("a hundred words {plain:?}, a million {long:?}");
    assert!(long < plain * 20, "ten thousand times as long is not ten thousand times the work");
    let few = time_of(&place, &vec![candidate.clone(); 10]);
    let many = time_of(&place, &vec![candidate; 200]);
    println!("ten candidates {few:?}, two hundred {many:?}");
    assert!(many < few * 100, "twenty times as many are about twenty times the work");
}

/// A name that says nothing is accepted only at the same street and number, whatever else there is.
#[test]
fn a_name_of_generic_words_accepts_nothing() {
    let generic = [
        "restaurant",
        "bar",
        "cafe",
        "grill",
        "kitchen",
        "pizzeria",
        "bistro",
        "eatery",
        "diner",
        "tavern",
        "pub",
        "the",
        "coffee",
        "מסעדה",
        "מסעדת",
        "בר",
        "קפה",
        "גריל",
        "מטבח",
        "פיצריה",
        "ביסטרו",
        "פאב",
        "pizza",
        "sushi",
        "burger",
        "המסעדה",
        "&",
        "food",
    ];
    let cases = cases(include_str!("development.jsonl"));
    let candidates: Vec<Candidate> = cases.iter().flat_map(|case| case.candidates.clone()).collect();
    let mut random = SmallRng::seed_from_u64(7);
    for _ in 0..40 {
        let count = random.random_range(1..4);
        let name: Vec<&str> = (0..count).map(|_| *generic.choose(&mut random).expect("some")).collect();
        let dishes = name.iter().filter(|word| ["pizza", "sushi", "burger"].contains(word)).count();
        if dishes > 1 {
            continue;
        }
        let (name, slug) = (name.join(" "), name.join("-"));
        let own = Candidate {
            title: format!("{name} | Wolt"),
            url: format!("https://wolt.com/en/isr/tel-aviv/restaurant/{slug}"),
            snippet: format!("Order {name} in Tel Aviv"),
        };
        let all: Vec<Candidate> = candidates.iter().cloned().chain([own]).collect();
        for city in [None, Some("Tel Aviv".to_owned())] {
            let place = Place { name: name.clone(), city_text: city, ..Place::default() };
            let accepted = matcher::decide(&place, &wolt(), &all).accepted;
            assert_eq!(accepted, None, "{name}");
        }
    }
}
