//! What dashboards are shown, as it changes.
//!
//! One task looks, about once a second, while somebody listens and no longer; what it sees is written
//! once and shared by all who asked for it, so that ten screens cost what one does. A topic that did not
//! change is not told again. A screen that has not read what it was told before is passed over: the next
//! look says everything anew, and nothing piles up.
//!
//! ```text
//!   first subscribe ──▶ task ──▶ look at the wanted topics ──▶ tell listeners ──▶ wait a second ─┐
//!                        ▲            (each once)               (a shared text)                  │
//!                        └────────────────────── somebody listens ◀──────────────────────────────┘
//! ```
//!
//! The overview's counters are remembered for a few minutes, so that a chart is there when a page is
//! opened; whoever listens next is told them first. A key that is revoked stops hearing within seconds.

mod look;
mod totals;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::ws::Utf8Bytes;
use serde::Deserialize;
use solely_core::access::{Area, Caller, Scope};
use solely_core::clock::{Clock, Timestamp};
use solely_core::limits;
use tokio::sync::Notify;

use crate::App;
use totals::Totals;

/// The channel of sockets that this is.
pub(crate) const CHANNEL: &str = "dashboard";

/// What can be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Topic {
    Overview,
    Runs,
    Boxes,
    Jobs,
    Leases,
}

impl Topic {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Runs => "runs",
            Self::Boxes => "boxes",
            Self::Jobs => "jobs",
            Self::Leases => "leases",
        }
    }

    /// What a caller needs to see it, beside the right to look at the dashboard.
    fn scope(self) -> Scope {
        Scope::read(match self {
            Self::Overview | Self::Jobs | Self::Leases => Area::Admin,
            Self::Runs => Area::Feed,
            Self::Boxes => Area::Reserve,
        })
    }
}

/// What a client says to this channel.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Said {
    Subscribe {
        channel: Channel,
        #[serde(default)]
        topics: Vec<Topic>,
        /// What is known already, in milliseconds since 1970: only what was counted later is told.
        since: Option<i64>,
    },
    Unsubscribe {
        #[serde(rename = "channel")]
        _channel: Channel,
    },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Channel {
    Dashboard,
}

/// What a message wants of this channel, if it is one of this channel's.
pub(crate) fn read(text: &str) -> Option<Wanted> {
    // Nearly all messages are of another channel, and are not read twice.
    if !text.contains(CHANNEL) {
        return None;
    }
    match serde_json::from_str(text).ok()? {
        Said::Subscribe { channel: Channel::Dashboard, topics, since } => {
            Some(Wanted::Topics { topics, since })
        }
        Said::Unsubscribe { .. } => Some(Wanted::Nothing),
    }
}

/// What a client wants to hear from now on.
#[derive(Debug)]
pub(crate) enum Wanted {
    Topics { topics: Vec<Topic>, since: Option<i64> },
    Nothing,
}

/// A socket, as this module sees it.
pub(crate) trait Hears: Send + Sync {
    /// Whether it still has to read what it was told before.
    fn is_behind(&self) -> bool;
    /// Tells it something. What it is told is shared with others.
    fn hear(&self, message: Utf8Bytes);
}

struct Listener {
    hears: Arc<dyn Hears>,
    topics: Vec<Topic>,
    /// The key that it listens by, which may be revoked.
    key: Option<String>,
    /// It has not been told anything yet.
    new: bool,
}

/// Those who look at dashboards of this process.
#[derive(Clone)]
pub(crate) struct Live(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Somebody has come, or wants something else.
    asked: Notify,
    since: Timestamp,
}

#[derive(Default)]
struct State {
    listeners: HashMap<u64, Listener>,
    next: u64,
    looking: bool,
    /// Nobody listens, but what is counted is remembered.
    kept: usize,
    history: VecDeque<(Timestamp, Totals)>,
    told: HashMap<Topic, Utf8Bytes>,
}

impl Default for Live {
    fn default() -> Self {
        let since = Clock::system().now();
        Self(Arc::new(Inner { state: Mutex::default(), asked: Notify::new(), since }))
    }
}

/// Someone listens for as long as this is held.
pub(crate) struct Listening {
    live: Live,
    id: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.live.state().listeners.remove(&self.id);
    }
}

/// What is counted is remembered for as long as this is held, whoever looks.
pub struct Remembering(Live);

impl Drop for Remembering {
    fn drop(&mut self) {
        self.0.state().kept -= 1;
    }
}

/// Why somebody is not told anything.
pub(crate) enum Refused {
    Unauthorized,
    TooMany,
}

