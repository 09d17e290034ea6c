//! products of one process: what it stands on, what it remembers, and its queue.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::app::App;
use super::catalogue::Catalogue;
use super::flight::{Landing, Stored};
use super::job::Refreshes;
use super::look::Looks;
use super::search::{Search, SearchError, key_of, operation};
use super::{QUEUE, subject};
use crate::cache::{Age, Cache, Entry, EntryKey, Lifetimes, Overwrite, PutEntry};
use crate::clock::Timestamp;
use crate::companion::Companion;
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::fault::Guards;
use crate::id::{LeaseId, ProcessId};
use crate::json::Json;
use crate::lease::{Acquired, Holder, LeaseRequest, Leases};
use crate::queue::Jobs;
use crate::worker::QueueSpec;

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
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) jobs: Jobs,
    pub(super) cache: Cache,
    pub(super) leases: Leases,
    pub(super) companion: Option<Arc<dyn Companion>>,
    pub(super) process: ProcessId,
    pub(super) guards: Guards,
    pub(super) apps: BTreeMap<String, Arc<App>>,
    flights: Mutex<HashMap<EntryKey, Landing>>,
    /// Catalogues that are parsed.
    shelf: moka::sync::Cache<EntryKey, Arc<Shelved>>,
    pub(super) looks: Looks,
    /// Keys whose refresh was queued a short while ago, and until when.
    pub(super) job_locks: moka::sync::Cache<EntryKey, tokio::time::Instant>,
}

/// A catalogue that is parsed, and which writing of it this is.
#[derive(Debug)]
pub(super) struct Shelved {
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) version: u64,
    pub(super) updated_at: Timestamp,
}

impl Shelved {
    /// Whether this is what an entry holds. Of two writings of one entry the later has the later time.
    fn is(&self, entry: &Entry) -> bool {
        self.updated_at == entry.updated_at && self.version == entry.version
    }
}

/// Bytes of parsed catalogues that a process remembers.
const SHELF_BYTES: u64 = 256 * 1024 * 1024;
/// Keys whose job lock is remembered.
const JOB_LOCKS: u64 = 100_000;

impl Products {
    /// products of these apps.
    pub fn new(parts: ProductsParts, apps: Vec<App>) -> Self {
        let ProductsParts { jobs, cache, leases, companion, process } = parts;
        let weight = |_: &EntryKey, shelved: &Arc<Shelved>| {
            u32::try_from(shelved.catalogue.size()).unwrap_or(u32::MAX)
        };
        let inner = Inner {
            jobs,
            cache,
            leases,
            companion,
            process,
            guards: Guards::from_env(),
            apps: apps.into_iter().map(|app| (app.name.clone(), Arc::new(app))).collect(),
            flights: Mutex::default(),
            looks: Looks::default(),
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
        let fence = self.inner.fence(&key).await?;
        // In the store, and when the fence is known: what a call brought before is seen.
        if products.is_empty() {
            let found =
                self.inner.jobs.store().entries(vec![key.clone()]).await?.into_iter().next().flatten();
            let cached =
                found.filter(|entry| entry.age != Age::Gone).and_then(|entry| self.inner.shelve(&entry));
            if cached.is_some_and(|cached| !cached.catalogue.is_empty()) {
                return Ok(());
            }
        }
        let (life, value) = (app.settings.ttl, format!("{{\"products\":{}}}", products.text()));
        let life = if products.is_empty() { app.settings.empty_ttl } else { life };
        let lifetimes = Lifetimes { fresh: life, stale: life, keep: life };
        let (value, overwrite) = (Json::from_stored(value), Overwrite::Above(fence));
        let told = NewEvent::new(subject(&key), "products_put").outcome(if products.is_empty() {
            "empty"
        } else {
            "whole"
        });
        let told = Some(NewEvent { request_id: Some(search.request_id.clone()), ..told });
        self.inner.cache.put(vec![PutEntry { key, value, lifetimes, overwrite, told }]).await?;
        Ok(())
    }
}

impl Inner {
    pub(super) fn flights(&self) -> MutexGuard<'_, HashMap<EntryKey, Landing>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The catalogue of an entry, parsed once.
    pub(super) fn shelve(&self, entry: &Entry) -> Option<Arc<Shelved>> {
        if let Some(shelved) = self.shelf.get(&entry.key).filter(|shelved| shelved.is(entry)) {
            return Some(shelved);
        }
        let stored: Stored<'_> = serde_json::from_str(entry.value.as_str()).ok()?;
        let catalogue = Arc::new(Catalogue::parse(stored.products.get()).ok()?);
        let (version, updated_at) = (entry.version, entry.updated_at);
        Some(self.put_on_shelf(&entry.key, Shelved { catalogue, version, updated_at }))
    }

    pub(super) fn put_on_shelf(&self, key: &EntryKey, shelved: Shelved) -> Arc<Shelved> {
        let shelved = Arc::new(shelved);
        self.shelf.insert(key.clone(), shelved.clone());
        shelved
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

/// Longer than any job lock.
const JOB_LOCK_LONGEST: Duration = Duration::from_secs(24 * 3_600);
/// Refreshes at once by one process.
const REFRESHES_MAX: usize = 64;
const FENCE_TTL: Duration = Duration::from_secs(10);
