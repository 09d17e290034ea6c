//! feed: a large paginated source copied one page per message, exactly once, whatever dies.
//!
//! ```text
//!   POST /v1/runs ─▶ SCHEDULE ─▶ counts price ranges (the heatmap), makes partitions
//!                                   │ one WORK_ITEM a partition, at offset 0
//!                                   ▼
//!                 ┌────────▶ WORK_ITEM: fetch one page, then in ONE transaction
//!                 │            records · next_offset by compare-and-set · counters
//!                 │            · the next message · this message's completion
//!                 │                 │                        │ last page, or given up
//!                 └── next page ────┘                        ▼
//!                                                        WORK_DONE ─▶ all ended? ─▶ CONSOLIDATE
//!                                                                                      │
//!                             one row is switched: the run's result is current ◀───────┘
//! ```
//!
//! *What is true* is in the rows: a partition's row says where it is (`next_offset`), the run's
//! row how many of its partitions have ended. Messages only carry what the rows say. A page names
//! the offset it begins at and is written only if its partition is there and its run is running: a
//! duplicate or out-of-order message changes nothing. A message that is missing is made again from
//! the row.
//!
//! *Records are versions.* A run writes a version of a record only where its payload differs from
//! the current one, and remembers that it saw it. Versions carry the run's number; readers see, of
//! each record, the last version up to the current number. Consolidation marks what vanished with
//! versions too, and then switches the number in one row: readers see the old state or the new
//! one. What runs left behind that never became current is taken away before that.
//!
//! *What a crash does*: before a commit, nothing; after it, everything. Scheduling is repeated as a
//! whole; a page is fetched again; consolidation goes on where its row says.

mod consolidate;
mod done;
mod message;
mod page;
pub mod partition;
mod schedule;
pub mod source;
mod system;
mod upkeep;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::id::RunId;
use crate::job::{JobState, NewJob};
use crate::json::Json;

pub use message::{CONSOLIDATE, SCHEDULE, WORK_DONE, WORK_ITEMS, WorkItem};
pub use system::{Asked, ChangeError, End, Feed, FeedSource, SourceSettings, StartError, Stream};

/// The queues of feeds.
pub const QUEUES: [&str; 4] = [SCHEDULE, WORK_ITEMS, WORK_DONE, CONSOLIDATE];

/// From where on an incremental run asks that has no watermark: whatever there is.
pub const BEGINNING: Timestamp = Timestamp::from_millis(0);

/// Prices from one to another, both included, in the source's own unit.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PriceRange {
    /// The lowest.
    #[serde(rename = "minPrice")]
    pub min: i64,
    /// The highest.
    #[serde(rename = "maxPrice")]
    pub max: i64,
}

impl PriceRange {
    /// Whether all of another range is in it.
    pub fn holds(self, other: Self) -> bool {
        self.min <= other.min && other.max <= self.max
    }
}

impl fmt::Display for PriceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// What a run copies.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Everything; what is not found any more has vanished.
    #[default]
    Full,
    /// What changed since the watermark.
    Incremental,
}

/// Where a run is in its life.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunStatus {
    /// Its partitions are being made.
    Scheduling,
    /// Its partitions are being worked.
    Running,
    /// All of them have ended; its result is about to become current.
    Consolidating,
    /// Its result is, or was, current.
    Completed,
    /// It was given up.
    Failed,
    /// Somebody stopped it.
    Cancelled,
}

impl RunStatus {
    /// Every status, in the order of their stored codes.
    pub const ALL: [Self; 6] = [
        Self::Scheduling,
        Self::Running,
        Self::Consolidating,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The word that is stored and shown.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Scheduling => "scheduling",
            Self::Running => "running",
            Self::Consolidating => "consolidating",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The status of a stored word.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }

    /// Whether a run in this status keeps its source to itself.
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Scheduling | Self::Running | Self::Consolidating)
    }
}

/// Where a partition is in its life.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartitionStatus {
    /// It has pages left.
    Running,
    /// Its last page is stored.
    Completed,
    /// It was given up.
    Failed,
}

impl PartitionStatus {
    /// The status of a stored word.
    pub fn of_word(word: &str) -> Self {
        match word {
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            _ => Self::Running,
        }
    }
}

/// What changed in this time, of an incremental run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdatedWithin {
    /// From here on.
    pub from: Timestamp,
    /// Up to here: when the run began.
    pub to: Timestamp,
}

/// A run to be started.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// Its id, made by the caller.
    pub id: RunId,
    /// What it copies.
    pub source: String,
    /// How much of it.
    pub mode: Mode,
    /// Consolidated even though some partitions failed.
    pub force: bool,
    /// Records of a page.
    pub limit: u32,
    /// How far an incremental run reaches back before the watermark.
    pub overlap: Duration,
    /// Partitions that the caller wants; none: they are made.
    pub partitions: Vec<NewPartition>,
    /// Only if the last run of the source began at least this long ago.
    pub not_within: Option<Duration>,
    /// The W3C `traceparent` of whoever asked.
    pub trace: Option<String>,
    /// The message that begins it.
    pub job: NewJob,
    /// What is told of it.
    pub event: NewEvent,
}

