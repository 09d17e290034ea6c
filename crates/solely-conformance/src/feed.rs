//! The rows of feeds: the page transaction, counters, versions and the switch.

use std::time::Duration;

use solely_core::clock::Timestamp;
use solely_core::commit::{Commit, Effect, Settled, Verdict};
use solely_core::event::NewEvent;
use solely_core::feed::{
    Changed, Counts, Mode, NewPartition, NewRun, Page, PartitionKey, PartitionStatus, PinWhat, Pinned,
    PriceRange, Record, RunChange, RunStatus, SetGoing, Started, Step,
};
use solely_core::job::NewJob;
use solely_core::store::Retention;
use solely_core::{Json, RunId, limits};

use crate::World;
use crate::world::{QUEUE, secs};

const SOURCE: &str = "stones";

fn new_run(mode: Mode) -> NewRun {
    let id = RunId::new();
    NewRun {
        id,
        source: SOURCE.to_owned(),
        mode,
        force: false,
        limit: 2,
        overlap: secs(900),
        partitions: Vec::new(),
        not_within: None,
        trace: None,
        job: NewJob::new("schedule", id.to_string()),
        event: NewEvent::new(format!("run:{id}"), "run_started"),
    }
}

fn partition(id: &str, min: i64, max: i64) -> NewPartition {
    NewPartition { id: id.to_owned(), range: PriceRange { min, max }, total: Some(2) }
}

fn key(run: RunId, partition: &str) -> PartitionKey {
    PartitionKey { run, partition: partition.to_owned() }
}

/// A record of a price, whose payload is this text.
fn record(id: &str, price: i64, text: &str) -> Record {
    let mut hash = [0; 16];
    for (place, byte) in text.bytes().enumerate() {
        hash[place % 16] ^= byte.wrapping_mul(31).wrapping_add(u8::try_from(place % 250).unwrap_or(0));
    }
    Record { id: id.to_owned(), payload: Json::of(&text), hash, price: PriceRange { min: price, max: price } }
}

fn page(run: RunId, partition: &str, offset: u64, last: bool, records: Vec<Record>) -> Step {
    let next_offset = offset + records.len() as u64;
    Step::Page(Page { of: key(run, partition), offset, next_offset, last, records })
}

impl World {
    /// Settles a job whose effect is this step.
    async fn step(&self, step: Step) -> Settled {
        self.steps(vec![step]).await[0]
    }

    /// Settles jobs of these steps as one batch.
    async fn steps(&self, steps: Vec<Step>) -> Vec<Settled> {
        for _ in &steps {
            self.enqueue_key(&RunId::new().to_string()).await;
        }
        let claimed = self.claim(steps.len()).await;
        let commit = |(claimed, step): (&solely_core::job::Claimed, Step)| Commit {
            effect: Effect::Feed(step),
            next_jobs: vec![NewJob::new("next", claimed.job.key.clone())],
            events: vec![NewEvent::new("steps", "applied")],
            otherwise: vec![NewEvent::new("steps", "otherwise")],
            ..Commit::new(claimed.claim, Verdict::Complete)
        };
        let commits = claimed.iter().zip(steps).map(commit).collect();
        let outcomes = self.store().settle(commits).await.expect("settles");
        outcomes.into_iter().map(|outcome| outcome.expect("is judged")).collect()
    }

    /// A running run with these partitions.
    async fn running(&self, mode: Mode, partitions: Vec<NewPartition>) -> RunId {
        let new = new_run(mode);
        let id = new.id;
        assert_eq!(self.store().start_run(new).await.expect("starts"), Started::Started);
        assert_eq!(self.step(Step::Begin { run: id, partitions }).await, Settled::Applied);
        id
    }

    /// A running run of one partition of all prices.
    async fn one_partition(&self) -> RunId {
        self.running(Mode::Full, vec![partition("p", 0, 100)]).await
    }

    /// Ends the work of a run all of whose partitions have ended, and consolidates it.
    async fn consolidated(&self, run: RunId, completed: u32, failed: u32, within: &[PriceRange]) -> Counts {
        let end = Step::End { run, completed, failed, to: RunStatus::Consolidating, error: None };
        assert_eq!(self.step(end).await, Settled::Applied);
        while self.store().consolidate(run, within.to_vec()).await.expect("goes on") {}
        let (counts, _) = self.store().counts(run).await.expect("counts");
        assert_eq!(self.step(Step::Switch { run, counts, move_watermark: true }).await, Settled::Applied);
        counts
    }

