//! Upstreams: whatever slow thing is called, as an object with a budget.
//!
//! Every call goes through [`Upstream::call`], in this order: the **breaker** (after a row of
//! failures calls are refused at once, then one is let through to see), the **concurrency**
//! of this process, the **pause** and the **rate** (both of the store, shared by all
//! instances), the **timeout**. A pause is the instant that a `Retry-After` named; it is
//! compared, not resumed, so it ends by itself.
//!
//! The shared rate is one row: evenly spaced slots a little below the limit, a burst of one,
//! unused slots forfeited. A slot is asked for only with a place to run in hand, and is not
//! taken if it is further away than the caller would wait, so at most `concurrency` slots per
//! process are ever granted ahead. Whoever comes too late for its slot (the process was held up)
//! forfeits it and takes another: calls that were apart do not arrive together.

pub mod breaker;
pub mod http;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::limits;
use crate::store::Store;
use breaker::{Breaker, Circuit};

/// A rate such as `5/s`, `100/m`, `10/500ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate {
    calls: u32,
    per_ms: u32,
}

impl Rate {
    /// So many calls in so long.
    pub fn new(calls: u32, per: Duration) -> Option<Self> {
        let per_ms = u32::try_from(per.as_millis()).ok()?;
        (calls > 0 && per_ms > 0).then_some(Self { calls, per_ms })
    }

    /// The time between two slots: a sixteenth more than even, so that a late start followed by a
    /// punctual one does not put one call too many into a window.
    pub fn spacing(self) -> Duration {
        let even_us = u64::from(self.per_ms) * 1_000 / u64::from(self.calls);
        Duration::from_micros((even_us + even_us / 16).max(1))
    }

    /// How late a slot may be used: two thirds of what the spacing leaves before a late call and
    /// those after it would be one too many in any window. The rest is for their way.
    pub fn lateness(self) -> Duration {
        Duration::from_micros(u64::from(self.per_ms) * 1_000 / 24)
    }
}

impl TryFrom<String> for Rate {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a rate such as 5/s, 100/m or 10/500ms");
        let (calls, per) = text.split_once('/').ok_or_else(wrong)?;
        let per = match per.trim() {
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3_600),
            other => {
                let millis = other.strip_suffix("ms").and_then(|n| n.parse().ok()).ok_or_else(wrong)?;
                Duration::from_millis(millis)
            }
        };
        calls.trim().parse().ok().and_then(|calls| Self::new(calls, per)).ok_or_else(wrong)
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        match rate.per_ms {
            1_000 => format!("{}/s", rate.calls),
            60_000 => format!("{}/m", rate.calls),
            3_600_000 => format!("{}/h", rate.calls),
            per_ms => format!("{}/{per_ms}ms", rate.calls),
        }
    }
}

/// Whether an upstream may be called, by the state that all instances share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// After this long: the slot's time.
    Go {
        /// How long to wait; zero without a rate or when idle.
        after: Duration,
    },
    /// Not before the pause is over. No slot was taken.
    Paused {
        /// How much of it is left.
        left: Duration,
    },
    /// The next slot is further away than the caller would wait. It was not taken.
    Later {
        /// How far.
        left: Duration,
    },
}

/// A call that asks for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRequest {
    /// The time between two slots.
    pub spacing: Duration,
    /// A slot further away than this is not taken.
    pub patience: Duration,
}

/// What upstreams share through the store.
#[async_trait]
pub trait UpstreamStore: Send + Sync {
    /// Takes the next slot of an upstream's rate unless it is paused; without a rate it only
    /// looks whether it is.
    async fn admit(&self, upstream: String, slot: Option<SlotRequest>) -> Result<Admission, StoreError>;

    /// Pauses an upstream for this long from now, or leaves a later end as it is.
    async fn pause_upstream(&self, upstream: String, pause: Duration) -> Result<Timestamp, StoreError>;

    /// The pauses that are not over, by upstream.
    async fn paused_upstreams(&self) -> Result<BTreeMap<String, Timestamp>, StoreError>;
}

