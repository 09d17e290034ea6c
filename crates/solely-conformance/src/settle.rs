//! Settlement: verdicts, fences, stale workers.

use solely_core::commit::{Commit, Settled, Verdict};
use solely_core::job::{Claim, Claimed, JobState, Renewed};

use crate::World;
use crate::world::{LOCK, secs};

fn retry(delay: u64) -> Verdict {
    Verdict::Retry { delay: secs(delay), error: "not yet".to_owned() }
}

/// Every verdict that a stale worker may try.
fn verdicts() -> Vec<Verdict> {
    let dead = Verdict::Dead { error: "stale".to_owned() };
    let postpone = Verdict::Postpone { delay: secs(1), error: "stale".to_owned() };
    vec![Verdict::Complete, retry(1), postpone, Verdict::Release, dead]
}

async fn assert_powerless(world: &World, stale: Claim, expected: JobState) {
    for verdict in verdicts() {
        assert_eq!(world.settle(Commit::new(stale, verdict.clone())).await, Settled::Stale, "{verdict:?}");
    }
    assert_eq!(world.renew(stale, LOCK).await, Renewed::Lost);
    assert_eq!(world.state(stale.job).await, expected);
}

/// Done: kept for its retention, but its payload, which may hold a secret, is not.
pub async fn a_completed_job_is_kept_without_its_payload(world: World) {
    let mut job = solely_core::job::NewJob::new(crate::world::QUEUE, "a");
    job.payload = solely_core::Json::of(&"secret");
    world.enqueue(job).await;
    let claimed = world.claim_one().await;
    assert_eq!(world.complete(claimed.claim).await, Settled::Applied);
    let job = world.job(claimed.job.id).await;
    assert_eq!(job.state, JobState::Completed);
    assert!(!job.payload.as_str().contains("secret"));
    assert_eq!(job.locked_until, None);
}

/// A retry keeps the id, waits for its delay, counts the attempt and remembers the error.
pub async fn a_retry_keeps_the_id_and_waits(world: World) {
    world.enqueue_key("a").await;
    let first = world.claim_one().await;
    assert_eq!(world.settle(Commit::new(first.claim, retry(30))).await, Settled::Applied);
    let job = world.job(first.job.id).await;
    assert_eq!((job.state, job.attempts, job.error.as_deref()), (JobState::Retrying, 1, Some("not yet")));
    assert!(world.claim(1).await.is_empty());
    world.advance(secs(31));
    world.beat(world.process).await;
    let second = world.claim_one().await;
    assert_eq!((second.job.id, second.job.attempts), (first.job.id, 2));
    assert!(second.claim.fence > first.claim.fence);
}

/// Waiting for what is paused spends no attempt.
pub async fn a_postponed_job_spends_no_attempt(world: World) {
    world.enqueue_key("a").await;
    let first = world.claim_one().await;
    let verdict = Verdict::Postpone { delay: secs(30), error: "paused".to_owned() };
    world.settle(Commit::new(first.claim, verdict)).await;
    assert!(world.claim(1).await.is_empty());
    world.advance(secs(31));
    world.beat(world.process).await;
    assert_eq!(world.claim_one().await.job.attempts, 1);
}

/// Interrupted: due at once, at its old place, no attempt spent, but with a higher fence.
pub async fn a_released_job_is_due_at_once_at_its_old_place(world: World) {
    world.enqueue_key("first").await;
    world.advance(secs(1));
    world.enqueue_key("second").await;
    let first = world.claim(1).await.remove(0);
    assert_eq!(world.settle(Commit::new(first.claim, Verdict::Release)).await, Settled::Applied);
    let again = world.claim(1).await.remove(0);
    assert_eq!((again.job.key.as_str(), again.job.attempts), ("first", 1));
    assert!(again.claim.fence > first.claim.fence);
}

