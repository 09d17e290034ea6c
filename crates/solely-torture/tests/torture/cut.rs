//! A proxy in front of PostgreSQL that cuts connections at COMMIT: before it, nothing has
//! happened; between it and its answer, the outcome is read back and never guessed.

use std::sync::Arc;

use solely_core::bus::Bus;
use solely_core::job::{Enqueued, JobStore as _, NewJob};
use solely_core::queue::Jobs;
use solely_core::queue::QueueStore as _;
use solely_core::reserve::{
    IdempotencyKey, NewReservation, Operation, Request, ReservationFilter, Reserve, ReserveError,
    ReserveParts, ReserveStore as _, Verdict, pickup_code,
};
use solely_core::{ReservationId, StoreError};
use solely_postgres::{Options, PostgresStore};
use solely_testing::{PostgresServer, fresh_database};
use solely_torture::boxes;
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

/// A server that ends while it commits has committed or not, whatever it says of why it ends.
#[tokio::test]
async fn a_commit_that_the_server_ends_at_is_read_back() {
    let url = fresh_database();
    let proxy = Proxy::before(&url).await.expect("listens");
    let store = PostgresStore::open(&proxy.url, &Options::default()).await.expect("opens");
    for n in 0..5 {
        let job = NewJob::new("queue", n.to_string());
        let id = job.id;
        proxy.cut(Cut::Panic);
        assert_eq!(store.enqueue(vec![job]).await, Ok(vec![Enqueued::Created]), "{n}: is committed");
        assert!(!proxy.will_cut(), "{n}: was cut");
        assert!(store.job(id).await.expect("reads").is_some());
    }
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

/// reserve of a process that has seen nothing yet.
async fn fresh(url: &str) -> Reserve {
    let store = Arc::new(PostgresStore::open(url, &Options::default()).await.expect("opens"));
    let jobs = Jobs::new(store, Bus::new(), Arc::default());
    boxes::reserve(ReserveParts { jobs, companion: None, client: None })
}

/// A reservation whose COMMIT is cut, before it or behind it: whoever is told of it has it, whoever is refused has not,
/// and asking again with the same key makes it one.
#[tokio::test]
async fn a_reservation_whose_commit_is_cut_is_one_with_its_key() {
    let url = fresh_database();
    let proxy = Proxy::before(&url).await.expect("listens");
    let store = PostgresStore::open(&url, &Options::default()).await.expect("opens");
    let reserve = fresh(&proxy.url).await;
    boxes::prepare(&reserve).await;
    let (mut told, mut refused) = (0, 0);
    for n in 0..40 {
        let user = format!("user-{n}");
        // Who knows nothing of the boxes reads first, and commits; who has just seen them sells by one statement.
        let reserve = if n % 4 < 2 { reserve.clone() } else { fresh(&proxy.url).await };
        let ask = || {
            let new = NewReservation {
                id: ReservationId::new(),
                pickup_code: pickup_code(),
                user_id: user.clone(),
                inventory_id: "box-0".to_owned(),
                ttl: None,
                quantity: 1,
                max_price: None,
            };
            let key = IdempotencyKey { scope: "test".to_owned(), key: user.clone() };
            let idempotency = Some((key, "digest".to_owned()));
            reserve.decide(Request { idempotency, ..Request::new(Operation::Reserve(new)) })
        };
        let rows = async || {
            let filter =
                ReservationFilter { user_id: Some(user.clone()), limit: 9, ..ReservationFilter::default() };
            store.reservations(filter).await.expect("reads")
        };
        proxy.cut([Cut::After, Cut::Before, Cut::Panic][n % 3]);
        let first = ask().await;
        assert!(!proxy.will_cut(), "{n}: was cut");
        match &first {
            Ok(decided) => {
                assert!(matches!(&decided.verdict, Verdict::Reservation(_)), "{decided:?}");
                assert_eq!(rows().await.len(), 1, "{n}: it is there");
                told += 1;
            }
            Err(ReserveError::Store(_)) => {
                assert_eq!(rows().await.len(), 0, "{n}: refused, and there");
                refused += 1;
            }
            Err(other) => panic!("{n}: {other:?}"),
        }
        proxy.cut(Cut::Not);
        let again = ask().await.expect("is decided");
        let Verdict::Reservation(held) = &again.verdict else { panic!("{again:?}") };
        assert_eq!(again.replayed, first.is_ok());
        assert_eq!(rows().await.iter().map(|row| row.id).collect::<Vec<_>>(), [held.id], "{n}: one");
        reserve.decide(Request::new(Operation::Cancel(held.id))).await.expect("is given back");
    }
    assert!(told > 0 && refused > 0, "{told} told, {refused} refused");
}
