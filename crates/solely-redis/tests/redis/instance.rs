//! What one process has: a cache, watches, leases and jobs on a store that others have too.

use std::sync::Arc;
use std::time::Duration;

use solely_core::bus::Bus;
use solely_core::cache::watch::{Watch, Watches};
use solely_core::cache::{Cache, Entry, EntryKey, Lifetimes, Overwrite, PutEntry};
use solely_core::companion::{Companion, Copied, Copies as _};
use solely_core::fault::{Guards, Points};
use solely_core::lease::Leases;
use solely_core::metrics::Metrics;
use solely_core::queue::Jobs;
use solely_core::{Json, Store};
use solely_postgres::PostgresStore;
use solely_redis::{Options, Redis};
use solely_sqlite::SqliteStore;
use solely_testing::fresh_database;

/// Long enough for anything that is going to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Instance {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) redis: Arc<Redis>,
    pub(crate) bus: Bus,
    pub(crate) cache: Cache,
    pub(crate) watches: Watches,
    pub(crate) leases: Leases,
    pub(crate) jobs: Jobs,
    pub(crate) points: Points,
    metrics: Arc<Metrics>,
}

/// How an instance differs from others.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) guards: Guards,
    /// Whether it hears and tells the others.
    pub(crate) bus: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self { guards: Guards::all(), bus: true }
    }
}

/// Where instances are: a Redis, and a store that all of them have.
pub(crate) struct Place {
    pub(crate) redis: String,
    /// A database that each has connections of its own to; otherwise one store in this process.
    database: Option<String>,
    store: Option<Arc<dyn Store>>,
}

impl Place {
    pub(crate) fn embedded(redis: String) -> Self {
        Self { redis, database: None, store: Some(store()) }
    }

    pub(crate) fn networked(redis: String) -> Self {
        Self { redis, database: Some(fresh_database()), store: None }
    }

    /// The same Redis with another store.
    pub(crate) fn elsewhere(&self) -> Self {
        let redis = self.redis.clone();
        if self.database.is_some() { Self::networked(redis) } else { Self::embedded(redis) }
    }

    pub(crate) async fn store(&self) -> Arc<dyn Store> {
        if let Some(store) = &self.store {
            return store.clone();
        }
        let database = self.database.as_ref().expect("one of the two");
        let store = PostgresStore::open(database, &solely_postgres::Options::default()).await;
        Arc::new(store.expect("opens"))
    }

    /// An instance that uses Redis, and is seen to.
    pub(crate) async fn instance(&self) -> Instance {
        Instance::on(&self.store().await, &self.redis).await
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.redis.starts_with("redis+cluster")
    }
}

/// A store that ends with the test.
pub(crate) fn store() -> Arc<dyn Store> {
    Arc::new(SqliteStore::open("sqlite::memory:", &solely_sqlite::Options::default()).expect("opens"))
}

pub(crate) fn key(name: &str) -> EntryKey {
    EntryKey::new("space", name)
}

pub(crate) fn entry(name: &str, value: u64) -> PutEntry {
    let long = Duration::from_secs(3_600);
    PutEntry {
        key: key(name),
        value: Json::of(&value),
        lifetimes: Lifetimes { fresh: long, stale: long, keep: long },
        overwrite: Overwrite::Always,
        told: None,
    }
}

impl Instance {
    /// One that uses Redis, and is seen to.
    pub(crate) async fn on(store: &Arc<dyn Store>, url: &str) -> Self {
        Self::with(store, url, Setup::default()).await
    }

    pub(crate) async fn with(store: &Arc<dyn Store>, url: &str, setup: Setup) -> Self {
        let instance = Self::new(store, url, setup).await;
        instance.until_ok().await;
        instance
    }

