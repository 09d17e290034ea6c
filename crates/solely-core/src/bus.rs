//! Wake-ups. Push wakes, polling keeps it right.
//!
//! A wake-up carries nothing: whoever is woken looks at the store. Losing one costs latency,
//! never correctness, because every wait also polls slowly. A wake-up goes to **one** listener
//! of its topic, the one that has waited longest, and to the next one to listen if there is
//! none at that moment; a listener that is dropped with a wake-up in hand passes it on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tokio::sync::Notify;

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

/// Passes wake-ups on to other processes, without waiting.
pub trait Relay: Send + Sync {
    /// Wakes one listener of the topic in every other process, soon, if it can.
    fn wake(&self, topic: Topic<'_>);
}

/// The wake-ups of one process, and by a [`Relay`] those of others.
#[derive(Clone, Default)]
pub struct Bus {
    queues: Lines,
    leases: Lines,
    relay: Arc<OnceLock<Arc<dyn Relay>>>,
}

/// A bus that does not keep itself alive.
pub struct WeakBus {
    queues: Weak<Mutex<HashMap<String, Line>>>,
    leases: Weak<Mutex<HashMap<String, Line>>>,
    relay: Weak<OnceLock<Arc<dyn Relay>>>,
}

impl WeakBus {
    /// The bus, if anyone still has it.
    pub fn upgrade(&self) -> Option<Bus> {
        let (queues, leases) = (self.queues.upgrade()?, self.leases.upgrade()?);
        Some(Bus { queues, leases, relay: self.relay.upgrade()? })
    }
}

impl Bus {
    /// A bus without listeners.
    pub fn new() -> Self {
        Self::default()
    }

    /// Passes wake-ups on from now on. A bus has one relay; a second one is ignored.
    pub fn relay_to(&self, relay: Arc<dyn Relay>) {
        let _ = self.relay.set(relay);
    }

    /// See [`WeakBus`].
    pub fn downgrade(&self) -> WeakBus {
        WeakBus {
            queues: Arc::downgrade(&self.queues),
            leases: Arc::downgrade(&self.leases),
            relay: Arc::downgrade(&self.relay),
        }
    }

    /// Wakes one listener of the topic, here and in every other process.
    pub fn wake(&self, topic: Topic<'_>) {
        self.wake_here(topic);
        if let Some(relay) = self.relay.get() {
            relay.wake(topic);
        }
    }

    /// Wakes one listener of the topic in this process. Nothing happens if there is none.
    pub fn wake_here(&self, topic: Topic<'_>) {
        let (lines, key) = self.lines(topic);
        if let Some(line) = locked(lines).get(key) {
            line.notify.notify_one();
        }
    }

    /// Wakes everyone in this process: something may have been missed.
    pub fn wake_all_here(&self) {
        for lines in [&self.queues, &self.leases] {
            for line in locked(lines).values() {
                // Those that wait, and the next to wait if none does at this moment.
                line.notify.notify_waiters();
                line.notify.notify_one();
            }
        }
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
    fn a_topic_without_listeners_takes_no_memory() {
        let bus = Bus::new();
        drop(bus.listen(TOPIC));
        bus.wake(TOPIC);
        assert!(locked(&bus.leases).is_empty());
    }
}
