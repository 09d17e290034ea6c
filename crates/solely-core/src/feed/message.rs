//! The messages of a feed, and the jobs that carry them.

use serde::{Deserialize, Serialize};

use super::system::{FeedSource, SourceSettings};
use super::{Partition, PartitionKey, PartitionStatus, PriceRange, Run};
use crate::id::RunId;
use crate::job::{NewJob, OnRunning, Window};
use crate::json::Json;

/// The queue of runs to be scheduled.
pub const SCHEDULE: &str = "schedule";
/// The queue of pages.
pub const WORK_ITEMS: &str = "work-items";
/// The queue of partitions that ended.
pub const WORK_DONE: &str = "work-done";
/// The queue of runs whose partitions have ended.
pub const CONSOLIDATE: &str = "consolidate";

/// One page to be fetched.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkItem {
    /// `WORK_ITEM`.
    pub r#type: String,
    /// The source.
    pub source: String,
    /// The run.
    pub run_id: RunId,
    /// The trace of the run.
    pub trace_id: String,
    /// The partition.
    pub partition_id: String,
    /// Its prices.
    #[serde(flatten)]
    pub range: PriceRange,
    /// How many records the source counted.
    pub total_records: Option<u64>,
    /// Where the page begins.
    pub offset: u64,
    /// Records of a page.
    pub limit: u32,
    /// Where the partition begins. Kept for older readers.
    pub offset_start: u64,
    /// Where it was expected to end. Kept for older readers.
    pub offset_end: u64,
    /// What an incremental run asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_from: Option<crate::Timestamp>,
    /// See [`WorkItem::updated_from`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_to: Option<crate::Timestamp>,
}

impl WorkItem {
    /// The message that carries a partition from where it is.
    pub fn of(run: &Run, partition: &str, range: PriceRange, total: Option<u64>, offset: u64) -> Self {
        Self {
            r#type: "WORK_ITEM".to_owned(),
            source: run.source.clone(),
            run_id: run.id,
            trace_id: trace_id(run.trace.as_deref()),
            partition_id: partition.to_owned(),
            range,
            total_records: total,
            offset,
            limit: run.limit,
            offset_start: 0,
            offset_end: total.unwrap_or(0),
            updated_from: run.updated.map(|updated| updated.from),
            updated_to: run.updated.map(|updated| updated.to),
        }
    }

    /// The partition it carries.
    pub fn partition(&self) -> PartitionKey {
        PartitionKey { run: self.run_id, partition: self.partition_id.clone() }
    }

    /// The job of this message. The rows decide what is a duplicate, so the window does not stop
    /// it; whoever sends a copy from outside is stopped by it.
    pub fn job(&self, settings: &SourceSettings, trace: Option<String>) -> NewJob {
        let mut job = NewJob::new(WORK_ITEMS, item_key(&self.partition(), self.offset));
        self.r#type.clone_into(&mut job.kind);
        job.payload = Json::of(self);
        job.attributes = Json::of(&serde_json::json!({
            "runId": self.run_id,
            "partitionId": self.partition_id,
            "offset": self.offset,
            "limit": self.limit,
        }));
        job.max_attempts = settings.max_deliveries;
        job.window = Window::Pass(settings.duplicate_window);
        job.trace = trace;
        job
    }
}

/// The message of somebody who has just changed what a delivery of it looks at first: one that is
/// under way may have looked before, so it runs once more.
pub(super) fn anew(mut job: NewJob) -> NewJob {
    job.on_running = OnRunning::RunAgain;
    job
}

/// A partition that has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WorkDone {
    r#type: String,
    pub(super) run_id: RunId,
    trace_id: String,
    pub(super) partition_id: String,
    status: String,
    error: Option<String>,
}

impl WorkDone {
    /// The job that says so. One for each ending; one that meets another of its partition at work
    /// makes that run once more, for it may have looked before.
    pub(super) fn job(item: &WorkItem, error: Option<String>, trace: Option<String>) -> NewJob {
        let key = format!("work-done:{}:{}", item.run_id, item.partition_id);
        let status = if error.is_none() { "success" } else { "failed" };
        let message = Self {
            r#type: "WORK_DONE".to_owned(),
            run_id: item.run_id,
            trace_id: item.trace_id.clone(),
            partition_id: item.partition_id.clone(),
            status: status.to_owned(),
            error,
        };
        let mut job = NewJob::new(WORK_DONE, key);
        message.r#type.clone_into(&mut job.kind);
        job.payload = Json::of(&message);
        job.attributes = Json::of(&serde_json::json!({
            "runId": item.run_id, "partitionId": item.partition_id, "status": status,
        }));
        // What it tells is in the rows: it is never given up for being told too often.
        job.max_attempts = crate::limits::JOB_ATTEMPTS_MAX;
        job.on_running = OnRunning::RunAgain;
        job.trace = trace;
        job
    }
}

/// A message about a whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OfRun {
    r#type: String,
    pub(super) run_id: RunId,
    trace_id: String,
    source: String,
}

impl OfRun {
    pub(super) fn schedule(run: RunId, source: &FeedSource, trace: Option<String>) -> NewJob {
        Self::job(SCHEDULE, "SCHEDULE", run, source, trace)
    }

    pub(super) fn consolidate(run: &Run, source: &FeedSource) -> NewJob {
        Self::job(CONSOLIDATE, "CONSOLIDATE", run.id, source, run.trace.clone())
    }

    fn job(queue: &str, kind: &str, run: RunId, source: &FeedSource, trace: Option<String>) -> NewJob {
        let message = Self {
            r#type: kind.to_owned(),
            run_id: run,
            trace_id: trace_id(trace.as_deref()),
            source: source.name.clone(),
        };
        let mut job = NewJob::new(queue, run_key(queue, run));
        job.max_attempts = source.settings.max_deliveries;
        job.on_running = OnRunning::RunAgain;
        kind.clone_into(&mut job.kind);
        job.payload = Json::of(&message);
        job.attributes = Json::of(&serde_json::json!({"runId": run, "source": source.name}));
        job.trace = trace;
        job
    }
}

/// The message id of a page.
pub(super) fn item_key(of: &PartitionKey, offset: u64) -> String {
    format!("{}:{}:{offset}", of.run, of.partition)
}

/// The key of a message about a whole run.
pub(super) fn run_key(queue: &str, run: RunId) -> String {
    format!("{queue}:{run}")
}

/// The messages that carry what is unfinished of a run.
pub(super) fn carriers<'a>(
    run: &'a Run,
    partitions: &'a [Partition],
    settings: &'a SourceSettings,
) -> impl Iterator<Item = NewJob> + 'a {
    let unfinished = |partition: &&Partition| partition.status != PartitionStatus::Completed;
    partitions.iter().filter(unfinished).map(|partition| {
        let at = partition.next_offset;
        let item = WorkItem::of(run, &partition.id, partition.range, partition.total, at);
        anew(item.job(settings, run.trace.clone()))
    })
}

/// The trace's id in a `traceparent`, or a new one.
fn trace_id(traceparent: Option<&str>) -> String {
    let given = traceparent.and_then(|text| text.split('-').nth(1)).filter(|id| id.len() == 32);
    given.map_or_else(|| uuid::Uuid::new_v4().simple().to_string(), str::to_owned)
}
