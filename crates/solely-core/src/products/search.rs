//! A search, and the system as a whole: what is cached is answered at once, what is not is fetched once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use super::catalogue::Catalogue;
use super::flight::{Failed, Landing, Outcome, Stored};
use super::job::{Refresh, Refreshes};
use super::plugin::{self, Plugin, PluginCall};
use super::{KeyOf, QUEUE, entry_key, failure_key, job_lock_name, lock_name};
use crate::cache::{Age, Cache, Entry, EntryKey, Lifetimes, Overwrite, PutEntry};
use crate::clock::Timestamp;
use crate::companion::{Companion, Hinted};
use crate::config::PluginConfig;
use crate::error::StoreError;
use crate::id::{LeaseId, ProcessId};
use crate::job::{Enqueued, NewJob, Window};
use crate::json::Json;
use crate::lease::{Acquired, Holder, LeaseRequest, Leases};
use crate::metrics::{Metrics, ProductMetrics};
use crate::queue::Jobs;
use crate::store::Store;
use crate::upstream::http::HttpClient;
use crate::upstream::{Upstream, UpstreamKind, UpstreamLimits};
use crate::worker::QueueSpec;

/// How a plugin's products are had.
#[derive(Clone, Debug)]
pub struct AppSettings {
    /// Its operations; the first is the one that is meant where none is named.
    pub operations: Vec<String>,
    /// Older is stale,
    pub ttr: Duration,
    /// and older than this is gone.
    pub ttl: Duration,
    /// Only what is cached is served.
    pub do_not_call: bool,
    /// How long the lease of a call outlives its holder.
    pub lock_ttl: Duration,
    /// For how long no second refresh is queued.
    pub job_lock_ttl: Duration,
    /// How long a caller waits.
    pub wait: Duration,
    /// How long an empty answer is kept where there was nothing before.
    pub empty_ttl: Duration,
    /// How long a key is left alone after a failure; doubles.
    pub failure_backoff: Duration,
    /// Calls at once by one process.
    pub concurrency: usize,
}

/// An app: a plugin, and how it is used.
pub struct App {
    /// Its name, the `appKey`.
    pub name: String,
    /// How its products are had.
    pub settings: AppSettings,
    /// Its limits.
    pub upstream: Arc<Upstream>,
    /// Who has the products.
    pub plugin: Arc<dyn Plugin>,
    /// What is counted.
    pub counted: ProductMetrics,
}

impl App {
    /// The app that a configuration describes.
    pub fn configured(
        name: &str,
        config: &PluginConfig,
        client: &HttpClient,
        store: &Arc<dyn Store>,
        metrics: &Metrics,
    ) -> Self {
        let upstream = UpstreamLimits {
            name: name.to_owned(),
            kind: UpstreamKind::Plugin,
            timeout: config.timeout.0,
            concurrency: config.concurrency,
            rate: config.rate,
            failures: FAILURES_OPEN,
        };
        let mut operations = config.operations.clone();
        operations.sort_by_key(|operation| operation != PREFERRED);
        let settings = AppSettings {
            operations,
            ttr: config.ttr.0,
            ttl: config.ttl.0,
            do_not_call: config.do_not_call,
            lock_ttl: config.lock_ttl.0,
            job_lock_ttl: config.job_lock_ttl.0,
            wait: config.wait.0,
            empty_ttl: config.empty_ttl.0,
            failure_backoff: config.failure_backoff.0,
            concurrency: config.concurrency,
        };
        Self {
            name: name.to_owned(),
            settings,
            upstream: Arc::new(Upstream::new(upstream, store.clone())),
            plugin: plugin::configured(config, client),
            counted: metrics.app(name),
        }
    }
}

/// The operation that is meant where none is named, if a plugin has it.
const PREFERRED: &str = "searchProducts";
/// Failures in a row, of any key, that open a plugin's breaker.
const FAILURES_OPEN: u32 = 20;

/// What is searched for.
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

/// What products stands on.
pub struct ProductsParts {
    /// Jobs, with wake-ups.
    pub jobs: Jobs,
    /// Entries, read through copies.
    pub cache: Cache,
    /// Leases, with hints.
    pub leases: Leases,
    /// Copies and hints, if there are any.
    pub companion: Option<Arc<dyn Companion>>,
    /// Whose the flights are.
    pub process: ProcessId,
}

