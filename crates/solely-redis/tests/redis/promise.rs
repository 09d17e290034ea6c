//! The promises of the companion, on each kind of deployment.

use std::time::{Duration, Instant};

use solely_core::bus::Topic;
use solely_core::cache::{AskHints, EntryKey};
use solely_core::companion::{Companion as _, Hinted, Hints as _};
use solely_core::id::LeaseId;
use solely_core::job::NewJob;
use solely_core::lease::{Holder, LeaseRequest, WaitedLease};
use solely_testing::{RedisCluster, RedisSentinel, RedisServer};

use crate::instance::{Instance, PATIENCE, Place, Setup, Watched, entry, eventually, key, watch};

/// Makes a test of each promise on one kind of deployment.
macro_rules! stamp {
    ($module:ident, $deployment:ident, $place:ident, [$($promise:ident),* $(,)?]) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $promise() {
                    let deployment = super::$deployment::start();
                    super::$promise(&super::Place::$place(deployment.url())).await;
                }
            )*
        }
    };
    ($($module:ident: $deployment:ident, $place:ident;)*) => {
        $(
            stamp!($module, $deployment, $place, [
                what_one_writes_another_reads_from_redis,
                what_the_store_had_is_copied_back,
                a_change_is_seen_elsewhere_at_once,
                a_forgotten_entry_is_forgotten_everywhere,
                a_watch_hears_of_what_another_instance_writes,
                many_entries_are_one_round_trip,
                missing_entries_are_hinted,
                hints_are_taken_together_or_not_at_all,
                a_hint_is_its_owners,
                a_hint_ends_by_itself,
                a_vanished_hint_is_set_again,
                an_enqueue_wakes_another_instance,
                a_released_lease_wakes_a_waiter_elsewhere,
                copies_of_another_store_are_not_used,
            ]);
        )*
    };
}

stamp! {
    single: RedisServer, embedded;
    sentinel: RedisSentinel, embedded;
    cluster: RedisCluster, embedded;
    with_postgres: RedisServer, networked;
}

async fn what_one_writes_another_reads_from_redis(place: &Place) {
    let (here, there) = (place.instance().await, place.instance().await);
    here.write_through("a", 7).await;
    assert_eq!(there.read("a").await, Some(7));
    assert_eq!((there.reads("redis"), there.reads("store")), (1, 0));
    assert_eq!(there.read("a").await, Some(7));
    assert_eq!((there.reads("memory"), there.reads("redis"), there.reads("store")), (1, 1, 0));
}

async fn what_the_store_had_is_copied_back(place: &Place) {
    let before = place.instance().await;
    before.write_and_die("a", 7).await;
    let here = place.instance().await;
    assert_eq!(here.read("a").await, Some(7));
    here.until_copied("a", Some(7)).await;
    let there = place.instance().await;
    assert_eq!(there.read("a").await, Some(7));
    assert_eq!(there.reads("store"), 0);
}

/// With the bus at work: in the middle of the range within 50 ms.
async fn a_change_is_seen_elsewhere_at_once(place: &Place) {
    let (here, there) = (place.instance().await, place.instance().await);
    until_heard(&here, &there).await;
    let mut times = Vec::new();
    for n in 1..=21 {
        here.write("a", n).await;
        let written = Instant::now();
        eventually("it is seen there", async || there.read("a").await == Some(n)).await;
        times.push(written.elapsed());
    }
    times.sort();
    println!("seen after {:?} in the middle, {:?} at most", times[10], times[20]);
    assert!(times[10] < Duration::from_millis(50), "{times:?}");
}

/// Waits until each hears the other.
async fn until_heard(here: &Instance, there: &Instance) {
    for (from, to) in [(here, there), (there, here)] {
        let mut listener = to.bus.listen(Topic::Queue("heard"));
        let hearing = async {
            while tokio::time::timeout(Duration::from_millis(20), listener.woken()).await.is_err() {
                from.bus.wake(Topic::Queue("heard"));
            }
        };
        tokio::time::timeout(PATIENCE, hearing).await.expect("they hear each other");
    }
}

