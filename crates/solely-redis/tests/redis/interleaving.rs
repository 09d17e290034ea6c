//! The interleavings that the rules close, each played through; and each with its rule off, to
//! show that the test would notice.

use std::time::Duration;

use solely_core::companion::Companion as _;
use solely_core::fault::{Guard, Guards};
use solely_core::id::{LeaseId, ProcessId};
use solely_core::lease::keep::{Begun, Kept};
use solely_core::lease::{Holder, LeaseRequest};
use solely_core::liveness::Beat;
use solely_testing::RedisServer;

use crate::instance::{Instance, PATIENCE, Setup, Watched, entry, eventually, key, store, watch};

/// Makes a test and its twin: with the rule it holds, without it does not.
macro_rules! rule {
    ($name:ident, $guard:expr) => {
        mod $name {
            #[tokio::test]
            async fn holds() {
                assert!(super::$name(super::Guards::all()).await);
            }

            #[tokio::test]
            async fn would_not_hold_without_it() {
                assert!(!super::$name(super::Guards::without($guard)).await);
            }
        }
    };
}

fn alone(guards: Guards) -> Setup {
    Setup { guards, bus: false }
}

rule!(a_back_fill_does_not_replace_a_newer_copy, super::Guard::BackFillIfAbsent);

/// A reader has read the old value from the store; before it is copied back, the new one is written
/// and copied.
async fn a_back_fill_does_not_replace_a_newer_copy(guards: Guards) -> bool {
    let (redis, store) = (RedisServer::start(), store());
    let reader = Instance::with(&store, &redis.url(), alone(guards)).await;
    let writer = Instance::with(&store, &redis.url(), alone(guards)).await;
    let other = Instance::with(&store, &redis.url(), alone(guards)).await;
    reader.write_and_die("a", 1).await;
    let mut stop = reader.points.stop_at("cache.back_fill");
    assert_eq!(reader.read("a").await, Some(1));
    stop.reached().await;
    writer.write_through("a", 2).await;
    let before = reader.redis.round_trips();
    stop.open();
    eventually("it is copied back", async || reader.redis.round_trips() > before).await;
    other.read("a").await == Some(2)
}

rule!(a_back_fill_comes_soon_or_not_at_all, super::Guard::BackFillSoon);

/// A reader has read the old value and is held up for longer than a second; meanwhile the new one is
/// written, copied, and dropped by Redis, which needed room.
async fn a_back_fill_comes_soon_or_not_at_all(guards: Guards) -> bool {
    let (redis, store) = (RedisServer::start(), store());
    let reader = Instance::with(&store, &redis.url(), alone(guards)).await;
    let writer = Instance::with(&store, &redis.url(), alone(guards)).await;
    reader.write_and_die("a", 1).await;
    let mut stop = reader.points.stop_at("cache.back_fill");
    assert_eq!(reader.read("a").await, Some(1));
    stop.reached().await;
    writer.write_through("a", 2).await;
    // Seconds, after which nobody has a reason to copy it again.
    writer.until_looked_around().await;
    redis.ask("DEL entry:5:space:a").expect("drops it");
    stop.open();
    // It is tried, and seen to be too late, within a look around.
    reader.until_looked_around().await;
    writer.copy("a").await != Some(1)
}

rule!(a_late_writer_does_not_replace_a_newer_copy, super::Guard::CopiesCompared);

/// A writer has committed, and is held up before it copies; another commits after it and copies.
async fn a_late_writer_does_not_replace_a_newer_copy(guards: Guards) -> bool {
    let (redis, store) = (RedisServer::start(), store());
    let first = Instance::with(&store, &redis.url(), alone(guards)).await;
    let second = Instance::with(&store, &redis.url(), alone(guards)).await;
    let mut stop = first.points.stop_at("cache.replace");
    first.write("a", 1).await;
    stop.reached().await;
    second.write_through("a", 2).await;
    let before = first.redis.round_trips();
    stop.open();
    eventually("the first copies", async || first.redis.round_trips() > before).await;
    second.copy("a").await == Some(2)
}

