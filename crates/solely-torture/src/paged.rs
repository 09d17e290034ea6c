//! The paged job: a feed in its smallest whole form, worked by processes that die.
//!
//! A run has partitions, a partition has records, a message is one page of it. The handler
//! fetches the page (the records are a function of their number), and its commit carries the
//! records, the progress, the next page's message or the partition's WORK_DONE, and the
//! completion of this message. Every settlement leaves an event with the fence of its delivery.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use solely_core::Json;
use solely_core::commit::Effect;
use solely_core::event::NewEvent;
use solely_core::feed::{Page, Record};
use solely_core::job::{NewJob, Window};
use solely_core::worker::{Delivery, Done, Failure, Handler};

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
        job.window = Window::Pass(Duration::from_secs(600));
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

/// A record as the source has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceRecord {
    id: String,
    price: u64,
}

/// The record of a number.
pub fn source_record(partition_id: &str, n: u64) -> SourceRecord {
    SourceRecord { id: format!("{partition_id}-{n}"), price: n }
}

/// Fetches and writes pages.
pub enum Pages {
    /// Makes them up.
    Computed,
    /// Asks an upstream for them.
    Fetched {
        /// Asks.
        client: reqwest::Client,
        /// Where: `http://host:port`.
        upstream: String,
    },
}

impl Pages {
    async fn fetch(&self, item: &WorkItem) -> Result<Vec<SourceRecord>, Failure> {
        let end = item.total.min(item.offset + item.limit);
        let Self::Fetched { client, upstream } = self else {
            return Ok((item.offset..end).map(|n| source_record(&item.partition_id, n)).collect());
        };
        let url = format!("{upstream}/pages/{}/{}", item.run_id, item.partition_id);
        let query = [("offset", item.offset), ("limit", item.limit), ("total", item.total)];
        let answer = async { client.get(url).query(&query).send().await?.error_for_status()?.json().await };
        answer.await.map_err(|error| Failure::transient(error.to_string()))
    }
}

#[async_trait]
impl Handler for Pages {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let item: WorkItem = delivery
            .job
            .payload
            .parse()
            .map_err(|error| Failure::permanent(format!("no work item: {error}")))?;
        let records = self.fetch(&item).await?;
        let end = item.offset + records.len() as u64;
        let last = end - item.offset < item.limit;
        let next = if last {
            NewJob::new(WORK_DONE, format!("{}:{}", item.run_id, item.partition_id))
        } else {
            WorkItem { offset: end, ..item.clone() }.job()
        };
        let settled = NewEvent::new(format!("page:{}", delivery.job.key), "page_settled")
            .reason(delivery.claim.fence.to_string());
        let effect = Effect::Page(Page {
            run_id: item.run_id,
            partition_id: item.partition_id,
            offset: item.offset,
            next_offset: end,
            last,
            records: records.iter().map(record).collect(),
        });
        let otherwise = vec![settled.clone()];
        Ok(Done { effect, next_jobs: vec![next], events: vec![settled], otherwise })
    }
}

fn record(found: &SourceRecord) -> Record {
    Record { id: found.id.clone(), payload: Json::of(found) }
}
