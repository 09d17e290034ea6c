//! Copies of entries in the memory of this process.
//!
//! A copy is trusted for [`limits::MEMORY_TRUST`] after it was known to be true, counted from
//! before it was asked for. A change that is heard of drops the copy and leaves a note: what was
//! asked for before the change, or is older than it, is not taken in again however late it
//! arrives. When changes may have been missed everything is dropped.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use moka::sync::Cache;
use tokio::time::Instant;

use super::{Entry, EntryKey};
use crate::clock::Timestamp;
use crate::fault::{Guard, Guards};
use crate::limits;

/// Where a copy comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The store: true when it was asked.
    Store,
    /// A companion's copies: true some time before it was asked.
    Copies,
}

#[derive(Clone)]
struct Slot {
    entry: Entry,
    asked: Instant,
    trusted_until: Instant,
    made: Option<Made>,
}

/// What a reader has made of an entry, and how large that is.
#[derive(Clone)]
struct Made {
    thing: Arc<dyn Any + Send + Sync>,
    bytes: usize,
}

/// A copy that can be trusted, looked at where it is.
pub struct Remembered {
    slot: Arc<Slot>,
    /// The instant of the store's clock that it is looked at.
    pub as_of: Timestamp,
}

impl Remembered {
    /// The entry as it was when it was read.
    pub fn entry(&self) -> &Entry {
        &self.slot.entry
    }

    /// What was made of it, and kept by [`Memory::keep_made`].
    pub fn made<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.slot.made.as_ref()?.thing.clone().downcast().ok()
    }
}

/// Changes that were heard of.
#[derive(Clone, Copy)]
struct Heard {
    /// When the last one was heard of whose time is not known; what was asked of the store since is
    /// from after it.
    unknown: Option<Instant>,
    /// What is older than this is from before a change.
    floor: Option<Timestamp>,
    /// When the last of them was heard of.
    at: Instant,
}

#[derive(Default)]
struct Recent {
    heard: HashMap<EntryKey, Heard>,
    /// What was asked for before this is not taken in.
    flushed: Option<Instant>,
}

/// The copies of one process.
pub struct Memory {
    slots: Cache<EntryKey, Arc<Slot>>,
    recent: Mutex<Recent>,
    guards: Guards,
}