    /// A run of one partition that found these records, consolidated.
    async fn copied(&self, records: Vec<Record>) -> (RunId, Counts) {
        let run = self.one_partition().await;
        assert_eq!(self.step(page(run, "p", 0, true, records)).await, Settled::Applied);
        (run, self.consolidated(run, 1, 0, &[PriceRange { min: 0, max: 100 }]).await)
    }

    async fn pinned(&self, what: PinWhat) -> Pinned {
        self.store().pin(what).await.expect("reads").expect("is there")
    }

    async fn read(&self, pinned: Pinned) -> Vec<(String, String)> {
        let records = self.store().records(pinned, None, 100).await.expect("reads");
        let line = |record: solely_core::feed::StoredRecord| {
            (record.id, record.payload.parse::<String>().expect("a text"))
        };
        records.into_iter().map(line).collect()
    }

    /// What is current.
    async fn current(&self) -> Vec<(String, String)> {
        let pinned = self.pinned(PinWhat::Current(SOURCE.to_owned())).await;
        self.read(pinned).await
    }

    async fn run_state(&self, run: RunId) -> solely_core::feed::RunState {
        self.store().run(run).await.expect("reads").expect("is there")
    }
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(id, text)| ((*id).to_owned(), (*text).to_owned())).collect()
}

fn counts(added: u64, changed: u64, unchanged: u64, removed: u64) -> Counts {
    Counts { added, changed, unchanged, removed }
}

/// Another run of the source is refused while one is active, and names it.
pub async fn one_run_of_a_source_at_a_time(world: World) {
    let first = world.one_partition().await;
    let second = world.store().start_run(new_run(Mode::Full)).await.expect("answers");
    assert_eq!(second, Started::Active { run: first });
    let other = NewRun { source: "other".to_owned(), ..new_run(Mode::Full) };
    assert_eq!(world.store().start_run(other).await.expect("starts"), Started::Started);
}

/// Of many that start a run at once, one does.
pub async fn of_many_that_start_at_once_one_does(world: World) {
    let starts = (0..8).map(|_| {
        let store = world.store();
        tokio::spawn(async move { store.start_run(new_run(Mode::Full)).await.expect("answers") })
    });
    let mut started = 0;
    for start in starts.collect::<Vec<_>>() {
        started += usize::from(start.await.expect("ends") == Started::Started);
    }
    assert_eq!(started, 1);
}

/// A run that is to begin only after a while does not begin before.
pub async fn a_run_is_due_only_after_a_while(world: World) {
    let due = || NewRun { not_within: Some(secs(60)), ..new_run(Mode::Full) };
    let first = due();
    let id = first.id;
    assert_eq!(world.store().start_run(first).await.expect("starts"), Started::Started);
    let failed = Step::FailRun { run: id, from: RunStatus::Scheduling, error: "no".to_owned() };
    assert_eq!(world.step(failed).await, Settled::Applied);
    assert_eq!(world.store().start_run(due()).await.expect("answers"), Started::NotDue);
    world.live_through(secs(61)).await;
    assert_eq!(world.store().start_run(due()).await.expect("starts"), Started::Started);
}

/// A page whose partition is elsewhere settles its message and changes nothing else.
pub async fn a_page_is_written_where_its_partition_is_and_once(world: World) {
    let run = world.one_partition().await;
    let first = || page(run, "p", 0, false, vec![record("a", 1, "a"), record("b", 1, "b")]);
    assert_eq!(world.step(first()).await, Settled::Applied);
    assert_eq!(world.step(first()).await, Settled::Skipped, "a duplicate");
    let early = page(run, "p", 6, false, vec![record("z", 1, "z")]);
    assert_eq!(world.step(early).await, Settled::Skipped, "out of order");
    let state = world.run_state(run).await;
    assert_eq!((state.partitions[0].next_offset, state.partitions[0].records), (2, 2));
    let told = world.told("steps").await;
    assert_eq!(told.iter().filter(|event| *event == "otherwise").count(), 2);
}

