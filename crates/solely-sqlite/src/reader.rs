//! Readers: a few threads, each with a connection that only reads.
//!
//! A read sees the last commit and never waits for the writer. A database in memory has no
//! second connection; its reads go through the writer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::{Connection, Error};
use solely_core::{StoreError, limits};
use tokio::sync::oneshot;

use crate::SqliteStore;
use crate::counts::Counts;
use crate::error::store_error;
use crate::lane::{Lane, Priority};

type Read = Box<dyn FnOnce(&Connection) + Send>;

pub(crate) struct Readers {
    lane: Option<Arc<Lane<Read>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Readers {
    /// No connections of their own.
    pub(crate) fn none() -> Self {
        Self { lane: None, threads: Mutex::default() }
    }

    /// One thread for each connection.
    pub(crate) fn start(connections: Vec<Connection>, counts: &Arc<Counts>) -> Self {
        let lane: Arc<Lane<Read>> = Arc::new(Lane::new(limits::READER_QUEUE, 0));
        let threads = connections.into_iter().map(|conn| {
            let (lane, counts) = (lane.clone(), counts.clone());
            let name = "solely-reader".to_owned();
            let work = move || {
                let mut reads = Vec::with_capacity(1);
                while lane.take(1, &mut reads) {
                    for read in reads.drain(..) {
                        counts.read();
                        // A read that panics drops its caller's channel; the thread goes on.
                        let _ = catch_unwind(AssertUnwindSafe(|| read(&conn)));
                    }
                }
            };
            std::thread::Builder::new().name(name).spawn(work).expect("the system can start a thread")
        });
        Self { threads: Mutex::new(threads.collect()), lane: Some(lane) }
    }

    /// Finishes what waits and closes the connections.
    pub(crate) fn close(&self) {
        if let Some(lane) = &self.lane {
            lane.close();
        }
        let threads = self.threads.lock().map(|mut threads| std::mem::take(&mut *threads));
        for thread in threads.unwrap_or_default() {
            let _ = thread.join();
        }
    }
}

/// Ends a read transaction, also one whose work has panicked.
struct Snapshot<'a>(&'a Connection);

impl<'a> Snapshot<'a> {
    fn of(conn: &'a Connection) -> Result<Self, Error> {
        conn.prepare_cached("BEGIN")?.execute([])?;
        Ok(Self(conn))
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        let _ = self.0.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([]));
    }
}

impl SqliteStore {
    /// Answers from the last commit, and all of it from the same one.
    pub(crate) async fn read<T, F>(&self, mut work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> Result<T, Error> + Send + 'static,
    {
        let Some(lane) = &self.readers.lane else {
            return self.writer.run("read", move |tx| work(tx.conn)).await;
        };
        let (caller, answer) = oneshot::channel();
        let read: Read = Box::new(move |conn| {
            let answer = Snapshot::of(conn).and_then(|_snapshot| work(conn));
            let _ = caller.send(answer.map_err(|error| store_error(&error)));
        });
        lane.push(vec![read], Priority::Normal)?;
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::Unavailable("the store's readers have ended".to_owned())))
    }
}
