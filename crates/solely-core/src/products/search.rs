//! A search: what is cached is answered at once, what is not is fetched once.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use super::app::App;
use super::catalogue::Catalogue;
use super::flight::{Failed, Outcome, Why};
use super::job::Refresh;
use super::look::{Cached, Seen};
use super::plugin::PluginCall;
use super::system::{Inner, Products, Shelved};
use super::{KeyOf, QUEUE, entry_key, failure_key, job_lock_name, lock_name};
use crate::cache::{Age, EntryKey};
use crate::clock::Timestamp;
use crate::companion::Hinted;
use crate::error::StoreError;
use crate::job::{Enqueued, NewJob, Window};
use crate::json::Json;

/// What is searched for.
#[derive(Clone, Default)]
pub struct Search {
    /// With which operation; none: the app's first.
    pub operation: Option<String>,
    /// For whom.
    pub user_id: String,
    /// Which of the user's accounts.
    pub hint: Option<String>,
    /// Whether the plugin is to be called in any case.
    pub force: bool,
    /// What the plugin knows the user by; may say `ttr` and `doNotCallPluginForProducts`.
    pub token: Map<String, Value>,
    /// What else is asked of the plugin.
    pub payload: Map<String, Value>,
    /// The request that it is for.
    pub request_id: String,
    /// A `traceparent` to be carried on.
    pub trace: Option<String>,
}

/// Where an answer comes from: in the order of [`crate::metrics::PRODUCT_STATES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// From the cache, and young enough.
    Fresh,
    /// From the cache, and old.
    Stale,
    /// From the cache, because the plugin is not to be called,
    CacheOnly,
    /// which has nothing.
    Empty,
    /// From the plugin, because it was to be called.
    Refreshed,
    /// From the plugin, because there was nothing.
    Filled,
}

/// What a search is answered with.
#[derive(Clone, Debug)]
pub struct Answer {
    /// All the products, to be filtered.
    pub catalogue: Arc<Catalogue>,
    /// Where they come from.
    pub state: State,
    /// When what is cached was written.
    pub last_updated: Option<Timestamp>,
    /// Whether this search had a refresh queued.
    pub refresh_queued: bool,
    /// Why it is not fresh.
    pub error: Option<String>,
}

/// Why a search has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SearchError {
    /// There is no such operation.
    NoOperation(String),
    /// The plugin failed; the key is left alone for so long.
    Failed {
        /// How.
        error: String,
        /// Whether it did not answer in time.
        timed_out: bool,
        /// When trying again may help.
        retry_after: Duration,
    },
    /// The call is under way, for longer than a caller waits.
    Busy,
    /// The store could not be asked.
    Store(StoreError),
}

/// After this long someone who found it busy may try again.
pub const BUSY_RETRY: Duration = Duration::from_secs(1);

impl Products {
    /// Searches. What is cached is answered at once; what is not is fetched once, whoever else asks for it.
    pub async fn search(&self, app: &Arc<App>, search: Search) -> Result<Answer, SearchError> {
        let answer = self.answer(app, search).await?;
        app.counted.searches[answer.state as usize].inc();
        Ok(answer)
    }

