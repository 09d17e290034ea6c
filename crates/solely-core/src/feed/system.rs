//! The system as a whole: its sources, and what people do with runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::message::{self, OfRun, WorkItem, item_key, run_key};
use super::source::{Found, Scope, Source, Window};
use super::{
    CONSOLIDATE, Changed, Mode, NewPartition, NewRun, Partition, PartitionStatus, PinWhat, Pinned,
    PriceRange, RunChange, RunState, RunStatus, SCHEDULE, SetGoing, Started, StoredRecord, WORK_DONE,
    WORK_ITEMS, consolidate, done, page, schedule, upkeep,
};
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::id::RunId;
use crate::job::NewJob;
use crate::json::Json;
use crate::limits;
use crate::queue::Jobs;
use crate::upstream::{CallError, Upstream, UpstreamError};
use crate::worker::{Backoff, Failure, QueueSpec};

/// How a source's end is recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// By a page shorter than was asked for.
    #[default]
    ShortPage,
    /// By an empty page: a short one may stand in the middle.
    EmptyPage,
}

/// How a source is copied.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// Records of a page, unless a run says otherwise.
    pub page_limit: u32,
    /// Records of a page, at most.
    pub page_max: u32,
    /// Records of the page before that a page begins with.
    pub page_overlap: u32,
    /// All prices there are.
    pub range: PriceRange,
    /// How far an incremental run reaches back before the watermark.
    pub overlap: Duration,
    /// Partitions of a run, at most.
    pub max_partitions: usize,
    /// Fewer are not worth a partition.
    pub min_records_per_partition: u64,
    /// Pages fetched at once by one process.
    pub concurrency: usize,
    /// How long one call may take.
    pub timeout: Duration,
    /// How long a message is locked.
    pub lock: Duration,
    /// Deliveries of a message before it is given up.
    pub max_deliveries: u32,
    /// The window in which a message from outside is a duplicate.
    pub duplicate_window: Duration,
    /// A partition that has not gone on for this long is stuck.
    pub stuck_after: Duration,
    /// Starts a run by itself.
    pub every: Option<Duration>,
    /// How the end is recognised.
    pub end: End,
}

/// A source and how it is copied.
pub struct FeedSource {
    /// Its name.
    pub name: String,
    /// How it is copied.
    pub settings: SourceSettings,
    /// Its limits.
    pub upstream: Arc<Upstream>,
    /// The source itself.
    pub source: Arc<dyn Source>,
}

impl FeedSource {
    /// How many records there are.
    pub(super) async fn count(&self, scope: &Scope) -> Result<u64, Failure> {
        // Counts wait for one another: all of a round are asked for at once.
        self.upstream.call(COUNT_PATIENCE, self.source.count(scope)).await.map_err(|error| failure(&error))
    }

    /// Some of them.
    pub(super) async fn page(&self, scope: &Scope, window: &Window) -> Result<Vec<Found>, Failure> {
        self.upstream
            .call(PAGE_PATIENCE, self.source.page(scope, window))
            .await
            .map_err(|error| failure(&error))
    }
}

/// What a call that brought nothing means for its message.
fn failure(error: &CallError<UpstreamError>) -> Failure {
    let why = match error {
        CallError::Failed(why) => why.to_string(),
        other => other.to_string(),
    };
    match error {
        CallError::Paused { left } | CallError::Open { left } => {
            Failure::Postponed { delay: (*left).max(SHORTEST_WAIT), error: why }
        }
        // Nothing is wrong: its turn comes later.
        CallError::Later { left } => Failure::Postponed { delay: *left, error: String::new() },
        CallError::Busy => Failure::Postponed { delay: SHORTEST_WAIT, error: String::new() },
        // All messages of the source wait for as long: its pause is in the store.
        CallError::Failed(UpstreamError::Throttled(_)) => {
            Failure::Postponed { delay: SHORTEST_WAIT, error: why }
        }
        CallError::Failed(UpstreamError::Permanent(_)) => Failure::permanent(why),
        CallError::Failed(UpstreamError::Transient(_)) | CallError::TimedOut { .. } | CallError::Store(_) => {
            Failure::transient(why)
        }
    }
}

