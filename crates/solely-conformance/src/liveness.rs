//! Which processes are alive.

use solely_core::ProcessId;
use solely_core::job::ClaimReply;

use crate::World;
use crate::world::{DEAD_AFTER, secs};

/// A process that is silent for the dead time is buried by one that is not.
pub async fn a_silent_process_is_buried(world: World) {
    let silent = ProcessId::random();
    world.beat(silent).await;
    world.live_through(DEAD_AFTER.checked_sub(secs(1)).unwrap()).await;
    assert!(matches!(world.try_claim(silent, 1).await, ClaimReply::Jobs { .. }), "not yet");
    world.advance(secs(2));
    assert_eq!(world.beat(world.process).await.buried, [silent]);
    assert!(matches!(world.try_claim(silent, 1).await, ClaimReply::NotAlive));
}

/// A process that beats is not.
pub async fn a_beating_process_is_not_buried(world: World) {
    let other = ProcessId::random();
    for _ in 0..20 {
        world.advance(secs(1));
        assert_eq!(world.beat(world.process).await.buried, []);
        world.beat(other).await;
    }
}

/// One that was itself paused sees only old heartbeats, and must not judge by them: only after
/// beating without a gap for the whole dead time does it bury.
pub async fn a_process_that_was_paused_does_not_bury_others(world: World) {
    let other = ProcessId::random();
    world.live_through(secs(10)).await;
    world.beat(other).await;
    world.advance(DEAD_AFTER * 3);
    assert_eq!(world.beat(world.process).await.buried, [], "both were silent");
    world.beat(other).await;
    for _ in 0..10 {
        world.advance(secs(1));
        assert_eq!(world.beat(world.process).await.buried, []);
        world.beat(other).await;
    }
}

/// A new process has not beaten long enough to judge.
pub async fn a_new_process_does_not_bury_others(world: World) {
    world.advance(DEAD_AFTER * 3);
    assert_eq!(world.beat(ProcessId::random()).await.buried, []);
}

/// A buried process that comes back is alive again.
pub async fn a_buried_process_may_come_back(world: World) {
    let other = ProcessId::random();
    world.beat(other).await;
    world.live_through(secs(8)).await;
    assert!(matches!(world.try_claim(other, 1).await, ClaimReply::NotAlive));
    world.beat(other).await;
    assert!(matches!(world.try_claim(other, 1).await, ClaimReply::Jobs { .. }));
}
