//! Settings that no other test changes: each does what it says.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use solely_core::job::{JobStore as _, NewJob};
use solely_testing::{RedisServer, fresh_database, postgres_url};
use tempfile::TempDir;
use tokio_postgres::NoTls;

use crate::server::Server;

async fn server(env: &[(&str, &str)]) -> Server {
    Server::start_with(TempDir::new().expect("a folder"), env).await
}

#[tokio::test]
async fn max_body() {
    let server = server(&[("SOLELY__SERVER__MAX_BODY", "64B")]).await;
    let long = "x".repeat(100);
    let (status, body) =
        server.post("/v1/leases", json!({"keys": [long], "owner": "o", "ttlMs": 1000})).await;
    assert_eq!((status, &body["error"]), (413, &json!("BODY_TOO_LARGE")));
}

/// A request that waits longer than the grace ends with the process.
#[tokio::test]
async fn shutdown_grace() {
    let mut server = server(&[("SOLELY__SERVER__SHUTDOWN_GRACE", "1s")]).await;
    server.post("/v1/leases", json!({"keys": ["a"], "owner": "o", "ttlMs": 60_000})).await;
    let (client, url) = (server.client.clone(), server.url.clone());
    let waiting = tokio::spawn(async move {
        let body = json!({"keys": ["a"], "owner": "o", "ttlMs": 60_000, "waitMs": 50_000}).to_string();
        client.post(format!("{url}/v1/leases")).body(body).send().await
    });
    while server.get("/v1/leases").await["items"][0]["waiters"] != 1 {
        tokio::task::yield_now().await;
    }
    server.signal(nix::sys::signal::Signal::SIGTERM);
    let told = Instant::now();
    assert_eq!(server.ended(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(8), "{:?}", told.elapsed());
    assert!(waiting.await.expect("ends").is_err());
}

#[tokio::test]
async fn max_connections() {
    let database = fresh_database();
    let server = server(&[("DATABASE_URL", &database), ("SOLELY__STORE__MAX_CONNECTIONS", "3")]).await;
    let calls = (0..40)
        .map(|n| server.post("/v1/leases", json!({"keys": [n.to_string()], "owner": "o", "ttlMs": 60_000})));
    futures::future::join_all(calls).await;
    let (client, connection) = tokio_postgres::connect(&database, NoTls).await.expect("connects");
    tokio::spawn(connection);
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let connections: i64 = client.query_one(sql, &[]).await.expect("counts").get(0);
    assert!((1..=3).contains(&connections), "{connections}");
}

/// A statement that has to wait for longer is given up.
#[tokio::test]
async fn statement_timeout() {
    let database = fresh_database();
    let server = server(&[("DATABASE_URL", &database), ("SOLELY__STORE__STATEMENT_TIMEOUT", "300ms")]).await;
    let (mut client, connection) = tokio_postgres::connect(&database, NoTls).await.expect("connects");
    tokio::spawn(connection);
    let tx = client.transaction().await.expect("begins");
    tx.execute("LOCK TABLE leases IN ACCESS EXCLUSIVE MODE", &[]).await.expect("locks");
    let asked = Instant::now();
    let answer = server.send(Method::GET, "/v1/leases", None).await;
    assert!(answer.status().is_server_error());
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn schema() {
    let database = fresh_database();
    let server = server(&[("DATABASE_URL", &database), ("SOLELY__STORE__SCHEMA", "shop")]).await;
    server.post("/v1/leases", json!({"keys": ["a"], "owner": "o", "ttlMs": 60_000})).await;
    let (client, connection) = tokio_postgres::connect(&database, NoTls).await.expect("connects");
    tokio::spawn(connection);
    let rows: i64 = client.query_one("SELECT count(*) FROM shop.leases", &[]).await.expect("is there").get(0);
    assert_eq!(rows, 1);
    assert!(!postgres_url().is_empty());
}

/// A Redis that hangs is given up on after the time that is set, not after two seconds.
#[tokio::test]
async fn redis_timeouts() {
    let redis = RedisServer::start();
    let env = [
        ("REDIS_URL", redis.url()),
        ("SOLELY__REDIS__COMMAND_TIMEOUT", "200ms".to_owned()),
        ("SOLELY__REDIS__CONNECT_TIMEOUT", "200ms".to_owned()),
        ("SOLELY__REDIS__RETRIES", "0".to_owned()),
    ];
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let server = server(&env).await;
    let until = async |status: &str| {
        let asked = Instant::now();
        while server.get("/readyz").await["status"] != status {
            assert!(asked.elapsed() < Duration::from_secs(20), "{status}: {}", server.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        asked.elapsed()
    };
    until("ready").await;
    redis.freeze();
    let noticed = until("degraded").await;
    assert!(noticed < Duration::from_millis(1_900), "{noticed:?}");
    redis.thaw();
    until("ready").await;
}

/// What is past its retention is pruned when a server starts.
#[tokio::test]
async fn retention() {
    let first = server(&[]).await;
    let store = first.tool();
    for key in ["done", "dead"] {
        store.enqueue(vec![NewJob::new("queue", key)]).await.expect("enqueues");
    }
    drop(store);
    let conn = rusqlite::Connection::open(first.file()).expect("opens");
    conn.execute_batch(
        "UPDATE jobs SET state = CASE key WHEN 'done' THEN 3 ELSE 4 END, live = NULL, due_at = NULL, ends_at = 1;
         INSERT INTO events (at, subject, event, details) VALUES (1, 'job:1', 'old', '{}');",
    )
    .expect("they ended long ago");
    let left = |conn: &rusqlite::Connection| -> (u32, u32) {
        let count = |sql: &str| conn.query_row(sql, [], |row| row.get(0)).expect("counts");
        (count("SELECT count(*) FROM jobs"), count("SELECT count(*) FROM events"))
    };
    let long = "36500d";
    let names = ["SOLELY__RETENTION__JOBS", "SOLELY__RETENTION__DEAD_LETTERS", "SOLELY__RETENTION__EVENTS"];
    let mut folder = first;
    for (kept, expected) in [(3, (2, 1)), (2, (2, 0)), (1, (1, 0)), (0, (0, 0))] {
        folder.signal(nix::sys::signal::Signal::SIGTERM);
        folder.ended();
        let home = std::mem::replace(&mut folder.folder, TempDir::new().expect("a folder"));
        let env: Vec<(&str, &str)> = names.iter().take(kept).map(|name| (*name, long)).collect();
        folder = Server::start_with(home, &env).await;
        let started = Instant::now();
        while left(&conn) != expected {
            assert!(started.elapsed() < Duration::from_secs(10), "{:?} instead of {expected:?}", left(&conn));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn queue_depth() {
    let server = server(&[("SOLELY__ALERTS__QUEUE_DEPTH", "2")]).await;
    let alert = async || {
        let alerts = server.get("/v1/alerts").await;
        let found =
            alerts["items"].as_array().expect("items").iter().find(|one| one["name"] == "queue_depth");
        found.expect("is listed").clone()
    };
    assert_eq!(alert().await["firing"], false);
    let jobs = (0..3).map(|n| NewJob::new("queue", n.to_string())).collect();
    server.tool().enqueue(jobs).await.expect("enqueues");
    let firing = alert().await;
    assert_eq!(
        (&firing["firing"], &firing["value"], &firing["threshold"]),
        (&json!(true), &json!(3.0), &json!(2.0))
    );
    assert!(
        firing["since"].is_string() && firing["message"].as_str().expect("text").contains("queue"),
        "{firing}"
    );
    assert_eq!(alert().await["since"], firing["since"], "since the first time");
}
