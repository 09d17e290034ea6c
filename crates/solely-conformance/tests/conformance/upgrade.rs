//! A store of any earlier version, with data, is brought up to date and goes on from where it was.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use solely_core::cache::EntryKey;
use solely_core::event::timeline;
use solely_core::feed::{PinWhat, RunStatus};
use solely_core::job::{Enqueued, JobState, NewJob};
use solely_core::lease::{Acquired, Holder, LeaseRequest};
use solely_core::queue::JobFilter;
use solely_core::reserve::{
    Batch, HoldTimes, NewReservation, Operation, Request, Rules, Verdict, pickup_code,
};
use solely_core::{Json, LeaseId, ReservationId, Store};
use solely_postgres::PostgresStore;
use solely_sqlite::SqliteStore;
use solely_testing::fresh_database;
use tempfile::TempDir;
use tokio_postgres::NoTls;

/// The steps of an engine, in their order: name and text.
fn steps(engine: &str) -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../solely-{engine}/src/migrations"));
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("steps").flatten().map(|file| file.path()).collect();
    files.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).expect("text"))
    };
    files.into_iter().map(read).collect()
}

/// Long from now.
const LATER: i64 = 4_102_444_800_000;

/// What a server of that time had written: a job that waits and one that is dead, a lease, an entry, an event. In words
/// that both engines and all versions understand, but for how bytes are written.
fn data(bytes: impl Fn(u8) -> String) -> String {
    let columns = "id, queue, kind, key, state, priority, run_at, due_at, ends_at, max_attempts, payload, attributes, \
                   created_at, updated_at";
    let (ready, dead, lease) = (bytes(1), bytes(2), bytes(3));
    format!(
        "INSERT INTO jobs ({columns}) VALUES
             ({ready}, 'old', 'old', 'waits', 0, 5, 1000, 1000, NULL, 3, '{{\"kept\":1}}', '{{}}', 1000, 1000),
             ({dead}, 'old', 'old', 'died', 4, 5, 1000, NULL, 2000, 3, '{{\"kept\":2}}', '{{}}', 1000, 2000);
         INSERT INTO leases (key, lease, owner, fence, ttl_ms, expires_at)
         VALUES ('held', {lease}, 'somebody', 7, 60000, {LATER});
         INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
         VALUES ('enrich:wolt', 'place', '{{\"status\":\"FOUND\",\"url\":\"u\"}}', 3, 1000, {LATER}, {LATER}, {LATER});
         INSERT INTO events (at, subject, event, details) VALUES (1000, 'run:old', 'told', '{{}}');"
    )
}

/// The step that brought runs as they are, and the one that brought boxes.
const RUNS: usize = 5;
const BOXES: usize = 8;

/// A run that is current: one partition, two records. `run` and `hash` are how ids of runs and bytes are written, `when`
/// how the time of a partition is.
fn runs(run: &str, hash: &str, when: &str) -> String {
    format!(
        "INSERT INTO feeds (source, last_number, current_number, current_records, watermark)
         VALUES ('diamonds', 1, 1, 2, 1000);
         INSERT INTO run_metadata (run_id, feed, source, number, mode, status, force, page_limit, watermark_after,
                                   expected_workers, completed_workers, started_at, completed_at, added, changed,
                                   unchanged, removed)
         VALUES ({run}, 1, 'diamonds', 1, 'full', 'completed', false, 30, 1000, 1, 1, 1000, 2000, 2, 0, 0, 0);
         INSERT INTO partition_progress (run_id, partition_id, place, min_price, max_price, total_records,
                                         next_offset, completed, created_at, updated_at)
         VALUES ({run}, 'partition-1', 0, 0, 100, 2, 2, true, {when}, {when});
         INSERT INTO worker_runs (run_id, partition_id, status, records_processed, pages_processed)
         VALUES ({run}, 'partition-1', 'completed', 2, 1);
         INSERT INTO records (feed, id, number, run_id, removed, hash, low, high, updated_at, payload)
         VALUES (1, 'a', 1, {run}, false, {hash}, 5, 5, 1000, '{{\"id\":\"a\"}}'),
                (1, 'b', 1, {run}, false, {hash}, 6, 6, 1000, '{{\"id\":\"b\"}}');
         INSERT INTO seen (feed, number, id, kind, place) VALUES (1, 1, 'a', 2, 0), (1, 1, 'b', 2, 0);"
    )
}

