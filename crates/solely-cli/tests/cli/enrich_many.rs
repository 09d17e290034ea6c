//! enrich on PostgreSQL and Redis with several servers: one lookup per place across all of them, and
//! every request hears of every place, wherever it listens and whatever dies meanwhile.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{SinkExt as _, StreamExt as _};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use solely_sandbox::Sandbox;
use solely_sandbox::catalogue::Catalogue;
use solely_sandbox::mood::Mood;
use solely_testing::{PostgresServer, RedisServer, free_port, fresh_database};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::server::{Server, client};
use crate::socket::{PATIENCE, Socket};

/// A finder, a database and a Redis, for any number of servers.
struct World {
    finder: Sandbox,
    finder_url: String,
    database: String,
    redis: RedisServer,
}

impl World {
    async fn new() -> Self {
        let finder = Sandbox::new(Catalogue::of(1, 1));
        let address = finder.start(free_port()).await.expect("listens");
        let finder_url = format!("http://{address}/finder");
        Self { finder, finder_url, database: fresh_database(), redis: RedisServer::start() }
    }

    async fn server(&self, more: &str, env: &[(&str, &str)]) -> Server {
        let folder = TempDir::new().expect("a folder");
        let text = format!("[enrich.providers.wolt]\nenabled = true\nurl = \"{}\"\n{more}", self.finder_url);
        std::fs::write(folder.path().join("solely.toml"), text).expect("is written");
        let redis = self.redis.url();
        let mut all = vec![
            ("DATABASE_URL", self.database.as_str()),
            ("SOLELY__STORE__MAX_CONNECTIONS", "6"),
            ("RUST_LOG", "info,solely::decision=debug"),
        ];
        if !env.iter().any(|(name, _)| *name == "REDIS_URL") {
            all.push(("REDIS_URL", redis.as_str()));
        }
        all.extend_from_slice(env);
        Server::start_with(folder, &all).await
    }

    /// Servers whose Redis is trusted.
    async fn servers(&self, count: usize, more: &str) -> Vec<Server> {
        let servers = join_all((0..count).map(|_| self.server(more, &[]))).await;
        for server in &servers {
            until_ready(server).await;
        }
        servers
    }

    fn calls(&self) -> u64 {
        self.finder.places().values().sum()
    }

    /// What Redis answers; nothing for a key that is not there.
    fn redis(&self, command: &str) -> String {
        let answer = self.redis.ask(command).expect("Redis answers");
        let mut lines = answer.lines();
        match lines.next().expect("an answer") {
            "$-1" => String::new(),
            length if length.starts_with('$') => lines.next().expect("a text").to_owned(),
            other => other[1..].to_owned(),
        }
    }
}

async fn until_ready(server: &Server) {
    eventually("Redis is trusted", async || server.get("/readyz").await["status"] == "ready").await;
}

