//! apalis on `PostgreSQL`, driven the way our own jobs are: `apalis-peer MODE N`
//!
//! MODE is `enqueue`, `drain` or `idle`; the database is `DATABASE_URL`. One JSON line on stdout. What an earlier run
//! left behind is removed first.

use std::env::{args, var};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_postgres::{Config, PgPool, PostgresStorage};
use serde_json::json;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const IN_FLIGHT: usize = 64;
const WARM_UP: usize = 300;
const BULK: usize = 1_000;
/// Nothing waits longer than this: a lost job shall fail, not hang.
const PATIENCE: Duration = Duration::from_secs(120);

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Outcome<T> = Result<T, Failure>;
/// The number of the job, and something to carry.
type Job = (usize, String);

/// A setting that can be tried without building again.
fn setting(name: &str, otherwise: usize) -> usize {
    var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn job(n: usize) -> Job {
    (n, "x".repeat(100))
}

/// Counts the runs of each job: all of them, each once.
struct Tally {
    runs: Vec<AtomicU8>,
    handled: AtomicUsize,
    all: Notify,
    one: Notify,
}

impl Tally {
    fn new(count: usize) -> Arc<Self> {
        let runs = (0..count).map(|_| AtomicU8::new(0)).collect();
        Arc::new(Self { runs, handled: AtomicUsize::new(0), all: Notify::new(), one: Notify::new() })
    }

    fn mark(&self, n: usize) {
        if let Some(runs) = self.runs.get(n) {
            runs.fetch_add(1, Ordering::Relaxed);
        }
        if self.handled.fetch_add(1, Ordering::Relaxed) + 1 == self.runs.len() {
            self.all.notify_one();
        }
        self.one.notify_one();
    }

    fn check(&self) -> Outcome<()> {
        let once = self.runs.iter().filter(|runs| runs.load(Ordering::Relaxed) == 1).count();
        let handled = self.handled.load(Ordering::Relaxed);
        if once == self.runs.len() && handled == self.runs.len() {
            return Ok(());
        }
        Err(format!("{handled} runs of {} jobs, {once} ran exactly once", self.runs.len()).into())
    }
}

async fn handle((n, _): Job, tally: Data<Arc<Tally>>) -> Result<(), BoxDynError> {
    tally.mark(n);
    Ok(())
}

fn storage(pool: &PgPool, batch: usize) -> PostgresStorage<Job> {
    // A claimed job is its worker's already; locking it once more would be one more write. Results are its
    // completions: without them nothing would say that a job is done.
    let config = Config::default().queue("peer").batch_size(batch).lock_tasks(false).persist_results(true);
    PostgresStorage::new(pool).with_config(config)
}

/// Workers, woken by notifications; the interval is for those that come while a fetch is under way, which are lost.
fn start(
    pool: &PgPool,
    tally: &Arc<Tally>,
    workers: usize,
    batch: usize,
) -> Vec<(WorkerContext, JoinHandle<Outcome<()>>)> {
    let interval = Duration::from_millis(setting("INTERVAL_MS", 10) as u64);
    let start = |n: usize| {
        // A name stands for one worker, for ever: a new one for each.
        let context = WorkerContext::new(&format!("peer-{n}-of-{}", tally.runs.len()));
        let backend =
            storage(pool, batch).with_pubsub().poll_with_strategy(Strategy::new().interval(interval));
        let worker = WorkerBuilder::new(&context).backend(backend).data(tally.clone()).build(handle);
        let run =
            tokio::spawn(async move { worker.run().await.map_err(|error| Failure::from(error.to_string())) });
        (context, run)
    };
    (0..workers).map(start).collect()
}

async fn stop(workers: Vec<(WorkerContext, JoinHandle<Outcome<()>>)>) -> Outcome<()> {
    for (context, run) in workers {
        context.stop().map_err(|error| error.to_string())?;
        timeout(PATIENCE, run).await???;
    }
    Ok(())
}

async fn connect(connections: u32) -> Outcome<PgPool> {
    let pool = PgPoolOptions::new().max_connections(connections).connect(&var("DATABASE_URL")?).await?;
    sqlx::query("DROP SCHEMA IF EXISTS apalis CASCADE").execute(&pool).await?;
    PostgresStorage::setup(&pool).await?;
    Ok(pool)
}

/// So many clients, each adding one job after the other.
async fn add_one_by_one(pool: &PgPool, count: usize) -> Outcome<()> {
    let clients = (0..IN_FLIGHT).map(|client| {
        let mut storage = storage(pool, 1);
        tokio::spawn(async move {
            for n in (client..count).step_by(IN_FLIGHT) {
                storage.push(job(n)).await.map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(())
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await??;
    }
    Ok(())
}

async fn add_all(pool: &PgPool, count: usize) -> Outcome<()> {
    let mut storage = storage(pool, BULK);
    for from in (0..count).step_by(BULK) {
        let jobs = (from..count.min(from + BULK)).map(job).collect();
        storage.push_bulk(jobs).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn enqueue(count: usize) -> Outcome<serde_json::Value> {
    let pool = connect(u32::try_from(setting("CONNECTIONS", 8))?).await?;
    add_one_by_one(&pool, WARM_UP).await?;
    let began = Instant::now();
    add_one_by_one(&pool, count).await?;
    Ok(json!({"perSecond": per_second(count, began.elapsed())}))
}

/// From the start of the workers, connected already, to the last completion in the store.
async fn drained(pool: &PgPool, count: usize) -> Outcome<Duration> {
    sqlx::query("TRUNCATE apalis.jobs").execute(pool).await?;
    add_all(pool, count).await?;
    // Plans as after a while of running; the counting of rows is not left to chance.
    sqlx::query("ANALYZE apalis.jobs").execute(pool).await?;
    let tally = Tally::new(count);
    let began = Instant::now();
    let workers = start(pool, &tally, setting("WORKERS", 2), setting("BATCH", 1_000));
    timeout(PATIENCE, tally.all.notified()).await.map_err(|_| "not every job was handled")?;
    let open = "SELECT EXISTS (SELECT FROM apalis.jobs WHERE status <> 'Done')";
    while sqlx::query_scalar::<_, bool>(open).fetch_one(pool).await? {
        if began.elapsed() > PATIENCE {
            return Err("not every completion was stored".into());
        }
        sleep(Duration::from_millis(1)).await;
    }
    let took = began.elapsed();
    stop(workers).await?;
    tally.check()?;
    Ok(took)
}

async fn drain(count: usize) -> Outcome<serde_json::Value> {
    let pool = connect(12).await?;
    drained(&pool, WARM_UP).await?;
    let took = drained(&pool, count).await?;
    Ok(json!({"perSecond": per_second(count, took)}))
}

/// With nothing else to do: from the beginning of the call that adds a job to its handler being called.
async fn idle(count: usize) -> Outcome<serde_json::Value> {
    let pool = connect(4).await?;
    let tally = Tally::new(WARM_UP + count);
    let workers = start(&pool, &tally, 1, 1);
    let mut storage = storage(&pool, 1);
    let mut times = Vec::with_capacity(WARM_UP + count);
    for n in 0..WARM_UP + count {
        let began = Instant::now();
        let started = async {
            tally.one.notified().await;
            began.elapsed()
        };
        let (added, started) = tokio::join!(storage.push(job(n)), timeout(PATIENCE, started));
        added.map_err(|error| error.to_string())?;
        times.push(started.map_err(|_| format!("job {n} did not start"))?.as_secs_f64() * 1_000.0);
    }
    stop(workers).await?;
    tally.check()?;
    let mut times = times.split_off(WARM_UP);
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| (times[times.len() * percent / 100] * 1_000.0).round() / 1_000.0;
    Ok(json!({"p50": at(50), "p99": at(99)}))
}

fn per_second(count: usize, took: Duration) -> f64 {
    (count as f64 / took.as_secs_f64() * 10.0).round() / 10.0
}

async fn run() -> Outcome<()> {
    let usage = "usage: apalis-peer enqueue|drain|idle N";
    let [mode, count] = args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| usage)?;
    let count: usize = count.parse().ok().filter(|count| *count > 0).ok_or(usage)?;
    let mut line = match mode.as_str() {
        "enqueue" => enqueue(count).await?,
        "drain" => drain(count).await?,
        "idle" => idle(count).await?,
        _ => return Err(usage.into()),
    };
    line["peer"] = json!("apalis");
    line["mode"] = json!(mode);
    line["n"] = json!(count);
    println!("{line}");
    Ok(())
}

#[tokio::main]
async fn main() {
    if let Err(error) = run().await {
        eprintln!("apalis-peer: {error}");
        std::process::exit(1);
    }
}
