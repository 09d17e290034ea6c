//! Servers with Redis, and without it for a while.

use std::time::{Duration, Instant};

use serde_json::json;
use solely_testing::{RedisServer, fresh_database};

use crate::server::Server;

async fn until_ready_says(server: &Server, status: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let ready = server.get("/readyz").await;
        if ready["status"] == status {
            assert_eq!(ready["redis"], json!({"configured": true, "ok": status == "ready"}));
            return;
        }
        assert!(Instant::now() < deadline, "{ready} instead of {status}: {}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn metric(server: &Server, name: &str) -> f64 {
    let text = server.send(reqwest::Method::GET, "/metrics", None).await.text().await.expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {text}"))
}

/// Redis goes away and comes back: readiness says degraded, metrics count it, callers notice
/// nothing, and it is used again.
#[tokio::test]
async fn redis_may_go_away_and_come_back() {
    let mut redis = RedisServer::start();
    let folder = tempfile::TempDir::new().expect("a folder");
    let server = Server::start_with(folder, &[("REDIS_URL", &redis.url())]).await;
    until_ready_says(&server, "ready").await;
    assert!((metric(&server, "solely_redis_up").await - 1.0).abs() < f64::EPSILON);
    redis.crash();
    until_ready_says(&server, "degraded").await;
    assert!(metric(&server, "solely_redis_up").await.abs() < f64::EPSILON);
    let lease = json!({"keys": ["a"], "owner": "o", "ttlMs": 1000});
    assert_eq!(server.post("/v1/leases", lease).await.0, 200);
    redis.start_again();
    until_ready_says(&server, "ready").await;
}

/// A server starts without Redis, says so, and uses it once it is there.
#[tokio::test]
async fn a_server_starts_without_redis() {
    let mut redis = RedisServer::start();
    redis.crash();
    let folder = tempfile::TempDir::new().expect("a folder");
    let server = Server::start_with(folder, &[("SOLELY__REDIS__URL", &redis.url())]).await;
    until_ready_says(&server, "degraded").await;
    redis.start_again();
    until_ready_says(&server, "ready").await;
}

/// Redis with TLS: used where its certificate is trusted, and not where it is not.
#[tokio::test]
async fn redis_may_be_encrypted() {
    let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let redis = RedisServer::start_encrypted(&own.cert.pem(), &own.signing_key.serialize_pem());
    let folder = tempfile::TempDir::new().expect("a folder");
    let trusted = folder.path().join("trusted.pem");
    std::fs::write(&trusted, own.cert.pem()).expect("is written");
    let url = format!("rediss://localhost:{}", redis.port());
    let trusted = trusted.display().to_string();
    let env = [("REDIS_URL", url.as_str()), ("SSL_CERT_FILE", trusted.as_str())];
    let server = Server::start_with(folder, &env).await;
    until_ready_says(&server, "ready").await;
    let folder = tempfile::TempDir::new().expect("a folder");
    let strict = Server::start_with(folder, &[("REDIS_URL", url.as_str())]).await;
    until_ready_says(&strict, "degraded").await;
}

/// Two servers on one database: who waits at one for a lease is woken by a release at the other,
/// sooner than its poll; by Redis, and without it by the database.
#[tokio::test]
async fn a_release_at_one_server_wakes_a_waiter_at_another() {
    let (redis, database) = (RedisServer::start(), fresh_database());
    for env in [
        vec![("DATABASE_URL", database.as_str()), ("REDIS_URL", &redis.url())],
        vec![("DATABASE_URL", database.as_str())],
    ] {
        let start = || Server::start_with(tempfile::TempDir::new().expect("a folder"), &env);
        let (here, there) = (start().await, start().await);
        let mut waits = Vec::new();
        for _ in 0..5 {
            let wanted = |wait: u32| json!({"keys": ["a"], "owner": "o", "ttlMs": 60_000, "waitMs": wait});
            let (status, lease) = here.post("/v1/leases", wanted(0)).await;
            assert_eq!(status, 200, "{lease}");
            let waiting = there.post("/v1/leases", wanted(20_000));
            let releasing = async {
                while there.get("/v1/leases").await["items"][0]["waiters"] != 1 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                let path = format!("/v1/leases/{}", lease["leaseId"].as_str().expect("an id"));
                here.send(reqwest::Method::DELETE, &path, None).await;
                Instant::now()
            };
            let ((status, lease), released) = tokio::join!(waiting, releasing);
            waits.push(released.elapsed());
            assert_eq!(status, 200, "{lease}");
            let path = format!("/v1/leases/{}", lease["leaseId"].as_str().expect("an id"));
            there.send(reqwest::Method::DELETE, &path, None).await;
        }
        waits.sort();
        assert!(waits[2] < Duration::from_millis(300), "{waits:?}");
    }
}
