//! A flight: the one call of a key, under way in this process or elsewhere.
//!
//! The first caller of a process starts it, everybody else joins. It takes the key's lease, or waits until whoever has
//! it is done; then it looks at the store once more, because what was waited for may be there. Nobody's leaving stops
//! it. It ends with an answer for all who joined: what was brought, what someone else brought meanwhile, or why there is
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::app::App;
use super::catalogue::Catalogue;
use super::plugin::{Brought, PluginCall};
use super::system::{Inner, Shelved};
use super::{failure_key, lock_name, subject};
use crate::bus::Topic;
use crate::cache::{Age, Entry, EntryKey, Lifetimes, Overwrite, Put, PutEntry};
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::fault::Guard;
use crate::id::LeaseId;
use crate::json::Json;
use crate::lease::keep::Begun;
use crate::lease::{Holder, LeaseRequest};
use crate::limits;
use crate::upstream::{CallError, UpstreamError};

/// How a flight ended.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// With a catalogue that is cached.
    Cached(Arc<Shelved>),
    /// With an answer that is not kept: empty or partial, and there is a better one, which was written then.
    Kept { brought: Arc<Catalogue>, cached: Arc<Shelved> },
    /// With a failure.
    Failed(Failed),
    /// The store could not be asked.
    Store(StoreError),
    /// The lease was lost on the way.
    Lost,
}

/// Why there is nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Failed {
    pub(super) timed_out: bool,
    pub(super) error: String,
    /// In a row.
    pub(super) failures: u32,
    /// How long the key is left alone from now on.
    #[serde(skip)]
    pub(super) retry_after: Duration,
}

/// A catalogue as it is stored.
#[derive(Serialize, Deserialize)]
pub(super) struct Stored<'a> {
    #[serde(borrow)]
    pub(super) products: &'a RawValue,
}

/// Why there is a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Nothing was to be served a moment ago: whatever is there by now is news.
    Nothing,
    /// What is there is to be had anew: only what is newer is news.
    Anew,
}

/// What waits for a flight.
pub(super) type Landing = watch::Receiver<Option<Outcome>>;

impl Inner {
    /// Joins the flight of a key, or starts one.
    pub(super) fn fly(
        self: &Arc<Self>,
        app: &Arc<App>,
        key: &EntryKey,
        call: PluginCall,
        why: Why,
    ) -> Landing {
        let mut flights = self.flights();
        if let Some(landing) = flights.get(key).filter(|_| self.guards.hold(Guard::SingleFlight)) {
            return landing.clone();
        }
        let (lands, landing) = watch::channel(None);
        flights.insert(key.clone(), landing.clone());
        let (inner, app, key) = (self.clone(), app.clone(), key.clone());
        tokio::spawn(async move {
            let under_way = UnderWay { inner: &inner, key: &key };
            let outcome = inner.flight(&app, &key, &call, why, &lands).await;
            // Whoever comes from here on starts another.
            drop(under_way);
            lands.send_replace(Some(outcome));
        });
        landing
    }

