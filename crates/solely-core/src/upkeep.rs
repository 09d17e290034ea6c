//! Upkeep: the heartbeat, the rescue of jobs whose worker is gone, and pruning.
//!
//! Each is a loop of its own, so that a slow round of one does not hold up another; none of
//! them is needed for correctness of what is already in the store. A rescued job without
//! attempts left is claimed by the rescuer and settled as dead **with the effect that its
//! handler names**; a rescuer that dies between the two leaves a claim that lapses again.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::bus::Topic;
use crate::commit::Settled;
use crate::error::StoreError;
use crate::id::ProcessId;
use crate::job::{Claimed, RescueRequest};
use crate::limits;
use crate::liveness::Beat;
use crate::queue::Jobs;
use crate::store::Retention;
use crate::worker::{Handler, QueueSpec, commit_dead};

/// The housekeeping of one process.
#[derive(Clone)]
pub struct Upkeep {
    /// What it keeps up.
    pub jobs: Jobs,
    /// Who it is.
    pub process: ProcessId,
    /// What the death of a job means, by queue.
    pub handlers: BTreeMap<String, Arc<dyn Handler>>,
    /// How long finished things are kept.
    pub retention: Retention,
    /// How long a process may be silent.
    pub dead_after: Duration,
}

impl Upkeep {
    /// The upkeep that goes with these queues.
    pub fn new(jobs: Jobs, process: ProcessId, queues: &[QueueSpec], retention: Retention) -> Self {
        let handlers = queues.iter().map(|spec| (spec.name.clone(), spec.handler.clone())).collect();
        Self { jobs, process, handlers, retention, dead_after: limits::DEAD_AFTER }
    }

    /// Keeps going until `stop`, then says that this process leaves. It must outlive the
    /// process's worker: a process that drains without beating would be declared dead.
    pub async fn run(self, stop: CancellationToken) {
        tokio::join!(
            self.every(limits::BEAT_EVERY, &stop, || self.beat()),
            self.every(limits::RESCUE_EVERY, &stop, || self.rescue()),
            self.every(limits::PRUNE_EVERY, &stop, || self.prune()),
        );
        if let Err(error) = self.jobs.store().leave(self.process).await {
            tracing::warn!(%error, "the process could not say that it leaves");
        }
    }

    async fn every<F>(&self, period: Duration, stop: &CancellationToken, round: impl Fn() -> F)
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Some(Err(error)) = stop.run_until_cancelled(round()).await {
                self.jobs.metrics().upkeep_failed();
                tracing::warn!(%error, "a round of housekeeping failed");
            }
        }
    }

    /// One heartbeat.
    pub async fn beat(&self) -> Result<(), StoreError> {
        let beat = Beat { process: self.process, dead_after: self.dead_after };
        let beaten = self.jobs.store().beat(beat).await?;
        for process in &beaten.buried {
            tracing::warn!(%process, "a process is silent; what it held is free");
        }
        for key in &beaten.freed_keys {
            self.jobs.bus().wake(Topic::Lease(key));
        }
        Ok(())
    }

    /// One round of rescue.
    pub async fn rescue(&self) -> Result<(), StoreError> {
        let request = RescueRequest {
            process: self.process,
            queues: self.handlers.keys().cloned().collect(),
            limit: u32::try_from(limits::CLAIM_BATCH_MAX).unwrap_or(u32::MAX),
        };
        let rescued = self.jobs.store().rescue(request).await?;
        self.jobs.metrics().rescued(rescued.freed.len() + rescued.exhausted.len());
        self.jobs.wake(rescued.freed.iter().map(|(_, queue)| queue.as_str()));
        let died = |lapsed: Claimed| {
            let handler = self.handlers.get(&lapsed.job.queue)?;
            let commit = commit_dead(&**handler, lapsed.claim, &lapsed.job, WORKER_GONE.to_owned());
            Some((lapsed.job.queue, commit))
        };
        let (queues, commits): (Vec<String>, Vec<_>) = rescued.exhausted.into_iter().filter_map(died).unzip();
        if commits.is_empty() {
            return Ok(());
        }
        for (queue, outcome) in queues.iter().zip(self.jobs.settle(commits).await?) {
            if outcome? != Settled::Stale {
                self.jobs.metrics().settled(queue, "dead");
            }
        }
        Ok(())
    }

    /// One round of pruning: small batches until nothing is left.
    pub async fn prune(&self) -> Result<(), StoreError> {
        loop {
            let pruned = self.jobs.store().prune(self.retention).await?;
            self.jobs.metrics().pruned(pruned.rows);
            if !pruned.more {
                return Ok(());
            }
        }
    }
}

/// The error of a job whose worker went away with its last attempt.
pub const WORKER_GONE: &str = "MaxDeliveryCountExceeded: the worker was gone on the last attempt";