/// The document's ordering rule, in one transaction: if the next message cannot be made, nothing of
/// the page is written.
pub async fn a_page_whose_next_message_is_refused_is_not_written(world: World) {
    let run = world.one_partition().await;
    world.enqueue_key("page").await;
    let claimed = world.claim_one().await;
    let step = page(run, "p", 0, false, vec![record("a", 1, "a"), record("b", 1, "b")]);
    let mut next = NewJob::new("next", "n");
    // The engine's own CHECK refuses it.
    next.priority = 77;
    let commit = Commit {
        effect: Effect::Feed(step.clone()),
        next_jobs: vec![next],
        ..Commit::new(claimed.claim, Verdict::Complete)
    };
    let outcome = world.store().settle(vec![commit]).await.expect("answers").remove(0);
    assert!(matches!(outcome, Err(solely_core::StoreError::Refused(_))), "{outcome:?}");
    let state = world.run_state(run).await;
    assert_eq!((state.partitions[0].next_offset, state.partitions[0].records), (0, 0));
    let again = Commit { effect: Effect::Feed(step), ..Commit::new(claimed.claim, Verdict::Complete) };
    assert_eq!(world.settle(again).await, Settled::Applied, "the message is redelivered and written once");
}

/// A complete partition takes no further page, nor does one of a run that is not running.
pub async fn a_partition_that_has_ended_takes_no_page(world: World) {
    let run = world.running(Mode::Full, vec![partition("p", 0, 9), partition("q", 10, 19)]).await;
    assert_eq!(world.step(page(run, "p", 0, true, vec![])).await, Settled::Applied);
    assert_eq!(world.step(page(run, "p", 0, true, vec![])).await, Settled::Skipped);
    let of = key(run, "q");
    let failed = Step::FailPartition { of, offset: 0, error: "no".to_owned(), attempts: 5 };
    assert_eq!(world.step(failed.clone()).await, Settled::Applied);
    assert_eq!(world.step(failed).await, Settled::Skipped, "it has failed already");
    assert_eq!(world.step(page(run, "q", 0, false, vec![])).await, Settled::Skipped);
    let run = world.run_state(run).await.run;
    assert_eq!((run.expected, run.completed, run.failed), (2, 1, 1));
    world.assert_sound().await;
}

/// The same record on two pages, of two partitions, in one batch or in two, is counted once.
pub async fn a_record_is_counted_once_however_often_it_comes(world: World) {
    let run = world.running(Mode::Full, vec![partition("p", 0, 9), partition("q", 0, 9)]).await;
    let batch = vec![
        page(run, "p", 0, false, vec![record("a", 1, "a"), record("b", 1, "b")]),
        page(run, "q", 0, false, vec![record("a", 1, "a"), record("c", 1, "c")]),
    ];
    assert_eq!(world.steps(batch).await, [Settled::Applied; 2]);
    let next = page(run, "p", 2, true, vec![record("b", 1, "b"), record("c", 1, "c")]);
    assert_eq!(world.step(next).await, Settled::Applied);
    let counted: u64 = world.run_state(run).await.partitions.iter().map(|partition| partition.records).sum();
    assert_eq!(counted, 3);
}

/// Pages of two partitions that hold the same records, written at once in opposite orders, neither
/// fail nor wait for each other for ever.
pub async fn pages_that_meet_neither_fail_nor_block(world: World) {
    let partitions: Vec<NewPartition> = (0..8).map(|n| partition(&format!("p{n}"), 0, 9)).collect();
    let run = world.running(Mode::Full, partitions).await;
    let shared = |n: u64| record(&format!("shared-{n:02}"), 1, "same");
    for round in 0..5_u64 {
        for _ in 0..8 {
            world.enqueue_key(&RunId::new().to_string()).await;
        }
        let claimed = world.claim(8).await;
        let settles = claimed.chunks(2).enumerate().map(|(pair, claims)| {
            let commits: Vec<Commit> = claims
                .iter()
                .enumerate()
                .map(|(n, claimed)| {
                    let of = format!("p{}", pair * 2 + if pair % 2 == 0 { n } else { 1 - n });
                    let records = (0..20).map(|n| shared(round * 20 + n)).collect();
                    let step = page(run, &of, round * 20, false, records);
                    Commit { effect: Effect::Feed(step), ..Commit::new(claimed.claim, Verdict::Complete) }
                })
                .collect();
            let store = world.store();
            tokio::spawn(async move { store.settle(commits).await.expect("settles") })
        });
        for settled in settles.collect::<Vec<_>>() {
            for outcome in settled.await.expect("ends") {
                assert_eq!(outcome, Ok(Settled::Applied));
            }
        }
    }
    let counted: u64 = world.run_state(run).await.partitions.iter().map(|partition| partition.records).sum();
    assert_eq!(counted, 100);
    let cancel = change(run, RunStatus::Running, RunStatus::Cancelled);
    assert_eq!(world.store().change_run(cancel).await.expect("answers"), Changed::Made);
    world.assert_sound().await;
}

