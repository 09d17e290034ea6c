//! Pruning, health, and `check`.

use std::time::Duration;

use solely_core::Json;
use solely_core::cache::{EntryKey, Lifetimes, Overwrite, PutEntry};
use solely_core::event::NewEvent;
use solely_core::job::{JobState, NewJob, Window};
use solely_core::store::{Pruned, Retention};

use crate::World;
use crate::world::{QUEUE, secs};

const DAY: Duration = secs(24 * 60 * 60);

async fn prune(world: &World) -> u64 {
    let mut rows = 0;
    loop {
        let pruned: Pruned = world.store().prune(Retention::default()).await.expect("prunes");
        rows += pruned.rows;
        if !pruned.more {
            return rows;
        }
    }
}

async fn count(world: &World, what: &str) -> u64 {
    let report = world.store().check().await.expect("checks");
    report.counted.iter().find(|(name, _)| name == what).expect("is counted").1
}

/// Completed jobs go after a day; dead letters, live jobs and the rest stay.
pub async fn finished_jobs_are_pruned_after_their_retention(world: World) {
    world.enqueue_key("done").await;
    let claimed = world.claim_one().await;
    world.complete(claimed.claim).await;
    let dead = world.dead("dead", "boom").await;
    let live = world.enqueue_key("live").await;
    assert_eq!(prune(&world).await, 0);
    world.advance(DAY + secs(1));
    assert_eq!(prune(&world).await, 1);
    assert_eq!(world.store().job(claimed.job.id).await.expect("reads"), None);
    assert_eq!((world.state(dead).await, world.state(live).await), (JobState::Dead, JobState::Ready));
    world.advance(DAY * 30);
    prune(&world).await;
    assert_eq!(world.store().job(dead).await.expect("reads"), None);
    assert_eq!(world.state(live).await, JobState::Ready);
}

/// Everything with an end is pruned behind it, in batches, until nothing is left.
pub async fn what_has_ended_is_pruned_in_batches(world: World) {
    let entries = (0..1_200).map(|n| PutEntry {
        key: EntryKey::new("space", n.to_string()),
        value: Json::empty(),
        lifetimes: Lifetimes { fresh: secs(1), stale: secs(1), keep: secs(1) },
        overwrite: Overwrite::Always,
        told: None,
    });
    world.store().put_entries(entries.collect()).await.expect("writes");
    for batch in 0..3 {
        let events = (0..400).map(|n| NewEvent::new(format!("place:{batch}-{n}"), "told"));
        world.store().append(events.collect()).await.expect("appends");
    }
    for n in 0..30 {
        let key = n.to_string();
        world.store().acquire(crate::lease::request("o", &[&key])).await.expect("answers");
    }
    let mut message = NewJob::new(QUEUE, "a");
    message.window = Window::Check(secs(60));
    world.enqueue(message).await;
    world.advance(DAY * 31);
    prune(&world).await;
    for what in ["entries", "events", "leases"] {
        assert_eq!(count(&world, what).await, 0, "{what}");
    }
    assert_eq!(count(&world, "live jobs").await, 1);
}

/// What is due for delivery is kept, however old, and does not hold up what is behind it.
pub async fn undelivered_events_are_kept(world: World) {
    let stuck = (0..600).map(|_| NewEvent::new("place:a", "due").topic("webhook"));
    world.store().append(stuck.collect()).await.expect("appends");
    let plain = (0..600).map(|_| NewEvent::new("place:a", "told"));
    world.store().append(plain.collect()).await.expect("appends");
    world.advance(DAY * 31);
    prune(&world).await;
    assert_eq!(count(&world, "events").await, 600);
}

/// Live leases and kept entries are left alone.
pub async fn what_is_live_is_not_pruned(world: World) {
    world.store().acquire(crate::lease::request("o", &["a"])).await.expect("answers");
    world.enqueue_key("a").await;
    assert_eq!(prune(&world).await, 0);
    assert_eq!((count(&world, "leases").await, count(&world, "jobs").await), (1, 1));
}

/// A store that is open is healthy; a new one breaks no rule.
pub async fn a_new_store_is_healthy_and_sound(world: World) {
    world.store().health().await.expect("healthy");
    world.assert_sound().await;
}

/// A closed store refuses at once and clearly.
pub async fn a_closed_store_refuses(world: World) {
    world.store().close().await;
    let error = world.store().enqueue(vec![NewJob::new(QUEUE, "a")]).await.expect_err("closed");
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert!(world.store().health().await.is_err());
}
