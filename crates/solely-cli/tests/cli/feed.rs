//! Feeds as a user meets them: a server, the sandbox's sources, HTTP, and `solely runs`.

use std::process::Output;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use reqwest::Method;
use serde_json::{Value, json};
use solely_sandbox::catalogue::Catalogue;
use solely_sandbox::mood::Mood;
use solely_sandbox::{Sandbox, nivoda};
use solely_testing::free_port;
use tempfile::TempDir;

use crate::server::{Server, solely};

/// A sandbox with so many stones, and where it is.
async fn sandbox(stones: usize) -> (Sandbox, String) {
    let sandbox = Sandbox::new(Catalogue::of(stones, 7));
    let address = sandbox.start(free_port()).await.expect("listens");
    (sandbox, format!("http://{address}"))
}

/// A folder with a configuration of one source.
fn configured(source: &str) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("solely.toml"), format!("[feed.sources.diamonds]\n{source}"))
        .expect("is written");
    folder
}

async fn served(url: &str, more: &str) -> Server {
    let source = format!("url = \"{url}/feed\"\nrate = \"\"\nmin_records_per_partition = 50\n{more}");
    Server::start_in(configured(&source)).await
}

async fn start(server: &Server, body: Value) -> String {
    let (status, started) = server.post("/v1/runs", body).await;
    assert_eq!(status, 202, "{started}");
    started["runId"].as_str().expect("an id").to_owned()
}

