//! Each kind of finder against a server that speaks its shape: how often it is called for a place, and what it makes of
//! quotas, failures, silence, and answers that are none.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use solely_sandbox::Sandbox;
use solely_sandbox::catalogue::Catalogue;
use solely_sandbox::mood::Mood;
use solely_testing::free_port;
use tempfile::TempDir;

use crate::server::Server;
use crate::socket::PATIENCE;

/// A kind of finder.
struct Kind {
    finder: &'static str,
    /// Where it is below the sandbox,
    path: &'static str,
    /// what else its section has,
    more: &'static str,
    /// and what the sandbox counts its calls as.
    counted: &'static str,
    /// Queries for a place with a city, and without.
    queries: (u64, u64),
}

const HTTP: Kind = Kind { finder: "http", path: "/finder", more: "", counted: "finder", queries: (1, 1) };
const BRAVE: Kind =
    Kind { finder: "brave", path: "/brave", more: "api_key = \"key\"", counted: "brave", queries: (4, 2) };
const GOOGLE: Kind = Kind {
    finder: "google-cse",
    path: "/google",
    more: "api_key = \"key\"\nengine_id = \"engine\"",
    counted: "google",
    queries: (2, 1),
};
const WOLT: Kind = Kind { finder: "wolt", path: "/wolt", more: "", counted: "wolt", queries: (1, 0) };

/// The sandbox, and a server whose provider asks it.
struct World {
    kind: &'static Kind,
    sandbox: Sandbox,
    server: Server,
}

impl World {
    async fn start(kind: &'static Kind, more: &str) -> Self {
        let sandbox = Sandbox::new(Catalogue::of(1, 1));
        let address = sandbox.start(free_port()).await.expect("listens");
        let folder = TempDir::new().expect("a folder");
        let text = format!(
            "[enrich.providers.wolt]\nenabled = true\nfinder = \"{}\"\nurl = \"http://{address}{}\"\n{}\n{more}",
            kind.finder, kind.path, kind.more
        );
        std::fs::write(folder.path().join("solely.toml"), text).expect("is written");
        Self { kind, sandbox, server: Server::start_with(folder, &[]).await }
    }

    fn calls(&self) -> u64 {
        self.sandbox.count_of(self.kind.counted)
    }

    async fn ask(&self, place: &str, name: &str, city: Option<&str>) {
        let body = json!({"cityText": city, "results": [{"placeId": place, "name": name}]});
        let (status, answer) = self.server.post("/v1/enrich", body).await;
        assert_eq!((status, &answer["pending"]), (200, &json!(1)), "{answer}");
    }