/// A dead job stays, with its reason and its payload for a redrive.
pub async fn a_dead_job_keeps_its_reason_and_payload(world: World) {
    let mut job = solely_core::job::NewJob::new(crate::world::QUEUE, "a");
    job.payload = solely_core::Json::of(&"work");
    world.enqueue(job).await;
    let claimed = world.claim_one().await;
    assert_eq!(world.bury(claimed.claim, "boom").await, Settled::Applied);
    let job = world.job(claimed.job.id).await;
    assert_eq!((job.state, job.error.as_deref()), (JobState::Dead, Some("boom")));
    assert_eq!(job.payload, solely_core::Json::of(&"work"));
    assert!(world.claim(1).await.is_empty());
}

/// A settlement counts once.
pub async fn a_second_settlement_is_refused(world: World) {
    world.enqueue_key("a").await;
    let claimed = world.claim_one().await;
    world.complete(claimed.claim).await;
    assert_powerless(&world, claimed.claim, JobState::Completed).await;
}

/// Paused beyond its lock, a worker can do nothing more, even if nobody has taken the job.
pub async fn a_worker_past_its_lock_can_do_nothing(world: World) {
    world.enqueue_key("a").await;
    let claimed = world.claim_one().await;
    world.advance(LOCK);
    assert_powerless(&world, claimed.claim, JobState::Running).await;
}

/// … nor after the job was freed,
pub async fn a_worker_whose_job_was_freed_can_do_nothing(world: World) {
    world.enqueue_key("a").await;
    let claimed = world.claim_one().await;
    world.live_through(LOCK).await;
    crate::rescue::rescue(&world).await;
    assert_powerless(&world, claimed.claim, JobState::Ready).await;
}

/// … nor once another has it, whose own settlement then counts.
pub async fn a_worker_whose_job_was_redelivered_can_do_nothing(world: World) {
    let (stale, fresh) = redelivered(&world).await;
    assert_powerless(&world, stale.claim, JobState::Running).await;
    assert_eq!(world.complete(fresh.claim).await, Settled::Applied);
}

async fn redelivered(world: &World) -> (Claimed, Claimed) {
    world.enqueue_key("a").await;
    let stale = world.claim_one().await;
    world.live_through(LOCK).await;
    crate::rescue::rescue(world).await;
    let fresh = world.claim_one().await;
    assert!(fresh.claim.fence > stale.claim.fence);
    (stale, fresh)
}

/// A fence from the future is as wrong as one from the past.
pub async fn a_made_up_fence_is_refused(world: World) {
    world.enqueue_key("a").await;
    let mut claim = world.claim_one().await.claim;
    claim.fence += 1;
    assert_powerless(&world, claim, JobState::Running).await;
}

/// A claim on nothing is stale, not an error.
pub async fn a_claim_on_no_job_is_stale(world: World) {
    let claim = Claim { job: solely_core::JobId::new(), fence: 1 };
    assert_eq!(world.complete(claim).await, Settled::Stale);
    assert_eq!(world.renew(claim, LOCK).await, Renewed::Lost);
}

/// A renewed lock outlives its first end, and adds no delivery.
pub async fn a_renewed_lock_outlives_its_first_end(world: World) {
    world.enqueue_key("a").await;
    let claimed = world.claim_one().await;
    for _ in 0..3 {
        world.live_through(LOCK / 2).await;
        assert!(matches!(world.renew(claimed.claim, LOCK).await, Renewed::Until(_)));
        crate::rescue::rescue(&world).await;
    }
    assert_eq!(world.job(claimed.job.id).await.attempts, 1);
    assert_eq!(world.complete(claimed.claim).await, Settled::Applied);
}

/// The commits of one batch are judged one by one.
pub async fn one_stale_commit_does_not_hold_up_its_batch(world: World) {
    world.enqueue_key("a").await;
    world.enqueue_key("b").await;
    let claims: Vec<Claim> = world.claim(2).await.into_iter().map(|claimed| claimed.claim).collect();
    let stale = Claim { fence: claims[0].fence + 7, ..claims[0] };
    let commits = [stale, claims[1], claims[0]].map(|claim| Commit::new(claim, Verdict::Complete));
    let outcomes = world.store().settle(commits.to_vec()).await.expect("settles");
    assert_eq!(outcomes, [Ok(Settled::Stale), Ok(Settled::Applied), Ok(Settled::Applied)]);
}
