//! Another program that keeps the file from being written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use solely_core::bus::Bus;
use solely_core::job::{JobState, JobStore as _};
use solely_core::metrics::Metrics;
use solely_core::queue::{Jobs, QueueStore as _};
use solely_core::worker::{Delivery, Done, Failure, Handler, QueueSpec, Worker};
use solely_core::{ProcessId, Store, StoreError};
use solely_sqlite::Options;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{Home, job};

/// Takes the write lock, as a shell that was left open in a transaction does.
fn intruder(home: &Home) -> rusqlite::Connection {
    let conn = rusqlite::Connection::open(home.folder.path().join("solely.db")).expect("opens");
    conn.execute_batch("BEGIN IMMEDIATE").expect("takes the lock");
    conn
}

async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whoever waits is refused once, together; whoever comes then, at once; readiness says so; and
/// when the other is gone it goes on by itself.
#[tokio::test]
async fn callers_are_refused_at_once_and_it_goes_on_by_itself() {
    let home = Home::new(&Options::default());
    let intruder = intruder(&home);
    let started = Instant::now();
    let first = (0..50).map(|n| home.store.enqueue(vec![job(n.to_string(), 10)]));
    for refused in first.collect::<Vec<_>>() {
        assert!(matches!(refused.await, Err(StoreError::Unavailable(_))));
    }
    assert!(started.elapsed() < Duration::from_secs(10), "one wait for all of them");
    let started = Instant::now();
    assert!(home.store.health().await.is_err());
    let refused = home.store.enqueue(vec![job("late", 10)]).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))));
    assert!(started.elapsed() < Duration::from_millis(500), "at once");
    drop(intruder);
    until("it goes on", || async { home.store.enqueue(vec![job("after", 10)]).await.is_ok() }).await;
    home.store.health().await.expect("healthy");
    assert_eq!(home.store.queues().await.expect("lists")[0].ready, 1, "what was refused is not there");
}

/// Begins, and ends when it is told to.
#[derive(Default)]
struct Gated {
    begun: Notify,
    gate: Notify,
}

#[async_trait]
impl Handler for Gated {
    async fn handle(&self, _delivery: &Delivery) -> Result<Done, Failure> {
        self.begun.notify_one();
        self.gate.notified().await;
        Ok(Done::default())
    }
}

/// What a handler did is not thrown away because the store could not be written at that moment.
#[tokio::test]
async fn a_settlement_waits_for_the_store() {
    let home = Home::new(&Options::default());
    let store: Arc<dyn Store> = home.store.clone();
    let jobs = Jobs::new(store, Bus::new(), Arc::new(Metrics::default()));
    let handler = Arc::new(Gated::default());
    let worker = Worker {
        jobs: jobs.clone(),
        process: ProcessId::random(),
        queues: vec![QueueSpec::new("queue", handler.clone())],
        grace: Duration::from_secs(5),
    };
    let stop = CancellationToken::new();
    let worker = tokio::spawn(worker.run(stop.clone()));
    let new = job("a", 10);
    let id = new.id;
    jobs.enqueue(vec![new]).await.expect("enqueues");
    handler.begun.notified().await;
    let intruder = intruder(&home);
    handler.gate.notify_one();
    until("the settlement is refused", || async { home.store.health().await.is_err() }).await;
    drop(intruder);
    let state = || async { home.store.job(id).await.expect("reads").expect("is there").state };
    until("it is settled after all", || async { state().await == JobState::Completed }).await;
    assert_eq!(home.store.job(id).await.expect("reads").expect("is there").attempts, 1);
    stop.cancel();
    worker.await.expect("ends");
}
