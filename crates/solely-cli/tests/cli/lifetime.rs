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
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.send(reqwest::Method::GET, "/readyz", None).await.status() != 200 {
        assert!(Instant::now() < deadline, "it goes on by itself: {}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (status, held) = server.post("/v1/leases", json!({"keys": ["a"], "owner": "p", "ttlMs": 1000})).await;
    assert_eq!((status, &held["error"]), (409, &json!("LEASE_HELD")));
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
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.send(reqwest::Method::GET, "/readyz", None).await.status() != 200 {
        assert!(Instant::now() < deadline, "it goes on by itself: {}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (status, held) = server.post("/v1/leases", json!({"keys": ["a"], "owner": "p", "ttlMs": 1000})).await;
    assert_eq!((status, &held["error"]), (409, &json!("LEASE_HELD")));
}