rule!(a_late_writer_does_not_bring_back_what_was_forgotten, super::Guard::CopiesCompared);

/// A writer has committed, and is held up before it copies; another forgets the entry, and so long
/// goes by that nothing in Redis tells of it any more.
async fn a_late_writer_does_not_bring_back_what_was_forgotten(guards: Guards) -> bool {
    let (redis, store) = (RedisServer::start(), store());
    let writer = Instance::with(&store, &redis.url(), alone(guards)).await;
    let other = Instance::with(&store, &redis.url(), alone(guards)).await;
    let third = Instance::with(&store, &redis.url(), alone(guards)).await;
    let mut stop = writer.points.stop_at("cache.replace");
    writer.write("a", 1).await;
    stop.reached().await;
    assert!(other.cache.forget(key("a"), Duration::ZERO, None).await.expect("forgets"));
    other.until_looked_around().await;
    redis.ask("DEL entry:5:space:a").expect("drops the mark of it");
    let before = writer.redis.round_trips();
    stop.open();
    eventually("it is tried", async || writer.redis.round_trips() > before).await;
    third.read("a").await.is_none()
}

rule!(a_back_fill_does_not_bring_back_what_was_forgotten, super::Guard::Tombstones);

/// A reader has read an entry; before it is copied back, the entry is forgotten.
async fn a_back_fill_does_not_bring_back_what_was_forgotten(guards: Guards) -> bool {
    let (redis, store) = (RedisServer::start(), store());
    let reader = Instance::with(&store, &redis.url(), alone(guards)).await;
    let other = Instance::with(&store, &redis.url(), alone(guards)).await;
    let third = Instance::with(&store, &redis.url(), alone(guards)).await;
    reader.write_and_die("a", 1).await;
    let mut stop = reader.points.stop_at("cache.back_fill");
    assert_eq!(reader.read("a").await, Some(1));
    stop.reached().await;
    let before = other.redis.round_trips();
    assert!(other.cache.forget(key("a"), Duration::ZERO, None).await.expect("forgets"));
    eventually("it is marked", async || other.redis.round_trips() > before).await;
    let before = reader.redis.round_trips();
    stop.open();
    eventually("it is copied back", async || reader.redis.round_trips() > before).await;
    third.read("a").await.is_none()
}

rule!(a_copy_from_before_a_change_that_was_heard_of_is_not_taken, super::Guard::Floors);

/// An instance hears of a change, and Redis still has the old copy: whoever made the change could
/// not reach it.
async fn a_copy_from_before_a_change_that_was_heard_of_is_not_taken(guards: Guards) -> bool {
    let (redis, store) = (RedisServer::start(), store());
    let here = Instance::with(&store, &redis.url(), alone(guards)).await;
    here.write_through("a", 1).await;
    assert_eq!(here.read("a").await, Some(1));
    here.write_and_die("a", 2).await;
    let at =
        here.store.entries(vec![key("a")]).await.expect("reads")[0].as_ref().map(|entry| entry.updated_at);
    here.bus.hear(&solely_core::bus::Note::Changed { key: key("a"), at });
    here.read("a").await == Some(2)
}

rule!(memory_is_dropped_when_notes_may_have_been_missed, super::Guard::FlushOnGap);

/// An instance is cut off from the bus, an entry changes, and it is connected again.
async fn memory_is_dropped_when_notes_may_have_been_missed(guards: Guards) -> bool {
    let (mut redis, store) = (RedisServer::start(), store());
    let here = Instance::with(&store, &redis.url(), Setup { guards, bus: true }).await;
    here.write_through("a", 1).await;
    assert_eq!(here.read("a").await, Some(1));
    redis.crash();
    here.write_and_die("a", 2).await;
    let mut missed = here.bus.listen(solely_core::bus::Topic::Queue("missed"));
    redis.start_again();
    tokio::time::timeout(PATIENCE, missed.woken()).await.expect("it is connected again");
    here.read("a").await == Some(2)
}