async fn a_forgotten_entry_is_forgotten_everywhere(place: &Place) {
    let (here, there) = (place.instance().await, place.instance().await);
    here.write_through("a", 7).await;
    assert_eq!(there.read("a").await, Some(7));
    assert!(here.cache.forget(key("a"), Duration::ZERO, None).await.expect("forgets"));
    assert_eq!(here.read("a").await, None, "at once here");
    eventually("it is forgotten there", async || there.read("a").await.is_none()).await;
    here.until_copied("a", None).await;
    here.write("a", 8).await;
    assert_eq!(here.read("a").await, Some(8));
    here.until_copied("a", Some(8)).await;
}

async fn a_watch_hears_of_what_another_instance_writes(place: &Place) {
    let (here, there) = (place.instance().await, place.instance().await);
    until_heard(&here, &there).await;
    here.write("early", 1).await;
    let mut watch = watch(&there.watches, &["early", "late"]).await;
    let next = async |watch: &mut Watched| {
        let entry = tokio::time::timeout(PATIENCE, watch.next()).await.expect("hears").expect("goes on");
        (entry.key.key.clone(), entry.value.parse::<u64>().expect("a number"))
    };
    assert_eq!(next(&mut watch).await, ("early".to_owned(), 1));
    here.write("late", 2).await;
    assert_eq!(next(&mut watch).await, ("late".to_owned(), 2));
}

/// One round trip to each server that has some of them, at the same time.
async fn many_entries_are_one_round_trip(place: &Place) {
    let (here, there) = (place.instance().await, place.instance().await);
    let names: Vec<String> = (0..100).map(|n| format!("k{n}")).collect();
    here.cache.put(names.iter().map(|name| entry(name, 1)).collect()).await.expect("writes");
    eventually("Redis has them", async || {
        here.copy("k99").await.is_some() && here.copy("k0").await.is_some()
    })
    .await;
    here.until_looked_around().await;
    let keys: Vec<_> = names.iter().map(|name| key(name)).collect();
    let before = there.redis.round_trips();
    let read = there.cache.read(keys.clone()).await.expect("reads");
    assert_eq!(read.iter().flatten().count(), 100);
    let servers = if place.is_cluster() { 3 } else { 1 };
    assert_eq!(there.redis.round_trips() - before, servers, "one for each server");
    assert_eq!((there.reads("redis"), there.reads("store")), (100, 0));
    there.cache.read(keys).await.expect("reads");
    assert_eq!(there.redis.round_trips() - before, servers, "none for what is in memory");
}

async fn missing_entries_are_hinted(place: &Place) {
    let (here, there) = (place.instance().await, place.instance().await);
    here.write_through("there", 1).await;
    let keys = [key("there"), key("missing")];
    let hint = |key: &EntryKey| format!("lock:{}", key.key);
    let ttl = Duration::from_secs(60);
    let before = there.redis.round_trips();
    let (one, two) = (|_: usize| "one".to_owned(), |_: usize| "two".to_owned());
    let first = there.cache.copies_or_hints(&keys, Some(AskHints { name: &hint, owner: &one, ttl })).await;
    if !place.is_cluster() {
        assert_eq!(there.redis.round_trips() - before, 1);
    }
    assert!(first.entries[0].is_some() && first.entries[1].is_none());
    assert!(first.hints[0].is_none() && matches!(first.hints[1], Some(Hinted::Taken { .. })));
    let second = here.cache.copies_or_hints(&keys, Some(AskHints { name: &hint, owner: &two, ttl })).await;
    assert!(matches!(&second.hints[1], Some(Hinted::Held { owner, .. }) if owner == "one"));
}

fn hints(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("lock:{{tag}}:{name}")).collect()
}

async fn hints_are_taken_together_or_not_at_all(place: &Place) {
    let here = place.instance().await;
    let ttl = Duration::from_secs(60);
    let Hinted::Taken { fence } = here.redis.take(&hints(&["b"]), "one", ttl).await else { panic!("free") };
    let held = here.redis.take(&hints(&["a", "b", "c"]), "two", ttl).await;
    assert!(matches!(held, Hinted::Held { owner, ends_in } if owner == "one" && ends_in <= ttl));
    let rest = here.redis.take(&hints(&["a", "c"]), "three", ttl).await;
    let Hinted::Taken { fence: later } = rest else { panic!("none of them was taken") };
    assert!(later > fence);
    let apart: Vec<String> = ["x", "y", "z"].map(|name| format!("lock:{name}")).to_vec();
    let taken = here.redis.take(&apart, "one", ttl).await;
    if place.is_cluster() {
        assert_eq!(taken, Hinted::Unknown, "a cluster cannot take what is apart in one step");
    } else {
        assert!(matches!(taken, Hinted::Taken { .. }));
    }
}

