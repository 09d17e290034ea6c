//! One effect, one transaction.

use solely_core::cache::{EntryKey, Lifetimes, Overwrite, PutEntry};
use solely_core::commit::{Commit, Effect, Settled, Verdict};
use solely_core::event::NewEvent;
use solely_core::feed::{Page, Record};
use solely_core::job::{Claim, JobState, NewJob};
use solely_core::queue::JobFilter;
use solely_core::{Json, StoreError};

use crate::World;
use crate::world::{LOCK, QUEUE, secs};

fn page(offset: u64, last: bool) -> Effect {
    let record = |n: u64| Record { id: format!("record-{n}"), payload: Json::of(&n) };
    Effect::Page(Page {
        run_id: "run".to_owned(),
        partition_id: "p".to_owned(),
        offset,
        next_offset: offset + 2,
        last,
        records: vec![record(offset), record(offset + 1)],
    })
}

fn entry() -> PutEntry {
    PutEntry {
        key: EntryKey::new("space", "key"),
        value: Json::of(&1),
        lifetimes: Lifetimes { fresh: secs(60), stale: secs(60), keep: secs(60) },
        overwrite: Overwrite::Always,
    }
}

/// A commit with one of everything.
fn whole(claim: Claim, effect: Effect) -> Commit {
    Commit {
        effect,
        next_jobs: vec![NewJob::new("next", "n")],
        events: vec![NewEvent::new("subject", "done")],
        otherwise: vec![NewEvent::new("subject", "otherwise")],
        ..Commit::new(claim, Verdict::Complete)
    }
}

async fn next_jobs(world: &World) -> usize {
    let filter = JobFilter { queue: Some("next".to_owned()), limit: 10, ..JobFilter::default() };
    world.store().jobs(filter).await.expect("lists").len()
}

async fn entries(world: &World) -> usize {
    let found = world.store().entries(vec![EntryKey::new("space", "key")]).await.expect("reads");
    found.into_iter().flatten().count()
}

/// Completion, effect, next job and event are there together.
pub async fn everything_of_a_commit_is_there_together(world: World) {
    world.enqueue_key("a").await;
    let claimed = world.claim_one().await;
    let commit = whole(claimed.claim, Effect::PutEntries(vec![entry()]));
    assert_eq!(world.settle(commit).await, Settled::Applied);
    assert_eq!(world.state(claimed.job.id).await, JobState::Completed);
    assert_eq!((entries(&world).await, next_jobs(&world).await), (1, 1));
    assert_eq!(world.told("subject").await, ["done"]);
}

/// A stale claim writes nothing at all: the fence comes first.
pub async fn a_stale_commit_writes_nothing(world: World) {
    world.enqueue_key("a").await;
    let claimed = world.claim_one().await;
    world.advance(LOCK);
    let commit = whole(claimed.claim, Effect::PutEntries(vec![entry()]));
    assert_eq!(world.settle(commit).await, Settled::Stale);
    assert_eq!((entries(&world).await, next_jobs(&world).await), (0, 0));
    assert!(world.told("subject").await.is_empty());
}

/// A part that fails takes everything with it: effect, event, completion. Its neighbours in the
/// batch are not touched.
pub async fn a_part_that_fails_undoes_the_whole_commit(world: World) {
    world.enqueue_key("bad").await;
    world.enqueue_key("good").await;
    let claimed = world.claim(2).await;
    let (bad, good) = (&claimed[0], &claimed[1]);
    let mut commit = whole(bad.claim, Effect::PutEntries(vec![entry()]));
    // The engine's own CHECK refuses this job, after the effect was written.
    commit.next_jobs[0].priority = 77;
    let outcomes = world.store().settle(vec![commit, Commit::new(good.claim, Verdict::Complete)]).await;
    let outcomes = outcomes.expect("both are judged");
    assert!(matches!(&outcomes[0], Err(StoreError::Refused(_))), "{outcomes:?}");
    assert_eq!(outcomes[1], Ok(Settled::Applied));
    assert_eq!(world.state(bad.job.id).await, JobState::Running);
    assert_eq!((entries(&world).await, next_jobs(&world).await), (0, 0));
    assert!(world.told("subject").await.is_empty());
    assert_eq!(world.complete(bad.claim).await, Settled::Applied, "the claim is still good");
}

/// A page whose partition is elsewhere settles its message and changes nothing else.
pub async fn an_effect_whose_condition_fails_is_skipped(world: World) {
    for key in ["one", "again", "early"] {
        world.enqueue_key(key).await;
    }
    let claimed = world.claim(3).await;
    assert_eq!(world.settle(whole(claimed[0].claim, page(0, false))).await, Settled::Applied);
    for (claim, effect) in [(claimed[1].claim, page(0, false)), (claimed[2].claim, page(6, false))] {
        assert_eq!(world.settle(whole(claim, effect)).await, Settled::Skipped);
        assert_eq!(world.state(claim.job).await, JobState::Completed);
    }
    assert_eq!(next_jobs(&world).await, 1);
    assert_eq!(world.told("subject").await, ["done", "otherwise", "otherwise"]);
}

/// An entry that a newer one stands in the way of is skipped, with all that would tell of it.
pub async fn an_outdated_entry_is_skipped(world: World) {
    let newer = PutEntry { overwrite: Overwrite::Above(7), ..entry() };
    world.store().put_entries(vec![newer]).await.expect("writes");
    world.enqueue_key("a").await;
    let claimed = world.claim_one().await;
    let late = PutEntry { overwrite: Overwrite::Above(6), ..entry() };
    let commit = whole(claimed.claim, Effect::PutEntries(vec![late]));
    assert_eq!(world.settle(commit).await, Settled::Skipped);
    assert_eq!(next_jobs(&world).await, 0);
    assert_eq!(world.told("subject").await, ["otherwise"]);
}

/// A complete partition takes no further page.
pub async fn a_complete_partition_takes_no_page(world: World) {
    world.enqueue_key("last").await;
    world.enqueue_key("late").await;
    let claimed = world.claim(2).await;
    assert_eq!(world.settle(whole(claimed[0].claim, page(0, true))).await, Settled::Applied);
    assert_eq!(world.settle(whole(claimed[1].claim, page(2, false))).await, Settled::Skipped);
}

/// The next job of a commit that its key's live job is in the way of does not undo it.
pub async fn a_next_job_that_is_there_already_is_no_failure(world: World) {
    world.enqueue(NewJob::new("next", "n")).await;
    world.enqueue_key("a").await;
    let claimed = world.claim_one().await;
    assert_eq!(world.settle(whole(claimed.claim, Effect::None)).await, Settled::Applied);
    assert_eq!(next_jobs(&world).await, 1);
}

/// A continuation may follow itself: its own completion frees the key in the same commit.
pub async fn a_job_may_be_followed_by_one_of_its_own_key(world: World) {
    world.enqueue_key("a").await;
    let claimed = world.claim_one().await;
    let mut commit = Commit::new(claimed.claim, Verdict::Complete);
    commit.next_jobs = vec![NewJob::new(QUEUE, "a")];
    assert_eq!(world.settle(commit).await, Settled::Applied);
    assert_ne!(world.claim_one().await.job.id, claimed.job.id);
}
