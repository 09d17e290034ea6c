//! Redis under load, and what can become of it: no caller sees an error or an answer that is older
//! than it may be; it is known to be away, and used again soon after it is back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use solely_core::companion::Companion as _;
use solely_core::fault::Guards;
use solely_core::lease::keep::Begun;
use solely_core::lease::{Holder, LeaseRequest};
use solely_core::liveness::Beat;
use solely_core::{LeaseId, ProcessId, Store, limits};
use solely_testing::{RedisCluster, RedisSentinel, RedisServer};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::instance::{Instance, Setup, eventually, store};

/// What was acknowledged of one entry: its value and when.
type History = Arc<Mutex<Vec<Instant>>>;

const KEYS: usize = 8;

/// Two instances that write, read and take leases until they are told to end.
struct Load {
    instances: [Arc<Instance>; 2],
    over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    reads: Arc<AtomicU64>,
    oldest: Arc<Mutex<Duration>>,
}

impl Load {
    async fn begin(store: &Arc<dyn Store>, url: &str) -> Self {
        let (first, second) = (Instance::on(store, url).await, Instance::on(store, url).await);
        let mut load = Self {
            instances: [Arc::new(first), Arc::new(second)],
            over: Arc::default(),
            tasks: Vec::new(),
            reads: Arc::default(),
            oldest: Arc::default(),
        };
        let histories: Arc<Vec<History>> = Arc::new((0..KEYS).map(|_| History::default()).collect());
        for (nth, instance) in load.instances.clone().into_iter().enumerate() {
            load.tasks.push(tokio::spawn(write(instance.clone(), histories.clone(), nth, load.over.clone())));
            load.tasks.push(tokio::spawn(read(
                instance.clone(),
                histories.clone(),
                load.over.clone(),
                load.reads.clone(),
                load.oldest.clone(),
            )));
        }
        let flying = Arc::new(AtomicU64::new(0));
        for instance in load.instances.clone() {
            load.tasks.push(tokio::spawn(fly(instance, flying.clone(), load.over.clone())));
        }
        load.until_used().await;
        load
    }

    /// Redis answers reads, for both.
    async fn until_used(&self) {
        for instance in &self.instances {
            instance.until_ok().await;
            let before = instance.reads("redis");
            eventually("Redis is used", async || instance.reads("redis") > before).await;
        }
    }

    async fn until_known_to_be_away(&self) {
        for instance in &self.instances {
            eventually("it is known to be away", async || !instance.redis.ok()).await;
        }
    }

    /// Redis is back: it is used again within seconds.
    async fn is_used_again(&self) {
        let back = Instant::now();
        self.until_used().await;
        println!("used again after {:?}", back.elapsed());
        assert!(back.elapsed() < Duration::from_secs(6), "{:?}", back.elapsed());
    }

    /// Ends, and judges.
    async fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("no caller sees an error or a wrong answer");
        }
        let (reads, oldest) = (self.reads.load(Ordering::Relaxed), *self.oldest.lock().expect("no panic"));
        println!("{reads} reads; the oldest answer had been replaced {oldest:?} before it was asked for");
        assert!(reads > 100);
    }
}

/// Writes the keys that are this instance's, each a little after the other.
async fn write(instance: Arc<Instance>, histories: Arc<Vec<History>>, nth: usize, over: Arc<AtomicBool>) {
    while !over.load(Ordering::Relaxed) {
        for key in (nth..KEYS).step_by(2) {
            let value = histories[key].lock().expect("no panic").len() as u64;
            instance.write(&format!("k{key}"), value).await;
            histories[key].lock().expect("no panic").push(Instant::now());
            tokio::time::sleep(Duration::from_millis(23)).await;
        }
    }
}

