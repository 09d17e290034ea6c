//! One server and the connection to it.
//!
//! A connection is never made again behind its back: it either is the one it was, or it has ended
//! and there is another, with another number. Whatever was learnt of a server (its clock, that its
//! copies could be trusted) is of one connection, and so of one life of that server.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisError, Value};
use solely_core::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::script::{Script, Scripts};
use crate::url::Server;

/// How servers are called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) connect: Duration,
    pub(crate) command: Duration,
}

/// One connection, for as long as it lasts.
#[derive(Clone)]
pub(crate) struct Connection {
    /// Unlike that of any other connection of this process.
    pub(crate) id: u64,
    wire: MultiplexedConnection,
    clock: Arc<Mutex<(i64, Instant)>>,
    /// Its copies could be trusted at some time.
    pub(crate) proven: Arc<AtomicBool>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The server does not answer in time.
    TimedOut,
    /// The connection has ended.
    Ended(String),
    /// The server refuses: it is not, or no longer, the one to ask.
    Refused(String),
}

impl Connection {
    /// Connects to a Sentinel, which knows neither time nor scripts.
    pub(crate) async fn open_plain(server: &Server, patience: Patience) -> Result<Self, String> {
        Self::open_with(server, patience, Pipeline::new()).await
    }

    /// Connects, loads the scripts and looks at the server's clock.
    pub(crate) async fn open(server: &Server, patience: Patience, scripts: &Scripts) -> Result<Self, String> {
        let mut first = Pipeline::new();
        first.cmd("TIME");
        for script in scripts.all() {
            first.cmd("SCRIPT").arg("LOAD").arg(&script.code);
        }
        Self::open_with(server, patience, first).await
    }

    async fn open_with(server: &Server, patience: Patience, first: Pipeline) -> Result<Self, String> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let connecting = async {
            let client = Client::open(server.info.clone())?;
            // Timeouts are this module's.
            let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
            let mut wire = client.get_multiplexed_async_connection_with_config(&config).await?;
            let mut clock = 0;
            if !first.is_empty() {
                let answers = wire.send_packed_commands(&first, 0, first.len()).await?;
                clock = answers.first().and_then(time_of).unwrap_or_default();
                for answer in answers {
                    answer.extract_error()?;
                }
            }
            Ok::<_, RedisError>((wire, clock))
        };
        match tokio::time::timeout(patience.connect, connecting).await {
            Err(_) => Err("it does not answer".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok((wire, clock))) => Ok(Self {
                id: IDS.fetch_add(1, Ordering::Relaxed),
                wire,
                clock: Arc::new(Mutex::new((clock, Instant::now()))),
                proven: Arc::default(),
            }),
        }
    }

    /// One round trip: the answer to each command, an error of the server's included.
    pub(crate) async fn ask(&self, commands: &Pipeline, patience: Duration) -> Result<Vec<Value>, Trouble> {
        let (mut wire, count) = (self.wire.clone(), commands.len());
        match tokio::time::timeout(patience, wire.send_packed_commands(commands, 0, count)).await {
            Err(_) => Err(Trouble::TimedOut),
            Ok(Err(error)) => Err(Trouble::Ended(error.to_string())),
            Ok(Ok(answers)) => match answers.iter().find_map(refusal) {
                Some(why) => Err(Trouble::Refused(why)),
                None => Ok(answers),
            },
        }
    }

    /// The server's clock in milliseconds, or a little before it.
    pub(crate) fn now_ms(&self) -> i64 {
        let (then, at) = *self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        then.saturating_add(i64::try_from(at.elapsed().as_millis()).unwrap_or(0))
    }

    /// Learns the server's clock from the answer to TIME, which has just come.
    pub(crate) fn learn_time(&self, answer: &Value) {
        if let Some(now) = time_of(answer) {
            *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = (now, Instant::now());
        }
    }
}

/// Errors that say that another server is to be asked, or this one later.
fn refusal(answer: &Value) -> Option<String> {
    let Value::ServerError(error) = answer else { return None };
    let text = error.to_string();
    let words = [
        "MOVED",
        "ASK",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "READONLY",
        "LOADING",
        "MASTERDOWN",
        "NOSCRIPT",
        "NOAUTH",
    ];
    words.iter().any(|word| text.contains(word)).then_some(text)
}

fn time_of(answer: &Value) -> Option<i64> {
    let (seconds, micros): (i64, i64) = redis::from_redis_value_ref(answer).ok()?;
    Some(seconds * 1_000 + micros / 1_000)
}

/// Adds the call of a script that the connection has loaded.
pub(crate) fn call<'a>(commands: &'a mut Pipeline, script: &Script, keys: &[&str]) -> &'a mut Pipeline {
    commands.cmd("EVALSHA").arg(&script.hash).arg(keys.len()).arg(keys)
}

/// A server that is to be connected to.
pub(crate) struct Node {
    pub(crate) server: Server,
    pub(crate) address: String,
    /// The key of the mark that says how far its copies follow the store.
    pub(crate) mark: String,
    connection: watch::Sender<Option<Connection>>,
    /// Its copies can be trusted, as far as was last seen.
    pub(crate) trusted: AtomicBool,
    /// It is known not to hold copies of another store.
    ours: AtomicBool,
    /// The dropping of copies that is under way.
    pub(crate) cleaning: Mutex<Option<Cleaning>>,
}

/// Where the dropping of copies stands.
#[derive(Clone)]
pub(crate) struct Cleaning {
    /// On which connection.
    pub(crate) connection: u64,
    /// Up to when the list of changes was complete when it began.
    pub(crate) since: Timestamp,
    /// Which form it is at.
    pub(crate) form: usize,
    pub(crate) cursor: String,
}

impl Node {
    pub(crate) fn new(server: Server, mark: String) -> Arc<Self> {
        let (connection, _) = watch::channel(None);
        let address = server.address();
        Arc::new(Self {
            server,
            address,
            mark,
            connection,
            trusted: AtomicBool::new(false),
            ours: AtomicBool::new(false),
            cleaning: Mutex::default(),
        })
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.ours.load(Ordering::Relaxed)
    }

    pub(crate) fn set_ours(&self, ours: bool) {
        self.ours.store(ours, Ordering::Relaxed);
        if !ours {
            self.trusted.store(false, Ordering::Relaxed);
        }
    }

    /// The connection, if there is one.
    pub(crate) fn connection(&self) -> Option<Connection> {
        self.connection.borrow().clone()
    }

    /// Waits for another connection than this one.
    pub(crate) async fn another(&self, than: u64, patience: Duration) -> Option<Connection> {
        let mut connections = self.connection.subscribe();
        let is_another =
            |found: &Option<Connection>| found.as_ref().is_some_and(|connection| connection.id != than);
        let found = tokio::time::timeout(patience, connections.wait_for(is_another)).await;
        found.ok()?.ok().and_then(|found| found.clone())
    }

    pub(crate) fn connected(&self, connection: Connection) {
        self.connection.send_replace(Some(connection));
    }

    /// Nothing is asked of a connection any more, if it is still this one.
    pub(crate) fn disconnect(&self, id: u64) -> bool {
        let ended = self.connection.send_if_modified(|found| {
            let ends = found.as_ref().is_some_and(|connection| connection.id == id);
            if ends {
                *found = None;
            }
            ends
        });
        if ended {
            self.trusted.store(false, Ordering::Relaxed);
        }
        ended
    }
}
