//! Feeds under torture: runs whose records are a function of their number, worked by processes
//! that die.
//!
//! The handlers are solely's own. Around that of pages stands a witness: every settlement of a page
//! leaves an event with the fence of its delivery, so that one by a delivery that had lost its page
//! can be told.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use solely_core::event::NewEvent;
use solely_core::feed::source::{Found, Scope, Source, Window};
use solely_core::feed::{Asked, End, Feed, FeedSource, PriceRange, SourceSettings, StartError, WORK_ITEMS};
use solely_core::job::Job;
use solely_core::queue::Jobs;
use solely_core::upstream::{CallFailed, Rate, Upstream, UpstreamError, UpstreamKind, UpstreamLimits};
use solely_core::worker::{Delivery, Done, Failure, Handler, QueueSpec};
use solely_core::{Json, RunId, Store};

/// Sources that there are; each has one run at a time.
pub const SOURCES: usize = 64;
/// Partitions of a run.
pub const PARTITIONS: u64 = 4;
/// Records of a partition. Its last page is short.
pub const RECORDS: u64 = 203;
/// Records of a page.
pub const LIMIT: u64 = 5;
/// Pages of a partition.
pub const PAGES: u64 = RECORDS / LIMIT + 1;

/// A run to be worked and checked.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// Its source.
    pub source: String,
}

/// The name of a source.
pub fn source_name(number: usize) -> String {
    format!("source-{}", number % SOURCES)
}

/// Starts a run of a source.
pub async fn start(feed: &Feed, number: usize) -> Result<Run, StartError> {
    let source = source_name(number);
    let id = feed.start(Asked { source: source.clone(), ..Asked::default() }).await?;
    Ok(Run { id, source })
}

/// A record as the source has it.
fn record(source: &str, price: i64, number: u64) -> Found {
    let payload = serde_json::json!({"id": format!("{source}-{price}-{number}"), "price": price});
    Found { id: format!("{source}-{price}-{number}"), payload: Json::of(&payload), price: Some(price) }
}

/// Records of a price, as many as there are of each.
pub fn records(source: &str, range: (i64, i64), offset: u64, limit: u64) -> Vec<Found> {
    let (min, max) = (range.0.max(0), range.1.min(PARTITIONS.cast_signed() - 1));
    let all = (min..=max).flat_map(|price| (0..RECORDS).map(move |number| (price, number)));
    let part = all.skip(usize::try_from(offset).unwrap_or(0)).take(usize::try_from(limit).unwrap_or(0));
    part.map(|(price, number)| record(source, price, number)).collect()
}

/// How many records there are of these prices.
pub fn count(range: (i64, i64)) -> u64 {
    let (min, max) = (range.0.max(0), range.1.min(PARTITIONS.cast_signed() - 1));
    u64::try_from(max - min + 1).unwrap_or(0) * RECORDS
}

/// Makes records up.
pub struct Computed(pub String);

#[async_trait]
impl Source for Computed {
    async fn count(&self, scope: &Scope) -> Result<u64, CallFailed<UpstreamError>> {
        Ok(count((scope.range.min, scope.range.max)))
    }

    async fn page(&self, scope: &Scope, window: &Window) -> Result<Vec<Found>, CallFailed<UpstreamError>> {
        let range = (scope.range.min, scope.range.max);
        Ok(records(&self.0, range, window.offset, window.limit.into()))
    }
}

/// How the sources are copied.
pub fn settings(lock: Duration) -> SourceSettings {
    SourceSettings {
        page_limit: u32::try_from(LIMIT).unwrap_or(5),
        page_max: 1_000,
        page_overlap: 0,
        range: PriceRange { min: 0, max: PARTITIONS.cast_signed() - 1 },
        overlap: Duration::from_secs(900),
        max_partitions: usize::try_from(PARTITIONS).unwrap_or(4),
        min_records_per_partition: 10,
        concurrency: 4,
        timeout: Duration::from_secs(10),
        lock,
        // Any number of workers may die on one page.
        max_deliveries: 10_000,
        duplicate_window: Duration::from_secs(600),
        stuck_after: Duration::from_secs(600),
        every: None,
        end: End::ShortPage,
    }
}

/// A source with its limits.
pub fn source(
    name: String,
    store: &Arc<dyn Store>,
    settings: SourceSettings,
    rate: Option<Rate>,
    source: Arc<dyn Source>,
) -> FeedSource {
    let limits = UpstreamLimits {
        name: name.clone(),
        kind: UpstreamKind::Source,
        timeout: settings.timeout,
        concurrency: settings.concurrency,
        rate,
        failures: 40,
    };
    FeedSource { name, settings, upstream: Arc::new(Upstream::new(limits, store.clone())), source }
}

/// Feeds whose records are made up.
pub fn computed(jobs: &Jobs, lock: Duration) -> Feed {
    let store = jobs.store();
    let sources = (0..SOURCES).map(|number| {
        let name = source_name(number);
        source(name.clone(), store, settings(lock), None, Arc::new(Computed(name)))
    });
    Feed::new(jobs.clone(), sources)
}

/// The queues of a feed, with a witness around the handler of pages.
pub fn witnessed(feed: &Feed, around: impl Fn(Arc<dyn Handler>) -> Arc<dyn Handler>) -> Vec<QueueSpec> {
    let mut queues = feed.queues();
    for spec in &mut queues {
        if spec.name == WORK_ITEMS {
            spec.handler = around(Arc::new(Witness(spec.handler.clone())));
            // All sources share the few places that a process has.
            spec.concurrency = 4;
        }
    }
    queues
}

/// Says which delivery settled a page.
struct Witness(Arc<dyn Handler>);

#[async_trait]
impl Handler for Witness {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let mut done = self.0.handle(delivery).await?;
        let settled = NewEvent::new(format!("page:{}", delivery.job.key), "page_settled")
            .reason(delivery.claim.fence.to_string());
        done.events.push(settled.clone());
        done.otherwise.push(settled);
        Ok(done)
    }

    fn died(&self, job: &Job, error: &str) -> Done {
        self.0.died(job, error)
    }
}
