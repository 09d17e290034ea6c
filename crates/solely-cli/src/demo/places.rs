//! Guests who look for a restaurant. They like the same ones, so most of them are answered from what is
//! known; and what is not is looked up once, however many of them ask at once.

use std::time::Duration;

use serde_json::{Value, json};
use solely_sandbox::mood::Mood;

use super::{Town, between, favourite};

/// A finder that takes its time, fails now and then, and throttles for a few seconds in every forty.
pub(super) fn mood() -> Mood {
    Mood {
        latency_ms: 900,
        errors_percent: 3.0,
        throttle_for_ms: 5_000,
        throttle_every_ms: 40_000,
        ..Mood::default()
    }
}

const FIRST: [&str; 20] = [
    "Zohara",
    "Levontin",
    "Tamarin",
    "Karmit",
    "Bograshov",
    "Nehama",
    "Arnona",
    "Galila",
    "Hadarim",
    "Kadosh",
    "Lilinblum",
    "Mazal",
    "Nachlat",
    "Ofelia",
    "Pardes",
    "Rothka",
    "Shafran",
    "Tirza",
    "Yemima",
    "Zaatar",
];
const SECOND: [&str; 20] = [
    "House",
    "Dragon",
    "Kitchen",
    "Fig",
    "Noodle Bar",
    "Falafel",
    "Table",
    "Bistro",
    "Hummus",
    "Grill",
    "Sushi",
    "Taverna",
    "Bakery",
    "Diner",
    "Curry",
    "Burger Co",
    "Oven",
    "Deli",
    "Cantina",
    "Spoon",
];
const CITIES: [&str; 3] = ["Tel Aviv", "Haifa", "Jerusalem"];

/// A restaurant of the town, by its number: always the same one.
fn restaurant(number: usize) -> Value {
    let name = format!("{} {}", FIRST[number % 20], SECOND[(number / 20 + number * 7) % 20]);
    // One in twelve has no page, and its id says so to the finder.
    let prefix = if number % 12 == 11 { "nowhere" } else { "ChIJ" };
    json!({"placeId": format!("{prefix}-{}", name.to_lowercase().replace(' ', "-")), "name": name})
}

/// They come and search until the day is over.
pub(super) async fn guests(town: &Town) {
    let numbers: Vec<usize> = (0..240).collect();
    loop {
        let city = favourite(&CITIES);
        let results: Vec<Value> = (0..6).map(|_| restaurant(favourite(&numbers))).collect();
        let search = json!({"cityText": city, "results": results});
        // Three friends with three telephones: one lookup for each place all the same.
        let (a, b, c) = (search.clone(), search.clone(), search);
        tokio::join!(town.post("/v1/enrich", a), town.post("/v1/enrich", b), town.post("/v1/enrich", c));
        tokio::time::sleep(between(500, 900) + Duration::from_millis(100)).await;
    }
}
