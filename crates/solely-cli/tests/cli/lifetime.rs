//! Starting, stopping, being killed.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use solely_testing::free_port;

use crate::server::{Server, solely};

/// Told to stop, it finishes and ends well.
#[tokio::test]
async fn sigterm_ends_it_well() {
    let mut server = Server::start().await;
    server.post("/v1/leases", json!({"keys": ["a"], "owner": "o", "ttlMs": 60000})).await;
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended(), Some(0), "{}", server.log());
}

/// A caller that waits for a lease does not hold up the end beyond the grace, and is answered.
#[tokio::test]
async fn sigterm_lets_requests_finish() {
    let mut server = Server::start().await;
    server.post("/v1/leases", json!({"keys": ["a"], "owner": "o", "ttlMs": 60000})).await;
    let body = json!({"keys": ["a"], "owner": "p", "ttlMs": 1000, "waitMs": 1500});
    let (answer, ()) = tokio::join!(server.post("/v1/leases", body), async {
        while server.get("/v1/leases").await["items"][0]["waiters"] != 1 {
            tokio::task::yield_now().await;
        }
        server.signal(Signal::SIGTERM);
    });
    assert_eq!(answer.0, 409, "{}", answer.1);
    assert_eq!(server.ended(), Some(0), "{}", server.log());
}

/// A lease outlives the server that gave it, and its fence is not given again.
#[tokio::test]
async fn a_lease_outlives_a_killed_server() {
    let server = Server::start().await;
    let (_, lease) = server.post("/v1/leases", json!({"keys": ["a"], "owner": "me", "ttlMs": 60000})).await;
    let server = server.replaced().await;
    let (status, held) =
        server.post("/v1/leases", json!({"keys": ["a"], "owner": "you", "ttlMs": 1000})).await;
    assert_eq!((status, &held["details"]["owner"]), (409, &json!("me")));
    let path = format!("/v1/leases/{}", lease["leaseId"].as_str().expect("an id"));
    assert_eq!(server.send(reqwest::Method::PUT, &path, None).await.status(), 200);
    let (_, other) = server.post("/v1/leases", json!({"keys": ["b"], "owner": "you", "ttlMs": 1000})).await;
    assert!(other["fence"].as_u64() > lease["fence"].as_u64());
}

/// A second server on the same file is refused, clearly, and the first goes on.
#[tokio::test]
async fn a_second_server_on_the_file_is_refused() {
    let server = Server::start().await;
    let address = format!("127.0.0.1:{}", free_port());
    let second = solely(server.folder.path()).args(["serve", "--listen", &address]).output().expect("runs");
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("served by another process"), "{said}");
    server.get("/readyz").await;
}

/// A port that is taken is said so.
#[tokio::test]
async fn a_taken_port_is_said_so() {
    let server = Server::start().await;
    let folder = tempfile::TempDir::new().expect("a folder");
    let address = server.url.trim_start_matches("http://");
    let second = solely(folder.path()).args(["serve", "--listen", address]).output().expect("runs");
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("cannot listen"));
}

