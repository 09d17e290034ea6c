//! A process for fault tests to kill: it works pages, or it enqueues and says what was
//! acknowledged. Which guards hold and where it dies is in its environment.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use solely_conformance::paged::{Pages, WORK_ITEMS};
use solely_core::bus::Bus;
use solely_core::fault::Guards;
use solely_core::job::NewJob;
use solely_core::metrics::Metrics;
use solely_core::queue::Jobs;
use solely_core::store::Retention;
use solely_core::upkeep::Upkeep;
use solely_core::worker::{Delivery, Done, Failure, Handler, QueueSpec, Worker};
use solely_core::{ProcessId, Store};
use solely_sqlite::{Options, SqliteStore};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [mode, url, rest @ ..] = args.as_slice() else { bail!("subject MODE URL …") };
    match mode.as_str() {
        "work" => work(open(url).await?, Duration::from_secs(120), Arc::new(Pages)).await,
        "brief" => work(open(url).await?, Duration::from_secs(1), Arc::new(Pages)).await,
        "stall" => work(open(url).await?, Duration::from_secs(2), Arc::new(Stalls)).await,
        "enqueue" => {
            let count = rest.first().context("how many")?.parse()?;
            enqueue(&Arc::new(open_sqlite(url)?), count).await
        }
        other => bail!("no mode {other}"),
    }
}

async fn open(url: &str) -> Result<Arc<dyn Store>> {
    if url.starts_with("sqlite:") {
        return Ok(Arc::new(open_sqlite(url)?));
    }
    let options =
        solely_postgres::Options { guards: Guards::from_env(), max_connections: 6, ..Default::default() };
    Ok(Arc::new(solely_postgres::PostgresStore::open(url, &options).await?))
}

fn open_sqlite(url: &str) -> Result<SqliteStore> {
    let options = Options { guards: Guards::from_env(), ..Options::default() };
    Ok(SqliteStore::open(url, &options)?)
}

/// Works until nothing is left.
async fn work(store: Arc<dyn Store>, lock: Duration, handler: Arc<dyn Handler>) -> Result<()> {
    let jobs = Jobs::new(store.clone(), Bus::new(), Arc::new(Metrics::default()));
    let process = ProcessId::random();
    let mut spec = QueueSpec::new(WORK_ITEMS, handler);
    spec.lock = lock;
    let upkeep = Upkeep::new(jobs.clone(), process, std::slice::from_ref(&spec), Retention::default());
    let (stop_worker, stop_upkeep) = (CancellationToken::new(), CancellationToken::new());
    upkeep.beat().await?;
    upkeep.rescue().await?;
    let upkeep = tokio::spawn(upkeep.run(stop_upkeep.clone()));
    let worker = Worker { jobs, process, queues: vec![spec], grace: Duration::from_secs(5) };
    let worker = tokio::spawn(worker.run(stop_worker.clone()));
    loop {
        let queues = store.queues().await?;
        let left = queues.iter().find(|queue| queue.name == WORK_ITEMS);
        if left.is_none_or(|queue| queue.ready + queue.running == 0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop_worker.cancel();
    worker.await?;
    stop_upkeep.cancel();
    upkeep.await?;
    Ok(())
}

/// Says that it begins, and goes on with its first delivery when it is told to: the test stops
/// the process in the middle of it.
struct Stalls;

#[async_trait]
impl Handler for Stalls {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        say(&format!("begun {}", delivery.job.attempts));
        if delivery.job.attempts == 1 {
            let told = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await;
            told.expect("waits").expect("is told");
        }
        say(&format!("ended {}", delivery.job.attempts));
        Pages.handle(delivery).await
    }
}

/// Enqueues with 64 in flight, and says which jobs were acknowledged and how many commits that
/// took.
async fn enqueue(store: &Arc<SqliteStore>, count: usize) -> Result<()> {
    say("begin");
    let before = store.counts().now();
    let per_task = count.div_ceil(64);
    let tasks = (0..64).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in (task * per_task)..((task + 1) * per_task).min(count) {
                let job = NewJob::new("acknowledged", format!("{}-{n}", std::process::id()));
                let id = job.id;
                solely_core::job::JobStore::enqueue(&*store, vec![job]).await?;
                say(&id.to_string());
            }
            anyhow::Ok(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    say(&format!("commits {}", (store.counts().now() - before).commits));
    Ok(())
}

/// One whole line, in one write, so that a kill leaves no half of it.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("{line}\n").as_bytes());
    let _ = out.flush();
}
