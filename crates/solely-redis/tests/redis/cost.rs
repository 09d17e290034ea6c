//! What operations cost: round trips to Redis, and whether the store is asked.

use std::time::Duration;

use solely_core::LeaseId;
use solely_core::cache::{AskHints, EntryKey};
use solely_core::companion::Hints as _;
use solely_core::lease::keep::Begun;
use solely_core::lease::{Holder, LeaseRequest};
use solely_testing::RedisServer;

use crate::instance::{Instance, Setup, entry, eventually, key, store};

/// Round trips of one instance from now on.
struct Bill<'a> {
    instance: &'a Instance,
    before: u64,
}

impl<'a> Bill<'a> {
    fn open(instance: &'a Instance) -> Self {
        Self { instance, before: instance.redis.round_trips() }
    }

    fn total(&self) -> u64 {
        self.instance.redis.round_trips() - self.before
    }
}

#[tokio::test]
async fn operations_cost_what_they_should() {
    let redis = RedisServer::start();
    let store = store();
    // Without a bus: whatever goes to Redis is asked for here.
    let deaf = Setup { bus: false, ..Setup::default() };
    let here = Instance::with(&store, &redis.url(), deaf).await;
    let there = Instance::with(&store, &redis.url(), deaf).await;
    let names: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    let keys: Vec<EntryKey> = names.iter().map(|name| key(name)).collect();

    // Two hundred entries are written: one round trip to Redis for all of them.
    let bill = Bill::open(&here);
    here.cache.put(names.iter().map(|name| entry(name, 1)).collect()).await.expect("writes");
    eventually("they are copied", async || bill.total() == 1).await;

    // All in Redis: one. All in memory: none. The store is asked for nothing.
    let bill = Bill::open(&there);
    there.cache.read(keys.clone()).await.expect("reads");
    assert_eq!((bill.total(), there.reads("store")), (1, 0));
    there.cache.read(keys.clone()).await.expect("reads");
    assert_eq!((bill.total(), there.reads("store")), (1, 0));

    // All missing: one to Redis, one to the store, nothing to copy back.
    let missing: Vec<EntryKey> = (0..200).map(|n| key(&format!("missing{n}"))).collect();
    let bill = Bill::open(&there);
    there.cache.read(missing.clone()).await.expect("reads");
    assert_eq!((bill.total(), there.reads("store")), (1, 200));

    // The same with a hint for each: still one.
    let hint = |key: &EntryKey| format!("lock:{}", key.key);
    let owner = |_: usize| "one".to_owned();
    let ask = AskHints { name: &hint, owner: &owner, ttl: Duration::from_secs(60) };
    let bill = Bill::open(&there);
    let copied = there.cache.copies_or_hints(&missing, Some(ask)).await;
    assert_eq!((bill.total(), copied.hints.iter().flatten().count()), (1, 200));

    // Hints: one each, however many keys.
    let hints: Vec<String> = (0..64).map(|n| format!("hint{n}")).collect();
    let bill = Bill::open(&there);
    there.redis.take(&hints, "one", Duration::from_secs(60)).await;
    there.redis.keep(&hints, "one", Duration::from_secs(60)).await;
    assert_eq!(bill.total(), 2);

    // Work that a hint refuses: one, and the store is not asked.
    let request = LeaseRequest {
        id: LeaseId::random(),
        keys: vec!["a".to_owned()],
        owner: "test".to_owned(),
        ttl: Duration::from_secs(60),
        holder: Holder::Client,
    };
    let bill = Bill::open(&here);
    let begun = here.leases.begin(request, hints.clone()).await.expect("asks");
    assert!(matches!(begun, Begun::Held(_)));
    assert_eq!(bill.total(), 1);
    assert_eq!(store.held_keys(None, 10).await.expect("reads"), []);
}
