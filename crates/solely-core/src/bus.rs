//! Wake-ups. Push wakes, polling keeps it right.
//!
//! A wake-up carries nothing: whoever is woken looks at the store. Losing one costs latency,
//! never correctness, because every wait also polls slowly. A wake-up goes to **one** listener
//! of its topic, the one that has waited longest, and to the next one to listen if there is
//! none at that moment; a listener that is dropped with a wake-up in hand passes it on.
//!
//! Processes tell each other short [`Note`]s: of queues and keys, and of entries that have changed.
//! Whoever may have missed one does what it would have done had it heard all of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use tokio::sync::Notify;

use crate::cache::EntryKey;
use crate::clock::Timestamp;
use crate::limits;

/// What a wake-up is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic<'a> {
    /// Jobs of a queue may be due.
    Queue(&'a str),
    /// A key may be free.
    Lease(&'a str),
}

#[derive(Default)]
struct Line {
    notify: Arc<Notify>,
    listeners: usize,
}

type Lines = Arc<Mutex<HashMap<String, Line>>>;

/// What processes tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Jobs of a queue may be due.
    Queue(String),
    /// A key may be free.
    Lease(String),
    /// An entry was written or forgotten.
    Changed {
        /// Which one.
        key: EntryKey,
        /// When, if it is known.
        at: Option<Timestamp>,
    },
    /// Anything may have happened: whoever tells this had too much to tell.
    Anything,
}

impl Note {
    /// As text, of one line.
    pub fn write(&self) -> String {
        match self {
            Self::Queue(name) => format!("q{name}"),
            Self::Lease(key) => format!("l{key}"),
            Self::Changed { key, at } => {
                let at = at.map_or(0, Timestamp::as_millis);
                format!("c{at} {} {}{}", key.space.len(), key.space, key.key)
            }
            Self::Anything => "a".to_owned(),
        }
    }

    /// From text; none if it is none, or of a version to come.
    pub fn read(text: &str) -> Option<Self> {
        let rest = text.get(1..)?;
        match text.as_bytes().first()? {
            b'q' => Some(Self::Queue(rest.to_owned())),
            b'l' => Some(Self::Lease(rest.to_owned())),
            b'c' => {
                let (at, rest) = rest.split_once(' ')?;
                let (length, names) = rest.split_once(' ')?;
                let (space, key) = names.split_at_checked(length.parse().ok()?)?;
                let at = Some(at.parse().ok()?).filter(|&at| at != 0).map(Timestamp::from_millis);
                Some(Self::Changed { key: EntryKey::new(space, key), at })
            }
            b'a' => Some(Self::Anything),
            _ => None,
        }
    }
}

/// Takes notes for other processes, without waiting.
pub trait Relay: Send + Sync {
    /// Whether notes arrive at this moment, as far as it knows.
    fn up(&self) -> bool;

    /// Tells every other process, soon, if it can.
    fn tell(&self, note: &Note);
}

/// Notes on their way to other processes: each once, however often it was told, and no more than
/// [`limits::NOTES_MAX`].
#[derive(Default)]
pub struct Told {
    notes: Mutex<BTreeSet<String>>,
    some: Notify,
    up: AtomicBool,
}

impl Relay for Told {
    fn up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    fn tell(&self, note: &Note) {
        let note = note.write();
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() >= limits::NOTES_MAX {
            notes.clear();
            notes.insert(Note::Anything.write());
        }
        if notes.insert(note) {
            self.some.notify_one();
        }
    }
}

impl Told {
    /// Says whether notes arrive.
    pub fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::Relaxed);
    }

    /// Waits until there is something to send.
    pub async fn some(&self) {
        self.some.notified().await;
    }

    /// What is to be sent, and is no longer here.
    pub fn take(&self) -> Vec<String> {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *notes).into_iter().collect()
    }

    /// Puts back what could not be sent.
    pub fn put_back(&self, unsent: Vec<String>) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() + unsent.len() > limits::NOTES_MAX {
            notes.clear();
            notes.insert(Note::Anything.write());
        } else {
            notes.extend(unsent);
        }
        self.some.notify_one();
    }
}

