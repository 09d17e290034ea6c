//! The settler: takes the commits that are there and hands them to the store as one batch.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

use crate::bus::Topic;
use crate::commit::{Commit, Settled, Verdict};
use crate::error::StoreError;
use crate::limits;
use crate::queue::Jobs;

use super::held::HeldClaims;

/// A commit on its way, with its job's queue for the metrics.
pub(super) struct Parcel {
    pub(super) queue: String,
    pub(super) commit: Commit,
}

pub(super) type Outbox = mpsc::Sender<Parcel>;
/// Batches that may be with the store at once.
pub(super) const SETTLERS: usize = 2;

pub(super) type Inbox = mpsc::Receiver<Parcel>;

pub(super) fn channel() -> (Outbox, Inbox) {
    mpsc::channel(limits::CLAIM_BATCH_MAX)
}

/// Settles until every dispatcher is gone and the inbox is empty. Several take turns at the inbox:
/// while one's batch is with the store, the next one's gathers.
pub(super) async fn run(jobs: Jobs, held: HeldClaims, inbox: Arc<Mutex<Inbox>>) {
    let mut parcels = Vec::with_capacity(limits::CLAIM_BATCH_MAX);
    while inbox.lock().await.recv_many(&mut parcels, limits::CLAIM_BATCH_MAX).await > 0 {
        let queues: Vec<String> = parcels.iter().map(|parcel| parcel.queue.clone()).collect();
        let commits: Vec<Commit> = parcels.drain(..).map(|parcel| parcel.commit).collect();
        let outcomes = settle(&jobs, &held, &commits).await;
        for ((queue, commit), outcome) in queues.iter().zip(&commits).zip(outcomes) {
            held.give_back(commit.claim);
            count(&jobs, queue, commit, &outcome);
        }
        // A verdict that puts a job back makes it due here as well. Others find it by their poll,
        // should this process be busy.
        for queue in queues.iter().collect::<HashSet<_>>() {
            jobs.bus().wake_here(Topic::Queue(queue));
        }
    }
}

/// Tries until the store has judged every commit, its claim has lapsed, or [`PATIENCE`] is over:
/// what a handler did is worth a wait, and a claim that lapses meanwhile is refused by its fence.
async fn settle(jobs: &Jobs, held: &HeldClaims, commits: &[Commit]) -> Vec<Result<Settled, StoreError>> {
    let (deadline, mut wait) = (Instant::now() + PATIENCE, FIRST_WAIT);
    let mut outcomes: Vec<Option<Result<Settled, StoreError>>> = vec![None; commits.len()];
    loop {
        let open: Vec<usize> = (0..commits.len()).filter(|&n| outcomes[n].is_none()).collect();
        if open.is_empty() {
            return outcomes.into_iter().flatten().collect();
        }
        let attempt = jobs.settle(open.iter().map(|&n| commits[n].clone()).collect()).await;
        let judged = attempt.unwrap_or_else(|error| open.iter().map(|_| Err(error.clone())).collect());
        for (n, outcome) in open.into_iter().zip(judged) {
            let again = outcome.as_ref().is_err_and(StoreError::retryable);
            if !(again && Instant::now() < deadline && held.trusts(commits[n].claim)) {
                outcomes[n] = Some(outcome);
            }
        }
        if outcomes.iter().any(Option::is_none) {
            tracing::warn!("a settlement waits for the store");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(10);
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

fn count(jobs: &Jobs, queue: &str, commit: &Commit, outcome: &Result<Settled, StoreError>) {
    let word = match (outcome, &commit.verdict) {
        (Ok(Settled::Stale), _) => "stale",
        (Ok(Settled::Skipped), Verdict::Complete) => "skipped",
        (Ok(_), Verdict::Complete) => "completed",
        (Ok(_), Verdict::Retry { .. }) => "retried",
        (Ok(_), Verdict::Postpone { .. }) => "postponed",
        (Ok(_), Verdict::Release) => "released",
        (Ok(_), Verdict::Dead { .. }) => "dead",
        (Err(error), _) => {
            tracing::error!(job = %commit.claim.job, %error, "a settlement failed; the job will be delivered again");
            return;
        }
    };
    if word == "stale" {
        tracing::warn!(job = %commit.claim.job, fence = commit.claim.fence, "a settlement came too late and was refused");
    }
    jobs.metrics().settled(queue, word);
}