rule!(a_change_whose_maker_died_is_copied_by_others, super::Guard::CopiesFollow);

/// A process dies between its commit and its copy.
async fn a_change_whose_maker_died_is_copied_by_others(guards: Guards) -> bool {
    let (redis, store) = (RedisServer::start(), store());
    let dying = Instance::with(&store, &redis.url(), alone(guards)).await;
    dying.write_through("a", 1).await;
    dying.write_and_die("a", 2).await;
    dying.redis.close().await;
    let other = Instance::with(&store, &redis.url(), alone(guards)).await;
    other.until_looked_around().await;
    other.read("a").await == Some(2)
}

rule!(yesterdays_copies_are_not_trusted, super::Guard::CopiesFollow);

/// Redis is restarted from a file that is older than what has happened since.
async fn yesterdays_copies_are_not_trusted(guards: Guards) -> bool {
    let (mut redis, store) = (RedisServer::start(), store());
    let here = Instance::with(&store, &redis.url(), alone(guards)).await;
    here.write_through("a", 1).await;
    // Its mark ends, as it does when a day goes by.
    redis.ask("DEL solely:followed").expect("ends it");
    redis.save();
    redis.crash();
    here.write_and_die("a", 2).await;
    redis.start_again();
    let there = Instance::with(&store, &redis.url(), alone(guards)).await;
    there.read("a").await == Some(2)
}

fn request(process: ProcessId) -> LeaseRequest {
    LeaseRequest {
        id: LeaseId::random(),
        keys: vec!["flight".to_owned()],
        owner: "test".to_owned(),
        ttl: Duration::from_secs(60),
        holder: Holder::Process(process),
    }
}

async fn begin(instance: &Instance) -> Option<Kept> {
    let process = ProcessId::random();
    instance.store.beat(Beat { process, dead_after: Duration::from_secs(5) }).await.expect("beats");
    match instance.leases.begin(request(process), vec!["lock:flight".to_owned()]).await.expect("asks") {
        Begun::Mine(kept) => Some(kept),
        Begun::Held(_) => None,
    }
}

rule!(a_hint_never_allows, super::Guard::RowsDecide);

/// One has begun; Redis loses its hint; another asks.
async fn a_hint_never_allows(guards: Guards) -> bool {
    let (redis, store) = (RedisServer::start(), store());
    let here = Instance::with(&store, &redis.url(), alone(guards)).await;
    let there = Instance::with(&store, &redis.url(), alone(guards)).await;
    let kept = begin(&here).await.expect("is free");
    redis.ask("DEL lock:flight").expect("loses it");
    let second = begin(&there).await;
    let alone = second.is_none();
    drop(kept);
    alone
}

/// And it refuses early: the store is not asked.
#[tokio::test]
async fn a_hint_may_refuse_early() {
    let (redis, store) = (RedisServer::start(), store());
    let (here, there) = (Instance::on(&store, &redis.url()).await, Instance::on(&store, &redis.url()).await);
    let kept = begin(&here).await.expect("is free");
    assert!(begin(&there).await.is_none());
    assert_eq!(there.counted("solely_hints_total{outcome=\"held\"}"), 1);
    drop(kept);
    // Given back by its owner, row and hint.
    eventually("it is free", async || begin(&there).await.is_some()).await;
}

rule!(a_vanished_hint_cancels_nothing, super::Guard::HintsCancelNothing);

/// The hint of work that goes on vanishes.
async fn a_vanished_hint_cancels_nothing(guards: Guards) -> bool {
    let (redis, store) = (RedisServer::start(), store());
    let here = Instance::with(&store, &redis.url(), alone(guards)).await;
    let kept = begin(&here).await.expect("is free");
    redis.ask("DEL lock:flight").expect("loses it");
    eventually("it is noticed", async || here.counted("solely_hints_total{outcome=\"vanished\"}") == 1).await;
    if guards == Guards::all() {
        eventually("it is set again", async || {
            redis.ask("GET lock:flight").is_some_and(|answer| !answer.starts_with("$-1"))
        })
        .await;
    } else {
        eventually("it is cancelled", async || kept.lost().is_cancelled()).await;
    }
    !kept.lost().is_cancelled()
}

