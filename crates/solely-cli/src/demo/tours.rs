//! Travellers who look for tours and boats. What is cached is answered at once, fresh or stale, and
//! refreshed behind them; the boats have bad days, on which what is stale is better than nothing.

use std::time::Duration;

use serde_json::json;
use solely_sandbox::mood::Mood;

use super::{Town, between, favourite};

const WORDS: [&str; 6] = ["", "kayak", "tour", "city", "evening", "walk"];
const TRAVELLERS: [&str; 5] = ["ada", "grace", "linus", "margaret", "barbara"];

/// They search until the day is over. The first of them look at everything.
pub(super) async fn travellers(town: &Town) {
    tokio::join!(search(town, "tours", false), search(town, "boats", false));
    loop {
        let app = favourite(&["tours", "tours", "boats"]);
        // Some insist on boats of this minute, also on days on which there are none: the breaker opens.
        let insists = app == "boats" && rand::random::<u32>().is_multiple_of(3);
        search(town, app, insists).await;
        tokio::time::sleep(between(120, 320)).await;
    }
}

async fn search(town: &Town, app: &str, insists: bool) {
    let words = json!({"searchInput": favourite(&WORDS)});
    let user = favourite(&TRAVELLERS);
    let search = json!({"appKey": app, "userId": user, "forceRefresh": insists, "payload": words});
    town.post("/v1/products/search", search).await;
}

/// The boats answer for a while, and then they do not.
pub(super) async fn bad_days(town: &Town) {
    let well = Mood { latency_ms: 500, ..Mood::default() };
    let ill = Mood { latency_ms: 200, status: Some(503), ..Mood::default() };
    loop {
        tokio::time::sleep(Duration::from_secs(20)).await;
        town.beside.boats.sandbox.set_mood(ill.clone());
        tokio::time::sleep(Duration::from_secs(40)).await;
        town.beside.boats.sandbox.set_mood(well.clone());
    }
}