impl Live {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a socket told of these topics, as far as its caller may see them. It is told which first.
    pub(crate) fn listen(
        &self,
        app: &App,
        caller: &Caller,
        (wanted, since): (&[Topic], Option<i64>),
        hears: Arc<dyn Hears>,
    ) -> Result<Listening, Refused> {
        if !caller.may(Scope::read(Area::Admin)) {
            return Err(Refused::Unauthorized);
        }
        // Whoever asks again and again without reading the answers is not given more of them.
        if hears.is_behind() {
            return Err(Refused::TooMany);
        }
        let mut topics = vec![Topic::Overview];
        for topic in wanted.iter().filter(|topic| caller.may(topic.scope())) {
            if !topics.contains(topic) {
                topics.push(*topic);
            }
        }
        let names: Vec<&str> = topics.iter().map(|topic| topic.name()).collect();
        let acknowledged = serde_json::json!({"type": "sub_ack", "channel": CHANNEL, "topics": names});
        let key = match caller {
            Caller::Key { id, .. } => Some(id.clone()),
            Caller::Anyone | Caller::User { .. } => None,
        };
        let mut state = self.state();
        if state.listeners.len() >= limits::DASHBOARDS_MAX {
            return Err(Refused::TooMany);
        }
        hears.hear(acknowledged.to_string().into());
        hears.hear(history(&state.history, since));
        let id = state.next;
        state.next += 1;
        state.listeners.insert(id, Listener { hears, topics, key, new: true });
        self.look(state, app);
        Ok(Listening { live: self.clone(), id })
    }

    /// Remembers what is counted although nobody looks.
    pub(crate) fn remember(&self, app: &App) -> Remembering {
        let mut state = self.state();
        state.kept += 1;
        self.look(state, app);
        Remembering(self.clone())
    }

    /// Sees to it that there is a task that looks, soon.
    fn look(&self, mut state: MutexGuard<'_, State>, app: &App) {
        if !state.looking {
            state.looking = true;
            state.told.clear();
            let stop = app.stop.clone();
            tokio::spawn(stop.run_until_cancelled_owned(look_while_somebody_listens(app.clone())));
        }
        drop(state);
        self.0.asked.notify_one();
    }

    /// The topics that somebody wants; none if nobody does, and then the task is over.
    fn wanted(&self) -> Option<HashSet<Topic>> {
        let mut state = self.state();
        if state.listeners.is_empty() && state.kept == 0 {
            state.looking = false;
            return None;
        }
        let topics = state.listeners.values().flat_map(|listener| listener.topics.iter().copied());
        Some(topics.chain([Topic::Overview]).collect())
    }

    /// Tells those who want it, unless they were told the same.
    fn tell(&self, topic: Topic, message: &Utf8Bytes) {
        let mut state = self.state();
        let same = state.told.insert(topic, message.clone()).is_some_and(|told| told == *message);
        for listener in state.listeners.values_mut().filter(|listener| listener.topics.contains(&topic)) {
            if (!same || listener.new) && !listener.hears.is_behind() {
                listener.hears.hear(message.clone());
            }
        }
    }

    /// Those whose key is not good any more hear that, and nothing else.
    async fn dismiss(&self, app: &App) {
        let keys: HashSet<String> =
            self.state().listeners.values().filter_map(|listener| listener.key.clone()).collect();
        for key in keys {
            // A store that is away says nothing of keys.
            if app.access.is_revoked(&key).await {
                self.state().listeners.retain(|_, listener| {
                    let stays = listener.key.as_ref() != Some(&key);
                    if !stays {
                        listener.hears.hear(Utf8Bytes::from_static(UNAUTHORIZED));
                    }
                    stays
                });
            }
        }
    }
}

pub(crate) const UNAUTHORIZED: &str = r#"{"type":"sub_nack","channel":"dashboard","reason":"unauthorized"}"#;
pub(crate) const TOO_MANY: &str = r#"{"type":"sub_nack","channel":"dashboard","reason":"too_many"}"#;
/// However many come, there is this much between two looks.
const PAUSE: Duration = Duration::from_millis(100);

async fn look_while_somebody_listens(app: App) {
    let live = app.live.clone();
    while let Some(topics) = live.wanted() {
        let seen: Vec<u64> = live.state().listeners.keys().copied().collect();
        live.dismiss(&app).await;
        for topic in topics {
            let looked = match topic {
                Topic::Overview => Ok(overview(&app, &live).await),
                Topic::Runs => look::runs(&app).await,
                Topic::Boxes => look::boxes(&app).await,
                Topic::Jobs => look::jobs(&app).await,
                Topic::Leases => look::leases(&app).await,
            };
            match looked {
                Ok(data) => live.tell(topic, &message(topic, &data)),
                Err(error) => tracing::debug!(%error, topic = topic.name(), "a dashboard cannot be told"),
            }
        }
        for listener in live.state().listeners.iter_mut().filter(|(id, _)| seen.contains(id)) {
            listener.1.new = false;
        }
        tokio::time::sleep(PAUSE).await;
        let wait = limits::DASHBOARD_EVERY.saturating_sub(PAUSE);
        let _ = tokio::time::timeout(wait, live.0.asked.notified()).await;
    }
}

