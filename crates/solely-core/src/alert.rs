//! Alerts: what an operator should look at, judged by the server itself.
//!
//! A share of failures is taken over the last five minutes, and only of at least
//! [`SAMPLES_MIN`] samples; a gauge is as it is now. An alert says since when it fires. Each system adds
//! its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::clock::{Clock, Timestamp};
use crate::error::StoreError;
use crate::feed::Feed;
use crate::metrics::Metrics;
use crate::store::Store;
use crate::upstream::{UpstreamState, Upstreams};

/// A share says nothing of fewer samples than this.
pub const SAMPLES_MIN: u64 = 20;
/// How far back shares look,
const WINDOW: Duration = Duration::from_secs(300);
/// in steps of this.
const STEP: Duration = Duration::from_secs(10);

/// How many of the last samples were failures.
#[derive(Default)]
pub struct Share {
    steps: Mutex<VecDeque<Step>>,
}

struct Step {
    began: Instant,
    total: u64,
    failed: u64,
}

impl Share {
    /// Counts a sample.
    pub fn record(&self, failed: bool) {
        let (mut steps, now) = (self.steps.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        forget(&mut steps, now);
        if steps.back().is_none_or(|step| now.saturating_duration_since(step.began) >= STEP) {
            steps.push_back(Step { began: now, total: 0, failed: 0 });
        }
        if let Some(step) = steps.back_mut() {
            step.total += 1;
            step.failed += u64::from(failed);
        }
    }

    /// The share of failures, if there are enough samples to say.
    pub fn value(&self) -> Option<f64> {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut steps, Instant::now());
        let (total, failed) =
            steps.iter().fold((0, 0), |(total, failed), step| (total + step.total, failed + step.failed));
        #[expect(clippy::cast_precision_loss, reason = "five minutes of samples have room in it")]
        let share = failed as f64 / total.max(1) as f64;
        (total >= SAMPLES_MIN).then_some(share)
    }
}

fn forget(steps: &mut VecDeque<Step>, now: Instant) {
    while steps.front().is_some_and(|step| now.saturating_duration_since(step.began) > WINDOW) {
        steps.pop_front();
    }
}

/// One alert, firing or not.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Alert {
    /// Its name.
    pub name: &'static str,
    /// Whether it fires.
    pub firing: bool,
    /// What was measured.
    pub value: f64,
    /// It fires above this.
    pub threshold: f64,
    /// Since when it fires.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub since: Option<Timestamp>,
    /// What it means, and what to do.
    pub message: String,
}

/// The alerts of one process.
#[derive(Clone)]
pub struct Alerts {
    metrics: Arc<Metrics>,
    queue_depth: u64,
    firing: Arc<Mutex<BTreeMap<&'static str, Timestamp>>>,
}

impl Alerts {
    /// Alerts; a queue is deep with more than so many jobs that wait.
    pub fn new(metrics: Arc<Metrics>, queue_depth: u64) -> Self {
        Self { metrics, queue_depth, firing: Arc::default() }
    }

    /// Every alert as it stands.
    pub async fn evaluate(
        &self,
        store: &dyn Store,
        upstreams: &Upstreams,
        feed: &Feed,
    ) -> Result<Vec<Alert>, StoreError> {
        let stuck = feed.stuck().await?;
        let queues = store.queues().await?;
        let deepest = queues.iter().max_by_key(|queue| queue.ready);
        let open = upstreams.status(store).await?;
        let open: Vec<&str> =
            open.iter().filter(|one| one.state == UpstreamState::Open).map(|one| one.name.as_str()).collect();
        let reserve = &self.metrics.reserve;
        let shares = [self.metrics.lock_failures().value(), reserve.lock_failures().value()];
        let share = shares.into_iter().flatten().reduce(f64::max);
        let failing = reserve.failures().value();
        let lag = reserve.lag();
        #[expect(clippy::cast_precision_loss, reason = "counts of this size have room in it")]
        let number = |count: u64| count as f64;
        Ok(vec![
            self.judge(
                "lock_failure_rate",
                share.unwrap_or(0.0),
                0.05,
                share.map_or_else(
                    || format!("Fewer than {SAMPLES_MIN} leases were asked for in five minutes."),
                    |share| {
                        format!(
                            "{:.1} % of leases or boxes asked for could not be got hold of: look at the store.",
                            share * 100.0
                        )
                    },
                ),
            ),
            self.judge(
                "reservation_failure_rate",
                failing.unwrap_or(0.0),
                0.1,
                failing.map_or_else(
                    || format!("Fewer than {SAMPLES_MIN} reservations were asked for in five minutes."),
                    |share| format!("{:.1} % of reservations failed: look at the store.", share * 100.0),
                ),
            ),
            self.judge(
                "cleanup_lag",
                lag.as_secs_f64(),
                60.0,
                format!(
                    "The oldest hold whose time is over waits for {} s to be swept: is the sweeper running?",
                    lag.as_secs()
                ),
            ),
            self.judge(
                "inventory_inconsistency",
                number(reserve.drift()),
                0.0,
                if reserve.drift() == 0 {
                    "Copies of quantities agree with the store.".to_owned()
                } else {
                    format!("Copies of quantities differ by {} boxes; they are repaired.", reserve.drift())
                },
            ),
            self.judge(
                "queue_depth",
                deepest.map_or(0.0, |queue| number(queue.ready)),
                number(self.queue_depth),
                deepest.map_or_else(
                    || "There are no queues.".to_owned(),
                    |queue| {
                        format!(
                            "{} jobs wait in `{}`: are there workers, and does its upstream answer?",
                            queue.ready, queue.name
                        )
                    },
                ),
            ),
            self.judge(
                "breaker_open",
                number(open.len() as u64),
                0.0,
                if open.is_empty() {
                    "Every upstream is called.".to_owned()
                } else {
                    format!("{} failed too often and is left alone for now.", open.join(", "))
                },
            ),
            self.judge(
                "stuck_partitions",
                number(stuck.len() as u64),
                0.0,
                stuck.first().map_or_else(
                    || "Every partition of a running feed goes on.".to_owned(),
                    |of| {
                        let more = if stuck.len() > 1 { " and others do" } else { " does" };
                        format!(
                            "`{}` of run {}{more} not go on: does its source answer?",
                            of.partition, of.run
                        )
                    },
                ),
            ),
        ])
    }

    fn judge(&self, name: &'static str, value: f64, threshold: f64, message: String) -> Alert {
        let (firing, mut since) =
            (value > threshold, self.firing.lock().unwrap_or_else(PoisonError::into_inner));
        let since = if firing {
            Some(*since.entry(name).or_insert_with(|| {
                tracing::warn!(event = "alert_firing", alert = name, message);
                Clock::system().now()
            }))
        } else {
            if since.remove(name).is_some() {
                tracing::info!(event = "alert_resolved", alert = name);
            }
            None
        };
        Alert { name, firing, value, threshold, since, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_share_needs_samples_and_forgets_them_after_five_minutes() {
        let share = Share::default();
        for n in 0..19 {
            share.record(n < 2);
        }
        assert_eq!(share.value(), None);
        share.record(false);
        assert_eq!(share.value(), Some(0.1));
        tokio::time::advance(WINDOW + STEP).await;
        assert_eq!(share.value(), None);
    }
}