/// Only what differs is written; what a run found is counted when it becomes current.
pub async fn a_run_counts_what_is_new_changed_and_gone(world: World) {
    let (first, found) = world
        .copied(vec![record("a", 1, "a"), record("b", 1, "b"), record("c", 1, "c"), record("d", 1, "d")])
        .await;
    assert_eq!(found, counts(4, 0, 0, 0));
    let before = world.pinned(PinWhat::Current(SOURCE.to_owned())).await;
    let (second, found) =
        world.copied(vec![record("a", 1, "a"), record("b", 1, "other"), record("e", 1, "e")]).await;
    assert_eq!(found, counts(1, 1, 1, 2));
    assert_eq!(world.current().await, pairs(&[("a", "a"), ("b", "other"), ("e", "e")]));
    let records = world.store().records(world.pinned(PinWhat::Run(second)).await, None, 9).await;
    let by: Vec<RunId> = records.expect("reads").iter().map(|record| record.run).collect();
    assert_eq!(by, [first, second, second], "what is unchanged is as the first run wrote it");
    assert_eq!(
        world.read(before).await,
        pairs(&[("a", "a"), ("b", "b"), ("c", "c"), ("d", "d")]),
        "a stream that was begun sees what it began with"
    );
    let run = world.run_state(second).await.run;
    assert_eq!((run.status, run.counts), (RunStatus::Completed, Some(counts(1, 1, 1, 2))));
    // What was removed and comes back is new.
    let (_, found) = world.copied(vec![record("a", 1, "a"), record("c", 1, "c")]).await;
    assert_eq!(found, counts(1, 0, 1, 2));
    world.assert_sound().await;
}

/// Nothing of a run is seen before its switch, and all of it after.
pub async fn nothing_of_a_run_is_seen_before_its_switch(world: World) {
    world.copied(vec![record("a", 1, "old"), record("b", 1, "old")]).await;
    let run = world.one_partition().await;
    let found = vec![record("a", 1, "new"), record("c", 1, "new")];
    assert_eq!(world.step(page(run, "p", 0, true, found)).await, Settled::Applied);
    let old = pairs(&[("a", "old"), ("b", "old")]);
    assert_eq!(world.current().await, old);
    let end = Step::End { run, completed: 1, failed: 0, to: RunStatus::Consolidating, error: None };
    assert_eq!(world.step(end).await, Settled::Applied);
    while world.store().consolidate(run, vec![PriceRange { min: 0, max: 100 }]).await.expect("goes on") {}
    assert_eq!(world.current().await, old, "marked, and not seen");
    let (counted, _) = world.store().counts(run).await.expect("counts");
    assert_eq!(
        world.step(Step::Switch { run, counts: counted, move_watermark: true }).await,
        Settled::Applied
    );
    assert_eq!(world.current().await, pairs(&[("a", "new"), ("c", "new")]));
    assert_eq!(
        world.step(Step::Switch { run, counts: counted, move_watermark: true }).await,
        Settled::Skipped,
        "once"
    );
}