    async fn answer(&self, app: &Arc<App>, search: Search) -> Result<Answer, SearchError> {
        let operation = operation(app, search.operation.as_deref())?;
        let key = key_of(app, operation, &search);
        let never = search.token.get("doNotCallPluginForProducts").and_then(Value::as_bool);
        if never.unwrap_or(app.settings.do_not_call) && !search.force {
            return Ok(match self.inner.see(&key).await? {
                Seen::Cached(cached) => Answer::of(&cached.shelved, State::CacheOnly),
                Seen::Failed(_) | Seen::Nothing => Answer::nothing(),
            });
        }
        if search.force {
            return self.inner.fetch(app, &key, call(operation, search), State::Refreshed).await;
        }
        let Cached { shelved, as_of } = match self.inner.see(&key).await? {
            Seen::Cached(cached) => cached,
            Seen::Failed(Failed { error, retry_after, .. }) => {
                return Err(SearchError::Failed { error, timed_out: false, retry_after });
            }
            Seen::Nothing => {
                return self.inner.fetch(app, &key, call(operation, search), State::Filled).await;
            }
        };
        let ttr =
            search.token.get("ttr").and_then(Value::as_u64).map_or(app.settings.ttr, Duration::from_secs);
        if as_of.since(shelved.updated_at) <= ttr {
            return Ok(Answer::of(&shelved, State::Fresh));
        }
        let mut answer = Answer::of(&shelved, State::Stale);
        match self.inner.refresh(app, &key, shelved.version, call(operation, search)).await {
            Ok(Queued::Yes) => answer.refresh_queued = true,
            Ok(Queued::No) => {}
            Ok(Queued::LeftAlone(error)) => answer.error = Some(error),
            // What is stale is served whatever happens.
            Err(error) => answer.error = Some(error.to_string()),
        }
        Ok(answer)
    }
}

/// What became of a refresh that was to be queued.
enum Queued {
    Yes,
    No,
    /// The plugin failed lately, so.
    LeftAlone(String),
}

impl Inner {
    /// Why a key is left alone, if it is.
    pub(super) async fn failure(&self, key: &EntryKey) -> Result<Option<Failed>, StoreError> {
        let found = self.cache.read(vec![failure_key(key)]).await?.into_iter().next().flatten();
        let failure = found.filter(|entry| entry.age != Age::Gone);
        Ok(failure.as_ref().and_then(Failed::of).filter(|failed| failed.failures > 0))
    }

    async fn left_alone(&self, key: &EntryKey) -> Result<Option<Queued>, StoreError> {
        Ok(self.failure(key).await?.map(|failed| Queued::LeftAlone(failed.error)))
    }

    /// Waits for the one call of a key.
    async fn fetch(
        self: &Arc<Self>,
        app: &Arc<App>,
        key: &EntryKey,
        call: PluginCall,
        state: State,
    ) -> Result<Answer, SearchError> {
        let why = if state == State::Filled { Why::Nothing } else { Why::Anew };
        let mut landing = self.fly(app, key, call, why);
        let landed = tokio::time::timeout(app.settings.wait, landing.wait_for(Option::is_some)).await;
        let outcome = match landed {
            Ok(Ok(outcome)) => outcome.clone(),
            _ => None,
        };
        match outcome {
            Some(Outcome::Cached(shelved)) => Ok(Answer::of(&shelved, state)),
            Some(Outcome::Kept { brought, cached }) => {
                Ok(Answer { catalogue: brought, ..Answer::of(&cached, state) })
            }
            Some(Outcome::Failed(failed)) => Err(failed.into()),
            Some(Outcome::Store(error)) => Err(SearchError::Store(error)),
            Some(Outcome::Lost) | None => Err(SearchError::Busy),
        }
    }

    /// Has a stale catalogue brought anew, if nobody else has.
    async fn refresh(
        &self,
        app: &App,
        key: &EntryKey,
        version: u64,
        call: PluginCall,
    ) -> Result<Queued, StoreError> {
        let now = tokio::time::Instant::now();
        let until = now + app.settings.job_lock_ttl;
        if self.flights().contains_key(key) {
            return Ok(Queued::No);
        }
        match self.job_locks.get(key) {
            // The refresh that was queued may have failed since.
            Some(until) if until > now => return Ok(self.left_alone(key).await?.unwrap_or(Queued::No)),
            Some(_) => self.job_locks.invalidate(key),
            None => {}
        }
        // The first of this process goes on; all others are answered. Should two be first, the queue tells them apart.
        if !self.job_locks.entry_by_ref(key).or_insert(until).is_fresh() {
            return Ok(Queued::No);
        }
        let queued = self.queue_refresh(app, key, version, call).await;
        if !matches!(queued, Ok(Queued::Yes)) {
            self.job_locks.invalidate(key);
        }
        queued
    }