/// How long a page waits for its turn; then its message is put back and spends no attempt. A process that
/// dies while a message waits in its hands costs that message one.
const PAGE_PATIENCE: Duration = Duration::from_millis(250);
const COUNT_PATIENCE: Duration = Duration::from_secs(60);
const SHORTEST_WAIT: Duration = Duration::from_millis(200);
/// How often a change is tried on what it finds.
const TRIES: usize = 8;

/// A run that somebody asks for.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Of this source.
    pub source: String,
    /// Records of a page.
    pub limit: Option<u32>,
    /// How much of it.
    pub mode: Mode,
    /// Consolidate even though some partitions fail.
    pub force: bool,
    /// Partitions; none: they are made.
    pub partitions: Vec<NewPartition>,
    /// Only if the last run began at least this long ago.
    pub not_within: Option<Duration>,
    /// The W3C `traceparent` of whoever asks.
    pub trace: Option<String>,
    /// Whose request it is.
    pub request_id: Option<String>,
}

/// Why a run was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// There is no such source.
    #[error("there is no source `{0}`")]
    NoSource(String),
    /// Something about it is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Another run of the source is active.
    #[error("run {0} of this source is active")]
    Active(RunId),
    /// The last run of the source began too recently.
    #[error("the last run of this source began too recently")]
    NotDue,
    /// The store cannot say.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a run was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// There is no such run, or partition of it.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// It is not in a state in which this can be done.
    #[error("{0}")]
    State(String),
    /// Another run of the source is active.
    #[error("run {0} of this source is active")]
    Active(RunId),
    /// The store cannot say.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Feeds of one process. Clones share everything.
#[derive(Clone)]
pub struct Feed {
    pub(super) jobs: Jobs,
    pub(super) sources: Arc<BTreeMap<String, Arc<FeedSource>>>,
    streams: Arc<Semaphore>,
}

impl Feed {
    /// Feeds of these sources.
    pub fn new(jobs: Jobs, sources: impl IntoIterator<Item = FeedSource>) -> Self {
        let sources = sources.into_iter().map(|source| (source.name.clone(), Arc::new(source))).collect();
        Self { jobs, sources: Arc::new(sources), streams: Arc::new(Semaphore::new(limits::STREAMS_MAX)) }
    }

    /// A source, by its name.
    pub fn source(&self, name: &str) -> Option<&Arc<FeedSource>> {
        self.sources.get(name)
    }

    /// Every source.
    pub fn sources(&self) -> impl Iterator<Item = &Arc<FeedSource>> {
        self.sources.values()
    }