/// What kind of thing an upstream is.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamKind {
    /// Of enrich.
    Provider,
    /// Of products.
    Plugin,
    /// Of feed.
    Source,
}

/// An upstream's limits.
#[derive(Clone, Debug)]
pub struct UpstreamLimits {
    /// Its name, unique among those of its kind.
    pub name: String,
    /// What kind of thing it is.
    pub kind: UpstreamKind,
    /// How long one call may take.
    pub timeout: Duration,
    /// Calls under way at once in one process.
    pub concurrency: usize,
    /// Calls per time, of all instances together.
    pub rate: Option<Rate>,
    /// Failures in a row that open its breaker.
    pub failures: u32,
}

impl UpstreamLimits {
    /// The name of the row that all instances share.
    fn shared_name(&self) -> String {
        shared_name(self.kind, &self.name)
    }
}

fn shared_name(kind: UpstreamKind, name: &str) -> String {
    let kind = match kind {
        UpstreamKind::Provider => "provider",
        UpstreamKind::Plugin => "plugin",
        UpstreamKind::Source => "source",
    };
    format!("{kind}:{name}")
}

impl UpstreamStatus {
    /// What no two of them have in common.
    pub fn shared_name(&self) -> String {
        shared_name(self.kind, &self.name)
    }
}

/// A call that failed.
#[derive(Debug)]
pub struct CallFailed<E> {
    /// How.
    pub error: E,
    /// Whether the upstream is to blame: a refused request of ours does not open the breaker.
    pub blame: bool,
    /// How long it asked to be left alone.
    pub retry_after: Option<Duration>,
}

impl CallFailed<UpstreamError> {
    /// It may work later, and the upstream is to blame.
    pub fn transient(why: impl Into<String>) -> Self {
        Self { error: UpstreamError::Transient(why.into()), blame: true, retry_after: None }
    }

    /// It asked to be left alone for so long: everyone does, in every process.
    pub fn throttled(why: impl Into<String>, retry_after: Duration) -> Self {
        Self { error: UpstreamError::Throttled(why.into()), blame: false, retry_after: Some(retry_after) }
    }

    /// It will never work like this, and the upstream is not to blame.
    pub fn permanent(why: impl Into<String>) -> Self {
        Self { error: UpstreamError::Permanent(why.into()), blame: false, retry_after: None }
    }
}

/// What went wrong at an upstream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// It may work later.
    #[error("{0}")]
    Transient(String),
    /// It asked to be left alone for a time that it named.
    #[error("{0}")]
    Throttled(String),
    /// It will never work like this.
    #[error("{0}")]
    Permanent(String),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CallError<E> {
    /// It asked to be left alone for at least this long.
    #[error("the upstream is paused for {} ms", left.as_millis())]
    Paused {
        /// How long.
        left: Duration,
    },
    /// Its rate has no slot for longer than the caller waits.
    #[error("the upstream's rate has no slot for {} ms", left.as_millis())]
    Later {
        /// How long.
        left: Duration,
    },
    /// It failed too often lately.
    #[error("the upstream's breaker is open for {} ms", left.as_millis())]
    Open {
        /// How long.
        left: Duration,
    },
    /// This process has as many calls under way as it may, for longer than the caller waits.
    #[error("the upstream is busy")]
    Busy,
    /// It did not answer in time.
    #[error("the upstream did not answer within {} ms", after.as_millis())]
    TimedOut {
        /// How long it was given.
        after: Duration,
    },
    /// It answered with a failure.
    #[error("the upstream failed")]
    Failed(E),
    /// The shared state could not be read. The upstream was not called.
    #[error("the upstream's shared state could not be read: {0}")]
    Store(#[from] StoreError),
}

/// An upstream as `GET /v1/upstreams` shows it.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamStatus {
    /// Its name.
    pub name: String,
    /// What kind of thing it is.
    pub kind: UpstreamKind,
    /// Whether it can be called.
    pub state: UpstreamState,
    /// Until when it asked to be left alone.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub paused_until: Option<Timestamp>,
    /// Calls of this process under way.
    pub in_flight: usize,
    /// How many there may be.
    pub concurrency: usize,
    /// Its shared rate.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub rate: Option<Rate>,
    /// Calls since this process started.
    pub calls: u64,
    /// Of these, failures.
    pub failures: u64,
}

