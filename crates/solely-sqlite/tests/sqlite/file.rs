//! The file: one server, its schema, its clock.

use solely_core::StoreError;
use solely_core::job::JobStore as _;
use solely_core::queue::QueueStore as _;
use solely_core::{Clock, Store as _};
use solely_sqlite::{Access, LATEST_VERSION, Options, SqliteStore};
use tempfile::TempDir;

use crate::{Home, job, url};

/// One server per file; tools may come beside it.
#[tokio::test]
async fn a_file_has_one_server() {
    let home = Home::new(&Options::default());
    let second = SqliteStore::open(&url(&home.folder), &Options::default());
    let Err(StoreError::Unusable(why)) = second else { panic!("it is served") };
    assert!(why.contains("another process"), "{why}");
    let tool = Options { access: Access::Tool, ..Options::default() };
    let tool = SqliteStore::open(&url(&home.folder), &tool).expect("a tool may");
    home.store.enqueue(vec![job("a", 10)]).await.expect("enqueues");
    tool.enqueue(vec![job("b", 10)]).await.expect("enqueues");
    assert_eq!(home.store.queues().await.expect("lists")[0].ready, 2);
    home.store.close().await;
    SqliteStore::open(&url(&home.folder), &Options::default()).expect("once it is closed");
}

/// Many that start at once migrate it once, and all of them run.
#[test]
fn many_that_start_at_once_migrate_it_once() {
    let folder = TempDir::new().expect("a folder");
    let openers: Vec<_> = (0..10)
        .map(|_| {
            let url = url(&folder);
            std::thread::spawn(move || {
                let tool = Options { access: Access::Tool, ..Options::default() };
                SqliteStore::open(&url, &tool).map(drop)
            })
        })
        .collect();
    for opener in openers {
        opener.join().expect("ends").expect("opens");
    }
    let conn = rusqlite::Connection::open(folder.path().join("solely.db")).expect("opens");
    let versions: u32 =
        conn.query_row("SELECT count(*) FROM schema_version", [], |row| row.get(0)).expect("counts");
    assert_eq!(versions, LATEST_VERSION);
}

/// A schema from the future: run if it says that this program can, else refuse and say why.
#[test]
fn a_newer_schema_is_run_on_or_refused_clearly() {
    let home = Home::new(&Options::default());
    let file = home.folder.path().join("solely.db");
    let home = home.reopen(&Options::default());
    drop(home.store);
    let add = |version: u32, oldest: u32| {
        let conn = rusqlite::Connection::open(&file).expect("opens");
        let sql = "INSERT INTO schema_version (version, name, oldest_compatible, applied_at) VALUES (?1, 'x', ?2, 0)";
        conn.execute(sql, (version, oldest)).expect("writes");
    };
    add(LATEST_VERSION + 1, LATEST_VERSION);
    SqliteStore::open(&url(&home.folder), &Options::default()).map(drop).expect("compatible");
    add(LATEST_VERSION + 2, LATEST_VERSION + 2);
    let Err(StoreError::Unusable(why)) = SqliteStore::open(&url(&home.folder), &Options::default()) else {
        panic!("too new")
    };
    assert!(why.contains("newer solely"), "{why}");
}

/// A clock that goes back does not take the store's time with it, across a restart neither.
#[tokio::test]
async fn the_stores_time_never_goes_back() {
    let clock = Clock::system();
    let options = Options { clock: clock.clone(), ..Options::default() };
    let home = Home::new(&options);
    clock.shift_ms(3_600_000);
    let first = job("a", 10);
    let first_id = first.id;
    home.store.enqueue(vec![first]).await.expect("enqueues");
    crate::process(&home.store).await;
    clock.shift_ms(-7_200_000);
    let home = home.reopen(&options);
    let second = job("b", 10);
    let second_id = second.id;
    home.store.enqueue(vec![second]).await.expect("enqueues");
    let created = async |id| home.store.job(id).await.expect("reads").expect("is there").created_at;
    assert!(created(second_id).await >= created(first_id).await);
}

/// … and it does not stand still either: deadlines come, though the clock is an hour behind.
#[tokio::test]
async fn time_goes_on_though_the_clock_went_back() {
    let clock = Clock::system();
    let home = Home::new(&Options { clock: clock.clone(), ..Options::default() });
    let first = job("first", 10);
    let first_id = first.id;
    home.store.enqueue(vec![first]).await.expect("enqueues");
    clock.shift_ms(-3_600_000);
    let created = async |id| home.store.job(id).await.expect("reads").expect("is there").created_at;
    let begun = created(first_id).await;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    for n in 0.. {
        assert!(std::time::Instant::now() < deadline, "time stands still");
        let next = job(n.to_string(), 10);
        let id = next.id;
        home.store.enqueue(vec![next]).await.expect("enqueues");
        if created(id).await >= begun.plus(std::time::Duration::from_millis(20)) {
            return;
        }
    }
}

/// A URL that is none, and a file that is none, are refused clearly.
#[test]
fn what_cannot_be_opened_says_why() {
    for bad in ["", "solely.db", "sqlite:", "postgres://x"] {
        assert!(matches!(SqliteStore::open(bad, &Options::default()), Err(StoreError::Unusable(_))), "{bad}");
    }
    let folder = TempDir::new().expect("a folder");
    std::fs::write(
        folder.path().join("solely.db"),
        "this is not a database, whatever its name says".repeat(50),
    )
    .expect("writes");
    let Err(error) = SqliteStore::open(&url(&folder), &Options::default()) else { panic!("no database") };
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
}

/// A database in memory has the same store in front of it.
#[tokio::test]
async fn a_store_in_memory_works() {
    let store = SqliteStore::open("sqlite::memory:", &Options::default()).expect("opens");
    store.enqueue(vec![job("a", 10)]).await.expect("enqueues");
    assert_eq!(store.queues().await.expect("lists")[0].ready, 1);
    let report = solely_core::check::CheckStore::check(&store).await.expect("checks");
    assert_eq!(report.violations, []);
}
