//! products on PostgreSQL and Redis with several servers: one call at a time for a key across all of them, whatever dies.

use std::time::{Duration, Instant};

use futures::future::join_all;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use solely_sandbox::Sandbox;
use solely_sandbox::catalogue::Catalogue;
use solely_sandbox::mood::Mood;
use solely_testing::{RedisServer, free_port, fresh_database};
use tempfile::TempDir;

use crate::products::request;
use crate::server::Server;
use crate::socket::PATIENCE;

/// A plugin, a database and a Redis, for any number of servers.
struct World {
    sandbox: Sandbox,
    url: String,
    database: String,
    redis: RedisServer,
}

impl World {
    async fn new() -> Self {
        let sandbox = Sandbox::new(Catalogue::of(1, 1));
        let address = sandbox.start(free_port()).await.expect("listens");
        let url = format!("http://{address}/products");
        Self { sandbox, url, database: fresh_database(), redis: RedisServer::start() }
    }

    async fn server(&self, redis: &str, more: &str) -> Server {
        let folder = TempDir::new().expect("a folder");
        let text = format!("[products.plugins.tours]\nurl = \"{}\"\n{more}\n", self.url);
        std::fs::write(folder.path().join("solely.toml"), text).expect("is written");
        let database = ("DATABASE_URL", self.database.as_str());
        let env = [database, ("SOLELY__STORE__MAX_CONNECTIONS", "6"), ("REDIS_URL", redis)];
        Server::start_with(folder, &env).await
    }

    async fn servers(&self, count: usize, more: &str) -> Vec<Server> {
        let redis = self.redis.url();
        let servers = join_all((0..count).map(|_| self.server(&redis, more))).await;
        for server in &servers {
            eventually("Redis is trusted", async || server.get("/readyz").await["status"] == "ready").await;
        }
        servers
    }

    fn calls(&self) -> u64 {
        self.sandbox.count_of("products")
    }

    fn is_slow(&self, latency_ms: u64) {
        self.sandbox.set_mood(Mood { latency_ms, ..Mood::default() });
    }
}