    async fn flight(
        &self,
        app: &App,
        key: &EntryKey,
        call: &PluginCall,
        why: Why,
        lands: &watch::Sender<Option<Outcome>>,
    ) -> Outcome {
        let before = match why {
            Why::Nothing => Looked::default(),
            Why::Anew => match self.look(key).await {
                Ok(before) => before,
                Err(error) => return Outcome::Store(error),
            },
        };
        let mut lock = lock_name(key);
        if !self.guards.hold(Guard::SingleFlight) {
            lock = format!("{lock}:{}", LeaseId::random());
        }
        let mut is_first = true;
        let kept = loop {
            let mut listener = self.jobs.bus().listen(Topic::Lease(&lock));
            let request = LeaseRequest {
                id: LeaseId::random(),
                keys: vec![lock.clone()],
                owner: self.process.to_string(),
                ttl: app.settings.lock_ttl,
                holder: Holder::Process(self.process),
            };
            let ahead = async {
                if std::mem::take(&mut is_first) {
                    app.upstream.look_ahead().await;
                }
            };
            let (begun, ()) = tokio::join!(self.leases.begin(request, vec![lock.clone()]), ahead);
            match begun {
                Ok(Begun::Mine(kept)) => break kept,
                Ok(Begun::Held(obstacle)) => {
                    let patience = obstacle.ends_in.clamp(Duration::from_millis(1), limits::LEASE_POLL);
                    let _ = tokio::time::timeout(patience, listener.woken()).await;
                }
                Err(error) => return Outcome::Store(error),
            }
            match self.look(key).await {
                Ok(now) => {
                    if let Some(outcome) = self.elsewhere(&before, now) {
                        return outcome;
                    }
                }
                Err(error) => return Outcome::Store(error),
            }
            // Those who waited have left, and someone else has it.
            if lands.receiver_count() <= 1 {
                return Outcome::Lost;
            }
        };
        let now = match self.look(key).await {
            Ok(now) => now,
            Err(error) => return Outcome::Store(error),
        };
        if let Some(outcome) = self.elsewhere(&before, now.clone()) {
            return outcome;
        }
        let began = tokio::time::Instant::now();
        let called = app.upstream.call(app.settings.wait, app.plugin.call(call));
        let answer = tokio::select! {
            answer = called => answer,
            () = kept.lost().cancelled() => return Outcome::Lost,
        };
        app.counted.call_seconds.observe(began.elapsed().as_secs_f64());
        let flown = Flown { request_id: &call.request_id, fence: kept.lease().fence, took: began.elapsed() };
        let outcome = self.land(app, key, &flown, now, answer).await.unwrap_or_else(Outcome::Store);
        let counted = match &outcome {
            Outcome::Cached(_) => Some(0),
            Outcome::Kept { .. } => Some(1),
            Outcome::Failed(failed) => Some(2 + usize::from(failed.timed_out)),
            Outcome::Store(_) | Outcome::Lost => None,
        };
        if let Some(nth) = counted {
            app.counted.calls[nth].inc();
            // Those who wait elsewhere need not wait for the lease's end.
            self.jobs.bus().wake(Topic::Lease(&lock));
        }
        outcome
    }

    /// What the store has of a key: its catalogue, and its failure.
    async fn look(&self, key: &EntryKey) -> Result<Looked, StoreError> {
        let mut found =
            self.jobs.store().kept_entries(vec![key.clone(), failure_key(key)]).await?.into_iter();
        let mut next = || found.next().flatten();
        Ok(Looked { entry: next(), failure: next() })
    }

    /// What someone else brought since, or could not.
    fn elsewhere(&self, before: &Looked, now: Looked) -> Option<Outcome> {
        let version = |entry: &Option<Entry>| entry.as_ref().map_or(0, |entry| entry.version);
        if version(&now.entry) > version(&before.entry) {
            let entry = now.entry.filter(|entry| entry.age != Age::Gone)?;
            return Some(Outcome::Cached(self.shelve(&entry)?));
        }
        if version(&now.failure) > version(&before.failure) {
            let failure = now.failure.filter(|failure| failure.age != Age::Gone)?;
            return Some(Outcome::Failed(Failed::of(&failure)?));
        }
        None
    }

