//! Which processes are alive.
//!
//! Every process has a random identity and a heartbeat row; claims belong to an identity. A
//! row that has not been touched for `dead_after` on the store's clock is deleted, and with it
//! go the process's own leases and, at the next rescue, its claims: a crash frees them within
//! seconds however long their locks are, while a slow process keeps renewing.
//!
//! Declaring others dead takes a process that has itself beaten **without a gap for the whole
//! dead time**: one that was paused, or cut off from the store, sees only old heartbeats when
//! it comes back, its own included, and must not judge by them. The row's `steady_since` is
//! that memory; it starts anew after a gap.
//!
//! A store that knows more may say so sooner. Whoever opens a file to serve it is the only one who
//! does: all others are dead. A database knows when the connection ended that a process beat on.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::StoreError;
use crate::id::ProcessId;

/// A heartbeat.
#[derive(Clone, Copy, Debug)]
pub struct Beat {
    /// Whose.
    pub process: ProcessId,
    /// How long a process may be silent.
    pub dead_after: Duration,
}

/// What a heartbeat found.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Beaten {
    /// Processes that this one has just declared dead.
    pub buried: Vec<ProcessId>,
    /// Keys of leases that ended with them.
    pub freed_keys: Vec<String>,
}

/// The register of processes.
#[async_trait]
pub trait LivenessStore: Send + Sync {
    /// Says that a process is alive, and buries those that are not.
    async fn beat(&self, beat: Beat) -> Result<Beaten, StoreError>;

    /// Says that a process stops. What it still holds is free at once.
    async fn leave(&self, process: ProcessId) -> Result<(), StoreError>;
}
