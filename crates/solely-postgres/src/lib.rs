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

mod cache;
mod check;
mod commit;
mod error;
mod event;
mod feed;
mod job;
mod lease;
mod liveness;
mod migrate;
mod queue;
mod row;
mod transaction;
mod upkeep;
mod upstream;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use solely_core::fault::Guards;
use solely_core::{Clock, StoreError};
use tokio_postgres::NoTls;

pub use migrate::LATEST_VERSION;
pub(crate) use transaction::Tx;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections of this process.
    pub max_connections: usize,
    /// How long a statement may take.
    pub statement_timeout: std::time::Duration,
    /// Its offset is added to the database's clock. Zero but in tests.
    pub clock: Clock,
    /// Guards that fault tests may open.
    pub guards: Guards,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_connections: 16,
            statement_timeout: std::time::Duration::from_secs(30),
            clock: Clock::system(),
            guards: Guards::all(),
        }
    }
}

/// A PostgreSQL database as a [`solely_core::Store`].
pub struct PostgresStore {
    pool: Pool,
    clock: Clock,
    guards: Guards,
}

impl PostgresStore {
    /// Opens `postgres://…`, and brings its schema up to date.
    pub async fn open(url: &str, options: &Options) -> Result<Self, StoreError> {
        let mut config: tokio_postgres::Config = url
            .parse()
            .map_err(|error| StoreError::Unusable(format!("the store's URL cannot be used: {error}")))?;
        // Every hot statement finds its rows by a key. A plan that was made when a table was small
        // must not stay when it has grown: statements are planned with the size of the day.
        let timeout_ms = options.statement_timeout.as_millis();
        config.options(format!(
            "-c statement_timeout={timeout_ms} -c client_min_messages=warning -c enable_seqscan=off \
             -c plan_cache_mode=force_custom_plan"
        ));
        config.connect_timeout(CONNECT_TIMEOUT);
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let pool = Pool::builder(Manager::from_config(config, NoTls, recycling))
            .max_size(options.max_connections)
            .wait_timeout(Some(POOL_TIMEOUT))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| StoreError::Unusable(error.to_string()))?;
        let store = Self { pool, clock: options.clock.clone(), guards: options.guards };
        migrate::migrate(&store).await?;
        Ok(store)
    }
}

const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
/// How long a caller waits for a connection of the pool.
const POOL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