async fn until(server: &Server, run: &str, what: &str, so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(40);
    loop {
        let state = server.get(&format!("/v1/runs/{run}")).await;
        if so(&state) {
            return state;
        }
        assert!(Instant::now() < deadline, "{what}: {state:#}\n{}", server.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn ended(server: &Server, run: &str) -> Value {
    let over = |state: &Value| {
        ["completed", "failed", "cancelled"].contains(&state["status"].as_str().unwrap_or(""))
    };
    until(server, run, "it ends", over).await
}

async fn lines(server: &Server, path: &str) -> Vec<Value> {
    let answer = server.send(Method::GET, path, None).await;
    assert_eq!(answer.status(), 200, "{path}");
    assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
    let text = answer.text().await.expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// A source is copied over HTTP: shapes, counts, streams, one run at a time.
#[tokio::test]
async fn a_source_is_copied_over_http() {
    let (sandbox, url) = sandbox(1_000).await;
    sandbox.set_mood(Mood { latency_ms: 5, ..Mood::default() });
    let server = served(&url, "").await;
    let run = start(&server, json!({"source": "diamonds"})).await;
    let (status, refused) = server.post("/v1/runs", json!({"source": "diamonds"})).await;
    assert_eq!((status, &refused["error"]), (409, &json!("RUN_ACTIVE")), "{refused}");
    assert_eq!(refused["details"]["runId"], json!(run));
    let state = ended(&server, &run).await;
    assert_eq!(state["status"], "completed", "{state:#}");
    assert_eq!((&state["recordsProcessed"], &state["mode"]), (&json!(1_000), &json!("full")));
    let consolidation = &state["consolidation"];
    assert_eq!((&consolidation["status"], &consolidation["added"]), (&json!("completed"), &json!(1_000)));
    let partitions = state["partitions"].as_array().expect("a list");
    assert!(partitions.len() > 10, "{}", partitions.len());
    assert_eq!(state["expectedWorkers"], json!(partitions.len()));
    let mut next = 0;
    for partition in partitions {
        assert_eq!(partition["minPrice"], json!(next), "disjoint, and nothing between them");
        next = partition["maxPrice"].as_i64().expect("a price") + 1;
        assert_eq!((&partition["completed"], &partition["stuck"]), (&json!(true), &json!(false)));
    }
    assert_eq!(next, 250_001);
    let minimum: u64 =
        partitions.iter().map(|one| one["totalRecords"].as_u64().expect("counted") / 30 + 1).sum();
    assert_eq!(sandbox.count_of("feed"), minimum, "each page once");
    let current = lines(&server, "/v1/feeds/diamonds/records").await;
    assert_eq!(current, lines(&server, &format!("/v1/runs/{run}/records")).await);
    assert_eq!(current.len(), 1_000);
    let line = &current[0];
    assert_eq!((&line["id"], &line["payload"]["id"]), (&json!("stone-00000001"), &line["id"]));
    assert_eq!(line["runId"], json!(run));
    let listed = server.get("/v1/runs?source=diamonds").await;
    assert_eq!((&listed["items"][0]["runId"], &listed["nextCursor"]), (&json!(run), &Value::Null));
    let upstream = &server.get("/v1/upstreams").await["items"][0];
    assert_eq!((&upstream["name"], &upstream["kind"]), (&json!("diamonds"), &json!("source")));
    let told = server.get(&format!("/v1/timeline?subject=run:{run}&limit=200")).await;
    let events: Vec<&str> =
        told["items"].as_array().expect("a list").iter().filter_map(|e| e["event"].as_str()).collect();
    assert_eq!((events[0], events[events.len() - 1]), ("run_started", "run_completed"));
    assert!(!events.contains(&"feed_offset_mismatch") && !server.log().contains("feed_offset_mismatch"));
}

/// A reader that began before a run became current sees what it began with, however slow it is.
#[tokio::test]
async fn readers_see_the_old_state_or_the_new_one() {
    let (sandbox, url) = sandbox(3_000).await;
    let server = served(&url, "page_limit = 200").await;
    let first = start(&server, json!({"source": "diamonds"})).await;
    ended(&server, &first).await;
    let mut slow = server.send(Method::GET, "/v1/feeds/diamonds/records", None).await;
    let mut text = slow.chunk().await.expect("reads").expect("some").to_vec();
    sandbox.change(|all| {
        for place in 0..all.stones().len() {
            let same = all.stones()[place].cents;
            all.change(place, Some(same), 1);
        }
        all.remove(0);
    });
    let second = start(&server, json!({"source": "diamonds"})).await;
    let state = ended(&server, &second).await;
    assert_eq!(
        (&state["consolidation"]["changed"], &state["consolidation"]["removed"]),
        (&json!(2_999), &json!(1))
    );
    while let Some(chunk) = slow.chunk().await.expect("reads") {
        text.extend_from_slice(&chunk);
    }
    let text = String::from_utf8(text).expect("text");
    assert_eq!(text.lines().count(), 3_000);
    assert!(text.lines().all(|line| line.contains("\"version\":1,")), "all of it old");
    let now = lines(&server, "/v1/feeds/diamonds/records").await;
    assert!(now.len() == 2_999 && now.iter().all(|line| line["payload"]["version"] == 2), "all of it new");
}

/// What is wrong with a request is said, and changes nothing.
#[tokio::test]
async fn what_is_wrong_is_said() {
    let (_, url) = sandbox(10).await;
    let server = served(&url, "").await;
    let nobody = "/v1/runs/01900000-0000-7000-8000-000000000000";
    for (path, body, status, code, says) in [
        ("/v1/runs", json!({}), 400, "INVALID_REQUEST", "source"),
        ("/v1/runs", json!({"source": "nobody"}), 404, "NOT_FOUND", "nobody"),
        ("/v1/runs", json!({"source": "diamonds", "limit": 0}), 400, "INVALID_REQUEST", "limit"),
        ("/v1/runs", json!({"source": "diamonds", "mode": "some"}), 400, "INVALID_REQUEST", "mode"),
        ("/v1/runs", json!({"source": "diamonds", "colour": 1}), 400, "INVALID_REQUEST", "colour"),
        ("/v1/runs", json!({"source": "diamonds", "partitions": []}), 400, "INVALID_REQUEST", "partitions"),
        (
            "/v1/runs",
            json!({"source": "diamonds", "partitions": [{"partitionId": "a", "minPrice": 9, "maxPrice": 1}]}),
            400,
            "INVALID_REQUEST",
            "partitions[0].minPrice",
        ),
        (&format!("{nobody}/cancel"), json!({}), 404, "NOT_FOUND", "run"),
        (&format!("{nobody}/resume"), json!({}), 404, "NOT_FOUND", "run"),
        (&format!("{nobody}/partitions/p/retry"), json!({}), 404, "NOT_FOUND", "run"),
        (&format!("{nobody}/partitions/p/reset"), json!({}), 400, "INVALID_REQUEST", "nextOffset"),
        (
            &format!("{nobody}/partitions/p/reset"),
            json!({"nextOffset": -1}),
            400,
            "INVALID_REQUEST",
            "nextOffset",
        ),
    ] {
        let (answered, error) = server.post(path, body.clone()).await;
        assert_eq!((answered, error["error"].as_str()), (status, Some(code)), "{path} {body}: {error}");
        assert!(error["message"].as_str().expect("text").contains(says), "{path} {body}: {error}");
    }
    for path in [nobody, &format!("{nobody}/records"), "/v1/feeds/nobody/records", "/v1/runs/no-id"] {
        assert_eq!(server.send(Method::GET, path, None).await.status(), 404, "{path}");
    }
    assert_eq!(lines(&server, "/v1/feeds/diamonds/records").await.len(), 0, "never copied");
    assert_eq!(server.get("/v1/runs").await["items"], json!([]));
}

/// Nivoda: one token for all calls, another when it ends, pages of at most fifty, prices in cents.
#[tokio::test]
async fn nivoda_is_copied_through_an_expired_token() {
    let (sandbox, url) = sandbox(400).await;
    sandbox.set_mood(Mood { latency_ms: 10, ..Mood::default() });
    let source = format!(
        "kind = \"nivoda\"\nurl = \"{url}/nivoda\"\nusername = \"{}\"\npassword = \"{}\"\nrate = \"\"\n\
         page_limit = 50\nmin_records_per_partition = 100",
        nivoda::USERNAME,
        nivoda::PASSWORD
    );
    let server = Server::start_in(configured(&source)).await;
    let run = start(&server, json!({"source": "diamonds"})).await;
    until(&server, &run, "a page", |state| state["recordsProcessed"].as_u64() > Some(0)).await;
    assert_eq!(sandbox.count_of("nivoda.authenticate"), 1, "one for all");
    sandbox.expire_tokens();
    let state = ended(&server, &run).await;
    assert_eq!(
        (&state["status"], &state["recordsProcessed"]),
        (&json!("completed"), &json!(400)),
        "{state:#}"
    );
    assert_eq!(sandbox.count_of("nivoda.authenticate"), 2);
    let line = &lines(&server, "/v1/feeds/diamonds/records").await[0];
    assert_eq!(
        (&line["id"], &line["payload"]["id"]),
        (&json!("stone-00000001"), &json!("DIAMOND/stone-00000001"))
    );
    // Another password: the run fails, and says why.
    let (sandbox, url) = self::sandbox(10).await;
    let source = format!("kind = \"nivoda\"\nurl = \"{url}/nivoda\"\nusername = \"me\"\npassword = \"no\"");
    let server = Server::start_in(configured(&source)).await;
    let run = start(&server, json!({"source": "diamonds"})).await;
    let state = ended(&server, &run).await;
    assert!(state["error"].as_str().expect("a reason").contains("Invalid username or password"), "{state:#}");
    assert_eq!(sandbox.count_of("nivoda.authenticate"), 1, "not tried again");
    assert!(!server.log().contains("\"no\""), "{}", server.log());
}

/// Throttled in bursts, it is left alone for as long as it says, and everything is copied.
#[tokio::test]
async fn a_source_that_throttles_is_left_alone() {
    let (sandbox, url) = sandbox(600).await;
    sandbox.set_mood(Mood {
        throttle_every_ms: 300,
        throttle_for_ms: 100,
        latency_ms: 15,
        ..Mood::default()
    });
    let server = served(&url, "max_deliveries = 2").await;
    let run = start(&server, json!({"source": "diamonds"})).await;
    let state = ended(&server, &run).await;
    assert_eq!(
        (&state["status"], &state["recordsProcessed"]),
        (&json!("completed"), &json!(600)),
        "{state:#}"
    );
    assert!(sandbox.count_of("feed 429") + sandbox.count_of("feed.count 429") > 0, "it did throttle");
}

/// One call in four fails, and a plan asks for more counts than four: they are tried again one by one,
/// so that the first delivery of the message plans the run.
#[tokio::test]
async fn a_source_that_fails_now_and_then_is_planned_at_once() {
    let (sandbox, url) = sandbox(3_000).await;
    sandbox.set_mood(Mood { errors_percent: 25.0, ..Mood::default() });
    let server = served(&url, "max_deliveries = 12").await;
    let run = start(&server, json!({"source": "diamonds"})).await;
    let state = until(&server, &run, "it is planned", |state| state["expectedWorkers"] != 0).await;
    let failed = sandbox.count_of("feed.count 500");
    sandbox.set_mood(Mood::default());
    assert!(failed > 0, "some counts failed: {state:#}");
    let conn = rusqlite::Connection::open(server.file()).expect("opens");
    let sql = "SELECT attempts FROM jobs WHERE queue = 'schedule'";
    let attempts: i64 = conn.query_row(sql, [], |row| row.get(0)).expect("the message is kept");
    assert_eq!(attempts, 1, "{failed} counts failed");
    assert_eq!(ended(&server, &run).await["recordsProcessed"], json!(3_000));
}

/// Told to stop in the middle of a page, it finishes the page and ends well; another goes on at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_in_a_page_finishes_it() {
    let (sandbox, url) = sandbox(300).await;
    let server = served(&url, "max_partitions = 2").await;
    sandbox.set_mood(Mood { latency_ms: 400, ..Mood::default() });
    let run = start(&server, json!({"source": "diamonds"})).await;
    let before = until(&server, &run, "a page", |state| state["recordsProcessed"].as_u64() > Some(0)).await;
    let mut server = server;
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended(), Some(0), "{}", server.log());
    sandbox.set_mood(Mood::default());
    let server = server.replaced().await;
    let after = server.get(&format!("/v1/runs/{run}")).await;
    assert!(after["recordsProcessed"].as_u64() > before["recordsProcessed"].as_u64(), "the page was kept");
    let state = ended(&server, &run).await;
    assert_eq!(
        (&state["status"], &state["recordsProcessed"]),
        (&json!("completed"), &json!(300)),
        "{state:#}"
    );
    let jobs = server.get("/v1/jobs?queue=work-items&limit=200").await;
    let most =
        jobs["items"].as_array().expect("a list").iter().filter_map(|job| job["attempts"].as_u64()).max();
    assert_eq!(most, Some(1), "no attempt was spent");
    assert!(sandbox.pages().values().all(|times| *times == 1), "no page was fetched twice");
}

/// A page that takes longer than the grace is released: no attempt is spent, and another server has
/// it at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_longer_than_the_grace_is_released() {
    let (sandbox, url) = sandbox(100).await;
    let folder = configured(&format!(
        "url = \"{url}/feed\"\nrate = \"\"\nmax_deliveries = 1\n[server]\nshutdown_grace = \"1s\""
    ));
    let server = Server::start_in(folder).await;
    let run = start(&server, json!({"source": "diamonds"})).await;
    ended(&server, &run).await;
    sandbox.set_mood(Mood { hangs_percent: 100.0, bad_offset: None, ..Mood::default() });
    let run = start(
        &server,
        json!({"source": "diamonds", "partitions": [
        {"partitionId": "all", "minPrice": 0, "maxPrice": 250_000}]}),
    )
    .await;
    while sandbox.count_of("feed.count hang") + sandbox.count_of("feed hang") == 0 {
        tokio::task::yield_now().await;
    }
    let mut server = server;
    let asked = Instant::now();
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended(), Some(0), "{}", server.log());
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    sandbox.set_mood(Mood::default());
    let server = server.replaced().await;
    let began = Instant::now();
    let state = ended(&server, &run).await;
    assert_eq!(state["status"], "completed", "{state:#}");
    assert!(began.elapsed() < Duration::from_secs(5), "at once: {:?}", began.elapsed());
}