/// Reads them all, and keeps how long ago an answer had been replaced when it was asked for.
async fn read(
    instance: Arc<Instance>,
    histories: Arc<Vec<History>>,
    over: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
    oldest: Arc<Mutex<Duration>>,
) {
    while !over.load(Ordering::Relaxed) {
        for (key, history) in histories.iter().enumerate() {
            let (asked, known) = (Instant::now(), history.lock().expect("no panic").len());
            let found = instance.read(&format!("k{key}")).await;
            reads.fetch_add(1, Ordering::Relaxed);
            assert!(found.is_some() || known == 0, "what was written is there");
            let replaced = found.and_then(|value| {
                let history = history.lock().expect("no panic");
                history.get(usize::try_from(value).expect("small") + 1).copied()
            });
            let age = replaced.map_or(Duration::ZERO, |replaced| asked.saturating_duration_since(replaced));
            assert!(age < limits::MEMORY_TRUST, "an answer was replaced {age:?} ago");
            let mut oldest = oldest.lock().expect("no panic");
            *oldest = age.max(*oldest);
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// Takes a lease behind a hint, again and again: never two at once.
async fn fly(instance: Arc<Instance>, flying: Arc<AtomicU64>, over: Arc<AtomicBool>) {
    let process = ProcessId::random();
    let beat = Beat { process, dead_after: Duration::from_secs(5) };
    let mut beaten = Instant::now();
    instance.store.beat(beat).await.expect("beats");
    while !over.load(Ordering::Relaxed) {
        if beaten.elapsed() > Duration::from_secs(1) {
            beaten = Instant::now();
            instance.store.beat(beat).await.expect("beats");
        }
        let request = LeaseRequest {
            id: LeaseId::random(),
            keys: vec!["flight".to_owned()],
            owner: "load".to_owned(),
            ttl: Duration::from_secs(30),
            holder: Holder::Process(process),
        };
        let begun = instance.leases.begin(request, vec!["lock:flight".to_owned()]).await;
        if let Begun::Mine(kept) = begun.expect("no caller sees an error") {
            assert_eq!(flying.fetch_add(1, Ordering::SeqCst), 0, "two have it at once");
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(!kept.lost().is_cancelled());
            flying.fetch_sub(1, Ordering::SeqCst);
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_and_restarted_empty() {
    let (mut redis, store) = (RedisServer::start(), store());
    let load = Load::begin(&store, &redis.url()).await;
    redis.crash();
    load.until_known_to_be_away().await;
    let refused = "solely_redis_calls_total{outcome=\"refused\"}";
    let instance = load.instances[0].clone();
    eventually("it is counted", async || instance.counted(refused) > 100).await;
    assert_eq!(instance.counted("solely_redis_up"), 0);
    redis.start_again();
    load.is_used_again().await;
    assert_eq!(instance.counted("solely_redis_up"), 1);
    assert!(instance.counted("solely_redis_connections_total") >= 2);
    load.end().await;
}

/// Longer ago than its copies may be trusted, so that their mark has ended.
#[tokio::test(flavor = "multi_thread")]
async fn restarted_with_yesterdays_data() {
    let (mut redis, store) = (RedisServer::start(), store());
    let load = Load::begin(&store, &redis.url()).await;
    redis.save();
    let saved = Instant::now();
    tokio::time::sleep_until(saved + limits::COPIES_TRUST).await;
    redis.crash();
    load.until_known_to_be_away().await;
    redis.start_again();
    load.is_used_again().await;
    let cleaned = load.instances.iter().map(|one| one.counted("solely_redis_cleanings_total")).sum::<u64>();
    assert!(cleaned >= 1, "what was there was dropped");
    load.end().await;
}

/// Its copies follow the store from where they were.
#[tokio::test(flavor = "multi_thread")]
async fn restarted_with_data_of_a_moment_ago() {
    let (mut redis, store) = (RedisServer::start(), store());
    let load = Load::begin(&store, &redis.url()).await;
    for _ in 0..5 {
        redis.save();
        let before = load.reads.load(Ordering::Relaxed);
        eventually("work goes on", async || load.reads.load(Ordering::Relaxed) > before + 200).await;
        redis.crash();
        load.until_known_to_be_away().await;
        redis.start_again();
        load.is_used_again().await;
    }
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_for_five_seconds() {
    let (redis, store) = (RedisServer::start(), store());
    let load = Load::begin(&store, &redis.url()).await;
    redis.freeze();
    let frozen = Instant::now();
    load.until_known_to_be_away().await;
    assert!(frozen.elapsed() < Duration::from_secs(4), "{:?}", frozen.elapsed());
    assert!(load.instances[0].counted("solely_redis_calls_total{outcome=\"timeout\"}") > 0);
    // Meanwhile callers do not wait for it.
    let asked = Instant::now();
    load.instances[0].read("k0").await;
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    tokio::time::sleep_until(frozen + Duration::from_secs(5)).await;
    redis.thaw();
    load.is_used_again().await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flapping_every_second() {
    let (mut redis, store) = (RedisServer::start(), store());
    let load = Load::begin(&store, &redis.url()).await;
    let mut flaps = tokio::time::interval(Duration::from_millis(500));
    for flap in 0..20 {
        flaps.tick().await;
        if flap % 2 == 0 {
            redis.crash();
        } else {
            redis.start_again();
        }
    }
    load.is_used_again().await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_over_to_a_replica() {
    let (mut redis, store) = (RedisSentinel::start(), store());
    let load = Load::begin(&store, &redis.url()).await;
    tokio::task::block_in_place(|| redis.fail_over());
    load.is_used_again().await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_restarted() {
    let (mut redis, store) = (RedisCluster::start(), store());
    let load = Load::begin(&store, &redis.url()).await;
    redis.servers[1].crash();
    load.until_known_to_be_away().await;
    redis.servers[1].start_again();
    load.is_used_again().await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_followed_by_its_replica() {
    let (mut redis, store) = (RedisCluster::start_with_replicas(), store());
    let load = Load::begin(&store, &redis.url()).await;
    tokio::task::block_in_place(|| redis.fail_over());
    load.is_used_again().await;
    load.end().await;
}

/// Redis that is full takes no more: what it has cannot follow, and is not trusted for long.
#[tokio::test]
async fn full_so_that_it_refuses_writes() {
    let (redis, store) = (RedisServer::start(), store());
    let here = Instance::on(&store, &redis.url()).await;
    here.write_through("a", 1).await;
    redis.ask("CONFIG SET maxmemory 1").expect("is full");
    here.write_and_die("a", 2).await;
    eventually("it is known", async || !here.redis.ok()).await;
    assert_eq!(here.copy("a").await, None);
    assert_eq!(here.read("a").await, Some(2));
    redis.ask("CONFIG SET maxmemory 0").expect("has room again");
    here.until_ok().await;
    assert_ne!(here.copy("a").await, Some(1));
}

/// One cannot reach Redis and goes on writing; the other can, and hears no note.
#[tokio::test]
async fn what_one_that_cannot_reach_redis_writes_is_seen_by_one_that_can() {
    let (redis, store) = (RedisServer::start(), store());
    let deaf = Setup { guards: Guards::all(), bus: false };
    let here = Instance::with(&store, &redis.url(), deaf).await;
    here.write_through("a", 1).await;
    let cut_off = Instance::new(&store, "redis://127.0.0.1:1", deaf).await;
    cut_off.write("a", 2).await;
    eventually("Redis has it", async || here.copy("a").await == Some(2)).await;
}

/// The longest that an old answer can be given: every note is lost, and whoever made the change died
/// before it copied it.
#[tokio::test]
async fn with_every_note_lost_a_change_is_seen_within_thirty_seconds() {
    let (redis, store) = (RedisServer::start(), store());
    let deaf = Setup { guards: Guards::all(), bus: false };
    let here = Instance::with(&store, &redis.url(), deaf).await;
    here.write_through("a", 1).await;
    let there = Instance::with(&store, &redis.url(), deaf).await;
    assert_eq!(there.read("a").await, Some(1));
    here.write_and_die("a", 2).await;
    let written = Instant::now();
    while there.read("a").await != Some(2) {
        assert!(written.elapsed() < limits::MEMORY_TRUST, "the old value is still answered");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("seen after {:?}", written.elapsed());
}

/// When the store cannot be asked, what was true last is answered.
#[tokio::test]
async fn with_the_store_away_what_redis_has_is_answered() {
    let (redis, store) = (RedisServer::start(), store());
    let here = Instance::on(&store, &redis.url()).await;
    here.write_through("a", 1).await;
    let there = Instance::on(&store, &redis.url()).await;
    store.close().await;
    assert_eq!(there.read("a").await, Some(1));
    let missing = there.cache.read(vec![crate::instance::key("b")]).await;
    assert!(missing.is_err(), "what nobody has is refused, clearly");
}