/// A record is reported as vanished only within prices that were fetched.
pub async fn nothing_vanishes_where_nothing_was_fetched(world: World) {
    let mut wide = record("wide", 0, "w");
    wide.price = PriceRange { min: 5, max: 25 };
    world.copied(vec![record("low", 5, "l"), record("mid", 15, "m"), record("high", 25, "h"), wide]).await;
    let partitions = vec![partition("p", 0, 10), partition("q", 20, 30)];
    let run = world.running(Mode::Full, partitions).await;
    assert_eq!(world.step(page(run, "p", 0, true, vec![])).await, Settled::Applied);
    let of = key(run, "q");
    let failed = Step::FailPartition { of, offset: 0, error: "no".to_owned(), attempts: 5 };
    assert_eq!(world.step(failed).await, Settled::Applied);
    let found = world.consolidated(run, 1, 1, &[PriceRange { min: 0, max: 10 }]).await;
    assert_eq!(found, counts(0, 0, 0, 1));
    assert_eq!(world.current().await, pairs(&[("high", "h"), ("mid", "m"), ("wide", "w")]));
}

/// What a run left behind that never became current is not seen after a later one does.
pub async fn what_a_failed_run_left_behind_is_never_seen(world: World) {
    world.copied(vec![record("a", 1, "old"), record("b", 1, "b")]).await;
    let failed = world.one_partition().await;
    let half = vec![record("a", 1, "half"), record("x", 1, "half")];
    assert_eq!(world.step(page(failed, "p", 0, false, half)).await, Settled::Applied);
    let given_up = Step::FailRun { run: failed, from: RunStatus::Running, error: "no".to_owned() };
    assert_eq!(world.step(given_up).await, Settled::Applied);
    let run = world.running(Mode::Incremental, vec![partition("p", 0, 100)]).await;
    assert_eq!(world.step(page(run, "p", 0, true, vec![record("b", 1, "new")])).await, Settled::Applied);
    let seen = world.pinned(PinWhat::Run(run)).await;
    assert_eq!(world.read(seen).await, pairs(&[("b", "new")]));
    assert_eq!(world.consolidated(run, 1, 0, &[]).await, counts(0, 1, 0, 0));
    assert_eq!(world.current().await, pairs(&[("a", "old"), ("b", "new")]));
    assert!(world.pinned(PinWhat::Run(failed)).await.forgotten);
    world.assert_sound().await;
}

fn change(run: RunId, from: RunStatus, to: RunStatus) -> RunChange {
    RunChange {
        run,
        from,
        to,
        going: Vec::new(),
        stuck: Vec::new(),
        jobs: Vec::new(),
        cancel: Vec::new(),
        events: Vec::new(),
    }
}

/// A change is made only if everything is as its maker saw it.
pub async fn a_change_is_made_only_to_what_was_seen(world: World) {
    let run = world.one_partition().await;
    let wrong = change(run, RunStatus::Failed, RunStatus::Running);
    assert_eq!(world.store().change_run(wrong).await.expect("answers"), Changed::Otherwise);
    let going = SetGoing { partition: "p".to_owned(), seen_at: 7, next_offset: 0 };
    let elsewhere = RunChange { going: vec![going], ..change(run, RunStatus::Running, RunStatus::Running) };
    assert_eq!(world.store().change_run(elsewhere).await.expect("answers"), Changed::Otherwise);
    let cancel = change(run, RunStatus::Running, RunStatus::Cancelled);
    assert_eq!(world.store().change_run(cancel).await.expect("answers"), Changed::Made);
    assert_eq!(world.step(page(run, "p", 0, true, vec![])).await, Settled::Skipped, "it is cancelled");
    let resume = change(run, RunStatus::Cancelled, RunStatus::Running);
    assert_eq!(world.store().change_run(resume).await.expect("answers"), Changed::Made);
    assert_eq!(world.step(page(run, "p", 0, true, vec![])).await, Settled::Applied);
}

/// A run cannot go on beside another of its source, nor once a later one is current.
pub async fn a_run_that_was_overtaken_does_not_go_on(world: World) {
    let old = world.one_partition().await;
    let cancel = change(old, RunStatus::Running, RunStatus::Cancelled);
    assert_eq!(world.store().change_run(cancel).await.expect("answers"), Changed::Made);
    let new = world.one_partition().await;
    let resume = || change(old, RunStatus::Cancelled, RunStatus::Running);
    assert_eq!(world.store().change_run(resume()).await.expect("answers"), Changed::Active { run: new });
    assert_eq!(world.step(page(new, "p", 0, true, vec![])).await, Settled::Applied);
    world.consolidated(new, 1, 0, &[]).await;
    assert_eq!(world.store().change_run(resume()).await.expect("answers"), Changed::Superseded);
}

