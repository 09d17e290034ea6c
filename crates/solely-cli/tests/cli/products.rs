//! products as a user meets it: each condition of the document, with the plugin's calls and the queued jobs counted;
//! crowds, failures, and what a caller gets.

use std::time::{Duration, Instant};

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use solely_sandbox::Sandbox;
use solely_sandbox::catalogue::Catalogue;
use solely_sandbox::mood::Mood;
use solely_testing::free_port;
use tempfile::TempDir;

use crate::server::Server;
use crate::socket::PATIENCE;

/// A plugin, and a server that asks it.
struct World {
    sandbox: Sandbox,
    server: Server,
}

impl World {
    async fn start(more: &str) -> Self {
        Self::of("http", "/products", more).await
    }

    async fn of(kind: &str, path: &str, more: &str) -> Self {
        let sandbox = Sandbox::new(Catalogue::of(1, 1));
        let address = sandbox.start(free_port()).await.expect("listens");
        let folder = TempDir::new().expect("a folder");
        let text = format!(
            "[products.plugins.tours]\nkind = \"{kind}\"\nurl = \"http://{address}{path}\"\n{more}\n"
        );
        std::fs::write(folder.path().join("solely.toml"), text).expect("is written");
        Self { sandbox, server: Server::start_with(folder, &[]).await }
    }

    async fn search(&self, more: Value) -> (u16, Value) {
        self.server.post("/v1/products/search", request(&more)).await
    }

    async fn found(&self, more: Value) -> Value {
        let (status, answer) = self.search(more).await;
        assert_eq!(status, 200, "{answer}\n{}", self.server.log());
        answer
    }

    fn calls(&self) -> u64 {
        self.sandbox.count_of("products")
    }

    /// Refreshes that were ever queued.
    async fn refreshes(&self) -> usize {
        let jobs = self.server.get("/v1/jobs?queue=products").await;
        jobs["items"].as_array().map_or(0, Vec::len)
    }

