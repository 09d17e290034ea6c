//! What a process under torture does: it works pages.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use solely_core::bus::Bus;
use solely_core::fault::Guards;
use solely_core::metrics::Metrics;
use solely_core::queue::Jobs;
use solely_core::store::Retention;
use solely_core::upkeep::Upkeep;
use solely_core::worker::{Handler, QueueSpec, Worker};
use solely_core::{ProcessId, Store};
use solely_postgres::PostgresStore;
use solely_sqlite::{Access, SqliteStore};
use tokio_util::sync::CancellationToken;

use crate::paged::WORK_ITEMS;

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

/// Works pages until told to stop.
pub async fn work(
    store: Arc<dyn Store>,
    lock: Duration,
    handler: Arc<dyn Handler>,
    stop: CancellationToken,
) -> Result<()> {
    let bus = Bus::new();
    store.connect_bus(&bus);
    let jobs = Jobs::new(store, bus, Arc::new(Metrics::default()));
    let process = ProcessId::random();
    let mut spec = QueueSpec::new(WORK_ITEMS, handler);
    spec.lock = lock;
    let upkeep = Upkeep::new(jobs.clone(), process, std::slice::from_ref(&spec), Retention::default());
    let stop_upkeep = CancellationToken::new();
    upkeep.beat().await?;
    upkeep.rescue().await?;
    let upkeep = tokio::spawn(upkeep.run(stop_upkeep.clone()));
    let worker = Worker { jobs, process, queues: vec![spec], grace: Duration::from_secs(5) };
    worker.run(stop).await;
    stop_upkeep.cancel();
    upkeep.await?;
    Ok(())
}

/// Works pages until nothing is left.
pub async fn work_all(store: Arc<dyn Store>, lock: Duration, handler: Arc<dyn Handler>) -> Result<()> {
    let stop = CancellationToken::new();
    let working = tokio::spawn(work(store.clone(), lock, handler, stop.clone()));
    loop {
        let queues = store.queues().await?;
        let left = queues.iter().find(|queue| queue.name == WORK_ITEMS);
        if left.is_none_or(|queue| queue.ready + queue.running == 0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    working.await?
}