/// Whether an upstream can be called.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpstreamState {
    /// Yes.
    Closed,
    /// No: it failed too often lately.
    Open,
    /// One call is let through to see.
    HalfOpen,
    /// Not before its pause is over.
    Paused,
}

/// One upstream of this process.
pub struct Upstream {
    limits: UpstreamLimits,
    store: Arc<dyn Store>,
    places: Semaphore,
    breaker: Mutex<Breaker>,
    calls: AtomicU64,
    failures: AtomicU64,
    /// When it was last known not to be paused.
    unpaused: Mutex<Option<Instant>>,
}

/// How long an upstream without a rate that was not paused is taken for that: calls that are made at once
/// share a look.
const UNPAUSED_FOR: Duration = Duration::from_millis(20);

impl Upstream {
    /// An upstream with its limits.
    pub fn new(limits: UpstreamLimits, store: Arc<dyn Store>) -> Self {
        Self {
            places: Semaphore::new(limits.concurrency),
            breaker: Mutex::new(Breaker::new(limits.failures)),
            limits,
            store,
            calls: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            unpaused: Mutex::default(),
        }
    }

    /// Calls the upstream within its limits, waiting up to `patience` for its turn.
    ///
    /// `work` is not started before its turn has come.
    pub async fn call<T, E, F>(&self, patience: Duration, work: F) -> Result<T, CallError<E>>
    where
        F: Future<Output = Result<T, CallFailed<E>>>,
    {
        let deadline = Instant::now() + patience;
        self.look_at_breaker()?;
        let place = timeout_at(deadline, self.places.acquire()).await;
        let Ok(Ok(_place)) = place else { return Err(CallError::Busy) };
        self.await_turn(deadline).await?;
        let attempt = self.breaker().admit(Instant::now()).map_err(|left| CallError::Open { left })?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        // Dropped without a verdict (the caller left), the attempt is taken back.
        let attempt = Attempt { upstream: self, ticket: Some(attempt) };
        let answer = timeout(self.limits.timeout, work).await;
        let blamed = match &answer {
            Ok(Ok(_)) => false,
            Ok(Err(failed)) => failed.blame,
            Err(_) => true,
        };
        attempt.judge(blamed);
        match answer {
            Ok(Ok(value)) => Ok(value),
            Err(_) => Err(CallError::TimedOut { after: self.limits.timeout }),
            Ok(Err(failed)) => {
                if let Some(pause) = failed.retry_after {
                    self.pause(pause.min(limits::UPSTREAM_PAUSE_MAX)).await;
                }
                Err(CallError::Failed(failed.error))
            }
        }
    }

    /// Tells all instances. If the store cannot be told, the call's own failure still stands.
    async fn pause(&self, pause: Duration) {
        *self.unpaused() = None;
        if let Err(error) = self.store.pause_upstream(self.limits.shared_name(), pause).await {
            tracing::warn!(upstream = self.limits.name, %error, "a pause could not be stored");
        }
        // Whoever looked before it was stored may have noted otherwise.
        *self.unpaused() = None;
    }

    /// How long it is to be left alone, because it asked for that.
    pub async fn pause_left(&self) -> Duration {
        match self.store.admit(self.limits.shared_name(), None).await {
            Ok(Admission::Paused { left }) => left,
            _ => Duration::ZERO,
        }
    }

