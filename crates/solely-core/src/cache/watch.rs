//! Telling those who wait for entries.
//!
//! Register, then read the store: a watch is registered before its keys are read, so that a
//! change is either seen by that read or heard of after it. A change that is heard of has its key
//! read; a slow poll reads all watched keys, in batches, should a wake-up be lost. Never a cursor
//! over changes: rows commit out of order. What a watch was sent, by key and time of change, it
//! is not sent again. Entries that were forgotten are heard of as gone.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::{Entry, EntryKey};
use crate::bus::{Bus, ChangeListener};
use crate::clock::Timestamp;
use crate::fault::{Guard, Guards, Points};
use crate::limits;
use crate::store::Store;

/// Someone who waits for entries. Told without being waited for: it does no more than take note.
pub trait Hears: Send + Sync {
    /// An entry that is watched, as it is now.
    fn hear(&self, entry: &Entry) -> Heard;
}

/// Whether someone goes on waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// For what this entry becomes next.
    More,
    /// For others, and no longer for this one.
    Enough,
    /// For nothing.
    Nothing,
}

/// A channel hears until it is full or closed.
impl Hears for mpsc::Sender<Entry> {
    fn hear(&self, entry: &Entry) -> Heard {
        if self.try_send(entry.clone()).is_ok() { Heard::More } else { Heard::Nothing }
    }
}

/// The watches of one process.
#[derive(Clone)]
pub struct Watches {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    state: Mutex<State>,
    some: Notify,
    guards: Guards,
    points: Points,
    poll: Duration,
}

#[derive(Default)]
struct State {
    by_key: HashMap<EntryKey, HashSet<u64>>,
    watches: HashMap<u64, Sink>,
    /// Keys that are to be read.
    unread: HashSet<EntryKey>,
    last_id: u64,
    /// Between all keys of all watches.
    keys: usize,
}

struct Sink {
    hears: Arc<dyn Hears>,
    /// When the entry of each key was written that was sent last.
    sent: HashMap<EntryKey, Option<Timestamp>>,
}

/// Why there is no watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoWatch {
    /// It has more keys than one may have.
    TooManyKeys,
    /// This process watches as many as it can.
    TooManyWatched,
}

/// A watch. It ends when it is dropped.
pub struct Watch {
    id: u64,
    inner: Arc<Inner>,
}

impl Watches {
    /// The watches of a process.
    pub fn new(store: Arc<dyn Store>, bus: &Bus) -> Self {
        Self::for_tests(store, bus, limits::WATCH_POLL, (Guards::from_env(), Points::default()))
    }

    /// The same, with another poll, guards that may be open and points at which it can be held up.
    pub fn for_tests(
        store: Arc<dyn Store>,
        bus: &Bus,
        poll: Duration,
        (guards, points): (Guards, Points),
    ) -> Self {
        let inner =
            Arc::new(Inner { store, state: Mutex::default(), some: Notify::new(), guards, points, poll });
        let listener: Weak<dyn ChangeListener> = Arc::downgrade(&(inner.clone() as Arc<dyn ChangeListener>));
        bus.tell_changes_to(listener);
        tokio::spawn(read_all(Arc::downgrade(&inner)));
        Self { inner }
    }

    /// Watches keys: each entry that is there, and each one that is written later.
    pub async fn watch(&self, keys: Vec<EntryKey>, hears: Arc<dyn Hears>) -> Result<Watch, NoWatch> {
        let inner = &self.inner;
        let watch = inner.begin(hears);
        if inner.guards.hold(Guard::RegisterFirst) {
            watch.add(keys)?;
        } else {
            let found = inner.store.kept_entries(keys.clone()).await.unwrap_or_default();
            inner.points.reach("watch.read").await;
            inner.register(watch.id, keys, false)?;
            inner.deliver(&found.into_iter().flatten().collect::<Vec<_>>());
        }
        Ok(watch)
    }

    /// A watch of nothing yet.
    pub fn begin(&self, hears: Arc<dyn Hears>) -> Watch {
        self.inner.begin(hears)
    }

    /// How many keys are watched, each as often as it is.
    pub fn watched(&self) -> usize {
        self.inner.state().keys
    }
}

impl Watch {
    /// Watches these keys as well. One that is watched already is read again.
    pub fn add(&self, keys: Vec<EntryKey>) -> Result<(), NoWatch> {
        self.inner.register(self.id, keys, true)
    }

    /// The same, for whoever reads them itself from now on.
    pub fn add_unread(&self, keys: Vec<EntryKey>) -> Result<(), NoWatch> {
        self.inner.register(self.id, keys, false)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.inner.state().end(self.id);
    }
}

impl ChangeListener for Inner {
    fn changed_here(&self, keys: &[EntryKey]) {
        for key in keys {
            self.changed(key, None);
        }
    }

    fn changed(&self, key: &EntryKey, _at: Option<Timestamp>) {
        let mut state = self.state();
        if state.by_key.contains_key(key) && state.unread.insert(key.clone()) {
            self.some.notify_one();
        }
    }

