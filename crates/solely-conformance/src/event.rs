//! Events: timeline and outbox.

use solely_core::Json;
use solely_core::commit::{Commit, Effect, Verdict};
use solely_core::event::{Event, EventId, NewEvent};

use crate::World;

fn event(n: usize) -> NewEvent {
    NewEvent::new("place:a", format!("event-{n}"))
}

async fn timeline(world: &World, after: Option<EventId>, limit: u32) -> Vec<Event> {
    world.store().timeline("place:a".to_owned(), after, limit).await.expect("reads")
}

/// In order, whole, page by page.
pub async fn a_timeline_is_in_order_page_by_page(world: World) {
    let whole = event(0).outcome("found").reason("because").details(Json::of(&serde_json::json!({"a": 1})));
    let events = std::iter::once(whole.clone()).chain((1..5).map(event)).collect();
    world.store().append(events).await.expect("appends");
    world.store().append(vec![NewEvent::new("place:b", "elsewhere")]).await.expect("appends");
    let first = timeline(&world, None, 3).await;
    assert_eq!(first[0].told, whole);
    let rest = timeline(&world, Some(first[2].id), 10).await;
    let names: Vec<&str> = first.iter().chain(&rest).map(|event| event.told.event.as_str()).collect();
    assert_eq!(names, ["event-0", "event-1", "event-2", "event-3", "event-4"]);
}

/// An event with a topic is due for delivery until a commit says it was delivered; then it
/// stays in the timeline.
pub async fn an_outbox_holds_what_is_not_delivered(world: World) {
    let events = (0..3).map(|n| event(n).topic("reservation:1")).collect();
    world.store().append(events).await.expect("appends");
    let due = world.store().outbox("reservation:1".to_owned(), 2).await.expect("reads");
    assert_eq!(due.len(), 2);
    world.enqueue_key("deliver").await;
    let claimed = world.claim_one().await;
    let mut commit = Commit::new(claimed.claim, Verdict::Complete);
    commit.effect = Effect::Delivered(due.iter().map(|event| event.id).collect());
    world.settle(commit).await;
    let left = world.store().outbox("reservation:1".to_owned(), 10).await.expect("reads");
    assert_eq!(left.iter().map(|event| event.told.event.as_str()).collect::<Vec<_>>(), ["event-2"]);
    assert_eq!(timeline(&world, None, 10).await.len(), 3);
}

/// A cursor stays true though what it points at was pruned, and after a restart.
pub async fn a_cursor_outlives_its_event(mut world: World) {
    world.store().append((0..3).map(event).collect()).await.expect("appends");
    let last = timeline(&world, None, 10).await[2].id;
    world.advance(std::time::Duration::from_secs(40 * 24 * 3600));
    world.store().prune(solely_core::store::Retention::default()).await.expect("prunes");
    assert!(timeline(&world, None, 10).await.is_empty());
    world.restart().await;
    world.store().append(vec![event(9)]).await.expect("appends");
    assert_eq!(timeline(&world, Some(last), 10).await.len(), 1);
}