    /// Writes what a call brought, or that it brought nothing.
    async fn land(
        &self,
        app: &App,
        key: &EntryKey,
        flown: &Flown<'_>,
        now: Looked,
        answer: Result<Brought, CallError<UpstreamError>>,
    ) -> Result<Outcome, StoreError> {
        let overwrite = Overwrite::Above(flown.fence);
        let failures = now.failure.as_ref().and_then(Failed::of).map_or(0, |failed| failed.failures);
        let brought = match answer {
            Ok(brought) => brought,
            Err(error) => {
                let asked = match &error {
                    CallError::Paused { left } | CallError::Later { left } | CallError::Open { left } => {
                        *left
                    }
                    CallError::Failed(UpstreamError::Throttled(_)) => app.upstream.pause_left().await,
                    _ => Duration::ZERO,
                };
                let failed = Failed::new(&error, failures + 1, app.settings.failure_backoff, asked);
                let lifetimes = Lifetimes {
                    fresh: failed.retry_after,
                    stale: failed.retry_after,
                    keep: failed.retry_after + FAILURES_REMEMBERED,
                };
                let told = flown.told(key, "products_call_failed").reason(failed.error.clone());
                let (key, value, told) = (failure_key(key), Json::of(&failed), Some(told));
                let entry = PutEntry { key, value, lifetimes, overwrite, told };
                self.cache.put(vec![entry]).await?;
                return Ok(Outcome::Failed(failed));
            }
        };
        let cached = now.entry.filter(|entry| entry.age != Age::Gone).and_then(|entry| self.shelve(&entry));
        let poor = brought.partial || brought.catalogue.is_empty();
        if let Some(cached) = cached.filter(|cached| poor && !cached.catalogue.is_empty()) {
            let told = flown.told(key, "products_kept").reason("the answer was empty or partial");
            self.jobs.store().append(vec![told]).await?;
            return Ok(Outcome::Kept { brought: Arc::new(brought.catalogue), cached });
        }
        let life = if poor { app.settings.empty_ttl } else { app.settings.ttl };
        let lifetimes = Lifetimes { fresh: life, stale: life, keep: life };
        let value = Json::from_stored(format!("{{\"products\":{}}}", brought.catalogue.text()));
        let outcome = if poor { "empty or partial" } else { "whole" };
        let told = Some(flown.told(key, "products_cached").outcome(outcome));
        let mut entries = vec![PutEntry { key: key.clone(), value, lifetimes, overwrite, told }];
        if failures > 0 {
            let lifetimes = Lifetimes { fresh: Duration::ZERO, stale: Duration::ZERO, keep: Duration::ZERO };
            let none = Json::of(&Failed {
                timed_out: false,
                error: String::new(),
                failures: 0,
                retry_after: Duration::ZERO,
            });
            entries.push(PutEntry { key: failure_key(key), value: none, lifetimes, overwrite, told: None });
        }
        let put = self.cache.put(entries).await?;
        if let Some(Put::Stored { version, updated_at }) = put.first() {
            let catalogue = Arc::new(brought.catalogue);
            let shelved = Shelved { catalogue, version: *version, updated_at: *updated_at };
            return Ok(Outcome::Cached(self.put_on_shelf(key, shelved)));
        }
        tracing::info!(app = app.name, "a late answer replaces nothing");
        let entry = self.look(key).await?.entry.and_then(|entry| self.shelve(&entry));
        Ok(entry.map_or(Outcome::Lost, Outcome::Cached))
    }
}

/// A flight among those that can be joined. However it ends, a panic included, it is there no longer.
struct UnderWay<'a> {
    inner: &'a Inner,
    key: &'a EntryKey,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.inner.flights().remove(self.key);
    }
}

/// A call that has been answered.
struct Flown<'a> {
    /// The request that it was made for.
    request_id: &'a str,
    fence: u64,
    took: Duration,
}

impl Flown<'_> {
    /// An event about the catalogue that was called for.
    fn told(&self, key: &EntryKey, event: &str) -> NewEvent {
        let details = Json::of(&serde_json::json!({"fence": self.fence, "tookMs": self.took.as_millis()}));
        let told = NewEvent::new(subject(key), event).details(details);
        NewEvent { request_id: Some(self.request_id.to_owned()), ..told }
    }
}

/// See [`Inner::look`].
#[derive(Clone, Default)]
struct Looked {
    entry: Option<Entry>,
    failure: Option<Entry>,
}

impl Failed {
    /// After so many failures the key is left alone for the first time, doubled by each; and for as long as was asked.
    fn new(error: &CallError<UpstreamError>, failures: u32, first: Duration, asked: Duration) -> Self {
        let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(BACKOFF_LONGEST);
        let jittered = doubled.mul_f64(rand::rng().random_range(0.75..1.0));
        let error_text = match error {
            CallError::Failed(why) => why.to_string(),
            other => other.to_string(),
        };
        Self {
            timed_out: matches!(error, CallError::TimedOut { .. }),
            error: error_text,
            failures,
            retry_after: jittered.max(asked).min(BACKOFF_LONGEST),
        }
    }

    /// What a failure's entry says, if the key is still to be left alone.
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        let failed: Self = entry.value.parse().ok()?;
        Some(Self { retry_after: entry.stale_until.since(entry.as_of), ..failed })
    }
}

/// The longest that a key is left alone.
const BACKOFF_LONGEST: Duration = Duration::from_secs(300);
/// How long failures count as being in a row.
const FAILURES_REMEMBERED: Duration = Duration::from_secs(600);
