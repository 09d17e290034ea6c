//! Jobs: durable work, unique by key, delivered under a lock and settled under a fence.
//!
//! ```text
//!            enqueue                 claim (fence+1, attempt+1)
//!   (none) ──────────▶ ready ───────────────────────────────▶ running
//!                        ▲  ▲                                  │ │ │ │
//!        redrive, retry  │  └── release: no attempt spent ─────┘ │ │ │
//!                        │      rescue: its worker is gone       │ │ │
//!                        │                                       │ │ │
//!                        │   retrying ◀── retry with a delay ────┘ │ │
//!                        │      └────────▶ claim                   │ │
//!                        └── dead ◀──────────── dead, with effect ─┘ │
//!                            completed ◀──────────── complete ───────┘
//! ```
//!
//! *What is true* is the job's row. `ready`, `retrying` and `running` are the **live** states;
//! a key is unique in its queue among live jobs, and the set is closed under retry, release
//! and rescue, so none of those can collide with a newer job. Only a revival of a dead job
//! can; it then loses to the newer one, alone, and is closed as superseded.
//!
//! *Who may change it*: whoever holds the claim, which is the fence of the latest delivery, on
//! a row that is `running` and whose lock has not ended. Every settlement and renewal checks
//! all three. A rescuer changes a row only when its lock has ended or its process is dead.
//!
//! *What a crash does*: before the settlement commits, nothing; the lock ends or the process
//! is declared dead, and the job is delivered again with a higher fence. After, everything:
//! effect, successors, events and completion are one commit (see [`crate::commit`]).

use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use crate::clock::Timestamp;
use crate::commit::{Commit, Settled};
use crate::error::StoreError;
use crate::id::{JobId, ProcessId};
use crate::json::Json;
use crate::limits;

/// The state of a job.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Waits to be claimed, now or from its `run_at` on.
    Ready,
    /// Failed in a way that may pass, and waits for its next delivery.
    Retrying,
    /// Claimed by a worker, until its lock ends.
    Running,
    /// Done; its effect is in the store.
    Completed,
    /// Given up, with what that means for its system committed.
    Dead,
    /// Closed without being done: cancelled, or superseded by a newer job of its key.
    Cancelled,
}

impl JobState {
    /// Every state, in the order of their stored codes.
    pub const ALL: [Self; 6] =
        [Self::Ready, Self::Retrying, Self::Running, Self::Completed, Self::Dead, Self::Cancelled];

    /// The number that engines store.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The state of a stored number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The word that the API uses.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Retrying => "retrying",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether a job in this state keeps its key to itself.
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Ready | Self::Retrying | Self::Running)
    }
}

impl std::str::FromStr for JobState {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|state| state.word() == word).ok_or(())
    }
}

/// What an enqueue does when a job of its key is running already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnRunning {
    /// It is a duplicate like any other: the running job will give the answer (lookups).
    #[default]
    Duplicate,
    /// The running job runs once more after this delivery, with the new payload (triggers).
    RunAgain,
}

/// The duplicate-detection window, by the queue and key of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Window {
    /// None: the key is free as soon as its job is not live any more.
    #[default]
    Off,
    /// A message whose key was sent within this time is a duplicate, finished or not.
    Check(Duration),
    /// Sent in any case, and remembered for this long: repairs, retries, continuations.
    Pass(Duration),
}

/// A job to be made.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Its id, made by the caller, so that a lost answer can be read back.
    pub id: JobId,
    /// The queue it waits in.
    pub queue: String,
    /// What kind of work it is, for people and handlers.
    pub kind: String,
    /// Unique in the queue among live jobs; also the message id of the duplicate window.
    pub key: String,
    /// What the handler needs. May hold secrets: never shown, dropped on completion.
    pub payload: Json,
    /// What may be shown of it: an object.
    pub attributes: Json,
    /// 0 is the most urgent, [`limits::PRIORITY_LAST`] the least.
    pub priority: u8,
    /// How long it waits before its first delivery.
    pub delay: Duration,
    /// Deliveries before it is dead.
    pub max_attempts: u32,
    /// The duplicate-detection window.
    pub window: Window,
    /// What happens when a job of this key is running.
    pub on_running: OnRunning,
    /// The W3C `traceparent` of whatever asked for it.
    pub trace: Option<String>,
}

