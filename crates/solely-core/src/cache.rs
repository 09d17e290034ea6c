//! Cache entries with three ages.
//!
//! ```text
//!   updated ──────── fresh_until ──────── stale_until ──────── keep_until
//!            fresh: serve         stale: serve,        gone: not served,
//!                                 refresh behind       kept for replay
//! ```
//!
//! An entry is a row of the store; whatever else holds a copy of it holds a copy. A write may
//! carry a version (a fence): it then needs a higher one than what is stored, so that a late
//! answer never overwrites a newer one.
//!
//! Of two writes of one entry the later has the later `updated_at`, always, also across its
//! being forgotten: whoever holds copies can compare them. [`Cache`] reads through the copies
//! of this process ([`memory`]) and of a [`Companion`](crate::companion::Companion) to the
//! store; [`watch`] tells those who wait for an entry.

pub mod memory;
mod tiers;
pub mod watch;

use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::json::Json;

pub use tiers::{AskHints, Cache, CopiedEntries};

/// How old an entry is, on the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// Serve it.
    Fresh,
    /// Serve it, and have it refreshed.
    Stale,
    /// Do not serve it as an answer; it is kept for those who were told of it.
    Gone,
}

/// Which entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryKey {
    /// Whose: `enrich:wolt`, `products:tours`.
    pub space: String,
    /// Which one.
    pub key: String,
}

impl EntryKey {
    /// A key within a space.
    pub fn new(space: impl Into<String>, key: impl Into<String>) -> Self {
        Self { space: space.into(), key: key.into() }
    }

    /// Whether there are copies of it.
    pub fn is_copied(&self) -> bool {
        self.space != UNCOPIED
    }
}

/// The one space whose entries have no copies: what requests were told.
pub const UNCOPIED: &str = "requests";

/// An entry as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which one.
    pub key: EntryKey,
    /// What it holds.
    pub value: Json,
    /// The version it was written with.
    pub version: u64,
    /// When it was written; later than that of whatever it replaced.
    pub updated_at: Timestamp,
    /// Until when it is fresh.
    pub fresh_until: Timestamp,
    /// Until when it may be served at all.
    pub stale_until: Timestamp,
    /// When it was read, on the store's clock.
    pub as_of: Timestamp,
    /// Its age then.
    pub age: Age,
}

impl Entry {
    /// The same entry, some time after it was read.
    pub fn after(&self, time: Duration) -> Self {
        let as_of = self.as_of.plus(time);
        Self { as_of, age: Age::of(as_of, self.fresh_until, self.stale_until), ..self.clone() }
    }
}

impl Age {
    /// The age at an instant.
    pub fn of(now: Timestamp, fresh_until: Timestamp, stale_until: Timestamp) -> Self {
        if now < fresh_until {
            Self::Fresh
        } else if now < stale_until {
            Self::Stale
        } else {
            Self::Gone
        }
    }
}

/// How long an entry lives, from when it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// It is fresh for this long,
    pub fresh: Duration,
    /// and may be served for this long in all,
    pub stale: Duration,
    /// and is kept for this long in all.
    pub keep: Duration,
}

/// When a write may replace what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// In any case; the version grows by one.
    Always,
    /// Only with a version above the stored one.
    Above(u64),
    /// Only what may not be served any more; the version grows by one.
    IfGone,
}

/// An entry to be written.
#[derive(Clone, Debug)]
pub struct PutEntry {
    /// Which one.
    pub key: EntryKey,
    /// What it holds.
    pub value: Json,
    /// How long it lives.
    pub lifetimes: Lifetimes,
    /// When it may replace what is there.
    pub overwrite: Overwrite,
    /// What is told in the same transaction, if it is stored.
    pub told: Option<NewEvent>,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is stored, with this version.
    Stored {
        /// The version it has now.
        version: u64,
        /// When it was written.
        updated_at: Timestamp,
    },
    /// A write with this or a higher version was there before; nothing changed.
    Outdated {
        /// The version that is stored.
        version: u64,
    },
}

/// An entry that was written or forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which one.
    pub key: EntryKey,
    /// When.
    pub updated_at: Timestamp,
    /// What it holds since; nothing if it was forgotten or has ended.
    pub entry: Option<Entry>,
}

/// A place in the order of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeCursor {
    /// Changes after this instant,
    pub at: Timestamp,
    /// and those of this instant after this key, if one is named.
    pub key: Option<EntryKey>,
}

/// A part of what has changed, in order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Which store this is.
    pub store: String,
    /// The store's clock.
    pub now: Timestamp,
    /// Every change up to this instant is there to be read: none of them is still to be committed.
    pub complete_until: Timestamp,
    /// The changes.
    pub changes: Vec<Change>,
    /// Where to go on, if there are more.
    pub next: Option<ChangeCursor>,
}

/// The transitions of entries.
#[async_trait]
pub trait CacheStore: Send + Sync {
    /// The entries of these keys, in order; none for one that is not there or is past its
    /// `keep_until`.
    async fn entries(&self, keys: Vec<EntryKey>) -> Result<Vec<Option<Entry>>, StoreError>;

    /// The same, and those that were forgotten as [`Age::Gone`]: for those who were told of them.
    async fn kept_entries(&self, keys: Vec<EntryKey>) -> Result<Vec<Option<Entry>>, StoreError>;

    /// Writes entries in one transaction; each is judged by its own version.
    async fn put_entries(&self, entries: Vec<PutEntry>) -> Result<Vec<Put>, StoreError>;

    /// Forgets an entry that may be served, and tells of it in the same transaction. When, if there was
    /// one. What it held is kept for this long, and at least for
    /// [`limits::FORGOTTEN_FOR`](crate::limits::FORGOTTEN_FOR).
    async fn forget_entry(
        &self,
        key: EntryKey,
        keep: Duration,
        told: Option<NewEvent>,
    ) -> Result<Option<Timestamp>, StoreError>;

    /// The changes after a cursor, at most so many. A forgotten entry is among them for
    /// [`limits::FORGOTTEN_FOR`](crate::limits::FORGOTTEN_FOR).
    async fn changes(&self, after: ChangeCursor, limit: u32) -> Result<Changes, StoreError>;
}