/// The trace of a request goes with its pages to the source.
#[tokio::test]
async fn a_trace_goes_with_its_pages() {
    let (sandbox, url) = sandbox(40).await;
    let server = served(&url, "").await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = server.client.post(format!("{}/v1/runs", server.url)).header("traceparent", trace);
    let answer = request.body(r#"{"source":"diamonds"}"#).send().await.expect("answers");
    let started: Value = answer.json().await.expect("JSON");
    ended(&server, started["runId"].as_str().expect("an id")).await;
    assert_eq!(sandbox.traces(), [trace]);
}

fn runs(server: &Server, args: &[&str]) -> Output {
    let mut command = solely(server.folder.path());
    command.arg("runs").args(args).env("SOLELY_URL", &server.url);
    command.output().expect("runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `solely runs` in a pipe: the id, lines of progress, an exit code that says how it ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_are_started_watched_and_listed_in_a_pipe() {
    let (sandbox, url) = sandbox(500).await;
    let server = served(&url, "").await;
    sandbox.set_mood(Mood { latency_ms: 50, ..Mood::default() });
    let output = runs(&server, &["start", "diamonds", "--watch"]);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0].len(), 36, "the id: {text}");
    let last = lines[lines.len() - 1];
    assert!(last.starts_with("diamonds full completed: ") && last.contains("500 added"), "{text}");
    assert!(!text.contains('\u{1b}') && !text.contains('█'), "plain: {text}");
    let listed = said(&runs(&server, &["list"]));
    assert!(listed.contains(lines[0]) && listed.contains("completed"), "{listed}");
    let as_json: Value = serde_json::from_str(&said(&runs(&server, &["watch", "--json"]))).expect("JSON");
    assert_eq!(as_json["runId"], json!(lines[0]));
    // A run that fails, cancelled and resumed by hand.
    sandbox.set_mood(Mood { status: Some(400), ..Mood::default() });
    let output = runs(&server, &["start", "diamonds", "--watch"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("failed") && said(&output).contains("answered 400"), "{}", said(&output));
    let id = said(&output).lines().next().expect("an id").to_owned();
    let again = runs(&server, &["cancel", &id]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("INVALID_STATE"));
    sandbox.set_mood(Mood::default());
    assert!(runs(&server, &["resume", &id]).status.success());
    assert!(runs(&server, &["watch", &id]).status.success());
}

/// On a terminal there is a bar for every partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_are_watched_on_a_terminal() {
    let (sandbox, url) = sandbox(300).await;
    let server = served(&url, "max_partitions = 3").await;
    sandbox.set_mood(Mood { latency_ms: 60, ..Mood::default() });
    let run = start(&server, json!({"source": "diamonds"})).await;
    let watch = format!("{} runs watch {run} --url {}", env!("CARGO_BIN_EXE_solely"), server.url);
    let output = std::process::Command::new("script")
        .args(["-qec", &watch, "/dev/null"])
        .stdin(std::process::Stdio::null())
        .output()
        .expect("`script` is installed: `cargo xtask setup` does it");
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    for word in ["partition-1", "partition-3", "█", "✓", "completed"] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

/// A configuration that cannot be is refused, naming the key.
#[test]
fn a_source_that_cannot_be_is_refused() {
    for (source, says) in [
        ("url = \"nowhere\"", "`feed.sources.diamonds.url`"),
        (
            "kind = \"nivoda\"\nurl = \"http://x\"\nusername = \"u\"\npage_limit = 51",
            "`feed.sources.diamonds.page_limit` is 1 to 50",
        ),
        ("kind = \"nivoda\"\nurl = \"http://x\"", "`feed.sources.diamonds.username`"),
        ("url = \"http://x\"\nmin_price = 9\nmax_price = 1", "`feed.sources.diamonds.min_price`"),
        ("url = \"http://x\"\nrate = \"often\"", "`feed.sources.diamonds.rate`"),
        ("url = \"http://x\"\nevery = \"1\"", "`feed.sources.diamonds.every`"),
        ("url = \"http://x\"\nconcurency = 1", "did you mean `feed.sources.diamonds.concurrency`?"),
    ] {
        let folder = configured(source);
        let output = solely(folder.path()).args(["config"]).output().expect("runs");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{source}: {error}");
        assert!(error.contains(says), "{source}: {error}");
    }
}

/// Secrets of a source are not shown.
#[test]
fn secrets_of_a_source_are_not_shown() {
    let folder = configured("url = \"http://u:geheim@x\"\napi_key = \"geheim\"\npassword = \"geheim\"");
    let output = solely(folder.path()).args(["config"]).output().expect("runs");
    assert!(output.status.success() && !said(&output).contains("geheim"), "{}", said(&output));
}
