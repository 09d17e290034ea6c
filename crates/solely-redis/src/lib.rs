//! The companion on Redis: copies of entries, hints, wake-ups. Nothing in it decides.
//!
//! *What is true* is in the store. *How far Redis is true* it says itself: a mark on every server
//! (`solely:followed`) names the store and the instant up to which every change of an entry is in
//! the copies beside it. Whoever runs this makes the copies follow the store's list of changes and
//! moves the mark, about once a second; the mark ends by itself when nobody does. Copies are
//! believed only where a mark is read with them.
//!
//! That one rule covers what can become of a Redis: restarted empty (no mark), from an old file or
//! from a replica that lacked the last writes (an old mark, which has ended: a server's data is a
//! prefix of what it was told, its mark included), cut off from some processes (those that reach it
//! make it follow the store), kept by nobody (its mark ends). Where there is no mark the copies are
//! dropped before a new one is set.
//!
//! *What a crash does*: a process that dies between its commit and its copy leaves an older copy
//! for a second or two. *What Redis's absence does*: a call that fails or times out ends the
//! connection; until there is another nothing is asked of it, and every read is a miss.

mod bus;
mod cache;
mod follow;
mod lease;
mod node;
mod note;
mod script;
mod topology;
mod url;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use redis::{Pipeline, Value};
use solely_core::bus::Bus;
use solely_core::companion::{Companion, Form, PlainForm};
use solely_core::fault::Guards;
use solely_core::metrics::Metrics;
use solely_core::{Store, StoreError, Timestamp};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::node::{Connection, Node, Patience, Trouble};
use crate::script::Scripts;
use crate::topology::Topology;
use crate::url::Deployment;

/// How Redis is used.
#[derive(Clone)]
pub struct Options {
    /// How long it may take to connect.
    pub connect_timeout: Duration,
    /// How long one round trip may take.
    pub command_timeout: Duration,
    /// How often a call is tried again on another connection when the one it had has ended. One
    /// that timed out is not: the server hangs.
    pub retries: u32,
    /// How copies look; what none of these covers has a form of its own.
    pub forms: Vec<Arc<dyn Form>>,
    /// Guards that fault tests may open.
    pub guards: Guards,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            command_timeout: Duration::from_secs(2),
            retries: 2,
            forms: Vec::new(),
            guards: Guards::all(),
        }
    }
}

/// What is wrong with a URL, if anything is. Says nothing of the URL, which may hold a password.
pub fn problem(url: &str) -> Option<String> {
    url::read(url).err()
}

/// Redis as a [`Companion`].
pub struct Redis {
    shared: Arc<Shared>,
    closed: CancellationToken,
}

pub(crate) struct Shared {
    deployment: Deployment,
    patience: Patience,
    retries: u32,
    scripts: Scripts,
    forms: Vec<Arc<dyn Form>>,
    guards: Guards,
    topology: RwLock<Arc<Topology>>,
    /// Something is wrong: the keeper is to look at once.
    trouble: Notify,
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    /// Which store it is, and its clock, as last heard.
    heard: Mutex<Option<Heard>>,
    round_trips: AtomicU64,
    looks: AtomicU64,
}

/// What the store said last of itself.
#[derive(Clone)]
struct Heard {
    store: String,
    now: Timestamp,
    at: Instant,
}

