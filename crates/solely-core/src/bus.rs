//! Wake-ups. Push wakes, polling keeps it right.
//!
//! A wake-up carries nothing: whoever is woken looks at the store. Losing one costs latency,
//! never correctness, because every wait also polls slowly. A wake-up goes to **one** listener
//! of its topic, the one that has waited longest, and to the next one to listen if there is
//! none at that moment; a listener that is dropped with a wake-up in hand passes it on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// What a wake-up is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// Jobs of a queue may be due.
    Queue(String),
    /// A key may be free.
    Lease(String),
}

#[derive(Default)]
struct Line {
    notify: Arc<Notify>,
    listeners: usize,
}

/// The wake-ups of one process.
#[derive(Clone, Default)]
pub struct Bus {
    lines: Arc<Mutex<HashMap<Topic, Line>>>,
}

impl Bus {
    /// A bus without listeners.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes one listener of the topic. Nothing happens if there is none.
    pub fn wake(&self, topic: &Topic) {
        if let Some(line) = self.lines().get(topic) {
            line.notify.notify_one();
        }
    }

    /// Begins to listen: wake-ups from now on are not missed.
    pub fn listen(&self, topic: Topic) -> Listener {
        let mut lines = self.lines();
        let line = lines.entry(topic.clone()).or_default();
        line.listeners += 1;
        let notify = Arc::clone(&line.notify);
        drop(lines);
        Listener { bus: self.clone(), topic, notify }
    }

    /// How many listen to a topic.
    pub fn listeners(&self, topic: &Topic) -> usize {
        self.lines().get(topic).map_or(0, |line| line.listeners)
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, HashMap<Topic, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Someone who waits for wake-ups of one topic.
pub struct Listener {
    bus: Bus,
    topic: Topic,
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
        let mut lines = self.bus.lines();
        if let Some(line) = lines.get_mut(&self.topic) {
            line.listeners -= 1;
            if line.listeners == 0 {
                lines.remove(&self.topic);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic() -> Topic {
        Topic::Lease("a".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_wake_up_between_listening_and_waiting_is_not_missed() {
        let bus = Bus::new();
        let mut listener = bus.listen(topic());
        bus.wake(&topic());
        tokio::time::timeout(std::time::Duration::from_secs(1), listener.woken()).await.expect("woken");
    }

    #[tokio::test(start_paused = true)]
    async fn one_wake_up_wakes_one_listener() {
        let bus = Bus::new();
        let (mut first, mut second) = (bus.listen(topic()), bus.listen(topic()));
        bus.wake(&topic());
        first.woken().await;
        let late = tokio::time::timeout(std::time::Duration::from_secs(1), second.woken()).await;
        assert!(late.is_err());
    }

    #[test]
    fn a_topic_without_listeners_takes_no_memory() {
        let bus = Bus::new();
        drop(bus.listen(topic()));
        bus.wake(&topic());
        assert!(bus.lines().is_empty());
    }
}
