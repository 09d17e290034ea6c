//! What a test sees of an engine.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use solely_core::bus::Bus;
use solely_core::commit::{Commit, Settled, Verdict};
use solely_core::job::{Claim, ClaimReply, ClaimRequest, Claimed, Enqueued, Job, JobState, NewJob, Renewed};
use solely_core::lease::Leases;
use solely_core::liveness::{Beat, Beaten};
use solely_core::metrics::Metrics;
use solely_core::queue::Jobs;
use solely_core::{JobId, ProcessId, Store};

/// An engine under test.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// A new, empty store.
    async fn fresh() -> Self
    where
        Self: Sized;

    /// The store, open.
    fn store(&self) -> Arc<dyn Store>;

    /// Closes the store and opens it again, as a restart does.
    async fn reopen(&mut self);

    /// Moves the store's clock.
    fn advance(&self, by: Duration);
}

/// How long a silent process lives in these tests.
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(5);
/// The lock of a claim in these tests.
pub(crate) const LOCK: Duration = Duration::from_secs(60);
/// The queue of these tests.
pub(crate) const QUEUE: &str = "queue";

/// A store of some engine, and a process that has beaten in it.
pub struct World {
    engine: Box<dyn Engine>,
    /// This process.
    pub process: ProcessId,
    bus: Bus,
    metrics: Arc<Metrics>,
}

impl World {
    /// A world on an engine.
    pub async fn on(engine: impl Engine) -> Self {
        let world = Self {
            engine: Box::new(engine),
            process: ProcessId::random(),
            bus: Bus::new(),
            metrics: Arc::new(Metrics::default()),
        };
        world.beat(world.process).await;
        world
    }

    /// The store.
    pub fn store(&self) -> Arc<dyn Store> {
        self.engine.store()
    }

    /// Jobs of the store, with wake-ups.
    pub fn jobs(&self) -> Jobs {
        Jobs::new(self.store(), self.bus.clone(), self.metrics.clone())
    }

    /// Leases of the store, with waiting.
    pub fn leases(&self) -> Leases {
        Leases::new(self.store(), self.bus.clone(), self.metrics.clone())
    }

    /// Restarts, as a new process with a new identity.
    pub async fn restart(&mut self) {
        self.engine.reopen().await;
        self.process = ProcessId::random();
        self.beat(self.process).await;
    }

    /// Moves the store's clock without anyone beating.
    pub fn advance(&self, by: Duration) {
        self.engine.advance(by);
    }

    /// A heartbeat.
    pub async fn beat(&self, process: ProcessId) -> Beaten {
        self.store().beat(Beat { process, dead_after: DEAD_AFTER }).await.expect("beats")
    }

    /// Moves the clock while this process beats every second.
    pub async fn live_through(&self, time: Duration) {
        for _ in 0..time.as_secs() {
            self.advance(Duration::from_secs(1));
            self.beat(self.process).await;
        }
    }

    /// Enqueues one job.
    pub async fn enqueue(&self, job: NewJob) -> Enqueued {
        self.store().enqueue(vec![job]).await.expect("enqueues")[0]
    }

    /// Enqueues a plain job of [`QUEUE`].
    pub async fn enqueue_key(&self, key: &str) -> JobId {
        let job = NewJob::new(QUEUE, key);
        let id = job.id;
        assert_eq!(self.enqueue(job).await, Enqueued::Created);
        id
    }

    /// A claim's answer.
    pub async fn try_claim(&self, process: ProcessId, limit: usize) -> ClaimReply {
        let request = ClaimRequest { process, queue: QUEUE.to_owned(), limit, lock: LOCK };
        self.store().claim(request).await.expect("claims")
    }

    /// Claims up to `limit` jobs of [`QUEUE`].
    pub async fn claim(&self, limit: usize) -> Vec<Claimed> {
        match self.try_claim(self.process, limit).await {
            ClaimReply::Jobs { jobs, .. } => jobs,
            ClaimReply::NotAlive => panic!("this process has beaten"),
        }
    }

    /// Claims the one job that is due.
    pub async fn claim_one(&self) -> Claimed {
        let mut jobs = self.claim(2).await;
        assert_eq!(jobs.len(), 1, "one job is due");
        jobs.remove(0)
    }

    /// Settles one delivery.
    pub async fn settle(&self, commit: Commit) -> Settled {
        self.store().settle(vec![commit]).await.expect("settles").remove(0).expect("is judged")
    }

    /// Completes one delivery.
    pub async fn complete(&self, claim: Claim) -> Settled {
        self.settle(Commit::new(claim, Verdict::Complete)).await
    }

    /// Gives one delivery up.
    pub async fn bury(&self, claim: Claim, error: &str) -> Settled {
        self.settle(Commit::new(claim, Verdict::Dead { error: error.to_owned() })).await
    }

    /// Makes a dead job of this key.
    pub async fn dead(&self, key: &str, error: &str) -> JobId {
        let id = self.enqueue_key(key).await;
        let claimed = self.claim(100).await;
        let claim = claimed.iter().find(|claimed| claimed.job.id == id).expect("due").claim;
        assert_eq!(self.bury(claim, error).await, Settled::Applied);
        id
    }

    /// Renews one claim.
    pub async fn renew(&self, claim: Claim, lock: Duration) -> Renewed {
        self.store().renew(vec![claim], lock).await.expect("renews")[0]
    }

    /// A job as it stands.
    pub async fn job(&self, id: JobId) -> Job {
        self.store().job(id).await.expect("reads").expect("is there")
    }

    /// A job's state.
    pub async fn state(&self, id: JobId) -> JobState {
        self.job(id).await.state
    }

    /// Names of a subject's events, in order.
    pub async fn told(&self, subject: &str) -> Vec<String> {
        let events = self.store().timeline(subject.to_owned(), None, 200).await.expect("reads");
        events.into_iter().map(|event| event.told.event).collect()
    }

    /// Asserts that the store breaks none of its rules.
    pub async fn assert_sound(&self) {
        let report = self.store().check().await.expect("checks");
        assert_eq!(report.violations, [], "of {:?}", report.counted);
    }
}

/// Seconds.
pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
