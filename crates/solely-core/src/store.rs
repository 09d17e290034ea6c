//! A store: all the transitions of one engine.

use std::time::Duration;

use async_trait::async_trait;

use crate::access::AccessStore;
use crate::away::Away;
use crate::bus::Bus;
use crate::cache::CacheStore;
use crate::check::CheckStore;
use crate::enrich::EnrichStore;
use crate::error::StoreError;
use crate::event::EventStore;
use crate::feed::FeedStore;
use crate::job::JobStore;
use crate::lease::LeaseStore;
use crate::limits;
use crate::liveness::LivenessStore;
use crate::queue::QueueStore;
use crate::reserve::ReserveStore;
use crate::upstream::UpstreamStore;

/// How long finished things are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Completed and cancelled jobs.
    pub jobs: Duration,
    /// Dead letters.
    pub dead_letters: Duration,
    /// Events that are not due for delivery.
    pub events: Duration,
    /// Runs that have ended, but for the one that is current.
    pub runs: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        Self { jobs: days(1), dead_letters: days(30), events: days(30), runs: days(90) }
    }
}

/// Rows that a pruning took away, and whether there was more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Rows deleted.
    pub rows: u64,
    /// A batch was full: there may be more.
    pub more: bool,
}

impl Pruned {
    /// Counts a batch of deleted rows.
    pub fn add(&mut self, deleted: usize) {
        self.rows += deleted as u64;
        self.more |= deleted >= limits::PRUNE_BATCH as usize;
    }
}

/// One engine, whole.
#[async_trait]
pub trait Store:
    JobStore
    + QueueStore
    + LeaseStore
    + CacheStore
    + EventStore
    + UpstreamStore
    + LivenessStore
    + CheckStore
    + AccessStore
    + FeedStore
    + EnrichStore
    + ReserveStore
{
    /// The engine's name: `sqlite`, `postgres`.
    fn kind(&self) -> &'static str;

    /// Connects a bus to those of other processes on this store, if there can be any.
    fn connect_bus(&self, _bus: &Bus) {}

    /// Whether it is known to be away, for those who would wait in line.
    fn away(&self) -> Away {
        Away::NEVER
    }

    /// Whether it can be read from and written to at this moment.
    async fn health(&self) -> Result<(), StoreError>;

    /// Deletes one small batch of what is past its retention, behind all other work.
    async fn prune(&self, retention: Retention) -> Result<Pruned, StoreError>;

    /// Finishes what is under way and closes. Later calls are refused.
    async fn close(&self);
}
