//! More than there may be: refused at once, without growth, and forgotten soon.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::server::Server;

/// The server's memory, in MiB.
fn memory(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).expect("is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("has memory");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") / 1024
}

async fn lease(server: &Server, key: &str, wait_ms: u32) -> (u16, serde_json::Value) {
    let body = json!({"keys": [key], "owner": "o", "ttlMs": 60_000, "waitMs": wait_ms});
    server.post("/v1/leases", body).await
}

/// Ten times as many requests as there may be: those beyond are told so at once, those within are
/// answered, the server stays as large as it was, and serves the next one as if nothing had been.
#[tokio::test]
async fn ten_times_as_many_requests_as_there_may_be() {
    let env = [("SOLELY__SERVER__MAX_IN_FLIGHT", "50")];
    let server = Server::start_with(TempDir::new().expect("a folder"), &env).await;
    let (status, held) = lease(&server, "a", 0).await;
    assert_eq!(status, 200, "{held}");
    let before = memory(&server);
    let waiting = (0..500).map(|_| async {
        let asked = Instant::now();
        let (status, body) = lease(&server, "a", 3_000).await;
        (status, body, asked.elapsed())
    });
    let answers = futures::future::join_all(waiting).await;
    let refused: Vec<_> = answers.iter().filter(|(status, _, _)| *status == 503).collect();
    assert!(refused.len() >= 400, "{} were refused", refused.len());
    for (_, body, took) in &refused {
        assert_eq!(body["error"], "OVERLOADED");
        assert!(body["retryAfter"].is_u64());
        assert!(*took < Duration::from_millis(2_500), "at once: {took:?}");
    }
    let waited = answers.iter().filter(|(status, _, _)| *status == 409).count();
    assert_eq!(waited + refused.len(), 500);
    assert!(waited >= 40, "{waited} were let wait");
    let asked = Instant::now();
    assert_eq!(lease(&server, "b", 0).await.0, 200);
    assert!(asked.elapsed() < Duration::from_millis(500), "{:?}", asked.elapsed());
    assert!(memory(&server) < before + 40, "{} MiB after {before}", memory(&server));
}

/// Clients that begin a request and do not go on are cut off; others do not notice them.
#[tokio::test]
async fn clients_that_stall() {
    let server = Server::start().await;
    let address = server.url.trim_start_matches("http://").to_owned();
    let before = memory(&server);
    let stalled = |beginning: &str| {
        let mut stream = TcpStream::connect(&address).expect("connects");
        stream.write_all(beginning.as_bytes()).expect("sends");
        stream.set_read_timeout(Some(Duration::from_secs(100))).expect("can wait");
        stream
    };
    let mut headers: Vec<_> = (0..300).map(|_| stalled("GET /v1/queues HTTP/1.1\r\nHost: loc")).collect();
    let body = "POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{\"keys\":";
    let mut bodies: Vec<_> = (0..100).map(|_| stalled(body)).collect();
    let asked = Instant::now();
    for _ in 0..50 {
        server.get("/v1/queues").await;
    }
    assert!(asked.elapsed() < Duration::from_secs(3), "others are served: {:?}", asked.elapsed());
    assert!(memory(&server) < before + 40, "{} MiB after {before}", memory(&server));
    let ended = |stream: &mut TcpStream| {
        let mut said = Vec::new();
        stream.read_to_end(&mut said).is_ok().then(|| String::from_utf8_lossy(&said).into_owned())
    };
    let cut_off = tokio::task::spawn_blocking(move || {
        let mut said: Vec<_> = headers.iter_mut().map(&ended).collect();
        said.extend(bodies.iter_mut().map(ended));
        said
    });
    for said in cut_off.await.expect("reads") {
        let said = said.expect("is cut off");
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
    }
}
