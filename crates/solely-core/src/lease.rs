//! Leases: a named right with an owner, an end and a fence.
//!
//! A lease is a row of the store, its owner's until it is released or ends on the store's
//! clock, whatever becomes of the server that gave it. Several keys are taken together or not
//! at all. The **fence** comes from one counter per store that never goes back, across expiry,
//! deletion and restart: it is greater than that of any earlier lease on any of the keys, and
//! a resource that remembers the greatest fence it has seen can refuse a holder that was
//! paused past its end. A lease is not re-entrant: its owner's name proves nothing, its id does.
//!
//! [`Leases`] adds waiting. A waiter listens for the key that refused it *before* it looks
//! again, sleeps until it is woken, until the holder's lease would end, or for
//! [`limits::LEASE_POLL`], whichever is first, and hands its wake-up on when it cannot use it.
//! [`keep`] has work of this process under a lease, thinned by hints.

pub mod keep;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use tokio::time::Instant;

use crate::bus::{Bus, Topic};
use crate::clock::Timestamp;
use crate::companion::Companion;
use crate::error::StoreError;
use crate::fault::Guards;
use crate::id::{LeaseId, ProcessId};
use crate::limits;
use crate::metrics::Metrics;
use crate::store::Store;

/// Who a lease belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Whoever has its id. Only time or a release ends it.
    Client,
    /// A process of solely: it also ends when that process is declared dead.
    Process(ProcessId),
}

/// A lease to be taken.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// Its id, made by the caller.
    pub id: LeaseId,
    /// One to [`limits::LEASE_KEYS_MAX`] different keys.
    pub keys: Vec<String>,
    /// A name for people.
    pub owner: String,
    /// How long it lasts.
    pub ttl: Duration,
    /// Who it belongs to.
    pub holder: Holder,
}

/// A lease that was taken.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// Proves ownership.
    #[serde(rename = "leaseId")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: LeaseId,
    /// What it covers.
    pub keys: Vec<String>,
    /// A name for people.
    pub owner: String,
    /// Greater than that of any earlier lease on any of the keys.
    pub fence: u64,
    /// When it ends, unless it is renewed.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub expires_at: Timestamp,
}

/// What stands in the way of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Obstacle {
    /// The first of the keys that is held.
    pub key: String,
    /// By whom.
    pub owner: String,
    /// Until when.
    pub expires_at: Timestamp,
    /// How long that is from now, on the store's clock.
    #[serde(skip)]
    pub ends_in: Duration,
}

/// What became of a request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// All keys are the caller's.
    Acquired(Lease),
    /// None of them is.
    Held(Obstacle),
}

/// What became of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseRenewed {
    /// It now ends later.
    Renewed(Lease),
    /// It has ended, or never was.
    Lost,
}

/// One key that is held, as a listing shows it.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldKey {
    /// The key.
    pub key: String,
    /// By whom.
    pub owner: String,
    /// The lease's fence.
    pub fence: u64,
    /// Until when.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub expires_at: Timestamp,
}

/// The transitions of leases. Each is one transaction.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Either all keys are leased or none.
    async fn acquire(&self, request: LeaseRequest) -> Result<Acquired, StoreError>;

    /// Moves the end to `ttl` from now (the lease's own, if none is given), if it has not
    /// ended. The fence stays.
    async fn renew_lease(&self, id: LeaseId, ttl: Option<Duration>) -> Result<LeaseRenewed, StoreError>;

    /// Ends a lease that has not ended, and answers with its keys; with none if there is no
    /// such lease (any more).
    async fn release(&self, id: LeaseId) -> Result<Vec<String>, StoreError>;

    /// A page of the keys that are held, in order, after a given one.
    async fn held_keys(&self, after: Option<String>, limit: u32) -> Result<Vec<HeldKey>, StoreError>;
}

/// Leases with waiting, wake-ups and metrics.
#[derive(Clone)]
pub struct Leases {
    store: Arc<dyn Store>,
    bus: Bus,
    metrics: Arc<Metrics>,
    waiting: Arc<AtomicUsize>,
    hints: Option<Arc<dyn Companion>>,
    guards: Guards,
}

/// Why a wait for a lease ended without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitedLease {
    /// The keys are the caller's.
    Acquired(Lease),
    /// They were still held when the wait was over.
    Held(Obstacle),
    /// Too many are waiting already.
    TooManyWaiting,
}

impl Leases {
    /// Leases of a store.
    pub fn new(store: Arc<dyn Store>, bus: Bus, metrics: Arc<Metrics>) -> Self {
        Self { store, bus, metrics, waiting: Arc::default(), hints: None, guards: Guards::from_env() }
    }

    /// The same, with hints.
    pub fn with_hints(self, companion: Option<Arc<dyn Companion>>) -> Self {
        Self { hints: companion, ..self }
    }

