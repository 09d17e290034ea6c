//! A proxy in front of PostgreSQL that cuts connections at COMMIT: before it, nothing has
//! happened; between it and its answer, the outcome is read back and never guessed.

use std::sync::Arc;

use solely_core::StoreError;
use solely_core::job::{Enqueued, JobStore as _, NewJob};
use solely_core::queue::QueueStore as _;
use solely_postgres::{Options, PostgresStore};
use solely_testing::{PostgresServer, fresh_database};
use solely_torture::proxy::{Cut, Proxy};

/// A COMMIT whose answer is lost has happened, and is answered as such: one job, not two, and no
/// error for what is there.
#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_read_back() {
    let url = fresh_database();
    let proxy = Proxy::before(&url).await.expect("listens");
    let store = PostgresStore::open(&proxy.url, &Options::default()).await.expect("opens");
    let mut read_back = 0;
    for n in 0..20 {
        let job = NewJob::new("queue", n.to_string());
        let id = job.id;
        proxy.cut(Cut::After);
        let outcome = store.enqueue(vec![job]).await;
        let there = store.job(id).await.expect("reads").is_some();
        match outcome {
            Ok(outcome) => {
                assert!(there && outcome == [Enqueued::Created], "{n}");
                read_back += 1;
            }
            Err(StoreError::Unavailable(_)) => assert!(!there, "{n}: refused, and there"),
            Err(other) => panic!("{n}: {other}"),
        }
    }
    assert!(read_back > 0, "some of them were committed");
}

/// A COMMIT that never arrived has not happened, and is answered as such.
#[tokio::test]
async fn a_commit_that_never_arrived_has_not_happened() {
    let url = fresh_database();
    let proxy = Proxy::before(&url).await.expect("listens");
    let store = PostgresStore::open(&proxy.url, &Options::default()).await.expect("opens");
    for n in 0..10 {
        let job = NewJob::new("queue", n.to_string());
        let id = job.id;
        proxy.cut(Cut::Before);
        let outcome = store.enqueue(vec![job]).await;
        assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "{outcome:?}");
        assert!(store.job(id).await.expect("reads").is_none());
    }
}

/// A COMMIT that never arrived, and a database that crashed since: the transaction's id may have
/// been given to another, which is committed. That is no answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_a_crash_gave_to_another_is_not_believed() {
    let mut server = PostgresServer::start();
    let proxy = Proxy::before(&server.url()).await.expect("listens");
    let store = Arc::new(PostgresStore::open(&proxy.url, &Options::default()).await.expect("opens"));
    store.enqueue(vec![NewJob::new("queue", "first")]).await.expect("enqueues");
    let job = NewJob::new("queue", "second");
    let id = job.id;
    proxy.refuse(true);
    proxy.cut(Cut::Before);
    let asked = tokio::spawn({
        let store = store.clone();
        async move { store.enqueue(vec![job]).await }
    });
    while proxy.will_cut() {
        tokio::task::yield_now().await;
    }
    server.crash();
    server.start_again();
    let direct = PostgresStore::open(&server.url(), &Options::default()).await.expect("opens");
    for n in 0..100 {
        direct.enqueue(vec![NewJob::new("others", n.to_string())]).await.expect("enqueues");
    }
    proxy.refuse(false);
    let outcome = asked.await.expect("ends");
    assert!(direct.job(id).await.expect("reads").is_none(), "it never arrived");
    assert!(matches!(outcome, Err(StoreError::Unknown(_))), "{outcome:?}");
}
