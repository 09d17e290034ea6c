//! What is counted of reserve.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::alert::Share;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationOutcome {
    operation: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Channel {
    channel: &'static str,
}

/// What is counted of reserve.
pub struct ReserveMetrics {
    decided: Family<OperationOutcome, Counter>,
    wait_seconds: Histogram,
    batch: Histogram,
    sweep_lag_ms: Gauge,
    sweep_seconds: Histogram,
    drift: Gauge,
    notifications: Family<Outcome, Counter>,
    pushed: Family<Channel, Counter>,
    lock_failures: Share,
    failures: Share,
}

const OPERATIONS: [&str; 11] = [
    "create", "change", "reserve", "confirm", "collect", "cancel", "extend", "accept", "expire", "join",
    "leave",
];
/// Why a reservation is not changed.
const ENDED: [&str; 5] = [
    "RESERVATION_NOT_FOUND",
    "RESERVATION_EXPIRED",
    "ALREADY_CANCELLED",
    "ALREADY_COMPLETED",
    "INVALID_STATE",
];
const CODES: [&str; 2] = ["WRONG_CODE", "TOO_MANY_REQUESTS"];
const REFUSALS: [&str; 6] = [
    "PICKUP_WINDOW_CLOSED",
    "BOX_UNAVAILABLE",
    "ACTIVE_RESERVATION_EXISTS",
    "INSUFFICIENT_INVENTORY",
    "PRICE_CHANGED",
    "BOX_NOT_FOUND",
];

impl Default for ReserveMetrics {
    fn default() -> Self {
        Self {
            decided: Family::default(),
            wait_seconds: super::seconds(),
            batch: Histogram::new(exponential_buckets(1.0, 2.0, 10)),
            sweep_lag_ms: Gauge::default(),
            sweep_seconds: super::seconds(),
            drift: Gauge::default(),
            notifications: Family::default(),
            pushed: Family::default(),
            lock_failures: Share::default(),
            failures: Share::default(),
        }
    }
}

impl ReserveMetrics {
    pub(super) fn register(&self, r: &mut Registry) {
        r.register("reserve_decided", "Requests decided, by operation and outcome", self.decided.clone());
        r.register("reserve_wait_seconds", "From a request to its verdict", self.wait_seconds.clone());
        r.register("reserve_batch", "Requests decided by one commit", self.batch.clone());
        let what = "How long the oldest hold whose time is over waits to be swept";
        r.register("reserve_sweep_lag_ms", what, self.sweep_lag_ms.clone());
        r.register(
            "reserve_sweep_seconds",
            "How long a round of the sweeper took",
            self.sweep_seconds.clone(),
        );
        let what = "Boxes by which copies of quantities differ from the store";
        r.register("reserve_inventory_drift", what, self.drift.clone());
        let what = "Attempts to deliver a notification by webhook, by outcome";
        r.register("reserve_notifications", what, self.notifications.clone());
        for outcome in ["delivered", "failed"] {
            let _ = self.notifications.get_or_create(&Outcome { outcome });
        }
        let what = "Messages to sockets that follow an inventory or a user's reservations";
        r.register("reserve_pushed", what, self.pushed.clone());
        for channel in ["inventory", "reservations"] {
            let _ = self.pushed.get_or_create(&Channel { channel });
        }
        for operation in OPERATIONS {
            for outcome in ["done", "failed", "not_in_time"] {
                let _ = self.decided.get_or_create(&OperationOutcome { operation, outcome });
            }
        }
        for outcome in REFUSALS {
            let _ = self.decided.get_or_create(&OperationOutcome { operation: "reserve", outcome });
        }
        for operation in ["confirm", "collect", "cancel", "extend", "accept"] {
            for outcome in ENDED {
                let _ = self.decided.get_or_create(&OperationOutcome { operation, outcome });
            }
        }
        for outcome in CODES {
            let _ = self.decided.get_or_create(&OperationOutcome { operation: "collect", outcome });
        }
    }

    /// A verdict: `done`, or a refusal's code.
    pub(crate) fn decided(&self, operation: &'static str, outcome: &'static str) {
        self.decided.get_or_create(&OperationOutcome { operation, outcome }).inc();
        if operation == "reserve" {
            self.failures.record(false);
            self.lock_failures.record(false);
        }
    }

    /// There is no verdict.
    pub(crate) fn failed(&self, operation: &'static str, in_time: bool) {
        let outcome = if in_time { "failed" } else { "not_in_time" };
        self.decided.get_or_create(&OperationOutcome { operation, outcome }).inc();
        if operation == "reserve" {
            self.failures.record(true);
            self.lock_failures.record(!in_time);
        }
    }

    /// An attempt to deliver a notification.
    pub(crate) fn notified(&self, outcome: &'static str) {
        self.notifications.get_or_create(&Outcome { outcome }).inc();
    }

    /// Messages to sockets of a channel.
    pub(crate) fn pushed(&self, channel: &'static str, messages: usize) {
        self.pushed.get_or_create(&Channel { channel }).inc_by(messages as u64);
    }

    pub(crate) fn waited(&self, waited: Duration) {
        self.wait_seconds.observe(waited.as_secs_f64());
    }

    pub(crate) fn batch(&self, requests: usize) {
        self.batch.observe(f64::from(u32::try_from(requests).unwrap_or(u32::MAX)));
    }

    pub(crate) fn sweep_lag(&self, lag: Duration) {
        self.sweep_lag_ms.set(crate::clock::millis(lag));
    }

    pub(crate) fn swept(&self, took: Duration) {
        self.sweep_seconds.observe(took.as_secs_f64());
    }

    /// How long the oldest hold whose time is over has waited to be swept.
    pub fn lag(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.sweep_lag_ms.get()).unwrap_or(0))
    }

    /// Boxes by which copies differ from the store.
    pub fn drift(&self) -> u64 {
        u64::try_from(self.drift.get()).unwrap_or(0)
    }

    /// Boxes by which copies were found to differ from the store.
    pub fn drifted(&self, boxes: u64) {
        self.drift.set(i64::try_from(boxes).unwrap_or(i64::MAX));
    }

    /// How many reservations of late failed. A refusal is not a failure.
    pub fn failures(&self) -> &Share {
        &self.failures
    }

    /// How many of late did not get hold of their item in time.
    pub fn lock_failures(&self) -> &Share {
        &self.lock_failures
    }
}
