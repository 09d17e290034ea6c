//! What a process under torture does: it works feeds, reads and writes entries, asks for places and searches for products.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use solely_core::bus::Bus;
use solely_core::cache::Cache;
use solely_core::companion::Companion;
use solely_core::enrich::EnrichParts;
use solely_core::fault::{BREAK_ENV, Guard, Guards};
use solely_core::feed::{Feed, QUEUES};
use solely_core::lease::Leases;
use solely_core::metrics::Metrics;
use solely_core::products::ProductsParts;
use solely_core::queue::Jobs;
use solely_core::reserve::ReserveParts;
use solely_core::store::Retention;
use solely_core::upkeep::Upkeep;
use solely_core::worker::{QueueSpec, Worker};
use solely_core::{ProcessId, Store};
use solely_postgres::PostgresStore;
use solely_redis::Redis;
use solely_sqlite::{Access, SqliteStore};
use tokio_util::sync::CancellationToken;

use crate::torture::Break;
use crate::{boxes, catalogues, entries, feeds, places};

/// Opens a store, with the guards that the environment leaves.
pub async fn open(url: &str) -> Result<Arc<dyn Store>> {
    let guards = Guards::from_env();
    if url.starts_with("sqlite:") {
        let options = solely_sqlite::Options { guards, ..Default::default() };
        return Ok(Arc::new(SqliteStore::open(url, &options)?));
    }
    let options = solely_postgres::Options { guards, max_connections: 6, ..Default::default() };
    Ok(Arc::new(PostgresStore::open(url, &options).await?))
}

/// Opens a store that other processes have open too, be it a file.
pub async fn open_beside_others(url: &str) -> Result<Arc<dyn Store>> {
    if url.starts_with("sqlite:") {
        let options = solely_sqlite::Options { access: Access::Tool, ..Default::default() };
        return Ok(Arc::new(SqliteStore::open(url, &options)?));
    }
    open(url).await
}

/// What a process has beside its store.
pub struct Beside {
    /// Where Redis is, if there is one.
    pub redis: Option<String>,
    /// Whether processes tell each other anything.
    pub push: bool,
    /// Who asks the upstream, and where it is.
    pub upstream: (reqwest::Client, String),
}

/// Works feeds, reads and writes entries, asks for places and searches for products until told to stop.
pub async fn work_with(
    store: Arc<dyn Store>,
    beside: Beside,
    feed: impl FnOnce(&Jobs) -> Feed,
    stop: CancellationToken,
) -> Result<()> {
    let (bus, metrics) = (Bus::new(), Arc::new(Metrics::default()));
    let mut companion: Option<Arc<dyn Companion>> = None;
    if let Some(url) = &beside.redis {
        let mut forms = solely_core::enrich::forms(&places::config(&beside.upstream.1));
        forms.extend(solely_core::products::forms());
        let options = solely_redis::Options { guards: Guards::from_env(), forms, ..Default::default() };
        let redis = Redis::open(url, options, store.clone(), metrics.clone()).await?;
        companion = Some(Arc::new(redis));
    }
    if beside.push {
        if let Some(companion) = &companion {
            companion.connect_bus(&bus);
        }
        store.connect_bus(&bus);
    }
    let cache = Cache::new(store.clone(), bus.clone(), metrics.clone(), companion.clone());
    let (client, upstream) = beside.upstream;
    let process = ProcessId::random();
    let leases = Leases::new(store.clone(), bus.clone(), metrics.clone()).with_hints(companion.clone());
    let jobs = Jobs::new(store.clone(), bus, metrics.clone());
    let parts = ReserveParts { jobs: jobs.clone(), companion: companion.clone(), client: None };
    let boxes = boxes::reserve(parts);
    let parts = EnrichParts { jobs: jobs.clone(), cache: cache.clone(), companion: companion.clone() };
    let enrich = places::enrich(parts, &upstream)?;
    let parts = ProductsParts { jobs: jobs.clone(), cache: cache.clone(), leases, companion, process };
    let products = catalogues::products(parts, &metrics, &upstream)?;
    let mut queues = feeds::witnessed(&feed(&jobs), |handler| handler);
    queues.extend(enrich.queues());
    queues.extend(products.queues());
    let mut traffic = tokio::task::JoinSet::new();
    if drives(&[Guard::CopiesFollow]) {
        traffic.spawn(entries::traffic(store, cache, client.clone(), upstream.clone()));
    }
    if drives(&[Guard::Dedupe, Guard::Replay]) {
        traffic.spawn(places::traffic(enrich, client.clone(), upstream.clone()));
    }
    if drives(&[Guard::SingleFlight]) {
        traffic.spawn(catalogues::traffic(products, client.clone(), upstream.clone()));
    }
    if drives(&[Guard::Decrement, Guard::OneActive]) {
        traffic.spawn(boxes::traffic(boxes, client, upstream));
    }
    let worked = work_as(process, jobs, queues, stop).await;
    traffic.shutdown().await;
    worked
}

/// Whether a system is driven that these guards are of: all are, but where one is off, it alone.
fn drives(of: &[Guard]) -> bool {
    let off = |guard: &Guard| !Guards::from_env().hold(*guard);
    let any = Break::ALL.iter().any(|broken| std::env::var(BREAK_ENV).is_ok_and(|off| off == broken.name()));
    !any || of.iter().any(off)
}

/// Jobs of a store, with wake-ups from other processes.
pub fn jobs(store: Arc<dyn Store>) -> Jobs {
    let bus = Bus::new();
    store.connect_bus(&bus);
    Jobs::new(store, bus, Arc::new(Metrics::default()))
}

/// Works queues until told to stop.
pub async fn work_on(jobs: Jobs, queues: Vec<QueueSpec>, stop: CancellationToken) -> Result<()> {
    work_as(ProcessId::random(), jobs, queues, stop).await
}

async fn work_as(
    process: ProcessId,
    jobs: Jobs,
    queues: Vec<QueueSpec>,
    stop: CancellationToken,
) -> Result<()> {
    let upkeep = Upkeep::new(jobs.clone(), process, &queues, Retention::default());
    let stop_upkeep = CancellationToken::new();
    upkeep.beat().await?;
    upkeep.rescue().await?;
    let upkeep = tokio::spawn(upkeep.run(stop_upkeep.clone()));
    let worker = Worker { jobs, process, queues, grace: Duration::from_secs(5) };
    worker.run(stop).await;
    stop_upkeep.cancel();
    upkeep.await?;
    Ok(())
}

/// Works queues until nothing of any feed is left.
pub async fn work_all(jobs: Jobs, queues: Vec<QueueSpec>) -> Result<()> {
    let (stop, store) = (CancellationToken::new(), jobs.store().clone());
    let working = tokio::spawn(work_on(jobs, queues, stop.clone()));
    loop {
        let left = store.queues().await?;
        let ours = |name: &str| QUEUES.contains(&name);
        if left.iter().filter(|queue| ours(&queue.name)).all(|queue| queue.ready + queue.running == 0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    working.await?
}
