//! What the store has done, so that tests can assert cost where time cannot be trusted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;
use rusqlite::trace::{TraceEvent, TraceEventCodes};

/// Counters since the store was opened.
#[derive(Debug, Default)]
pub struct Counts {
    commands: AtomicU64,
    commits: AtomicU64,
    statements: AtomicU64,
    reads: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counted {
    /// Commands that the writer ran.
    pub commands: u64,
    /// Transactions that it committed.
    pub commits: u64,
    /// SQL statements that it ran, if they are counted; savepoints included.
    pub statements: u64,
    /// Reads that the reader connections answered.
    pub reads: u64,
}

impl std::ops::Sub for Counted {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            commands: self.commands - earlier.commands,
            commits: self.commits - earlier.commits,
            statements: self.statements - earlier.statements,
            reads: self.reads - earlier.reads,
        }
    }
}

impl Counts {
    /// The counters now.
    pub fn now(&self) -> Counted {
        Counted {
            commands: self.commands.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
            statements: self.statements.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
        }
    }

    /// A transaction of so many commands was committed.
    pub(crate) fn committed(&self, commands: usize) {
        self.commands.fetch_add(commands as u64, Ordering::Relaxed);
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts the statements of a connection.
pub(crate) fn count_statements(conn: &mut Connection, counts: Arc<Counts>) {
    let count = move |event: TraceEvent<'_>| {
        if let TraceEvent::Stmt(..) = event {
            counts.statements.fetch_add(1, Ordering::Relaxed);
        }
    };
    if let Err(error) = conn.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(count)) {
        tracing::warn!(%error, "statements are not counted");
    }
}
