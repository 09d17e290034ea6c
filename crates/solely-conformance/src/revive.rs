//! Dead letters that come back.

use solely_core::job::{JobState, ReviveRequest, Revived};
use solely_core::{JobId, Settled};

use crate::World;
use crate::world::{QUEUE, secs};

async fn revive(world: &World, request: ReviveRequest) -> Vec<Revived> {
    world.store().revive(request).await.expect("revives")
}

fn all() -> ReviveRequest {
    ReviveRequest { limit: 100, ..ReviveRequest::default() }
}

fn ready(id: JobId) -> Revived {
    Revived::Ready { id, queue: QUEUE.to_owned() }
}

/// A dead job comes back under its id, with all its attempts, and the timeline says so.
pub async fn a_dead_job_comes_back_with_all_its_attempts(world: World) {
    let id = world.dead("a", "boom").await;
    assert_eq!(revive(&world, all()).await, [ready(id)]);
    let claimed = world.claim_one().await;
    assert_eq!((claimed.job.id, claimed.job.attempts), (id, 1));
    assert_eq!(world.complete(claimed.claim).await, Settled::Applied);
    assert_eq!(world.told(&format!("job:{id}")).await, ["job_revived"]);
}

/// A job whose key was taken meanwhile loses to the newer one, and the sweep goes on.
pub async fn a_taken_key_does_not_abort_the_sweep(world: World) {
    let before = world.dead("a", "boom").await;
    let taken = world.dead("b", "boom").await;
    let after = world.dead("c", "boom").await;
    let newer = world.enqueue_key("b").await;
    let outcomes = revive(&world, all()).await;
    assert_eq!(outcomes, [ready(before), Revived::Superseded { id: taken, by: newer }, ready(after)]);
    assert_eq!(world.state(taken).await, JobState::Cancelled);
    assert_eq!(world.claim(10).await.len(), 3);
    world.assert_sound().await;
}

/// Two dead jobs of one key: the older comes back, the other is superseded.
pub async fn two_dead_jobs_of_one_key_make_one_live_job(world: World) {
    let first = world.dead("a", "boom").await;
    let second = world.dead("a", "boom").await;
    let outcomes = revive(&world, all()).await;
    assert_eq!(outcomes, [ready(first), Revived::Superseded { id: second, by: first }]);
    world.assert_sound().await;
}

/// Looking changes nothing.
pub async fn a_dry_run_changes_nothing(world: World) {
    let id = world.dead("a", "boom").await;
    assert_eq!(revive(&world, ReviveRequest { dry_run: true, ..all() }).await, [ready(id)]);
    assert_eq!(world.state(id).await, JobState::Dead);
}

/// Only those that are asked for: by queue, by id, by error, up to a limit.
pub async fn only_those_asked_for_come_back(world: World) {
    let timeout = world.dead("a", "upstream timed out").await;
    let parse = world.dead("b", "no JSON").await;
    let dry = |request: ReviveRequest| ReviveRequest { dry_run: true, ..request };
    let other = ReviveRequest { queue: Some("other".to_owned()), ..all() };
    assert_eq!(revive(&world, dry(other)).await, []);
    let by_error = ReviveRequest { error: Some("timed out".to_owned()), ..all() };
    assert_eq!(revive(&world, dry(by_error)).await, [ready(timeout)]);
    let by_id = ReviveRequest { ids: Some(vec![parse, JobId::new()]), ..all() };
    assert_eq!(revive(&world, dry(by_id)).await, [ready(parse)]);
    assert_eq!(revive(&world, dry(ReviveRequest { limit: 1, ..all() })).await, [ready(timeout)]);
}

/// With a rate they become due one after the other.
pub async fn a_rate_spreads_them_over_time(world: World) {
    for n in 0..6 {
        world.dead(&n.to_string(), "boom").await;
    }
    revive(&world, ReviveRequest { rate_per_second: Some(2), ..all() }).await;
    let mut due = world.claim(10).await.len();
    assert!(due <= 2, "{due}");
    world.advance(secs(1));
    due += world.claim(10).await.len();
    assert!((2..=4).contains(&due), "{due}");
    world.advance(secs(2));
    assert_eq!(due + world.claim(10).await.len(), 6);
}

/// What is not dead is not touched.
pub async fn live_and_completed_jobs_are_not_revived(world: World) {
    world.enqueue_key("done").await;
    let claimed = world.claim_one().await;
    world.complete(claimed.claim).await;
    world.enqueue_key("live").await;
    assert_eq!(revive(&world, all()).await, []);
}