/// Three boxes, of which one is held and one is paid, and a key that was used for the first.
fn boxes(bytes: impl Fn(u8) -> String) -> String {
    let (held, paid) = (bytes(4), bytes(5));
    format!(
        "INSERT INTO merchants (id, name, timezone) VALUES ('m', 'Bakery', 'UTC');
         INSERT INTO box_types (id, merchant_id, name) VALUES ('t', 'm', 'Box');
         INSERT INTO inventory (id, merchant_id, box_type_id, original, remaining, held, paid, collected, withdrawn,
                                price, currency, pickup_start, pickup_end, closed, version)
         VALUES ('box', 'm', 't', 3, 1, 1, 1, 0, 0, 450, 'EUR', 0, {LATER}, false, 4);
         INSERT INTO reservations (id, user_id, merchant_id, inventory_id, status, payment, code, quantity, amount,
                                   currency, reserved_at, expires_at, offered, wrong_codes, blocked_until)
         VALUES ({held}, 'ada', 'm', 'box', 0, 0, '7KQ2-M9XD', 1, 450, 'EUR', 1000, {LATER}, false, 0, 0),
                ({paid}, 'ben', 'm', 'box', 0, 1, '7KQ2-M9XE', 1, 450, 'EUR', 1000, {LATER}, false, 0, 0);"
    )
}

/// What was copied is still current, and can be copied again.
async fn runs_go_on(store: &dyn Store, of: &str) {
    let pinned =
        store.pin(PinWhat::Current("diamonds".to_owned())).await.expect("reads").expect("is current");
    let records = store.records(pinned, None, 10).await.expect("reads");
    assert_eq!(records.iter().map(|record| record.id.as_str()).collect::<Vec<_>>(), ["a", "b"], "{of}");
    let runs = store.runs(Some("diamonds".to_owned()), None, 10).await.expect("reads");
    assert_eq!(runs.iter().map(|state| state.run.status).collect::<Vec<_>>(), [RunStatus::Completed], "{of}");
}

/// Who had a box has it, and what is left can be had by one more.
async fn boxes_go_on(store: &dyn Store, of: &str) {
    let times = HoldTimes {
        least: Duration::from_secs(900),
        usual: Duration::from_secs(1_200),
        most: Duration::from_secs(1_800),
        offer: Duration::from_secs(600),
    };
    let mut outcomes = Vec::new();
    for user in ["ada", "ben", "cleo", "dan"] {
        let new = NewReservation {
            id: ReservationId::new(),
            pickup_code: pickup_code(),
            user_id: user.to_owned(),
            inventory_id: "box".to_owned(),
            ttl: None,
            quantity: 1,
            max_price: None,
        };
        let request = Request::new(Operation::Reserve(new));
        let decided =
            store.decide(Batch::of(vec![request]), Arc::new(Rules::new(times))).await.expect("decides");
        outcomes.push(match &decided.0[0].verdict {
            Verdict::Reservation(_) => "RESERVED",
            Verdict::Refused(refusal) => refusal.code(),
            other => panic!("{of}: {other:?}"),
        });
    }
    let has = "ACTIVE_RESERVATION_EXISTS";
    assert_eq!(outcomes, [has, has, "RESERVED", "BOX_UNAVAILABLE"], "{of}");
}

