//! The system as a whole: its providers, and what people do with places.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::copy::PlaceForm;
use super::decision::Decisions;
use super::finder::{self, Finder};
use super::job::{Lookups, Written};
use super::subscription::LastPatch;
use super::waiting::Waiting;
use super::{Resolved, Status, copy, entry_key, provider_of, queue, subject};
use crate::bus::ChangeListener;
use crate::cache::watch::Watches;
use crate::cache::{Age, Cache, EntryKey, Lifetimes};
use crate::clock::Timestamp;
use crate::companion::{Companion, Form};
use crate::config::{EnrichConfig, ProviderConfig};
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::fault::Guards;
use crate::job::Job;
use crate::limits;
use crate::queue::{JobFilter, Jobs};
use crate::store::Store;
use crate::upstream::http::HttpClient;
use crate::upstream::{Upstream, UpstreamKind, UpstreamLimits};
use crate::worker::{Backoff, QueueSpec};

/// How long results live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lives {
    found: Duration,
    not_found: Duration,
    failed: Duration,
    /// How long they are kept beyond their end, for requests that were told of them.
    replay: Duration,
}

impl Lives {
    /// How long a result lives. What failed is not refreshed ahead: it is looked up anew.
    pub fn of(&self, resolved: &Resolved) -> Lifetimes {
        let (life, ahead) = match resolved.status {
            Status::Found => (self.found, self.found / REFRESH_AHEAD),
            Status::NotFound if resolved.is_failed() => (self.failed, Duration::ZERO),
            Status::NotFound => (self.not_found, self.not_found / REFRESH_AHEAD),
        };
        Lifetimes { fresh: life.saturating_sub(ahead), stale: life, keep: life + self.replay }
    }
}

/// The last of this many parts of an entry's life is when it is refreshed ahead.
const REFRESH_AHEAD: u32 = 10;

/// How a provider's places are looked up.
#[derive(Clone, Debug)]
pub struct ProviderSettings {
    /// Whether they are.
    pub enabled: bool,
    /// Where a link may be.
    pub hosts: Vec<String>,
    /// How long results live.
    pub lives: Lives,
    /// How long the lease of a lookup outlives its holder.
    pub lock_ttl: Duration,
    /// Deliveries of a lookup before it is given up.
    pub max_attempts: u32,
    /// For the whole lookup.
    pub deadline: Duration,
    /// Lookups at once by one process.
    pub concurrency: usize,
}

/// A provider of links.
pub struct Provider {
    /// Its name.
    pub name: String,
    /// How its places are looked up.
    pub settings: ProviderSettings,
    /// Its limits.
    pub upstream: Arc<Upstream>,
    /// Who finds links.
    pub finder: Arc<dyn Finder>,
}

impl Provider {
    /// The provider that a configuration describes.
    pub fn configured(
        name: &str,
        config: &ProviderConfig,
        request_ttl: Duration,
        client: &HttpClient,
        store: &Arc<dyn Store>,
    ) -> Self {
        Self::of(name, config, request_ttl, finder::configured(config, client), store)
    }

    /// The same, with a finder of one's own.
    pub fn of(
        name: &str,
        config: &ProviderConfig,
        request_ttl: Duration,
        finder: Arc<dyn Finder>,
        store: &Arc<dyn Store>,
    ) -> Self {
        let upstream = UpstreamLimits {
            name: name.to_owned(),
            kind: UpstreamKind::Provider,
            timeout: config.timeout.0,
            concurrency: config.concurrency,
            rate: config.rate,
            failures: config.max_attempts.saturating_mul(FAILING_PLACES),
        };
        Self {
            name: name.to_owned(),
            settings: ProviderSettings::of(config, request_ttl),
            upstream: Arc::new(Upstream::new(upstream, store.clone())),
            finder,
        }
    }
}

/// Places whose every lookup may fail without the finder being taken for away.
const FAILING_PLACES: u32 = 8;

impl ProviderSettings {
    fn of(config: &ProviderConfig, request_ttl: Duration) -> Self {
        Self {
            enabled: config.enabled,
            hosts: config.hosts.clone(),
            lives: Lives {
                found: config.found_ttl.0,
                not_found: config.not_found_ttl.0,
                failed: config.failed_ttl.0,
                replay: request_ttl,
            },
            lock_ttl: config.lock_ttl.0,
            max_attempts: config.max_attempts,
            deadline: config.deadline.0,
            concurrency: config.concurrency,
        }
    }
}