async fn eventually(what: &str, so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn body(request: &str, places: &[usize]) -> String {
    let result = |place: &usize| json!({"placeId": format!("p{place}"), "name": format!("Pizza {place}")});
    json!({"requestId": request, "results": places.iter().map(result).collect::<Vec<_>>()}).to_string()
}

/// Asks whichever server answers, as a client behind a balancer does.
async fn ask(client: &Client, urls: &[String], first: usize, request: &str, places: &[usize]) -> Value {
    let deadline = Instant::now() + PATIENCE;
    for n in first.. {
        let url = format!("{}/v1/enrich", urls[n % urls.len()]);
        if let Ok(answer) = client.post(url).body(body(request, places)).send().await
            && answer.status() == 200
        {
            return answer.json().await.expect("JSON");
        }
        assert!(Instant::now() < deadline, "nobody answers");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    unreachable!()
}

/// The ten places of a request, of fifty: any two neighbours share nine.
fn places_of(request: usize) -> Vec<usize> {
    (0..10).map(|n| (request + n) % 50).collect()
}

/// Listens to a request until nothing is pending, at whichever server answers; every place is told once
/// for each subscription.
async fn listen(urls: Vec<String>, first: usize, request: String, told: BTreeSet<String>) {
    let deadline = Instant::now() + Duration::from_secs(60);
    for n in first.. {
        assert!(Instant::now() < deadline, "{request} still waits");
        let url = format!("{}/v1/ws", urls[n % urls.len()].replace("http://", "ws://"));
        let Ok((stream, _)) = tokio_tungstenite::connect_async(url).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        if heard_all(Socket(stream), &request, &told).await {
            return;
        }
    }
}

/// Whether a subscription was told of every place; false if the socket ended before.
async fn heard_all(mut socket: Socket, request: &str, wanted: &BTreeSet<String>) -> bool {
    let subscribe = json!({"v": 1, "type": "subscribe", "channel": "search", "requestId": request});
    if socket.0.send(Message::text(subscribe.to_string())).await.is_err() {
        return false;
    }
    let mut told = BTreeSet::new();
    // It may have waited for more, if it was asked at a server whose answer was lost.
    while !told.is_superset(wanted) {
        let message = tokio::time::timeout(Duration::from_secs(60), socket.0.next()).await;
        let text = match message.expect("everyone who waits hears") {
            Some(Ok(Message::Text(text))) => text,
            Some(Ok(Message::Ping(_))) => continue,
            _ => return false,
        };
        let said: Value = serde_json::from_str(&text).expect("JSON");
        if said["type"] == "RESULT_PATCH" {
            assert_eq!(said["patch"]["providers"]["wolt"]["status"], "FOUND", "{said}");
            let place = said["placeId"].as_str().expect("a place").to_owned();
            assert!(told.insert(place.clone()), "{request} was told of {place} twice");
        }
    }
    true
}

/// Two hundred requests over fifty overlapping places, each asked at one server and listened to at
/// another; something happens meanwhile.
async fn two_hundred_requests(world: &World, urls: &[String], meanwhile: impl Future<Output = ()>) {
    let client = client();
    let one = async |n: usize| {
        let request = format!("r{n}");
        let answer = ask(&client, urls, n, &request, &places_of(n)).await;
        let pending = answer["results"].as_array().expect("a list").iter();
        let pending = pending.filter(|result| result["wolt"]["status"] == "PENDING");
        let pending: BTreeSet<String> =
            pending.filter_map(|result| result["placeId"].as_str().map(str::to_owned)).collect();
        if !pending.is_empty() {
            listen(urls.to_vec(), n + 1, request, pending).await;
        }
    };
    let requests = join_all((0..200).map(one));
    tokio::join!(requests, meanwhile);
    assert_eq!(world.finder.places().len(), 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_places_are_fifty_calls() {
    let world = World::new().await;
    world.finder.set_mood(Mood { latency_ms: 200, ..Mood::default() });
    let servers = world.servers(3, "").await;
    let urls: Vec<String> = servers.iter().map(|server| server.url.clone()).collect();
    two_hundred_requests(&world, &urls, async {}).await;
    assert_eq!(world.calls(), 50, "{:?}", world.finder.places());
}

/// The same, and a server is killed in the middle: at most one call more for each place that it was
/// working on, and everyone still hears.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_killed_in_the_middle() {
    let world = World::new().await;
    world.finder.set_mood(Mood { latency_ms: 300, ..Mood::default() });
    let mut servers = world.servers(3, "").await;
    let urls: Vec<String> = servers.iter().map(|server| server.url.clone()).collect();
    let finder = world.finder.clone();
    two_hundred_requests(&world, &urls, async {
        eventually("some are under way", async || finder.places().len() >= 15).await;
        servers[1].child.kill().expect("is killed");
    })
    .await;
    let places = world.finder.places();
    assert!(places.values().all(|calls| *calls <= 2), "{places:?}");
    // Four at a time, and four more whose results were on their way to the store.
    assert!(world.calls() <= 50 + 8, "{places:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_restarted_in_the_middle() {
    let mut world = World::new().await;
    world.finder.set_mood(Mood { latency_ms: 200, ..Mood::default() });
    let servers = world.servers(3, "").await;
    let urls: Vec<String> = servers.iter().map(|server| server.url.clone()).collect();
    let finder = world.finder.clone();
    let mut redis = std::mem::replace(&mut world.redis, RedisServer::start());
    two_hundred_requests(&world, &urls, async {
        eventually("some are under way", async || finder.places().len() >= 15).await;
        redis.crash();
        redis.forget_saved();
        redis.start_again();
    })
    .await;
    assert_eq!(world.calls(), 50, "{:?}", world.finder.places());
}

/// Whoever took the lease is killed before it has made the job: the next request makes it, though the
/// lease is held by nobody who lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_of_the_lease_is_killed_before_there_is_a_job() {
    let world = World::new().await;
    let doomed = world.server("", &[("SOLELY_CRASH", "enrich.leased:1")]).await;
    until_ready(&doomed).await;
    let refused = doomed.client.post(format!("{}/v1/enrich", doomed.url)).body(body("a", &[1])).send().await;
    assert!(refused.is_err(), "it died before it answered");
    assert_ne!(world.redis("GET ext:wolt:lock:p1"), "", "the lease is there");
    let server = world.server("", &[]).await;
    until_ready(&server).await;
    let answer = ask(&server.client, std::slice::from_ref(&server.url), 0, "b", &[1]).await;
    assert_eq!(answer["pending"], 1);
    listen(vec![server.url.clone()], 0, "b".to_owned(), BTreeSet::from(["p1".to_owned()])).await;
    assert_eq!(world.calls(), 1);
    let log = server.log();
    assert!(log.contains("wolt_lock_skipped") && log.contains("wolt_job_enqueued"), "{log}");
    assert!(!log.contains("wolt_enqueue_skipped"), "a job was made");
}

/// A lease that someone else has set, as the document tries it by hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_set_by_hand_keeps_nobody_waiting() {
    let world = World::new().await;
    let servers = world.servers(1, "").await;
    assert_eq!(world.redis("SET ext:wolt:lock:p1 1 EX 60 NX"), "OK");
    let urls = [servers[0].url.clone()];
    assert_eq!(ask(&servers[0].client, &urls, 0, "a", &[1]).await["pending"], 1);
    listen(urls.to_vec(), 0, "a".to_owned(), BTreeSet::from(["p1".to_owned()])).await;
    assert_eq!(world.redis("GET ext:wolt:lock:p1"), "1", "it is another's, and is left alone");
}

/// The keys of Redis, as the documents name them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_redis_are_as_the_documents_name_them() {
    let world = World::new().await;
    world.finder.set_mood(Mood { latency_ms: 400, ..Mood::default() });
    let servers = world.servers(2, "").await;
    let urls = [servers[0].url.clone()];
    ask(&servers[0].client, &urls, 0, "a", &[1]).await;
    let held = world.redis("TTL ext:wolt:lock:p1").parse::<i64>().expect("a number");
    assert!((1..=60).contains(&held), "{held}");
    eventually("the copy is there", async || !world.redis("GET ext:wolt:place:p1").is_empty()).await;
    let copy: Value = serde_json::from_str(&world.redis("GET ext:wolt:place:p1")).expect("JSON");
    let mut fields: Vec<&str> = copy.as_object().expect("an object").keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["meta", "status", "updatedAt", "url"]);
    assert_eq!(copy["status"], "FOUND");
    let ttl = world.redis("TTL ext:wolt:place:p1").parse::<i64>().expect("a number");
    assert!((14 * 86_400 - 60..=14 * 86_400).contains(&ttl), "{ttl}");
    eventually("the lease is given back", async || world.redis("GET ext:wolt:lock:p1").is_empty()).await;
    // The other server has it from there, and the store is not asked for it.
    until_ready(&servers[1]).await;
    let answer = ask(&servers[1].client, std::slice::from_ref(&servers[1].url), 0, "b", &[1]).await;
    assert_eq!((&answer["pending"], &answer["results"][0]["wolt"]["url"]), (&json!(0), &copy["url"]));
    assert_eq!(
        answer["results"][0]["providers"]["wolt"],
        json!({"status": "FOUND", "url": copy["url"], "updatedAt": copy["updatedAt"], "meta": copy["meta"]})
    );
    let metrics = servers[1].send(Method::GET, "/metrics", None).await.text().await.expect("text");
    assert!(metrics.contains("solely_cache_reads_total{tier=\"store\"} 0"), "{metrics}");
}