/// Someone who hears of changed entries.
pub trait ChangeListener: Send + Sync {
    /// This process has changed entries; the others are still to be told.
    fn changed_here(&self, keys: &[EntryKey]);

    /// Another process has changed an entry.
    fn changed(&self, key: &EntryKey, at: Option<Timestamp>);

    /// Anything may have changed.
    fn anything(&self);

    /// The others have been told of entries that this process changed, copies included.
    fn told(&self, _keys: &[EntryKey]) {}
}

type Listeners = Arc<RwLock<Vec<Weak<dyn ChangeListener>>>>;
type Relays = RwLock<Vec<Arc<dyn Relay>>>;

/// The wake-ups of one process, and by a [`Relay`] those of others.
#[derive(Clone, Default)]
pub struct Bus {
    queues: Lines,
    leases: Lines,
    listeners: Listeners,
    relays: Arc<Relays>,
}

/// A bus that does not keep itself alive.
pub struct WeakBus {
    queues: Weak<Mutex<HashMap<String, Line>>>,
    leases: Weak<Mutex<HashMap<String, Line>>>,
    listeners: Weak<RwLock<Vec<Weak<dyn ChangeListener>>>>,
    relays: Weak<Relays>,
}

impl WeakBus {
    /// The bus, if anyone still has it.
    pub fn upgrade(&self) -> Option<Bus> {
        let (queues, leases) = (self.queues.upgrade()?, self.leases.upgrade()?);
        Some(Bus { queues, leases, listeners: self.listeners.upgrade()?, relays: self.relays.upgrade()? })
    }
}

impl Bus {
    /// A bus without listeners.
    pub fn new() -> Self {
        Self::default()
    }

    /// Passes notes on from now on. The first relay that is up takes them; while none is, the last.
    pub fn relay_to(&self, relay: Arc<dyn Relay>) {
        self.relays.write().unwrap_or_else(PoisonError::into_inner).push(relay);
    }

    /// Tells someone of changed entries from now on, for as long as they are there.
    pub fn tell_changes_to(&self, listener: Weak<dyn ChangeListener>) {
        let mut listeners = self.listeners.write().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|known| known.strong_count() > 0);
        listeners.push(listener);
    }

    /// See [`WeakBus`].
    pub fn downgrade(&self) -> WeakBus {
        WeakBus {
            queues: Arc::downgrade(&self.queues),
            leases: Arc::downgrade(&self.leases),
            listeners: Arc::downgrade(&self.listeners),
            relays: Arc::downgrade(&self.relays),
        }
    }

    /// Wakes one listener of the topic, here and in every other process.
    pub fn wake(&self, topic: Topic<'_>) {
        self.wake_here(topic);
        self.tell(&match topic {
            Topic::Queue(name) => Note::Queue(name.to_owned()),
            Topic::Lease(key) => Note::Lease(key.to_owned()),
        });
    }

    /// Tells every other process, soon, if it can.
    pub fn tell(&self, note: &Note) {
        let relays = self.relays.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(relay) = relays.iter().find(|relay| relay.up()).or(relays.last()) {
            relay.tell(note);
        }
    }

    /// Does what a note from another process says.
    pub fn hear(&self, note: &Note) {
        match note {
            Note::Queue(name) => self.wake_here(Topic::Queue(name)),
            Note::Lease(key) => self.wake_here(Topic::Lease(key)),
            Note::Changed { key, at } => self.each_listener(|listener| listener.changed(key, *at)),
            Note::Anything => self.missed(),
        }
    }

    /// This process has changed entries: its listeners drop their copies, and see to it that the
    /// others are told.
    pub fn changed_here(&self, keys: &[EntryKey]) {
        self.each_listener(|listener| listener.changed_here(keys));
    }

    /// The others have been told of what was changed here.
    pub fn told(&self, keys: &[EntryKey]) {
        self.each_listener(|listener| listener.told(keys));
    }

    fn each_listener(&self, tell: impl Fn(&dyn ChangeListener)) {
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            tell(&*listener);
        }
    }

    /// Wakes one listener of the topic in this process. Nothing happens if there is none.
    pub fn wake_here(&self, topic: Topic<'_>) {
        let (lines, key) = self.lines(topic);
        if let Some(line) = locked(lines).get(key) {
            line.notify.notify_one();
        }
    }

    /// Something may have been missed: wakes everyone in this process, and drops its copies.
    pub fn missed(&self) {
        for lines in [&self.queues, &self.leases] {
            for line in locked(lines).values() {
                // Those that wait, and the next to wait if none does at this moment.
                line.notify.notify_waiters();
                line.notify.notify_one();
            }
        }
        self.each_listener(|listener| listener.anything());
    }

    /// Begins to listen: wake-ups from now on are not missed.
    pub fn listen(&self, topic: Topic<'_>) -> Listener {
        let (lines, key) = self.lines(topic);
        let mut open = locked(lines);
        let line = open.entry(key.to_owned()).or_default();
        line.listeners += 1;
        let notify = Arc::clone(&line.notify);
        drop(open);
        Listener { lines: lines.clone(), key: key.to_owned(), notify }
    }

    /// How many listen to a topic.
    pub fn listeners(&self, topic: Topic<'_>) -> usize {
        let (lines, key) = self.lines(topic);
        locked(lines).get(key).map_or(0, |line| line.listeners)
    }

    fn lines<'a>(&self, topic: Topic<'a>) -> (&Lines, &'a str) {
        match topic {
            Topic::Queue(key) => (&self.queues, key),
            Topic::Lease(key) => (&self.leases, key),
        }
    }
}

