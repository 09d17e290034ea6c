//! enrich as a user meets it: a server, the sandbox's finder, HTTP and a socket. The scenarios of the two
//! documents, each skip reason with its event, and who hears what.

use std::time::{Duration, Instant};

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use solely_sandbox::Sandbox;
use solely_sandbox::catalogue::Catalogue;
use solely_sandbox::finder::page_of;
use solely_sandbox::mood::Mood;
use solely_testing::free_port;
use tempfile::TempDir;

use crate::server::Server;
use crate::socket::{PATIENCE, Socket};

/// A finder, and a server that asks it.
struct World {
    finder: Sandbox,
    server: Server,
}

async fn finder() -> (Sandbox, String) {
    let sandbox = Sandbox::new(Catalogue::of(1, 1));
    let address = sandbox.start(free_port()).await.expect("listens");
    (sandbox, format!("http://{address}/finder"))
}

fn folder(url: &str, more: &str) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let text = format!("[enrich.providers.wolt]\nenabled = true\nurl = \"{url}\"\n{more}");
    std::fs::write(folder.path().join("solely.toml"), text).expect("is written");
    folder
}

/// Decisions are logged down to the enqueuing, which is said at `debug`.
const LOG: (&str, &str) = ("RUST_LOG", "info,solely::decision=debug");

impl World {
    async fn start(more: &str) -> Self {
        let (finder, url) = finder().await;
        let server = Server::start_with(folder(&url, more), &[LOG]).await;
        Self { finder, server }
    }

    async fn ask(&self, request: &str, places: &[&str]) -> Value {
        ask(&self.server, request, places).await
    }

    async fn status_of(&self, place: &str) -> Value {
        let answer = self.server.send(Method::GET, &format!("/v1/enrich/wolt/places/{place}"), None).await;
        if answer.status() == 404 { json!({"status": null}) } else { answer.json().await.expect("JSON") }
    }

