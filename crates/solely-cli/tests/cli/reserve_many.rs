//! reserve on PostgreSQL and Redis with several servers: a hot item, with everything that may die.

use std::collections::HashSet;
use std::time::Duration;

use futures::future::join_all;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use solely_testing::{RedisServer, fresh_database};
use tempfile::TempDir;
use tokio_postgres::NoTls;

use crate::reserve::stock;
use crate::server::Server;

async fn server(database: &str, redis: &str, env: &[(&str, &str)]) -> Server {
    let folder = TempDir::new().expect("a folder");
    let mut all =
        vec![("DATABASE_URL", database), ("SOLELY__STORE__MAX_CONNECTIONS", "6"), ("REDIS_URL", redis)];
    all.extend(env);
    Server::start_with(folder, &all).await
}

/// What one buyer was told in the end: with a key, whoever does not hear asks another server.
async fn buy(servers: &[String], client: &reqwest::Client, user: usize) -> (u16, Value) {
    let body = json!({"userId": format!("u{user}"), "boxInventoryId": "box"});
    for attempt in 0..40 {
        let url = format!("{}/v1/reservations", servers[(user + attempt) % servers.len()]);
        let request = client.post(url).header("Idempotency-Key", format!("key-{user}")).json(&body);
        if let Ok(answer) = request.send().await {
            let status = answer.status().as_u16();
            if let Ok(answer) = answer.json::<Value>().await
                && status < 500
                && answer["error"] != "IDEMPOTENCY_IN_PROGRESS"
            {
                return (status, answer);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("buyer {user} never hears");
}

/// Reservations of the box that are open, by their rows.
async fn rows(database: &str) -> HashSet<String> {
    let (client, connection) = tokio_postgres::connect(database, NoTls).await.expect("connects");
    let connection = tokio::spawn(connection);
    let rows = client
        .query("SELECT id::text FROM reservations WHERE inventory_id = 'box' AND status = 0", &[])
        .await
        .expect("reads");
    connection.abort();
    rows.iter().map(|row| row.get(0)).collect()
}

/// 1,000 buyers for 100 boxes at three servers, one killed in the middle and Redis restarted: exactly 100 are held, each
/// that was acknowledged is there, and everyone else has a reason.
#[tokio::test]
async fn a_thousand_buyers_for_a_hundred_boxes() {
    let (database, mut redis) = (fresh_database(), RedisServer::start());
    let url = redis.url();
    let servers = join_all((0..3).map(|_| server(&database, &url, &[]))).await;
    stock(async |path: &str, body| servers[0].post(path, body).await, "box", 100).await;
    let urls: Vec<String> = servers.iter().map(|server| server.url.clone()).collect();
    let client = crate::server::client();
    let buyers = join_all((0..1_000).map(|user| buy(&urls, &client, user)));
    let harm = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        servers[2].signal(Signal::SIGKILL);
        redis.crash();
        tokio::time::sleep(Duration::from_millis(100)).await;
        redis.start_again();
    };
    let (answers, ()) = tokio::join!(buyers, harm);
    let held: HashSet<String> = answers
        .iter()
        .filter(|(status, _)| *status == 201)
        .map(|(_, body)| body["id"].as_str().expect("an id").to_owned())
        .collect();
    assert_eq!(held.len(), 100, "exactly as many as there are");
    assert_eq!(rows(&database).await, held, "each that was acknowledged, and no other");
    let refused =
        answers.iter().filter(|(status, body)| *status == 409 && body["error"] == "BOX_UNAVAILABLE");
    assert_eq!(refused.count(), 900);
    assert_eq!(servers[0].get("/v1/inventory/box").await["remainingQuantity"], 0);
    let check = crate::server::solely(servers[0].folder.path())
        .env("DATABASE_URL", &database)
        .arg("check")
        .output()
        .expect("runs");
    assert_eq!(check.status.code(), Some(0), "{}", String::from_utf8_lossy(&check.stdout));
}

/// The twin: with stock read, and written later however it is then, it is oversold, and `solely check` says so.
#[tokio::test]
async fn without_the_guard_a_crowd_is_sold_too_much() {
    let (database, redis) = (fresh_database(), RedisServer::start());
    let broken = [("SOLELY_BREAK", "decrement")];
    let url = redis.url();
    let servers = join_all((0..3).map(|_| server(&database, &url, &broken))).await;
    stock(async |path: &str, body| servers[0].post(path, body).await, "box", 100).await;
    let urls: Vec<String> = servers.iter().map(|server| server.url.clone()).collect();
    let client = crate::server::client();
    let body = |user| json!({"userId": format!("u{user}"), "boxInventoryId": "box"});
    let buys = (0..600).map(|user: usize| {
        client.post(format!("{}/v1/reservations", urls[user % 3])).json(&body(user)).send()
    });
    join_all(buys).await;
    assert!(rows(&database).await.len() > 100, "nothing guards the count");
    let check = crate::server::solely(servers[0].folder.path())
        .env("DATABASE_URL", &database)
        .arg("check")
        .output()
        .expect("runs");
    assert_eq!(check.status.code(), Some(1));
}

/// What stands in Redis for others: while a hold lives, the boxes that are left, and the leases while they are held. A
/// quantity that somebody has changed there is noticed and written anew.
#[tokio::test]
async fn the_keys_of_redis() {
    let (database, redis) = (fresh_database(), RedisServer::start());
    let server = server(&database, &redis.url(), &[("SOLELY__RESERVE__SWEEP_EVERY", "200ms")]).await;
    stock(async |path: &str, body| server.post(path, body).await, "box", 3).await;
    let says = |command: &str| redis.ask(command).unwrap_or_default();
    let deadline = std::time::Instant::now() + crate::socket::PATIENCE;
    let until = async |command: String, text: &str| {
        while !says(&command).contains(text) {
            assert!(std::time::Instant::now() < deadline, "{command}: {}", says(&command));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    until("GET inventory:quantity:box".to_owned(), "3").await;
    let body = json!({"userId": "u1", "boxInventoryId": "box"});
    let (status, held) = server.post("/v1/reservations", body).await;
    assert_eq!(status, 201, "{held}");
    let id = held["id"].as_str().expect("an id");
    until(format!("GET reservation:ttl:{id}"), held["expiresAt"].as_str().expect("a time")).await;
    until("SMEMBERS user:reservations:u1:m1".to_owned(), id).await;
    until("GET inventory:quantity:box".to_owned(), "2").await;
    // Somebody writes nonsense, and the next change is elsewhere: it is repaired all the same.
    says("SET lock:inventory:box somebody PX 60000");
    let (status, second) =
        server.post("/v1/reservations", json!({"userId": "u2", "boxInventoryId": "box"})).await;
    assert_eq!(status, 201, "a lease that somebody holds decides nothing: {second}");
    says("SET inventory:quantity:box 77");
    until("GET inventory:quantity:box".to_owned(), "1").await;
    server.post(&format!("/v1/reservations/{id}/cancel"), json!({})).await;
    until("SMEMBERS user:reservations:u1:m1".to_owned(), "*0").await;
    until(format!("GET reservation:ttl:{id}"), "$-1").await;
}

/// A request whose first one with its key does not get on is told so after two seconds, and is answered as that one was
/// once it is over.
#[tokio::test]
async fn a_twin_is_told_that_the_first_is_under_way() {
    let (database, redis) = (fresh_database(), RedisServer::start());
    let server = server(&database, &redis.url(), &[]).await;
    stock(async |path: &str, body| server.post(path, body).await, "box", 5).await;
    let (blocker, connection) = tokio_postgres::connect(&database, NoTls).await.expect("connects");
    let connection = tokio::spawn(connection);
    blocker.batch_execute("BEGIN; SELECT id FROM merchants FOR UPDATE").await.expect("locks");
    let ask = || {
        let body = json!({"userId": "u1", "boxInventoryId": "box"});
        let url = format!("{}/v1/reservations", server.url);
        let request = server.client.post(url).header("Idempotency-Key", "key").json(&body);
        async move {
            let answer = request.send().await.expect("answers");
            let replayed = answer.headers().contains_key("idempotent-replay");
            (answer.status().as_u16(), replayed, answer.json::<Value>().await.expect("JSON"))
        }
    };
    let first = tokio::spawn(ask());
    // It waits at the merchant's row.
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    let (watcher, watching) = tokio_postgres::connect(&database, NoTls).await.expect("connects");
    let watching = tokio::spawn(watching);
    while watcher.query_one(waits, &[]).await.expect("reads").get::<_, i64>(0) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (status, _, told) = ask().await;
    assert_eq!((status, &told["error"]), (409, &json!("IDEMPOTENCY_IN_PROGRESS")), "{told}");
    assert!(told["retryAfter"].as_u64().is_some_and(|after| after > 0));
    blocker.batch_execute("ROLLBACK").await.expect("lets go");
    let (status, replayed, made) = first.await.expect("is asked");
    assert_eq!((status, replayed), (201, false), "{made}");
    assert_eq!(ask().await, (201, true, made), "as the first was");
    connection.abort();
    watching.abort();
}