/// A consolidation that was broken off leaves nothing behind in a run that goes on.
pub async fn a_consolidation_that_was_broken_off_leaves_nothing(world: World) {
    world.copied(vec![record("a", 1, "a"), record("b", 1, "b")]).await;
    let run = world.one_partition().await;
    assert_eq!(world.step(page(run, "p", 0, true, vec![record("b", 1, "b")])).await, Settled::Applied);
    let end = Step::End { run, completed: 1, failed: 0, to: RunStatus::Consolidating, error: None };
    assert_eq!(world.step(end).await, Settled::Applied);
    let within = vec![PriceRange { min: 0, max: 100 }];
    while world.store().consolidate(run, within.clone()).await.expect("goes on") {}
    let cancel = change(run, RunStatus::Consolidating, RunStatus::Cancelled);
    assert_eq!(world.store().change_run(cancel).await.expect("answers"), Changed::Made);
    let reset = SetGoing { partition: "p".to_owned(), seen_at: 1, next_offset: 0 };
    let going = RunChange { going: vec![reset], ..change(run, RunStatus::Cancelled, RunStatus::Running) };
    assert_eq!(world.store().change_run(going).await.expect("answers"), Changed::Made);
    // It came back meanwhile.
    let all = vec![record("a", 1, "a"), record("b", 1, "b")];
    assert_eq!(world.step(page(run, "p", 0, true, all)).await, Settled::Applied);
    assert_eq!(world.consolidated(run, 1, 0, &within).await, counts(0, 0, 2, 0));
    world.assert_sound().await;
}

/// A partition that does not go on is stuck, is reported, and is not reported again for a while.
pub async fn a_stuck_partition_is_found_and_reported_once(world: World) {
    let run = world.one_partition().await;
    let stuck = async || world.store().stuck(SOURCE.to_owned(), secs(60), 10).await.expect("looks");
    assert_eq!(stuck().await, []);
    world.live_through(secs(61)).await;
    assert_eq!(stuck().await, [key(run, "p")]);
    let report =
        RunChange { stuck: vec![("p".to_owned(), 0)], ..change(run, RunStatus::Running, RunStatus::Running) };
    assert_eq!(world.store().change_run(report).await.expect("answers"), Changed::Made);
    assert_eq!(stuck().await, [], "it was reported");
    let state = world.run_state(run).await;
    assert!(state.partitions[0].is_stuck(state.run.status, secs(60), state.now), "and is still stuck");
    world.live_through(secs(61)).await;
    assert_eq!(stuck().await.len(), 1, "after as long again");
    assert_eq!(world.step(page(run, "p", 0, false, vec![])).await, Settled::Applied);
    assert_eq!(stuck().await, [], "it goes on");
}

/// An incremental run asks from the watermark on, and a little before; only a switch moves it.
pub async fn the_watermark_moves_with_the_switch(world: World) {
    let first = world.running(Mode::Incremental, vec![partition("p", 0, 100)]).await;
    let updated = world.run_state(first).await.run.updated.expect("incremental");
    assert_eq!(updated.from.to_string(), "1970-01-01T00:00:00.000Z", "there is no watermark yet");
    assert_eq!(world.step(page(first, "p", 0, true, vec![])).await, Settled::Applied);
    world.consolidated(first, 1, 0, &[]).await;
    let began = updated.to;
    let expected = |after: Timestamp| after.minus(secs(900));
    world.live_through(secs(5)).await;
    let second = world.running(Mode::Incremental, vec![partition("p", 0, 100)]).await;
    assert_eq!(world.run_state(second).await.run.updated.expect("incremental").from, expected(began));
    let given_up = Step::FailRun { run: second, from: RunStatus::Running, error: "no".to_owned() };
    assert_eq!(world.step(given_up).await, Settled::Applied);
    let third = world.running(Mode::Incremental, vec![partition("p", 0, 100)]).await;
    let from = world.run_state(third).await.run.updated.expect("incremental").from;
    assert_eq!(from, expected(began), "a run that failed has not moved it");
}

