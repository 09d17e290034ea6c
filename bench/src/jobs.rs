//! Jobs: enqueue one by one, drain, and start when idle; on each engine beside its bare limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use async_trait::async_trait;
use solely_core::bus::Bus;
use solely_core::job::NewJob;
use solely_core::liveness::Beat;
use solely_core::metrics::Metrics;
use solely_core::queue::Jobs;
use solely_core::worker::{Delivery, Done, Failure, Handler, QueueSpec, Worker};
use solely_core::{Json, ProcessId, Store, limits};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::engine::{Postgres, sqlite};
use crate::report::{Goal, Report};
use crate::{Scale, bare, bare_postgres};

pub(crate) const IN_FLIGHT: usize = 64;
const BARE: &str = "bare group commit at 64";
const BARE_INSERT: &str = "bare PostgreSQL: inserts, 64 rows under way";
const BARE_DRAIN: &str = "bare PostgreSQL: claims and completions, 64 rows under way";

/// One round of one engine.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) enqueued: Vec<f64>,
    pub(crate) drained: Vec<f64>,
    pub(crate) idle_p50: Vec<f64>,
    pub(crate) idle_p99: Vec<f64>,
}

impl Measured {
    /// A drain has so many jobs under way at once.
    pub(crate) async fn round(
        &mut self,
        store: Arc<dyn Store>,
        operations: usize,
        at_once: usize,
    ) -> Result<()> {
        let bus = Bus::new();
        store.connect_bus(&bus);
        let jobs = Jobs::new(store.clone(), bus, Arc::new(Metrics::default()));
        self.enqueued.push(enqueue(&jobs, operations).await?);
        self.drained.push(drain(&jobs, operations, at_once).await?);
        let (p50, p99) = idle_start(&jobs).await?;
        self.idle_p50.push(p50);
        self.idle_p99.push(p99);
        store.close().await;
        Ok(())
    }
}

/// A delivery writes its row twice: claimed, completed.
fn twice(rates: &[f64]) -> Vec<f64> {
    rates.iter().map(|rate| 2.0 * rate).collect()
}

pub(crate) async fn run(report: &mut Report, scale: Scale) -> Result<()> {
    on_sqlite(report, scale).await?;
    on_postgres(report, scale).await
}

async fn on_sqlite(report: &mut Report, scale: Scale) -> Result<()> {
    let (mut bare_rows, mut measured) = (Vec::new(), Measured::default());
    for _ in 0..scale.rounds {
        bare_rows.push(tokio::task::spawn_blocking(move || bare::group_commit(scale.operations)).await??);
        let folder = tempfile::tempdir()?;
        measured.round(sqlite(&folder)?, scale.operations, IN_FLIGHT).await?;
    }
    let goal = || Goal::AtLeast { mark: "B5", limit: BARE, times: 0.5 };
    report.add(BARE, "rows/s", bare_rows, Goal::None);
    report.add("jobs enqueued one by one, 64 in flight", "jobs/s", measured.enqueued.clone(), Goal::None);
    report.add("… counting row writes (one a job)", "rows/s", measured.enqueued, goal());
    report.add("jobs drained, 64 at once", "jobs/s", measured.drained.clone(), Goal::None);
    report.add("… counting row writes (two a job)", "rows/s", twice(&measured.drained), goal());
    report.add("idle, enqueue to start, p50", "ms", measured.idle_p50, Goal::None);
    report.add("idle, enqueue to start, p99", "ms", measured.idle_p99, Goal::None);
    Ok(())
}

