//! Reading through the tiers, and telling of changes.
//!
//! A read asks memory, then the companion for what is missing there, then the store for what is
//! missing still: at most one round trip each, whatever the number of keys. What a tier has, those
//! above it keep.
//!
//! A change is a commit in the store. Whoever made it drops its own copies at once; a task then
//! reads what changed, replaces the companion's copies and tells the other processes. Should the
//! process die in between, other processes find the change by themselves within seconds: the
//! companion's copies are trusted only while someone makes them follow the store's list of
//! changes, and memory is trusted for a bounded time.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::memory::{Memory, Remembered, Source};
use super::{Change, Entry, EntryKey, Put, PutEntry};
use crate::bus::{Bus, ChangeListener, Note};
use crate::clock::Timestamp;
use crate::companion::{Companion, Copied, Hinted, Visit, Wanted};
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::fault::{Guards, Points};
use crate::limits;
use crate::metrics::Metrics;
use crate::store::Store;

/// Entries, read through copies.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    companion: Option<Arc<dyn Companion>>,
    memory: Memory,
    bus: Bus,
    metrics: Arc<Metrics>,
    untold: Mutex<Untold>,
    some: Notify,
    points: Points,
}

/// Changes of this process that are still to be told of.
#[derive(Default)]
struct Untold {
    /// With the time of those that were forgotten.
    keys: HashMap<EntryKey, Option<Timestamp>>,
    /// There were too many to remember.
    anything: bool,
}

/// Copies that were found, and what is needed to add to them.
pub struct CopiedEntries {
    /// In the order asked for; none where the store has to be asked.
    pub entries: Vec<Option<Entry>>,
    /// What became of the hint of each that is missing, where hints were asked for.
    pub hints: Vec<Option<Hinted>>,
    doubtful: Vec<Option<Entry>>,
    visit: Visit,
}

/// Hints to be taken of what is missing.
#[derive(Clone, Copy)]
pub struct AskHints<'a> {
    /// Names the hint of a key.
    pub name: &'a (dyn Fn(&EntryKey) -> String + Sync),
    /// For whom, by the place of the key.
    pub owner: &'a (dyn Fn(usize) -> String + Sync),
    /// For how long.
    pub ttl: Duration,
}

impl CopiedEntries {
    /// What was true last of the keys that are missing, if there is something for each of them: good
    /// enough when the store cannot be asked.
    pub fn last_known(&self) -> Option<Vec<Entry>> {
        self.missing().into_iter().map(|place| self.doubtful[place].clone()).collect()
    }

    /// The places of the keys that have to be asked of the store.
    pub fn missing(&self) -> Vec<usize> {
        (0..self.entries.len()).filter(|&place| self.entries[place].is_none()).collect()
    }
}

impl Cache {
    /// Entries of a store, with a companion if there is one.
    pub fn new(
        store: Arc<dyn Store>,
        bus: Bus,
        metrics: Arc<Metrics>,
        companion: Option<Arc<dyn Companion>>,
    ) -> Self {
        Self::for_tests(store, bus, metrics, companion, (Guards::from_env(), Points::default()))
    }

    /// The same, with guards that may be open and points at which it can be held up.
    pub fn for_tests(
        store: Arc<dyn Store>,
        bus: Bus,
        metrics: Arc<Metrics>,
        companion: Option<Arc<dyn Companion>>,
        (guards, points): (Guards, Points),
    ) -> Self {
        let inner = Arc::new(Inner {
            store,
            companion,
            memory: Memory::new(guards),
            bus,
            metrics,
            untold: Mutex::default(),
            some: Notify::new(),
            points,
        });
        let listener: Weak<dyn ChangeListener> = Arc::downgrade(&(inner.clone() as Arc<dyn ChangeListener>));
        inner.bus.tell_changes_to(listener);
        tokio::spawn(tell_all(Arc::downgrade(&inner)));
        Self { inner }
    }

    /// What memory has of a key, if it can be trusted.
    pub fn remembered(&self, key: &EntryKey) -> Option<Remembered> {
        let found = self.inner.memory.remembered(key)?;
        self.inner.metrics.memory_read();
        Some(found)
    }

    /// Keeps what was made of it for as long as memory has it.
    pub fn keep_made(&self, key: &EntryKey, of: &Remembered, made: Arc<dyn Any + Send + Sync>, bytes: usize) {
        self.inner.memory.keep_made(key, of, made, bytes);
    }

    /// The entries of these keys, in order.
    ///
    /// When the store cannot be asked, what was true last is answered if there is something for
    /// every key.
    pub async fn read(&self, keys: Vec<EntryKey>) -> Result<Vec<Option<Entry>>, StoreError> {
        let mut copied = self.copies(&keys).await;
        let missing = copied.missing();
        if missing.is_empty() {
            return Ok(copied.entries);
        }
        let asked = Instant::now();
        let of_store = missing.iter().map(|&place| keys[place].clone()).collect();
        match self.inner.store.entries(of_store).await {
            Ok(found) => {
                let found: Vec<(usize, Option<Entry>)> = missing.into_iter().zip(found).collect();
                let known = found.iter().filter_map(|(place, entry)| Some((*place, entry.clone()?)));
                self.remember(&copied, known.collect(), asked);
                for (place, entry) in found {
                    copied.entries[place] = entry;
                }
                Ok(copied.entries)
            }
            Err(error) if error.retryable() => {
                let last = copied.last_known().ok_or(error)?;
                for (place, entry) in missing.into_iter().zip(last) {
                    copied.entries[place] = Some(entry);
                }
                Ok(copied.entries)
            }
            Err(error) => Err(error),
        }
    }