/// What later versions replaced is swept up once nobody can be reading it; what is current stays,
/// and so does every count.
pub async fn what_is_replaced_is_swept_up_after_a_while(world: World) {
    world.copied(vec![record("a", 1, "a"), record("b", 1, "b"), record("c", 1, "c")]).await;
    let old = world.pinned(PinWhat::Current(SOURCE.to_owned())).await;
    let (second, _) = world.copied(vec![record("a", 1, "new"), record("b", 1, "b")]).await;
    prune(&world).await;
    assert_eq!(world.read(old).await.len(), 3, "it may still be read");
    let patience = limits::STREAM_TIME * 2 + secs(1);
    world.advance(patience);
    world.beat(world.process).await;
    prune(&world).await;
    assert_eq!(world.read(old).await, pairs(&[("b", "b")]), "replaced and removed versions are gone");
    assert_eq!(world.current().await, pairs(&[("a", "new"), ("b", "b")]));
    assert!(!world.pinned(PinWhat::Run(second)).await.forgotten, "the current run keeps what it saw");
    let (_, found) =
        world.copied(vec![record("a", 1, "new"), record("b", 1, "b"), record("c", 1, "c")]).await;
    assert_eq!(found, counts(1, 0, 2, 0));
    world.assert_sound().await;
}

/// Runs past their retention go, with their partitions; the current one stays for ever.
pub async fn old_runs_go_and_the_current_one_stays(world: World) {
    let (first, _) = world.copied(vec![record("a", 1, "a")]).await;
    let cancelled = world.one_partition().await;
    let half = page(cancelled, "p", 0, false, vec![record("x", 1, "x")]);
    assert_eq!(world.step(half).await, Settled::Applied);
    let cancel = change(cancelled, RunStatus::Running, RunStatus::Cancelled);
    assert_eq!(world.store().change_run(cancel).await.expect("answers"), Changed::Made);
    let (last, _) = world.copied(vec![record("a", 1, "a")]).await;
    world.advance(Duration::from_secs(91 * 24 * 3_600));
    world.beat(world.process).await;
    prune(&world).await;
    let there = async |run| world.store().run(run).await.expect("reads").is_some();
    assert!(!there(first).await && !there(cancelled).await && there(last).await);
    assert_eq!(world.current().await, pairs(&[("a", "a")]));
    world.assert_sound().await;
}

async fn prune(world: &World) {
    while world.store().prune(Retention::default()).await.expect("prunes").more {}
}

/// Partitions that a client wants are there from the start, and keep their order.
pub async fn a_clients_partitions_are_kept(world: World) {
    let wanted = vec![partition("z", 0, 9), partition("a", 5, 19)];
    let new = NewRun { partitions: wanted.clone(), ..new_run(Mode::Full) };
    let id = new.id;
    world.store().start_run(new).await.expect("starts");
    let counted: Vec<NewPartition> =
        wanted.into_iter().map(|partition| NewPartition { total: Some(77), ..partition }).collect();
    assert_eq!(world.step(Step::Begin { run: id, partitions: counted }).await, Settled::Applied);
    let state = world.run_state(id).await;
    let shown: Vec<(&str, Option<u64>, PartitionStatus)> =
        state.partitions.iter().map(|p| (p.id.as_str(), p.total, p.status)).collect();
    assert_eq!(shown, [("z", Some(77), PartitionStatus::Running), ("a", Some(77), PartitionStatus::Running)]);
    assert_eq!((state.run.expected, state.run.status), (2, RunStatus::Running));
}

/// Runs are listed newest first, a page at a time, of one source or of all.
pub async fn runs_are_listed_newest_first(world: World) {
    let mut made = Vec::new();
    for source in ["one", "two", "three"] {
        let new = NewRun { source: source.to_owned(), ..new_run(Mode::Full) };
        made.push(new.id);
        world.store().start_run(new).await.expect("starts");
    }
    let listed = async |source: Option<&str>, before| {
        let runs = world.store().runs(source.map(str::to_owned), before, 2).await.expect("lists");
        runs.into_iter().map(|state| state.run.id).collect::<Vec<RunId>>()
    };
    assert_eq!(listed(None, None).await, [made[2], made[1]]);
    assert_eq!(listed(None, Some(made[1])).await, [made[0]]);
    assert_eq!(listed(Some("two"), None).await, [made[1]]);
    assert_eq!(world.store().enqueue(vec![NewJob::new(QUEUE, "other")]).await.expect("enqueues").len(), 1);
}
