//! The worker: claims jobs, runs their handlers, settles what they return.
//!
//! ```text
//!   one dispatcher per queue                      two settlers per worker
//!   ┌───────────────────────────────┐   commits   ┌─────────────────────┐
//!   │ claim up to the free places   │ ──────────▶ │ settle what is there│
//!   │ run each in a task of its own │             │ as one batch        │
//!   └───────────────────────────────┘             └─────────────────────┘
//!          ▲ woken by the bus, by the next due             │
//!          │ job, by a free place, or by a slow poll       ▼
//!     held claims ◀──── one renewer per worker: every third of a lock
//! ```
//!
//! *Bounded*: a dispatcher holds at most `concurrency` deliveries whose handler has not
//! returned, plus one settlement batch. *Fenced*: a claim is trusted only until its lock would
//! end, counted from before it was asked for; when a renewal says that it is lost, or cannot
//! be had in time, the handler's future is dropped and nothing of it is written.
//! *Interruption is not failure*: when the worker stops, deliveries get the grace period;
//! those still running then are released at once, without spending an attempt.

mod dispatch;
mod held;
mod settler;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::commit::Effect;
use crate::event::NewEvent;
use crate::id::ProcessId;
use crate::job::{Claim, Job, NewJob};
use crate::queue::Jobs;

pub(crate) use verdict::commit_dead;

/// One delivery, as a handler sees it.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Its claim. The fence may be passed on to whatever the handler writes to. It grows with
    /// the deliveries of **this job**; the next job of the same key starts anew.
    pub claim: Claim,
    /// The job.
    pub job: Job,
    /// Set when the worker is stopping: a long handler may return early with what it has.
    pub stopping: CancellationToken,
}

/// What a handler wants to become true, together with the end of its job.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// See [`crate::commit::Commit::effect`].
    pub effect: Effect,
    /// See [`crate::commit::Commit::next_jobs`].
    pub next_jobs: Vec<NewJob>,
    /// See [`crate::commit::Commit::events`].
    pub events: Vec<NewEvent>,
    /// See [`crate::commit::Commit::otherwise`].
    pub otherwise: Vec<NewEvent>,
}

/// Why a handler could not do its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It may work later: tried again with backoff until the attempts are spent.
    Transient {
        /// What went wrong.
        error: String,
        /// The longest wait, where it is pressed for time.
        at_most: Option<Duration>,
    },
    /// It will never work: dead at once.
    Permanent {
        /// What went wrong.
        error: String,
    },
    /// It was not tried, because what it needs is paused; no attempt is spent.
    Postponed {
        /// How long to wait.
        delay: Duration,
        /// What it waits for; empty where nothing is wrong.
        error: String,
    },
}

impl Failure {
    /// A failure that may pass.
    pub fn transient(error: impl Into<String>) -> Self {
        Self::Transient { error: error.into(), at_most: None }
    }

    /// A failure that will not.
    pub fn permanent(error: impl Into<String>) -> Self {
        Self::Permanent { error: error.into() }
    }
}

/// The work of one queue.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Does the job, and says what should become true. Its future may be dropped at any await.
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure>;

    /// What the death of a job means for its system. Committed with it, by whoever
    /// dead-letters it: this worker, or a rescuer elsewhere.
    fn died(&self, _job: &Job, _error: &str) -> Done {
        Done::default()
    }
}

/// The waits between the attempts of a job: doubled each time, and jittered by up to a half,
/// downwards, so that jobs that failed together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait.
    pub first: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(300) }
    }
}

/// A queue and how it is worked.
#[derive(Clone)]
pub struct QueueSpec {
    /// Its name.
    pub name: String,
    /// Deliveries under way at once in this process.
    pub concurrency: usize,
    /// How long a delivery is locked; renewed while its handler runs.
    pub lock: Duration,
    /// How long a handler may run in all.
    pub deadline: Duration,
    /// The waits between attempts.
    pub backoff: Backoff,
    /// The work.
    pub handler: Arc<dyn Handler>,
}

impl QueueSpec {
    /// A queue with the usual settings.
    pub fn new(name: impl Into<String>, handler: Arc<dyn Handler>) -> Self {
        Self {
            name: name.into(),
            concurrency: 4,
            lock: Duration::from_secs(60),
            deadline: Duration::from_secs(600),
            backoff: Backoff::default(),
            handler,
        }
    }
}

/// A worker of one process.
pub struct Worker {
    /// What it works on.
    pub jobs: Jobs,
    /// Whose claims they are.
    pub process: ProcessId,
    /// The queues it works.
    pub queues: Vec<QueueSpec>,
    /// How long deliveries may go on once it is told to stop.
    pub grace: Duration,
}

impl Worker {
    /// Works until `stop`, then lets deliveries finish for the grace period, releases the
    /// rest, and returns when everything is settled.
    pub async fn run(self, stop: CancellationToken) {
        let held = held::HeldClaims::default();
        let (commits, inbox) = settler::channel();
        let inbox = Arc::new(tokio::sync::Mutex::new(inbox));
        let mut settlers = JoinSet::new();
        for _ in 0..settler::SETTLERS {
            settlers.spawn(settler::run(self.jobs.clone(), held.clone(), inbox.clone()));
        }
        let renewing = CancellationToken::new();
        let renewer = tokio::spawn(held::renew(self.jobs.store().clone(), held.clone(), renewing.clone()));
        let interrupt = CancellationToken::new();
        let mut dispatchers = JoinSet::new();
        for spec in self.queues {
            dispatchers.spawn(dispatch::run(dispatch::Dispatcher {
                jobs: self.jobs.clone(),
                process: self.process,
                spec,
                held: held.clone(),
                commits: commits.clone(),
                stop: stop.clone(),
                interrupt: interrupt.clone(),
            }));
        }
        drop(commits);
        stop.cancelled().await;
        let all_done = async { while dispatchers.join_next().await.is_some() {} };
        tokio::pin!(all_done);
        if tokio::time::timeout(self.grace, &mut all_done).await.is_err() {
            interrupt.cancel();
            all_done.await;
        }
        // The dispatchers are gone, so the settlers' inbox ends once it is empty.
        while settlers.join_next().await.is_some() {}
        renewing.cancel();
        let _ = renewer.await;
    }
}