/// It is ready by itself, and the lease on `a` that was given before is held.
async fn goes_on_with_what_was_acknowledged(server: &Server) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.send(reqwest::Method::GET, "/readyz", None).await.status() != 200 {
        assert!(Instant::now() < deadline, "it goes on by itself: {}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (status, held) = server.post("/v1/leases", json!({"keys": ["a"], "owner": "p", "ttlMs": 1000})).await;
    assert_eq!((status, &held["error"]), (409, &json!("LEASE_HELD")));
}

/// PostgreSQL goes away and comes back: readiness tells the truth, callers are refused at once
/// and not after a timeout, and it goes on by itself. What was acknowledged is there.
#[tokio::test]
async fn postgres_may_go_away_and_come_back() {
    let mut postgres = solely_testing::PostgresServer::start();
    let folder = tempfile::TempDir::new().expect("a folder");
    let server = Server::start_with(folder, &[("DATABASE_URL", &postgres.url())]).await;
    assert_eq!(server.get("/readyz").await["store"], json!({"kind": "postgres", "ok": true}));
    let (status, lease) =
        server.post("/v1/leases", json!({"keys": ["a"], "owner": "o", "ttlMs": 600_000})).await;
    assert_eq!(status, 200, "{lease}");
    postgres.stop();
    let started = Instant::now();
    let ready = server.send(reqwest::Method::GET, "/readyz", None).await;
    assert_eq!(ready.status(), 503);
    let (status, refused) =
        server.post("/v1/leases", json!({"keys": ["b"], "owner": "o", "ttlMs": 1000})).await;
    assert_eq!((status, &refused["error"]), (503, &json!("STORE_UNAVAILABLE")));
    assert!(refused["retryAfter"].is_u64());
    assert!(started.elapsed() < Duration::from_secs(2), "at once: {:?}", started.elapsed());
    postgres.start_again();
    goes_on_with_what_was_acknowledged(&server).await;
}

/// PostgreSQL that is there and does not answer: within seconds that is known, readiness says so
/// and callers are refused at once; when it answers again, it goes on by itself.
#[tokio::test]
async fn postgres_may_freeze_and_thaw() {
    let postgres = solely_testing::PostgresServer::start();
    let folder = tempfile::TempDir::new().expect("a folder");
    let server = Server::start_with(folder, &[("DATABASE_URL", &postgres.url())]).await;
    let (status, lease) =
        server.post("/v1/leases", json!({"keys": ["a"], "owner": "o", "ttlMs": 600_000})).await;
    assert_eq!(status, 200, "{lease}");
    postgres.freeze();
    // Whoever asks before it is known waits until it is.
    let asked = Instant::now();
    let (status, refused) =
        server.post("/v1/leases", json!({"keys": ["b"], "owner": "o", "ttlMs": 1000})).await;
    assert_eq!((status, &refused["error"]), (503, &json!("STORE_UNAVAILABLE")));
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    let asked = Instant::now();
    assert_eq!(server.send(reqwest::Method::GET, "/readyz", None).await.status(), 503);
    let (status, _) = server.post("/v1/leases", json!({"keys": ["c"], "owner": "o", "ttlMs": 1000})).await;
    assert_eq!(status, 503);
    assert!(asked.elapsed() < Duration::from_secs(2), "at once: {:?}", asked.elapsed());
    postgres.thaw();
    goes_on_with_what_was_acknowledged(&server).await;
}

/// A log line is one JSON object that begins with its event and names its request and trace.
#[tokio::test]
async fn log_lines_are_objects_that_begin_with_their_event() {
    let mut postgres = solely_testing::PostgresServer::start();
    let folder = tempfile::TempDir::new().expect("a folder");
    let server = Server::start_with(folder, &[("DATABASE_URL", &postgres.url())]).await;
    postgres.stop();
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let request = server.client.get(format!("{}/v1/leases", server.url)).header("x-request-id", "req-1");
    let request = request.header("traceparent", format!("00-{trace}-b7ad6b7169203331-01"));
    assert_eq!(request.send().await.expect("answers").status(), 503);
    let log = server.log();
    let mut told = false;
    for line in log.lines() {
        assert!(line.starts_with("{\"event\":"), "{line}");
        let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
        told |= value["requestId"] == "req-1" && value["traceId"] == trace;
    }
    assert!(told, "{log}");
}

/// Told to stop under load: every request that was accepted is answered, those that come later find
/// nobody, and it ends in peace.
#[tokio::test]
async fn sigterm_under_load_loses_nothing_that_a_retry_would_not_mend() {
    let mut server = Server::start().await;
    let (client, url) = (server.client.clone(), server.url.clone());
    let callers: Vec<_> = (0..16)
        .map(|caller| {
            let (client, url) = (client.clone(), url.clone());
            tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                for n in 0.. {
                    let key = format!("{caller}-{n}");
                    let body = json!({"keys": [key], "owner": "o", "ttlMs": 600_000});
                    let sent = client.post(format!("{url}/v1/leases")).body(body.to_string()).send().await;
                    match sent {
                        Ok(answer) if answer.status() == 200 => acknowledged.push(key),
                        Ok(answer) => panic!("{}", answer.status()),
                        Err(_) => return acknowledged,
                    }
                }
                acknowledged
            })
        })
        .collect();
    while server.get("/v1/leases?limit=200").await["items"].as_array().expect("items").len() < 100 {
        tokio::task::yield_now().await;
    }
    server.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(server.ended(), Some(0));
    let mut acknowledged = Vec::new();
    for caller in callers {
        acknowledged.extend(caller.await.expect("no request is answered with an error"));
    }
    let conn = rusqlite::Connection::open(server.file()).expect("opens");
    assert!(acknowledged.len() >= 100);
    for key in &acknowledged {
        let found = conn.query_row("SELECT 1 FROM leases WHERE key = ?1", [key], |_| Ok(()));
        assert!(found.is_ok(), "{key} was acknowledged");
    }
}