async fn on_postgres(report: &mut Report, scale: Scale) -> Result<()> {
    let postgres = Postgres::start();
    let (mut inserts, mut drains, mut measured) = (Vec::new(), Vec::new(), Measured::default());
    for _ in 0..scale.rounds {
        let url = postgres.database().await?;
        inserts.push(bare_postgres::insert(&url, scale.operations).await?);
        drains.push(bare_postgres::drain(&url, scale.operations).await?);
        measured.round(postgres.store().await?, scale.operations, IN_FLIGHT).await?;
    }
    let of = |limit| Goal::Ratio { mark: "B4", limit };
    report.add(BARE_INSERT, "rows/s", inserts, Goal::None);
    report.add(
        "PostgreSQL: jobs enqueued one by one, 64 in flight",
        "jobs/s",
        measured.enqueued,
        of(BARE_INSERT),
    );
    report.add(BARE_DRAIN, "jobs/s", drains, Goal::None);
    report.add("PostgreSQL: jobs drained, 64 at once", "jobs/s", measured.drained, of(BARE_DRAIN));
    report.add("PostgreSQL: idle, enqueue to start, p50", "ms", measured.idle_p50, Goal::None);
    report.add("PostgreSQL: idle, enqueue to start, p99", "ms", measured.idle_p99, Goal::None);
    Ok(())
}

async fn enqueue(jobs: &Jobs, count: usize) -> Result<f64> {
    let started = Instant::now();
    let clients = jobs.clone();
    in_flight(count, move |n| {
        let jobs = clients.clone();
        async move {
            let mut job = NewJob::new("bench", format!("key-{n}"));
            job.payload = Json::of(&"x".repeat(100));
            jobs.enqueue(vec![job]).await?;
            Ok(())
        }
    })
    .await?;
    Ok(rate(count, started.elapsed()))
}

/// So many clients, each asking for one thing after the other.
pub(crate) async fn in_flight<F>(
    count: usize,
    work: impl Fn(usize) -> F + Clone + Send + 'static,
) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let clients = (0..IN_FLIGHT).map(|client| {
        let work = work.clone();
        tokio::spawn(async move {
            for n in (client..count).step_by(IN_FLIGHT) {
                work(n).await?;
            }
            anyhow::Ok(())
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await??;
    }
    Ok(())
}

struct Count {
    left: AtomicUsize,
    done: Notify,
}

#[async_trait]
impl Handler for Count {
    async fn handle(&self, _delivery: &Delivery) -> Result<Done, Failure> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.done.notify_one();
        }
        Ok(Done::default())
    }
}

/// From the start of a worker to the last completion in the store.
async fn drain(jobs: &Jobs, count: usize, at_once: usize) -> Result<f64> {
    let handler = Arc::new(Count { left: AtomicUsize::new(count), done: Notify::new() });
    let started = Instant::now();
    let (stop, worker) = worker(jobs, handler.clone(), at_once).await?;
    handler.done.notified().await;
    stop.cancel();
    let _ = worker.await;
    Ok(rate(count, started.elapsed()))
}

async fn worker(
    jobs: &Jobs,
    handler: Arc<Count>,
    at_once: usize,
) -> Result<(CancellationToken, tokio::task::JoinHandle<()>)> {
    let mut spec = QueueSpec::new("bench", handler);
    spec.concurrency = at_once;
    let process = ProcessId::random();
    let worker = Worker { jobs: jobs.clone(), process, queues: vec![spec], grace: Duration::from_secs(5) };
    let stop = CancellationToken::new();
    jobs.store().beat(Beat { process, dead_after: limits::DEAD_AFTER }).await?;
    Ok((stop.clone(), tokio::spawn(worker.run(stop))))
}

/// The times from asking for a job to its handler being called, with nothing else to do: p50, p99.
async fn idle_start(jobs: &Jobs) -> Result<(f64, f64)> {
    let mut times = Vec::new();
    let handler = Arc::new(Count { left: AtomicUsize::new(1), done: Notify::new() });
    let (stop, worker) = worker(jobs, handler.clone(), IN_FLIGHT).await?;
    for n in 0..200 {
        handler.left.store(1, Ordering::Relaxed);
        let started = Instant::now();
        jobs.enqueue(vec![NewJob::new("bench", format!("idle-{n}"))]).await?;
        handler.done.notified().await;
        times.push(started.elapsed().as_secs_f64() * 1_000.0);
    }
    stop.cancel();
    let _ = worker.await;
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], times[times.len() * 99 / 100]))
}

#[expect(clippy::cast_precision_loss, reason = "a count of operations")]
pub(crate) fn rate(count: usize, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}
