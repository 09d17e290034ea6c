//! Metrics, with a registry of their own: library users and parallel tests have theirs.

mod reserve;

use std::collections::HashSet;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

pub use reserve::ReserveMetrics;

use crate::alert::Share;
use crate::error::StoreError;
use crate::job::Enqueued;
use crate::lease::WaitedLease;
use crate::queue::Queue;
use crate::worker::Failure;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabel {
    queue: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueOutcome {
    queue: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TierLabel {
    tier: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProviderLabel {
    provider: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProviderStatus {
    provider: String,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProviderOutcome {
    provider: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProviderReason {
    provider: String,
    reason: &'static str,
}

/// What is counted of one provider: handles, so that counting is an addition.
#[derive(Clone)]
pub struct EnrichMetrics {
    /// Entries read: found, not found, missing.
    pub cache: [Counter; 3],
    /// Leases asked for: acquired, held, error.
    pub lock: [Counter; 3],
    /// Lookups that were not made, by [`SKIPS`].
    pub skipped: [Counter; 7],
    /// Lookups that the queue had already.
    pub deduplicated: Counter,
    /// From when a lookup was made to its result.
    pub lookup_seconds: Histogram,
    /// Patches told to subscribers.
    pub patches: Counter,
}

/// What is counted of one app's products: handles, so that counting is an addition.
#[derive(Clone)]
pub struct ProductMetrics {
    /// Searches that were answered, by [`PRODUCT_STATES`].
    pub searches: [Counter; 6],
    /// Calls of the plugin, by [`PRODUCT_CALLS`].
    pub calls: [Counter; 4],
    /// How long they took.
    pub call_seconds: Histogram,
    /// Refreshes that were queued.
    pub refreshes: Counter,
}

/// Where an answer comes from.
pub const PRODUCT_STATES: [&str; 6] = ["fresh", "stale", "cacheOnly", "empty", "refreshed", "filled"];
/// What came of a call.
pub const PRODUCT_CALLS: [&str; 4] = ["cached", "kept", "failed", "timeout"];

#[derive(Default)]
struct ProductFamilies {
    searches: Family<AppState, Counter>,
    calls: Family<AppOutcome, Counter>,
    refreshes: Family<AppLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AppLabel {
    app: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AppState {
    app: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AppOutcome {
    app: String,
    outcome: &'static str,
}

const CACHE_STATUSES: [&str; 3] = ["FOUND", "NOT_FOUND", "MISS"];
const LOCK_OUTCOMES: [&str; 3] = ["acquired", "held", "error"];
/// Why a lookup was not made.
pub const SKIPS: [&str; 7] = [
    "flag_disabled",
    "no_results",
    "redis_down",
    "already_cached",
    "lock_held",
    "lock_error",
    "queue_unavailable",
];

#[derive(Default)]
struct EnrichFamilies {
    cache: Family<ProviderStatus, Counter>,
    lock: Family<ProviderOutcome, Counter>,
    skipped: Family<ProviderReason, Counter>,
    deduplicated: Family<ProviderLabel, Counter>,
    patches: Family<ProviderLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceOutcome {
    source: String,
    outcome: &'static str,
}

/// How a delivery ended, as counted.
pub const SETTLEMENTS: [&str; 7] =
    ["completed", "retried", "postponed", "released", "dead", "skipped", "stale"];
const ENQUEUES: [&str; 4] = ["created", "again", "duplicate", "window"];
const ACQUISITIONS: [&str; 4] = ["acquired", "held", "too_many", "error"];

const TIERS: [&str; 3] = ["memory", "redis", "store"];
const REDIS_CALLS: [&str; 4] = ["ok", "failed", "timeout", "refused"];
const FEED_PAGES: [&str; 4] = ["fetched", "mismatch", "postponed", "failed"];
const HINTS: [&str; 4] = ["taken", "held", "vanished", "error"];

/// Every metric of the primitives, registered at zero.
pub struct Metrics {
    registry: Registry,
    /// Queues that are shown even when they are empty.
    known: Vec<String>,
    enqueued: Family<QueueOutcome, Counter>,
    settled: Family<QueueOutcome, Counter>,
    run_seconds: Family<QueueLabel, Histogram>,
    wait_seconds: Family<QueueLabel, Histogram>,
    depth: Family<QueueLabel, Gauge>,
    dead: Family<QueueLabel, Gauge>,
    oldest_age_ms: Family<QueueLabel, Gauge>,
    rescued: Counter,
    leases: Family<Outcome, Counter>,
    lease_wait_seconds: Histogram,
    pruned: Counter,
    upkeep_failures: Counter,
    /// Of reserve.
    pub reserve: ReserveMetrics,
    cache_reads: Family<TierLabel, Counter>,
    memory_reads: Counter,
    redis_up: Gauge,
    redis_calls: Family<Outcome, Counter>,
    redis_connections: Counter,
    redis_cleanings: Counter,
    redis_changes: Counter,
    hints: Family<Outcome, Counter>,
    enrich: EnrichFamilies,
    lookup_seconds: Family<ProviderLabel, Histogram>,
    products: ProductFamilies,
    plugin_seconds: Family<AppLabel, Histogram>,
    feed_pages: Family<SourceOutcome, Counter>,
    feed_records: Family<SourceLabel, Counter>,
    lock_failures: Share,
}

/// The encoder writes OpenMetrics, in which a counter is described without the `_total` that
/// its samples have; the older text format describes it by its full name and has no end mark.
fn classic(open_metrics: &str) -> String {
    let counters: HashSet<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut out = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines().filter(|line| *line != "# EOF") {
        let described = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
        let name = described.and_then(|rest| rest.split(' ').next()).filter(|name| counters.contains(name));
        match name {
            Some(name) => out.push_str(&line.replacen(name, &format!("{name}_total"), 1)),
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_5, 2.5, 14))
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl Metrics {
    /// Metrics with every label of these queues at zero.
    pub fn new(queues: &[String]) -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            known: queues.to_vec(),
            enqueued: Family::default(),
            settled: Family::default(),
            run_seconds: Family::new_with_constructor(seconds),
            wait_seconds: Family::new_with_constructor(seconds),
            depth: Family::default(),
            dead: Family::default(),
            oldest_age_ms: Family::default(),
            rescued: Counter::default(),
            leases: Family::default(),
            lease_wait_seconds: seconds(),
            pruned: Counter::default(),
            upkeep_failures: Counter::default(),
            reserve: ReserveMetrics::default(),
            cache_reads: Family::default(),
            memory_reads: Counter::default(),
            redis_up: Gauge::default(),
            redis_calls: Family::default(),
            redis_connections: Counter::default(),
            redis_cleanings: Counter::default(),
            redis_changes: Counter::default(),
            hints: Family::default(),
            enrich: EnrichFamilies::default(),
            lookup_seconds: Family::new_with_constructor(seconds),
            products: ProductFamilies::default(),
            plugin_seconds: Family::new_with_constructor(seconds),
            feed_pages: Family::default(),
            feed_records: Family::default(),
            lock_failures: Share::default(),
        };
        metrics.register();
        metrics.memory_reads = metrics.cache_reads.get_or_create_owned(&TierLabel { tier: "memory" });
        metrics.zero(queues);
        metrics
    }

    fn register(&mut self) {
        let r = self.registry.sub_registry_with_prefix("solely");
        r.register("jobs_enqueued", "Jobs asked for, by outcome", self.enqueued.clone());
        r.register("jobs_settled", "Deliveries ended, by outcome", self.settled.clone());
        r.register("job_run_seconds", "Time per delivery", self.run_seconds.clone());
        r.register("job_wait_seconds", "From due to claimed", self.wait_seconds.clone());
        r.register("queue_depth", "Jobs that wait", self.depth.clone());
        r.register("queue_dead", "Dead letters", self.dead.clone());
        r.register(
            "queue_oldest_age_ms",
            "How long the oldest due job has been due",
            self.oldest_age_ms.clone(),
        );
        r.register("jobs_rescued", "Jobs taken back from workers that were gone", self.rescued.clone());
        r.register("leases_acquired", "Leases asked for, by outcome", self.leases.clone());
        r.register(
            "lease_wait_seconds",
            "Time to get, or not to get, a lease",
            self.lease_wait_seconds.clone(),
        );
        r.register("pruned_rows", "Rows deleted past their retention", self.pruned.clone());
        r.register("upkeep_failures", "Rounds of housekeeping that failed", self.upkeep_failures.clone());
        self.register_copies();
        self.register_enrich();
        self.register_products();
    }

    fn register_products(&mut self) {
        let r = self.registry.sub_registry_with_prefix("solely_products");
        r.register(
            "searches",
            "Searches answered, by where the answer comes from",
            self.products.searches.clone(),
        );
        r.register("calls", "Calls of plugins, by outcome", self.products.calls.clone());
        r.register("call_seconds", "Time per call of a plugin", self.plugin_seconds.clone());
        r.register("refreshes_queued", "Refreshes behind stale answers", self.products.refreshes.clone());
    }

    /// What is counted of an app's products, every label at zero.
    pub fn app(&self, name: &str) -> ProductMetrics {
        let (of, app) = (&self.products, || name.to_owned());
        ProductMetrics {
            searches: PRODUCT_STATES
                .map(|state| of.searches.get_or_create(&AppState { app: app(), state }).clone()),
            calls: PRODUCT_CALLS
                .map(|outcome| of.calls.get_or_create(&AppOutcome { app: app(), outcome }).clone()),
            call_seconds: self.plugin_seconds.get_or_create(&AppLabel { app: app() }).clone(),
            refreshes: of.refreshes.get_or_create(&AppLabel { app: app() }).clone(),
        }
    }

    fn register_copies(&mut self) {
        let r = self.registry.sub_registry_with_prefix("solely");
        self.reserve.register(r);
        r.register("cache_reads", "Entries read, by the tier that had to answer", self.cache_reads.clone());
        r.register("redis_up", "1 while Redis answers and its copies are trusted", self.redis_up.clone());
        r.register("redis_calls", "Round trips to Redis, by outcome", self.redis_calls.clone());
        r.register("redis_connections", "Connections made to Redis", self.redis_connections.clone());
        r.register(
            "redis_cleanings",
            "Times that the copies in Redis could not be trusted and were dropped",
            self.redis_cleanings.clone(),
        );
        r.register("redis_changes", "Changes that were copied to Redis behind", self.redis_changes.clone());
        r.register("hints", "Hints asked for, by outcome", self.hints.clone());
        r.register("feed_pages", "Messages of pages, by source and outcome", self.feed_pages.clone());
        r.register("feed_records", "Records fetched, by source", self.feed_records.clone());
    }

    fn register_enrich(&mut self) {
        let r = self.registry.sub_registry_with_prefix("solely_enrich");
        r.register("cache", "Places read, by what their entry says", self.enrich.cache.clone());
        r.register("lock", "Leases of lookups asked for, by outcome", self.enrich.lock.clone());
        r.register("skipped", "Lookups that were not made, by reason", self.enrich.skipped.clone());
        r.register("deduplicated", "Lookups that the queue had already", self.enrich.deduplicated.clone());
        r.register(
            "lookup_seconds",
            "From when a lookup was made to its result",
            self.lookup_seconds.clone(),
        );
        r.register("patches", "Results told to subscribers", self.enrich.patches.clone());
    }

    /// What is counted of a provider, every label at zero.
    pub fn provider(&self, name: &str) -> EnrichMetrics {
        let label = || ProviderLabel { provider: name.to_owned() };
        let of = &self.enrich;
        EnrichMetrics {
            cache: CACHE_STATUSES.map(|status| {
                of.cache.get_or_create(&ProviderStatus { provider: name.to_owned(), status }).clone()
            }),
            lock: LOCK_OUTCOMES.map(|outcome| {
                of.lock.get_or_create(&ProviderOutcome { provider: name.to_owned(), outcome }).clone()
            }),
            skipped: SKIPS.map(|reason| {
                of.skipped.get_or_create(&ProviderReason { provider: name.to_owned(), reason }).clone()
            }),
            deduplicated: of.deduplicated.get_or_create(&label()).clone(),
            lookup_seconds: self.lookup_seconds.get_or_create(&label()).clone(),
            patches: of.patches.get_or_create(&label()).clone(),
        }
    }

    /// Every label of these sources of feeds at zero.
    pub fn sources<'a>(&self, sources: impl IntoIterator<Item = &'a str>) {
        for source in sources {
            for outcome in FEED_PAGES {
                let _ = self.feed_pages.get_or_create(&SourceOutcome { source: source.to_owned(), outcome });
            }
            let _ = self.feed_records.get_or_create(&SourceLabel { source: source.to_owned() });
        }
    }

    pub(crate) fn feed_page(&self, source: &str, records: Result<usize, &Failure>) {
        let outcome = match records {
            Ok(_) => "fetched",
            Err(Failure::Postponed { .. }) => "postponed",
            Err(Failure::Transient { .. } | Failure::Permanent { .. }) => "failed",
        };
        self.feed_pages.get_or_create(&SourceOutcome { source: source.to_owned(), outcome }).inc();
        let fetched = records.unwrap_or(0) as u64;
        self.feed_records.get_or_create(&SourceLabel { source: source.to_owned() }).inc_by(fetched);
    }

    pub(crate) fn feed_mismatch(&self, source: &str) {
        let label = SourceOutcome { source: source.to_owned(), outcome: "mismatch" };
        self.feed_pages.get_or_create(&label).inc();
    }

    fn zero(&self, queues: &[String]) {
        for outcome in ACQUISITIONS {
            let _ = self.leases.get_or_create(&Outcome { outcome });
        }
        for tier in TIERS {
            let _ = self.cache_reads.get_or_create(&TierLabel { tier });
        }
        for outcome in REDIS_CALLS {
            let _ = self.redis_calls.get_or_create(&Outcome { outcome });
        }
        for outcome in HINTS {
            let _ = self.hints.get_or_create(&Outcome { outcome });
        }
        for queue in queues {
            let label = QueueLabel { queue: queue.clone() };
            for outcome in ENQUEUES {
                let _ = self.enqueued.get_or_create(&QueueOutcome { queue: queue.clone(), outcome });
            }
            for outcome in SETTLEMENTS {
                let _ = self.settled.get_or_create(&QueueOutcome { queue: queue.clone(), outcome });
            }
            let _ = (self.run_seconds.get_or_create(&label), self.wait_seconds.get_or_create(&label));
            let _ = (self.depth.get_or_create(&label), self.dead.get_or_create(&label));
            let _ = self.oldest_age_ms.get_or_create(&label);
        }
    }

    /// All of it in the Prometheus text format (0.0.4).
    pub fn text(&self) -> String {
        let mut open_metrics = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut open_metrics, &self.registry);
        classic(&open_metrics)
    }

    pub(crate) fn enqueued(&self, queue: &str, outcome: &Enqueued) {
        let outcome = match outcome {
            Enqueued::Created => "created",
            Enqueued::Again { .. } => "again",
            Enqueued::Duplicate { .. } => "duplicate",
            Enqueued::InWindow { .. } => "window",
        };
        self.enqueued.get_or_create(&QueueOutcome { queue: queue.to_owned(), outcome }).inc();
    }

    pub(crate) fn settled(&self, queue: &str, outcome: &'static str) {
        self.settled.get_or_create(&QueueOutcome { queue: queue.to_owned(), outcome }).inc();
    }

    pub(crate) fn delivered(&self, queue: &str, waited: Duration, ran: Duration) {
        let label = QueueLabel { queue: queue.to_owned() };
        self.wait_seconds.get_or_create(&label).observe(waited.as_secs_f64());
        self.run_seconds.get_or_create(&label).observe(ran.as_secs_f64());
    }

    pub(crate) fn rescued(&self, jobs: usize) {
        self.rescued.inc_by(jobs as u64);
    }

    pub(crate) fn pruned(&self, rows: u64) {
        self.pruned.inc_by(rows);
    }

    pub(crate) fn upkeep_failed(&self) {
        self.upkeep_failures.inc();
    }

    pub(crate) fn lease_acquired(&self, outcome: &Result<WaitedLease, StoreError>, waited: Duration) {
        self.lock_failures.record(matches!(outcome, Err(_) | Ok(WaitedLease::TooManyWaiting)));
        let outcome = match outcome {
            Ok(WaitedLease::Acquired(_)) => "acquired",
            Ok(WaitedLease::Held(_)) => "held",
            Ok(WaitedLease::TooManyWaiting) => "too_many",
            Err(_) => "error",
        };
        self.leases.get_or_create(&Outcome { outcome }).inc();
        self.lease_wait_seconds.observe(waited.as_secs_f64());
    }

    /// The same as one entry of the memory tier, without looking its counter up.
    pub(crate) fn memory_read(&self) {
        self.memory_reads.inc();
    }

    pub(crate) fn cache_read(&self, tier: &'static str, entries: usize) {
        if entries > 0 {
            self.cache_reads.get_or_create(&TierLabel { tier }).inc_by(entries as u64);
        }
    }

    /// Whether the companion answers and is trusted.
    pub fn redis_up(&self, up: bool) {
        self.redis_up.set(i64::from(up));
    }

    /// One round trip: `ok`, `failed`, `timeout`, or `refused` while nothing is asked of it.
    pub fn redis_called(&self, outcome: &'static str) {
        self.redis_calls.get_or_create(&Outcome { outcome }).inc();
    }

    /// A connection was made.
    pub fn redis_connected(&self) {
        self.redis_connections.inc();
    }

    /// Copies could not be trusted and were dropped.
    pub fn redis_cleaned(&self) {
        self.redis_cleanings.inc();
    }

    /// Changes were copied behind those who made them.
    pub fn redis_followed(&self, changes: usize) {
        self.redis_changes.inc_by(changes as u64);
    }

    pub(crate) fn hinted(&self, outcome: &'static str) {
        self.hints.get_or_create(&Outcome { outcome }).inc();
    }

    /// How many leases of late could not be judged.
    pub fn lock_failures(&self) -> &Share {
        &self.lock_failures
    }

    /// The queues that are counted whether or not they have anything.
    pub fn known_queues(&self) -> &[String] {
        &self.known
    }

    /// How many jobs of a queue waited when they were last counted.
    pub(crate) fn queue_depth(&self, queue: &str) -> i64 {
        self.depth.get_or_create(&QueueLabel { queue: queue.to_owned() }).get()
    }

    /// Sets the gauges of the queues. One that is not among them is empty.
    pub fn queues(&self, queues: &[Queue]) {
        for family in [&self.depth, &self.dead, &self.oldest_age_ms] {
            family.clear();
            for queue in &self.known {
                let _ = family.get_or_create(&QueueLabel { queue: queue.clone() });
            }
        }
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for queue in queues {
            let label = QueueLabel { queue: queue.name.clone() };
            self.depth.get_or_create(&label).set(gauge(queue.ready));
            self.dead.get_or_create(&label).set(gauge(queue.dead));
            self.oldest_age_ms.get_or_create(&label).set(gauge(queue.oldest_age_ms));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_there_at_zero_in_the_classic_format() {
        let text = Metrics::new(&["queue".to_owned()]).text();
        for line in [
            "# TYPE solely_jobs_settled_total counter",
            "solely_jobs_settled_total{queue=\"queue\",outcome=\"dead\"} 0",
            "solely_leases_acquired_total{outcome=\"held\"} 0",
            "solely_queue_depth{queue=\"queue\"} 0",
            "solely_job_run_seconds_count{queue=\"queue\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(!text.contains("# EOF"));
    }

    #[test]
    fn a_queue_that_was_emptied_is_shown_empty() {
        let metrics = Metrics::new(&["queue".to_owned()]);
        metrics.queues(&[Queue { ready: 5, ..Queue::empty("queue".to_owned()) }]);
        assert!(metrics.text().contains("solely_queue_depth{queue=\"queue\"} 5"));
        metrics.queues(&[]);
        assert!(metrics.text().contains("solely_queue_depth{queue=\"queue\"} 0"));
    }
}
