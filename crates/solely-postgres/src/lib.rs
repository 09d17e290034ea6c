//! The networked engine: the same promises on PostgreSQL, for several processes at once.
//!
//! *What is true* is in the database, committed with its default durability. *Who may change
//! it*: any process, in short transactions at READ COMMITTED that lock what they decide about
//! **first**, then look at the clock once ([`Tx::now`]) and pass it on as a parameter. Rows are
//! locked in the order of their keys; a deadlock or a serialisation failure runs the transaction
//! again. *What a lost connection does*: before COMMIT, nothing; at COMMIT, the outcome is read
//! back by the transaction's id, never guessed by running it again.
//!
//! Files are named after the nouns of `solely-core`, as those of the embedded engine are.

mod batch;
mod cache;
mod check;
mod commit;
mod connection;
mod error;
mod event;
mod feed;
mod job;
mod lease;
mod liveness;
mod migrate;
mod queue;
mod row;
mod tls;
mod transaction;
mod upkeep;
mod upstream;

use std::time::Duration;

use solely_core::fault::Guards;
use solely_core::{Clock, StoreError};

use crate::batch::Batcher;
use crate::connection::{Connections, Making};
use crate::tls::Tls;

pub use migrate::LATEST_VERSION;
pub(crate) use transaction::Tx;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections of this process, one of which is for heartbeats alone.
    pub max_connections: usize,
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
    guards: Guards,
}

impl PostgresStore {
    /// Opens `postgres://…`, and brings its schema up to date.
    pub async fn open(url: &str, options: &Options) -> Result<Self, StoreError> {
        let (config, tls) = Tls::read(url)?;
        let connections = |most| {
            Connections::new(&Making {
                config: &config,
                tls: &tls,
                most,
                statement_timeout: options.statement_timeout,
                clock: &options.clock,
            })
        };
        let work = connections(options.max_connections.saturating_sub(1).max(1))?;
        migrate::migrate(&work).await?;
        Ok(Self {
            beats: connections(1)?,
            enqueues: Batcher::new(job::Enqueues(work.clone()), ENQUEUE_LANES),
            leases: Batcher::new(lease::LeaseCalls(work.clone()), LEASE_LANES),
            work,
            guards: options.guards,
        })
    }
}

/// While one batch waits for its commit, another is made.
const ENQUEUE_LANES: usize = 2;
/// See [`ENQUEUE_LANES`].
const LEASE_LANES: usize = 2;