    /// What memory and the companion have of these keys. At most one round trip.
    pub async fn copies(&self, keys: &[EntryKey]) -> CopiedEntries {
        self.copies_or_hints(keys, None).await
    }

    /// The same, and takes the hints of those that are missing in the same round trip.
    pub async fn copies_or_hints(&self, keys: &[EntryKey], hints: Option<AskHints<'_>>) -> CopiedEntries {
        let inner = &self.inner;
        let mut copied = CopiedEntries {
            entries: vec![None; keys.len()],
            hints: vec![None; keys.len()],
            doubtful: vec![None; keys.len()],
            visit: Visit { places: vec![None; keys.len()] },
        };
        for (place, key) in keys.iter().enumerate() {
            match inner.memory.get(key) {
                Some((entry, true)) => copied.entries[place] = Some(entry),
                Some((entry, false)) => copied.doubtful[place] = Some(entry),
                None => {}
            }
        }
        let missing = copied.missing();
        inner.metrics.cache_read("memory", keys.len() - missing.len());
        if let (Some(companion), false) = (&inner.companion, missing.is_empty()) {
            let asked = Instant::now();
            let wanted: Vec<EntryKey> = missing.iter().map(|&place| keys[place].clone()).collect();
            let (read, hinted) = match hints {
                None => (companion.read(&wanted).await, vec![None; wanted.len()]),
                Some(AskHints { name: hint, owner, ttl }) => {
                    let with_hint = |(&place, key): (&usize, EntryKey)| Wanted {
                        hint: hint(&key),
                        owner: owner(place),
                        key,
                    };
                    let wanted: Vec<Wanted> = missing.iter().zip(wanted).map(with_hint).collect();
                    companion.read_or_hint(&wanted, ttl).await
                }
            };
            let mut found = 0;
            for ((nth, &place), hinted) in missing.iter().enumerate().zip(hinted) {
                copied.hints[place] = hinted;
                copied.visit.places[place] = read.visit.places.get(nth).cloned().flatten();
                match &read.copies[nth] {
                    Copied::Entry(entry) if inner.memory.put(entry, Source::Copies, asked) => {
                        copied.entries[place] = Some(entry.clone());
                        found += 1;
                    }
                    Copied::Doubtful(entry) if inner.memory.accepts(entry, Source::Copies, asked) => {
                        copied.doubtful[place] = Some(entry.clone());
                    }
                    Copied::Entry(_) | Copied::Doubtful(_) | Copied::Missing => {}
                }
            }
            inner.metrics.cache_read("redis", found);
        }
        inner.metrics.cache_read("store", copied.missing().len());
        copied
    }

    /// Keeps what the store had of keys that were missing, asked for at an instant: each with its
    /// place among the keys.
    pub fn remember(&self, copied: &CopiedEntries, found: Vec<(usize, Entry)>, asked: Instant) {
        let inner = &self.inner;
        let mut to_copy = Vec::new();
        for (place, entry) in found {
            let new = inner.memory.put(&entry, Source::Store, asked);
            if new && copied.visit.places[place].is_some() {
                to_copy.push((place, entry));
            }
        }
        if let (Some(companion), false) = (inner.companion.clone(), to_copy.is_empty()) {
            let (visit, points) = (copied.visit.clone(), inner.points.clone());
            tokio::spawn(async move {
                points.reach("cache.back_fill").await;
                companion.back_fill(visit, to_copy, asked).await;
            });
        }
    }

    /// Writes entries, and tells of it.
    pub async fn put(&self, entries: Vec<PutEntry>) -> Result<Vec<Put>, StoreError> {
        let keys: Vec<EntryKey> = entries.iter().map(|entry| entry.key.clone()).collect();
        let outcomes = self.inner.store.put_entries(entries).await;
        // One whose outcome is not known may have happened.
        if !matches!(&outcomes, Err(error) if !matches!(error, StoreError::Unknown(_))) {
            self.inner.bus.changed_here(&keys);
        }
        outcomes
    }

    /// Forgets an entry that may be served, and tells of it. True if there was one. What it held is kept
    /// for this long, for those who were told of it.
    pub async fn forget(
        &self,
        key: EntryKey,
        keep: Duration,
        told: Option<NewEvent>,
    ) -> Result<bool, StoreError> {
        let outcome = self.inner.store.forget_entry(key.clone(), keep, told).await;
        match outcome {
            Ok(Some(at)) => self.inner.untell(&[key], Some(at)),
            Err(StoreError::Unknown(_)) => self.inner.bus.changed_here(&[key]),
            Ok(None) | Err(_) => {}
        }
        outcome.map(|at| at.is_some())
    }
}

