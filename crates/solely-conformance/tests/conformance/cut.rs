//! A proxy in front of PostgreSQL that cuts connections at COMMIT: before it, nothing has
//! happened; between it and its answer, the outcome is read back and never guessed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use solely_core::StoreError;
use solely_core::job::{Enqueued, JobStore as _, NewJob};
use solely_core::queue::QueueStore as _;
use solely_postgres::{Options, PostgresStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::postgres::fresh_database;

/// What happens to the next COMMIT.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Cut {
    /// It passes.
    Not = 0,
    /// It never reaches the server.
    Before = 1,
    /// The server commits; its answer is lost.
    After = 2,
}

/// A proxy, and the switch for its next COMMIT.
struct Proxy {
    url: String,
    next: Arc<AtomicU8>,
}

impl Proxy {
    async fn before(server_url: &str) -> Self {
        let (place, database) = server_url.rsplit_once('/').expect("a database");
        let server = place.rsplit_once('@').expect("a user").1.to_owned();
        let listener = TcpListener::bind(("127.0.0.1", solely_testing::free_port())).await.expect("listens");
        let address = listener.local_addr().expect("an address");
        let next = Arc::new(AtomicU8::new(Cut::Not as u8));
        let switch = next.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.expect("the server is there");
                tokio::spawn(pass(client, server, switch.clone()));
            }
        });
        Self { url: format!("postgres://postgres@{address}/{database}"), next }
    }

    fn cut(&self, cut: Cut) {
        self.next.store(cut as u8, Ordering::SeqCst);
    }
}

/// Passes bytes both ways until one side ends or the cut comes.
async fn pass(client: TcpStream, server: TcpStream, next: Arc<AtomicU8>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let back = tokio::spawn(copy(from_server, to_client));
    // When this returns, both ways are closed and the client has no answer.
    forth(from_client, to_server, &next, &back).await;
    back.abort();
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut buffer = [0; 8192];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn forth(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    next: &AtomicU8,
    back: &tokio::task::JoinHandle<()>,
) {
    let mut buffer = [0; 8192];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let commit = buffer[..read].windows(6).any(|bytes| bytes == b"COMMIT");
        let cut = if commit { next.swap(Cut::Not as u8, Ordering::SeqCst) } else { Cut::Not as u8 };
        if cut == Cut::Before as u8 {
            return;
        }
        if cut == Cut::After as u8 {
            // The answer is not passed on, but the server gets what it needs to commit.
            back.abort();
        }
        if to.write_all(&buffer[..read]).await.is_err() || cut == Cut::After as u8 {
            let _ = to.flush().await;
            return;
        }
    }
}

/// A COMMIT whose answer is lost has happened, and is answered as such: one job, not two, and no
/// error for what is there.
#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_read_back() {
    let url = fresh_database().await;
    let proxy = Proxy::before(&url).await;
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
    let url = fresh_database().await;
    let proxy = Proxy::before(&url).await;
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
