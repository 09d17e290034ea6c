//! One effect, one transaction.

use solely_core::cache::{EntryKey, Lifetimes, Overwrite, PutEntry};
use solely_core::commit::{Commit, Effect, Settled, Verdict};
use solely_core::event::NewEvent;
use solely_core::job::{Claim, JobState, NewJob};
use solely_core::queue::JobFilter;
use solely_core::{Json, StoreError};

use crate::World;
use crate::world::{LOCK, QUEUE, secs};

fn entry() -> PutEntry {
    PutEntry {
        key: EntryKey::new("space", "key"),
        value: Json::of(&1),
        lifetimes: Lifetimes { fresh: secs(60), stale: secs(60), keep: secs(60) },
        overwrite: Overwrite::Always,
        told: None,
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
