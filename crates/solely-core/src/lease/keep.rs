//! Work under a lease of this process, with a hint before it.
//!
//! The hint is asked first: it may refuse early, so that a crowd does not reach the store. It
//! never allows: whoever has it, or could not ask for it, still takes the row. While the work goes
//! on both are renewed. A hint that vanished is set again and cancels nothing; only the loss of
//! the row does, and a row that could not be renewed is not trusted to its very end.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Abandoned, Acquired, Lease, LeaseRenewed, LeaseRequest, Leases, Obstacle};
use crate::companion::Hinted;
use crate::error::StoreError;
use crate::fault::Guard;
use crate::id::LeaseId;

/// What became of work that was to begin.
pub enum Begun {
    /// The lease is this caller's for as long as it keeps it.
    Mine(Kept),
    /// Another has it.
    Held(Obstacle),
}

/// A lease that is renewed until it is given up or lost.
pub struct Kept {
    lease: Lease,
    lost: CancellationToken,
    over: CancellationToken,
}

impl Kept {
    /// The lease as it was taken.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Cancelled when the lease is lost: the work under it ends.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

impl Leases {
    /// Begins work of this process under a lease, if nobody else has it. The hints of these keys
    /// are asked first, where there is a companion. Dropping what is answered gives all of it back.
    pub async fn begin(&self, request: LeaseRequest, hints: Vec<String>) -> Result<Begun, StoreError> {
        // Without a companion there is nothing to be asked, kept or given back.
        let hints = if self.hints.is_some() { hints } else { Vec::new() };
        let owner = request.id.to_string();
        let hinted = self.hint(&hints, &owner).await;
        if let Hinted::Held { owner, ends_in } = hinted {
            let key = hints.into_iter().next().unwrap_or_default();
            let expires_at = crate::Clock::system().now().plus(ends_in);
            return Ok(Begun::Held(Obstacle { key, owner, expires_at, ends_in }));
        }
        let (asked, ttl) = (Instant::now(), request.ttl);
        let taken = matches!(hinted, Hinted::Taken { .. });
        if taken && !self.guards.hold(Guard::RowsDecide) {
            let expires_at = crate::Clock::system().now().plus(ttl);
            let LeaseRequest { id, keys, owner, .. } = request;
            let lease = Lease { id, keys, owner, fence: 0, expires_at };
            return Ok(Begun::Mine(self.keep(lease, hints, asked, ttl)));
        }
        // Should the caller leave meanwhile, what it might still get is given back.
        let mut abandoned = Abandoned { id: Some(request.id), leases: self };
        let answer = self.store.acquire(request).await;
        if !matches!(answer, Err(StoreError::Unknown(_))) {
            abandoned.id = None;
        }
        match answer {
            Ok(Acquired::Acquired(lease)) => Ok(Begun::Mine(self.keep(lease, hints, asked, ttl))),
            Ok(Acquired::Held(obstacle)) => {
                self.give_hints_back(&hints, &owner).await;
                Ok(Begun::Held(obstacle))
            }
            Err(error) => {
                self.give_hints_back(&hints, &owner).await;
                Err(error)
            }
        }
    }

    async fn hint(&self, keys: &[String], owner: &str) -> Hinted {
        let Some(hints) = self.hints.as_ref().filter(|_| !keys.is_empty()) else { return Hinted::Unknown };
        let hinted = hints.take(keys, owner, HINT_TTL).await;
        self.metrics.hinted(match hinted {
            Hinted::Taken { .. } => "taken",
            Hinted::Held { .. } => "held",
            Hinted::Unknown => "error",
        });
        hinted
    }

    async fn give_hints_back(&self, keys: &[String], owner: &str) {
        if let Some(hints) = self.hints.as_ref().filter(|_| !keys.is_empty()) {
            hints.give_back(keys, owner).await;
        }
    }

    fn keep(&self, lease: Lease, hints: Vec<String>, asked: Instant, ttl: Duration) -> Kept {
        let kept = Kept { lease, lost: CancellationToken::new(), over: CancellationToken::new() };
        let (leases, id) = (self.clone(), kept.lease.id);
        let (lost, over) = (kept.lost.clone(), kept.over.clone());
        tokio::spawn(async move {
            let renewing = leases.renew_until_lost(id, &hints, asked, ttl, &lost);
            over.run_until_cancelled(renewing).await;
            over.cancelled().await;
            leases.give_hints_back(&hints, &id.to_string()).await;
            if let Err(error) = leases.release(id).await {
                tracing::debug!(%error, "a lease is left to its end");
            }
        });
        kept
    }

    /// Renews the row and the hints, each when it is due, until the row is lost.
    async fn renew_until_lost(
        &self,
        id: LeaseId,
        hints: &[String],
        asked: Instant,
        ttl: Duration,
        lost: &CancellationToken,
    ) {
        let mut trusted_until = asked + ttl.mul_f64(TRUSTED);
        let (mut row_due, mut hint_due) = (asked + ttl / 3, asked + HINT_TTL / 3);
        loop {
            let due = if hints.is_empty() { row_due } else { row_due.min(hint_due) };
            tokio::time::sleep_until(due.min(trusted_until)).await;
            let now = Instant::now();
            if now >= trusted_until {
                break;
            }
            if now >= row_due {
                let renewal = tokio::time::timeout_at(trusted_until, self.store.renew_lease(id, Some(ttl)));
                match renewal.await {
                    Ok(Ok(LeaseRenewed::Renewed(_))) => trusted_until = now + ttl.mul_f64(TRUSTED),
                    Ok(Ok(LeaseRenewed::Lost)) if self.guards.hold(Guard::RowsDecide) => break,
                    Ok(Ok(LeaseRenewed::Lost)) => trusted_until = now + ttl,
                    Ok(Err(error)) => tracing::debug!(%error, "a lease could not be renewed yet"),
                    Err(_) => break,
                }
                row_due = now + ttl / 3;
            }
            if let Some(companion) = self.hints.as_ref().filter(|_| now >= hint_due && !hints.is_empty()) {
                // However long it takes, the row comes first.
                let patience = row_due.min(trusted_until);
                let owner = id.to_string();
                let keeping = tokio::time::timeout_at(patience, companion.keep(hints, &owner, HINT_TTL));
                if !keeping.await.unwrap_or(true) {
                    self.metrics.hinted("vanished");
                    if !self.guards.hold(Guard::HintsCancelNothing) {
                        break;
                    }
                }
                hint_due = now + HINT_TTL / 3;
            }
        }
        lost.cancel();
    }
}

/// The part of a lease's time for which its holder trusts it, counted from before it asked.
const TRUSTED: f64 = 0.9;
/// How long a hint outlives its holder.
pub const HINT_TTL: Duration = Duration::from_secs(5);
