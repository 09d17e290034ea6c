//! What enrich decides, said as the documents say it: log events whose prefix is the provider's name,
//! under the target `solely::decision`, and counters.

use std::time::Duration;

use tracing::{debug, info, warn};

use super::job::Written;
use super::{Resolved, Status};
use crate::id::JobId;
use crate::metrics::{EnrichMetrics, Metrics, SKIPS};

/// A place in a request.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) request_id: &'a str,
    pub(super) place_id: &'a str,
    pub(super) name: &'a str,
    pub(super) city: Option<&'a str>,
}

/// Why no lookup was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Skip {
    FlagDisabled,
    NoResults,
    RedisDown,
    AlreadyCached,
    LockHeld,
    LockError,
    QueueUnavailable,
}

impl Skip {
    const fn word(self) -> &'static str {
        SKIPS[self as usize]
    }
}

/// What became of the lease of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock<'a> {
    Acquired,
    Held,
    Error(&'a str),
}

/// The decisions about one provider's places.
pub(super) struct Decisions {
    names: Names,
    pub(super) counted: EnrichMetrics,
}

/// The names of the events, made once.
struct Names {
    cache_hit: String,
    cache_miss: String,
    lock_acquired: String,
    lock_skipped: String,
    lock_error: String,
    lock_failed: String,
    job_enqueued: String,
    job_deduplicated: String,
    enqueue_skipped: String,
    cache_written: String,
    lookup_failed: String,
}

impl Decisions {
    pub(super) fn new(provider: &str, metrics: &Metrics) -> Self {
        let event = |what: &str| format!("{provider}_{what}");
        let names = Names {
            cache_hit: event("cache_hit"),
            cache_miss: event("cache_miss"),
            lock_acquired: event("lock_acquired"),
            lock_skipped: event("lock_skipped"),
            lock_error: event("lock_error"),
            lock_failed: event("lock_failed"),
            job_enqueued: event("job_enqueued"),
            job_deduplicated: event("job_deduplicated"),
            enqueue_skipped: event("enqueue_skipped"),
            cache_written: event("cache_written"),
            lookup_failed: event("lookup_failed"),
        };
        Self { names, counted: metrics.provider(provider) }
    }

    /// No lookup at all: the provider is off, or there is nothing to look up.
    pub(super) fn skipped_all(&self, skip: Skip, request_id: &str) {
        self.counted.skipped[skip as usize].inc();
        let event = self.names.enqueue_skipped.as_str();
        info!(target: "solely::decision", event, requestId = request_id, reason = skip.word());
    }

    pub(super) fn hit(&self, of: Subject<'_>, resolved: &Resolved) {
        let status = resolved.status.word();
        self.counted.cache[usize::from(resolved.status == Status::NotFound)].inc();
        let event = self.names.cache_hit.as_str();
        info!(target: "solely::decision", event, requestId = of.request_id, placeId = of.place_id,
              restaurantName = of.name, status);
    }

    /// It is known, so no lookup is made.
    pub(super) fn already_cached(&self, of: Subject<'_>, resolved: &Resolved, age: Duration) {
        let status = resolved.status.word();
        self.counted.skipped[Skip::AlreadyCached as usize].inc();
        let (event, age_ms) = (self.names.enqueue_skipped.as_str(), crate::clock::millis(age));
        info!(target: "solely::decision", event, requestId = of.request_id, placeId = of.place_id,
              reason = Skip::AlreadyCached.word(), status, ageMs = age_ms, hasUrl = resolved.url.is_some());
    }

    pub(super) fn miss(&self, of: Subject<'_>) {
        self.counted.cache[2].inc();
        let event = self.names.cache_miss.as_str();
        info!(target: "solely::decision", event, requestId = of.request_id, placeId = of.place_id,
              restaurantName = of.name, cityText = of.city);
    }

    pub(super) fn lock(&self, of: Subject<'_>, lock: Lock<'_>) {
        let Subject { request_id, place_id, name, .. } = of;
        match lock {
            Lock::Acquired => {
                self.counted.lock[0].inc();
                let event = self.names.lock_acquired.as_str();
                info!(target: "solely::decision", event, requestId = request_id, placeId = place_id,
                      restaurantName = name);
            }
            Lock::Held => {
                self.counted.lock[1].inc();
                let event = self.names.lock_skipped.as_str();
                info!(target: "solely::decision", event, requestId = request_id, placeId = place_id,
                      restaurantName = name);
            }
            Lock::Error(error) => {
                self.counted.lock[2].inc();
                let event = self.names.lock_error.as_str();
                info!(target: "solely::decision", event, requestId = request_id, placeId = place_id,
                      restaurantName = name, lockError = error);
                let event = self.names.lock_failed.as_str();
                warn!(target: "solely::decision", event, requestId = request_id, placeId = place_id,
                      restaurantName = name, lockError = error);
            }
        }
    }

    /// A lookup was made; so many of the provider's are known to wait with it.
    pub(super) fn enqueued(&self, of: Subject<'_>, reason: &str, queue_size: i64) {
        let event = self.names.job_enqueued.as_str();
        debug!(target: "solely::decision", event, requestId = of.request_id, placeId = of.place_id,
               name = of.name, cityText = of.city, statusSet = "PENDING", reason, queueSize = queue_size);
    }

    pub(super) fn deduplicated(&self, of: Subject<'_>, job: JobId, by: Option<&str>) {
        self.counted.deduplicated.inc();
        let event = self.names.job_deduplicated.as_str();
        info!(target: "solely::decision", event, requestId = of.request_id, placeId = of.place_id,
              existingJobId = %job, existingRequestId = by);
    }

    pub(super) fn skipped(&self, of: Subject<'_>, skip: Skip) {
        self.counted.skipped[skip as usize].inc();
        let event = self.names.enqueue_skipped.as_str();
        info!(target: "solely::decision", event, requestId = of.request_id, placeId = of.place_id,
              reason = skip.word());
    }

    /// A lookup has been committed.
    pub(super) fn written(&self, place_id: &str, written: &Written) {
        let took = written.waited + written.began.elapsed();
        self.counted.lookup_seconds.observe(took.as_secs_f64());
        let (status, ttl) = (written.resolved.status.word(), written.ttl.as_secs());
        if written.resolved.is_failed() {
            let event = self.names.lookup_failed.as_str();
            warn!(target: "solely::decision", event, requestId = written.request_id, placeId = place_id);
        }
        let event = self.names.cache_written.as_str();
        info!(target: "solely::decision", event, requestId = written.request_id, placeId = place_id, status,
              ttlSeconds = ttl);
    }
}
