//! The claims that this worker holds, and their renewal.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::id::JobId;
use crate::job::{Claim, Renewed};
use crate::store::Store;

/// A claim in hand.
#[derive(Clone, Debug)]
pub(super) struct HeldClaim {
    pub(super) claim: Claim,
    pub(super) lock: Duration,
    /// When the lock would end if its answer had taken no time at all.
    pub(super) trusted_until: Instant,
    /// Cancelled when the claim is lost.
    pub(super) lost: CancellationToken,
}

/// All claims in hand, from their delivery to their settlement.
#[derive(Clone, Default)]
pub(super) struct HeldClaims(Arc<Mutex<HashMap<JobId, HeldClaim>>>);

impl HeldClaims {
    pub(super) fn take(&self, held: HeldClaim) {
        self.map().insert(held.claim.job, held);
    }

    pub(super) fn give_back(&self, claim: Claim) {
        let mut map = self.map();
        if map.get(&claim.job).is_some_and(|held| held.claim == claim) {
            map.remove(&claim.job);
        }
    }

    /// Whether the claim's lock has not ended, as far as is known here.
    pub(super) fn trusts(&self, claim: Claim) -> bool {
        let trusted = |held: &HeldClaim| held.claim == claim && Instant::now() < held.trusted_until;
        self.map().get(&claim.job).is_some_and(trusted)
    }

    fn renewed(&self, claim: Claim, asked: Instant) {
        if let Some(held) = self.map().get_mut(&claim.job) {
            held.trusted_until = asked + held.lock;
        }
    }

    fn lose(&self, claim: Claim) {
        if let Some(held) = self.map().get(&claim.job).filter(|held| held.claim == claim) {
            held.lost.cancel();
        }
    }

    /// Claims whose lock has less than two thirds of its time left, by lock.
    fn due(&self, now: Instant) -> HashMap<Duration, Vec<Claim>> {
        let mut due: HashMap<Duration, Vec<Claim>> = HashMap::new();
        for held in self.map().values() {
            if held.trusted_until <= now + held.lock * 2 / 3 {
                due.entry(held.lock).or_default().push(held.claim);
            }
        }
        due
    }

    fn lose_those_past_trust(&self, now: Instant) {
        for held in self.map().values() {
            if held.trusted_until <= now {
                held.lost.cancel();
            }
        }
    }

    /// How long until the next renewal is due.
    fn next_due(&self, now: Instant) -> Duration {
        let left = |held: &HeldClaim| held.trusted_until.saturating_duration_since(now + held.lock * 2 / 3);
        let next = self.map().values().map(left).min();
        next.unwrap_or(IDLE).clamp(SHORTEST, IDLE)
    }

    fn map(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, HeldClaim>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Between two looks when there is nothing to renew. Locks are longer than this.
const IDLE: Duration = Duration::from_millis(250);
const SHORTEST: Duration = Duration::from_millis(20);

/// Renews claims until it is told to stop. A claim that cannot be renewed in time is lost.
pub(super) async fn renew(store: Arc<dyn Store>, held: HeldClaims, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let pause = held.next_due(Instant::now());
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
        for (lock, claims) in held.due(Instant::now()) {
            let asked = Instant::now();
            // A renewal that hangs must not keep those from being lost whose time is over.
            match tokio::time::timeout(lock / 3, store.renew(claims.clone(), lock)).await {
                Ok(Ok(outcomes)) => {
                    for (claim, outcome) in claims.into_iter().zip(outcomes) {
                        match outcome {
                            Renewed::Until(_) => held.renewed(claim, asked),
                            Renewed::Lost => held.lose(claim),
                        }
                    }
                }
                Ok(Err(error)) => tracing::warn!(%error, "locks could not be renewed"),
                Err(_) => tracing::warn!("locks could not be renewed in time"),
            }
        }
        held.lose_those_past_trust(Instant::now());
    }
}