/// Redis is away: places are looked up, once, and everyone hears; what was known stays known. Its trouble
/// is said, and nothing is said to be skipped but what was not made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_down() {
    let mut world = World::new().await;
    let servers = world.servers(2, "").await;
    let urls: Vec<String> = servers.iter().map(|server| server.url.clone()).collect();
    ask(&servers[0].client, &urls, 0, "known", &[7]).await;
    listen(urls.clone(), 0, "known".to_owned(), BTreeSet::from(["p7".to_owned()])).await;
    world.redis.crash();
    world.finder.set_mood(Mood { latency_ms: 300, ..Mood::default() });
    for (n, request) in ["a", "b"].into_iter().enumerate() {
        let answer = ask(&servers[n].client, &urls, n, request, &[1, 7]).await;
        assert_eq!(answer["pending"], 1, "what was known is not looked up again: {answer}");
    }
    let wanted = BTreeSet::from(["p1".to_owned()]);
    tokio::join!(
        listen(urls.clone(), 1, "a".to_owned(), wanted.clone()),
        listen(urls.clone(), 0, "b".to_owned(), wanted.clone()),
    );
    assert_eq!(world.calls(), 2);
    let said = |server: &Server, event: &str| -> Vec<Value> {
        let log = server.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["event"] == event && line["placeId"] == "p1").collect()
    };
    for server in &servers {
        let failed = said(server, "wolt_lock_failed");
        assert_eq!((failed.len(), &failed[0]["level"]), (1, &json!("warn")), "{}", server.log());
        assert!(failed[0]["lockError"].is_string());
    }
    let made: Vec<usize> = servers.iter().map(|server| said(server, "wolt_job_enqueued").len()).collect();
    assert_eq!(made.iter().sum::<usize>(), 1);
    let other = &servers[usize::from(made[0] == 1)];
    let skipped = said(other, "wolt_enqueue_skipped");
    let reason = skipped[0]["reason"].as_str().expect("a reason");
    assert!(["redis_down", "lock_error"].contains(&reason), "{skipped:?}");
    assert_eq!(said(other, "wolt_job_deduplicated").len(), 1);
    // Back again, empty: used within seconds, and what was known is not looked up again.
    world.redis.forget_saved();
    world.redis.start_again();
    until_ready(&servers[0]).await;
    assert_eq!(ask(&servers[0].client, &urls, 0, "c", &[1, 7]).await["pending"], 0);
    assert_eq!(world.calls(), 2);
}

