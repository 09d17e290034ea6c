//! Wake-ups between processes on PostgreSQL. Polls are not taken part in: only a wake-up ends
//! these waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use solely_core::bus::{Bus, Topic};
use solely_core::cache::{Cache, EntryKey, Lifetimes, Overwrite, PutEntry};
use solely_core::job::NewJob;
use solely_core::metrics::Metrics;
use solely_core::queue::Jobs;
use solely_core::{Json, Store as _, Timestamp};
use solely_postgres::{Options, PostgresStore};
use solely_testing::fresh_database;
use tokio_postgres::NoTls;

/// As one process has them.
struct Process {
    store: Arc<PostgresStore>,
    bus: Bus,
}

impl Process {
    async fn on(url: &str) -> Self {
        let store = Arc::new(PostgresStore::open(url, &Options::default()).await.expect("opens"));
        let bus = Bus::new();
        store.connect_bus(&bus);
        // The first wake-up says that it listens: whatever was before is lost.
        let mut listener = bus.listen(Topic::Queue("connected"));
        tokio::time::timeout(PATIENCE, listener.woken()).await.expect("is connected");
        Self { store, bus }
    }

    fn jobs(&self) -> Jobs {
        Jobs::new(self.store.clone(), self.bus.clone(), Arc::new(Metrics::default()))
    }
}

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn an_enqueue_wakes_the_workers_of_another_process() {
    let url = fresh_database();
    let (here, there) = (Process::on(&url).await, Process::on(&url).await);
    let mut listener = there.bus.listen(Topic::Queue("queue"));
    here.jobs().enqueue(vec![NewJob::new("queue", "a")]).await.expect("enqueues");
    tokio::time::timeout(PATIENCE, listener.woken()).await.expect("woken");
}

#[tokio::test]
async fn a_resumed_queue_wakes_the_workers_of_another_process() {
    let url = fresh_database();
    let (here, there) = (Process::on(&url).await, Process::on(&url).await);
    here.jobs().pause("queue".to_owned(), Some(Timestamp::from_millis(i64::MAX))).await.expect("pauses");
    let mut listener = there.bus.listen(Topic::Queue("queue"));
    here.jobs().pause("queue".to_owned(), None).await.expect("resumes");
    tokio::time::timeout(PATIENCE, listener.woken()).await.expect("woken");
}

/// A copy in memory is dropped when another process changes the entry: in the middle of the range
/// within 50 ms.
#[tokio::test]
async fn an_entry_changed_by_one_process_is_new_at_once_for_another() {
    let url = fresh_database();
    let (here, there) = (Process::on(&url).await, Process::on(&url).await);
    let cache =
        |one: &Process| Cache::new(one.store.clone(), one.bus.clone(), Arc::new(Metrics::default()), None);
    let (writer, reader) = (cache(&here), cache(&there));
    let key = EntryKey::new("space", "a");
    let long = Duration::from_secs(3_600);
    let mut times = Vec::new();
    for n in 1..=21_u32 {
        let entry = PutEntry {
            key: key.clone(),
            value: Json::of(&n),
            lifetimes: Lifetimes { fresh: long, stale: long, keep: long },
            overwrite: Overwrite::Always,
            told: None,
        };
        writer.put(vec![entry]).await.expect("writes");
        let written = Instant::now();
        let seen = async {
            while reader.read(vec![key.clone()]).await.expect("reads")[0].as_ref().map(|entry| &entry.value)
                != Some(&Json::of(&n))
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, seen).await.expect("it is seen");
        times.push(written.elapsed());
    }
    times.sort();
    println!("seen after {:?} in the middle, {:?} at most", times[10], times[20]);
    assert!(times[10] < Duration::from_millis(50), "{times:?}");
}

/// Whoever was cut off connects again, and looks at everything: something may have been missed.
#[tokio::test]
async fn a_process_that_was_cut_off_is_woken_when_it_is_back() {
    let url = fresh_database();
    let (here, there) = (Process::on(&url).await, Process::on(&url).await);
    let mut listener = there.bus.listen(Topic::Queue("queue"));
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connects");
    tokio::spawn(connection);
    let cut = client
        .query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
              WHERE datname = current_database() AND pid <> pg_backend_pid() AND query ~ 'LISTEN|pg_notify'",
            &[],
        )
        .await
        .expect("cuts");
    assert_eq!(cut.len(), 2);
    tokio::time::timeout(PATIENCE, listener.woken()).await.expect("woken by being back");
    // That may have been said twice.
    while tokio::time::timeout(Duration::from_millis(500), listener.woken()).await.is_ok() {}
    here.jobs().enqueue(vec![NewJob::new("queue", "a")]).await.expect("enqueues");
    // `here` may not be back yet, and then its wake-up waits until it is.
    tokio::time::timeout(PATIENCE, listener.woken()).await.expect("woken by the enqueue");
}