/// One entry, as people look at it.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Looked {
    /// At this provider,
    pub provider: String,
    /// this place
    pub place_id: String,
    /// is `FOUND`, `NOT_FOUND`, or `PENDING` if there is only a lookup.
    pub status: &'static str,
    /// The link.
    pub url: Option<String>,
    /// When it was written.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub updated_at: Option<Timestamp>,
    /// Until when it is known.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Timestamp>,
    /// Why it is so.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub meta: Option<Value>,
    /// The lookup under way.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub job: Option<String>,
}

/// What enrich stands on.
pub struct EnrichParts {
    /// Jobs, with wake-ups.
    pub jobs: Jobs,
    /// Entries, read through copies.
    pub cache: Cache,
    /// Copies and hints, if there are any.
    pub companion: Option<Arc<dyn Companion>>,
}

/// enrich of one process. Clones share everything.
#[derive(Clone)]
pub struct Enrich {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) jobs: Jobs,
    pub(super) cache: Cache,
    pub(super) companion: Option<Arc<dyn Companion>>,
    pub(super) watches: Watches,
    pub(super) providers: BTreeMap<String, Arc<Provider>>,
    pub(super) decisions: BTreeMap<String, Arc<Decisions>>,
    pub(super) request_ttl: Duration,
    pub(super) legacy_wolt_field: bool,
    pub(super) guards: Guards,
    /// Entries that were asked to be refreshed, by when they were written.
    pub(super) refreshed: moka::sync::Cache<EntryKey, Timestamp>,
    /// Requests that were told PENDING by this process.
    pub(super) waits: Waiting,
    /// What was told last to someone who listens.
    pub(super) last_patch: Mutex<Option<LastPatch>>,
    /// What lookups of this process are about to write.
    writing: Mutex<HashMap<EntryKey, Written>>,
}

impl Enrich {
    /// enrich of these providers.
    pub fn new(parts: EnrichParts, config: &EnrichConfig, providers: Vec<Provider>) -> Self {
        let EnrichParts { jobs, cache, companion } = parts;
        let metrics = jobs.metrics().clone();
        let watches = Watches::new(jobs.store().clone(), jobs.bus());
        let providers: BTreeMap<String, Arc<Provider>> =
            providers.into_iter().map(|provider| (provider.name.clone(), Arc::new(provider))).collect();
        let decisions = providers.keys().map(|name| (name.clone(), Arc::new(Decisions::new(name, &metrics))));
        let inner = Arc::new(Inner {
            decisions: decisions.collect(),
            watches,
            providers,
            request_ttl: config.request_ttl.0,
            legacy_wolt_field: config.legacy_wolt_field,
            guards: Guards::from_env(),
            refreshed: moka::sync::Cache::builder()
                .max_capacity(REFRESHED_MAX)
                .time_to_live(REFRESHED_FOR)
                .build(),
            waits: Waiting::new(config.request_ttl.0),
            last_patch: Mutex::default(),
            writing: Mutex::default(),
            jobs,
            cache,
            companion,
        });
        let listener: Weak<dyn ChangeListener> = Arc::downgrade(&(inner.clone() as Arc<dyn ChangeListener>));
        inner.jobs.bus().tell_changes_to(listener);
        Self { inner }
    }

    /// Every provider.
    pub fn providers(&self) -> impl Iterator<Item = &Arc<Provider>> {
        self.inner.providers.values()
    }

    /// A provider, by its name.
    pub fn provider(&self, name: &str) -> Option<&Arc<Provider>> {
        self.inner.providers.get(name)
    }

    /// Whether the deprecated flat `wolt` is written.
    pub fn has_legacy_wolt_field(&self) -> bool {
        self.inner.legacy_wolt_field
    }