impl NewJob {
    /// A job with the usual settings.
    pub fn new(queue: impl Into<String>, key: impl Into<String>) -> Self {
        let queue = queue.into();
        Self {
            id: JobId::new(),
            kind: queue.clone(),
            queue,
            key: key.into(),
            payload: Json::empty(),
            attributes: Json::empty(),
            priority: limits::PRIORITY_DEFAULT,
            delay: Duration::ZERO,
            max_attempts: limits::JOB_ATTEMPTS,
            window: Window::Off,
            on_running: OnRunning::Duplicate,
            trace: None,
        }
    }

    /// What is wrong with it, if anything is.
    pub fn problem(&self) -> Option<String> {
        let size = self.payload.as_str().len() + self.attributes.as_str().len();
        if self.queue.is_empty() || self.queue.len() > limits::KEY_BYTES_MAX {
            Some(format!("a queue's name has 1 to {} bytes", limits::KEY_BYTES_MAX))
        } else if self.key.is_empty() || self.key.len() > limits::KEY_BYTES_MAX {
            Some(format!("a job's key has 1 to {} bytes", limits::KEY_BYTES_MAX))
        } else if size > limits::JOB_PAYLOAD_BYTES_MAX {
            Some(format!("a job's payload has at most {} bytes", limits::JOB_PAYLOAD_BYTES_MAX))
        } else if self.priority > limits::PRIORITY_LAST {
            Some(format!("a job's priority is 0 to {}", limits::PRIORITY_LAST))
        } else if !(1..=limits::JOB_ATTEMPTS_MAX).contains(&self.max_attempts) {
            Some(format!("a job has 1 to {} attempts", limits::JOB_ATTEMPTS_MAX))
        } else {
            None
        }
    }
}

/// What became of one enqueued job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It is in the queue under its own id.
    Created,
    /// A running job of its key will run once more after this delivery.
    Again {
        /// That job.
        of: JobId,
    },
    /// A live job has its key.
    Duplicate {
        /// That job.
        of: JobId,
        /// Its state.
        state: JobState,
        /// When its lock ends, if it is running: until then its worker has it.
        until: Option<Timestamp>,
    },
    /// Its key was sent within the duplicate window.
    InWindow {
        /// The job that was made then.
        of: JobId,
        /// When the window ends.
        until: Timestamp,
    },
}

/// A job as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// See [`NewJob`] for the fields that it shares with it.
    pub id: JobId,
    /// See [`NewJob::queue`].
    pub queue: String,
    /// See [`NewJob::kind`].
    pub kind: String,
    /// See [`NewJob::key`].
    pub key: String,
    /// Where it is in its life.
    pub state: JobState,
    /// See [`NewJob::priority`].
    pub priority: u8,
    /// Deliveries so far that count.
    pub attempts: u32,
    /// Deliveries before it is dead.
    pub max_attempts: u32,
    /// When it may be delivered, or was made deliverable last.
    pub run_at: Timestamp,
    /// When its present lock ends.
    pub locked_until: Option<Timestamp>,
    /// The last thing that went wrong.
    pub error: Option<String>,
    /// See [`NewJob::payload`].
    pub payload: Json,
    /// See [`NewJob::attributes`].
    pub attributes: Json,
    /// See [`NewJob::trace`].
    pub trace: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// The right to settle one delivery of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The job.
    pub job: JobId,
    /// Grows with every delivery of the job; another job of its key starts anew.
    pub fence: u64,
}

/// A delivery.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The right to settle it.
    pub claim: Claim,
    /// The job, as it was when it was claimed.
    pub job: Job,
}