/// products of one process. Clones share everything.
#[derive(Clone)]
pub struct Products {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) jobs: Jobs,
    pub(super) cache: Cache,
    pub(super) leases: Leases,
    companion: Option<Arc<dyn Companion>>,
    pub(super) process: ProcessId,
    pub(super) apps: BTreeMap<String, Arc<App>>,
    flights: Mutex<HashMap<EntryKey, Landing>>,
    /// Catalogues that are parsed.
    shelf: moka::sync::Cache<EntryKey, Shelved>,
    /// Keys whose refresh was queued a short while ago, and until when.
    job_locks: moka::sync::Cache<EntryKey, tokio::time::Instant>,
}

/// A catalogue that is parsed, with the text that it was parsed from.
#[derive(Clone, Debug)]
pub(super) struct Shelved {
    text: Json,
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) updated_at: Timestamp,
}

/// Bytes of parsed catalogues that a process remembers.
const SHELF_BYTES: u64 = 256 * 1024 * 1024;
/// Keys whose job lock is remembered.
const JOB_LOCKS: u64 = 100_000;
/// After this long someone who found it busy may try again.
pub const BUSY_RETRY: Duration = Duration::from_secs(1);

impl Products {
    /// products of these apps.
    pub fn new(parts: ProductsParts, apps: Vec<App>) -> Self {
        let ProductsParts { jobs, cache, leases, companion, process } = parts;
        let weight = |_: &EntryKey, shelved: &Shelved| {
            u32::try_from(shelved.catalogue.size() + shelved.text.as_str().len()).unwrap_or(u32::MAX)
        };
        let inner = Inner {
            jobs,
            cache,
            leases,
            companion,
            process,
            apps: apps.into_iter().map(|app| (app.name.clone(), Arc::new(app))).collect(),
            flights: Mutex::default(),
            shelf: moka::sync::Cache::builder().max_capacity(SHELF_BYTES).weigher(weight).build(),
            job_locks: moka::sync::Cache::builder()
                .max_capacity(JOB_LOCKS)
                .time_to_live(JOB_LOCK_LONGEST)
                .build(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Every app.
    pub fn apps(&self) -> impl Iterator<Item = &Arc<App>> {
        self.inner.apps.values()
    }

    /// An app, by its name.
    pub fn app(&self, name: &str) -> Option<&Arc<App>> {
        self.inner.apps.get(name)
    }

    /// The queue of refreshes, and how this process works it.
    pub fn queues(&self) -> Vec<QueueSpec> {
        if self.inner.apps.is_empty() {
            return Vec::new();
        }
        let concurrency = self.apps().map(|app| app.settings.concurrency).sum::<usize>().min(REFRESHES_MAX);
        let longest =
            self.apps().map(|app| app.settings.lock_ttl + app.settings.wait).max().unwrap_or_default();
        let handler = Arc::new(Refreshes { inner: self.inner.clone() });
        vec![QueueSpec {
            concurrency,
            deadline: longest + Duration::from_secs(60),
            ..QueueSpec::new(QUEUE, handler)
        }]
    }

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
            let found = self.inner.read(&key).await?;
            return Ok(match found.as_ref().and_then(|entry| self.inner.shelve(entry)) {
                Some(shelved) => Answer::of(&shelved, State::CacheOnly),
                None => Answer::nothing(),
            });
        }
        if search.force {
            return self.inner.fetch(app, &key, call(operation, search), State::Refreshed).await;
        }
        let entry = self.inner.read(&key).await?;
        let Some(shelved) = entry.as_ref().and_then(|entry| self.inner.shelve(entry)) else {
            if let Some(Failed { error, retry_after, .. }) = self.inner.failure(&key).await? {
                return Err(SearchError::Failed { error, timed_out: false, retry_after });
            }
            return self.inner.fetch(app, &key, call(operation, search), State::Filled).await;
        };
        let (as_of, version) = entry.map_or((shelved.updated_at, 0), |entry| (entry.as_of, entry.version));
        let ttr =
            search.token.get("ttr").and_then(Value::as_u64).map_or(app.settings.ttr, Duration::from_secs);
        if as_of.since(shelved.updated_at) <= ttr {
            return Ok(Answer::of(&shelved, State::Fresh));
        }
        let mut answer = Answer::of(&shelved, State::Stale);
        match self.inner.refresh(app, &key, version, call(operation, search)).await {
            Ok(Queued::Yes) => answer.refresh_queued = true,
            Ok(Queued::No) => {}
            Ok(Queued::LeftAlone(error)) => answer.error = Some(error),
            // What is stale is served whatever happens.
            Err(error) => answer.error = Some(error.to_string()),
        }
        Ok(answer)
    }

    /// Writes a catalogue that was had elsewhere. Calls that began before it are too late. An empty one replaces none that
    /// has products.
    pub async fn put(
        &self,
        app: &Arc<App>,
        search: &Search,
        products: &Catalogue,
    ) -> Result<(), SearchError> {
        let operation = operation(app, search.operation.as_deref())?;
        let key = key_of(app, operation, search);
        let cached = self.inner.read(&key).await?.and_then(|entry| self.inner.shelve(&entry));
        if products.is_empty() && cached.is_some_and(|cached| !cached.catalogue.is_empty()) {
            return Ok(());
        }
        let fence = self.inner.fence(&key).await?;
        let (life, value) = (app.settings.ttl, format!("{{\"products\":{}}}", products.text()));
        let life = if products.is_empty() { app.settings.empty_ttl } else { life };
        let lifetimes = Lifetimes { fresh: life, stale: life, keep: life };
        let (value, overwrite) = (Json::from_stored(value), Overwrite::Above(fence));
        self.inner.cache.put(vec![PutEntry { key, value, lifetimes, overwrite }]).await?;
        Ok(())
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
    pub(super) fn flights(&self) -> MutexGuard<'_, HashMap<EntryKey, Landing>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What may be served of a key.
    async fn read(&self, key: &EntryKey) -> Result<Option<Entry>, StoreError> {
        let found = self.cache.read(vec![key.clone()]).await?.into_iter().next().flatten();
        Ok(found.filter(|entry| entry.age != Age::Gone))
    }

    /// Why a key is left alone, if it is.
    async fn failure(&self, key: &EntryKey) -> Result<Option<Failed>, StoreError> {
        let failure = self.read(&failure_key(key)).await?;
        Ok(failure.as_ref().and_then(Failed::of).filter(|failed| failed.failures > 0))
    }

    /// The catalogue of an entry, parsed once.
    pub(super) fn shelve(&self, entry: &Entry) -> Option<Shelved> {
        if let Some(shelved) = self.shelf.get(&entry.key).filter(|shelved| shelved.text.is_same(&entry.value))
        {
            return Some(shelved);
        }
        let stored: Stored<'_> = serde_json::from_str(entry.value.as_str()).ok()?;
        let catalogue = Arc::new(Catalogue::parse(stored.products.get()).ok()?);
        let shelved = Shelved { text: entry.value.clone(), catalogue, updated_at: entry.updated_at };
        self.shelf.insert(entry.key.clone(), shelved.clone());
        Some(shelved)
    }

    /// Waits for the one call of a key.
    async fn fetch(
        self: &Arc<Self>,
        app: &Arc<App>,
        key: &EntryKey,
        call: PluginCall,
        state: State,
    ) -> Result<Answer, SearchError> {
        let mut landing = self.fly(app, key, call);
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
            Some(until) if until > now => return Ok(Queued::No),
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
        if let Some(failed) = self.failure(key).await? {
            return Ok(Queued::LeftAlone(failed.error));
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
        let made = self.jobs.enqueue(vec![job]).await?;
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

    /// A fence that is above those of all calls that have begun.
    async fn fence(&self, key: &EntryKey) -> Result<u64, StoreError> {
        let id = LeaseId::random();
        let keys = vec![format!("{}:{}:put:{id}", key.space, key.key)];
        let (owner, holder) = (self.process.to_string(), Holder::Process(self.process));
        let request = LeaseRequest { id, keys, owner, ttl: FENCE_TTL, holder };
        match self.jobs.store().acquire(request).await? {
            Acquired::Acquired(lease) => {
                self.leases.release(id).await?;
                Ok(lease.fence)
            }
            Acquired::Held(_) => Err(StoreError::Refused("a key that nobody has is held".to_owned())),
        }
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

fn operation<'a>(app: &'a App, named: Option<&str>) -> Result<&'a str, SearchError> {
    let operations = &app.settings.operations;
    let found = match named {
        Some(named) => operations.iter().find(|operation| *operation == named),
        None => operations.first(),
    };
    found.map(String::as_str).ok_or_else(|| SearchError::NoOperation(named.unwrap_or_default().to_owned()))
}

fn key_of(app: &App, operation: &str, search: &Search) -> EntryKey {
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

/// Longer than any job lock.
const JOB_LOCK_LONGEST: Duration = Duration::from_secs(24 * 3_600);
/// Refreshes at once by one process.
const REFRESHES_MAX: usize = 64;
const FENCE_TTL: Duration = Duration::from_secs(10);