    /// The queues of feeds, and how this process works them.
    pub fn queues(&self) -> Vec<QueueSpec> {
        if self.sources.is_empty() {
            return Vec::new();
        }
        let backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(20) };
        let all = || self.sources.values().map(|source| &source.settings);
        let longest = |of: fn(&SourceSettings) -> Duration| all().map(of).max().unwrap_or_default();
        let pages = QueueSpec {
            concurrency: all().map(|settings| settings.concurrency).sum(),
            lock: longest(|settings| settings.lock),
            deadline: longest(|settings| settings.timeout) + PAGE_PATIENCE + Duration::from_secs(30),
            backoff,
            ..QueueSpec::new(WORK_ITEMS, Arc::new(page::Pages(self.clone())))
        };
        let long = Duration::from_secs(6 * 3_600);
        let schedule = QueueSpec {
            deadline: long,
            backoff,
            ..QueueSpec::new(SCHEDULE, Arc::new(schedule::Schedules(self.clone())))
        };
        let done = QueueSpec { backoff, ..QueueSpec::new(WORK_DONE, Arc::new(done::Endings(self.clone()))) };
        let consolidate = QueueSpec {
            deadline: long,
            backoff,
            ..QueueSpec::new(CONSOLIDATE, Arc::new(consolidate::Consolidations(self.clone())))
        };
        vec![schedule, pages, done, consolidate]
    }

    /// Looks after stuck partitions and starts runs that are due, until it is told to stop.
    pub async fn keep(self, stop: CancellationToken) {
        upkeep::keep(self, stop).await;
    }

    /// One look at stuck partitions and runs that are due.
    pub async fn look_after(&self) -> Result<(), StoreError> {
        upkeep::look_after(self).await
    }

    /// Partitions that have not gone on for as long as their source allows.
    pub async fn stuck(&self) -> Result<Vec<super::PartitionKey>, StoreError> {
        let mut stuck = Vec::new();
        for source in self.sources() {
            let latest = self.jobs.store().runs(Some(source.name.clone()), None, 1).await?;
            for state in latest {
                let (run, after) = (&state.run, source.settings.stuck_after);
                let partitions = state.partitions.iter().filter(|p| p.is_stuck(run.status, after, state.now));
                stuck
                    .extend(partitions.map(|p| super::PartitionKey { run: run.id, partition: p.id.clone() }));
            }
        }
        Ok(stuck)
    }

    /// Starts a run.
    pub async fn start(&self, asked: Asked) -> Result<RunId, StartError> {
        let Some(source) = self.source(&asked.source) else {
            return Err(StartError::NoSource(asked.source));
        };
        let settings = &source.settings;
        let limit = asked.limit.unwrap_or(settings.page_limit);
        if !(1..=settings.page_max).contains(&limit) {
            return Err(StartError::Invalid(format!("`limit` is 1 to {}", settings.page_max)));
        }
        if limit <= settings.page_overlap {
            let least = settings.page_overlap + 1;
            return Err(StartError::Invalid(format!("`limit` is at least {least}, for pages overlap")));
        }
        check_partitions(&asked.partitions).map_err(StartError::Invalid)?;
        let id = RunId::new();
        let details = serde_json::json!({
            "source": asked.source, "mode": asked.mode, "force": asked.force, "limit": limit,
            "partitions": asked.partitions.len(),
        });
        let mut event = NewEvent::new(subject(id), "run_started").details(Json::of(&details));
        event.request_id = asked.request_id;
        let run = NewRun {
            id,
            job: OfRun::schedule(id, source, asked.trace.clone()),
            source: asked.source,
            mode: asked.mode,
            force: asked.force,
            limit,
            overlap: settings.overlap,
            partitions: asked.partitions,
            not_within: asked.not_within,
            trace: asked.trace,
            event,
        };
        match self.jobs.store().start_run(run).await? {
            Started::Started => {
                self.jobs.wake([SCHEDULE]);
                Ok(id)
            }
            Started::Active { run } => Err(StartError::Active(run)),
            Started::NotDue => Err(StartError::NotDue),
        }
    }

    /// Stops a run: nothing more is fetched, and nothing of the pages in hand is written.
    pub async fn cancel(&self, id: RunId) -> Result<RunState, ChangeError> {
        self.change(id, |state| {
            let run = &state.run;
            if !run.status.is_active() {
                return Err(ChangeError::State(format!("the run is {}", run.status.word())));
            }
            let mut cancel: Vec<(String, String)> =
                [SCHEDULE, CONSOLIDATE].map(|queue| (queue.to_owned(), run_key(queue, id))).into();
            cancel.extend(state.partitions.iter().map(|partition| {
                let of = super::PartitionKey { run: id, partition: partition.id.clone() };
                (WORK_ITEMS.to_owned(), item_key(&of, partition.next_offset))
            }));
            let told = NewEvent::new(subject(id), "run_cancelled");
            Ok(RunChange { cancel, ..change_of(state, RunStatus::Cancelled, told) })
        })
        .await
    }

    /// Goes on with what is unfinished of a cancelled or failed run.
    pub async fn resume(&self, id: RunId) -> Result<RunState, ChangeError> {
        self.change(id, |state| {
            let run = &state.run;
            if !matches!(run.status, RunStatus::Cancelled | RunStatus::Failed) {
                return Err(ChangeError::State(format!("the run is {}", run.status.word())));
            }
            let source = self.settings(state)?;
            let unfinished: Vec<SetGoing> = state
                .partitions
                .iter()
                .filter(|p| p.status != PartitionStatus::Completed)
                .map(stay)
                .collect();
            let told = NewEvent::new(subject(id), "run_resumed")
                .details(Json::of(&serde_json::json!({"partitions": unfinished.len()})));
            let (to, jobs) = if run.expected == 0 {
                (RunStatus::Scheduling, vec![OfRun::schedule(id, source, run.trace.clone())])
            } else if unfinished.is_empty() {
                (RunStatus::Consolidating, vec![OfRun::consolidate(run, source)])
            } else {
                (RunStatus::Running, message::carriers(run, &state.partitions, &source.settings).collect())
            };
            let going = if to == RunStatus::Running { unfinished } else { Vec::new() };
            Ok(RunChange { going, jobs, ..change_of(state, to, told) })
        })
        .await
    }

    /// Sets a failed partition going again, from where it is. The run is then running again.
    pub async fn retry_partition(&self, id: RunId, partition: &str) -> Result<RunState, ChangeError> {
        self.set_going(id, partition, None).await
    }

    /// Sets a partition going from an offset.
    pub async fn reset_partition(
        &self,
        id: RunId,
        partition: &str,
        next_offset: u64,
    ) -> Result<RunState, ChangeError> {
        self.set_going(id, partition, Some(next_offset)).await
    }

    async fn set_going(&self, id: RunId, pid: &str, reset: Option<u64>) -> Result<RunState, ChangeError> {
        self.change(id, |state| {
            let run = &state.run;
            let found = state.partitions.iter().find(|partition| partition.id == pid);
            let partition = found.ok_or(ChangeError::NotFound("partition"))?;
            if !matches!(run.status, RunStatus::Running | RunStatus::Failed | RunStatus::Cancelled) {
                return Err(ChangeError::State(format!("the run is {}", run.status.word())));
            }
            if reset.is_none() && partition.status != PartitionStatus::Failed {
                return Err(ChangeError::State("only a failed partition can be retried".to_owned()));
            }
            let settings = &self.settings(state)?.settings;
            let next_offset = reset.unwrap_or(partition.next_offset);
            let item = WorkItem::of(run, pid, partition.range, partition.total, next_offset);
            let event = if reset.is_some() { "partition_reset" } else { "partition_retried" };
            let details = serde_json::json!({"partitionId": pid, "nextOffset": next_offset});
            let told = NewEvent::new(subject(id), event).details(Json::of(&details));
            Ok(RunChange {
                going: vec![SetGoing { next_offset, ..stay(partition) }],
                jobs: vec![message::anew(item.job(settings, run.trace.clone()))],
                ..change_of(state, RunStatus::Running, told)
            })
        })
        .await
    }

    /// Makes a change to a run as it is found, and again if it is found otherwise.
    pub(super) async fn change(
        &self,
        id: RunId,
        wanted: impl Fn(&RunState) -> Result<RunChange, ChangeError>,
    ) -> Result<RunState, ChangeError> {
        for _ in 0..TRIES {
            let state = self.jobs.store().run(id).await?.ok_or(ChangeError::NotFound("run"))?;
            let change = wanted(&state)?;
            let queues: Vec<String> = change.jobs.iter().map(|job| job.queue.clone()).collect();
            match self.jobs.store().change_run(change).await? {
                Changed::Made => {
                    self.jobs.wake(queues.iter().map(String::as_str));
                    return self.jobs.store().run(id).await?.ok_or(ChangeError::NotFound("run"));
                }
                Changed::Active { run } => return Err(ChangeError::Active(run)),
                Changed::Superseded => {
                    let why = "a later run of the source is current";
                    return Err(ChangeError::State(why.to_owned()));
                }
                Changed::Otherwise => {}
            }
        }
        Err(ChangeError::State("the run changes all the time; try again".to_owned()))
    }

    fn settings(&self, state: &RunState) -> Result<&Arc<FeedSource>, ChangeError> {
        let name = &state.run.source;
        self.source(name)
            .ok_or_else(|| ChangeError::State(format!("the source `{name}` is not configured any more")))
    }

    /// A stream of what is current of a source, or of what a run saw. None if there is no such
    /// thing.
    pub async fn stream(&self, what: PinWhat) -> Result<Option<Stream>, StoreError> {
        let Ok(place) = self.streams.clone().try_acquire_owned() else {
            return Err(StoreError::Overloaded);
        };
        let Some(pinned) = self.jobs.store().pin(what).await? else { return Ok(None) };
        let ends = Instant::now() + limits::STREAM_TIME;
        Ok(Some(Stream { feed: self.clone(), pinned, after: None, ended: false, ends, _place: place }))
    }
}