    async fn until(&self, place: &str, status: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.status_of(place).await;
            if found["status"] == status && found["job"].is_null() {
                return found;
            }
            assert!(Instant::now() < deadline, "{place} is {status}: {found}\n{}", self.server.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The events of a kind that were logged, in order.
    fn events(&self, event: &str) -> Vec<Value> {
        events(&self.server, event)
    }

    fn calls(&self, place: &str) -> u64 {
        self.finder.places().get(place).copied().unwrap_or(0)
    }
}

fn events(server: &Server, event: &str) -> Vec<Value> {
    let log = server.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["event"] == event).collect()
}

fn named(places: &[&str]) -> Vec<Value> {
    places.iter().map(|place| json!({"placeId": place, "name": format!("Pizza {place}")})).collect()
}

async fn ask(server: &Server, request: &str, places: &[&str]) -> Value {
    let (status, answer) =
        server.post("/v1/enrich", json!({"requestId": request, "results": named(places)})).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

fn reasons(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["reason"].as_str()).collect()
}

/// Document 1, scenario 1: one request is one job. Shapes and fields on the way.
#[tokio::test]
async fn scenario_a_single_request() {
    let world = World::start("").await;
    let (_, answer) = world
        .server
        .post(
            "/v1/enrich",
            json!({"requestId": "req-1", "cityText": "Tel Aviv", "results": [{
                "placeId": "ChIJ123", "name": "Pizza House", "rating": 4.5, "providers": {"yelp": {"stars": 4}},
            }]}),
        )
        .await;
    let pending = json!({"status": "PENDING", "url": null});
    assert_eq!(
        answer,
        json!({"requestId": "req-1", "pending": 1, "results": [{
            "placeId": "ChIJ123", "name": "Pizza House", "rating": 4.5,
            "providers": {"yelp": {"stars": 4}, "wolt": pending}, "wolt": pending,
        }]})
    );
    let entry = world.until("ChIJ123", "FOUND").await;
    assert_eq!(entry["url"], page_of("Pizza House", Some("Tel Aviv")));
    assert_eq!((world.calls("ChIJ123"), world.events("wolt_job_enqueued").len()), (1, 1));
    let enqueued = &world.events("wolt_job_enqueued")[0];
    let field = |name: &str| enqueued[name].as_str().unwrap_or_default();
    assert_eq!(
        (field("level"), field("requestId"), field("placeId"), field("name"), field("cityText")),
        ("debug", "req-1", "ChIJ123", "Pizza House", "Tel Aviv")
    );
    assert_eq!((field("statusSet"), field("reason")), ("PENDING", "cache_miss"));
    for event in ["wolt_cache_miss", "wolt_lock_acquired", "wolt_cache_written"] {
        let said = world.events(event);
        assert_eq!(
            (said.len(), &said[0]["level"], &said[0]["requestId"]),
            (1, &json!("info"), &json!("req-1")),
            "{event}"
        );
    }
    assert_eq!(world.events("wolt_cache_written")[0]["ttlSeconds"], 14 * 86_400);
    let timeline = world.server.get("/v1/timeline?subject=place:ChIJ123").await;
    let told: Vec<&str> = timeline["items"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|item| item["event"].as_str())
        .collect();
    assert_eq!(told, ["wolt_job_enqueued", "wolt_cache_written"]);
    // One by one they are the same, each once.
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = format!("/v1/timeline?subject=place:ChIJ123&limit=1{cursor}");
        let page = world.server.get(&page).await;
        paged.extend(page["items"].as_array().expect("a list").clone());
        let Some(next) = page["nextCursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(json!(paged), timeline["items"]);
    assert_eq!((&paged[0]["requestId"], &paged[0]["reason"]), (&json!("req-1"), &json!("cache_miss")));
}

/// Document 1, scenario 2; document 2, scenario 1: at the same time, one job, and everyone is told.
#[tokio::test]
async fn scenario_concurrent_requests_for_one_place() {
    let world = World::start("").await;
    world.finder.set_mood(Mood { latency_ms: 300, ..Mood::default() });
    let requests = ["a", "b", "c"];
    join_all(requests.map(|request| world.ask(request, &["X"]))).await;
    for request in requests {
        let mut socket = Socket::open(&world.server).await;
        assert!(socket.subscribe(request).await <= 1);
        assert_eq!(socket.patch().await, ("X".to_owned(), "FOUND".to_owned()));
    }
    assert_eq!(world.calls("X"), 1);
    assert_eq!(world.events("wolt_job_enqueued").len(), 1);
    assert_eq!(world.events("wolt_lock_skipped").len(), 2);
    assert_eq!(reasons(&world.events("wolt_enqueue_skipped")), ["lock_held", "lock_held"]);
}

/// Document 1, scenario 3: what is known is attached, and nothing else happens.
#[tokio::test]
async fn scenario_a_later_request_is_a_hit() {
    let world = World::start("").await;
    world.ask("a", &["X", "nowhere"]).await;
    world.until("X", "FOUND").await;
    world.until("nowhere", "NOT_FOUND").await;
    let answer = world.ask("b", &["X", "nowhere"]).await;
    assert_eq!(answer["pending"], 0);
    let (found, not_found) = (&answer["results"][0], &answer["results"][1]);
    let url = json!(page_of("Pizza X", None));
    assert_eq!(found["wolt"], json!({"status": "FOUND", "url": url}), "the twin has these alone");
    assert_eq!(
        (&found["providers"]["wolt"]["status"], &found["providers"]["wolt"]["url"]),
        (&json!("FOUND"), &url)
    );
    assert!(found["providers"]["wolt"]["updatedAt"].is_string());
    assert_eq!(not_found["wolt"], json!({"status": "NOT_FOUND", "url": null}));
    assert_eq!(world.events("wolt_cache_hit").len(), 2);
    let skipped = world.events("wolt_enqueue_skipped");
    assert_eq!(reasons(&skipped), ["already_cached", "already_cached"]);
    assert_eq!((&skipped[0]["status"], &skipped[0]["hasUrl"]), (&json!("FOUND"), &json!(true)));
    assert!(skipped[0]["ageMs"].is_u64() || skipped[0]["ageMs"].is_i64());
    assert_eq!((world.calls("X"), world.events("wolt_job_enqueued").len()), (1, 2));
    let gone = world.server.send(Method::GET, "/v1/enrich/b", None).await;
    assert_eq!(gone.status(), 404, "nothing of it was pending");
}

/// Document 2, scenario 2: when its result has ended, a place is looked up again.
#[tokio::test]
async fn scenario_after_the_cache_has_ended() {
    let world = World::start("not_found_ttl = \"300ms\"").await;
    world.ask("a", &["nowhere"]).await;
    world.until("nowhere", "NOT_FOUND").await;
    let deadline = Instant::now() + PATIENCE;
    while !world.status_of("nowhere").await["status"].is_null() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(world.ask("b", &["nowhere"]).await["pending"], 1);
    // The entry before is still kept, for those who were told of it: it is not what this one waits for.
    let mut socket = Socket::open(&world.server).await;
    socket.subscribe("b").await;
    assert_eq!(socket.patch().await.1, "NOT_FOUND");
    assert_eq!(world.calls("nowhere"), 2);
    assert_eq!(world.events("wolt_cache_written")[0]["ttlSeconds"], 0, "less than a second");
}

/// Document 2, scenario 3: a server that dies in the middle of a lookup. The document had the place wait
/// for its lock to end; here the lookup goes on as soon as there is a server, and both requests hear.
#[tokio::test]
async fn scenario_a_restart_during_a_lookup() {
    let mut world = World::start("").await;
    world.finder.set_mood(Mood { hangs_percent: 100.0, ..Mood::default() });
    world.ask("a", &["X"]).await;
    let deadline = Instant::now() + PATIENCE;
    while world.calls("X") == 0 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.finder.set_mood(Mood::default());
    world.server = world.server.replaced().await;
    assert_eq!(world.ask("b", &["X"]).await["pending"].as_u64().map(|pending| pending <= 1), Some(true));
    for request in ["a", "b"] {
        if request == "b" && world.server.send(Method::GET, "/v1/enrich/b", None).await.status() == 404 {
            continue;
        }
        let mut socket = Socket::open(&world.server).await;
        socket.subscribe(request).await;
        assert_eq!(socket.patch().await, ("X".to_owned(), "FOUND".to_owned()), "{request}");
    }
    assert_eq!(world.calls("X"), 2, "once more for the crash");
}

/// Document 2, scenario 5: the lease has ended, and the job is still in the queue.
#[tokio::test]
async fn scenario_the_queue_itself_deduplicates() {
    let world = World::start("lock_ttl = \"100ms\"\nconcurrency = 1").await;
    world.finder.set_mood(Mood { latency_ms: 1_500, ..Mood::default() });
    world.ask("first", &["busy"]).await;
    world.ask("second", &["X"]).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(world.ask("third", &["X"]).await["pending"], 1);
    let deduplicated = world.events("wolt_job_deduplicated");
    assert_eq!(deduplicated.len(), 1, "{}", world.server.log());
    assert_eq!(
        (&deduplicated[0]["requestId"], &deduplicated[0]["existingRequestId"]),
        (&json!("third"), &json!("second"))
    );
    let mut socket = Socket::open(&world.server).await;
    assert_eq!(socket.subscribe("third").await, 1);
    assert_eq!(socket.patch().await, ("X".to_owned(), "FOUND".to_owned()));
    assert_eq!(world.calls("X"), 1);
    let metrics = world.server.send(Method::GET, "/metrics", None).await.text().await.expect("text");
    assert!(metrics.contains("solely_enrich_deduplicated_total{provider=\"wolt\"} 1"), "{metrics}");
}

/// A request that is used again has all its places, also those that are known when it asks for them, and what
/// it was told stays so for as long as it can be asked about.
#[tokio::test]
async fn a_request_used_again_keeps_its_places() {
    let world = World::start("failed_ttl = \"200ms\"").await;
    world.ask("other", &["B"]).await;
    world.until("B", "FOUND").await;
    assert_eq!(world.ask("again", &["A"]).await["pending"], 1);
    let known = world.ask("again", &["B"]).await;
    assert_eq!((&known["pending"], &known["results"][0]["wolt"]["status"]), (&json!(0), &json!("FOUND")));
    world.until("A", "FOUND").await;
    let recalled = world.server.get("/v1/enrich/again").await;
    let places: Vec<&str> = recalled["results"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["placeId"].as_str())
        .collect();
    assert_eq!((places, &recalled["pending"]), (vec!["A", "B"], &json!(0)), "{recalled}");
}

/// What is enqueued says how many wait with it, a duplicate of which job it is one.
#[tokio::test]
async fn enqueued_and_deduplicated_say_of_what() {
    let world = World::start("").await;
    world.finder.set_mood(Mood { latency_ms: 500, ..Mood::default() });
    world.ask("first", &["X", "Y"]).await;
    let sizes: Vec<i64> = events(&world.server, "wolt_job_enqueued")
        .iter()
        .filter_map(|said| said["queueSize"].as_i64())
        .collect();
    assert_eq!(sizes, [1, 2]);
    let job = world.status_of("X").await["job"].clone();
    assert!(job.is_string(), "{job}");
    world.server.post("/v1/enrich/warm", json!({"provider": "wolt", "places": named(&["X"])})).await;
    let said = events(&world.server, "wolt_job_deduplicated");
    assert_eq!(said.last().expect("is said")["existingJobId"], job);
}

/// Switched off, a provider adds no field, whatever came with the result.
#[tokio::test]
async fn flag_disabled() {
    let server = Server::start_with(TempDir::new().expect("a folder"), &[LOG]).await;
    let answer = ask(&server, "a", &["X"]).await;
    assert_eq!(
        answer,
        json!({"requestId": "a", "pending": 0, "results": [{"placeId": "X", "name": "Pizza X"}]})
    );
    let skipped = events(&server, "wolt_enqueue_skipped");
    assert_eq!(
        (reasons(&skipped), &skipped[0]["requestId"], &skipped[0]["level"]),
        (vec!["flag_disabled"], &json!("a"), &json!("info"))
    );
}

/// The documents' own switch: `true`, and nothing else.
#[tokio::test]
async fn flag_of_the_environment() {
    let (_finder, url) = finder().await;
    for (value, pending) in [("true", 1), ("false", 0), ("1", 0)] {
        let folder = TempDir::new().expect("a folder");
        let env = [("ENABLE_WOLT_ENRICHMENT", value), ("SOLELY__ENRICH__PROVIDERS__WOLT__URL", url.as_str())];
        let server = Server::start_with(folder, &env).await;
        assert_eq!(ask(&server, "a", &["X"]).await["pending"], pending, "{value}");
    }
}

#[tokio::test]
async fn no_results() {
    let world = World::start("").await;
    assert_eq!(world.ask("a", &[]).await, json!({"requestId": "a", "pending": 0, "results": []}));
    assert_eq!(reasons(&world.events("wolt_enqueue_skipped")), ["no_results"]);
}

/// A place twice in a request is one job; a request used again adds its places.
#[tokio::test]
async fn a_request_is_added_to() {
    let world = World::start("").await;
    world.finder.set_mood(Mood { latency_ms: 200, ..Mood::default() });
    let answer = world.ask("a", &["X", "X"]).await;
    assert_eq!((&answer["pending"], answer["results"].as_array().map(Vec::len)), (&json!(1), Some(2)));
    world.ask("a", &["Y"]).await;
    let polled = world.server.get("/v1/enrich/a").await;
    let places: Vec<&str> = polled["results"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["placeId"].as_str())
        .collect();
    assert_eq!((places, &polled["pending"]), (vec!["X", "Y"], &json!(2)));
    assert_eq!(polled["results"][0]["name"], "Pizza X");
    let mut socket = Socket::open(&world.server).await;
    assert_eq!(socket.subscribe("a").await, 2);
    let mut heard = vec![socket.patch().await.0, socket.patch().await.0];
    heard.sort();
    assert_eq!(heard, ["X", "Y"]);
    socket.assert_silent().await;
    let polled = world.server.get("/v1/enrich/a").await;
    assert_eq!(
        (&polled["pending"], &polled["results"][1]["providers"]["wolt"]["status"]),
        (&json!(0), &json!("FOUND"))
    );
    assert_eq!((world.calls("X"), world.calls("Y")), (1, 1));
}

/// Places in the shape of Google Places (New).
#[tokio::test]
async fn google_places_are_mapped() {
    let world = World::start("").await;
    let (status, answer) = world
        .server
        .post(
            "/v1/enrich",
            json!({"places": [{
                "id": "ChIJ9", "displayName": {"text": "Pizza House", "languageCode": "en"},
                "formattedAddress": "1 Main St", "location": {"latitude": 32.1, "longitude": 34.8}, "rating": 4.2,
            }]}),
        )
        .await;
    assert_eq!(status, 200, "{answer}");
    let result = &answer["results"][0];
    assert_eq!(
        (&result["placeId"], &result["name"], &result["address"]),
        (&json!("ChIJ9"), &json!("Pizza House"), &json!("1 Main St"))
    );
    assert_eq!(
        (&result["location"]["latitude"], &result["wolt"]["status"]),
        (&json!(32.1), &json!("PENDING"))
    );
    assert!(!answer["requestId"].as_str().expect("made").is_empty());
    world.until("ChIJ9", "FOUND").await;
}

#[tokio::test]
async fn the_flat_field_can_be_switched_off() {
    let (_finder, url) = finder().await;
    let folder = folder(&url, "[enrich]\nlegacy_wolt_field = false\n");
    let server = Server::start_in(folder).await;
    let answer = ask(&server, "a", &["X"]).await;
    assert_eq!(
        answer["results"][0],
        json!({"placeId": "X", "name": "Pizza X", "providers": {"wolt": {"status": "PENDING", "url": null}}})
    );
    let mut socket = Socket::open(&server).await;
    if socket.subscribe("a").await <= 1 {
        let patch = socket.next().await.expect("a patch");
        assert!(patch["patch"].get("wolt").is_none(), "{patch}");
    }
}

/// A lookup that fails is tried again, and then remembered for a short time only; everyone hears it.
#[tokio::test]
async fn a_lookup_that_fails_is_told_and_soon_forgotten() {
    let world = World::start("failed_ttl = \"1500ms\"\nmax_attempts = 2").await;
    world.finder.set_mood(Mood { status: Some(500), ..Mood::default() });
    let mut early = Socket::open(&world.server).await;
    assert_eq!(early.subscribe("a").await, 0, "not seen yet");
    world.ask("a", &["X"]).await;
    let patch = early.next().await.expect("a patch");
    let state = &patch["patch"]["providers"]["wolt"];
    assert_eq!(
        (&state["status"], &state["url"], &state["meta"]),
        (&json!("NOT_FOUND"), &Value::Null, &json!({"reason": "lookup_failed"}))
    );
    assert_eq!(world.calls("X"), 2, "as often as it may be tried");
    assert_eq!(world.ask("b", &["X"]).await["pending"], 0, "it is remembered");
    world.finder.set_mood(Mood::default());
    let deadline = Instant::now() + PATIENCE;
    while world.ask("c", &["X"]).await["pending"] == 0 {
        assert!(Instant::now() < deadline, "it is forgotten");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.until("X", "FOUND").await;
    // Whoever waited for the first is still told what became of that, though it has ended since.
    let mut late = Socket::open(&world.server).await;
    assert_eq!(late.subscribe("a").await, 0);
    assert_eq!(late.patch().await, ("X".to_owned(), "FOUND".to_owned()));
    late.assert_silent().await;
    early.assert_silent().await;
}

/// Subscribing after the result has ended, and before it is looked up again.
#[tokio::test]
async fn a_subscriber_who_comes_after_failed_ttl_hears_what_was() {
    let world = World::start("failed_ttl = \"200ms\"\nmax_attempts = 1").await;
    world.finder.set_mood(Mood { status: Some(500), ..Mood::default() });
    world.ask("a", &["X"]).await;
    let deadline = Instant::now() + PATIENCE;
    while world.events("wolt_cache_written").is_empty() || !world.status_of("X").await["status"].is_null() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut socket = Socket::open(&world.server).await;
    assert_eq!(socket.subscribe("a").await, 0);
    assert_eq!(socket.patch().await, ("X".to_owned(), "NOT_FOUND".to_owned()));
    socket.assert_silent().await;
    assert_eq!(world.server.get("/v1/enrich/a").await["pending"], 0, "never told PENDING again");
}

/// What cannot be mended by trying again is given up at once.
#[tokio::test]
async fn a_refusal_is_final() {
    let world = World::start("").await;
    world.finder.set_mood(Mood { status: Some(403), ..Mood::default() });
    world.ask("a", &["X"]).await;
    let entry = world.until("X", "NOT_FOUND").await;
    assert_eq!((&entry["meta"]["reason"], world.calls("X")), (&json!("lookup_failed"), 1));
    let dead = world.server.get("/v1/dead-letters?queue=enrich:wolt").await;
    assert!(dead["items"][0]["error"].as_str().expect("a reason").contains("403"), "{dead}");
    // Brought back, it is looked up again, though it failed a moment ago.
    world.finder.set_mood(Mood::default());
    let (status, _) = world.server.post("/v1/dead-letters/redrive", json!({"queue": "enrich:wolt"})).await;
    assert_eq!(status, 200);
    world.until("X", "FOUND").await;
}

/// 429 with Retry-After: all of them wait for as long, and no attempt is spent.
#[tokio::test]
async fn a_finder_that_throttles_is_left_alone() {
    let world = World::start("max_attempts = 1").await;
    world.finder.set_mood(Mood {
        throttle_every_ms: 100_000_000,
        throttle_for_ms: 100_000_000,
        ..Mood::default()
    });
    world.ask("a", &["X"]).await;
    let deadline = Instant::now() + PATIENCE;
    while world.finder.count_of("finder 429") == 0 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.finder.set_mood(Mood::default());
    world.until("X", "FOUND").await;
    assert_eq!(world.calls("X"), 2);
    let upstreams = world.server.get("/v1/upstreams").await;
    assert_eq!(
        (&upstreams["items"][0]["name"], &upstreams["items"][0]["kind"]),
        (&json!("wolt"), &json!("provider"))
    );
}

/// The deadline is for all of it: a finder that hangs, one that is paused, and waiting behind others.
#[tokio::test]
async fn a_lookup_ends_by_its_deadline() {
    let world = World::start("deadline = \"700ms\"\nconcurrency = 1").await;
    world.finder.set_mood(Mood { hangs_percent: 100.0, ..Mood::default() });
    let began = Instant::now();
    world.ask("a", &["X", "Y", "Z"]).await;
    let mut socket = Socket::open(&world.server).await;
    assert_eq!(socket.subscribe("a").await, 3);
    for _ in 0..3 {
        assert_eq!(socket.patch().await.1, "NOT_FOUND");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(world.status_of("X").await["meta"]["reason"], "lookup_failed");
}

/// A request does not wait for the finder.
#[tokio::test]
async fn a_hanging_finder_is_not_waited_for() {
    let world = World::start("").await;
    world.finder.set_mood(Mood { hangs_percent: 100.0, ..Mood::default() });
    for n in 0..20 {
        let began = Instant::now();
        assert_eq!(world.ask("a", &[&format!("p{n}")]).await["pending"], 1);
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
}

/// In the last tenth of its life an entry is refreshed ahead, once; should that fail, it stays.
#[tokio::test]
async fn an_entry_is_refreshed_ahead_once() {
    let world = World::start("found_ttl = \"20s\"\nmax_attempts = 1").await;
    world.ask("a", &["X"]).await;
    let first = world.until("X", "FOUND").await;
    // Moved to its last tenth, as nobody waits for eighteen seconds in a test.
    let conn = rusqlite::Connection::open(world.server.file()).expect("opens");
    let aged = "UPDATE entries SET fresh_until = updated_at, updated_at = updated_at + 1 WHERE key = 'X'";
    assert_eq!(conn.execute(aged, []).expect("writes"), 1);
    world.finder.set_mood(Mood { status: Some(403), ..Mood::default() });
    let deadline = Instant::now() + PATIENCE;
    while world.calls("X") < 2 {
        let answer = world.ask("b", &["X"]).await;
        assert_eq!(answer["results"][0]["wolt"]["status"], "FOUND", "it is served all the while");
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let deadline = Instant::now() + PATIENCE;
    while world.server.get("/v1/dead-letters?queue=enrich:wolt").await["items"]
        .as_array()
        .is_none_or(Vec::is_empty)
    {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for _ in 0..20 {
        assert_eq!(world.ask("c", &["X"]).await["results"][0]["wolt"]["status"], "FOUND");
    }
    assert_eq!(world.status_of("X").await["url"], first["url"], "it stays as it is");
    assert_eq!(world.calls("X"), 2, "once");
    let told = world.server.get("/v1/timeline?subject=place:X").await;
    let last = told["items"].as_array().and_then(|items| items.last()).expect("is told");
    assert_eq!((&last["event"], &last["outcome"]), (&json!("wolt_lookup_failed"), &json!("KEPT")));
}

/// Places are looked up ahead of requests.
#[tokio::test]
async fn warming() {
    let world = World::start("").await;
    world.ask("a", &["X"]).await;
    world.until("X", "FOUND").await;
    let places = json!([
        {"placeId": "X", "name": "Pizza X"}, {"placeId": "Y", "name": "Pizza Y", "cityText": "Haifa"},
        {"placeId": "Y", "name": "Pizza Y"},
    ]);
    let (status, warmed) =
        world.server.post("/v1/enrich/warm", json!({"provider": "wolt", "places": places})).await;
    assert_eq!((status, warmed), (202, json!({"queued": 1, "cached": 1, "duplicate": 1})));
    assert_eq!(world.until("Y", "FOUND").await["url"], page_of("Pizza Y", Some("Haifa")));
    assert_eq!(world.ask("b", &["Y"]).await["pending"], 0);
}

/// One entry, looked at and forgotten; those who were told of it still hear what it was.
#[tokio::test]
async fn forgetting() {
    let world = World::start("").await;
    world.ask("a", &["X"]).await;
    let entry = world.until("X", "FOUND").await;
    assert_eq!(
        (&entry["provider"], &entry["placeId"], &entry["job"]),
        (&json!("wolt"), &json!("X"), &Value::Null)
    );
    assert!(entry["expiresAt"].as_str() > entry["updatedAt"].as_str());
    let forget =
        async || world.server.send(Method::DELETE, "/v1/enrich/wolt/places/X", None).await.status().as_u16();
    assert_eq!((forget().await, forget().await), (204, 404));
    assert_eq!(world.status_of("X").await["status"], Value::Null);
    let mut late = Socket::open(&world.server).await;
    assert_eq!(late.subscribe("a").await, 0);
    assert_eq!(late.patch().await, ("X".to_owned(), "FOUND".to_owned()));
    // Asked for again it is looked up again, and the same socket hears of that, too.
    world.finder.set_mood(Mood { latency_ms: 100, ..Mood::default() });
    assert_eq!(world.ask("a", &["X"]).await["pending"], 1);
    assert_eq!(late.patch().await, ("X".to_owned(), "FOUND".to_owned()));
    late.assert_silent().await;
    assert_eq!(world.calls("X"), 2);
}

/// Subscribing twice, and on two sockets: each hears each state once.
#[tokio::test]
async fn each_subscription_hears_each_state_once() {
    let world = World::start("").await;
    world.finder.set_mood(Mood { latency_ms: 200, ..Mood::default() });
    let (mut one, mut two) = (Socket::open(&world.server).await, Socket::open(&world.server).await);
    world.ask("a", &["X", "Y"]).await;
    assert_eq!((one.subscribe("a").await, two.subscribe("a").await), (2, 2));
    for socket in [&mut one, &mut two] {
        let mut heard = vec![socket.patch().await.0, socket.patch().await.0];
        heard.sort();
        assert_eq!(heard, ["X", "Y"]);
    }
    // The same request is asked for again: it is told in the answer, and nothing is pushed.
    assert_eq!(world.ask("a", &["X"]).await["pending"], 0);
    one.assert_silent().await;
    two.assert_silent().await;
    // A new subscription begins anew.
    assert_eq!(one.subscribe("a").await, 0);
    let mut heard = vec![one.patch().await.0, one.patch().await.0];
    heard.sort();
    assert_eq!(heard, ["X", "Y"]);
    one.assert_silent().await;
}

/// What a socket may say, and what it is told when it says something else.
#[tokio::test]
async fn what_a_socket_says_is_checked() {
    let world = World::start("").await;
    let mut socket = Socket::open(&world.server).await;
    for wrong in [
        json!({"type": "subscribe", "channel": "search"}),
        json!({"type": "subscribe", "channel": "elsewhere", "requestId": "a"}),
        json!({"v": 2, "type": "subscribe", "channel": "search", "requestId": "a"}),
        json!({"type": "subscribe", "channel": "search", "requestId": ""}),
        json!({"type": "subscribe", "channel": "search", "requestId": 7}),
        json!({"type": "shout"}),
        json!([1]),
    ] {
        socket.say(wrong.clone()).await;
        assert_eq!(
            socket.next().await,
            Some(json!({"type": "sub_nack", "reason": "invalid_request"})),
            "{wrong}"
        );
    }
    // Nothing is heard of what was unsubscribed.
    world.finder.set_mood(Mood { latency_ms: 200, ..Mood::default() });
    world.ask("a", &["X"]).await;
    assert_eq!(socket.subscribe("a").await, 1);
    socket.say(json!({"v": 1, "type": "unsubscribe", "channel": "search", "requestId": "a"})).await;
    world.until("X", "FOUND").await;
    socket.assert_silent().await;
    for n in 0..100 {
        socket.subscribe(&format!("r{n}")).await;
    }
    socket.say(json!({"v": 1, "type": "subscribe", "channel": "search", "requestId": "one more"})).await;
    assert_eq!(socket.next().await, Some(json!({"type": "sub_nack", "reason": "too_many"})));
}

/// A provider is a section of the configuration: it has its own field, and its own words.
#[tokio::test]
async fn another_provider_is_a_section() {
    let (finder, url) = finder().await;
    let base = url.trim_end_matches("/finder");
    let more = format!(
        "\n[enrich.providers.tripadvisor]\nenabled = true\nfinder = \"brave\"\nurl = \"{base}/brave\"\n\
         api_key = \"key\"\nhosts = [\"tripadvisor.com\"]\n"
    );
    let server = Server::start_with(folder(&url, &more), &[LOG]).await;
    let body = json!({
        "requestId": "a", "cityText": "Tel Aviv", "providers": ["tripadvisor"],
        "results": [{"placeId": "X", "name": "Red Lantern"}],
    });
    let (status, answer) = server.post("/v1/enrich", body).await;
    assert_eq!((status, &answer["pending"]), (200, &json!(1)));
    assert!(answer["results"][0].get("wolt").is_none(), "only what was asked for: {answer}");
    let deadline = Instant::now() + PATIENCE;
    while server.get("/v1/enrich/a").await["pending"] != 0 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let polled = server.get("/v1/enrich/a").await;
    let found = &polled["results"][0]["providers"]["tripadvisor"];
    let page =
        "https://www.tripadvisor.com/Restaurant_Review-g293984-d1234567-Reviews-Red_Lantern-Tel_Aviv.html";
    assert_eq!((&found["status"], &found["url"]), (&json!("FOUND"), &json!(page)), "{found}");
    assert_eq!(events(&server, "tripadvisor_cache_miss").len(), 1);
    assert_eq!(
        (finder.count_of("brave"), finder.count_of("finder")),
        (1, 0),
        "each provider has its own finder"
    );
}

/// A request's trace goes to the finder.
#[tokio::test]
async fn a_trace_goes_with_its_lookup() {
    let world = World::start("").await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let body = json!({"requestId": "a", "results": named(&["X"])}).to_string();
    let request = world.server.client.post(format!("{}/v1/enrich", world.server.url));
    request.header("traceparent", trace).body(body).send().await.expect("answers");
    world.until("X", "FOUND").await;
    assert_eq!(world.finder.traces(), [trace]);
}
