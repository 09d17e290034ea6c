//! Runs of feeds from their start to their end, with solely's own handlers and worker.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use solely_core::commit::Settled;
use solely_core::event::NewEvent;
use solely_core::feed::source::{Found, Scope, Source, Window};
use solely_core::feed::{
    Asked, ChangeError, Counts, End, Feed, FeedSource, Mode, NewPartition, PartitionStatus, PinWhat,
    PriceRange, RunState, RunStatus, SCHEDULE, SourceSettings, StartError, StoredRecord, WORK_DONE,
    WORK_ITEMS, WorkItem,
};
use solely_core::job::{ClaimReply, ClaimRequest, JobState, NewJob, ReviveRequest, Window as Duplicates};
use solely_core::queue::JobFilter;
use solely_core::upstream::{CallFailed, Upstream, UpstreamError, UpstreamKind, UpstreamLimits};
use solely_core::worker::{Backoff, Worker};
use solely_core::{Json, RunId};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::World;
use crate::world::secs;

const SOURCE: &str = "shelf";

/// A record on the shelf.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stone {
    id: String,
    price: i64,
    text: String,
}

fn stone(number: usize, price: i64) -> Stone {
    Stone { id: format!("stone-{number:04}"), price, text: "as it was".to_owned() }
}

/// Why a call fails.
type Fault = Box<dyn FnMut(&Scope, Option<&Window>) -> Option<CallFailed<UpstreamError>> + Send>;

/// What happens to the stones once a page was taken.
type Afterwards = Box<dyn FnMut(&mut Vec<Stone>) + Send>;

/// What is on the shelf, and how it behaves.
#[derive(Default)]
struct State {
    stones: Vec<Stone>,
    fault: Option<Fault>,
    /// Done after a page was taken.
    after_page: Option<Afterwards>,
    pages: BTreeMap<(i64, u64), u32>,
    scopes: Vec<Scope>,
    short_page_at: Option<u64>,
}

/// A source in memory.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<State>>);

impl Shelf {
    fn of(stones: Vec<Stone>) -> Self {
        let shelf = Self::default();
        shelf.state().stones = stones;
        shelf
    }