    /// The queues of lookups, and how this process works them.
    pub fn queues(&self) -> Vec<QueueSpec> {
        let enabled = self.providers().filter(|provider| provider.settings.enabled);
        let spec = |provider: &Arc<Provider>| QueueSpec {
            concurrency: provider.settings.concurrency,
            lock: provider.settings.lock_ttl.max(SHORTEST_LOCK),
            deadline: provider.settings.deadline + Duration::from_secs(30),
            backoff: Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) },
            ..QueueSpec::new(
                queue(&provider.name),
                Arc::new(Lookups { enrich: self.clone(), provider: provider.clone() }),
            )
        };
        enabled.map(spec).collect()
    }

    /// Looks at one entry. None if there is neither an entry nor a lookup.
    pub async fn look(&self, provider: &Provider, place: &str) -> Result<Option<Looked>, StoreError> {
        let inner = &self.inner;
        let key = entry_key(&provider.name, place);
        let entry = inner.jobs.store().entries(vec![key]).await?.into_iter().next().flatten();
        let entry = entry.filter(|entry| entry.age != Age::Gone);
        let job = self.live_job(provider, place).await?.map(|job| job.id.to_string());
        if entry.is_none() && job.is_none() {
            return Ok(None);
        }
        let resolved = entry.as_ref().and_then(Resolved::of);
        let status = resolved.as_ref().map_or("PENDING", |resolved| resolved.status.word());
        let (url, meta) = resolved.map_or((None, None), |resolved| (resolved.url, resolved.meta));
        Ok(Some(Looked {
            provider: provider.name.clone(),
            place_id: place.to_owned(),
            status,
            url,
            updated_at: entry.as_ref().map(|entry| entry.updated_at),
            expires_at: entry.as_ref().map(|entry| entry.stale_until),
            meta,
            job,
        }))
    }

    async fn live_job(&self, provider: &Provider, place: &str) -> Result<Option<Job>, StoreError> {
        let filter = JobFilter {
            queue: Some(queue(&provider.name)),
            key: Some(place.to_owned()),
            limit: 1,
            ..JobFilter::default()
        };
        let newest = self.inner.jobs.store().jobs(filter).await?.into_iter().next();
        Ok(newest.filter(|job| job.state.is_live()))
    }

    /// Forgets one entry. Those who were told of it still hear what it was. True if there was one.
    pub async fn forget(
        &self,
        provider: &Provider,
        place: &str,
        request_id: Option<String>,
    ) -> Result<bool, StoreError> {
        let inner = &self.inner;
        let mut told = NewEvent::new(subject(place), format!("{}_entry_forgotten", provider.name));
        told.request_id = request_id;
        inner.cache.forget(entry_key(&provider.name, place), inner.request_ttl, Some(told)).await
    }
}

impl Inner {
    pub(super) fn decisions(&self, provider: &Provider) -> Arc<Decisions> {
        self.decisions.get(&provider.name).cloned().expect("every provider has some")
    }

    /// What a lookup of this process is about to write: said when it is true.
    pub(super) fn is_writing(&self, key: EntryKey, written: Written) {
        let mut writing = self.writing();
        // Those of lookups that were not committed after all stay behind.
        if writing.len() >= limits::CHANGED_MAX {
            writing.clear();
        }
        writing.insert(key, written);
    }

    fn writing(&self) -> MutexGuard<'_, HashMap<EntryKey, Written>> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those of the keys that are places.
fn places(keys: &[EntryKey]) -> impl Iterator<Item = &EntryKey> {
    keys.iter().filter(|key| provider_of(&key.space).is_some())
}

impl ChangeListener for Inner {
    /// A lookup of this process has been committed.
    fn changed_here(&self, keys: &[EntryKey]) {
        let writing = self.writing();
        for key in places(keys) {
            let decisions = provider_of(&key.space).and_then(|provider| self.decisions.get(provider));
            if let (Some(written), Some(decisions)) = (writing.get(key), decisions) {
                decisions.written(&key.key, written);
            }
        }
    }

    fn changed(&self, _key: &EntryKey, _at: Option<Timestamp>) {}

    fn anything(&self) {}

    /// Its result is in the copies, and the others know of it: its lease is given back.
    fn told(&self, keys: &[EntryKey]) {
        for key in places(keys) {
            let written = self.writing().remove(key);
            if let (Some(written), Some(companion)) = (written, &self.companion) {
                let (companion, lock) = (companion.clone(), copy::lock_name(key));
                tokio::spawn(async move { companion.give_back(&[lock], &written.owner).await });
            }
        }
    }
}

/// How the copies of these providers look.
pub fn forms(config: &EnrichConfig) -> Vec<Arc<dyn Form>> {
    let form = |(name, provider): (&String, &ProviderConfig)| {
        let settings = ProviderSettings::of(provider, config.request_ttl.0);
        Arc::new(PlaceForm::new(name, settings.lives)) as Arc<dyn Form>
    };
    config.providers.iter().map(form).collect()
}

/// Entries whose refreshing is remembered, and for how long: then the store is asked again, which
/// remembers it for good.
const REFRESHED_MAX: u64 = 10_000;
const REFRESHED_FOR: Duration = Duration::from_secs(60);
/// A lookup is locked for at least this long at a time; it is renewed while it runs.
const SHORTEST_LOCK: Duration = Duration::from_secs(5);
