//! The API over a real socket.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use solely_core::JobId;
use solely_core::commit::{Commit, Verdict};
use solely_core::job::{ClaimReply, ClaimRequest, JobStore as _, NewJob};
use solely_core::liveness::{Beat, LivenessStore as _};
use tempfile::TempDir;

use crate::server::Server;

async fn acquire(server: &Server, body: Value) -> Value {
    let (status, lease) = server.post("/v1/leases", body).await;
    assert_eq!(status, 200, "{lease}");
    lease
}

/// Take, refuse, list, renew, release.
#[tokio::test]
async fn a_lease_from_beginning_to_end() {
    let server = Server::start().await;
    let lease = acquire(&server, json!({"keys": ["b", "a", "b"], "owner": "me", "ttlMs": 60000})).await;
    assert_eq!((&lease["keys"], &lease["owner"]), (&json!(["b", "a"]), &json!("me")));
    let (status, held) =
        server.post("/v1/leases", json!({"keys": ["a"], "owner": "you", "ttlMs": 1000})).await;
    assert_eq!((status, &held["error"]), (409, &json!("LEASE_HELD")));
    assert_eq!(held["details"], json!({"key": "a", "owner": "me", "expiresAt": lease["expiresAt"]}));
    assert!(held["retryAfter"].as_u64().expect("a wait") <= 60_000);
    let path = format!("/v1/leases/{}", lease["leaseId"].as_str().expect("an id"));
    let renewed = server.send(Method::PUT, &path, Some(r#"{"ttlMs":120000}"#)).await;
    let renewed: Value = renewed.json().await.expect("JSON");
    assert_eq!(renewed["fence"], lease["fence"]);
    assert!(renewed["expiresAt"].as_str() > lease["expiresAt"].as_str());
    let first = server.get("/v1/leases?limit=1").await;
    assert_eq!((&first["items"][0]["key"], &first["nextCursor"]), (&json!("a"), &json!("a")));
    let second = server.get("/v1/leases?limit=1&cursor=a").await;
    assert_eq!((&second["items"][0]["key"], &second["nextCursor"]), (&json!("b"), &Value::Null));
    assert_eq!(second["items"][0]["waiters"], 0);
    assert_eq!(server.send(Method::DELETE, &path, None).await.status(), 204);
    assert_eq!(server.send(Method::DELETE, &path, None).await.status(), 404);
    let next = acquire(&server, json!({"keys": ["a"], "owner": "you", "ttlMs": 1000})).await;
    assert!(next["fence"].as_u64() > lease["fence"].as_u64());
}

/// A caller that waits is woken by the release, and counted while it waits.
#[tokio::test]
async fn a_waiting_caller_is_woken() {
    let server = Server::start().await;
    let lease = acquire(&server, json!({"keys": ["a"], "owner": "me", "ttlMs": 60000})).await;
    let waiting =
        server.post("/v1/leases", json!({"keys": ["a"], "owner": "you", "ttlMs": 1000, "waitMs": 30000}));
    let releasing = async {
        while server.get("/v1/leases").await["items"][0]["waiters"] != 1 {
            tokio::task::yield_now().await;
        }
        let path = format!("/v1/leases/{}", lease["leaseId"].as_str().expect("an id"));
        assert_eq!(server.send(Method::DELETE, &path, None).await.status(), 204);
    };
    let ((status, got), ()) = tokio::join!(waiting, releasing);
    assert_eq!((status, &got["owner"]), (200, &json!("you")));
}

/// A caller that goes away while it waits leaves no lease behind.
#[tokio::test]
async fn a_caller_that_leaves_leaves_no_lease() {
    let server = Server::start().await;
    let lease = acquire(&server, json!({"keys": ["a"], "owner": "me", "ttlMs": 60000})).await;
    let request = json!({"keys": ["a"], "owner": "gone", "ttlMs": 60000, "waitMs": 30000});
    let left = tokio::time::timeout(Duration::from_millis(200), server.post("/v1/leases", request)).await;
    assert!(left.is_err(), "it waits");
    while server.get("/v1/leases").await["items"][0]["waiters"] != 0 {
        tokio::task::yield_now().await;
    }
    let path = format!("/v1/leases/{}", lease["leaseId"].as_str().expect("an id"));
    server.send(Method::DELETE, &path, None).await;
    acquire(&server, json!({"keys": ["a"], "owner": "you", "ttlMs": 1000, "waitMs": 5000})).await;
}

/// Makes a dead job in the server's store, as a worker beside it would.
async fn dead(server: &Server, key: &str, error: &str) -> JobId {
    let tool = server.tool();
    let process = solely_core::ProcessId::random();
    tool.beat(Beat { process, dead_after: Duration::from_secs(5) }).await.expect("beats");
    let mut job = NewJob::new("work-items", key);
    job.payload = solely_core::Json::of(&json!({"token": "secret"}));
    job.attributes = solely_core::Json::of(&json!({"offset": 30}));
    let id = job.id;
    tool.enqueue(vec![job]).await.expect("enqueues");
    let request =
        ClaimRequest { process, queue: "work-items".to_owned(), limit: 10, lock: Duration::from_secs(60) };
    let ClaimReply::Jobs { jobs, .. } = tool.claim(request).await.expect("claims") else { panic!("alive") };
    let claim = jobs.iter().find(|claimed| claimed.job.id == id).expect("due").claim;
    let verdict = Verdict::Dead { error: error.to_owned() };
    tool.settle(vec![Commit::new(claim, verdict)]).await.expect("settles");
    tool.leave(process).await.expect("leaves");
    id
}

/// A job's shape, without its payload; listed by queue, state and key.
#[tokio::test]
async fn jobs_are_shown_and_listed() {
    let server = Server::start().await;
    let id = dead(&server, "run:p:0", "boom").await;
    let job = server.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!((&job["state"], &job["attempts"], &job["error"]), (&json!("dead"), &json!(1), &json!("boom")));
    assert_eq!((&job["attributes"], &job["lockedUntil"]), (&json!({"offset": 30}), &Value::Null));
    let fields: Vec<&String> = job.as_object().expect("an object").keys().collect();
    assert_eq!(fields.len(), 14, "{fields:?}");
    assert!(!job.to_string().contains("secret"));
    let listed = server.get("/v1/jobs?queue=work-items&state=dead&key=run:p:0").await;
    assert_eq!(listed, json!({"items": [job], "nextCursor": null}));
    assert_eq!(server.get("/v1/dead-letters?queue=work-items").await, listed);
    let queues = server.get("/v1/queues").await;
    assert_eq!(queues["items"][0]["name"], "work-items");
    assert_eq!((&queues["items"][0]["dead"], &queues["items"][0]["ready"]), (&json!(1), &json!(0)));
}

/// A retry brings one back; its timeline tells.
#[tokio::test]
async fn a_dead_job_is_retried_and_its_timeline_tells() {
    let server = Server::start().await;
    let id = dead(&server, "a", "boom").await;
    let (status, job) = server.post(&format!("/v1/jobs/{id}/retry"), json!({})).await;
    assert_eq!((status, &job["state"], &job["attempts"]), (200, &json!("ready"), &json!(0)));
    let (status, refused) = server.post(&format!("/v1/jobs/{id}/retry"), json!({})).await;
    assert_eq!((status, &refused["error"]), (409, &json!("INVALID_STATE")));
    let timeline = server.get(&format!("/v1/timeline?subject=job:{id}")).await;
    let events: Vec<&str> = timeline["items"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|event| event["event"].as_str())
        .collect();
    assert_eq!(events, ["job_enqueued", "job_revived"]);
}

/// Redrive: a look first, then all; one whose key is taken is closed and told apart.
#[tokio::test]
async fn dead_letters_are_redriven() {
    let server = Server::start().await;
    for (key, error) in [("a", "timed out"), ("b", "timed out"), ("c", "no JSON")] {
        dead(&server, key, error).await;
    }
    server.tool().enqueue(vec![NewJob::new("work-items", "b")]).await.expect("enqueues");
    let look = json!({"queue": "work-items", "error": "timed out", "dryRun": true});
    let (_, looked) = server.post("/v1/dead-letters/redrive", look).await;
    assert_eq!(looked, json!({"redriven": 1, "superseded": 1}));
    let (_, done) = server.post("/v1/dead-letters/redrive", json!({"limit": 10})).await;
    assert_eq!(done, json!({"redriven": 2, "superseded": 1}));
    assert_eq!(server.get("/v1/dead-letters").await["items"], json!([]));
}

/// A queue is paused until a time, or until it is resumed.
#[tokio::test]
async fn a_queue_is_paused_and_resumed() {
    let server = Server::start().await;
    let (status, queue) =
        server.post("/v1/queues/enrich:wolt/pause", json!({"until": "2999-01-01T00:00:00Z"})).await;
    assert_eq!((status, &queue["pausedUntil"]), (200, &json!("2999-01-01T00:00:00.000Z")));
    assert_eq!(server.get("/v1/queues").await["items"][0], queue);
    let (status, queue) = server.post("/v1/queues/enrich:wolt/resume", json!({})).await;
    assert_eq!((status, &queue["pausedUntil"]), (200, &Value::Null));
}

/// A client's request id is echoed, a bad one replaced.
#[tokio::test]
async fn a_request_id_is_echoed_or_made() {
    let server = Server::start().await;
    let with = async |id: &str| {
        let answer =
            server.client.get(format!("{}/nope", server.url)).header("x-request-id", id).send().await;
        let answer = answer.expect("answers");
        let header = answer.headers()["x-request-id"].to_str().expect("text").to_owned();
        let body: Value = answer.json().await.expect("JSON");
        assert_eq!(body["requestId"], header.as_str());
        header
    };
    assert_eq!(with("req-1").await, "req-1");
    assert_ne!(with(&"x".repeat(200)).await, "x".repeat(200));
    assert_ne!(with("two words").await, "two words");
}

/// Queues that this server has are listed though nothing is in them; upstreams of any kind are listed page by
/// page, whatever they are called.
#[tokio::test]
async fn queues_and_upstreams_are_listed() {
    let folder = TempDir::new().expect("a folder");
    let config = "[enrich.providers.wolt]\nenabled = true\nurl = \"http://127.0.0.1:9/\"\n
                  [products.plugins.tours]\nurl = \"http://127.0.0.1:9/\"\n
                  [feed.sources.tours]\nurl = \"http://127.0.0.1:9/\"\n";
    std::fs::write(folder.path().join("solely.toml"), config).expect("writes");
    let server = Server::start_in(folder).await;
    let names = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().expect("a list").iter();
        items.map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
    };
    let queues = names(&server.get("/v1/queues").await);
    for queue in ["enrich:wolt", "products", "work-items", "work-done", "consolidate"] {
        assert!(queues.contains(&queue.to_owned()), "{queue}: {queues:?}");
    }
    let (mut listed, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/upstreams?limit=1{cursor}")).await;
        listed.extend(names(&page));
        let Some(next) = page["nextCursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(listed, ["tours", "wolt", "tours"]);
    let all = names(&server.get("/v1/alerts").await);
    assert_eq!(names(&server.get("/v1/alerts?limit=1").await), all[..1]);
}

/// Health, metrics and upstreams answer.
#[tokio::test]
async fn health_metrics_and_upstreams_answer() {
    let server = Server::start().await;
    let ready = server.get("/readyz").await;
    assert_eq!(
        (&ready["status"], &ready["store"]),
        (&json!("ready"), &json!({"kind": "sqlite", "ok": true}))
    );
    assert_eq!(ready["redis"], json!({"configured": false, "ok": false}));
    assert_eq!(server.send(Method::GET, "/healthz", None).await.status(), 200);
    dead(&server, "a", "boom").await;
    let metrics = server.send(Method::GET, "/metrics", None).await;
    assert!(metrics.headers()["content-type"].to_str().expect("text").starts_with("text/plain"));
    let metrics = metrics.text().await.expect("text");
    assert!(metrics.contains("solely_queue_dead{queue=\"work-items\"} 1"), "{metrics}");
    assert_eq!(server.get("/v1/upstreams").await, json!({"items": [], "nextCursor": null}));
}