    /// So many stones, one of each price.
    fn with(count: usize) -> Self {
        Self::of((0..count).map(|number| stone(number, i64::try_from(number).unwrap_or(0))).collect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fails(
        &self,
        fault: impl FnMut(&Scope, Option<&Window>) -> Option<CallFailed<UpstreamError>> + Send + 'static,
    ) {
        self.state().fault = Some(Box::new(fault));
    }

    fn heals(&self) {
        self.state().fault = None;
    }

    fn pages_fetched(&self) -> u32 {
        self.state().pages.values().sum()
    }
}

fn transient(why: &str) -> CallFailed<UpstreamError> {
    CallFailed { error: UpstreamError::Transient(why.to_owned()), blame: false, retry_after: None }
}

fn permanent(why: &str) -> CallFailed<UpstreamError> {
    CallFailed { error: UpstreamError::Permanent(why.to_owned()), blame: false, retry_after: None }
}

#[async_trait]
impl Source for Shelf {
    async fn count(&self, scope: &Scope) -> Result<u64, CallFailed<UpstreamError>> {
        let mut state = self.state();
        if let Some(failed) = state.fault.as_mut().and_then(|fault| fault(scope, None)) {
            return Err(failed);
        }
        let within = |stone: &&Stone| (scope.range.min..=scope.range.max).contains(&stone.price);
        Ok(state.stones.iter().filter(within).count() as u64)
    }

    async fn page(&self, scope: &Scope, window: &Window) -> Result<Vec<Found>, CallFailed<UpstreamError>> {
        let mut state = self.state();
        *state.pages.entry((scope.range.min, window.offset)).or_default() += 1;
        state.scopes.push(scope.clone());
        if let Some(failed) = state.fault.as_mut().and_then(|fault| fault(scope, Some(window))) {
            return Err(failed);
        }
        let within = |stone: &&Stone| (scope.range.min..=scope.range.max).contains(&stone.price);
        let short = state.short_page_at == Some(window.offset);
        let limit = if short { window.limit / 2 } else { window.limit };
        let taken = state.stones.iter().filter(within).skip(usize::try_from(window.offset).unwrap_or(0));
        let found: Vec<Found> = taken
            .take(usize::try_from(limit).unwrap_or(0))
            .map(|stone| Found {
                id: stone.id.clone(),
                payload: Json::of(&serde_json::json!({"id": stone.id, "text": stone.text})),
                price: Some(stone.price),
            })
            .collect();
        let State { stones, after_page, .. } = &mut *state;
        if let Some(after) = after_page {
            after(stones);
        }
        Ok(found)
    }
}

/// Prices up to 99, pages of ten, at most four partitions.
fn settings() -> SourceSettings {
    SourceSettings {
        page_limit: 10,
        page_max: 50,
        page_overlap: 0,
        range: PriceRange { min: 0, max: 999 },
        overlap: secs(900),
        max_partitions: 4,
        min_records_per_partition: 20,
        concurrency: 4,
        timeout: secs(10),
        lock: secs(60),
        max_deliveries: 3,
        duplicate_window: secs(600),
        stuck_after: secs(600),
        every: None,
        end: End::ShortPage,
    }
}

/// A feed of one shelf, and a worker.
struct Field {
    world: World,
    feed: Feed,
    shelf: Shelf,
    stop: CancellationToken,
    worker: Option<JoinHandle<()>>,
}

impl Field {
    fn new(world: World, shelf: Shelf, settings: SourceSettings) -> Self {
        let limits = UpstreamLimits {
            name: SOURCE.to_owned(),
            kind: UpstreamKind::Source,
            timeout: settings.timeout,
            concurrency: settings.concurrency,
            rate: None,
            failures: 40,
        };
        let source = FeedSource {
            name: SOURCE.to_owned(),
            settings,
            upstream: Arc::new(Upstream::new(limits, world.store())),
            source: Arc::new(shelf.clone()),
        };
        let feed = Feed::new(world.jobs(), [source]);
        Self { world, feed, shelf, stop: CancellationToken::new(), worker: None }
    }

    /// The same with a worker at work.
    fn at_work(world: World, shelf: Shelf, settings: SourceSettings) -> Self {
        let mut field = Self::new(world, shelf, settings);
        field.work();
        field
    }

    fn work(&mut self) {
        let mut queues = self.feed.queues();
        for spec in &mut queues {
            spec.backoff = Backoff { first: Duration::from_millis(5), longest: Duration::from_millis(20) };
        }
        let (jobs, process) = (self.world.jobs(), self.world.process);
        let worker = Worker { jobs, process, queues, grace: secs(5) };
        self.worker = Some(tokio::spawn(worker.run(self.stop.clone())));
    }

    async fn start(&self) -> RunId {
        self.start_as(Asked::default()).await
    }

    async fn start_as(&self, asked: Asked) -> RunId {
        self.feed.start(Asked { source: SOURCE.to_owned(), ..asked }).await.expect("starts")
    }

    async fn state(&self, run: RunId) -> RunState {
        self.world.store().run(run).await.expect("reads").expect("is there")
    }

    /// Waits until something is so of a run.
    async fn until(&self, run: RunId, what: &str, so: impl Fn(&RunState) -> bool) -> RunState {
        let deadline = std::time::Instant::now() + secs(30);
        loop {
            let state = self.state(run).await;
            if so(&state) {
                return state;
            }
            assert!(std::time::Instant::now() < deadline, "{what}: {state:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn ended(&self, run: RunId) -> RunState {
        self.until(run, "it ends", |state| !state.run.status.is_active()).await
    }

    async fn current(&self) -> Vec<StoredRecord> {
        let mut stream =
            self.feed.stream(PinWhat::Current(SOURCE.to_owned())).await.expect("reads").expect("is there");
        let mut all = Vec::new();
        loop {
            let some = stream.next().await.expect("reads");
            if some.is_empty() {
                return all;
            }
            all.extend(some);
        }
    }

    /// Asserts that what is current is what is on the shelf.
    async fn assert_copied(&self) {
        let mut ids: Vec<String> = self.shelf.state().stones.iter().map(|stone| stone.id.clone()).collect();
        ids.sort();
        let current: Vec<String> = self.current().await.into_iter().map(|record| record.id).collect();
        assert_eq!(current, ids);
        self.world.assert_sound().await;
    }

    async fn jobs(&self, queue: &str, state: Option<JobState>) -> Vec<solely_core::job::Job> {
        let filter = JobFilter { queue: Some(queue.to_owned()), state, limit: 200, ..JobFilter::default() };
        self.world.store().jobs(filter).await.expect("lists")
    }

    async fn told(&self, run: RunId) -> Vec<String> {
        self.world.told(&format!("run:{run}")).await
    }
}

/// Everything is copied, each page is fetched once, each partition ends once, one consolidation.
pub async fn a_run_copies_everything_once(world: World) {
    let field = Field::at_work(world, Shelf::with(97), settings());
    let run = field.start().await;
    let state = field.ended(run).await;
    assert_eq!(state.run.status, RunStatus::Completed, "{state:#?}");
    assert_eq!(state.run.counts, Some(Counts { added: 97, ..Counts::default() }));
    assert_eq!((state.run.expected, state.run.completed, state.run.failed), (4, 4, 0));
    let minimum: u64 =
        state.partitions.iter().map(|partition| partition.total.expect("counted") / 10 + 1).sum();
    assert_eq!(u64::from(field.shelf.pages_fetched()), minimum);
    assert_eq!(field.jobs(WORK_DONE, None).await.len(), 4);
    assert_eq!(field.jobs("consolidate", None).await.len(), 1);
    let item = &field.jobs(WORK_ITEMS, None).await[0];
    let attributes: serde_json::Value = item.attributes.parse().expect("an object");
    let expected =
        format!("{run}:{}:{}", attributes["partitionId"].as_str().expect("text"), attributes["offset"]);
    assert_eq!((item.key.as_str(), &attributes["limit"]), (expected.as_str(), &10.into()));
    let told = field.told(run).await;
    assert_eq!(told[..2], ["run_started", "run_scheduled"]);
    assert_eq!(told[told.len() - 2..], ["run_consolidating", "run_completed"]);
    field.assert_copied().await;
}

/// The second run counts what is new, changed, unchanged and gone.
pub async fn a_second_run_tells_what_changed(world: World) {
    let field = Field::at_work(world, Shelf::with(60), settings());
    let first = field.start().await;
    field.ended(first).await;
    {
        let mut state = field.shelf.state();
        state.stones.remove(30);
        "changed".clone_into(&mut state.stones[0].text);
        state.stones.push(stone(900, 7));
    }
    let second = field.start().await;
    let counts = field.ended(second).await.run.counts;
    assert_eq!(counts, Some(Counts { added: 1, changed: 1, unchanged: 58, removed: 1 }));
    field.assert_copied().await;
    let by_second = field.current().await.iter().filter(|record| record.run == second).count();
    assert_eq!(by_second, 2, "what is unchanged is not written again");
}

/// The document: *partition stuck at same offset*, because its message is gone. It is reported and
/// set going from its row.
pub async fn a_partition_whose_message_is_gone_is_set_going_again(world: World) {
    let mut field = Field::new(world, Shelf::with(30), SourceSettings { max_partitions: 1, ..settings() });
    let run = field.start().await;
    field.work();
    field.until(run, "a page", |state| state.partitions.first().is_some_and(|p| p.next_offset >= 10)).await;
    field.ended(run).await;
    // As if the worker had died between its progress and its next message, in a system that has
    // such a moment.
    field.shelf.state().stones.extend((30..60).map(|number| stone(number, 5)));
    let run = field.start().await;
    field.until(run, "a page", |state| state.partitions.first().is_some_and(|p| p.next_offset >= 10)).await;
    field
        .world
        .store()
        .pause(WORK_ITEMS.to_owned(), Some(solely_core::Timestamp::FAR_FUTURE))
        .await
        .expect("pauses");
    // A claim that began before the pause may still take the message: it is lost only once it was cancelled.
    loop {
        let mut live = field.jobs(WORK_ITEMS, None).await;
        live.retain(|job| matches!(job.state, JobState::Ready | JobState::Retrying | JobState::Running));
        if live.is_empty() {
            // It was quicker than the pause.
            assert_eq!(field.ended(run).await.run.status, RunStatus::Completed);
            return;
        }
        let keys = live.iter().map(|job| job.key.clone()).collect();
        let lost = field.world.store().cancel(WORK_ITEMS.to_owned(), keys).await.expect("cancels");
        if lost.len() == live.len() {
            break;
        }
        tokio::task::yield_now().await;
    }
    field.world.store().pause(WORK_ITEMS.to_owned(), None).await.expect("resumes");
    field.world.live_through(secs(601)).await;
    field.feed.look_after().await.expect("looks");
    let state = field.ended(run).await;
    assert_eq!(state.run.status, RunStatus::Completed);
    assert!(field.told(run).await.contains(&"partition_stuck".to_owned()));
    field.assert_copied().await;
}

/// The document: *Service Bus queue paused*. The partition is reported as stuck, and goes on by
/// itself once the queue does.
pub async fn a_paused_queue_is_reported_and_goes_on(world: World) {
    let field = Field::at_work(world, Shelf::with(30), settings());
    let far = Some(solely_core::Timestamp::FAR_FUTURE);
    field.world.jobs().pause(WORK_ITEMS.to_owned(), far).await.expect("pauses");
    let run = field.start().await;
    field.until(run, "scheduled", |state| state.run.status == RunStatus::Running).await;
    field.world.live_through(secs(601)).await;
    field.feed.look_after().await.expect("looks");
    field.feed.look_after().await.expect("looks");
    let state = field.state(run).await;
    assert!(state.partitions.iter().all(|p| p.is_stuck(RunStatus::Running, secs(600), state.now)));
    let reports = field.told(run).await.iter().filter(|event| *event == "partition_stuck").count();
    assert_eq!(reports, state.partitions.len(), "once each");
    assert_eq!(field.jobs(WORK_ITEMS, None).await.len(), state.partitions.len(), "no message is doubled");
    field.world.jobs().pause(WORK_ITEMS.to_owned(), None).await.expect("resumes");
    assert_eq!(field.ended(run).await.run.status, RunStatus::Completed);
}

/// The document: *duplicate processing detected*. A copy of a message changes nothing, is
/// acknowledged and told of; the window stops one that is sent from outside.
pub async fn a_duplicate_message_changes_nothing_and_is_told_of(world: World) {
    let field = Field::at_work(world, Shelf::with(35), SourceSettings { max_partitions: 1, ..settings() });
    let run = field.start().await;
    let state = field.ended(run).await;
    let fetched = field.shelf.pages_fetched();
    let partition = &state.partitions[0];
    let item = WorkItem::of(&state.run, &partition.id, partition.range, partition.total, 10);
    let copy = item.job(&settings(), None);
    let outside = NewJob { window: Duplicates::Check(secs(600)), ..copy.clone() };
    let answer = field.world.enqueue(outside).await;
    assert!(matches!(answer, solely_core::job::Enqueued::InWindow { .. }), "{answer:?}");
    field.world.jobs().enqueue(vec![copy]).await.expect("enqueues");
    while !field.told(run).await.contains(&"feed_offset_mismatch".to_owned()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(field.shelf.pages_fetched(), fetched, "nothing was fetched");
    assert!(field.jobs(WORK_ITEMS, Some(JobState::Ready)).await.is_empty());
    field.assert_copied().await;
}

/// A message for where its partition was makes the one for where it is, should that be gone.
pub async fn an_old_message_finds_a_partition_that_nothing_carries(world: World) {
    let mut field = Field::new(world, Shelf::with(45), SourceSettings { max_partitions: 1, ..settings() });
    let run = field.start().await;
    // Everything but the pages is worked by hand.
    field.shelf.fails(|_, window| window.filter(|window| window.offset == 20).map(|_| permanent("wait")));
    field.work();
    let state = field.ended(run).await;
    assert_eq!(state.partitions[0].next_offset, 20);
    field.shelf.heals();
    let change = solely_core::feed::RunChange {
        run,
        from: RunStatus::Failed,
        to: RunStatus::Running,
        going: vec![solely_core::feed::SetGoing {
            partition: state.partitions[0].id.clone(),
            seen_at: 20,
            next_offset: 20,
        }],
        stuck: Vec::new(),
        jobs: Vec::new(),
        cancel: Vec::new(),
        events: vec![NewEvent::new("test", "its message is lost")],
    };
    field.world.store().change_run(change).await.expect("changes");
    let partition = &state.partitions[0];
    let old =
        WorkItem::of(&state.run, &partition.id, partition.range, partition.total, 0).job(&settings(), None);
    field.world.jobs().enqueue(vec![old]).await.expect("enqueues");
    assert_eq!(field.ended(run).await.run.status, RunStatus::Completed);
    field.assert_copied().await;
}

/// The document: *worker run not found*. A message of a run that is not there is done with.
pub async fn a_message_of_no_run_is_done_with(world: World) {
    let field = Field::at_work(world, Shelf::with(5), settings());
    let run = field.start().await;
    let state = field.ended(run).await;
    let mut gone = state.run.clone();
    gone.id = RunId::new();
    let item = WorkItem::of(&gone, "partition-1", PriceRange { min: 0, max: 9 }, None, 0);
    let job = item.job(&settings(), None);
    let id = job.id;
    field.world.jobs().enqueue(vec![job]).await.expect("enqueues");
    while field.world.state(id).await != JobState::Completed {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Errors that pass are tried again, and are seen meanwhile.
pub async fn errors_that_pass_are_tried_again(world: World) {
    let shelf = Shelf::with(45);
    let mut left = 2;
    shelf.fails(move |_, window| {
        let fails = window.is_some_and(|window| window.offset == 10) && left > 0;
        left -= i32::from(fails);
        fails.then(|| transient("the upstream answered 503"))
    });
    let field = Field::at_work(world, shelf, SourceSettings { max_partitions: 1, ..settings() });
    let run = field.start().await;
    assert_eq!(field.ended(run).await.run.status, RunStatus::Completed);
    let tried = field.jobs(WORK_ITEMS, None).await.iter().map(|job| job.attempts).max();
    assert_eq!(tried, Some(3));
    field.assert_copied().await;
}

/// An upstream that asks to be left alone is, by every message; none loses an attempt by it.
pub async fn an_upstream_that_asks_to_be_left_alone_is(world: World) {
    let shelf = Shelf::with(45);
    let began = std::time::Instant::now();
    let mut asked = 0;
    shelf.fails(move |_, window| {
        window?;
        asked += 1;
        (asked <= 6).then(|| CallFailed {
            error: UpstreamError::Throttled("the upstream answered 429".to_owned()),
            blame: false,
            retry_after: Some(Duration::from_millis(300)),
        })
    });
    let field = Field::at_work(world, shelf, SourceSettings { max_deliveries: 1, ..settings() });
    let run = field.start().await;
    assert_eq!(field.ended(run).await.run.status, RunStatus::Completed);
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    field.assert_copied().await;
}

/// A page that cannot be mended is a dead letter at once and fails its partition with the reason;
/// the rest of the run is unharmed. Healed and retried it goes on from where it was.
pub async fn a_page_that_cannot_be_mended_fails_its_partition_only(world: World) {
    let shelf = Shelf::with(97);
    shelf.fails(|scope, window| {
        let bad = scope.range.min == 0 && window.is_some_and(|window| window.offset == 10);
        bad.then(|| permanent("the upstream answered 400"))
    });
    let field = Field::at_work(world, shelf, settings());
    let run = field.start().await;
    let state = field.ended(run).await;
    assert_eq!(state.run.status, RunStatus::Failed);
    assert_eq!((state.run.completed, state.run.failed), (3, 1));
    assert_eq!(state.run.error.as_deref(), Some("1 of 4 partitions failed"));
    let failed = &state.partitions[0];
    assert_eq!((failed.status, failed.next_offset), (PartitionStatus::Failed, 10));
    assert_eq!(failed.error.as_deref(), Some("the upstream answered 400"));
    assert_eq!(failed.attempts, 1, "it was not tried again");
    assert_eq!(field.jobs(WORK_ITEMS, Some(JobState::Dead)).await.len(), 1);
    assert!(field.jobs("consolidate", None).await.is_empty(), "skipped");
    field.shelf.heals();
    let fetched = field.shelf.pages_fetched();
    let retried = field.feed.retry_partition(run, &failed.id).await.expect("is retried");
    assert!(retried.run.status.is_active() || retried.run.status == RunStatus::Completed);
    let state = field.ended(run).await;
    assert_eq!((state.run.status, state.run.failed), (RunStatus::Completed, 0), "{state:#?}");
    assert_eq!(field.shelf.state().pages[&(0, 0)], 1, "its first page is not fetched again");
    assert!(field.shelf.pages_fetched() - fetched <= 3);
    let endings = field.jobs(WORK_DONE, None).await;
    assert_eq!(endings.len(), 5, "it ended twice, the others once");
    field.assert_copied().await;
}

/// A page that fails whenever it is tried is given up after as many deliveries as there may be.
pub async fn a_page_that_always_fails_is_given_up(world: World) {
    let shelf = Shelf::with(60);
    shelf.fails(|scope, window| {
        let bad = scope.range.min == 0 && window.is_some_and(|window| window.offset == 10);
        bad.then(|| transient("the upstream answered 500"))
    });
    let field = Field::at_work(world, shelf, settings());
    let run = field.start().await;
    let state = field.ended(run).await;
    assert_eq!((state.run.status, state.run.failed), (RunStatus::Failed, 1));
    assert_eq!(state.partitions[0].attempts, 3);
    assert_eq!(field.shelf.state().pages[&(0, 10)], 3);
}

/// Several partitions that always fail are given up soon: it takes more than that for the source to
/// be taken for away.
pub async fn partitions_that_always_fail_are_given_up_soon(world: World) {
    let shelf = Shelf::with(100);
    shelf.fails(|scope, window| {
        (window.is_some() && scope.range.min > 0).then(|| CallFailed { blame: true, ..transient("500") })
    });
    let field = Field::at_work(world, shelf, settings());
    let run = field.start().await;
    let state = field.ended(run).await;
    assert_eq!((state.run.status, state.run.completed, state.run.failed), (RunStatus::Failed, 1, 3));
}

/// A dead letter that is brought back sets its partition going, and the run with it.
pub async fn a_dead_letter_that_is_brought_back_sets_its_partition_going(world: World) {
    let shelf = Shelf::with(60);
    shelf.fails(|scope, window| {
        let bad = scope.range.min == 0 && window.is_some_and(|window| window.offset == 10);
        bad.then(|| permanent("the upstream answered 400"))
    });
    let field = Field::at_work(world, shelf, settings());
    let run = field.start().await;
    assert_eq!(field.ended(run).await.run.status, RunStatus::Failed);
    field.shelf.heals();
    let redrive = ReviveRequest { queue: Some(WORK_ITEMS.to_owned()), limit: 10, ..ReviveRequest::default() };
    field.world.jobs().revive(redrive).await.expect("revives");
    field.until(run, "completes", |state| state.run.status == RunStatus::Completed).await;
    field.assert_copied().await;
}

/// The dead letter of a run that could not be planned, brought back, plans it.
pub async fn a_plan_that_is_brought_back_goes_on(world: World) {
    let shelf = Shelf::with(60);
    shelf.fails(|_, window| window.is_none().then(|| permanent("the upstream answered 403")));
    let field = Field::at_work(world, shelf, settings());
    let run = field.start().await;
    assert_eq!(field.ended(run).await.run.status, RunStatus::Failed);
    field.shelf.heals();
    let redrive = ReviveRequest { queue: Some(SCHEDULE.to_owned()), limit: 10, ..ReviveRequest::default() };
    field.world.jobs().revive(redrive).await.expect("revives");
    field.until(run, "completes", |state| state.run.status == RunStatus::Completed).await;
    field.assert_copied().await;
}

/// A source that asks to be left alone while it is planned is; the plan goes on from where it was, and spends
/// no attempt.
pub async fn a_plan_waits_for_a_source_that_asks_for_it(world: World) {
    let shelf = Shelf::with(60);
    let mut asked = 0;
    shelf.fails(move |_, window| {
        if window.is_some() {
            return None;
        }
        asked += 1;
        (asked % 3 == 0).then(|| CallFailed {
            error: UpstreamError::Throttled("the upstream answered 429".to_owned()),
            blame: false,
            retry_after: Some(Duration::from_millis(30)),
        })
    });
    let field = Field::at_work(world, shelf, SourceSettings { max_deliveries: 1, ..settings() });
    let run = field.start().await;
    assert_eq!(field.ended(run).await.run.status, RunStatus::Completed);
    field.assert_copied().await;
}

/// The watermark stays where it is for as long as something before it may not have been fetched.
pub async fn a_run_of_some_prices_moves_no_watermark(world: World) {
    let field = Field::at_work(world, Shelf::with(30), settings());
    let first = field.start().await;
    let state = field.ended(first).await;
    let (began, some) = (state.run.started_at, &state.partitions[0]);
    let only = NewPartition { id: some.id.clone(), range: some.range, total: None };
    let asked = Asked { mode: Mode::Incremental, partitions: vec![only], ..Asked::default() };
    let part = field.start_as(asked).await;
    assert_eq!(field.ended(part).await.run.status, RunStatus::Completed);
    let next = field.start_as(Asked { mode: Mode::Incremental, ..Asked::default() }).await;
    let updated = field.ended(next).await.run.updated.expect("is incremental");
    assert_eq!(updated.from, began.minus(secs(900)), "it begins where the last whole one did");
}

/// A run that says `force` is consolidated if seven in ten partitions succeeded, without what was
/// not fetched being reported as gone; one with fewer is not.
pub async fn a_forced_run_needs_seven_in_ten(world: World) {
    let field = Field::at_work(world, Shelf::with(100), settings());
    let first = field.start().await;
    let partitions = field.ended(first).await.partitions;
    let last = partitions[3].range;
    // Of each partition one is gone; of the last that is not known.
    field.shelf.state().stones.retain(|stone| stone.price % 25 != 3);
    field.shelf.fails(move |scope, window| {
        (window.is_some() && scope.range == last).then(|| permanent("the upstream answered 400"))
    });
    let wanted = |partitions: &[solely_core::feed::Partition]| {
        let same =
            |p: &solely_core::feed::Partition| NewPartition { id: p.id.clone(), range: p.range, total: None };
        partitions.iter().map(same).collect::<Vec<NewPartition>>()
    };
    let asked = Asked { force: true, partitions: wanted(&partitions), ..Asked::default() };
    let run = field.start_as(asked).await;
    let state = field.ended(run).await;
    assert_eq!((state.run.status, state.run.failed), (RunStatus::Completed, 1), "{state:#?}");
    assert_eq!(state.run.counts.expect("counted").removed, 3, "not the one that was not looked for");
    let half = Asked { force: true, partitions: wanted(&partitions[2..]), ..Asked::default() };
    let run = field.start_as(half).await;
    assert_eq!(field.ended(run).await.run.status, RunStatus::Failed, "one of two is not enough");
}

/// Partitions of a client's own report as gone only what they looked for, and may overlap.
pub async fn a_clients_partitions_report_only_what_they_looked_for(world: World) {
    let field = Field::at_work(world, Shelf::with(100), settings());
    let first = field.start().await;
    field.ended(first).await;
    field.shelf.state().stones.retain(|stone| stone.price % 10 != 0);
    let wanted =
        |id: &str, min, max| NewPartition { id: id.to_owned(), range: PriceRange { min, max }, total: None };
    let partitions = vec![wanted("low", 0, 29), wanted("middle", 20, 49)];
    let run = field.start_as(Asked { partitions, ..Asked::default() }).await;
    let state = field.ended(run).await;
    assert_eq!(
        state.run.counts.expect("counted"),
        Counts { added: 0, changed: 0, unchanged: 45, removed: 5 }
    );
    let processed: u64 = state.partitions.iter().map(|partition| partition.records).sum();
    assert_eq!(processed, 45, "a record in both is counted once");
    assert_eq!(field.current().await.len(), 95, "the others are as they were");
}

/// A record that a page has twice is one record, as it was said last.
pub async fn a_record_that_a_page_has_twice_is_one(world: World) {
    let mut stones: Vec<Stone> = (0..25).map(|number| stone(number, 1)).collect();
    let again = Stone { text: "said last".to_owned(), ..stones[3].clone() };
    stones.insert(5, again);
    stones.push(stones[0].clone());
    let field = Field::at_work(world, Shelf::of(stones), settings());
    let run = field.start().await;
    let state = field.ended(run).await;
    assert_eq!(state.run.counts, Some(Counts { added: 25, ..Counts::default() }), "{state:#?}");
    let current = field.current().await;
    assert_eq!(current.len(), 25);
    assert!(current[3].payload.as_str().contains("said last"), "{:?}", current[3]);
    field.world.assert_sound().await;
}

/// A cancelled run fetches nothing more; resumed it goes on with what is unfinished.
pub async fn a_cancelled_run_goes_on_where_it_was(world: World) {
    let shelf = Shelf::with(97);
    // Nothing gets beyond the second page of any partition.
    shelf.fails(|_, window| window.filter(|window| window.offset >= 10).map(|_| transient("later")));
    let field = Field::at_work(world, shelf, SourceSettings { max_deliveries: 1_000, ..settings() });
    let run = field.start().await;
    let at = |state: &RunState| {
        state.partitions.len() == 4 && state.partitions.iter().all(|p| p.next_offset == 10)
    };
    field.until(run, "at the second page", at).await;
    let cancelled = field.feed.cancel(run).await.expect("is cancelled");
    assert_eq!(cancelled.run.status, RunStatus::Cancelled);
    assert!(matches!(field.feed.cancel(run).await, Err(ChangeError::State(_))));
    field.shelf.heals();
    while !field.jobs(WORK_ITEMS, Some(JobState::Running)).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(field.state(run).await.partitions.iter().all(|p| p.next_offset == 10), "nothing is written");
    field.feed.resume(run).await.expect("is resumed");
    let state = field.ended(run).await;
    assert_eq!(state.run.status, RunStatus::Completed);
    assert!(field.shelf.state().pages.iter().filter(|((_, offset), _)| *offset == 0).all(|(_, n)| *n == 1));
    assert!(matches!(field.feed.resume(run).await, Err(ChangeError::State(_))));
    field.assert_copied().await;
}

/// A delivery that looked while the run was cancelled is done with its message; should the run be
/// resumed before it says so, its partition still has a message.
pub async fn a_run_that_is_resumed_while_its_messages_are_under_way_goes_on(world: World) {
    let mut field = Field::at_work(world, Shelf::with(60), settings());
    let far = Some(solely_core::Timestamp::FAR_FUTURE);
    field.world.jobs().pause(WORK_ITEMS.to_owned(), far).await.expect("pauses");
    let run = field.start().await;
    field.until(run, "scheduled", |state| state.run.status == RunStatus::Running).await;
    field.stop.cancel();
    field.worker.take().expect("works").await.expect("ends");
    field.world.jobs().pause(WORK_ITEMS.to_owned(), None).await.expect("resumes");
    let request = ClaimRequest {
        process: field.world.process,
        queue: WORK_ITEMS.to_owned(),
        limit: 10,
        lock: secs(60),
    };
    let reply = field.world.store().claim(request).await.expect("claims");
    let ClaimReply::Jobs { jobs: under_way, .. } = reply else { panic!("it is alive") };
    assert!(under_way.len() > 1);
    field.feed.cancel(run).await.expect("is cancelled");
    field.feed.resume(run).await.expect("is resumed");
    for delivery in under_way {
        assert_eq!(field.world.complete(delivery.claim).await, Settled::Applied);
    }
    field.stop = CancellationToken::new();
    field.work();
    assert_eq!(field.ended(run).await.run.status, RunStatus::Completed);
    field.assert_copied().await;
}

/// A partition that is set back reads again what it had read, and counts nothing twice.
pub async fn a_partition_that_is_set_back_counts_nothing_twice(world: World) {
    let shelf = Shelf::with(60);
    shelf.fails(|scope, window| {
        let bad = scope.range.min == 0 && window.is_some_and(|window| window.offset == 10);
        bad.then(|| permanent("the upstream answered 400"))
    });
    let field = Field::at_work(world, shelf, settings());
    let run = field.start().await;
    let state = field.ended(run).await;
    field.shelf.heals();
    field.feed.reset_partition(run, &state.partitions[0].id, 0).await.expect("is reset");
    let state = field.ended(run).await;
    assert_eq!(state.run.counts.expect("counted").added, 60);
    assert_eq!(state.partitions.iter().map(|p| p.records).sum::<u64>(), 60);
    let missing = field.feed.reset_partition(run, "nobody", 0).await;
    assert!(matches!(missing, Err(ChangeError::NotFound(_))), "{missing:?}");
}

/// An incremental run asks for what changed, from the last run's start and a little before.
pub async fn an_incremental_run_asks_for_what_changed(world: World) {
    let field = Field::at_work(world, Shelf::with(30), settings());
    let first = field.start().await;
    let began = field.ended(first).await.run.started_at;
    assert!(field.shelf.state().scopes.iter().all(|scope| scope.updated.is_none()), "a full run does not");
    field.shelf.state().scopes.clear();
    let run = field.start_as(Asked { mode: Mode::Incremental, ..Asked::default() }).await;
    let state = field.ended(run).await;
    assert_eq!(state.run.status, RunStatus::Completed);
    let scopes = std::mem::take(&mut field.shelf.state().scopes);
    for scope in scopes {
        let updated = scope.updated.expect("says so");
        assert_eq!((updated.from, updated.to), (began.minus(secs(900)), state.run.started_at));
    }
    assert_eq!(state.run.counts.expect("counted").removed, 0, "what it did not see has not vanished");
}

/// Where a short page may stand in the middle, only an empty one is the end.
pub async fn a_short_page_may_stand_in_the_middle(world: World) {
    let shelf = Shelf::with(40);
    shelf.state().short_page_at = Some(10);
    let one = SourceSettings { max_partitions: 1, end: End::EmptyPage, ..settings() };
    let field = Field::at_work(world, shelf, one);
    let run = field.start().await;
    field.ended(run).await;
    field.assert_copied().await;
}

/// The twin: taken for the end, it is one.
pub async fn a_short_page_is_the_end_otherwise(world: World) {
    let shelf = Shelf::with(40);
    shelf.state().short_page_at = Some(10);
    let field = Field::at_work(world, shelf, SourceSettings { max_partitions: 1, ..settings() });
    let run = field.start().await;
    let state = field.ended(run).await;
    assert_eq!((state.run.status, state.partitions[0].records), (RunStatus::Completed, 15));
}

/// Copies a shelf from which the first stone is taken after every other page, and answers how many of
/// those that were there throughout are missing.
async fn missing_while_stones_go(world: World, page_overlap: u32) -> usize {
    let shelf = Shelf::with(200);
    let mut pages = 0;
    shelf.state().after_page = Some(Box::new(move |stones| {
        pages += 1;
        if pages % 2 == 0 && pages < 20 {
            stones.remove(0);
        }
    }));
    let one = SourceSettings { max_partitions: 1, page_overlap, ..settings() };
    let field = Field::at_work(world, shelf, one);
    let run = field.start().await;
    assert_eq!(field.ended(run).await.run.status, RunStatus::Completed);
    let current: Vec<String> = field.current().await.into_iter().map(|record| record.id).collect();
    let state = field.shelf.state();
    state.stones.iter().filter(|stone| !current.contains(&stone.id)).count()
}

/// Records that move up while they are paged through are missed, one for each that went before them.
/// Pages that overlap miss none.
pub async fn overlapping_pages_miss_nothing_that_was_there_throughout(world: World) {
    assert_eq!(missing_while_stones_go(world, 2).await, 0);
}

/// The twin.
pub async fn without_overlap_what_moves_up_is_missed(world: World) {
    let missing = missing_while_stones_go(world, 0).await;
    assert!((5..=10).contains(&missing), "{missing} of nine that moved up");
}

/// Records that are added while a run goes on are there after the next incremental one at the latest.
pub async fn what_is_added_meanwhile_is_in_the_next_run(world: World) {
    let shelf = Shelf::with(60);
    let mut pages = 0_usize;
    shelf.state().after_page = Some(Box::new(move |stones| {
        pages += 1;
        if pages < 5 {
            stones.insert(0, stone(500 + pages, 0));
        }
    }));
    let field = Field::at_work(world, shelf, settings());
    let run = field.start().await;
    assert_eq!(field.ended(run).await.run.status, RunStatus::Completed);
    let next = field.start_as(Asked { mode: Mode::Incremental, ..Asked::default() }).await;
    field.ended(next).await;
    field.assert_copied().await;
}

/// A run that cannot be scheduled fails with the reason; resumed it is scheduled anew.
pub async fn a_run_that_cannot_be_scheduled_says_why(world: World) {
    let shelf = Shelf::with(30);
    shelf.fails(|_, window| window.is_none().then(|| permanent("the upstream answered 403")));
    let field = Field::at_work(world, shelf, settings());
    let run = field.start().await;
    let state = field.ended(run).await;
    assert_eq!(state.run.error.as_deref(), Some("the upstream answered 403"));
    assert_eq!(state.run.expected, 0);
    field.shelf.heals();
    field.feed.resume(run).await.expect("is resumed");
    assert_eq!(field.ended(run).await.run.status, RunStatus::Completed);
    field.assert_copied().await;
}

/// A source that answers more than it was asked for is not believed.
pub async fn a_source_that_answers_too_much_is_not_believed(world: World) {
    struct Generous;
    #[async_trait]
    impl Source for Generous {
        async fn count(&self, _: &Scope) -> Result<u64, CallFailed<UpstreamError>> {
            Ok(1)
        }
        async fn page(&self, _: &Scope, window: &Window) -> Result<Vec<Found>, CallFailed<UpstreamError>> {
            let found = |n: u32| Found { id: n.to_string(), payload: Json::empty(), price: None };
            Ok((0..=window.limit).map(found).collect())
        }
    }
    let mut field = Field::new(world, Shelf::default(), settings());
    let old = field.feed.source(SOURCE).expect("is there");
    let source = FeedSource {
        name: SOURCE.to_owned(),
        settings: settings(),
        upstream: old.upstream.clone(),
        source: Arc::new(Generous),
    };
    field.feed = Feed::new(field.world.jobs(), [source]);
    field.work();
    let run = field.start().await;
    let error = field.ended(run).await.partitions[0].error.clone().expect("a reason");
    assert!(error.contains("11 records where 10 were asked for"), "{error}");
}

/// A source that is due begins a run by itself, and not while one is active.
pub async fn a_run_begins_by_itself_when_it_is_due(world: World) {
    let field = Field::new(world, Shelf::with(5), SourceSettings { every: Some(secs(3_600)), ..settings() });
    field.feed.look_after().await.expect("looks");
    field.feed.look_after().await.expect("looks");
    let runs = async || field.world.store().runs(None, None, 10).await.expect("lists");
    assert_eq!(runs().await.len(), 1);
    field.world.live_through(secs(3_700)).await;
    field.feed.look_after().await.expect("looks");
    assert_eq!(runs().await.len(), 1, "skipped while one is active");
    field.feed.cancel(runs().await[0].run.id).await.expect("is cancelled");
    field.feed.look_after().await.expect("looks");
    assert_eq!(runs().await.len(), 2);
}

/// What is asked for is looked at before anything is begun.
pub async fn a_run_that_makes_no_sense_is_refused(world: World) {
    let field = Field::new(world, Shelf::default(), SourceSettings { page_overlap: 3, ..settings() });
    let wanted =
        |id: &str, min, max| NewPartition { id: id.to_owned(), range: PriceRange { min, max }, total: None };
    let partitions = |partitions: Vec<NewPartition>| Asked { partitions, ..Asked::default() };
    for (asked, names) in [
        (Asked { limit: Some(0), ..Asked::default() }, "`limit`"),
        (Asked { limit: Some(51), ..Asked::default() }, "`limit`"),
        (Asked { limit: Some(3), ..Asked::default() }, "`limit`"),
        (partitions(vec![wanted("", 0, 1)]), "`partitions[0].partitionId`"),
        (partitions(vec![wanted("a", 2, 1)]), "`partitions[0].minPrice`"),
        (partitions(vec![wanted("a", 0, 1), wanted("a", 2, 3)]), "`partitions[1].partitionId`"),
    ] {
        let refused = field.feed.start(Asked { source: SOURCE.to_owned(), ..asked }).await;
        let Err(StartError::Invalid(why)) = refused else { panic!("{names}: {refused:?}") };
        assert!(why.contains(names), "{why}");
    }
    let nobody = field.feed.start(Asked { source: "nobody".to_owned(), ..Asked::default() }).await;
    assert_eq!(nobody, Err(StartError::NoSource("nobody".to_owned())));
    assert!(field.world.store().runs(None, None, 10).await.expect("lists").is_empty());
}

impl Drop for Field {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(worker) = self.worker.take() {
            worker.abort();
        }
    }
}
