//! A lookup that is just ending, on PostgreSQL: whoever asks for its place meanwhile waits for its end to be known.

use std::sync::Arc;
use std::time::Duration;

use solely_core::cache::CacheStore as _;
use solely_core::enrich::{
    Ask, Asked, AskingRequest, EnrichStore as _, NewWait, Told, Waits, ends_wait, entry_key, queue,
    request_key,
};
use solely_core::job::NewJob;
use solely_postgres::{Options, PostgresStore};
use solely_testing::fresh_database;
use tokio_postgres::{Client, NoTls};

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

/// Whether its lease was taken: then the lookup that is there is met by the unique key, and not looked for.
fn ask(request: &str, leased: bool) -> Ask {
    let job = NewJob { kind: "lookup".to_owned(), ..NewJob::new(queue("wolt"), "place") };
    let wait = NewWait { key: entry_key("wolt", "place"), name: "Name".to_owned(), place: 0, job, leased };
    let ttl = Duration::from_secs(60);
    let request = AskingRequest { id: request.to_owned(), ttl, told: Told::default() };
    Ask { request: Some(request), waits: vec![wait] }
}

/// Waits until somebody waits for a lock.
async fn until_locked(looks: &Client, is_over: impl Fn() -> bool) {
    let waits = "SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while looks.query_one(waits, &[]).await.expect("looks").get::<_, i64>(0) == 0 {
        assert!(!is_over(), "does not wait for the end of the lookup");
        tokio::task::yield_now().await;
    }
}

/// A refresh that fails writes nothing where there is something to be served. If that ends just then, whoever asks must
/// not be told to wait for the refresh: it ends without an entry. They get a lookup of their own.
async fn ends_without_an_entry(leased: bool) {
    let url = fresh_database();
    let store = PostgresStore::open(&url, &Options::default()).await.expect("opens");
    assert_eq!(store.wait(ask("first", leased)).await.expect("asks"), Asked::Answered(vec![Waits::Made]));
    let (worker, looks) = (connect(&url).await, connect(&url).await);
    let ended = "INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
                 VALUES ('enrich:wolt', 'place', '{\"status\":\"FOUND\",\"url\":\"u\"}', 1, 1, 2, 2, 4102444800000)";
    worker.batch_execute(ended).await.expect("was there");
    let ending =
        "BEGIN; UPDATE jobs SET state = 3, due_at = NULL, ends_at = 1, updated_at = 1 WHERE key = 'place'";
    worker.batch_execute(ending).await.expect("is ending");
    let asking = tokio::spawn(async move { store.wait(ask("second", leased)).await });
    until_locked(&looks, || asking.is_finished()).await;
    worker.batch_execute("COMMIT").await.expect("ends");
    assert_eq!(asking.await.expect("asks").expect("asks"), Asked::Answered(vec![Waits::Made]));
}

#[tokio::test]
async fn a_lookup_that_ends_without_an_entry_is_not_waited_for() {
    ends_without_an_entry(false).await;
}

#[tokio::test]
async fn nor_is_one_whose_lease_another_could_take() {
    ends_without_an_entry(true).await;
}

/// A lookup has failed: it has looked at the clock, and is about to commit. Whoever asks just then is told PENDING, at a
/// later instant, and may ask about it when what the lookup wrote has ended. It does end their wait, for good.
async fn is_over_for_whoever_asked_meanwhile(leased: bool) {
    let url = fresh_database();
    let store = Arc::new(PostgresStore::open(&url, &Options::default()).await.expect("opens"));
    assert_eq!(store.wait(ask("first", leased)).await.expect("asks"), Asked::Answered(vec![Waits::Made]));
    let (worker, looks) = (connect(&url).await, connect(&url).await);
    let ending = "BEGIN; UPDATE jobs SET state = 4, due_at = NULL, ends_at = 1, updated_at = 1 WHERE key = 'place';
                  INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
                  SELECT 'enrich:wolt', 'place', '{\"status\":\"NOT_FOUND\"}', 1, now_ms, now_ms, now_ms, 4102444800000
                    FROM (SELECT solely_now(-5) AS now_ms) AS clock";
    worker.batch_execute(ending).await.expect("is ending");
    let asking = {
        let store = store.clone();
        tokio::spawn(async move { store.wait(ask("second", leased)).await })
    };
    if leased {
        // It looks for no lookup, and meets the one that is there.
        until_locked(&looks, || asking.is_finished()).await;
        worker.batch_execute("COMMIT").await.expect("ends");
        assert_eq!(asking.await.expect("asks").expect("asks"), Asked::Answered(vec![Waits::Made]));
    } else {
        let answer = asking.await.expect("asks").expect("asks");
        assert!(
            matches!(&answer, Asked::Answered(waits) if matches!(waits[0], Waits::Known { .. })),
            "{answer:?}"
        );
        worker.batch_execute("COMMIT").await.expect("ends");
    }
    let read = async |key| store.kept_entries(vec![key]).await.expect("reads").remove(0).expect("is there");
    let told: Told = read(request_key("second")).await.value.parse().expect("what it was told");
    let since = told.0["wolt/place"].since.expect("it waits");
    assert!(ends_wait(&read(entry_key("wolt", "place")).await, since), "back on PENDING, since {since}");
}

#[tokio::test]
async fn what_was_about_to_be_known_ends_the_wait_of_who_asked_meanwhile() {
    is_over_for_whoever_asked_meanwhile(false).await;
}

#[tokio::test]
async fn and_of_who_had_a_lease_for_it() {
    is_over_for_whoever_asked_meanwhile(true).await;
}