/// Redis answers, and then for once it does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_error() {
    let world = World::new().await;
    let more = "[redis]\ncommand_timeout = \"150ms\"\nretries = 0\n";
    let servers = world.servers(1, more).await;
    let urls = [servers[0].url.clone()];
    world.finder.set_mood(Mood { latency_ms: 1_500, ..Mood::default() });
    ask(&servers[0].client, &urls, 0, "first", &[1]).await;
    world.redis.freeze();
    assert_eq!(ask(&servers[0].client, &urls, 0, "second", &[1]).await["pending"], 1);
    world.redis.thaw();
    let log = servers[0].log();
    assert!(log.contains("wolt_lock_failed") && log.contains("wolt_lock_error"), "{log}");
    let skipped = log.lines().find(|line| line.contains("wolt_enqueue_skipped")).expect("was said");
    assert!(skipped.contains("lock_error") || skipped.contains("redis_down"), "{skipped}");
    listen(urls.to_vec(), 0, "second".to_owned(), BTreeSet::from(["p1".to_owned()])).await;
    assert_eq!(world.calls(), 1);
}

/// The store is away: what memory or Redis can answer is answered; PENDING is promised to nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_unavailable() {
    let mut postgres = PostgresServer::start();
    let mut world = World::new().await;
    world.database = postgres.url();
    let servers = world.servers(1, "").await;
    let urls = [servers[0].url.clone()];
    ask(&servers[0].client, &urls, 0, "a", &[1]).await;
    listen(urls.to_vec(), 0, "a".to_owned(), BTreeSet::from(["p1".to_owned()])).await;
    eventually("it is in memory", async || {
        ask(&servers[0].client, &urls, 0, "b", &[1]).await["pending"] == 0
    })
    .await;
    postgres.crash();
    assert_eq!(ask(&servers[0].client, &urls, 0, "c", &[1]).await["results"][0]["wolt"]["status"], "FOUND");
    let refused = servers[0].send(Method::POST, "/v1/enrich", Some(&body("d", &[1, 2]))).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    let error: Value = refused.json().await.expect("JSON");
    assert_eq!(error["error"], "STORE_UNAVAILABLE");
    let log = servers[0].log();
    let skipped = log.lines().find(|line| line.contains("queue_unavailable")).expect("was said");
    assert!(skipped.contains("wolt_enqueue_skipped") && skipped.contains("\"placeId\":\"p2\""), "{skipped}");
    eventually("the lease is given back", async || world.redis("GET ext:wolt:lock:p2").is_empty()).await;
    postgres.start_again();
    eventually("it is back", async || {
        servers[0].send(Method::POST, "/v1/enrich", Some(&body("e", &[2]))).await.status() == 200
    })
    .await;
    listen(urls.to_vec(), 0, "e".to_owned(), BTreeSet::from(["p2".to_owned()])).await;
}