    async fn await_turn<E>(&self, deadline: Instant) -> Result<(), CallError<E>> {
        for last in [false, false, false, true] {
            self.look_at_breaker()?;
            let asked = Instant::now();
            let patience = deadline.saturating_duration_since(asked);
            let slot = self.limits.rate.map(|rate| SlotRequest { spacing: rate.spacing(), patience });
            if slot.is_none() && self.unpaused().is_some_and(|at| at.elapsed() < UNPAUSED_FOR) {
                return Ok(());
            }
            let after = match self.store.admit(self.limits.shared_name(), slot).await? {
                Admission::Paused { left } => return Err(CallError::Paused { left }),
                Admission::Later { left } => return Err(CallError::Later { left }),
                Admission::Go { after } => after,
            };
            let Some(rate) = self.limits.rate else {
                *self.unpaused() = Some(asked);
                return Ok(());
            };
            // The store counted from somewhere between the question and its answer: from the answer
            // on, nobody is early.
            tokio::time::sleep(after).await;
            let late = asked.elapsed().saturating_sub(after);
            // Whoever has let three slots go by may take the fourth as it comes.
            if last || late <= rate.lateness() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Looks whether it is paused, for a call that is about to be made: it need not look then. Not where
    /// calls have slots, which are taken with the call.
    pub async fn look_ahead(&self) {
        if self.limits.rate.is_none() {
            let _ = self.await_turn::<()>(Instant::now()).await;
        }
    }

    fn unpaused(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.unpaused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_at_breaker<E>(&self) -> Result<(), CallError<E>> {
        let refused = self.breaker().refuses(Instant::now());
        refused.map_or(Ok(()), |left| Err(CallError::Open { left }))
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self, paused_until: Option<Timestamp>) -> UpstreamStatus {
        let state = match self.breaker().circuit(Instant::now()) {
            // Whether or not it asked for a pause as well.
            Circuit::Open => UpstreamState::Open,
            _ if paused_until.is_some() => UpstreamState::Paused,
            Circuit::Closed => UpstreamState::Closed,
            Circuit::HalfOpen => UpstreamState::HalfOpen,
        };
        UpstreamStatus {
            name: self.limits.name.clone(),
            kind: self.limits.kind,
            state,
            paused_until,
            in_flight: self.limits.concurrency.saturating_sub(self.places.available_permits()),
            concurrency: self.limits.concurrency,
            rate: self.limits.rate,
            calls: self.calls.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}

struct Attempt<'a> {
    upstream: &'a Upstream,
    ticket: Option<breaker::Ticket>,
}

impl Attempt<'_> {
    fn judge(mut self, blamed: bool) {
        if let Some(ticket) = self.ticket.take() {
            if blamed {
                self.upstream.failures.fetch_add(1, Ordering::Relaxed);
            }
            self.upstream.breaker().judge(&ticket, blamed, Instant::now());
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.upstream.breaker().withdraw(&ticket);
        }
    }
}

/// The upstreams of this process.
#[derive(Clone, Default)]
pub struct Upstreams {
    by_name: Arc<BTreeMap<String, Arc<Upstream>>>,
}

impl Upstreams {
    /// A set of upstreams.
    pub fn new(upstreams: impl IntoIterator<Item = Arc<Upstream>>) -> Self {
        let by_name = upstreams.into_iter().map(|up| (up.limits.shared_name(), up)).collect();
        Self { by_name: Arc::new(by_name) }
    }

    /// How each of them stands, by name.
    pub async fn status(&self, store: &dyn Store) -> Result<Vec<UpstreamStatus>, StoreError> {
        let paused = store.paused_upstreams().await?;
        let status = |up: &Arc<Upstream>| up.status(paused.get(&up.limits.shared_name()).copied());
        Ok(self.by_name.values().map(status).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written() {
        for text in ["5/s", "100/m", "2/h", "10/500ms"] {
            let rate = Rate::try_from(text.to_owned()).expect(text);
            assert_eq!(String::from(rate), text);
        }
        for text in ["", "5", "0/s", "5/0ms", "-1/s", "5/y"] {
            assert!(Rate::try_from(text.to_owned()).is_err(), "{text}");
        }
    }

    #[test]
    fn slots_are_a_little_further_apart_than_even() {
        let rate = Rate::try_from("25/s".to_owned()).expect("a rate");
        assert_eq!(rate.spacing(), Duration::from_micros(42_500));
    }
}
