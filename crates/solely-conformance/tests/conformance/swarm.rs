//! Several processes on one PostgreSQL database, killed and paused: every page exactly once.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use solely_conformance::paged::{Numbers, Run, violations};
use solely_conformance::seed;
use solely_core::StoreError;
use solely_core::check::CheckStore as _;
use solely_core::fault::{BREAK_ENV, CRASH_ENV, CRASH_POINTS};
use solely_core::job::JobStore as _;
use solely_postgres::{Options, PostgresStore};
use tokio_postgres::NoTls;

use crate::crash::finish;
use crate::postgres::fresh_database;

const PROCESSES: usize = 3;

/// The checker's own connection.
struct Sql(tokio_postgres::Client);

#[async_trait]
impl Numbers for Sql {
    async fn number(&self, sql: &str) -> Result<i64, StoreError> {
        let row = self.0.query_one(sql, &[]).await.map_err(|error| StoreError::Refused(error.to_string()))?;
        Ok(row.get(0))
    }
}

struct Site {
    url: String,
    broken: &'static str,
    checker: Sql,
    tool: PostgresStore,
}

impl Site {
    async fn new(broken: &'static str) -> Self {
        let url = fresh_database().await;
        let tool = PostgresStore::open(&url, &Options::default()).await.expect("opens");
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connects");
        tokio::spawn(connection);
        Self { url, broken, checker: Sql(client), tool }
    }

    fn spawn(&self, crash: Option<String>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_subject"));
        command.arg("brief").arg(&self.url).env(BREAK_ENV, self.broken);
        if let Some(crash) = crash {
            command.env(CRASH_ENV, crash);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts")
    }

    async fn begin(&self, run: &Run) {
        self.tool.enqueue(run.first_messages()).await.expect("enqueues");
    }

    async fn violations(&self, runs: &[Run]) -> Vec<String> {
        violations(&self.checker, runs).await.expect("reads")
    }
}

fn signal(child: &Child, signal: Signal) {
    let _ = kill(Pid::from_raw(i32::try_from(child.id()).expect("a pid")), signal);
}

fn run(n: usize) -> Run {
    Run { id: format!("run-{n}"), partitions: 6, records: 603, limit: 5 }
}

/// Harms a process at random and puts another in its place.
async fn harm(site: &Site, child: &mut Child, rng: &mut SmallRng) {
    if rng.random_bool(0.3) {
        // Paused beyond its lock, then continued: what it had in hand is another's by then.
        signal(child, Signal::SIGSTOP);
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        signal(child, Signal::SIGCONT);
        return;
    }
    let _ = child.kill();
    let _ = child.wait();
    let point = CRASH_POINTS[rng.random_range(0..CRASH_POINTS.len())];
    let crash = rng.random_bool(0.5).then(|| format!("{point}:{}", rng.random_range(1..40)));
    *child = site.spawn(crash);
}

async fn torture(site: &Site, harms: usize) -> Vec<Run> {
    let mut rng = SmallRng::seed_from_u64(seed::seed());
    let mut runs = vec![run(0)];
    site.begin(&runs[0]).await;
    let mut children: Vec<Child> = (0..PROCESSES).map(|_| site.spawn(None)).collect();
    for _ in 0..harms {
        tokio::time::sleep(Duration::from_millis(rng.random_range(20..250))).await;
        harm(site, &mut children[rng.random_range(0..PROCESSES)], &mut rng).await;
        for child in &mut children {
            if child.try_wait().expect("waits").is_some_and(|status| status.success()) {
                runs.push(run(runs.len()));
                site.begin(&runs[runs.len() - 1]).await;
                *child = site.spawn(None);
            }
        }
    }
    for child in &mut children {
        let _ = child.kill();
        let _ = child.wait();
    }
    println!("{harms} harms, {} runs", runs.len());
    assert!(finish(&mut site.spawn(None)), "the work is finished in peace");
    runs
}

/// Kills, crashes at every step and pauses beyond the lock, three processes at once.
#[tokio::test]
async fn every_page_exactly_once_on_postgres_with_three_processes() {
    let site = Site::new("").await;
    let runs = torture(&site, 30).await;
    assert_eq!(site.violations(&runs).await, Vec::<String>::new());
    assert_eq!(site.tool.check().await.expect("checks").violations, []);
}

/// The twin: with the effect outside the transaction, a process that dies between the two
/// strands its partition.
#[tokio::test]
async fn without_the_page_transaction_pages_are_stranded_on_postgres() {
    let site = Site::new("page-transaction").await;
    let run = run(0);
    site.begin(&run).await;
    let mut child = site.spawn(Some("settle.committed:3".to_owned()));
    assert!(!finish(&mut child), "it dies between effect and completion");
    assert!(finish(&mut site.spawn(None)), "the rest is finished in peace");
    let wrong = site.violations(&[run]).await;
    println!("{wrong:#?}");
    assert!(!wrong.is_empty(), "the checker can fail");
}

/// Ten that start at once on an empty database migrate it once, and all of them run.
#[tokio::test]
async fn ten_that_start_at_once_migrate_it_once() {
    let url = fresh_database().await;
    let openers = (0..10).map(|_| {
        let url = url.clone();
        tokio::spawn(async move {
            let options = Options { max_connections: 2, ..Options::default() };
            PostgresStore::open(&url, &options).await.map(drop)
        })
    });
    for opener in openers.collect::<Vec<_>>() {
        opener.await.expect("ends").expect("opens");
    }
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connects");
    tokio::spawn(connection);
    let steps = Sql(client).number("SELECT count(*) FROM schema_version").await.expect("counts");
    assert_eq!(steps, i64::from(solely_postgres::LATEST_VERSION));
}
