//! One queue's dispatcher: claims what it has places for, and runs each delivery in a task.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bus::Topic;
use crate::commit::{Commit, Verdict};
use crate::fault;
use crate::id::ProcessId;
use crate::job::{ClaimReply, ClaimRequest, Claimed};
use crate::limits;
use crate::liveness::Beat;
use crate::queue::Jobs;

use super::held::{HeldClaim, HeldClaims};
use super::settler::{Outbox, Parcel};
use super::{Delivery, Done, Failure, QueueSpec, verdict};

pub(super) struct Dispatcher {
    pub(super) jobs: Jobs,
    pub(super) process: ProcessId,
    pub(super) spec: QueueSpec,
    pub(super) held: HeldClaims,
    pub(super) commits: Outbox,
    /// No more claims.
    pub(super) stop: CancellationToken,
    /// Deliveries still running are released.
    pub(super) interrupt: CancellationToken,
}

/// Why the dispatcher looks at its queue again.
enum Look {
    /// Something may be due.
    Now,
    /// Nothing is due before this.
    At(Instant),
}

pub(super) async fn run(dispatcher: Dispatcher) {
    let mut listener = dispatcher.jobs.bus().listen(Topic::Queue(&dispatcher.spec.name));
    let mut running: JoinSet<()> = JoinSet::new();
    let mut look = Look::Now;
    while !dispatcher.stop.is_cancelled() {
        let free = dispatcher.spec.concurrency.saturating_sub(running.len());
        if free > 0 && matches!(look, Look::Now) {
            look = dispatcher.claim(free, &mut running).await;
            continue;
        }
        let next_look = match look {
            Look::At(at) if free > 0 => at,
            _ => Instant::now() + limits::WORKER_POLL,
        };
        tokio::select! {
            () = dispatcher.stop.cancelled() => break,
            Some(_) = running.join_next() => {
                // Whoever else is done by now makes room for the same claim.
                tokio::task::yield_now().await;
                while running.try_join_next().is_some() {}
            }
            () = listener.woken() => look = Look::Now,
            () = tokio::time::sleep_until(next_look) => look = Look::Now,
        }
    }
    while running.join_next().await.is_some() {}
}

impl Dispatcher {
    /// Claims up to `free` jobs and starts them.
    async fn claim(&self, free: usize, running: &mut JoinSet<()>) -> Look {
        let limit = free.min(limits::CLAIM_BATCH_MAX);
        let request = ClaimRequest {
            process: self.process,
            queue: self.spec.name.clone(),
            limit,
            lock: self.spec.lock,
        };
        let asked = Instant::now();
        match self.jobs.store().claim(request).await {
            Ok(ClaimReply::Jobs { jobs, next_due_in }) => {
                fault::point("claim.committed");
                let full = jobs.len() == limit;
                for claimed in jobs {
                    self.start(claimed, asked, running);
                }
                let wait = next_due_in.unwrap_or(limits::WORKER_POLL).min(limits::WORKER_POLL);
                if full { Look::Now } else { Look::At(Instant::now() + jittered(wait)) }
            }
            Ok(ClaimReply::NotAlive) => {
                let beat = Beat { process: self.process, dead_after: limits::DEAD_AFTER };
                match self.jobs.store().beat(beat).await {
                    Ok(_) => Look::Now,
                    Err(_) => Look::At(Instant::now() + TROUBLE),
                }
            }
            Err(error) => {
                tracing::warn!(queue = self.spec.name, %error, "no jobs could be claimed");
                Look::At(Instant::now() + jittered(TROUBLE))
            }
        }
    }

    fn start(&self, claimed: Claimed, asked: Instant, running: &mut JoinSet<()>) {
        let lost = CancellationToken::new();
        self.held.take(HeldClaim {
            claim: claimed.claim,
            lock: self.spec.lock,
            trusted_until: asked + self.spec.lock,
            lost: lost.clone(),
        });
        running.spawn(deliver(Delivering {
            jobs: self.jobs.clone(),
            spec: self.spec.clone(),
            held: self.held.clone(),
            commits: self.commits.clone(),
            stop: self.stop.clone(),
            interrupt: self.interrupt.clone(),
            lost,
            claimed,
        }));
    }
}

struct Delivering {
    jobs: Jobs,
    spec: QueueSpec,
    held: HeldClaims,
    commits: Outbox,
    stop: CancellationToken,
    interrupt: CancellationToken,
    lost: CancellationToken,
    claimed: Claimed,
}

/// Runs one delivery, from its claim to handing its commit to the settler.
async fn deliver(this: Delivering) {
    let started = Instant::now();
    let claim = this.claimed.claim;
    let commit = tokio::select! {
        biased;
        () = this.lost.cancelled() => {
            this.held.give_back(claim);
            tracing::warn!(job = %claim.job, fence = claim.fence, "the claim was lost; its work was stopped");
            this.jobs.metrics().settled(&this.spec.name, "stale");
            return;
        }
        () = this.interrupt.cancelled() => Commit::new(claim, Verdict::Release),
        result = handled(&this) => verdict::commit(&this.spec, &this.claimed, result),
    };
    fault::point("worker.handled");
    let job = &this.claimed.job;
    this.jobs.metrics().delivered(&job.queue, job.updated_at.since(job.run_at), started.elapsed());
    let parcel = Parcel { queue: this.spec.name, commit };
    // The settler outlives every dispatcher.
    let _ = this.commits.send(parcel).await;
}

/// The handler's answer. A panic or a missed deadline is a failure that may pass.
async fn handled(this: &Delivering) -> Result<Done, Failure> {
    let delivery =
        Delivery { claim: this.claimed.claim, job: this.claimed.job.clone(), stopping: this.stop.clone() };
    let handler = this.spec.handler.clone();
    let task =
        tokio_util::task::AbortOnDropHandle::new(tokio::spawn(
            async move { handler.handle(&delivery).await },
        ));
    match tokio::time::timeout(this.spec.deadline, task).await {
        Ok(Ok(result)) => result,
        Ok(Err(panicked)) => Err(Failure::transient(format!("the handler panicked: {panicked}"))),
        Err(_) => Err(Failure::transient(format!(
            "the handler took longer than {} ms",
            this.spec.deadline.as_millis()
        ))),
    }
}

const TROUBLE: Duration = Duration::from_millis(500);

/// Up to a tenth less, so that workers that stopped together do not look together.
fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(1.0 - rand::random::<f64>() / 10.0)
}
