//! Jobs on the embedded store: enqueue one by one, and drain.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use async_trait::async_trait;
use solely_core::bus::Bus;
use solely_core::job::NewJob;
use solely_core::metrics::Metrics;
use solely_core::queue::Jobs;
use solely_core::worker::{Delivery, Done, Failure, Handler, QueueSpec, Worker};
use solely_core::{Json, ProcessId, Store};
use solely_sqlite::{Options, SqliteStore};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::report::{Goal, Report};
use crate::{Scale, bare};

pub(crate) const IN_FLIGHT: usize = 64;
const BARE: &str = "bare group commit at 64";

pub(crate) async fn run(report: &mut Report, scale: Scale) -> Result<()> {
    let mut bare_rows = Vec::new();
    let (mut enqueued, mut enqueue_rows, mut drained, mut drain_rows) = (vec![], vec![], vec![], vec![]);
    let mut latency = Vec::new();
    for _ in 0..scale.rounds {
        bare_rows.push(tokio::task::spawn_blocking(move || bare::group_commit(scale.operations)).await??);
        let folder = tempfile::tempdir()?;
        let url = format!("sqlite:{}", folder.path().join("jobs.db").display());
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&url, &Options::default())?);
        let jobs = Jobs::new(store.clone(), Bus::new(), Arc::new(Metrics::default()));
        let per_second = enqueue(&jobs, scale.operations).await?;
        enqueued.push(per_second);
        enqueue_rows.push(per_second);
        let per_second = drain(&jobs, scale.operations).await;
        drained.push(per_second);
        // A delivery writes its row twice: claimed, completed.
        drain_rows.push(2.0 * per_second);
        latency.push(idle_start(&jobs).await?);
        store.close().await;
    }
    let goal = || Goal::AtLeast { mark: "B5", limit: BARE, times: 0.5 };
    report.add(BARE, "rows/s", bare_rows, Goal::None);
    report.add("jobs enqueued one by one, 64 in flight", "jobs/s", enqueued, Goal::None);
    report.add("… counting row writes (one a job)", "rows/s", enqueue_rows, goal());
    report.add("jobs drained, 64 at once", "jobs/s", drained, Goal::None);
    report.add("… counting row writes (two a job)", "rows/s", drain_rows, goal());
    report.add("idle, enqueue to start", "ms", latency, Goal::None);
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

/// From the start of a worker to the last completion in the file.
async fn drain(jobs: &Jobs, count: usize) -> f64 {
    let handler = Arc::new(Count { left: AtomicUsize::new(count), done: Notify::new() });
    let (stop, worker) = worker(jobs, handler.clone());
    let started = Instant::now();
    handler.done.notified().await;
    stop.cancel();
    let _ = worker.await;
    rate(count, started.elapsed())
}

fn worker(jobs: &Jobs, handler: Arc<Count>) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let mut spec = QueueSpec::new("bench", handler);
    spec.concurrency = IN_FLIGHT;
    let worker = Worker {
        jobs: jobs.clone(),
        process: ProcessId::random(),
        queues: vec![spec],
        grace: Duration::from_secs(5),
    };
    let stop = CancellationToken::new();
    (stop.clone(), tokio::spawn(worker.run(stop)))
}

/// The median time from asking for a job to its handler being called, with nothing else to do.
async fn idle_start(jobs: &Jobs) -> Result<f64> {
    let mut times = Vec::new();
    let handler = Arc::new(Count { left: AtomicUsize::new(1), done: Notify::new() });
    let (stop, worker) = worker(jobs, handler.clone());
    for n in 0..50 {
        handler.left.store(1, Ordering::Relaxed);
        let started = Instant::now();
        jobs.enqueue(vec![NewJob::new("bench", format!("idle-{n}"))]).await?;
        handler.done.notified().await;
        times.push(started.elapsed().as_secs_f64() * 1_000.0);
    }
    stop.cancel();
    let _ = worker.await;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

#[expect(clippy::cast_precision_loss, reason = "a count of operations")]
pub(crate) fn rate(count: usize, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}