fn locked(lines: &Lines) -> MutexGuard<'_, HashMap<String, Line>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Someone who waits for wake-ups of one topic.
pub struct Listener {
    lines: Lines,
    key: String,
    notify: Arc<Notify>,
}

impl Listener {
    /// Waits for a wake-up. Dropping the future loses none.
    pub async fn woken(&mut self) {
        self.notify.notified().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut lines = locked(&self.lines);
        if let Some(line) = lines.get_mut(&self.key) {
            line.listeners -= 1;
            if line.listeners == 0 {
                lines.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: Topic<'_> = Topic::Lease("a");

    #[tokio::test(start_paused = true)]
    async fn a_wake_up_between_listening_and_waiting_is_not_missed() {
        let bus = Bus::new();
        let mut listener = bus.listen(TOPIC);
        bus.wake(TOPIC);
        tokio::time::timeout(std::time::Duration::from_secs(1), listener.woken()).await.expect("woken");
    }

    #[tokio::test(start_paused = true)]
    async fn one_wake_up_wakes_one_listener() {
        let bus = Bus::new();
        let (mut first, mut second) = (bus.listen(TOPIC), bus.listen(TOPIC));
        bus.wake(TOPIC);
        first.woken().await;
        let late = tokio::time::timeout(std::time::Duration::from_secs(1), second.woken()).await;
        assert!(late.is_err());
    }

    #[test]
    fn notes_are_written_and_read() {
        let key = EntryKey::new("enrich:wolt", "a place: é 1");
        for note in [
            Note::Queue("work-items".to_owned()),
            Note::Lease("a key".to_owned()),
            Note::Changed { key: key.clone(), at: Some(Timestamp::from_millis(1_700_000_000_000)) },
            Note::Changed { key, at: None },
            Note::Anything,
        ] {
            assert_eq!(Note::read(&note.write()), Some(note));
        }
        for text in ["", "é", "x", "c", "c1", "c1 2", "c1 9 ab", "c1 1 é", "cx 1 ab"] {
            assert_eq!(Note::read(text), None, "{text}");
        }
    }

    #[test]
    fn too_many_notes_are_one_that_says_so() {
        let told = Told::default();
        for n in 0..=limits::NOTES_MAX {
            told.tell(&Note::Queue(n.to_string()));
        }
        assert_eq!(told.take().len(), 2, "anything, and the last");
    }

    #[test]
    fn a_topic_without_listeners_takes_no_memory() {
        let bus = Bus::new();
        drop(bus.listen(TOPIC));
        bus.wake(TOPIC);
        assert!(locked(&bus.leases).is_empty());
    }
}