    /// One that may not reach Redis yet.
    pub(crate) async fn new(store: &Arc<dyn Store>, url: &str, setup: Setup) -> Self {
        let (metrics, bus, points) = (Arc::new(Metrics::default()), Bus::new(), Points::in_a_test());
        let options = Options { guards: setup.guards, ..Options::default() };
        let redis = Redis::open(url, options, store.clone(), metrics.clone()).await.expect("a URL");
        let redis = Arc::new(redis);
        if setup.bus {
            redis.connect_bus(&bus);
        }
        let companion = Some(redis.clone() as Arc<dyn Companion>);
        let tests = (setup.guards, points.clone());
        Self {
            cache: Cache::for_tests(
                store.clone(),
                bus.clone(),
                metrics.clone(),
                companion.clone(),
                tests.clone(),
            ),
            watches: Watches::for_tests(store.clone(), &bus, PATIENCE * 10, tests),
            leases: Leases::new(store.clone(), bus.clone(), metrics.clone())
                .with_hints(companion)
                .with_guards(setup.guards),
            jobs: Jobs::new(store.clone(), bus.clone(), metrics.clone()),
            store: store.clone(),
            redis,
            bus,
            points,
            metrics,
        }
    }

    pub(crate) async fn until_ok(&self) {
        eventually("Redis is used", async || self.redis.ok()).await;
    }

    pub(crate) async fn write(&self, name: &str, value: u64) {
        self.cache.put(vec![entry(name, value)]).await.expect("writes");
    }

    /// Writes, and waits until Redis has it.
    pub(crate) async fn write_through(&self, name: &str, value: u64) {
        self.write(name, value).await;
        self.until_copied(name, Some(value)).await;
    }

    /// As a process does that dies right after its commit.
    pub(crate) async fn write_and_die(&self, name: &str, value: u64) {
        self.store.put_entries(vec![entry(name, value)]).await.expect("writes");
    }

    pub(crate) async fn read(&self, name: &str) -> Option<u64> {
        let read = self.cache.read(vec![key(name)]).await.expect("no caller sees an error");
        read[0].as_ref().map(|entry| entry.value.parse().expect("a number"))
    }

    /// What Redis has of an entry, if it is to be trusted.
    pub(crate) async fn copy(&self, name: &str) -> Option<u64> {
        match &self.redis.read(&[key(name)]).await.copies[0] {
            Copied::Entry(entry) => Some(entry.value.parse().expect("a number")),
            Copied::Doubtful(_) | Copied::Missing => None,
        }
    }

    pub(crate) async fn until_copied(&self, name: &str, value: Option<u64>) {
        eventually("Redis has it", async || self.copy(name).await == value).await;
    }

    /// Waits for a few looks around: whatever they do is done.
    pub(crate) async fn until_looked_around(&self) {
        let before = self.redis.looks();
        eventually("it looks around", async || self.redis.looks() >= before + 3).await;
    }

    /// The value of a metric, by its name and labels as they are shown.
    pub(crate) fn counted(&self, metric: &str) -> u64 {
        let text = self.metrics.text();
        let line = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{metric} in {text}"))
    }

    /// How many entries a tier has had to answer for.
    pub(crate) fn reads(&self, tier: &str) -> u64 {
        self.counted(&format!("solely_cache_reads_total{{tier=\"{tier}\"}}"))
    }
}

/// Awaits a condition.
pub(crate) async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "{what}");
}

/// A watch, and what it hears.
pub(crate) struct Watched {
    _watch: Watch,
    heard: tokio::sync::mpsc::Receiver<Entry>,
}

impl Watched {
    pub(crate) async fn next(&mut self) -> Option<Entry> {
        self.heard.recv().await
    }
}

pub(crate) async fn watch(watches: &Watches, names: &[&str]) -> Watched {
    let (sender, heard) = tokio::sync::mpsc::channel(64);
    let keys = names.iter().map(|name| key(name)).collect();
    Watched { _watch: watches.watch(keys, Arc::new(sender)).await.expect("watches"), heard }
}