async fn overview(app: &App, live: &Live) -> serde_json::Value {
    let now = Clock::system().now();
    let looked = look::overview(app, live.0.since, now).await;
    let mut state = live.state();
    // A look that somebody asked for in between is not one of the evenly spaced ones.
    let spaced = limits::DASHBOARD_EVERY.mul_f64(0.8);
    if state.history.back().is_none_or(|(at, _)| now.since(*at) >= spaced) {
        state.history.push_back((now, looked.totals));
        while state.history.len() > limits::DASHBOARD_HISTORY {
            state.history.pop_front();
        }
    }
    looked.data
}

fn message(topic: Topic, data: &serde_json::Value) -> Utf8Bytes {
    format!(r#"{{"type":"DASHBOARD","topic":"{}","data":{data}}}"#, topic.name()).into()
}

/// What was counted lately: names once, then a row of numbers for each look.
fn history(samples: &VecDeque<(Timestamp, Totals)>, since: Option<i64>) -> Utf8Bytes {
    let mut text = String::from(r#"{"type":"DASHBOARD","topic":"history","data":{"fields":["#);
    for (nth, name) in Totals::names().enumerate() {
        let _ = write!(text, "{}\"{name}\"", if nth > 0 { "," } else { "" });
    }
    text.push_str(r#"],"samples":["#);
    let later = samples.iter().filter(|(at, _)| since.is_none_or(|since| at.as_millis() > since));
    for (nth, (at, totals)) in later.enumerate() {
        let _ = write!(text, "{}[{}", if nth > 0 { "," } else { "" }, at.as_millis());
        for value in totals.values() {
            let _ = write!(text, ",{value}");
        }
        text.push(']');
    }
    text.push_str("]}}");
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_of_this_channel_are_read() {
        let topics = |text: &str| match read(text) {
            Some(Wanted::Topics { topics, .. }) => Some(topics),
            _ => None,
        };
        let said = r#"{"v":1,"type":"subscribe","channel":"dashboard","topics":["runs","boxes"]}"#;
        assert_eq!(topics(said), Some(vec![Topic::Runs, Topic::Boxes]));
        assert!(matches!(read(r#"{"type":"unsubscribe","channel":"dashboard"}"#), Some(Wanted::Nothing)));
        for other in [
            r#"{"type":"subscribe","channel":"search","requestId":"dashboard"}"#,
            r#"{"type":"subscribe","channel":"dashboard","topics":["secrets"]}"#,
            "dashboard",
        ] {
            assert!(read(other).is_none(), "{other}");
        }
    }

    #[derive(Default)]
    struct Screen {
        heard: Mutex<Vec<Utf8Bytes>>,
        behind: std::sync::atomic::AtomicBool,
    }

    impl Hears for Screen {
        fn is_behind(&self) -> bool {
            self.behind.load(std::sync::atomic::Ordering::Relaxed)
        }

        fn hear(&self, message: Utf8Bytes) {
            self.heard.lock().expect("is whole").push(message);
        }
    }

    /// Ten screens hear one text, the same bytes; what did not change is not told again; whoever is behind
    /// is passed over.
    #[test]
    fn one_look_is_for_everyone() {
        let live = Live::default();
        let screens: Vec<Arc<Screen>> = (0..10).map(|_| Arc::default()).collect();
        for (id, screen) in (0..).zip(&screens) {
            let listener =
                Listener { hears: screen.clone(), topics: vec![Topic::Overview], key: None, new: false };
            live.state().listeners.insert(id, listener);
        }
        assert_eq!(live.wanted(), Some(HashSet::from([Topic::Overview])));
        live.tell(Topic::Overview, &"one".into());
        live.tell(Topic::Overview, &"one".into());
        screens[9].behind.store(true, std::sync::atomic::Ordering::Relaxed);
        live.tell(Topic::Overview, &"two".into());
        live.tell(Topic::Runs, &"three".into());
        let first = screens[0].heard.lock().expect("is whole")[0].as_ptr();
        for screen in &screens[..9] {
            let heard = screen.heard.lock().expect("is whole");
            assert_eq!(*heard, ["one", "two"].map(Utf8Bytes::from_static));
            assert_eq!(heard[0].as_ptr(), first, "it was written once");
        }
        assert_eq!(screens[9].heard.lock().expect("is whole").len(), 1);
        live.state().listeners.clear();
        assert_eq!(live.wanted(), None, "nobody listens: nobody looks");
    }

    #[test]
    fn history_is_names_and_rows() {
        let samples = VecDeque::from([(Timestamp::from_millis(5), Totals::default())]);
        let read: serde_json::Value = serde_json::from_str(&history(&samples, None)).expect("JSON");
        let (names, row) = (&read["data"]["fields"], &read["data"]["samples"][0]);
        assert_eq!(row[0], 5);
        assert_eq!(names.as_array().map(Vec::len), row.as_array().map(|row| row.len() - 1));
        let read: serde_json::Value = serde_json::from_str(&history(&samples, Some(5))).expect("JSON");
        assert_eq!(read["data"]["samples"], serde_json::json!([]));
    }
}