/// The loss of the row does cancel.
#[tokio::test]
async fn a_lost_row_cancels_the_work() {
    let (redis, store) = (RedisServer::start(), store());
    let here = Instance::on(&store, &redis.url()).await;
    let process = ProcessId::random();
    store.beat(Beat { process, dead_after: Duration::from_secs(5) }).await.expect("beats");
    let short = LeaseRequest { ttl: Duration::from_millis(600), ..request(process) };
    let Begun::Mine(kept) = here.leases.begin(short, Vec::new()).await.expect("asks") else { panic!("free") };
    store.release(kept.lease().id).await.expect("releases");
    tokio::time::timeout(PATIENCE, kept.lost().cancelled()).await.expect("is cancelled");
}

rule!(whoever_waits_is_registered_before_the_store_is_read, super::Guard::RegisterFirst);

/// An entry is written while someone begins to watch it.
async fn whoever_waits_is_registered_before_the_store_is_read(guards: Guards) -> bool {
    let (redis, store) = (RedisServer::start(), store());
    let here = Instance::with(&store, &redis.url(), alone(guards)).await;
    let mut stop = here.points.stop_at("watch.read");
    let watches = here.watches.clone();
    let beginning = tokio::spawn(async move { watch(&watches, &["a"]).await });
    stop.reached().await;
    here.write("a", 1).await;
    stop.open();
    let mut first = beginning.await.expect("runs");
    // Something else that is watched and written later is heard of: the first was not missed.
    let mut later = watch(&here.watches, &["b"]).await;
    here.write("b", 1).await;
    tokio::time::timeout(PATIENCE, later.next()).await.expect("hears");
    heard(&mut first).await == 1
}

/// How many entries a watch has been sent.
async fn heard(watch: &mut Watched) -> usize {
    let mut count = 0;
    while let Ok(Some(_)) = tokio::time::timeout(Duration::ZERO, watch.next()).await {
        count += 1;
    }
    count
}

rule!(what_was_sent_is_not_sent_again, super::Guard::SentOnce);

/// A change is heard of twice, and the entry is read again by a poll.
async fn what_was_sent_is_not_sent_again(guards: Guards) -> bool {
    let (redis, store) = (RedisServer::start(), store());
    let here = Instance::with(&store, &redis.url(), alone(guards)).await;
    let mut watched = watch(&here.watches, &["a"]).await;
    here.write("a", 1).await;
    tokio::time::timeout(PATIENCE, watched.next()).await.expect("hears");
    here.bus.missed();
    let mut later = watch(&here.watches, &["b"]).await;
    here.write("b", 1).await;
    tokio::time::timeout(PATIENCE, later.next()).await.expect("hears");
    heard(&mut watched).await == 0
}

/// Its poll reads the keys that are watched, so it does not matter in which order rows commit.
#[tokio::test]
async fn a_watch_finds_by_its_poll_what_it_was_not_told_of() {
    let (store, bus) = (store(), solely_core::bus::Bus::new());
    let often = Duration::from_millis(20);
    let tests = (Guards::all(), solely_core::fault::Points::default());
    let watches = solely_core::cache::watch::Watches::for_tests(store.clone(), &bus, often, tests);
    let mut both = watch(&watches, &["a", "b"]).await;
    for name in ["b", "a"] {
        store.put_entries(vec![entry(name, 1)]).await.expect("writes");
        let heard = tokio::time::timeout(PATIENCE, both.next()).await.expect("hears").expect("goes on");
        assert_eq!(heard.key, key(name));
    }
    drop(both);
    assert_eq!(watches.watched(), 0);
}