async fn eventually(what: &str, so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn search(server: &Server, more: Value) -> (u16, Value) {
    server.post("/v1/products/search", request(&more)).await
}

/// So many callers at each of the servers.
async fn crowd(servers: &[Server], each: usize, more: &Value) -> Vec<(u16, Value)> {
    join_all(servers.iter().flat_map(|server| (0..each).map(|_| search(server, more.clone())))).await
}

/// 200 cold callers in each of three processes are one call, and 600 identical answers; forced ones are one call at a
/// time, and two in all; stale ones are all answered at once, and one of them queued the refresh.
#[tokio::test]
async fn crowds_at_three_servers_are_one_call() {
    let world = World::new().await;
    let servers = world.servers(3, "").await;
    world.is_slow(400);
    let answers = crowd(&servers, 200, &json!({})).await;
    assert_eq!((answers.len(), world.calls()), (600, 1));
    for (status, answer) in &answers {
        assert_eq!((*status, &answer["products"]), (200, &answers[0].1["products"]), "{answer}");
    }
    let forced = crowd(&servers, 67, &json!({"forceRefresh": true})).await;
    assert!(forced.iter().all(|(status, answer)| *status == 200 && answer["cache"]["state"] == "refreshed"));
    assert!(world.calls() <= 3, "at most two more: {}", world.calls());
    let calls = world.calls();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let stale = crowd(&servers, 67, &json!({"token": {"ttr": 1}})).await;
    assert!(stale.iter().all(|(status, answer)| *status == 200 && answer["cache"]["state"] == "stale"));
    let queued = stale.iter().filter(|(_, answer)| answer["cache"]["refreshQueued"] == true).count();
    assert_eq!(queued, 1);
    eventually("it is refreshed", async || world.calls() == calls + 1).await;
    let jobs = servers[0].get("/v1/jobs?queue=products").await;
    assert_eq!(jobs["items"].as_array().map(Vec::len), Some(1));
}

/// The process that runs the call is killed: another takes over, and nobody hangs.
#[tokio::test]
async fn a_killed_server_is_taken_over_from() {
    let world = World::new().await;
    let mut servers = world.servers(2, "wait = \"20s\"").await;
    world.sandbox.set_mood(Mood { hangs_percent: 100.0, ..Mood::default() });
    let (first, second) = (servers.remove(0), servers.remove(0));
    let asked = tokio::spawn(async move {
        let _ = tokio::time::timeout(Duration::from_secs(1), search(&first, json!({}))).await;
        first
    });
    eventually("it is called", async || world.calls() == 1).await;
    let waits = async {
        let began = Instant::now();
        (search(&second, json!({})).await, began.elapsed())
    };
    let kills = async {
        let first = asked.await.expect("asks");
        world.sandbox.set_mood(Mood::default());
        first.signal(Signal::SIGKILL);
    };
    let (((status, answer), took), ()) = tokio::join!(waits, kills);
    assert_eq!((status, &answer["cache"]["state"]), (200, &json!("filled")), "{answer}");
    assert!(took < Duration::from_secs(14), "within ten seconds of the death: {took:?}");
    assert_eq!(world.calls(), 2);
}

/// The process that runs the call is paused: another takes over, and the late answer of the first replaces nothing.
#[tokio::test]
async fn a_late_answer_of_a_paused_server_replaces_nothing() {
    let world = World::new().await;
    let servers = world.servers(2, "wait = \"20s\"").await;
    world.is_slow(1_000);
    let first = search(&servers[0], json!({}));
    let rest = async {
        eventually("it is called", async || world.calls() == 1).await;
        servers[0].signal(Signal::SIGSTOP);
        world.sandbox.set_products(json!([{"productId": "newer", "options": [{"optionId": "n"}]}]), false);
        let (status, answer) = search(&servers[1], json!({})).await;
        assert_eq!((status, &answer["products"][0]["productId"]), (200, &json!("newer")), "{answer}");
        servers[0].signal(Signal::SIGCONT);
    };
    let (_, ()) = tokio::join!(first, rest);
    eventually("the first server sees it", async || {
        search(&servers[0], json!({})).await.1["products"][0]["productId"] == "newer"
    })
    .await;
    let (_, still) = search(&servers[1], json!({})).await;
    assert_eq!(still["products"][0]["productId"], "newer");
}

/// Redis dies in the middle of a flight: it is one call all the same.
#[tokio::test]
async fn without_redis_it_is_one_call_all_the_same() {
    let mut world = World::new().await;
    let servers = world.servers(3, "").await;
    world.is_slow(1_500);
    let first = tokio::spawn({
        let url = format!("{}/v1/products/search", servers[0].url);
        let client = servers[0].client.clone();
        async move { client.post(url).body(request(&json!({})).to_string()).send().await }
    });
    eventually("it is called", async || world.calls() == 1).await;
    world.redis.crash();
    let answers = crowd(&servers, 20, &json!({})).await;
    assert!(
        answers.iter().all(|(status, answer)| *status == 200 && answer["products"][0]["productId"] == "p1")
    );
    assert_eq!(first.await.expect("asks").expect("is answered").status(), 200);
    assert_eq!(world.calls(), 1);
}

/// One server cannot reach Redis and the others can: it is one call all the same, of whoever comes first.
#[tokio::test]
async fn where_one_server_has_no_redis_it_is_one_call_all_the_same() {
    let world = World::new().await;
    let mut servers = world.servers(2, "").await;
    let nowhere = format!("redis://127.0.0.1:{}", free_port());
    servers.insert(0, world.server(&nowhere, "").await);
    eventually("it knows", async || servers[0].get("/readyz").await["status"] == "degraded").await;
    world.is_slow(400);
    for (turn, user) in ["first", "second", "third"].iter().enumerate() {
        servers.rotate_left(1);
        let answers = crowd(&servers, 20, &json!({"userId": user})).await;
        assert!(
            answers.iter().all(|(status, answer)| *status == 200 && *answer == answers[0].1),
            "{answers:?}"
        );
        assert_eq!(world.calls(), turn as u64 + 1);
    }
}

/// What stands in Redis: the copy, when it was written, and the locks while they are held.
#[tokio::test]
async fn the_keys_of_redis() {
    let world = World::new().await;
    let servers = world.servers(1, "").await;
    world.is_slow(300);
    let names = || {
        let answer = world.redis.ask("KEYS products:*").unwrap_or_default();
        let mut names: Vec<String> = answer
            .split_whitespace()
            .filter(|word| word.starts_with("products:"))
            .map(str::to_owned)
            .collect();
        names.sort();
        names
    };
    let asks = search(&servers[0], json!({}));
    let looks = async {
        eventually("the lock is there", async || names().iter().any(|name| name.ends_with(":lock"))).await;
    };
    let ((_, answer), ()) = tokio::join!(asks, looks);
    eventually("the copy is there", async || names().len() == 2).await;
    let names = names();
    assert_eq!(names[1], format!("{}:lastUpdated", names[0]));
    let updated = world.redis.ask(&format!("GET {}", names[1])).expect("is there");
    assert_eq!(updated.split_whitespace().nth(1), answer["cache"]["lastUpdated"].as_str());
}