async fn a_hint_is_its_owners(place: &Place) {
    let here = place.instance().await;
    let ttl = Duration::from_secs(60);
    assert!(matches!(here.redis.take(&hints(&["a"]), "one", ttl).await, Hinted::Taken { .. }));
    here.redis.give_back(&hints(&["a"]), "on").await;
    here.redis.give_back(&hints(&["a"]), "two").await;
    assert!(here.redis.keep(&hints(&["a"]), "two", ttl).await, "it has not vanished");
    assert!(
        matches!(here.redis.take(&hints(&["a"]), "two", ttl).await, Hinted::Held { owner, .. } if owner == "one")
    );
    here.redis.give_back(&hints(&["a"]), "one").await;
    assert!(matches!(here.redis.take(&hints(&["a"]), "two", ttl).await, Hinted::Taken { .. }));
}

async fn a_hint_ends_by_itself(place: &Place) {
    let here = place.instance().await;
    let short = Duration::from_millis(50);
    assert!(matches!(here.redis.take(&hints(&["a"]), "one", short).await, Hinted::Taken { .. }));
    eventually("it ends", async || {
        matches!(here.redis.take(&hints(&["a"]), "two", short).await, Hinted::Taken { .. })
    })
    .await;
}

async fn a_vanished_hint_is_set_again(place: &Place) {
    let here = place.instance().await;
    let ttl = Duration::from_secs(60);
    assert!(!here.redis.keep(&hints(&["a"]), "one", ttl).await, "it had vanished");
    assert!(
        matches!(here.redis.take(&hints(&["a"]), "two", ttl).await, Hinted::Held { owner, .. } if owner == "one")
    );
    assert!(here.redis.keep(&hints(&["a"]), "one", ttl).await, "and is there");
}

async fn an_enqueue_wakes_another_instance(place: &Place) {
    let (here, there) = (place.instance().await, place.instance().await);
    until_heard(&here, &there).await;
    let mut listener = there.bus.listen(Topic::Queue("queue"));
    here.jobs.enqueue(vec![NewJob::new("queue", "a")]).await.expect("enqueues");
    tokio::time::timeout(PATIENCE, listener.woken()).await.expect("woken");
}

/// Sooner than its poll would see it.
async fn a_released_lease_wakes_a_waiter_elsewhere(place: &Place) {
    let (here, there) = (place.instance().await, place.instance().await);
    until_heard(&here, &there).await;
    let request = |owner: &str| LeaseRequest {
        id: LeaseId::random(),
        keys: vec!["a".to_owned()],
        owner: owner.to_owned(),
        ttl: Duration::from_secs(60),
        holder: Holder::Client,
    };
    let mut times = Vec::new();
    for _ in 0..5 {
        let taken = here.leases.acquire(request("here"), Duration::ZERO).await.expect("asks");
        let WaitedLease::Acquired(lease) = taken else { panic!("free") };
        let (leases, wanted) = (there.leases.clone(), request("there"));
        let waiter = tokio::spawn(async move { leases.acquire(wanted, PATIENCE).await });
        eventually("it waits", async || there.bus.listeners(Topic::Lease("a")) == 1).await;
        let released = Instant::now();
        here.leases.release(lease.id).await.expect("releases");
        let got = waiter.await.expect("waits").expect("asks");
        times.push(released.elapsed());
        let WaitedLease::Acquired(lease) = got else { panic!("was released") };
        there.leases.release(lease.id).await.expect("releases");
    }
    times.sort();
    assert!(times[2] < Duration::from_millis(300), "{times:?}");
}

async fn copies_of_another_store_are_not_used(place: &Place) {
    let here = place.instance().await;
    here.write_through("a", 1).await;
    let elsewhere = place.elsewhere();
    let there = Instance::new(&elsewhere.store().await, &elsewhere.redis, Setup::default()).await;
    there.until_looked_around().await;
    assert!(!there.redis.ok());
    assert_eq!(there.read("a").await, None);
    // Nor does it write any, nor take hints.
    there.write("a", 9).await;
    assert_eq!(there.redis.take(&hints(&["a"]), "one", Duration::from_secs(60)).await, Hinted::Unknown);
    there.until_looked_around().await;
    assert_eq!(here.copy("a").await, Some(1));
    assert!(here.redis.ok());
}