    fn anything(&self) {
        self.state().read_everything();
        self.some.notify_one();
    }
}

impl State {
    fn read_everything(&mut self) {
        self.unread = self.by_key.keys().cloned().collect();
    }

    /// A watch has heard all that it wanted to, of a key or at all.
    fn leave(&mut self, id: u64, key: &EntryKey, heard: Heard) {
        match heard {
            Heard::More => {}
            Heard::Enough => {
                let watched = self.watches.get_mut(&id).and_then(|sink| sink.sent.remove(key));
                if watched.is_some() {
                    self.unwatch(id, key);
                }
            }
            Heard::Nothing => self.end(id),
        }
    }

    fn end(&mut self, id: u64) {
        let Some(sink) = self.watches.remove(&id) else { return };
        for key in sink.sent.into_keys() {
            self.unwatch(id, &key);
        }
    }

    fn unwatch(&mut self, id: u64, key: &EntryKey) {
        self.keys -= 1;
        if let Some(watches) = self.by_key.get_mut(key) {
            watches.remove(&id);
            if watches.is_empty() {
                self.by_key.remove(key);
                self.unread.remove(key);
            }
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>, hears: Arc<dyn Hears>) -> Watch {
        let mut state = self.state();
        state.last_id += 1;
        let id = state.last_id;
        state.watches.insert(id, Sink { hears, sent: HashMap::new() });
        Watch { id, inner: self.clone() }
    }

    /// All of these keys are watched, or none more than before.
    fn register(&self, id: u64, keys: Vec<EntryKey>, then_read: bool) -> Result<(), NoWatch> {
        let mut state = self.state();
        let State { by_key, watches, unread, keys: watched, .. } = &mut *state;
        let Some(sink) = watches.get_mut(&id) else { return Ok(()) };
        let keys: HashSet<EntryKey> = keys.into_iter().collect();
        let new = keys.iter().filter(|key| !sink.sent.contains_key(key)).count();
        if sink.sent.len() + new > limits::WATCH_KEYS_MAX {
            return Err(NoWatch::TooManyKeys);
        }
        if *watched + new > limits::WATCHED_MAX {
            return Err(NoWatch::TooManyWatched);
        }
        *watched += new;
        for key in keys {
            by_key.entry(key.clone()).or_default().insert(id);
            sink.sent.entry(key.clone()).or_default();
            if then_read {
                unread.insert(key);
            }
        }
        if then_read {
            self.some.notify_one();
        }
        Ok(())
    }

    fn take_unread(&self) -> Vec<EntryKey> {
        let mut state = self.state();
        let keys: Vec<EntryKey> = state.unread.iter().take(limits::ENTRIES_BATCH).cloned().collect();
        for key in &keys {
            state.unread.remove(key);
        }
        keys
    }

    /// Reads what is to be read. False if the store could not be asked.
    async fn read(&self) -> bool {
        loop {
            let keys = self.take_unread();
            if keys.is_empty() {
                return true;
            }
            match self.store.kept_entries(keys.clone()).await {
                Ok(found) => {
                    self.points.reach("watch.read").await;
                    self.deliver(&found.into_iter().flatten().collect::<Vec<_>>());
                }
                Err(error) => {
                    tracing::debug!(%error, "watched entries cannot be read");
                    self.state().unread.extend(keys);
                    return false;
                }
            }
        }
    }

    /// Tells entries to those who watch them and have not had them. Nobody is told under the lock: whoever
    /// hears of one may begin to watch others.
    fn deliver(&self, entries: &[Entry]) {
        for entry in entries {
            for (id, hears) in self.to_be_told(entry) {
                let heard = hears.hear(entry);
                if heard != Heard::More {
                    self.state().leave(id, &entry.key, heard);
                }
            }
        }
    }

    fn to_be_told(&self, entry: &Entry) -> Vec<(u64, Arc<dyn Hears>)> {
        let mut state = self.state();
        let State { by_key, watches, .. } = &mut *state;
        let mut told = Vec::new();
        for id in by_key.get(&entry.key).into_iter().flatten() {
            let Some(sink) = watches.get_mut(id) else { continue };
            let Some(sent) = sink.sent.get_mut(&entry.key) else { continue };
            if *sent < Some(entry.updated_at) || !self.guards.hold(Guard::SentOnce) {
                *sent = Some(entry.updated_at);
                told.push((*id, sink.hears.clone()));
            }
        }
        told
    }
}

/// Reads for as long as anyone watches or may.
async fn read_all(inner: Weak<Inner>) {
    let mut polled = Instant::now();
    while let Some(inner) = inner.upgrade() {
        let woken = tokio::time::timeout(LOOK_UP.min(inner.poll), inner.some.notified()).await.is_ok();
        if polled.elapsed() >= inner.poll {
            polled = Instant::now();
            inner.state().read_everything();
        } else if !woken {
            continue;
        }
        if !inner.read().await {
            tokio::time::sleep(TROUBLE).await;
            inner.some.notify_one();
        }
    }
}

const TROUBLE: Duration = Duration::from_millis(100);
const LOOK_UP: Duration = Duration::from_secs(1);
