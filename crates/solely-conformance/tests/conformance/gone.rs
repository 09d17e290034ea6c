//! A process on PostgreSQL whose connection has ended is gone sooner than one that is only silent.

use std::time::{Duration, Instant};

use solely_core::liveness::{Beat, LivenessStore as _};
use solely_core::{Clock, ProcessId, Store as _};
use solely_postgres::{Options, PostgresStore};
use solely_testing::fresh_database;

const DEAD_AFTER: Duration = Duration::from_secs(5);

/// Two processes with connections of their own, both of which have beaten for a while.
struct Pair {
    clock: Clock,
    judge: (PostgresStore, ProcessId),
    other: (PostgresStore, ProcessId),
}

impl Pair {
    async fn new() -> Self {
        let (url, clock) = (fresh_database(), Clock::system());
        let open = async || {
            let options = Options { clock: clock.clone(), max_connections: 3, ..Options::default() };
            (PostgresStore::open(&url, &options).await.expect("opens"), ProcessId::random())
        };
        let pair = Self { judge: open().await, other: open().await, clock };
        for _ in 0..3 {
            pair.clock.shift_ms(1_000);
            assert_eq!(pair.judged().await, []);
            beat(&pair.other).await;
        }
        pair
    }

    async fn judged(&self) -> Vec<ProcessId> {
        beat(&self.judge).await
    }
}

async fn beat((store, process): &(PostgresStore, ProcessId)) -> Vec<ProcessId> {
    store.beat(Beat { process: *process, dead_after: DEAD_AFTER }).await.expect("beats").buried
}

#[tokio::test]
async fn a_process_whose_connection_has_ended_is_gone_after_a_beat_and_a_half() {
    let pair = Pair::new().await;
    pair.other.0.close().await;
    pair.clock.shift_ms(1_000);
    assert_eq!(pair.judged().await, [], "it may be about to beat on another one");
    pair.clock.shift_ms(1_000);
    // The database notices the end of a connection in its own time.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let buried = pair.judged().await;
        if buried == [pair.other.1] {
            break;
        }
        assert!(buried.is_empty() && Instant::now() < deadline, "{buried:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The twin: one that still has its connection may be paused, and is given its time.
#[tokio::test]
async fn a_process_that_still_has_its_connection_is_given_its_time() {
    let pair = Pair::new().await;
    for _ in 0..4 {
        pair.clock.shift_ms(1_000);
        assert_eq!(pair.judged().await, []);
    }
    pair.clock.shift_ms(1_500);
    assert_eq!(pair.judged().await, [pair.other.1], "for as long as anyone");
}

/// Whoever has itself just connected does not judge by connections: the database may have been
/// restarted, and the others may be on their way.
#[tokio::test]
async fn whoever_has_just_connected_does_not_judge_by_connections() {
    let pair = Pair::new().await;
    pair.other.0.close().await;
    pair.clock.shift_ms(2_000);
    let new = ProcessId::random();
    let judge = (pair.judge.0, new);
    assert_eq!(beat(&judge).await, []);
    pair.clock.shift_ms(1_000);
    assert_eq!(beat(&judge).await, []);
}
