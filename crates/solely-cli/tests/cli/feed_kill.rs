//! Feeds whose servers are killed: every record once, every partition ends once, one consolidation.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use solely_sandbox::Sandbox;
use solely_sandbox::catalogue::Catalogue;
use solely_sandbox::mood::Mood;
use solely_testing::{free_port, fresh_database};
use tempfile::TempDir;
use tokio_postgres::NoTls;

use crate::server::Server;

const STONES: usize = 100_000;
const PARTITIONS: u64 = 30;
/// Calls a second, of all three servers together.
const RATE: usize = 250;

async fn sandbox(stones: usize) -> (Sandbox, String) {
    let sandbox = Sandbox::new(Catalogue::of(stones, 11));
    let address = sandbox.start(free_port()).await.expect("listens");
    (sandbox, format!("http://{address}/feed"))
}

fn folder(source: &str) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let text = format!("[feed.sources.diamonds]\n{source}");
    std::fs::write(folder.path().join("solely.toml"), text).expect("is written");
    folder
}

async fn count(database: &str, sql: &str) -> i64 {
    let (client, connection) = tokio_postgres::connect(database, NoTls).await.expect("connects");
    tokio::spawn(connection);
    client.query_one(sql, &[]).await.expect(sql).get(0)
}

/// The run, as whichever server answers says.
async fn look(servers: &[Server], run: &str) -> Option<Value> {
    for server in servers {
        if let Ok(answer) = server.client.get(format!("{}/v1/runs/{run}", server.url)).send().await
            && answer.status() == 200
        {
            return answer.json().await.ok();
        }
    }
    None
}

/// A hundred thousand records in thirty partitions, three servers of which one is killed every second,
/// a source that fails two times in a hundred and throttles in bursts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_records_though_a_server_dies_every_second() {
    let (sandbox, url) = sandbox(STONES).await;
    sandbox.set_mood(Mood {
        latency_ms: 3,
        errors_percent: 2.0,
        throttle_every_ms: 6_000,
        throttle_for_ms: 200,
        ..Mood::default()
    });
    let database = fresh_database();
    // One delivery in twelve or so dies or fails here, so that some page meets five in a row once in hundreds of runs;
    // that few meet more than two is looked at below.
    let source = format!(
        "url = \"{url}\"\nrate = \"{RATE}/s\"\npage_limit = 50\nmax_partitions = {PARTITIONS}\nmax_deliveries = 10"
    );
    let start = async || {
        let env = [("DATABASE_URL", database.as_str()), ("SOLELY__STORE__MAX_CONNECTIONS", "6")];
        Server::start_with(folder(&source), &env).await
    };
    let mut servers = vec![start().await, start().await, start().await];
    let (status, started) = servers[0].post("/v1/runs", json!({"source": "diamonds"})).await;
    assert_eq!(status, 202, "{started}");
    let run = started["runId"].as_str().expect("an id").to_owned();
    let (began, mut kills) = (Instant::now(), 0);
    let state = loop {
        let next = tokio::time::Instant::now() + Duration::from_secs(1);
        if let Some(state) = look(&servers, &run).await
            && !["scheduling", "running", "consolidating"].contains(&state["status"].as_str().unwrap_or(""))
        {
            break state;
        }
        assert!(began.elapsed() < Duration::from_secs(240), "it ends: {:#?}", look(&servers, &run).await);
        servers[kills % 3] = start().await;
        kills += 1;
        tokio::time::sleep_until(next).await;
    };
    println!("{kills} kills in {:?}", began.elapsed());
    assert_eq!(state["status"], "completed", "{state:#}");
    // A page that waits for its turn is not in anybody's hands for long: few meet two deaths.
    let delivered = async |attempts| {
        let sql = format!("SELECT count(*) FROM jobs WHERE queue = 'work-items' AND attempts {attempts}");
        count(&database, &sql).await
    };
    let (pages, again) = (delivered("> 0").await, delivered("> 2").await);
    println!("{} of {pages} pages delivered twice, {again} more often", delivered("= 2").await);
    assert!(again * 25 <= pages, "{again} of {pages} pages were delivered more than twice");
    assert!(kills >= 5, "{kills}");
    let all = json!(STONES);
    assert_eq!((&state["recordsProcessed"], &state["consolidation"]["added"]), (&all, &all));
    assert_eq!(state["expectedWorkers"], json!(PARTITIONS));
    assert_eq!(count(&database, "SELECT count(*) FROM records").await, 100_000);
    assert_eq!(count(&database, "SELECT count(DISTINCT id) FROM records").await, 100_000);
    for (queue, expected) in [("work-done", PARTITIONS), ("consolidate", 1)] {
        let sql = format!("SELECT count(*) FROM jobs WHERE queue = '{queue}'");
        assert_eq!(count(&database, &sql).await, i64::try_from(expected).expect("small"), "{queue}");
    }
    let minimum: u64 = state["partitions"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|partition| partition["nextOffset"].as_u64().expect("a number") / 50 + 1)
        .sum();
    let fetched: u64 = sandbox.pages().values().sum();
    println!("{fetched} pages fetched, {minimum} at least");
    assert!(fetched * 10 <= minimum * 11, "{fetched} pages fetched where {minimum} would do");
    let times = sandbox.times();
    for window in times.windows(RATE + 1) {
        let took = window[RATE] - window[0];
        assert!(took >= Duration::from_secs(1), "{} calls in {took:?}", RATE + 1);
    }
    let output = crate::server::solely(servers[0].folder.path())
        .args(["check"])
        .env("DATABASE_URL", &database)
        .output()
        .expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The document's integration scenario: start a run, look at its progress, kill the worker in the
