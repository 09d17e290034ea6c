//! SCHEDULE: counts price ranges, makes the partitions and sends the first message of each.
//!
//! Everything that it writes is one commit, with its own completion; until then it may be done
//! over by anyone. It asks for some hundred counts, so each of them is tried again by itself: were the
//! whole plan begun anew, a source that fails two times in a hundred would seldom be planned at all.

use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt as _, TryStreamExt as _};
use tokio_util::sync::CancellationToken;

use super::message::{OfRun, WorkItem};
use super::partition::Planner;
use super::source::Scope;
use super::system::{ChangeError, Feed, FeedSource, change_of, subject};
use super::{NewPartition, Partition, PriceRange, Run, RunState, RunStatus, Step};
use crate::commit::Effect;
use crate::event::NewEvent;
use crate::job::{Job, NewJob};
use crate::json::Json;
use crate::worker::{Delivery, Done, Failure, Handler};

/// Before a count is tried again; twice as long each time after.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// How long a plan waits for its source in the hands of who makes it.
const WAITS_HERE: Duration = Duration::from_secs(30);

/// A run that is planned.
struct Plan<'a> {
    source: &'a FeedSource,
    run: &'a Run,
    /// Cancelled when the process stops: then nothing is waited for.
    stopping: &'a CancellationToken,
}

/// Schedules runs.
pub(super) struct Schedules(pub(super) Feed);

#[async_trait]
impl Handler for Schedules {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let Some((state, source)) = self.0.at_stage(&delivery.job, RunStatus::Scheduling).await? else {
            return Ok(Done::default());
        };
        let of = Plan { source: &source, run: &state.run, stopping: &delivery.stopping };
        let partitions = if state.partitions.is_empty() {
            plan(&of).await?
        } else {
            counted(&of, &state.partitions).await?
        };
        let run = &state.run;
        let next_jobs: Vec<NewJob> = partitions
            .iter()
            .map(|partition| {
                WorkItem::of(run, &partition.id, partition.range, partition.total, 0)
                    .job(&source.settings, run.trace.clone())
            })
            .collect();
        let records: u64 = partitions.iter().filter_map(|partition| partition.total).sum();
        let details = serde_json::json!({"partitions": partitions.len(), "totalRecords": records});
        let told = NewEvent::new(subject(run.id), "run_scheduled").details(Json::of(&details));
        let effect = Effect::Feed(Step::Begin { run: run.id, partitions });
        Ok(Done { effect, next_jobs, events: vec![told], otherwise: Vec::new() })
    }

    fn died(&self, job: &Job, error: &str) -> Done {
        failed_run(job, RunStatus::Scheduling, error)
    }
}

/// What the death of a message about a whole run means.
pub(super) fn failed_run(job: &Job, from: RunStatus, error: &str) -> Done {
    let Ok(message) = job.payload.parse::<OfRun>() else { return Done::default() };
    let told = NewEvent::new(subject(message.run_id), "run_failed").reason(error);
    let step = Step::FailRun { run: message.run_id, from, error: error.to_owned() };
    Done { effect: Effect::Feed(step), events: vec![told], ..Done::default() }
}

impl Feed {
    /// The run that a message is about, and its source, if it is at this stage. One that has failed there
    /// is brought back with its dead letter.
    pub(super) async fn at_stage(
        &self,
        job: &Job,
        wanted: RunStatus,
    ) -> Result<Option<(RunState, std::sync::Arc<FeedSource>)>, Failure> {
        let Some((state, source)) = self.of_message(job).await? else { return Ok(None) };
        if state.run.status == wanted {
            return Ok(Some((state, source)));
        }
        if state.run.status != RunStatus::Failed || state.run.failed_at() != wanted {
            return Ok(None);
        }
        let revived = self.change(state.run.id, |state| {
            if state.run.status != RunStatus::Failed || state.run.failed_at() != wanted {
                return Err(ChangeError::State(format!("the run is {}", state.run.status.word())));
            }
            Ok(change_of(state, wanted, NewEvent::new(subject(state.run.id), "run_resumed")))
        });
        match revived.await {
            Ok(state) => Ok(Some((state, source))),
            Err(ChangeError::Store(error)) => Err(Failure::transient(error.to_string())),
            Err(other) => Err(Failure::permanent(other.to_string())),
        }
    }