impl Redis {
    /// Begins to use Redis. That it cannot be reached is no error: it is used when it can be.
    pub async fn open(
        url: &str,
        options: Options,
        store: Arc<dyn Store>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, StoreError> {
        let deployment = url::read(url)
            .map_err(|problem| StoreError::Unusable(format!("the URL of Redis cannot be used: {problem}")))?;
        let mut forms = options.forms;
        forms.push(Arc::new(PlainForm));
        let shared = Arc::new(Shared {
            deployment,
            patience: Patience { connect: options.connect_timeout, command: options.command_timeout },
            retries: options.retries,
            scripts: Scripts::new(),
            forms,
            guards: options.guards,
            topology: RwLock::default(),
            trouble: Notify::new(),
            store,
            metrics,
            heard: Mutex::default(),
            round_trips: AtomicU64::new(0),
            looks: AtomicU64::new(0),
        });
        let closed = CancellationToken::new();
        shared.look().await;
        tokio::spawn(closed.clone().run_until_cancelled_owned(keep(shared.clone())));
        Ok(Self { shared, closed })
    }

    /// Round trips made by callers so far, those that are over.
    pub fn round_trips(&self) -> u64 {
        self.shared.round_trips.load(Ordering::Relaxed)
    }

    /// How often it has looked whether everything is as it should be.
    pub fn looks(&self) -> u64 {
        self.shared.looks.load(Ordering::Relaxed)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

#[async_trait]
impl Companion for Redis {
    fn ok(&self) -> bool {
        self.shared.ok()
    }

    fn connect_bus(&self, bus: &Bus) {
        bus::connect(&self.shared, bus, self.closed.clone());
    }

    async fn close(&self) {
        self.closed.cancel();
        let topology = self.shared.topology();
        for node in &topology.nodes {
            if let Some(connection) = node.connection() {
                node.disconnect(connection.id);
            }
        }
    }
}

/// Connects, follows and looks around, for as long as it is used.
async fn keep(shared: Arc<Shared>) {
    loop {
        let pause =
            if shared.ok() { LOOK_EVERY.mul_f64(0.75 + rand::random::<f64>() / 2.0) } else { RETRY_EVERY };
        let (looked, trouble) = (Instant::now(), shared.trouble.notified());
        let _ = tokio::time::timeout(pause, trouble).await;
        // Trouble comes in swarms.
        tokio::time::sleep_until(looked + AT_LEAST).await;
        shared.look().await;
    }
}

impl Shared {
    fn topology(&self) -> Arc<Topology> {
        self.topology.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Every server answers, and its copies follow the store.
    fn ok(&self) -> bool {
        let nodes = &self.topology().nodes;
        !nodes.is_empty() && nodes.iter().all(|node| node.trusted.load(Ordering::Relaxed))
    }

    /// One look around: where the servers are, connections to those that have none, and their marks.
    async fn look(&self) {
        let known = self.topology();
        match topology::find(&self.deployment, &known, self.patience, &self.scripts).await {
            Ok(found) => {
                *self.topology.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(found);
            }
            Err(error) => tracing::debug!(error, "the servers of Redis cannot be found"),
        }
        let topology = self.topology();
        join_all(topology.nodes.iter().map(|node| self.connect(node))).await;
        follow::follow(self, &topology).await;
        self.metrics.redis_up(self.ok());
        self.looks.fetch_add(1, Ordering::Relaxed);
    }

    async fn connect(&self, node: &Node) {
        if node.connection().is_some() {
            return;
        }
        match Connection::open(&node.server, self.patience, &self.scripts).await {
            Ok(connection) => {
                self.metrics.redis_connected();
                tracing::info!(server = node.address, "connected to Redis");
                node.connected(connection);
            }
            Err(error) => tracing::debug!(server = node.address, error, "Redis cannot be reached"),
        }
    }

    /// One round trip of a caller's, tried again on another connection should its own end. None if
    /// there is no answer, whatever the reason.
    async fn ask(&self, node: &Node, commands: &Pipeline) -> Option<(Connection, Vec<Value>)> {
        let Some(mut connection) = node.connection() else {
            self.metrics.redis_called("refused");
            return None;
        };
        for wait in 1..=self.retries {
            match self.ask_once(node, &connection, commands).await {
                Ok(answers) => return Some((connection, answers)),
                Err(Trouble::Ended(_)) => connection = node.another(connection.id, RETRY_WAIT * wait).await?,
                Err(_) => return None,
            }
        }
        let answers = self.ask_once(node, &connection, commands).await.ok()?;
        Some((connection, answers))
    }

    /// One round trip on this connection and no other.
    async fn ask_once(
        &self,
        node: &Node,
        connection: &Connection,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, Trouble> {
        let answer = connection.ask(commands, self.patience.command).await;
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        self.judge(node, connection, &answer);
        if answer.is_err() {
            self.trouble.notify_one();
        }
        answer
    }

    /// Counts an answer, and ends a connection that is of no use any more.
    fn judge(&self, node: &Node, connection: &Connection, answer: &Result<Vec<Value>, Trouble>) {
        let (outcome, why) = match answer {
            Ok(_) => return self.metrics.redis_called("ok"),
            Err(Trouble::TimedOut) => ("timeout", "no answer in time"),
            Err(Trouble::Ended(why) | Trouble::Refused(why)) => ("failed", why.as_str()),
        };
        self.metrics.redis_called(outcome);
        let moved = why.contains("MOVED") || why.contains("ASK") || why.contains("TRYAGAIN");
        if !moved && node.disconnect(connection.id) {
            tracing::warn!(server = node.address, why, "Redis is left alone for a moment; the store goes on");
        }
    }

    fn form(&self, space: &str) -> &dyn Form {
        let form = self.forms.iter().find(|form| form.covers(space));
        form.map_or(&PlainForm, |form| &**form)
    }

    fn heard(&self) -> Option<Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Between two looks around.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same while something is wrong,
const RETRY_EVERY: Duration = Duration::from_millis(250);
/// and at the very least.
const AT_LEAST: Duration = Duration::from_millis(20);
/// How long a caller waits for another connection, the first time.
const RETRY_WAIT: Duration = Duration::from_millis(50);