/// A partition to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPartition {
    /// Its id, unique in its run.
    pub id: String,
    /// Which prices it has.
    pub range: PriceRange,
    /// How many records the source counted.
    pub total: Option<u64>,
}

/// What became of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// It is scheduled.
    Started,
    /// Another run of the source is active.
    Active {
        /// That one.
        run: RunId,
    },
    /// The last run of the source began too recently.
    NotDue,
}

/// What a consolidation counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that were not there before.
    pub added: u64,
    /// Records with another payload than before.
    pub changed: u64,
    /// Records as before.
    pub unchanged: u64,
    /// Records that vanished.
    pub removed: u64,
}

/// A run as it stands.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// What it copies.
    pub source: String,
    /// Grows from run to run of its source.
    pub number: u64,
    /// How much of it.
    pub mode: Mode,
    /// Where it is.
    pub status: RunStatus,
    /// Consolidated even though some partitions failed.
    pub force: bool,
    /// Records of a page.
    pub limit: u32,
    /// What an incremental run asks for.
    pub updated: Option<UpdatedWithin>,
    /// Its partitions.
    pub expected: u32,
    /// Of these, complete.
    pub completed: u32,
    /// Of these, given up.
    pub failed: u32,
    /// Why it failed.
    pub error: Option<String>,
    /// What its consolidation counted.
    pub counts: Option<Counts>,
    /// When it was started.
    pub started_at: Timestamp,
    /// When its pages began to be fetched.
    pub running_at: Option<Timestamp>,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
    /// The W3C `traceparent` of whoever asked.
    pub trace: Option<String>,
}

/// A partition as it stands.
#[derive(Clone, Debug)]
pub struct Partition {
    /// Its id.
    pub id: String,
    /// Which prices it has.
    pub range: PriceRange,
    /// How many records the source counted.
    pub total: Option<u64>,
    /// Where it is.
    pub next_offset: u64,
    /// What became of it.
    pub status: PartitionStatus,
    /// Distinct records that it was the first of its run to store.
    pub records: u64,
    /// Deliveries of the message that carries it, or that it failed with.
    pub attempts: u32,
    /// The state of the message that carries it, if one does.
    pub message: Option<JobState>,
    /// Why it failed, or what the last attempt met.
    pub error: Option<String>,
    /// When it was last reported as stuck.
    pub reported_at: Option<Timestamp>,
    /// When it last went on.
    pub updated_at: Timestamp,
}

impl Partition {
    /// Whether it has not gone on for this long.
    pub fn is_stuck(&self, run: RunStatus, stuck_after: Duration, now: Timestamp) -> bool {
        run == RunStatus::Running
            && self.status == PartitionStatus::Running
            && now.since(self.updated_at) >= stuck_after
    }
}

/// A run, its partitions by id, and the store's time.
#[derive(Clone, Debug)]
pub struct RunState {
    /// The run.
    pub run: Run,
    /// Its partitions.
    pub partitions: Vec<Partition>,
    /// When this was so.
    pub now: Timestamp,
}

impl Run {
    /// Whether enough partitions have completed for the result to be made current: all of them, or seven
    /// in ten of a run that is forced.
    pub(crate) fn is_enough(&self) -> bool {
        self.failed == 0 || self.force && u64::from(self.completed) * 10 >= u64::from(self.expected) * 7
    }

    /// The stage at which a run that has failed did so.
    pub(crate) fn failed_at(&self) -> RunStatus {
        if self.expected == 0 {
            RunStatus::Scheduling
        } else if self.completed + self.failed == self.expected && self.is_enough() {
            RunStatus::Consolidating
        } else {
            RunStatus::Running
        }
    }
}

/// Where a message's partition is, for a look before anything is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its run's status.
    pub run: RunStatus,
    /// Its own.
    pub status: PartitionStatus,
    /// Where it is.
    pub next_offset: u64,
}

/// A partition, by the ids of its run and its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionKey {
    /// The run.
    pub run: RunId,
    /// The partition.
    pub partition: String,
}

/// One record of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The source's stable id.
    pub id: String,
    /// What the source said.
    pub payload: Json,
    /// What differs when the payload does.
    pub hash: [u8; 16],
    /// Its price, or the prices it is known to be within.
    pub price: PriceRange,
}

/// A page to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its partition.
    pub of: PartitionKey,
    /// Where the page begins; the partition must be there.
    pub offset: u64,
    /// Where the partition is afterwards.
    pub next_offset: u64,
    /// Whether this was its last page.
    pub last: bool,
    /// The page's records, each id once, in the order of their ids.
    pub records: Vec<Record>,
}