impl ChangeListener for Inner {
    fn changed_here(&self, keys: &[EntryKey]) {
        self.untell(keys, None);
    }

    fn changed(&self, key: &EntryKey, at: Option<Timestamp>) {
        if key.is_copied() {
            self.memory.changed(key, at);
        }
    }

    fn anything(&self) {
        self.memory.flush();
    }
}

impl Inner {
    /// Drops the copies of this process, and has the others told.
    fn untell(&self, keys: &[EntryKey], forgotten_at: Option<Timestamp>) {
        let mut untold = self.untold();
        for key in keys {
            if !key.is_copied() {
                self.bus.tell(&Note::Changed { key: key.clone(), at: None });
                continue;
            }
            self.memory.changed(key, forgotten_at);
            if untold.keys.len() < limits::CHANGED_MAX {
                let at = untold.keys.entry(key.clone()).or_default();
                *at = (*at).max(forgotten_at);
            } else {
                untold.anything = true;
            }
        }
        self.some.notify_one();
    }

    fn untold(&self) -> MutexGuard<'_, Untold> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Some of what is to be told, and whether it is anything at all.
    fn take(&self) -> (Vec<(EntryKey, Option<Timestamp>)>, bool) {
        let mut untold = self.untold();
        let keys: Vec<EntryKey> = untold.keys.keys().take(limits::ENTRIES_BATCH).cloned().collect();
        let taken = keys.into_iter().filter_map(|key| untold.keys.remove_entry(&key)).collect();
        if !untold.keys.is_empty() {
            self.some.notify_one();
        }
        (taken, std::mem::take(&mut untold.anything))
    }

    fn put_back(&self, taken: Vec<(EntryKey, Option<Timestamp>)>) {
        let mut untold = self.untold();
        for (key, at) in taken {
            untold.keys.entry(key).or_insert(at);
        }
    }

    async fn tell(&self) {
        let (taken, anything) = self.take();
        if anything {
            self.bus.tell(&Note::Anything);
        }
        if taken.is_empty() {
            return;
        }
        let asked = Instant::now();
        let keys = taken.iter().map(|(key, _)| key.clone()).collect();
        let Ok(entries) = self.store.entries(keys).await else {
            // The others drop what they have; what it is now is told when the store can be read.
            for (key, _) in &taken {
                self.bus.tell(&Note::Changed { key: key.clone(), at: None });
            }
            // That something was forgotten is known without the store.
            let forgotten = taken
                .iter()
                .filter_map(|(key, at)| Some(Change { key: key.clone(), updated_at: (*at)?, entry: None }));
            let forgotten: Vec<Change> = forgotten.collect();
            if let (Some(companion), false) = (&self.companion, forgotten.is_empty()) {
                companion.replace(forgotten, Instant::now()).await;
            }
            self.put_back(taken);
            tokio::time::sleep(TROUBLE).await;
            self.some.notify_one();
            return;
        };
        let mut changes = Vec::with_capacity(taken.len());
        for ((key, forgotten_at), entry) in taken.into_iter().zip(entries) {
            let written_at = entry.as_ref().map(|entry| entry.updated_at);
            if let Some(entry) = &entry {
                self.memory.put(entry, Source::Store, asked);
            }
            if let Some(updated_at) = written_at.max(forgotten_at) {
                changes.push(Change { key, updated_at, entry });
            } else {
                // Another has forgotten it meanwhile, and tells of it.
                self.bus.tell(&Note::Changed { key, at: None });
            }
        }
        self.points.reach("cache.replace").await;
        let note = |change: &Change| Note::Changed { key: change.key.clone(), at: Some(change.updated_at) };
        let notes: Vec<Note> = changes.iter().map(note).collect();
        let told: Vec<EntryKey> = changes.iter().map(|change| change.key.clone()).collect();
        for change in &changes {
            self.memory.learnt(&change.key, change.updated_at, asked);
        }
        if let Some(companion) = self.companion.clone() {
            // Others look there first, so it is told first, unless it keeps us waiting.
            let replaced = tokio::spawn(async move { companion.replace(changes, asked).await });
            let _ = tokio::time::timeout(COMPANION_FIRST, replaced).await;
        }
        for note in &notes {
            self.bus.tell(note);
        }
        self.bus.told(&told);
    }
}

/// Tells of changes for as long as the cache is there.
async fn tell_all(inner: Weak<Inner>) {
    while let Some(inner) = inner.upgrade() {
        let told = inner.clone();
        drop(inner);
        // Looks up now and then, so as to end with the cache.
        if tokio::time::timeout(LOOK_UP, told.some.notified()).await.is_ok() {
            told.tell().await;
        }
    }
}

const TROUBLE: Duration = Duration::from_millis(100);
/// How long others are left untold while the companion's copies are replaced.
const COMPANION_FIRST: Duration = Duration::from_millis(20);
const LOOK_UP: Duration = Duration::from_secs(1);