/// A server that has no Redis hears, by the database, of what others find.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_on_another_instance_before_the_request() {
    let world = World::new().await;
    let servers =
        [world.server("", &[("REDIS_URL", "")]).await, world.server("", &[("REDIS_URL", "")]).await];
    let mut socket = Socket::open(&servers[1]).await;
    assert_eq!(socket.subscribe("a").await, 0, "not seen yet");
    ask(&servers[0].client, std::slice::from_ref(&servers[0].url), 0, "a", &[1, 2]).await;
    let mut heard = vec![socket.patch().await.0, socket.patch().await.0];
    heard.sort();
    assert_eq!(heard, ["p1", "p2"]);
    socket.assert_silent().await;
}

/// One that does not read is closed with 1013, and nobody else notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_that_does_not_read_is_closed() {
    let world = World::new().await;
    let server = world.server("concurrency = 64", &[]).await;
    let (mut slow, mut quick) = (Socket::open(&server).await, Socket::open(&server).await);
    // Ids as long as they may be, many times over: more than the buffers between hold.
    let long = "x".repeat(400);
    let all: Vec<String> = (0..50).map(|n| format!("r{n}")).collect();
    for request in &all {
        slow.subscribe(request).await;
    }
    quick.subscribe(&all[0]).await;
    let place = |n: usize| json!({"placeId": format!("{long}{n}"), "name": format!("Pizza {n}")});
    let results: Vec<Value> = (0..200).map(place).collect();
    // Nothing is found before everyone waits.
    assert_eq!(server.post("/v1/queues/enrich:wolt/pause", json!({})).await.0, 200);
    for request in &all {
        let (status, answer) =
            server.post("/v1/enrich", json!({"requestId": request, "results": results})).await;
        assert_eq!((status, &answer["pending"]), (200, &json!(200)));
    }
    assert_eq!(server.post("/v1/queues/enrich:wolt/resume", json!({})).await.0, 200);
    for _ in 0..200 {
        assert_eq!(quick.patch().await.1, "FOUND");
    }
    // It reads again: what was in the buffers, and then that it was closed.
    let (mut read, deadline) = (0, tokio::time::Instant::now() + PATIENCE);
    let closed = loop {
        let next = tokio::time::timeout_at(deadline, slow.0.next()).await.expect("it is closed");
        match next {
            Some(Ok(Message::Close(frame))) => break frame.map(|frame| frame.code),
            Some(Ok(Message::Text(_))) => read += 1,
            Some(Ok(_)) => {}
            Some(Err(_)) | None => break None,
        }
    };
    assert!(read < 50 * 200, "not all of it was kept for it: {read}");
    assert!(closed.is_none_or(|code| code == CloseCode::Again), "{closed:?}");
    quick.assert_silent().await;
    // It catches up by subscribing again.
    let mut again = Socket::open(&server).await;
    assert_eq!(again.subscribe(&all[0]).await, 0);
    assert_eq!(again.patch().await.1, "FOUND");
}