    /// The run that a message is about, and its source. None if there is no such run any more.
    async fn of_message(&self, job: &Job) -> Result<Option<(RunState, std::sync::Arc<FeedSource>)>, Failure> {
        let message: OfRun = job
            .payload
            .parse()
            .map_err(|error| Failure::permanent(format!("the message cannot be read: {error}")))?;
        let store = |error: crate::StoreError| Failure::transient(error.to_string());
        let Some(state) = self.jobs.store().run(message.run_id).await.map_err(store)? else {
            return Ok(None);
        };
        let source = self.known(&state.run.source)?;
        Ok(Some((state, source)))
    }

    /// A source that messages name. One that is not configured here may be elsewhere, or again
    /// after a restart.
    pub(super) fn known(&self, name: &str) -> Result<std::sync::Arc<FeedSource>, Failure> {
        let unknown = || Failure::Postponed {
            delay: Duration::from_secs(5),
            error: format!("the source `{name}` is not configured here"),
        };
        self.source(name).cloned().ok_or_else(unknown)
    }
}

fn scope(run: &Run, range: PriceRange) -> Scope {
    Scope { range, updated: run.updated, trace: run.trace.clone() }
}

/// How many records there are in a range, for all that some of the calls fail or have to wait. What
/// other ranges were found to have is not given up for it.
async fn count(plan: &Plan<'_>, range: PriceRange) -> Result<u64, Failure> {
    let Plan { source, run, stopping } = *plan;
    let (scope, mut wait, mut tries) = (scope(run, range), FIRST_WAIT, 1);
    loop {
        match source.count(&scope).await {
            Err(Failure::Transient { .. }) if tries < source.settings.max_deliveries => {
                tokio::time::sleep(wait).await;
                wait *= 2;
                tries += 1;
            }
            Err(Failure::Postponed { delay, error }) => {
                let waits = stopping.run_until_cancelled(tokio::time::sleep(delay));
                // One that asks for long is left to whoever has it delivered then.
                if delay > WAITS_HERE || waits.await.is_none() {
                    return Err(Failure::Postponed { delay, error });
                }
            }
            other => return other,
        }
    }
}

/// What comes of calls, in their order; as many at once as the source takes.
async fn in_turn<T>(
    source: &FeedSource,
    calls: Vec<impl Future<Output = Result<T, Failure>>>,
) -> Result<Vec<T>, Failure> {
    futures::stream::iter(calls).buffered(source.settings.concurrency.max(1)).try_collect().await
}

/// Partitions of about equal size, by the heatmap.
async fn plan(plan: &Plan<'_>) -> Result<Vec<NewPartition>, Failure> {
    let source = plan.source;
    let settings = &source.settings;
    let mut planner =
        Planner::new(settings.range, settings.max_partitions, settings.min_records_per_partition);
    loop {
        let probes = planner.probes();
        if probes.is_empty() {
            return Ok(planner.partitions());
        }
        let counts = probes.into_iter().map(|range| count(plan, range)).collect();
        planner.learn(&in_turn(source, counts).await?);
    }
}

/// The partitions that the client wants, with as many records as the source counts.
async fn counted(plan: &Plan<'_>, partitions: &[Partition]) -> Result<Vec<NewPartition>, Failure> {
    let count_one = |partition: &Partition| count_of(plan, partition.clone());
    in_turn(plan.source, partitions.iter().map(count_one).collect()).await
}

async fn count_of(plan: &Plan<'_>, partition: Partition) -> Result<NewPartition, Failure> {
    let total = match count(plan, partition.range).await {
        Ok(total) => Some(total),
        // It only says how far the partition is: a source that cannot count can be copied.
        Err(Failure::Permanent { .. }) => None,
        Err(other) => return Err(other),
    };
    Ok(NewPartition { id: partition.id, range: partition.range, total })
}
