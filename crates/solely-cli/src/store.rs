//! From a store URL to an engine.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use solely_core::config::StoreConfig;
use solely_core::fault::Guards;
use solely_core::{Clock, Store};
use solely_postgres::PostgresStore;
use solely_sqlite::{Access, SqliteStore};

/// The engine that a URL names.
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}

pub(crate) fn engine(url: &str) -> Option<Engine> {
    if url.strip_prefix("sqlite:").is_some_and(|place| !place.is_empty()) {
        return Some(Engine::Sqlite);
    }
    let postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
    postgres.then_some(Engine::Postgres)
}

/// What is wrong with a store URL, if anything is. Says nothing of the URL, which may hold a
/// password.
pub(crate) fn problem(url: &str) -> Option<String> {
    let known = "use sqlite:FILE, sqlite::memory: or postgres://user:password@host/database";
    engine(url).is_none().then(|| format!("`store.url` is not one that this build knows; {known}"))
}

/// Opens the store that the configuration names, bringing its schema up to date.
pub(crate) async fn open(config: &StoreConfig, access: Access) -> Result<Arc<dyn Store>> {
    let (clock, guards) = (Clock::system(), Guards::from_env());
    match engine(&config.url) {
        Some(Engine::Sqlite) => {
            let options = solely_sqlite::Options { access, clock, guards, ..Default::default() };
            Ok(Arc::new(SqliteStore::open(&config.url, &options)?))
        }
        Some(Engine::Postgres) => {
            let options = solely_postgres::Options {
                max_connections: config.max_connections,
                schema: config.schema.clone(),
                statement_timeout: config.statement_timeout.0,
                clock,
                guards,
            };
            Ok(Arc::new(PostgresStore::open(&config.url, &options).await?))
        }
        None => bail!(problem(&config.url).unwrap_or_default()),
    }
}

/// Opens a store that must be there already.
pub(crate) async fn open_existing(config: &StoreConfig) -> Result<Arc<dyn Store>> {
    let file = config.url.strip_prefix("sqlite:").filter(|place| *place != ":memory:");
    if let Some(file) = file.filter(|file| !Path::new(file).is_file()) {
        bail!("there is no store in `{file}`");
    }
    open(config, Access::Tool).await
}
