//! A schema on PostgreSQL that several programs use, of one version or of two.

use solely_core::StoreError;
use solely_core::job::{JobStore as _, NewJob};
use solely_core::queue::QueueStore as _;
use solely_postgres::{LATEST_VERSION, Options, PostgresStore};
use solely_testing::fresh_database;
use tokio_postgres::{Client, NoTls};

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

async fn open(url: &str) -> Result<PostgresStore, StoreError> {
    PostgresStore::open(url, &Options { max_connections: 2, ..Options::default() }).await
}

/// Ten that start at once on an empty database migrate it once, and all of them run.
#[tokio::test]
async fn ten_that_start_at_once_migrate_it_once() {
    let url = fresh_database();
    let openers = (0..10).map(|_| {
        let url = url.clone();
        tokio::spawn(async move { open(&url).await.map(drop) })
    });
    for opener in openers.collect::<Vec<_>>() {
        opener.await.expect("ends").expect("opens");
    }
    let row =
        connect(&url).await.query_one("SELECT count(*) FROM schema_version", &[]).await.expect("counts");
    assert_eq!(row.get::<_, i64>(0), i64::from(LATEST_VERSION));
}

/// A program that meets a later schema runs if that schema says it may, as in a rolling restart.
#[tokio::test]
async fn an_older_program_runs_beside_a_newer_schema_that_allows_it() {
    let url = fresh_database();
    open(&url).await.expect("opens");
    later_schema(&url, LATEST_VERSION).await;
    let store = open(&url).await.expect("runs");
    solely_core::Store::health(&store).await.expect("works");
}

/// …and refuses clearly if it does not, changing nothing.
#[tokio::test]
async fn an_older_program_refuses_a_newer_schema_that_forbids_it() {
    let url = fresh_database();
    open(&url).await.expect("opens");
    later_schema(&url, LATEST_VERSION + 1).await;
    let Err(StoreError::Unusable(refused)) = open(&url).await else { panic!("refused") };
    let needs = format!("needs a program for version {}", LATEST_VERSION + 1);
    assert!(refused.contains(&needs) && refused.contains("Run a newer solely"), "{refused}");
    let row =
        connect(&url).await.query_one("SELECT max(version) FROM schema_version", &[]).await.expect("reads");
    assert_eq!(row.get::<_, i32>(0), i32::try_from(LATEST_VERSION + 1).expect("small"));
}

/// As a later program would have left it.
async fn later_schema(url: &str, oldest_compatible: u32) {
    let sql = format!(
        "INSERT INTO schema_version (version, name, oldest_compatible)
         VALUES ({}, 'later', {oldest_compatible})",
        LATEST_VERSION + 1
    );
    connect(url).await.batch_execute(&sql).await.expect("is later");
}

/// Two stores in one database, each in a schema of its own, know nothing of each other.
#[tokio::test]
async fn a_store_may_have_a_schema_of_its_own() {
    let url = fresh_database();
    let open = async |schema: &str| {
        PostgresStore::open(&url, &Options { schema: schema.to_owned(), ..Options::default() }).await
    };
    let (first, second) = (open("first").await.expect("opens"), open("second").await.expect("opens"));
    let job = NewJob::new("queue", "key");
    first.enqueue(vec![job.clone()]).await.expect("enqueues");
    assert!(first.job(job.id).await.expect("reads").is_some());
    assert!(second.job(job.id).await.expect("reads").is_none());
    assert!(matches!(open("no; schema").await, Err(StoreError::Unusable(_))));
}