    async fn queue_refresh(
        &self,
        app: &App,
        key: &EntryKey,
        version: u64,
        call: PluginCall,
    ) -> Result<Queued, StoreError> {
        if let Some(left_alone) = self.left_alone(key).await? {
            return Ok(left_alone);
        }
        if self.is_flying(key).await? {
            return Ok(Queued::No);
        }
        let (lock, owner) = ([job_lock_name(key)], call.request_id.clone());
        if let Some(companion) = &self.companion
            && let Hinted::Held { .. } = companion.take(&lock, &owner, app.settings.job_lock_ttl).await
        {
            return Ok(Queued::No);
        }
        let trace = call.trace.clone();
        let refresh = Refresh {
            app: app.name.clone(),
            key: key.key.clone(),
            version,
            operation: call.operation,
            token: call.token,
            payload: call.payload,
            user_id: call.user_id,
            hint: call.hint,
            request_id: call.request_id,
        };
        let job = NewJob {
            payload: Json::of(&refresh),
            attributes: Json::of(&serde_json::json!({"app": app.name, "operation": refresh.operation})),
            trace,
            // The job lock, for all processes, with Redis or without.
            window: Window::Check(app.settings.job_lock_ttl),
            ..NewJob::new(QUEUE, format!("{}:{}", app.name, key.key))
        };
        let made = match self.jobs.enqueue(vec![job]).await {
            Ok(made) => made,
            Err(error) => {
                // Nothing was queued, so nothing keeps others from it.
                if let Some(companion) = &self.companion {
                    companion.give_back(&lock, &owner).await;
                }
                return Err(error);
            }
        };
        let created = made == [Enqueued::Created];
        if created {
            app.counted.refreshes.inc();
        }
        Ok(if created { Queued::Yes } else { Queued::No })
    }

    /// Whether someone has the lease of a key.
    async fn is_flying(&self, key: &EntryKey) -> Result<bool, StoreError> {
        let lock = lock_name(key);
        // The first key that is held from this one on.
        let before = lock[..lock.len() - 1].to_owned();
        let held = self.jobs.store().held_keys(Some(before), 1).await?;
        Ok(held.first().is_some_and(|held| held.key == lock))
    }
}

impl Answer {
    fn of(shelved: &Shelved, state: State) -> Self {
        Self {
            catalogue: shelved.catalogue.clone(),
            state,
            last_updated: Some(shelved.updated_at),
            refresh_queued: false,
            error: None,
        }
    }

    fn nothing() -> Self {
        let catalogue = Arc::new(Catalogue::empty());
        Self { catalogue, state: State::Empty, last_updated: None, refresh_queued: false, error: None }
    }
}

impl From<StoreError> for SearchError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Failed> for SearchError {
    fn from(Failed { timed_out, error, retry_after, .. }: Failed) -> Self {
        Self::Failed { error, timed_out, retry_after }
    }
}

pub(super) fn operation<'a>(app: &'a App, named: Option<&str>) -> Result<&'a str, SearchError> {
    let operations = &app.settings.operations;
    let found = match named {
        Some(named) => operations.iter().find(|operation| *operation == named),
        None => operations.first(),
    };
    found.map(String::as_str).ok_or_else(|| SearchError::NoOperation(named.unwrap_or_default().to_owned()))
}

pub(super) fn key_of(app: &App, operation: &str, search: &Search) -> EntryKey {
    let payload = search.payload.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let (user_id, hint) = (search.user_id.as_str(), search.hint.as_deref());
    entry_key(&app.name, &KeyOf { user_id, hint, operation, payload })
}

fn call(operation: &str, search: Search) -> PluginCall {
    PluginCall {
        operation: operation.to_owned(),
        token: search.token,
        payload: search.payload,
        user_id: search.user_id,
        hint: search.hint,
        request_id: search.request_id,
        trace: search.trace,
    }
}