    /// Asks for a place, and waits for what comes of it.
    async fn find(&self, place: &str, name: &str, city: Option<&str>) -> Value {
        self.ask(place, name, city).await;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer =
                self.server.send(Method::GET, &format!("/v1/enrich/wolt/places/{place}"), None).await;
            // Until its lookup has begun there is nothing to be seen of a place.
            let found = if answer.status() == 404 {
                json!({"status": "PENDING"})
            } else {
                answer.json().await.expect("JSON")
            };
            if found["status"] != "PENDING" && found["job"].is_null() {
                return found;
            }
            assert!(Instant::now() < deadline, "{} {found}\n{}", self.kind.finder, self.server.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

const OWN: &str = "https://wolt.com/en/isr/tel-aviv/restaurant/red-lantern";
const FAILED: &str = "lookup_failed";

/// Found by the first query, a place costs one call, and says why it was accepted.
#[tokio::test]
async fn a_place_that_is_found_at_once_is_one_call() {
    for kind in [&HTTP, &BRAVE, &GOOGLE, &WOLT] {
        let world = World::start(kind, "").await;
        let found = world.find("red", "Red Lantern", Some("Tel Aviv")).await;
        assert_eq!((&found["status"], &found["url"]), (&json!("FOUND"), &json!(OWN)), "{}", kind.finder);
        assert_eq!((world.calls(), &found["meta"]["query"]), (1, &json!(1)), "{}", kind.finder);
        let why = found["meta"]["why"].as_array().expect("reasons");
        assert!(why.contains(&json!("name_in_title")) && why.contains(&json!("city_in_path")), "{found}");
        let timeline = world.server.get("/v1/timeline?subject=place:red").await;
        let written = timeline["items"]
            .as_array()
            .expect("items")
            .iter()
            .find(|item| item["event"] == "wolt_cache_written");
        let details = &written.expect("told")["details"];
        assert!(details["refused"][0]["why"][0].is_string(), "what was refused is told: {details}");
    }
}

/// Queries go from tight to loose, and stop at the first link that is accepted.
#[tokio::test]
async fn queries_are_made_until_a_link_is_accepted() {
    for (kind, from, calls) in [(&BRAVE, 2, 2), (&BRAVE, 3, 3), (&BRAVE, 4, 4), (&GOOGLE, 3, 2)] {
        let world = World::start(kind, "").await;
        world.sandbox.find_from(from);
        let found = world.find("red", "Red Lantern", Some("Tel Aviv")).await;
        assert_eq!((&found["status"], world.calls()), (&json!("FOUND"), calls), "{} {from}", kind.finder);
        assert_eq!(found["meta"]["query"], json!(calls));
    }
}

/// Nothing is asked twice: a place that is not there costs each query once.
#[tokio::test]
async fn a_place_that_is_not_there_is_as_many_calls_as_queries() {
    for kind in [&BRAVE, &GOOGLE, &WOLT] {
        let world = World::start(kind, "").await;
        let with_city = world.find("a", "Nowhere Inn", Some("Tel Aviv")).await;
        assert_eq!(
            (&with_city["status"], world.calls()),
            (&json!("NOT_FOUND"), kind.queries.0),
            "{}",
            kind.finder
        );
        assert_eq!(with_city["meta"]["reason"], "no_match");
        let without = world.find("b", "Nowhere Hall", None).await;
        let calls = kind.queries.0 + kind.queries.1;
        assert_eq!((&without["status"], world.calls()), (&json!("NOT_FOUND"), calls), "{}", kind.finder);
    }
    let world = World::start(&HTTP, "").await;
    let found = world.find("nowhere-1", "Nowhere Inn", None).await;
    assert_eq!((&found["status"], world.calls()), (&json!("NOT_FOUND"), 1));
}

/// The tightest query has the name and the city in quotes; all are restricted to the provider's site.
#[tokio::test]
async fn queries_are_what_they_should_be() {
    let world = World::start(&BRAVE, "").await;
    world.find("a", "Nowhere \"Fat\" Inn", Some("Tel Aviv")).await;
    assert_eq!(
        world.sandbox.queries(),
        [
            "\"Nowhere Fat Inn\" \"Tel Aviv\" site:wolt.com",
            "\"Nowhere Fat Inn\" Tel Aviv site:wolt.com",
            "\"Nowhere Fat Inn\" site:wolt.com",
            "Nowhere Fat Inn site:wolt.com",
        ]
    );
}

/// The cities are asked for once, not for every place; a place in a city that Wolt does not know is not there.
#[tokio::test]
async fn wolts_cities_are_asked_for_once() {
    let world = World::start(&WOLT, "").await;
    for (place, name, city) in
        [("a", "Blue Boat", "תל אביב"), ("b", "Green Tree", "Gedera"), ("c", "Old Mill", "Munich")]
    {
        let found = world.find(place, name, Some(city)).await;
        assert_eq!(found["status"], "FOUND", "{name}: {found}");
    }
    let found = world.find("d", "Far Away", Some("Reykjavik")).await;
    assert_eq!(found["status"], "NOT_FOUND");
    assert_eq!((world.sandbox.count_of("wolt.cities"), world.calls()), (1, 3));
}

/// A 429 pauses the finder for as long as it says, and spends no attempt.
#[tokio::test]
async fn a_quota_is_waited_for() {
    // Its one attempt is enough, because waiting for a time that was named is none.
    let world = World::start(&BRAVE, "max_attempts = 1").await;
    world.sandbox.answer_next(&[429]);
    let began = Instant::now();
    let found = world.find("red", "Red Lantern", Some("Tel Aviv")).await;
    assert_eq!((&found["status"], world.calls()), (&json!("FOUND"), 2), "{found}");
    assert!(began.elapsed() >= Duration::from_millis(900), "its window is a second");
    // Who names no time is tried again, which is an attempt.
    for kind in [&HTTP, &WOLT] {
        let world = World::start(kind, "max_attempts = 2").await;
        world.sandbox.answer_next(&[429]);
        let found = world.find("red", "Red Lantern", Some("Tel Aviv")).await;
        assert_eq!(
            (&found["status"], world.sandbox.times().len()),
            (&json!("FOUND"), 2 + usize::from(kind.finder == "wolt"))
        );
    }
}

/// Google names no time. It is left alone for a minute, by all lookups, whether it says 429 or 403.
#[tokio::test]
async fn googles_quota_pauses_it() {
    for status in [429, 403] {
        let world = World::start(&GOOGLE, "max_attempts = 1").await;
        world.sandbox.answer_next(&[status]);
        world.ask("red", "Red Lantern", Some("Tel Aviv")).await;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let upstreams = world.server.get("/v1/upstreams").await;
            if upstreams["items"][0]["state"] == "paused" {
                break;
            }
            assert!(Instant::now() < deadline, "{upstreams}\n{}", world.server.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        world.ask("blue", "Blue Lantern", Some("Tel Aviv")).await;
        let place = world.server.get("/v1/enrich/wolt/places/red").await;
        assert!(!place["job"].is_null(), "it waits: {place}");
        assert_eq!(world.calls(), 1, "nobody else asks");
    }
}

/// What may pass is tried again, what cannot is not.
#[tokio::test]
async fn failures_are_told_apart() {
    for kind in [&HTTP, &BRAVE, &GOOGLE, &WOLT] {
        let world = World::start(kind, "").await;
        world.sandbox.answer_next(&[503]);
        let found = world.find("red", "Red Lantern", Some("Tel Aviv")).await;
        assert_eq!(found["status"], "FOUND", "{}", kind.finder);
        let before = world.sandbox.times().len();
        world.sandbox.set_mood(Mood { status: Some(401), ..Mood::default() });
        let found = world.find("blue", "Blue Lantern", Some("Tel Aviv")).await;
        assert_eq!((&found["status"], &found["meta"]["reason"]), (&json!("NOT_FOUND"), &json!(FAILED)));
        assert_eq!(world.sandbox.times().len() - before, 1, "{}: asking again would not help", kind.finder);
    }
}

/// An answer that cannot be read, or that is too large, ends the lookup at once, and nothing else.
#[tokio::test]
async fn answers_that_are_none_end_the_lookup() {
    for kind in [&HTTP, &BRAVE, &GOOGLE, &WOLT] {
        let world = World::start(kind, "").await;
        let bad = [Mood { malformed: true, ..Mood::default() }, Mood { bytes: 33 << 20, ..Mood::default() }];
        for (nth, mood) in bad.into_iter().enumerate() {
            let before = world.sandbox.times().len();
            world.sandbox.set_mood(mood);
            let found = world.find(&format!("red-{nth}"), "Red Lantern", Some("Tel Aviv")).await;
            assert_eq!((&found["status"], &found["meta"]["reason"]), (&json!("NOT_FOUND"), &json!(FAILED)));
            assert_eq!(world.sandbox.times().len() - before, 1, "{}", kind.finder);
        }
        world.sandbox.set_mood(Mood::default());
        let found = world.find("blue", "Blue Lantern", Some("Tel Aviv")).await;
        assert_eq!(found["status"], "FOUND", "{}: it goes on", kind.finder);
    }
}

/// A finder that does not answer is asked as often as a lookup may be, and then given up.
#[tokio::test]
async fn silence_is_waited_for_so_long_and_no_longer() {
    for kind in [&HTTP, &BRAVE, &GOOGLE, &WOLT] {
        let world = World::start(kind, "timeout = \"200ms\"\nmax_attempts = 2").await;
        world.sandbox.set_mood(Mood { hangs_percent: 100.0, ..Mood::default() });
        let found = world.find("red", "Red Lantern", Some("Tel Aviv")).await;
        assert_eq!((&found["status"], &found["meta"]["reason"]), (&json!("NOT_FOUND"), &json!(FAILED)));
        assert_eq!(world.sandbox.times().len(), 2, "{}", kind.finder);
    }
}

/// Without its key a search is no finder, and the server says so before it starts.
#[tokio::test]
async fn a_finder_without_its_key_is_refused_at_the_start() {
    for (section, key) in [
        ("finder = \"brave\"", "api_key"),
        ("finder = \"google-cse\"\napi_key = \"k\"", "engine_id"),
        ("finder = \"http\"", "url"),
        ("finder = \"brave\"\napi_key = \"k\"\nhosts = []", "hosts"),
    ] {
        let folder = TempDir::new().expect("a folder");
        let text = format!("[enrich.providers.wolt]\nenabled = true\n{section}\n");
        std::fs::write(folder.path().join("solely.toml"), text).expect("is written");
        let said = std::process::Command::new(env!("CARGO_BIN_EXE_solely"))
            .args(["config", "--config"])
            .arg(folder.path().join("solely.toml"))
            .output()
            .expect("runs");
        let words = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(2), "{section}: {words}");
        assert!(words.contains(&format!("enrich.providers.wolt.{key}")), "{words}");
    }
}