/// A change to a feed that commits with the job that causes it. Each has a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes partitions, if the run is being scheduled. It is then running.
    Begin {
        /// The run.
        run: RunId,
        /// All of its partitions.
        partitions: Vec<NewPartition>,
    },
    /// Writes one page, if its partition is where the page begins and its run is running.
    Page(Page),
    /// Changes nothing; holds if the partition has work left, there, and its run is running.
    At {
        /// The partition.
        of: PartitionKey,
        /// Where it must be.
        offset: u64,
    },
    /// Gives a partition up, if it has work left, there.
    FailPartition {
        /// The partition.
        of: PartitionKey,
        /// Where it must be.
        offset: u64,
        /// Why.
        error: String,
        /// Deliveries of the message that was given up.
        attempts: u32,
    },
    /// Ends the work on partitions, if so many have completed and failed and the run is running.
    End {
        /// The run.
        run: RunId,
        /// Partitions that completed.
        completed: u32,
        /// Partitions that failed.
        failed: u32,
        /// [`RunStatus::Consolidating`] or [`RunStatus::Failed`].
        to: RunStatus,
        /// Why it failed.
        error: Option<String>,
    },
    /// Makes the run's result current, if it is being consolidated.
    Switch {
        /// The run.
        run: RunId,
        /// What it counted.
        counts: Counts,
        /// Whether all prices were fetched: only then has nothing before the watermark been missed.
        move_watermark: bool,
    },
    /// Gives a run up, if it has this status.
    FailRun {
        /// The run.
        run: RunId,
        /// Where it must be.
        from: RunStatus,
        /// Why.
        error: String,
    },
}

/// A change that somebody asks for, or that repairs. It is made only if everything is as the
/// caller saw it.
#[derive(Clone, Debug)]
pub struct RunChange {
    /// The run.
    pub run: RunId,
    /// The status that the caller saw.
    pub from: RunStatus,
    /// The status it gets.
    pub to: RunStatus,
    /// Partitions that are set going again.
    pub going: Vec<SetGoing>,
    /// Partitions that are reported as stuck, with the offset that the caller saw.
    pub stuck: Vec<(String, u64)>,
    /// Messages that carry them.
    pub jobs: Vec<NewJob>,
    /// Messages that are closed unless somebody works them: queue and key.
    pub cancel: Vec<(String, String)>,
    /// What is told of it.
    pub events: Vec<NewEvent>,
}

/// A partition that is set going again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetGoing {
    /// Its id.
    pub partition: String,
    /// Where the caller saw it.
    pub seen_at: u64,
    /// Where it goes on.
    pub next_offset: u64,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It is made.
    Made,
    /// Something is not as the caller saw it. Nothing was changed.
    Otherwise,
    /// Another run of the source is active. Nothing was changed.
    Active {
        /// That one.
        run: RunId,
    },
    /// A later run of the source is current. Nothing was changed.
    Superseded,
}

/// A state of a source's records that does not change while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// The store's number of the source.
    pub feed: i64,
    /// Versions of this run,
    pub number: u64,
    /// and those up to this one, which were current.
    pub base: u64,
    /// Only what that run saw.
    pub seen_only: bool,
    /// Whether what the run saw has been forgotten since a later one is current.
    pub forgotten: bool,
}

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// The source's id.
    pub id: String,
    /// What the source said.
    pub payload: Json,
    /// The run that wrote it.
    pub run: RunId,
    /// When.
    pub updated_at: Timestamp,
}

/// What a store does for feeds, beside the [`Step`]s of commits. Each call is one transaction.
#[async_trait]
pub trait FeedStore: Send + Sync {
    /// Starts a run with its first message, if no other of its source is active.
    async fn start_run(&self, run: NewRun) -> Result<Started, StoreError>;

    /// One run.
    async fn run(&self, id: RunId) -> Result<Option<RunState>, StoreError>;

    /// A page of runs, newest first.
    async fn runs(
        &self,
        source: Option<String>,
        before: Option<RunId>,
        limit: u32,
    ) -> Result<Vec<RunState>, StoreError>;

    /// Where a partition is.
    async fn place(&self, of: PartitionKey) -> Result<Option<Place>, StoreError>;

    /// Makes a change, if everything is as the caller saw it.
    async fn change_run(&self, change: RunChange) -> Result<Changed, StoreError>;

    /// Running partitions of running runs of a source that have neither gone on nor been reported
    /// for this long.
    async fn stuck(
        &self,
        source: String,
        stuck_after: Duration,
        limit: u32,
    ) -> Result<Vec<PartitionKey>, StoreError>;

    /// One small step of what must be done before a run becomes current: takes away what runs left
    /// behind that never became current, then marks records within these prices that a full run
    /// did not see. False when there is nothing left to do.
    async fn consolidate(&self, run: RunId, within: Vec<PriceRange>) -> Result<bool, StoreError>;

    /// What a run that is being consolidated has found, and how many records are current.
    async fn counts(&self, run: RunId) -> Result<(Counts, u64), StoreError>;

    /// Pins what is current of a source, or what a run saw.
    async fn pin(&self, what: PinWhat) -> Result<Option<Pinned>, StoreError>;

    /// Records of a pinned state after an id, in the order of ids.
    async fn records(
        &self,
        pinned: Pinned,
        after: Option<String>,
        limit: u32,
    ) -> Result<Vec<StoredRecord>, StoreError>;
}

/// What is pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinWhat {
    /// What is current of a source.
    Current(String),
    /// What a run saw.
    Run(RunId),
}
