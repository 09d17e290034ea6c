//! Cache entries.

use std::collections::HashMap;
use std::time::Duration;

use solely_core::cache::{Age, ChangeCursor, Changes, Entry, EntryKey, Lifetimes, Overwrite, Put, PutEntry};
use solely_core::event::NewEvent;
use solely_core::{Json, Timestamp};

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
        told: None,
    }
}

async fn put(world: &World, entry: PutEntry) -> Result<u64, u64> {
    judged(world.store().put_entries(vec![entry]).await.expect("writes")[0])
}

/// The version of what is stored; that of what was there before is an error.
pub(crate) fn judged(put: Put) -> Result<u64, u64> {
    match put {
        Put::Stored { version, .. } => Ok(version),
        Put::Outdated { version } => Err(version),
    }
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
    put(&world, entry("a", 1, Overwrite::Always)).await.expect("is stored");
    assert_eq!(age_after(&world, secs(9)).await, Some(Age::Fresh));
    assert_eq!(age_after(&world, secs(2)).await, Some(Age::Stale));
    assert_eq!(age_after(&world, secs(10)).await, Some(Age::Gone));
    assert_eq!(age_after(&world, secs(10)).await, None);
}

/// What was written is read back, in the order asked for.
pub async fn entries_are_read_in_the_order_asked_for(world: World) {
    put(&world, entry("a", 1, Overwrite::Always)).await.expect("is stored");
    put(&world, entry("b", 2, Overwrite::Always)).await.expect("is stored");
    let found = world.store().entries(vec![key("b"), key("absent"), key("a")]).await.expect("reads");
    let values: Vec<Option<u32>> = found
        .iter()
        .map(|entry| entry.as_ref().map(|entry| entry.value.parse().expect("a number")))
        .collect();
    assert_eq!(values, [Some(2), None, Some(1)]);
}

/// A plain write replaces what is there, and its version grows.
pub async fn a_plain_write_replaces_and_its_version_grows(world: World) {
    assert_eq!(put(&world, entry("a", 1, Overwrite::Always)).await, Ok(1));
    assert_eq!(put(&world, entry("a", 2, Overwrite::Always)).await, Ok(2));
    assert_eq!(get(&world, "a").await.expect("is there").value, Json::of(&2));
}

/// A late answer never overwrites a newer one.
pub async fn a_write_needs_a_higher_version(world: World) {
    assert_eq!(put(&world, entry("a", 1, Overwrite::Above(7))).await, Ok(7));
    assert_eq!(put(&world, entry("a", 2, Overwrite::Above(6))).await, Err(7));
    assert_eq!(put(&world, entry("a", 3, Overwrite::Above(7))).await, Err(7));
    assert_eq!(put(&world, entry("a", 4, Overwrite::Above(8))).await, Ok(8));
    assert_eq!(get(&world, "a").await.expect("is there").value, Json::of(&4));
}

/// The entries of one write are judged one by one.
pub async fn entries_of_one_write_are_judged_one_by_one(world: World) {
    put(&world, entry("a", 1, Overwrite::Above(7))).await.expect("is stored");
    let entries = vec![entry("a", 2, Overwrite::Above(1)), entry("b", 2, Overwrite::Above(1))];
    let outcomes = world.store().put_entries(entries).await.expect("writes");
    assert_eq!(outcomes.iter().map(|put| judged(*put)).collect::<Vec<_>>(), [Err(7), Ok(1)]);
    let Put::Stored { updated_at, .. } = outcomes[1] else { panic!("{outcomes:?}") };
    assert_eq!(get(&world, "b").await.map(|entry| entry.updated_at), Some(updated_at));
}

/// What is told of an entry is told with its being stored, and not otherwise.
pub async fn what_is_told_of_an_entry_is_told_if_it_is_stored(world: World) {
    let told = |name: &str, version: u64| {
        let told = NewEvent::new(format!("entry:{name}"), "written").outcome(version.to_string());
        PutEntry { told: Some(told), ..entry(name, 1, Overwrite::Above(version)) }
    };
    world.store().put_entries(vec![told("b", 5), told("a", 5)]).await.expect("writes");
    world.store().put_entries(vec![told("a", 4), told("b", 6)]).await.expect("writes");
    let events = async |name: &str| -> Vec<String> {
        let found = world.store().timeline(format!("entry:{name}"), None, 10).await.expect("reads");
        found.into_iter().filter_map(|event| event.told.outcome).collect()
    };
    assert_eq!((events("a").await, events("b").await), (vec!["5".into()], vec!["5".into(), "6".into()]));
}

