//! What is counted, in sums that a person follows: read from what `/metrics` says, so that the two never
//! disagree.

/// A sum: its name, the metric, and what a line's labels must have.
type Sum = (&'static str, &'static str, &'static [&'static str]);

const SUMS: [Sum; 26] = [
    ("places", "solely_enrich_cache_total", &[]),
    ("placesMissed", "solely_enrich_cache_total", &["status=\"MISS\""]),
    ("lookups", "solely_enrich_lookup_seconds_count", &[]),
    ("lookupSeconds", "solely_enrich_lookup_seconds_sum", &[]),
    ("lookupsShared", "solely_jobs_enqueued_total", &["queue=\"enrich:", "outcome=\"duplicate\""]),
    ("patches", "solely_enrich_patches_total", &[]),
    ("searches", "solely_products_searches_total", &[]),
    ("searchesFresh", "solely_products_searches_total", &["state=\"fresh\""]),
    ("searchesStale", "solely_products_searches_total", &["state=\"stale\""]),
    ("pluginCalls", "solely_products_calls_total", &[]),
    ("reserveAsked", "solely_reserve_decided_total", &["operation=\"reserve\""]),
    ("reserved", "solely_reserve_decided_total", &["operation=\"reserve\"", "outcome=\"done\""]),
    ("paid", "solely_reserve_decided_total", &["operation=\"confirm\"", "outcome=\"done\""]),
    ("collected", "solely_reserve_decided_total", &["operation=\"collect\"", "outcome=\"done\""]),
    ("cancelled", "solely_reserve_decided_total", &["operation=\"cancel\"", "outcome=\"done\""]),
    ("expired", "solely_reserve_decided_total", &["operation=\"expire\"", "outcome=\"done\""]),
    ("records", "solely_feed_records_total", &[]),
    ("pages", "solely_feed_pages_total", &["outcome=\"fetched\""]),
    ("pagesFailed", "solely_feed_pages_total", &["outcome=\"failed\""]),
    ("jobsMade", "solely_jobs_enqueued_total", &["outcome=\"created\""]),
    ("jobsShared", "solely_jobs_enqueued_total", &["outcome=\"duplicate\""]),
    ("jobsDone", "solely_jobs_settled_total", &["outcome=\"completed\""]),
    ("jobsRetried", "solely_jobs_settled_total", &["outcome=\"retried\""]),
    ("jobsDead", "solely_jobs_settled_total", &["outcome=\"dead\""]),
    ("jobsRescued", "solely_jobs_rescued_total", &[]),
    ("leases", "solely_leases_acquired_total", &["outcome=\"acquired\""]),
];

/// What calls there were of upstreams, which know it themselves.
const OTHERS: [&str; 2] = ["calls", "callsFailed"];

/// All of them at one instant, since the process began.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Totals {
    sums: [f64; SUMS.len()],
    others: [f64; OTHERS.len()],
}

impl Totals {
    /// Reads Prometheus text.
    pub(super) fn read(text: &str, calls: u64, failures: u64) -> Self {
        let mut totals = Self::default();
        #[expect(clippy::cast_precision_loss, reason = "counts of this size have room in it")]
        let others = [calls as f64, failures as f64];
        totals.others = others;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            for (sum, (_, metric, needed)) in totals.sums.iter_mut().zip(SUMS) {
                if name == metric && needed.iter().all(|label| labels.contains(label)) {
                    *sum += value.parse::<f64>().unwrap_or(0.0);
                }
            }
        }
        totals
    }

    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        SUMS.into_iter().map(|(name, ..)| name).chain(OTHERS)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = f64> {
        self.sums.iter().chain(&self.others).copied()
    }

    /// By name.
    pub(super) fn object(&self) -> serde_json::Value {
        Self::names()
            .zip(self.values())
            .map(|(name, value)| (name.to_owned(), serde_json::Value::from(value)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use solely_core::metrics::Metrics;

    use super::*;

    #[test]
    fn lines_are_added_up_by_their_labels() {
        let text = "# HELP x\nsolely_enrich_cache_total{provider=\"a\",status=\"MISS\"} 2\n\
                    solely_enrich_cache_total{provider=\"b\",status=\"FOUND\"} 3\nsolely_jobs_rescued_total 4\n";
        let totals = Totals::read(text, 7, 1).object();
        assert_eq!(totals["places"], 5.0);
        assert_eq!(totals["placesMissed"], 2.0);
        assert_eq!(totals["jobsRescued"], 4.0);
        assert_eq!((&totals["calls"], &totals["callsFailed"]), (&7.0.into(), &1.0.into()));
    }

    /// A metric that is renamed is noticed here.
    #[test]
    fn every_sum_is_of_a_metric_that_is_there() {
        let metrics = Metrics::new(&["enrich:p".to_owned()]);
        let _ = (metrics.provider("p"), metrics.app("a"));
        metrics.sources(["s"]);
        let text = metrics.text();
        for (name, metric, labels) in SUMS {
            let there = |line: &str| {
                line.split(['{', ' ']).next() == Some(metric)
                    && labels.iter().all(|label| line.contains(label))
            };
            assert!(text.lines().any(there), "{name}: {metric} {labels:?}");
        }
    }
}
