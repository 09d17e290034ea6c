//! Queues as people see them: listings of jobs, counts, pauses.
//!
//! A pause is a timestamp that is compared at claim time: it ends by itself, and there is no
//! resume that could be lost.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;

use crate::bus::{Bus, Topic};
use crate::cache::EntryKey;
use crate::clock::Timestamp;
use crate::commit::{Commit, Effect, Settled};
use crate::enrich::{Ask, Asked, Waits, request_key};
use crate::error::StoreError;
use crate::id::JobId;
use crate::job::{Enqueued, Job, JobState, NewJob, ReviveRequest, Revived};
use crate::limits;
use crate::metrics::Metrics;
use crate::store::Store;

/// Which jobs a listing shows, newest first.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only in this state.
    pub state: Option<JobState>,
    /// Only of this key.
    pub key: Option<String>,
    /// Only those that are ready, running or waiting to retry.
    pub live: bool,
    /// Only older than this one: where the last page ended.
    pub before: Option<JobId>,
    /// At most this many.
    pub limit: u32,
}

/// A queue with its counts.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Jobs that wait: ready and retrying.
    pub ready: u64,
    /// Jobs that workers have.
    pub running: u64,
    /// Dead letters.
    pub dead: u64,
    /// How long the oldest due job has been due.
    pub oldest_age_ms: u64,
    /// Nothing is claimed before this.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub paused_until: Option<Timestamp>,
}

impl Queue {
    /// A queue without jobs.
    pub fn empty(name: String) -> Self {
        Self { name, ready: 0, running: 0, dead: 0, oldest_age_ms: 0, paused_until: None }
    }
}

/// What looking after queues needs of a store.
#[async_trait]
pub trait QueueStore: Send + Sync {
    /// One job.
    async fn job(&self, id: JobId) -> Result<Option<Job>, StoreError>;

    /// A page of jobs, newest first.
    async fn jobs(&self, filter: JobFilter) -> Result<Vec<Job>, StoreError>;

    /// Every queue that has jobs or a pause, by name.
    async fn queues(&self) -> Result<Vec<Queue>, StoreError>;

    /// Nothing of the queue is claimed before `until`; without one it is resumed.
    async fn pause(&self, queue: String, until: Option<Timestamp>) -> Result<(), StoreError>;
}

/// Jobs as systems use them: the store's transitions, with wake-ups and metrics wrapped around
/// them once.
#[derive(Clone)]
pub struct Jobs {
    store: Arc<dyn Store>,
    bus: Bus,
    metrics: Arc<Metrics>,
}

impl Jobs {
    /// Jobs of a store.
    pub fn new(store: Arc<dyn Store>, bus: Bus, metrics: Arc<Metrics>) -> Self {
        Self { store, bus, metrics }
    }

    /// The store itself.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The bus that wakes workers.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Where things are counted.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// See [`crate::job::JobStore::enqueue`]. Wakes the workers of the queues.
    pub async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        if jobs.len() > limits::ENQUEUE_BATCH_MAX {
            return Err(StoreError::Refused(format!("at most {} jobs at once", limits::ENQUEUE_BATCH_MAX)));
        }
        if let Some(problem) = jobs.iter().find_map(NewJob::problem) {
            return Err(StoreError::Refused(problem));
        }
        let queues: Vec<String> = jobs.iter().map(|job| job.queue.clone()).collect();
        let outcomes = self.store.enqueue(jobs).await?;
        for (queue, outcome) in queues.iter().zip(&outcomes) {
            self.metrics.enqueued(queue, outcome);
        }
        self.wake(queues.iter().map(String::as_str));
        Ok(outcomes)
    }

    /// See [`crate::enrich::EnrichStore::wait`]. Wakes the workers of the lookups, and whoever has
    /// subscribed to the request.
    pub async fn wait(&self, ask: Ask) -> Result<Asked, StoreError> {
        let queues: Vec<String> = ask.waits.iter().map(|wait| wait.job.queue.clone()).collect();
        let request = ask.request.as_ref().map(|request| request_key(&request.id));
        let asked = self.store.wait(ask).await?;
        let Asked::Answered(answers) = &asked else { return Ok(asked) };
        let mut waited_for: Vec<&str> = Vec::new();
        for (queue, answer) in queues.iter().zip(answers) {
            let outcome = match answer {
                Waits::Resolved(_) => continue,
                Waits::Made => Enqueued::Created,
                Waits::Known { of, state, .. } => Enqueued::Duplicate { of: *of, state: *state, until: None },
            };
            self.metrics.enqueued(queue, &outcome);
            waited_for.push(queue);
        }
        if let (Some(request), false) = (request, waited_for.is_empty()) {
            self.bus.changed_here(&[request]);
        }
        self.wake(waited_for);
        Ok(asked)
    }

    /// See [`crate::job::JobStore::settle`]. Wakes the workers of the jobs that follow, and tells of the
    /// entries that were written.
    pub async fn settle(&self, commits: Vec<Commit>) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        let next = |commit: &Commit| commit.next_jobs.iter().map(|job| job.queue.clone()).collect();
        let next: Vec<(Vec<String>, Vec<EntryKey>)> =
            commits.iter().map(|commit| (next(commit), written(commit))).collect();
        let outcomes = self.store.settle(commits).await;
        if matches!(outcomes, Err(StoreError::Unknown(_))) {
            // It may have happened.
            self.bus.changed_here(&next.iter().flat_map(|(_, entries)| entries.clone()).collect::<Vec<_>>());
        }
        let outcomes = outcomes?;
        for ((queues, entries), outcome) in next.iter().zip(&outcomes) {
            if matches!(outcome, Ok(Settled::Applied) | Err(StoreError::Unknown(_))) && !entries.is_empty() {
                self.bus.changed_here(entries);
            }
            if *outcome == Ok(Settled::Applied) {
                for queue in queues {
                    self.metrics.enqueued(queue, &Enqueued::Created);
                }
                self.wake(queues.iter().map(String::as_str));
            }
        }
        Ok(outcomes)
    }

    /// See [`crate::job::JobStore::revive`]. Wakes the workers of what came back.
    pub async fn revive(&self, request: ReviveRequest) -> Result<Vec<Revived>, StoreError> {
        let revived = self.store.revive(request).await?;
        self.wake(revived.iter().filter_map(|one| match one {
            Revived::Ready { queue, .. } => Some(queue.as_str()),
            Revived::Superseded { .. } => None,
        }));
        Ok(revived)
    }

    /// See [`QueueStore::pause`]. Resuming wakes the queue's workers.
    pub async fn pause(&self, queue: String, until: Option<Timestamp>) -> Result<(), StoreError> {
        self.store.pause(queue.clone(), until).await?;
        self.wake([queue.as_str()]);
        Ok(())
    }

    /// Wakes the workers of queues in which something may be due.
    pub fn wake<'a>(&self, queues: impl IntoIterator<Item = &'a str>) {
        let mut woken: Vec<&str> = Vec::new();
        for queue in queues {
            if !woken.contains(&queue) {
                self.bus.wake(Topic::Queue(queue));
                woken.push(queue);
            }
        }
    }
}

/// The entries that a commit may write.
fn written(commit: &Commit) -> Vec<EntryKey> {
    match &commit.effect {
        Effect::PutEntries(entries) => entries.iter().map(|entry| entry.key.clone()).collect(),
        Effect::None | Effect::Feed(_) | Effect::Delivered(_) => Vec::new(),
    }
}
