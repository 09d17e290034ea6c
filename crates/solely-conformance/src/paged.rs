//! The paged job: a feed in its smallest whole form, worked by processes that die.
//!
//! A run has partitions, a partition has records, a message is one page of it. The handler
//! "fetches" the page (the records are a function of their number), and its commit carries the
//! records, the progress, the next page's message or the partition's WORK_DONE, and the
//! completion of this message. [`violations`] is an independent checker: it knows what should
//! be there and reads the tables with SQL of its own.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use solely_core::commit::Effect;
use solely_core::event::NewEvent;
use solely_core::feed::{Page, Record};
use solely_core::job::{NewJob, Window};
use solely_core::worker::{Delivery, Done, Failure, Handler};
use solely_core::{Json, StoreError};

use crate::world::secs;

/// The queue of pages.
pub const WORK_ITEMS: &str = "work-items";
/// The queue of partitions that ended.
pub const WORK_DONE: &str = "work-done";

/// A run to be worked.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its id.
    pub id: String,
    /// How many partitions it has.
    pub partitions: u64,
    /// How many records each of them has.
    pub records: u64,
    /// Records of a page.
    pub limit: u64,
}

/// One message: one page.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct WorkItem {
    run_id: String,
    partition_id: String,
    offset: u64,
    limit: u64,
    total: u64,
}

impl WorkItem {
    /// Continuations are not sent from outside, so the window does not stop them; any number
    /// of workers may die on one page.
    fn job(&self) -> NewJob {
        let mut job =
            NewJob::new(WORK_ITEMS, format!("{}:{}:{}", self.run_id, self.partition_id, self.offset));
        "WORK_ITEM".clone_into(&mut job.kind);
        job.payload = Json::of(self);
        job.window = Window::Pass(secs(600));
        job.max_attempts = 10_000;
        job
    }
}

impl Run {
    /// The messages that begin the run.
    pub fn first_messages(&self) -> Vec<NewJob> {
        let item = |n: u64| WorkItem {
            run_id: self.id.clone(),
            partition_id: format!("partition-{n}"),
            offset: 0,
            limit: self.limit,
            total: self.records,
        };
        (0..self.partitions).map(|n| item(n).job()).collect()
    }

    /// Pages of one partition: the last one is short, empty if need be.
    pub fn pages(&self) -> u64 {
        self.records / self.limit + 1
    }
}

/// Fetches and writes pages.
pub struct Pages;

#[async_trait]
impl Handler for Pages {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let item: WorkItem = delivery
            .job
            .payload
            .parse()
            .map_err(|error| Failure::permanent(format!("no work item: {error}")))?;
        let end = item.total.min(item.offset + item.limit);
        let records: Vec<Record> = (item.offset..end).map(|n| record(&item.partition_id, n)).collect();
        let last = end - item.offset < item.limit;
        let next = if last {
            NewJob::new(WORK_DONE, format!("{}:{}", item.run_id, item.partition_id))
        } else {
            WorkItem { offset: end, ..item.clone() }.job()
        };
        let subject = format!("run:{}", item.run_id);
        let effect = Effect::Page(Page {
            run_id: item.run_id,
            partition_id: item.partition_id,
            offset: item.offset,
            next_offset: end,
            last,
            records,
        });
        let otherwise = vec![NewEvent::new(subject, "feed_offset_mismatch")];
        Ok(Done { effect, next_jobs: vec![next], events: Vec::new(), otherwise })
    }
}

fn record(partition_id: &str, n: u64) -> Record {
    let id = format!("{partition_id}-{n}");
    Record { payload: Json::of(&serde_json::json!({"id": id, "price": n})), id }
}

/// What a checker needs of a database: one number for one query.
#[async_trait]
pub trait Numbers: Sync {
    /// The number that a query answers.
    async fn number(&self, sql: &str) -> Result<i64, StoreError>;
}

/// What is wrong with finished runs: every page exactly once, none stranded.
pub async fn violations(numbers: &dyn Numbers, runs: &[Run]) -> Result<Vec<String>, StoreError> {
    let mut wrong = Vec::new();
    for run in runs {
        let of_run = format!("run_id = '{}'", run.id);
        let done_key = format!("key LIKE '{}:%'", run.id);
        let expected = [
            ("records", format!("SELECT count(*) FROM records WHERE {of_run}"), run.partitions * run.records),
            (
                "records counted",
                format!(
                    "SELECT CAST(coalesce(sum(records_processed), 0) AS bigint) FROM worker_runs WHERE {of_run}"
                ),
                run.partitions * run.records,
            ),
            (
                "pages counted",
                format!(
                    "SELECT CAST(coalesce(sum(pages_processed), 0) AS bigint) FROM worker_runs WHERE {of_run}"
                ),
                run.partitions * run.pages(),
            ),
            (
                "complete partitions",
                format!("SELECT count(*) FROM partition_progress WHERE {of_run} AND completed"),
                run.partitions,
            ),
            (
                "partitions at their end",
                format!(
                    "SELECT count(*) FROM partition_progress WHERE {of_run} AND next_offset = {}",
                    run.records
                ),
                run.partitions,
            ),
            (
                "WORK_DONE messages",
                format!("SELECT count(*) FROM jobs WHERE queue = '{WORK_DONE}' AND {done_key}"),
                run.partitions,
            ),
            (
                "messages of pages",
                format!("SELECT count(*) FROM jobs WHERE queue = '{WORK_ITEMS}' AND {done_key}"),
                run.partitions * run.pages(),
            ),
        ];
        for (what, sql, expected) in expected {
            let found = numbers.number(&sql).await?;
            if found != i64::try_from(expected).unwrap_or(i64::MAX) {
                wrong.push(format!("{}: {found} {what}, expected {expected}", run.id));
            }
        }
    }
    Ok(wrong)
}
