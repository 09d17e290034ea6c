//! Other processes that write to the file.
//!
//! There is one server for a file, but a tool may write beside it: what the server holds in memory is
//! then from before. The writer looks now and then; heartbeats are enough for it to have an occasion.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use solely_core::bus::WeakBus;

/// Watches for other processes, once there is someone to tell.
pub(crate) struct Others<'a> {
    bus: &'a OnceLock<WeakBus>,
    looked: Instant,
    version: Option<i64>,
}

impl<'a> Others<'a> {
    pub(crate) fn new(bus: &'a OnceLock<WeakBus>) -> Self {
        Self { bus, looked: Instant::now(), version: None }
    }

    /// Tells the bus if another connection than this one has committed since the last look.
    pub(crate) fn look(&mut self, conn: &Connection) {
        // The first look is at once: what is written from now on is found by the next.
        let due = self.version.is_none() || self.looked.elapsed() >= LOOK_EVERY;
        let Some(bus) = self.bus.get().filter(|_| due) else { return };
        self.looked = Instant::now();
        // Changes with the commits of other connections, and not with those of this one.
        let version = conn.pragma_query_value(None, "data_version", |row| row.get(0)).ok();
        if self.version.is_some()
            && self.version != version
            && let Some(bus) = bus.upgrade()
        {
            bus.missed();
        }
        self.version = version;
    }
}

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