/// middle of a page, see that no offset goes back and that everything completes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documents_integration_scenario() {
    let (sandbox, url) = sandbox(600).await;
    sandbox.set_mood(Mood { latency_ms: 30, ..Mood::default() });
    let source = format!("url = \"{url}\"\nrate = \"\"\nmin_records_per_partition = 100\nmax_partitions = 4");
    let mut server = Server::start_in(folder(&source)).await;
    let (_, started) = server.post("/v1/runs", json!({"source": "diamonds"})).await;
    let run = started["runId"].as_str().expect("an id").to_owned();
    let progress = |server: &Server| -> Vec<(String, i64)> {
        let conn = rusqlite::Connection::open(server.file()).expect("opens");
        let mut look = conn
            .prepare("SELECT partition_id, next_offset FROM partition_progress WHERE run_id = ?1 ORDER BY 1")
            .expect("the document's table");
        let rows = look.query_map([&run], |row| Ok((row.get(0)?, row.get(1)?))).expect("reads");
        rows.map(|row| row.expect("a row")).collect()
    };
    let mut before: Vec<(String, i64)> = Vec::new();
    for kill in 1..=3_i64 {
        let deadline = Instant::now() + Duration::from_secs(30);
        while progress(&server).iter().map(|(_, offset)| offset).sum::<i64>() < kill * 100 {
            assert!(Instant::now() < deadline, "{:?}", progress(&server));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server = server.replaced().await;
        let after = progress(&server);
        for ((partition, was), (_, is)) in before.iter().zip(&after) {
            assert!(is >= was, "{partition} went back from {was} to {is}");
        }
        before = after;
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while server.get(&format!("/v1/runs/{run}")).await["status"] != "completed" {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let conn = rusqlite::Connection::open(server.file()).expect("opens");
    let complete: i64 = conn
        .query_row(
            "SELECT count(*) FROM partition_progress WHERE run_id = ?1 AND completed = true",
            [&run],
            |row| row.get(0),
        )
        .expect("counts");
    assert_eq!(usize::try_from(complete).expect("few"), before.len());
    assert_eq!(server.get(&format!("/v1/runs/{run}")).await["recordsProcessed"], json!(600));
}

/// A page that kills its worker every time ends as a dead letter; its partition has failed with the
/// reason, the rest of the run is unharmed. Healed and retried, it goes on from where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_kills_its_worker_is_given_up() {
    let (sandbox, url) = sandbox(400).await;
    let source = format!("url = \"{url}\"\nrate = \"\"\nmax_deliveries = 2\nmax_partitions = 2");
    let mut server = Server::start_in(folder(&source)).await;
    // The first price has few stones: only the others get as far as this page.
    let split = sandbox.look(|all| all.stones()[20].dollars());
    sandbox.set_mood(Mood { hang_offset: Some(90), ..Mood::default() });
    let partitions = json!([
        {"partitionId": "few", "minPrice": 0, "maxPrice": split},
        {"partitionId": "many", "minPrice": split + 1, "maxPrice": 250_000},
    ]);
    let (_, started) = server.post("/v1/runs", json!({"source": "diamonds", "partitions": partitions})).await;
    let path = format!("/v1/runs/{}", started["runId"].as_str().expect("an id"));
    for delivery in 1..=2 {
        let deadline = Instant::now() + Duration::from_secs(60);
        while sandbox.count_of("feed hang") < delivery {
            assert!(Instant::now() < deadline, "delivery {delivery}: {:#}", server.get(&path).await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server = server.replaced().await;
    }
    let failed = async |server: &Server| {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let state = server.get(&path).await;
            if state["status"] == "failed" {
                return state;
            }
            assert!(Instant::now() < deadline, "{state:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let state = failed(&server).await;
    let (few, many) = (&state["partitions"][0], &state["partitions"][1]);
    assert_eq!(few["status"], "completed", "unharmed");
    assert_eq!((&many["status"], &many["nextOffset"]), (&json!("failed"), &json!(90)));
    assert!(many["error"].as_str().expect("a reason").contains("MaxDeliveryCountExceeded"), "{many}");
    assert_eq!(state["consolidation"]["status"], "skipped");
    let dead = server.get("/v1/dead-letters?queue=work-items").await;
    assert_eq!(dead["items"].as_array().map(Vec::len), Some(1));
    sandbox.set_mood(Mood::default());
    let before = sandbox.pages().keys().filter(|(.., offset)| *offset < 90).count();
    let (status, answer) = server.post(&format!("{path}/partitions/many/retry"), json!({})).await;
    assert_eq!((status, &answer["status"]), (200, &json!("running")), "{answer:#}");
    let deadline = Instant::now() + Duration::from_secs(30);
    while server.get(&path).await["status"] != "completed" {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(server.get(&path).await["recordsProcessed"], json!(400));
    assert_eq!(sandbox.pages().keys().filter(|(.., offset)| *offset < 90).count(), before);
    assert!(sandbox.pages().values().all(|times| *times == 1), "no page was fetched twice");
}
