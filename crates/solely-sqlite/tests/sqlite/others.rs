//! Tools that write beside the server.

use std::sync::Arc;
use std::time::Duration;

use solely_core::Store as _;
use solely_core::bus::{Bus, Topic};
use solely_core::cache::{Cache, CacheStore as _, EntryKey, Lifetimes, Overwrite, PutEntry};
use solely_core::id::ProcessId;
use solely_core::json::Json;
use solely_core::liveness::{Beat, LivenessStore as _};
use solely_core::metrics::Metrics;
use solely_sqlite::{Access, Options, SqliteStore};

fn entry(value: u32) -> PutEntry {
    let long = Duration::from_secs(3_600);
    PutEntry {
        key: key(),
        value: Json::of(&value),
        lifetimes: Lifetimes { fresh: long, stale: long, keep: long },
        overwrite: Overwrite::Always,
        told: None,
    }
}

fn key() -> EntryKey {
    EntryKey::new("space", "a")
}

/// What is in memory is dropped when a tool has written to the file; heartbeats are enough for that
/// to be noticed.
#[tokio::test]
async fn what_a_tool_writes_is_not_hidden_by_memory() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("solely.db").display());
    let store = Arc::new(SqliteStore::open(&url, &Options::default()).expect("opens"));
    let bus = Bus::new();
    store.connect_bus(&bus);
    let cache = Cache::new(store.clone(), bus.clone(), Arc::new(Metrics::default()), None);
    cache.put(vec![entry(1)]).await.expect("writes");
    let read = async || cache.read(vec![key()]).await.expect("reads")[0].clone().expect("is there").value;
    assert_eq!(read().await, Json::of(&1));
    let beat = Beat { process: ProcessId::random(), dead_after: Duration::from_secs(5) };
    let mut missed = bus.listen(Topic::Queue("missed"));
    let beating = async {
        loop {
            store.beat(beat).await.expect("beats");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let writing = async {
        let tool = SqliteStore::open(&url, &Options { access: Access::Tool, ..Options::default() });
        let tool = tool.expect("opens");
        loop {
            tool.put_entries(vec![entry(2)]).await.expect("writes");
            if tokio::time::timeout(Duration::from_millis(700), missed.woken()).await.is_ok() {
                break;
            }
        }
    };
    tokio::select! {
        () = beating => {}
        done = tokio::time::timeout(Duration::from_secs(20), writing) => done.expect("it is noticed"),
    }
    assert_eq!(read().await, Json::of(&2));
}