    /// The same, with guards that may be open.
    pub fn with_guards(self, guards: Guards) -> Self {
        Self { guards, ..self }
    }

    /// Takes a lease, waiting up to `wait` for keys that are held.
    pub async fn acquire(&self, request: LeaseRequest, wait: Duration) -> Result<WaitedLease, StoreError> {
        let started = Instant::now();
        let mut abandoned = Abandoned { id: Some(request.id), leases: self };
        let outcome = self.acquire_within(request, started + wait).await;
        // One whose outcome is not known may be held by nobody but time: it is given back.
        if !matches!(outcome, Err(StoreError::Unknown(_))) {
            abandoned.id = None;
        }
        self.metrics.lease_acquired(&outcome, started.elapsed());
        outcome
    }

    async fn acquire_within(
        &self,
        request: LeaseRequest,
        deadline: Instant,
    ) -> Result<WaitedLease, StoreError> {
        let mut obstacle = match self.store.acquire(request.clone()).await? {
            Acquired::Acquired(lease) => return Ok(WaitedLease::Acquired(lease)),
            Acquired::Held(obstacle) => obstacle,
        };
        if Instant::now() >= deadline {
            return Ok(WaitedLease::Held(obstacle));
        }
        let Some(_place) = Place::take(&self.waiting) else {
            return Ok(WaitedLease::TooManyWaiting);
        };
        loop {
            let key = obstacle.key.clone();
            let mut listener = self.bus.listen(Topic::Lease(&key));
            // Listening has begun: a release from here on wakes us, one before is seen now.
            match self.store.acquire(request.clone()).await {
                Ok(Acquired::Acquired(lease)) => return Ok(WaitedLease::Acquired(lease)),
                // A store that is busy for a moment does not end a wait that may go on.
                Err(error) if error.retryable() && Instant::now() + TROUBLE < deadline => {
                    tokio::time::sleep(TROUBLE.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await;
                    continue;
                }
                Err(error) => return Err(error),
                Ok(Acquired::Held(other)) if other.key != key => {
                    // The key waited for is free, but another is not: whoever is next may
                    // be able to use it.
                    self.bus.wake(Topic::Lease(&key));
                    obstacle = other;
                    continue;
                }
                Ok(Acquired::Held(same)) => obstacle = same,
            }
            let ends = Instant::now() + obstacle.ends_in.max(Duration::from_millis(1));
            let look_again = ends.min(Instant::now() + limits::LEASE_POLL).min(deadline);
            let _ = tokio::time::timeout_at(look_again, listener.woken()).await;
            if Instant::now() >= deadline {
                // A wake-up that arrived together with the deadline is tried, not dropped.
                return Ok(match self.store.acquire(request).await? {
                    Acquired::Acquired(lease) => WaitedLease::Acquired(lease),
                    Acquired::Held(last) => {
                        self.bus.wake(Topic::Lease(&key));
                        WaitedLease::Held(last)
                    }
                });
            }
        }
    }

    /// Renews a lease.
    pub async fn renew(&self, id: LeaseId, ttl: Option<Duration>) -> Result<LeaseRenewed, StoreError> {
        self.store.renew_lease(id, ttl).await
    }

    /// Releases a lease and wakes whoever waits for one of its keys. False if it had ended.
    pub async fn release(&self, id: LeaseId) -> Result<bool, StoreError> {
        let keys = self.store.release(id).await?;
        for key in &keys {
            self.bus.wake(Topic::Lease(key));
        }
        Ok(!keys.is_empty())
    }

    /// A page of held keys, each with how many wait for it here.
    pub async fn held(&self, after: Option<String>, limit: u32) -> Result<Vec<(HeldKey, usize)>, StoreError> {
        let keys = self.store.held_keys(after, limit).await?;
        let waiters = |key: &HeldKey| self.bus.listeners(Topic::Lease(&key.key));
        Ok(keys.into_iter().map(|key| (key.clone(), waiters(&key))).collect())
    }
}

/// How long a waiter lets a busy store alone.
const TROUBLE: Duration = Duration::from_millis(100);

/// A request whose caller may leave while it is under way: what it might still get is given
/// back, so that nobody holds a lease without knowing.
struct Abandoned<'a> {
    id: Option<LeaseId>,
    leases: &'a Leases,
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if let (Some(id), Ok(runtime)) = (self.id, tokio::runtime::Handle::try_current()) {
            let leases = self.leases.clone();
            runtime.spawn(async move { leases.release(id).await });
        }
    }
}

/// A place among the waiters, given back when dropped.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(waiting: &'a AtomicUsize) -> Option<Self> {
        if waiting.fetch_add(1, Ordering::Relaxed) >= limits::LEASE_WAITERS_MAX {
            waiting.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self(waiting))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