/// Forgotten is not there.
pub async fn a_forgotten_entry_is_not_there(world: World) {
    put(&world, entry("a", 1, Overwrite::Always)).await.expect("is stored");
    assert!(world.store().forget_entry(key("a"), Duration::ZERO, None).await.expect("forgets").is_some());
    assert_eq!(world.store().forget_entry(key("a"), Duration::ZERO, None).await.expect("forgets"), None);
    assert_eq!(get(&world, "a").await, None);
}

/// Spaces keep apart what has the same key.
pub async fn spaces_are_apart(world: World) {
    put(&world, entry("a", 1, Overwrite::Always)).await.expect("is stored");
    let other = world.store().entries(vec![EntryKey::new("other", "a")]).await.expect("reads");
    assert_eq!(other, [None]);
}

/// Entries survive a restart.
pub async fn entries_survive_a_restart(mut world: World) {
    put(&world, entry("a", 1, Overwrite::Always)).await.expect("is stored");
    world.restart().await;
    assert_eq!(get(&world, "a").await.expect("is there").value, Json::of(&1));
}

/// Of two writes of one entry the later has the later time, also within one instant and across
/// its being forgotten.
pub async fn a_later_write_has_a_later_time(world: World) {
    let mut last = Timestamp::from_millis(0);
    for n in 0..50 {
        if n % 10 == 9 {
            let forgotten = world
                .store()
                .forget_entry(key("a"), Duration::ZERO, None)
                .await
                .expect("forgets")
                .expect("was there");
            assert!(forgotten > last);
            last = forgotten;
        }
        put(&world, entry("a", n, Overwrite::Always)).await.expect("is stored");
        let updated_at = get(&world, "a").await.expect("is there").updated_at;
        assert!(updated_at > last);
        last = updated_at;
    }
}

async fn changes_after(world: &World, after: ChangeCursor, limit: u32) -> Changes {
    world.store().changes(after, limit).await.expect("reads")
}

fn since(at: Timestamp) -> ChangeCursor {
    ChangeCursor { at, key: None }
}

/// What was written and what was forgotten, in order of time, page by page.
pub async fn changes_are_read_in_order(world: World) {
    put(&world, entry("before", 1, Overwrite::Always)).await.expect("is stored");
    let start = get(&world, "before").await.expect("is there").updated_at;
    for name in ["c", "a", "b", "d"] {
        put(&world, entry(name, 1, Overwrite::Always)).await.expect("is stored");
        world.advance(Duration::from_millis(1));
    }
    world.store().forget_entry(key("a"), Duration::ZERO, None).await.expect("forgets").expect("was there");
    let (mut found, mut after) = (Vec::new(), since(start));
    loop {
        let page = changes_after(&world, after, 2).await;
        found.extend(page.changes.iter().map(|change| (change.key.key.clone(), change.entry.is_some())));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    // "c" may have been written in the instant of "before".
    found.retain(|(name, _)| name != "c");
    assert_eq!(found, [("b".to_owned(), true), ("d".to_owned(), true), ("a".to_owned(), false)]);
}

/// A page of changes may end between two of one instant.
pub async fn changes_of_one_instant_are_read_page_by_page(world: World) {
    let all = (0..7).map(|n| entry(&format!("k{n}"), n, Overwrite::Always)).collect();
    world.store().put_entries(all).await.expect("writes");
    let (mut found, mut after) = (Vec::new(), since(Timestamp::from_millis(0)));
    loop {
        let page = changes_after(&world, after, 3).await;
        found.extend(page.changes.into_iter().map(|change| change.key.key));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(found, ["k0", "k1", "k2", "k3", "k4", "k5", "k6"]);
}

/// Every change up to the instant it names can be read.
pub async fn changes_are_complete_until_the_instant_they_name(world: World) {
    let store = world.store();
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0..20 {
                    let entry = entry(&format!("{writer}-{n}"), n, Overwrite::Always);
                    store.put_entries(vec![entry]).await.expect("writes");
                }
            })
        })
        .collect();
    let (mut seen, mut until) = (HashMap::new(), Timestamp::from_millis(0));
    loop {
        let ended = writers.iter().all(tokio::task::JoinHandle::is_finished);
        let page = changes_after(&world, since(until), 10_000).await;
        for change in page.changes {
            seen.insert(change.key, change.updated_at);
        }
        until = until.max(page.complete_until);
        if ended {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(seen.len(), 160, "what was read after each instant, and nothing before it again");
}
