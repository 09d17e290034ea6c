//! The networked engine: the same promises on PostgreSQL, for several processes at once.
//!
//! *What is true* is in the database, committed with its default durability. *Who may change
//! it*: any process, in short transactions at READ COMMITTED. Settlements, renewals, leases and
//! slots lock what they decide about **first** and then look at the clock; rows are locked in one
//! order where many are, and a deadlock or a serialisation failure runs the transaction again. *What a lost connection does*: before COMMIT, nothing; at COMMIT, the outcome is read
//! back by the transaction's id, never guessed by running it again.
//!
//! Files are named after the nouns of `solely-core`, as those of the embedded engine are.

mod access;
pub mod backup;
mod batch;
mod bus;
mod cache;
mod check;
mod commit;
mod connection;
mod enrich;
mod error;
mod event;
mod feed;
mod job;
mod lease;
mod liveness;
mod migrate;
mod queue;
mod reserve;
mod row;
mod tls;
mod transaction;
mod upkeep;
mod upstream;
mod waitlist;

use std::time::Duration;

use solely_core::fault::Guards;
use solely_core::{Clock, StoreError};
use tokio_util::sync::CancellationToken;

use crate::batch::Batcher;
use crate::connection::{Connections, Making};
use crate::tls::Tls;

pub use migrate::LATEST_VERSION;
pub(crate) use transaction::Tx;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections of this process: one for heartbeats alone, one for wake-ups between processes,
    /// the others for work.
    pub max_connections: usize,
    /// The schema that holds the tables; made if it is not there.
    pub schema: String,
    /// How long a statement may take.
    pub statement_timeout: Duration,
    /// Its offset is added to the database's clock. Zero but in tests.
    pub clock: Clock,
    /// Guards that fault tests may open.
    pub guards: Guards,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_connections: 16,
            schema: "public".to_owned(),
            statement_timeout: Duration::from_secs(30),
            clock: Clock::system(),
            guards: Guards::all(),
        }
    }
}

/// A PostgreSQL database as a [`solely_core::Store`].
pub struct PostgresStore {
    work: Connections,
    /// Heartbeats never wait for work.
    beats: Connections,
    enqueues: Batcher<job::Enqueues>,
    leases: Batcher<lease::LeaseCalls>,
    waits: Batcher<enrich::WaitCalls>,
    places: Batcher<feed::PlaceLooks>,
    hot: reserve::hot::Hot,
    guards: Guards,
    /// How to make the connection for wake-ups.
    wire: (tokio_postgres::Config, Tls),
    closed: CancellationToken,
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

impl PostgresStore {
    /// Opens `postgres://…`, and brings its schema up to date.
    pub async fn open(url: &str, options: &Options) -> Result<Self, StoreError> {
        let (mut config, tls) = Tls::read(url)?;
        let schema = known_schema(&options.schema)?;
        // Without spaces: the server splits its options at them.
        let given = config.get_options().unwrap_or_default().to_owned();
        config.options(format!("{given} -c search_path={schema}"));
        if config.get_application_name().is_none() {
            config.application_name("solely");
        }
        let connections = |most| {
            Connections::new(&Making {
                config: &config,
                tls: &tls,
                most,
                statement_timeout: options.statement_timeout,
                clock: &options.clock,
            })
        };
        let work = connections(options.max_connections.saturating_sub(2).max(1))?;
        migrate::migrate(&work, schema).await?;
        Ok(Self {
            beats: connections(1)?,
            enqueues: Batcher::new(job::Enqueues(work.clone()), LANES, work.away()),
            leases: Batcher::new(lease::LeaseCalls(work.clone()), LANES, work.away()),
            waits: Batcher::new(enrich::WaitCalls(work.clone()), LANES, work.away()),
            places: Batcher::new(feed::PlaceLooks(work.clone()), LANES, work.away()),
            work,
            hot: reserve::hot::Hot::default(),
            guards: options.guards,
            wire: (config, tls),
            closed: CancellationToken::new(),
        })
    }
}

/// A schema's name that needs no quotes.
fn known_schema(name: &str) -> Result<&str, StoreError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit();
    let begins_well = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if begins_well && name.len() <= 63 && name.bytes().all(plain) {
        return Ok(name);
    }
    Err(StoreError::Unusable(format!(
        "`{name}` cannot be the store's schema: lower-case letters, digits and _ make its name"
    )))
}

/// While one batch waits for its commit, another is made.
const LANES: usize = 2;
