//! The embedded engine: one SQLite file, one group-committing writer.
//!
//! *What is true* is in the file: WAL, `synchronous=FULL`, so an answered write survives the
//! loss of power. *Who may change it*: the writer thread ([`writer`]), which owns the only
//! connection that writes; everyone else sends it commands. *One `serve` per file*: a lock
//! file says so, which is also why claims and process leases found at opening belong to
//! nobody any more. Tools (`check`, `keys`) open the same file beside a running server.
//!
//! Files are named after the nouns of `solely-core`; each holds the SQL of its noun.

mod access;
pub mod backup;
mod cache;
mod check;
mod commit;
mod counts;
mod enrich;
mod error;
mod event;
mod feed;
mod job;
mod lane;
mod lease;
mod liveness;
mod migrate;
mod open;
mod others;
mod queue;
mod reader;
mod reserve;
mod row;
mod upkeep;
mod upstream;
mod waitlist;
mod writer;

use std::sync::{Arc, Mutex};

use solely_core::Clock;
use solely_core::fault::Guards;

pub use counts::Counts;
pub use migrate::{LATEST_VERSION, Migrated, migrate};
pub use open::Access;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Beside others, or alone.
    pub access: Access,
    /// The store's clock.
    pub clock: Clock,
    /// Guards that fault tests may open.
    pub guards: Guards,
    /// Counts statements as well as commits, for tests of cost.
    pub count_statements: bool,
    /// The most pages the file may have, for tests of a full disk.
    pub max_pages: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            access: Access::Serve,
            clock: Clock::system(),
            guards: Guards::all(),
            count_statements: false,
            max_pages: None,
        }
    }
}

/// A SQLite file, or a database in memory, as a [`solely_core::Store`].
pub struct SqliteStore {
    writer: writer::Writer,
    readers: reader::Readers,
    guards: Guards,
    clock: Clock,
    counts: Arc<Counts>,
    prune_marks: Mutex<upkeep::Marks>,
    /// Held for as long as the store is open, if it was opened to serve.
    lock: Option<std::fs::File>,
}

impl SqliteStore {
    /// What the store has done so far: commits, batches, statements.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Finishes what waits, ends the threads and gives the file free. The writer's connection
    /// is the last to close, so that it leaves one file without a log. Unlocking is explicit: a
    /// child that was being started at this moment would still hold a copy of the handle.
    fn shut(&self) {
        self.readers.close();
        self.writer.close();
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.shut();
    }
}