    /// Searches until the answer is in a state.
    async fn until(&self, state: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.found(json!({})).await;
            if answer["cache"]["state"] == state {
                return answer;
            }
            assert!(Instant::now() < deadline, "{answer}\n{}", self.server.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(crate) fn request(more: &Value) -> Value {
    let mut request = json!({"appKey": "tours", "userId": "u1"});
    for (name, value) in more.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

fn state(answer: &Value) -> &str {
    answer["cache"]["state"].as_str().unwrap_or_default()
}

fn count(answer: &Value) -> usize {
    answer["products"].as_array().map_or(0, Vec::len)
}

/// Condition 4: nothing is cached, so the plugin is called once, and what it has is cached: condition 3a.
#[tokio::test]
async fn condition_4_nothing_cached_and_3a_fresh() {
    let world = World::start("").await;
    let filled = world.found(json!({})).await;
    assert_eq!((state(&filled), count(&filled), world.calls()), ("filled", 2, 1));
    assert_eq!(filled["cache"]["refreshQueued"], false);
    let fresh = world.found(json!({})).await;
    assert_eq!((state(&fresh), &fresh["products"], world.calls()), ("fresh", &filled["products"], 1));
    assert_eq!(fresh["cache"]["lastUpdated"], filled["cache"]["lastUpdated"]);
    assert_eq!(world.refreshes().await, 0);
    let other = world.found(json!({"userId": "u2"})).await;
    assert_eq!((state(&other), world.calls()), ("filled", 2), "another user's is another");
}

/// Condition 1: the plugin is never called and no job is queued, whether there is something or not.
#[tokio::test]
async fn condition_1_do_not_call() {
    let world = World::start("ttr = \"100ms\"").await;
    let never = json!({"token": {"doNotCallPluginForProducts": true}});
    let empty = world.found(never.clone()).await;
    assert_eq!(
        (state(&empty), &empty["products"], &empty["cache"]["lastUpdated"]),
        ("empty", &json!([]), &Value::Null)
    );
    world.found(json!({})).await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    let cached = world.found(never).await;
    assert_eq!((state(&cached), count(&cached)), ("cacheOnly", 2), "however old it is");
    assert_eq!((world.calls(), world.refreshes().await), (1, 0));
    let world = World::start("do_not_call = true").await;
    assert_eq!(state(&world.found(json!({})).await), "empty");
    let called = world.found(json!({"token": {"doNotCallPluginForProducts": false}})).await;
    assert_eq!((state(&called), world.calls()), ("filled", 1), "the token is asked before the setting");
}

/// Condition 2: forced, the plugin is called, and what it has is cached; it beats do-not-call.
#[tokio::test]
async fn condition_2_forced() {
    let world = World::start("do_not_call = true").await;
    let first = world.found(json!({"forceRefresh": true})).await;
    assert_eq!((state(&first), count(&first), world.calls()), ("refreshed", 2, 1));
    world.sandbox.set_products(json!([{"productId": "new", "options": [{"optionId": "n"}]}]), false);
    let again = world.found(json!({"forceRefresh": true})).await;
    assert_eq!(
        (state(&again), &again["products"][0]["productId"], world.calls()),
        ("refreshed", &json!("new"), 2)
    );
    let cached = world.found(json!({})).await;
    assert_eq!((state(&cached), &cached["products"][0]["productId"]), ("cacheOnly", &json!("new")));
    assert_eq!(world.refreshes().await, 0);
}

/// Condition 3b: stale is served at once to all; one of them queued the one refresh, which is seen afterwards.
#[tokio::test]
async fn condition_3b_stale_is_served_and_refreshed_once() {
    let world = World::start("").await;
    world.found(json!({})).await;
    world.sandbox.set_products(json!([{"productId": "new", "options": [{"optionId": "n"}]}]), false);
    world.sandbox.set_mood(Mood { latency_ms: 300, ..Mood::default() });
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let stale = json!({"token": {"ttr": 1}});
    let began = Instant::now();
    let answers = join_all((0..200).map(|_| world.found(stale.clone()))).await;
    assert!(began.elapsed() < Duration::from_millis(300) * 10, "nobody waits for the plugin");
    assert!(answers.iter().all(|answer| state(answer) == "stale" && count(answer) == 2));
    let queued = answers.iter().filter(|answer| answer["cache"]["refreshQueued"] == true).count();
    assert_eq!((queued, world.refreshes().await), (1, 1));
    let deadline = Instant::now() + PATIENCE;
    while world.found(json!({})).await["products"][0]["productId"] != "new" {
        assert!(Instant::now() < deadline, "{}", world.server.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(world.calls(), 2);
}

/// The job lock: for its time no second refresh is queued, though the first brought nothing, and the process that queued
/// it has forgotten it.
#[tokio::test]
async fn condition_3b_the_job_lock_outlives_the_job() {
    let world = World::start("job_lock_ttl = \"1m\"").await;
    world.found(json!({})).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    world.sandbox.set_products(json!([]), false);
    let stale = json!({"token": {"ttr": 1}});
    assert_eq!(world.found(stale.clone()).await["cache"]["refreshQueued"], true);
    let deadline = Instant::now() + PATIENCE;
    while world.server.get("/v1/jobs?queue=products&state=completed").await["items"]
        .as_array()
        .is_none_or(Vec::is_empty)
    {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let World { sandbox, server } = world;
    let world = World { sandbox, server: server.replaced().await };
    for _ in 0..5 {
        let answer = world.found(stale.clone()).await;
        assert_eq!((state(&answer), count(&answer)), ("stale", 2), "an empty answer replaced nothing");
        assert_eq!(answer["cache"]["refreshQueued"], false);
    }
    assert_eq!((world.calls(), world.refreshes().await), (2, 1));
}

/// Condition 3a again: while the plugin is called, what is stale is served, and nothing is queued.
#[tokio::test]
async fn condition_3a_stale_while_a_call_is_under_way() {
    let world = World::start("").await;
    world.found(json!({})).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    world.sandbox.set_mood(Mood { latency_ms: 600, ..Mood::default() });
    let forced = world.found(json!({"forceRefresh": true}));
    let stale = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        world.found(json!({"token": {"ttr": 1}})).await
    };
    let (forced, stale) = tokio::join!(forced, stale);
    assert_eq!((state(&forced), state(&stale)), ("refreshed", "stale"));
    assert_eq!((&stale["cache"]["refreshQueued"], world.refreshes().await), (&json!(false), 0));
}

/// A crowd that finds nothing is one call, and one answer; a forced crowd is one call at a time.
#[tokio::test]
async fn a_crowd_is_one_call() {
    let world = World::start("").await;
    world.sandbox.set_mood(Mood { latency_ms: 300, ..Mood::default() });
    let answers = join_all((0..200).map(|_| world.found(json!({})))).await;
    assert_eq!(world.calls(), 1);
    assert!(answers.iter().all(|answer| answer["products"] == answers[0]["products"] && count(answer) == 2));
    let answers = join_all((0..200).map(|_| world.found(json!({"forceRefresh": true})))).await;
    assert!(answers.iter().all(|answer| state(answer) == "refreshed"));
    assert!(world.calls() <= 3, "at most two more: {}", world.calls());
}

/// The caller who started the call leaves: it goes on, and is cached.
#[tokio::test]
async fn a_call_outlives_its_caller() {
    let world = World::start("").await;
    world.sandbox.set_mood(Mood { latency_ms: 400, ..Mood::default() });
    let leaving = world.search(json!({}));
    assert!(tokio::time::timeout(Duration::from_millis(150), leaving).await.is_err(), "it leaves");
    let deadline = Instant::now() + PATIENCE;
    while state(&world.found(json!({"token": {"doNotCallPluginForProducts": true}})).await) != "cacheOnly" {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(world.calls(), 1);
}

/// Past `wait` a caller is told that it is busy; the call goes on, and its answer is cached.
#[tokio::test]
async fn a_caller_waits_so_long_and_no_longer() {
    let world = World::start("wait = \"200ms\"").await;
    world.sandbox.set_mood(Mood { latency_ms: 700, ..Mood::default() });
    let (status, busy) = world.search(json!({})).await;
    assert_eq!((status, &busy["error"]), (503, &json!("PLUGIN_BUSY")));
    assert!(busy["retryAfter"].as_u64().is_some_and(|after| after > 0));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, answer) = world.search(json!({})).await;
        if status == 200 {
            assert_eq!(count(&answer), 2);
            break;
        }
        assert!(Instant::now() < deadline);
    }
    assert_eq!(world.calls(), 1);
}

/// A plugin that fails: a clear code, nothing cached, and the key is left alone; forced, it is called all the same.
#[tokio::test]
async fn failures_have_codes_and_a_backoff() {
    let world = World::start("timeout = \"300ms\"\nfailure_backoff = \"2s\"").await;
    world.sandbox.set_mood(Mood { status: Some(500), ..Mood::default() });
    let (status, failed) = world.search(json!({})).await;
    assert_eq!((status, &failed["error"]), (502, &json!("PLUGIN_FAILED")));
    let after = failed["retryAfter"].as_u64().expect("when to try again");
    assert!((1..=2_000).contains(&after), "{failed}");
    let (status, again) = world.search(json!({})).await;
    assert_eq!(
        (status, &again["error"], world.calls()),
        (502, &json!("PLUGIN_FAILED"), 1),
        "at once, without a call"
    );
    world.sandbox.set_mood(Mood { hangs_percent: 100.0, ..Mood::default() });
    let (status, forced) = world.search(json!({"forceRefresh": true})).await;
    assert_eq!((status, &forced["error"], world.calls()), (504, &json!("PLUGIN_TIMEOUT"), 2));
    world.sandbox.set_mood(Mood::default());
    assert_eq!(state(&world.found(json!({"forceRefresh": true})).await), "refreshed");
    assert_eq!(state(&world.found(json!({})).await), "fresh", "a success ends the backoff");
}

/// What is stale is served whatever the plugin does, and says why it is; calls stay within the backoff.
#[tokio::test]
async fn stale_is_served_while_the_plugin_fails() {
    let bad = [
        Mood { status: Some(503), ..Mood::default() },
        Mood { malformed: true, ..Mood::default() },
        Mood { bytes: 33 << 20, ..Mood::default() },
    ];
    for mood in bad {
        let world = World::start("failure_backoff = \"1m\"").await;
        world.found(json!({})).await;
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        world.sandbox.set_mood(mood);
        let stale = json!({"token": {"ttr": 1}});
        assert_eq!(world.found(stale.clone()).await["cache"]["refreshQueued"], true);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = world.found(stale.clone()).await;
            assert_eq!((state(&answer), count(&answer)), ("stale", 2));
            if answer["cache"]["error"].is_string() {
                break;
            }
            assert!(Instant::now() < deadline, "{answer}\n{}", world.server.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for _ in 0..20 {
            world.found(stale.clone()).await;
        }
        assert_eq!((world.calls(), world.refreshes().await), (2, 1), "it is left alone");
    }
}

/// An empty or partial answer replaces nothing; forced, it is returned. With nothing before it is kept for a while.
#[tokio::test]
async fn empty_and_partial_answers_replace_nothing() {
    let world = World::start("empty_ttl = \"1s\"").await;
    world.found(json!({})).await;
    for (products, partial) in [(json!([]), false), (json!([{"productId": "half", "options": []}]), true)] {
        world.sandbox.set_products(products.clone(), partial);
        let forced = world.found(json!({"forceRefresh": true})).await;
        assert_eq!((state(&forced), &forced["products"]), ("refreshed", &products));
        let kept = world.found(json!({})).await;
        assert_eq!((state(&kept), count(&kept)), ("fresh", 2), "the cached one is kept");
    }
    world.sandbox.set_products(json!([]), false);
    let calls = world.calls();
    let empty = json!({"userId": "nobody"});
    assert_eq!(state(&world.found(empty.clone()).await), "filled");
    assert_eq!(
        (state(&world.found(empty.clone()).await), world.calls() - calls),
        ("fresh", 1),
        "kept for a while"
    );
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!((state(&world.found(empty).await), world.calls() - calls), ("filled", 2));
}

/// The whole catalogue is cached, and filtered on read; what else is asked for goes to the plugin, and into the key.
#[tokio::test]
async fn filters_do_not_reach_the_plugin() {
    let world = World::start("").await;
    let kayak = world.found(json!({"hint": "acct", "payload": {"searchInput": "kayak EVENING"}})).await;
    assert_eq!(
        (count(&kayak), &kayak["products"][0]["options"]),
        (1, &json!([{"optionId": "o2", "optionName": "Evening"}]))
    );
    let by_id =
        world.found(json!({"hint": "acct", "payload": {"searchInput": "kayak", "optionId": "o3"}})).await;
    assert_eq!(
        (state(&by_id), &by_id["products"][0]["productId"]),
        ("fresh", &json!("p2")),
        "an id beats words"
    );
    assert_eq!(count(&world.found(json!({"hint": "acct", "payload": {"searchInput": "*"}})).await), 2);
    assert_eq!(world.calls(), 1);
    world.found(json!({"hint": "acct", "payload": {"searchInput": "x", "region": "north"}})).await;
    let asked: Vec<Value> =
        world.sandbox.queries().iter().map(|query| serde_json::from_str(query).expect("JSON")).collect();
    assert_eq!(
        asked[0],
        json!({"operation": "searchProducts", "payload": {}, "userId": "u1", "hint": "acct"})
    );
    assert_eq!(asked[1]["payload"], json!({"region": "north"}), "another catalogue");
}

/// The configuration of a token is laid over the answer, but never over the products or the cache.
#[tokio::test]
async fn a_configuration_is_laid_over() {
    let world = World::start("").await;
    let configuration = json!({"currency": "EUR", "products": "mine", "cache": 1});
    let answer = world.found(json!({"token": {"configuration": configuration}})).await;
    assert_eq!((&answer["currency"], count(&answer), state(&answer)), (&json!("EUR"), 2, "filled"));
}

/// A catalogue that was had elsewhere is served as any other.
#[tokio::test]
async fn a_catalogue_can_be_put() {
    let world = World::start("").await;
    let body = json!({"appKey": "tours", "userId": "u1", "products": [{"productId": "put", "options": []}]});
    let answer = world.server.send(Method::PUT, "/v1/products/cache", Some(&body.to_string())).await;
    assert_eq!(answer.status(), 204);
    let cached = world.found(json!({})).await;
    assert_eq!(
        (state(&cached), &cached["products"][0]["productId"], world.calls()),
        ("fresh", &json!("put"), 0)
    );
    for (product, says) in [
        (json!({}), "missing field `productId`"),
        (json!({"productId": 7}), "`products[1].productId`: invalid type: integer `7`, expected a string"),
        (json!({"productId": "a", "productName": {}}), "`products[1].productName`"),
        (json!({"productId": "a", "options": [{"optionId": 1}]}), "`products[1].options[0].optionId`"),
        (json!("a"), "`products[1]`"),
    ] {
        let body = json!({"appKey": "tours", "userId": "u1", "products": [{"productId": "p"}, product]});
        let answer = world.server.send(Method::PUT, "/v1/products/cache", Some(&body.to_string())).await;
        assert_eq!(answer.status(), 400, "{body}");
        let said = answer.text().await.expect("text");
        assert!(
            serde_json::from_str::<Value>(&said).expect("JSON")["message"].to_string().contains(says),
            "{said}"
        );
    }
    assert_eq!(world.found(json!({})).await, cached, "and nothing is changed");
    let nothing = json!({"appKey": "tours", "userId": "u1", "products": []}).to_string();
    assert_eq!(world.server.send(Method::PUT, "/v1/products/cache", Some(&nothing)).await.status(), 204);
    assert_eq!(count(&world.found(json!({})).await), 1, "an empty one replaces nothing");
    let forced = world.found(json!({"forceRefresh": true})).await;
    assert_eq!((state(&forced), count(&forced)), ("refreshed", 2), "a call that begins after it replaces it");
}

/// A call that began before a catalogue was put is too late.
#[tokio::test]
async fn a_late_answer_replaces_nothing() {
    let world = World::start("").await;
    world.sandbox.set_mood(Mood { latency_ms: 500, ..Mood::default() });
    let late = world.found(json!({"forceRefresh": true}));
    let put = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let body =
            json!({"appKey": "tours", "userId": "u1", "products": [{"productId": "newer", "options": []}]});
        world.server.send(Method::PUT, "/v1/products/cache", Some(&body.to_string())).await
    };
    let (_, put) = tokio::join!(late, put);
    assert_eq!(put.status(), 204);
    assert_eq!(world.found(json!({})).await["products"][0]["productId"], "newer");
}

/// Unknown apps and operations have codes of their own.
#[tokio::test]
async fn unknown_apps_and_operations_are_not_found() {
    let world = World::start("operations = [\"searchProductsForItinerary\", \"searchProducts\"]").await;
    let (status, answer) =
        world.server.post("/v1/products/search", json!({"appKey": "no", "userId": "u"})).await;
    assert_eq!((status, &answer["error"]), (404, &json!("APP_NOT_FOUND")));
    let (status, answer) = world.search(json!({"operation": "book"})).await;
    assert_eq!((status, &answer["error"]), (404, &json!("OPERATION_NOT_SUPPORTED")));
    world.found(json!({"operation": "searchProductsForItinerary"})).await;
    world.found(json!({})).await;
    let asked: Vec<Value> =
        world.sandbox.queries().iter().map(|query| serde_json::from_str(query).expect("JSON")).collect();
    let operations: Vec<&Value> = asked.iter().map(|asked| &asked["operation"]).collect();
    assert_eq!(operations, ["searchProductsForItinerary", "searchProducts"], "searchProducts is preferred");
}

/// OCTO's products in the shape of ours.
#[tokio::test]
async fn octo_is_mapped() {
    let world = World::of("octo", "/octo", "").await;
    let (status, refused) = world.search(json!({})).await;
    assert_eq!((status, &refused["error"]), (502, &json!("PLUGIN_FAILED")), "it wants a key");
    let answer = world.found(json!({"forceRefresh": true, "token": {"apiKey": "geheim"}})).await;
    let product = &answer["products"][0];
    assert_eq!((&product["productId"], &product["productName"]), (&json!("octo-1"), &json!("Kayak Tour")));
    let option = &product["options"][0];
    assert_eq!((&option["optionId"], &option["optionName"]), (&json!("DEFAULT"), &json!("Morning")));
    assert_eq!(option["units"][0]["pricing"][0]["retail"], 3_500);
    let filtered = world
        .found(json!({"token": {"apiKey": "geheim"}, "payload": {"searchInput": "kayak morning"}}))
        .await;
    assert_eq!((state(&filtered), count(&filtered)), ("fresh", 1));
}

/// A token is used, and never shown or logged.
#[tokio::test]
async fn a_token_is_never_shown() {
    let world = World::start("").await;
    let token = json!({"token": {"apiKey": "geheim-4711", "ttr": 1}});
    world.found(token.clone()).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(world.found(token).await["cache"]["refreshQueued"], true);
    world.until("fresh").await;
    let jobs = world.server.get("/v1/jobs?queue=products").await;
    assert!(!jobs.to_string().contains("geheim"), "{jobs}");
    assert!(!world.server.log().contains("geheim"));
}

/// A plugin may send 20 MiB: it is cached and filtered like any other, and one that is too large replaces nothing.
#[tokio::test]
async fn a_catalogue_of_twenty_mebibytes() {
    let world = World::start("").await;
    let text = "x".repeat(1_000);
    let product = |n: u32| {
        let options = json!([{"optionId": format!("o{n}"), "optionName": "Tour"}]);
        json!({"productId": format!("p{n}"), "productName": format!("Kayak {n}"), "text": text, "options": options})
    };
    world.sandbox.set_products((0..20_000).map(product).collect(), false);
    let answer = world.found(json!({"payload": {"optionId": "o19999"}})).await;
    assert_eq!((state(&answer), &answer["products"][0]["productId"]), ("filled", &json!("p19999")));
    let answer = world.found(json!({"payload": {"searchInput": "kayak 1234"}})).await;
    assert_eq!((state(&answer), count(&answer), world.calls()), ("fresh", 12, 1));
    world.sandbox.set_mood(Mood { bytes: 33 << 20, ..Mood::default() });
    let (status, answer) = world.search(json!({"forceRefresh": true})).await;
    assert_eq!((status, &answer["error"]), (502, &json!("PLUGIN_FAILED")), "{answer}");
    let answer = world.found(json!({"payload": {"optionId": "o7"}})).await;
    assert_eq!((state(&answer), count(&answer)), ("fresh", 1));
}

/// What became of a catalogue is told: a call, a failure, an answer that was not kept, and one that was put.
#[tokio::test]
async fn the_timeline_tells_of_calls() {
    let world = World::start("").await;
    world.found(json!({})).await;
    world.sandbox.set_products(json!([]), false);
    world.found(json!({"forceRefresh": true})).await;
    world.sandbox.set_mood(Mood { status: Some(503), ..Mood::default() });
    assert_eq!(world.search(json!({"forceRefresh": true})).await.0, 502);
    let put = request(&json!({"products": [{"productId": "p"}]})).to_string();
    assert_eq!(world.server.send(Method::PUT, "/v1/products/cache", Some(&put)).await.status(), 204);
    let key = r#"{"userId":"u1","hint":null,"operation":"searchProducts","payload":{}}"#;
    let hash = data_encoding::HEXLOWER.encode(&Sha256::digest(key)[..16]);
    let told = world.server.get(&format!("/v1/timeline?subject=products:tours:{hash}")).await;
    let events: Vec<&str> = told["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|item| item["event"].as_str().expect("text"))
        .collect();
    assert_eq!(
        events,
        ["products_cached", "products_kept", "products_call_failed", "products_put"],
        "{told}"
    );
}
