//! The library as a program meets it.

use std::sync::Arc;
use std::time::Duration;

use solely::lease::{Holder, WaitedLease};
use solely::{
    CallFailed, Delivery, Done, Enqueued, Failure, Finder, Findings, Handler, LeaseId, LeaseRequest, NewJob,
    OpenError, Place, ProviderConfig, QueueSpec, Solely, StoreError, UpstreamError, async_trait,
};
use tempfile::TempDir;
use tokio::sync::{Notify, mpsc};

struct Nobody;

#[async_trait]
impl Finder for Nobody {
    async fn ask(
        &self,
        _place: &Place,
        _query: usize,
        _trace: Option<&str>,
    ) -> Result<Findings, CallFailed<UpstreamError>> {
        Ok(Findings::NotFound)
    }
}

/// Says that it has begun, and ends when it is told to.
struct Slow {
    began: mpsc::UnboundedSender<String>,
    end: Arc<Notify>,
}

#[async_trait]
impl Handler for Slow {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let _ = self.began.send(delivery.job.key.clone());
        self.end.notified().await;
        Ok(Done::default())
    }
}

fn slow() -> (Slow, mpsc::UnboundedReceiver<String>, Arc<Notify>) {
    let (began, deliveries) = mpsc::unbounded_channel();
    let end = Arc::new(Notify::new());
    (Slow { began, end: end.clone() }, deliveries, end)
}

fn error(opened: Result<Solely, OpenError>) -> OpenError {
    opened.err().expect("it is refused")
}

/// What cannot be is refused before anything is opened, and a password is not repeated.
#[tokio::test]
async fn what_is_wrong_is_said() {
    for url in ["", "sqlite:", "mysql://u:hunter2@h/db", "postgres:db"] {
        let error = error(Solely::open(url).await);
        assert_eq!(error, OpenError::UnknownUrl, "{url}");
        assert!(!error.to_string().contains("hunter2") && !error.retryable());
    }
    let builder = || Solely::builder("sqlite::memory:");
    let config = ProviderConfig { enabled: true, concurrency: 0, ..ProviderConfig::default() };
    let wrong = error(builder().provider_with("menus", config, Nobody).open().await);
    assert_eq!(wrong, OpenError::Config("`enrich.providers.menus.concurrency` is 1 to 256".to_owned()));
    let wrong = error(builder().provider("a place", Nobody).open().await);
    assert!(wrong.to_string().contains("a name has 1 to 64 letters"), "{wrong}");
    let wrong = error(builder().provider("menus", Nobody).handler("enrich:menus", slow().0).open().await);
    assert_eq!(wrong.to_string(), "the queue `enrich:menus` has two handlers");
    let wrong = error(builder().redis("http://h").open().await);
    assert!(wrong.to_string().starts_with("`redis.url`: "), "{wrong}");
}

/// A file is one process's; what was in it is there when it is opened again.
#[tokio::test]
async fn a_file_is_opened_by_one_and_keeps_what_it_has() {
    let folder = TempDir::new().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("app.db").display());
    let first = Solely::open(&url).await.expect("opens");
    assert_eq!(first.jobs().enqueue(vec![NewJob::new("q", "k")]).await, Ok(vec![Enqueued::Created]));
    assert!(matches!(error(Solely::open(&url).await), OpenError::Store(StoreError::Unusable(_))));
    first.close().await;
    let (handler, mut deliveries, end) = slow();
    let second = Solely::builder(&url).handler("q", handler).open().await.expect("opens");
    let running = second.start();
    assert_eq!(deliveries.recv().await.as_deref(), Some("k"));
    end.notify_one();
    running.shutdown().await;
}

/// A delivery under way is waited for when it ends; the store is closed afterwards.
#[tokio::test]
async fn shutdown_drains() {
    let (handler, mut deliveries, end) = slow();
    let solely = Solely::builder("sqlite::memory:").handler("q", handler).open().await.expect("opens");
    let running = solely.start();
    solely.jobs().enqueue(vec![NewJob::new("q", "k")]).await.expect("is taken");
    deliveries.recv().await.expect("begins");
    let mut ending = tokio::spawn(running.shutdown());
    tokio::task::yield_now().await;
    assert!(!ending.is_finished(), "it waits");
    end.notify_one();
    (&mut ending).await.expect("ends");
    assert!(solely.jobs().enqueue(vec![NewJob::new("q", "k")]).await.is_err(), "the store is closed");
}

/// What is still under way when the grace is over is released, and delivered again to the next.
#[tokio::test]
async fn shutdown_releases_what_takes_too_long() {
    let folder = TempDir::new().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("app.db").display());
    for _ in 0..2 {
        let (handler, mut deliveries, _end) = slow();
        let queue = QueueSpec { lock: Duration::from_secs(600), ..QueueSpec::new("q", Arc::new(handler)) };
        let opened = Solely::builder(&url)
            .queue(queue)
            .configure(|config| config.server.shutdown_grace.0 = Duration::from_millis(50))
            .open();
        let solely = opened.await.expect("opens");
        let running = solely.start();
        solely.jobs().enqueue(vec![NewJob::new("q", "k")]).await.expect("is taken");
        assert_eq!(deliveries.recv().await.as_deref(), Some("k"), "though it was locked for ten minutes");
        running.shutdown().await;
    }
}

/// Leases are there without being started.
#[tokio::test]
async fn leases_need_no_worker() {
    let solely = Solely::open("sqlite::memory:").await.expect("opens");
    let lease = |owner: &str| LeaseRequest {
        id: LeaseId::random(),
        keys: vec!["sku:1".to_owned()],
        owner: owner.to_owned(),
        ttl: Duration::from_secs(60),
        holder: Holder::Client,
    };
    let WaitedLease::Acquired(first) =
        solely.leases().acquire(lease("alice"), Duration::ZERO).await.expect("says")
    else {
        panic!("it is free")
    };
    let second = solely.leases().acquire(lease("bob"), Duration::ZERO).await.expect("says");
    assert!(matches!(second, WaitedLease::Held(obstacle) if obstacle.owner == "alice"));
    assert!(solely.leases().release(first.id).await.expect("says"));
    let third = solely.leases().acquire(lease("bob"), Duration::ZERO).await.expect("says");
    assert!(matches!(third, WaitedLease::Acquired(lease) if lease.fence > first.fence));
}

#[tokio::test]
#[should_panic(expected = "once")]
async fn it_is_started_once() {
    let solely = Solely::open("sqlite::memory:").await.expect("opens");
    let _first = solely.start();
    let _second = solely.clone().start();
}

/// The same on PostgreSQL, where two processes share the work.
#[tokio::test]
async fn two_share_a_postgres_database() {
    let url = solely_testing::fresh_database();
    let (handler, mut deliveries, end) = slow();
    let worker = Solely::builder(&url).handler("q", handler).open().await.expect("opens");
    let caller = Solely::open(&url).await.expect("opens");
    let running = worker.start();
    caller.jobs().enqueue(vec![NewJob::new("q", "k")]).await.expect("is taken");
    assert_eq!(deliveries.recv().await.as_deref(), Some("k"));
    end.notify_one();
    running.shutdown().await;
    caller.close().await;
}
