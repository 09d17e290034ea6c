//! Notes by Redis and by the store.

use std::sync::Arc;
use std::time::Duration;

use solely_core::Store;
use solely_core::bus::{Bus, Topic};
use solely_core::companion::Companion as _;
use solely_postgres::PostgresStore;
use solely_testing::{RedisServer, fresh_database};

use crate::instance::{Instance, PATIENCE, Setup, eventually, store};

/// Whoever was cut off is woken when it is back: something may have been missed.
#[tokio::test]
async fn a_process_that_was_cut_off_is_woken_when_it_is_back() {
    let mut redis = RedisServer::start();
    let here = Instance::on(&store(), &redis.url()).await;
    let mut listener = here.bus.listen(Topic::Queue("queue"));
    // The first connection wakes as well.
    tokio::time::timeout(PATIENCE, listener.woken()).await.expect("is connected");
    redis.crash();
    redis.start_again();
    tokio::time::timeout(PATIENCE, listener.woken()).await.expect("is connected again");
}

/// A frozen server keeps its connections: the pulse tells that nothing is heard.
#[tokio::test]
async fn a_process_notices_that_nothing_is_heard() {
    let redis = RedisServer::start();
    let here = Instance::on(&store(), &redis.url()).await;
    let mut listener = here.bus.listen(Topic::Queue("queue"));
    tokio::time::timeout(PATIENCE, listener.woken()).await.expect("is connected");
    while tokio::time::timeout(Duration::from_millis(100), listener.woken()).await.is_ok() {}
    redis.freeze();
    let frozen = tokio::time::Instant::now();
    tokio::time::sleep_until(frozen + Duration::from_secs(4)).await;
    redis.thaw();
    tokio::time::timeout(PATIENCE, listener.woken()).await.expect("is connected again");
}

/// While Redis is away, notes go by the store.
#[tokio::test]
async fn notes_go_by_the_store_while_redis_is_away() {
    let (mut redis, database) = (RedisServer::start(), fresh_database());
    let open = || async {
        PostgresStore::open(&database, &solely_postgres::Options::default()).await.expect("opens")
    };
    let (here, there): (Arc<dyn Store>, Arc<dyn Store>) = (Arc::new(open().await), Arc::new(open().await));
    let here = Instance::with(&here, &redis.url(), Setup::default()).await;
    here.store.connect_bus(&here.bus);
    let bus = Bus::new();
    there.connect_bus(&bus);
    let mut listener = bus.listen(Topic::Queue("queue"));
    tokio::time::timeout(PATIENCE, listener.woken()).await.expect("is connected");
    redis.crash();
    let woken = async {
        // Until it is noticed that Redis is away, notes may be lost with it.
        while tokio::time::timeout(Duration::from_millis(100), listener.woken()).await.is_err() {
            here.bus.wake(Topic::Queue("queue"));
        }
    };
    tokio::time::timeout(PATIENCE, woken).await.expect("woken by the store");
    eventually("it is known", async || !here.redis.ok()).await;
}