/// What a worker can take of one queue.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// Whose they will be. It must have beaten (see [`crate::liveness`]).
    pub process: ProcessId,
    /// The queue.
    pub queue: String,
    /// At most this many jobs.
    pub limit: usize,
    /// How long they are locked.
    pub lock: Duration,
}

/// What a claim got.
#[derive(Clone, Debug)]
pub enum ClaimReply {
    /// The deliveries, most urgent first.
    Jobs {
        /// The deliveries.
        jobs: Vec<Claimed>,
        /// How long until the next job of the queue is due, if one waits.
        next_due_in: Option<Duration>,
    },
    /// The process is not known to be alive: it must beat before it can claim.
    NotAlive,
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The lock now ends then.
    Until(Timestamp),
    /// The claim is not the job's any more. The work under it must stop.
    Lost,
}

/// Which jobs a rescuer may touch.
#[derive(Clone, Debug)]
pub struct RescueRequest {
    /// The rescuer.
    pub process: ProcessId,
    /// Queues whose handlers it has: it dead-letters only jobs whose effect it knows.
    pub queues: Vec<String>,
    /// At most this many in one transaction.
    pub limit: u32,
}

/// What a rescue did.
#[derive(Clone, Debug, Default)]
pub struct Rescued {
    /// Jobs that went back to `ready`, with their queues.
    pub freed: Vec<(JobId, String)>,
    /// Jobs without attempts left, now claimed by the rescuer, who settles them as dead
    /// together with what that means. Should it die before, they lapse again.
    pub exhausted: Vec<Claimed>,
}

/// Which dead jobs come back.
#[derive(Clone, Debug, Default)]
pub struct ReviveRequest {
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only these.
    pub ids: Option<Vec<JobId>>,
    /// Only those whose error contains this.
    pub error: Option<String>,
    /// At most this many.
    pub limit: u32,
    /// Spread over time: this many become due per second.
    pub rate_per_second: Option<u32>,
    /// Look only.
    pub dry_run: bool,
}

/// What became of one dead job that was asked to come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revived {
    /// It is ready again, under its id, with all its attempts.
    Ready {
        /// The job.
        id: JobId,
        /// Its queue.
        queue: String,
    },
    /// A newer live job has its key; it was closed as superseded.
    Superseded {
        /// The job.
        id: JobId,
        /// The newer one.
        by: JobId,
    },
}

/// The transitions of jobs. Each is one transaction.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// Makes the jobs that are not there yet, and answers for each in the order given.
    ///
    /// When this returns [`Enqueued::Duplicate`] or [`Enqueued::Again`], the job it names was
    /// live in the transaction that answered; the loser of a race has the winner's job or
    /// makes its own. All answers are durable.
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError>;

    /// Takes due jobs of queues that are not paused: `running`, a higher fence, a fresh lock,
    /// one attempt more.
    async fn claim(&self, request: ClaimRequest) -> Result<ClaimReply, StoreError>;

    /// Moves the end of locks. Refused, claim by claim, for whoever has lost the job.
    async fn renew(&self, claims: Vec<Claim>, lock: Duration) -> Result<Vec<Renewed>, StoreError>;

    /// Settles deliveries. Each commit is all or nothing and is judged by itself.
    async fn settle(&self, commits: Vec<Commit>) -> Result<Vec<Result<Settled, StoreError>>, StoreError>;

    /// Frees jobs whose lock has ended or whose process is dead.
    async fn rescue(&self, request: RescueRequest) -> Result<Rescued, StoreError>;

    /// Brings dead jobs back. One that cannot come back does not hold up the others.
    async fn revive(&self, request: ReviveRequest) -> Result<Vec<Revived>, StoreError>;

    /// Closes live jobs of these keys that no worker has. Running ones are left to finish.
    async fn cancel(&self, queue: String, keys: Vec<String>) -> Result<Vec<JobId>, StoreError>;
}
