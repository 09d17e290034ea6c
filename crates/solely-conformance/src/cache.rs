//! Cache entries.

use std::time::Duration;

use solely_core::Json;
use solely_core::cache::{Age, Entry, EntryKey, Lifetimes, Overwrite, Put, PutEntry};

use crate::World;
use crate::world::secs;

fn key(key: &str) -> EntryKey {
    EntryKey::new("space", key)
}

fn entry(name: &str, value: u32, overwrite: Overwrite) -> PutEntry {
    PutEntry {
        key: key(name),
        value: Json::of(&value),
        lifetimes: Lifetimes { fresh: secs(10), stale: secs(20), keep: secs(30) },
        overwrite,
    }
}

async fn put(world: &World, entry: PutEntry) -> Put {
    world.store().put_entries(vec![entry]).await.expect("writes")[0]
}

async fn get(world: &World, name: &str) -> Option<Entry> {
    world.store().entries(vec![key(name)]).await.expect("reads").remove(0)
}

async fn age_after(world: &World, wait: Duration) -> Option<Age> {
    world.advance(wait);
    get(world, "a").await.map(|entry| entry.age)
}

/// Fresh, stale, gone but kept, not there: on the store's clock.
pub async fn an_entry_has_three_ages(world: World) {
    put(&world, entry("a", 1, Overwrite::Always)).await;
    assert_eq!(age_after(&world, secs(9)).await, Some(Age::Fresh));
    assert_eq!(age_after(&world, secs(2)).await, Some(Age::Stale));
    assert_eq!(age_after(&world, secs(10)).await, Some(Age::Gone));
    assert_eq!(age_after(&world, secs(10)).await, None);
}

/// What was written is read back, in the order asked for.
pub async fn entries_are_read_in_the_order_asked_for(world: World) {
    put(&world, entry("a", 1, Overwrite::Always)).await;
    put(&world, entry("b", 2, Overwrite::Always)).await;
    let found = world.store().entries(vec![key("b"), key("absent"), key("a")]).await.expect("reads");
    let values: Vec<Option<u32>> = found
        .iter()
        .map(|entry| entry.as_ref().map(|entry| entry.value.parse().expect("a number")))
        .collect();
    assert_eq!(values, [Some(2), None, Some(1)]);
}

/// A plain write replaces what is there, and its version grows.
pub async fn a_plain_write_replaces_and_its_version_grows(world: World) {
    assert_eq!(put(&world, entry("a", 1, Overwrite::Always)).await, Put::Stored { version: 1 });
    assert_eq!(put(&world, entry("a", 2, Overwrite::Always)).await, Put::Stored { version: 2 });
    assert_eq!(get(&world, "a").await.expect("is there").value, Json::of(&2));
}

/// A late answer never overwrites a newer one.
pub async fn a_write_needs_a_higher_version(world: World) {
    assert_eq!(put(&world, entry("a", 1, Overwrite::Above(7))).await, Put::Stored { version: 7 });
    assert_eq!(put(&world, entry("a", 2, Overwrite::Above(6))).await, Put::Outdated { version: 7 });
    assert_eq!(put(&world, entry("a", 3, Overwrite::Above(7))).await, Put::Outdated { version: 7 });
    assert_eq!(put(&world, entry("a", 4, Overwrite::Above(8))).await, Put::Stored { version: 8 });
    assert_eq!(get(&world, "a").await.expect("is there").value, Json::of(&4));
}

/// The entries of one write are judged one by one.
pub async fn entries_of_one_write_are_judged_one_by_one(world: World) {
    put(&world, entry("a", 1, Overwrite::Above(7))).await;
    let entries = vec![entry("a", 2, Overwrite::Above(1)), entry("b", 2, Overwrite::Above(1))];
    let outcomes = world.store().put_entries(entries).await.expect("writes");
    assert_eq!(outcomes, [Put::Outdated { version: 7 }, Put::Stored { version: 1 }]);
}

/// Forgotten is not there.
pub async fn a_forgotten_entry_is_not_there(world: World) {
    put(&world, entry("a", 1, Overwrite::Always)).await;
    assert!(world.store().forget_entry(key("a")).await.expect("forgets"));
    assert!(!world.store().forget_entry(key("a")).await.expect("forgets"));
    assert_eq!(get(&world, "a").await, None);
}

/// Spaces keep apart what has the same key.
pub async fn spaces_are_apart(world: World) {
    put(&world, entry("a", 1, Overwrite::Always)).await;
    let other = world.store().entries(vec![EntryKey::new("other", "a")]).await.expect("reads");
    assert_eq!(other, [None]);
}

/// Entries survive a restart.
pub async fn entries_survive_a_restart(mut world: World) {
    put(&world, entry("a", 1, Overwrite::Always)).await;
    world.restart().await;
    assert_eq!(get(&world, "a").await.expect("is there").value, Json::of(&1));
}