impl Memory {
    /// An empty one.
    pub fn new(guards: Guards) -> Self {
        let weight = |key: &EntryKey, slot: &Arc<Slot>| {
            let bytes = key.space.len() + 2 * key.key.len() + slot.entry.value.as_str().len() + OVERHEAD;
            let bytes = bytes + slot.made.as_ref().map_or(0, |made| made.bytes);
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        let slots = Cache::builder().weigher(weight).max_capacity(limits::MEMORY_BYTES).build();
        Self { slots, recent: Mutex::default(), guards }
    }

    /// The copy of a key, and whether it can be trusted.
    pub fn get(&self, key: &EntryKey) -> Option<(Entry, bool)> {
        let (slot, now) = (self.slots.get(key)?, Instant::now());
        let trusted = now < slot.trusted_until || !self.guards.hold(Guard::MemoryTrust);
        Some((slot.entry.after(now.saturating_duration_since(slot.asked)), trusted))
    }

    /// The copy of a key where it is, if it can be trusted.
    pub fn remembered(&self, key: &EntryKey) -> Option<Remembered> {
        let (slot, now) = (self.slots.get(key)?, Instant::now());
        let trusted = now < slot.trusted_until || !self.guards.hold(Guard::MemoryTrust);
        let as_of = slot.entry.as_of.plus(now.saturating_duration_since(slot.asked));
        trusted.then_some(Remembered { slot, as_of })
    }

    /// Keeps what a reader has made of a copy, for as long as the copy is kept.
    pub fn keep_made(
        &self,
        key: &EntryKey,
        of: &Remembered,
        thing: Arc<dyn Any + Send + Sync>,
        bytes: usize,
    ) {
        // Under the lock of those who drop copies: what was dropped does not come back.
        let _recent = self.recent();
        if self.slots.get(key).is_some_and(|slot| Arc::ptr_eq(&slot, &of.slot)) {
            let made = Some(Made { thing, bytes });
            self.slots.insert(key.clone(), Arc::new(Slot { made, ..(*of.slot).clone() }));
        }
    }

    /// Takes in what was asked for at an instant. False if it is from before a change.
    pub fn put(&self, entry: &Entry, source: Source, asked: Instant) -> bool {
        let recent = self.recent();
        if !self.takes(&recent, entry, source, asked) {
            return false;
        }
        if recent.flushed.is_some_and(|flushed| asked <= flushed) {
            return true;
        }
        if self.slots.get(&entry.key).is_some_and(|slot| slot.entry.updated_at > entry.updated_at) {
            return true;
        }
        let trust = match source {
            Source::Store => limits::MEMORY_TRUST,
            Source::Copies => limits::MEMORY_TRUST.saturating_sub(limits::COPIES_TRUST),
        };
        let slot = Slot { entry: entry.clone(), asked, trusted_until: asked + trust, made: None };
        self.slots.insert(entry.key.clone(), Arc::new(slot));
        true
    }

    fn takes(&self, recent: &Recent, entry: &Entry, source: Source, asked: Instant) -> bool {
        let Some(heard) = recent.heard.get(&entry.key) else { return true };
        // What was asked for longer ago would not be trusted anyway.
        if heard.at.elapsed() > REMEMBERED || !self.guards.hold(Guard::Floors) {
            return true;
        }
        let new_enough = heard.floor.is_none_or(|floor| entry.updated_at >= floor);
        let since = heard.unknown.is_none_or(|at| source == Source::Store && asked > at);
        new_enough && since
    }

    /// Whether what was asked for at an instant may be answered: not if it is known to be from
    /// before a change.
    pub fn accepts(&self, entry: &Entry, source: Source, asked: Instant) -> bool {
        self.takes(&self.recent(), entry, source, asked)
    }

    /// Drops the copy of an entry that has changed, and whatever of it is older than `floor`; without
    /// one, whatever is not asked of the store from now on.
    pub fn changed(&self, key: &EntryKey, floor: Option<Timestamp>) {
        let now = Instant::now();
        self.hear(key, floor, |heard| {
            if floor.is_none() {
                heard.unknown = Some(now);
            }
        });
    }

    /// The time of a change of this process is known: it was read from the store, asked for at an
    /// instant.
    pub fn learnt(&self, key: &EntryKey, floor: Timestamp, asked: Instant) {
        self.hear(key, Some(floor), |heard| {
            if heard.unknown.is_some_and(|at| asked > at) {
                heard.unknown = None;
            }
        });
    }

    fn hear(&self, key: &EntryKey, floor: Option<Timestamp>, note: impl FnOnce(&mut Heard)) {
        let (mut recent, now) = (self.recent(), Instant::now());
        let before = recent.heard.get(key).copied();
        let mut heard = before.unwrap_or(Heard { unknown: None, floor: None, at: now });
        heard.at = now;
        heard.floor = heard.floor.max(floor);
        note(&mut heard);
        let current = self.slots.get(key);
        if current.is_some_and(|slot| !Self::survives(&slot, &heard)) {
            self.slots.invalidate(key);
        }
        recent.heard.insert(key.clone(), heard);
        if recent.heard.len() > limits::CHANGED_MAX {
            recent.heard.retain(|_, heard| now.saturating_duration_since(heard.at) < REMEMBERED);
            if recent.heard.len() > limits::CHANGED_MAX {
                recent.heard.clear();
                self.flush_all(&mut recent, now);
            }
        }
    }

    /// Whether a copy is from after everything that was heard of.
    fn survives(slot: &Slot, heard: &Heard) -> bool {
        heard.floor.is_none_or(|floor| slot.entry.updated_at >= floor)
            && heard.unknown.is_none_or(|at| slot.asked > at)
    }

    /// Changes may have been missed: drops everything.
    pub fn flush(&self) {
        if self.guards.hold(Guard::FlushOnGap) {
            self.flush_all(&mut self.recent(), Instant::now());
        }
    }

    fn flush_all(&self, recent: &mut Recent, now: Instant) {
        self.slots.invalidate_all();
        recent.flushed = Some(now);
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a copy beside its key and value.
const OVERHEAD: usize = 256;
/// What was asked for longer ago than this would not be trusted anyway.
const REMEMBERED: Duration = limits::MEMORY_TRUST;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Age;
    use crate::json::Json;

    fn entry(updated_at: i64) -> Entry {
        let at = Timestamp::from_millis;
        Entry {
            key: key(),
            value: Json::of(&updated_at),
            version: 1,
            updated_at: at(updated_at),
            fresh_until: at(60_000),
            stale_until: at(90_000),
            as_of: at(10_000),
            age: Age::Fresh,
        }
    }

    fn key() -> EntryKey {
        EntryKey::new("space", "a")
    }

    fn trusted(memory: &Memory) -> Option<i64> {
        let (entry, trusted) = memory.get(&key())?;
        trusted.then(|| entry.updated_at.as_millis())
    }

    const MOMENT: Duration = Duration::from_millis(1);

    /// What was made of a copy is kept with it, and gone with it; of one that is gone nothing is kept.
    #[tokio::test(start_paused = true)]
    async fn what_is_made_of_a_copy_lives_as_long() {
        let memory = Memory::new(Guards::all());
        let made = || memory.remembered(&key()).and_then(|found| found.made::<u64>()).map(|made| *made);
        memory.put(&entry(1), Source::Store, Instant::now());
        let first = memory.remembered(&key()).expect("is trusted");
        memory.keep_made(&key(), &first, Arc::new(7_u64), 8);
        assert_eq!(made(), Some(7));
        tokio::time::advance(MOMENT).await;
        memory.changed(&key(), Some(Timestamp::from_millis(2)));
        memory.keep_made(&key(), &first, Arc::new(8_u64), 8);
        assert_eq!(made(), None);
        memory.put(&entry(2), Source::Store, Instant::now());
        assert_eq!(made(), None);
    }

    async fn trust_ends(guards: Guards) -> Option<i64> {
        let memory = Memory::new(guards);
        memory.put(&entry(1), Source::Store, Instant::now());
        tokio::time::advance(limits::MEMORY_TRUST).await;
        trusted(&memory)
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_is_trusted_for_thirty_seconds() {
        assert_eq!(trust_ends(Guards::all()).await, None);
        assert_eq!(trust_ends(Guards::without(Guard::MemoryTrust)).await, Some(1), "the twin");
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_of_a_copy_is_trusted_for_less() {
        let memory = Memory::new(Guards::all());
        memory.put(&entry(1), Source::Copies, Instant::now());
        let trust = limits::MEMORY_TRUST.saturating_sub(limits::COPIES_TRUST);
        tokio::time::advance(trust.saturating_sub(MOMENT)).await;
        assert_eq!(trusted(&memory), Some(1));
        tokio::time::advance(MOMENT).await;
        assert_eq!(trusted(&memory), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_grows_older_as_the_entry_does() {
        let memory = Memory::new(Guards::all());
        let mut soon_stale = entry(1);
        soon_stale.fresh_until = Timestamp::from_millis(12_000);
        memory.put(&soon_stale, Source::Store, Instant::now());
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(memory.get(&key()).map(|(entry, _)| entry.age), Some(Age::Stale));
    }

    /// A read that began before a change ends after it.
    async fn late_read(guards: Guards) -> Option<i64> {
        let memory = Memory::new(guards);
        let asked = Instant::now();
        tokio::time::advance(MOMENT).await;
        memory.changed(&key(), Some(Timestamp::from_millis(2)));
        tokio::time::advance(MOMENT).await;
        memory.put(&entry(1), Source::Store, asked);
        trusted(&memory)
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_from_before_a_change_is_not_taken_in() {
        assert_eq!(late_read(Guards::all()).await, None);
        assert_eq!(late_read(Guards::without(Guard::Floors)).await, Some(1), "the twin");
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_older_than_a_change_is_refused_and_a_newer_one_taken() {
        let memory = Memory::new(Guards::all());
        memory.changed(&key(), Some(Timestamp::from_millis(5)));
        tokio::time::advance(MOMENT).await;
        assert!(!memory.put(&entry(4), Source::Copies, Instant::now()));
        assert!(memory.put(&entry(5), Source::Copies, Instant::now()));
        assert_eq!(trusted(&memory), Some(5));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_change_of_unknown_time_only_the_store_is_believed() {
        let memory = Memory::new(Guards::all());
        memory.put(&entry(4), Source::Store, Instant::now());
        memory.changed(&key(), None);
        assert_eq!(trusted(&memory), None);
        tokio::time::advance(MOMENT).await;
        assert!(!memory.put(&entry(9), Source::Copies, Instant::now()));
        assert!(memory.put(&entry(5), Source::Store, Instant::now()));
        memory.learnt(&key(), Timestamp::from_millis(5), Instant::now());
        assert_eq!(trusted(&memory), Some(5), "what was read since is from after the change");
        assert!(memory.put(&entry(6), Source::Copies, Instant::now()));
    }

    /// What was read before a second change says nothing of it; nor does another's note.
    #[tokio::test(start_paused = true)]
    async fn a_change_of_unknown_time_is_settled_only_by_a_read_after_it() {
        let memory = Memory::new(Guards::all());
        memory.changed(&key(), None);
        tokio::time::advance(MOMENT).await;
        let asked = Instant::now();
        tokio::time::advance(MOMENT).await;
        memory.changed(&key(), None);
        memory.learnt(&key(), Timestamp::from_millis(1), asked);
        memory.changed(&key(), Some(Timestamp::from_millis(2)));
        assert!(!memory.put(&entry(3), Source::Copies, Instant::now()));
        assert!(!memory.put(&entry(3), Source::Store, asked));
        tokio::time::advance(MOMENT).await;
        assert!(memory.put(&entry(3), Source::Store, Instant::now()));
    }

    /// A read that began after an own change, and ends after another's that is later.
    #[tokio::test(start_paused = true)]
    async fn a_read_between_two_changes_is_not_taken_in() {
        let memory = Memory::new(Guards::all());
        memory.changed(&key(), None);
        tokio::time::advance(MOMENT).await;
        let asked = Instant::now();
        tokio::time::advance(MOMENT).await;
        memory.changed(&key(), Some(Timestamp::from_millis(2)));
        assert!(!memory.put(&entry(1), Source::Store, asked));
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_copy_does_not_replace_a_newer_one() {
        let memory = Memory::new(Guards::all());
        memory.put(&entry(5), Source::Store, Instant::now());
        memory.put(&entry(4), Source::Copies, Instant::now());
        assert_eq!(trusted(&memory), Some(5));
    }

    fn gap(guards: Guards) -> Option<i64> {
        let memory = Memory::new(guards);
        let asked = Instant::now();
        memory.put(&entry(1), Source::Store, asked);
        memory.flush();
        memory.put(&entry(1), Source::Store, asked);
        trusted(&memory)
    }

    #[tokio::test(start_paused = true)]
    async fn a_gap_drops_everything_and_what_is_on_its_way() {
        assert_eq!(gap(Guards::all()), None);
        assert_eq!(gap(Guards::without(Guard::FlushOnGap)), Some(1), "the twin");
    }
}