/// Records of a state that does not change while it is read, a few at a time.
pub struct Stream {
    feed: Feed,
    /// What is read.
    pub pinned: Pinned,
    after: Option<String>,
    ended: bool,
    ends: Instant,
    _place: OwnedSemaphorePermit,
}

impl Stream {
    /// The next records; none when that was all.
    pub async fn next(&mut self) -> Result<Vec<StoredRecord>, StoreError> {
        if self.ended {
            return Ok(Vec::new());
        }
        if Instant::now() >= self.ends {
            return Err(StoreError::Refused("the stream takes too long".to_owned()));
        }
        let (pinned, after) = (self.pinned, self.after.clone());
        let records = self.feed.jobs.store().records(pinned, after, limits::STREAM_BATCH).await?;
        self.ended = records.len() < limits::STREAM_BATCH as usize;
        self.after = records.last().map(|record| record.id.clone());
        Ok(records)
    }
}

/// The timeline of a run.
pub(super) fn subject(run: RunId) -> String {
    format!("run:{run}")
}

/// A change of a run's status, of which this is told.
pub(super) fn change_of(state: &RunState, to: RunStatus, told: NewEvent) -> RunChange {
    RunChange {
        run: state.run.id,
        from: state.run.status,
        to,
        going: Vec::new(),
        stuck: Vec::new(),
        jobs: Vec::<NewJob>::new(),
        cancel: Vec::new(),
        events: vec![told],
    }
}

/// Goes on where it is.
fn stay(partition: &Partition) -> SetGoing {
    let at = partition.next_offset;
    SetGoing { partition: partition.id.clone(), seen_at: at, next_offset: at }
}

/// What is wrong with partitions that a client wants, if anything is.
fn check_partitions(partitions: &[NewPartition]) -> Result<(), String> {
    if partitions.len() > limits::PARTITIONS_MAX {
        return Err(format!("`partitions` has at most {} of them", limits::PARTITIONS_MAX));
    }
    let mut ids = std::collections::BTreeSet::new();
    for (place, partition) in partitions.iter().enumerate() {
        let id = &partition.id;
        let max = limits::RECORD_ID_BYTES_MAX;
        if id.is_empty() || id.len() > max || id.chars().any(char::is_control) {
            return Err(format!("`partitions[{place}].partitionId` has 1 to {max} printable bytes"));
        }
        if partition.range.min > partition.range.max {
            return Err(format!("`partitions[{place}].minPrice` is above `maxPrice`"));
        }
        if !ids.insert(id) {
            return Err(format!("`partitions[{place}].partitionId`: `{id}` is there twice"));
        }
    }
    Ok(())
}