/// All of it is there, and everything goes on.
async fn goes_on(store: Arc<dyn Store>, version: usize) {
    let of = &format!("version {version}");
    if version >= RUNS {
        runs_go_on(&*store, of).await;
    }
    if version >= BOXES {
        boxes_go_on(&*store, of).await;
    }
    let filter =
        |state| JobFilter { queue: Some("old".to_owned()), state, limit: 10, ..JobFilter::default() };
    let jobs = store.jobs(filter(None)).await.expect("lists");
    assert_eq!(jobs.len(), 2, "{of}");
    let ready = store.jobs(filter(Some(JobState::Ready))).await.expect("lists").remove(0);
    let whole = store.job(ready.id).await.expect("reads").expect("is there");
    assert_eq!(whole.payload, Json::copied("{\"kept\":1}"), "{of}");
    let again =
        store.enqueue(vec![NewJob::new("old", "waits"), NewJob::new("old", "new")]).await.expect("enqueues");
    assert!(matches!(again[0], Enqueued::Duplicate { of, .. } if of == ready.id), "{of}: {again:?}");
    assert_eq!(again[1], Enqueued::Created, "{of}");
    let request = |key: &str| LeaseRequest {
        id: LeaseId::random(),
        keys: vec![key.to_owned()],
        owner: "another".to_owned(),
        ttl: Duration::from_secs(60),
        holder: Holder::Client,
    };
    let held = store.acquire(request("held")).await.expect("asks");
    assert!(matches!(&held, Acquired::Held(held) if held.owner == "somebody"), "{of}: {held:?}");
    let free = store.acquire(request("free")).await.expect("asks");
    assert!(matches!(&free, Acquired::Acquired(lease) if lease.fence > 7), "{of}: {free:?}");
    let entry = store.entries(vec![EntryKey::new("enrich:wolt", "place")]).await.expect("reads").remove(0);
    assert_eq!(entry.expect("is there").version, 3, "{of}");
    assert_eq!(timeline(&*store, "run:old".to_owned(), None, 10).await.expect("reads").len(), 1, "{of}");
    let report = store.check().await.expect("checks");
    assert_eq!(report.violations, [], "{of}");
    store.close().await;
}

#[tokio::test]
async fn every_earlier_version_is_brought_up_with_its_data_on_postgres() {
    let steps = steps("postgres");
    for version in 1..=steps.len() {
        let url = fresh_database();
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connects");
        let connection = tokio::spawn(connection);
        let mut sql = "CREATE TABLE schema_version (version integer NOT NULL PRIMARY KEY, name text NOT NULL,
                           oldest_compatible integer NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());"
            .to_owned();
        for (number, (name, step)) in (1..).zip(&steps[..version]) {
            let _ = writeln!(sql, "{step}\n;INSERT INTO schema_version VALUES ({number}, '{name}', 1);");
        }
        let bytes = |byte| format!("'{}'::uuid", uuid_of(byte));
        sql += &data(bytes);
        if version >= RUNS {
            sql += &runs(&bytes(6), r"'\x00'", "now()");
        }
        if version >= BOXES {
            sql += &boxes(bytes);
        }
        sql += "SELECT setval('fences', 7);";
        client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("version {version}: {error:?}"));
        connection.abort();
        let store = PostgresStore::open(&url, &solely_postgres::Options::default()).await.expect("opens");
        goes_on(Arc::new(store), version).await;
    }
}

#[tokio::test]
async fn every_earlier_version_is_brought_up_with_its_data_on_sqlite() {
    let steps = steps("sqlite");
    for version in 1..=steps.len() {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("solely.db");
        let conn = rusqlite::Connection::open(&path).expect("opens");
        let mut sql = "PRAGMA journal_mode = WAL;
                       CREATE TABLE schema_version (version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL,
                           oldest_compatible INTEGER NOT NULL, applied_at INTEGER NOT NULL);"
            .to_owned();
        for (number, (name, step)) in (1..).zip(&steps[..version]) {
            let _ = writeln!(sql, "{step}\n;INSERT INTO schema_version VALUES ({number}, '{name}', 1, 0);");
        }
        // The embedded engine says in a column of its own that a job is live.
        let bytes = |byte| format!("x'{}'", uuid_of(byte).replace('-', ""));
        let data = data(bytes);
        let data = data.replace("INSERT INTO jobs (id,", "INSERT INTO jobs (live, id,");
        sql += &data.replace("(x'01", "(1, x'01").replace("(x'02", "(NULL, x'02");
        sql += "UPDATE counters SET value = 7 WHERE name = 'fence';";
        if version >= RUNS {
            sql += &runs(&format!("'{}'", uuid_of(6)), "x'00'", "1000");
        }
        if version >= BOXES {
            sql += &boxes(bytes);
        }
        conn.execute_batch(&sql).unwrap_or_else(|error| panic!("version {version}: {error}"));
        drop(conn);
        let url = format!("sqlite:{}", path.display());
        let store = SqliteStore::open(&url, &solely_sqlite::Options::default()).expect("opens");
        goes_on(Arc::new(store), version).await;
    }
}

/// An id that begins with a byte.
fn uuid_of(byte: u8) -> String {
    format!("{byte:02x}000000-0000-7000-8000-000000000000")
}
