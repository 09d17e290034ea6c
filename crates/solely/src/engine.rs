//! From URLs to engines: the only place of the library that names them.

use std::sync::Arc;

use solely_core::Store;
use solely_core::companion::Companion;
use solely_core::config::Config;
use solely_core::metrics::Metrics;

use crate::OpenError;

/// The store that a configuration names, its schema brought up to date.
pub(crate) async fn store(config: &Config) -> Result<Arc<dyn Store>, OpenError> {
    let url = config.store.url.as_str();
    match url.split_once(':') {
        Some(("sqlite", place)) if !place.is_empty() => sqlite(url),
        Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => postgres(config).await,
        _ => Err(OpenError::UnknownUrl),
    }
}

#[cfg(feature = "sqlite")]
fn sqlite(url: &str) -> Result<Arc<dyn Store>, OpenError> {
    let store = solely_sqlite::SqliteStore::open(url, &solely_sqlite::Options::default())?;
    Ok(Arc::new(store))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_url: &str) -> Result<Arc<dyn Store>, OpenError> {
    Err(OpenError::UnknownUrl)
}

#[cfg(feature = "postgres")]
async fn postgres(config: &Config) -> Result<Arc<dyn Store>, OpenError> {
    let options = solely_postgres::Options {
        max_connections: config.store.max_connections,
        schema: config.store.schema.clone(),
        statement_timeout: config.store.statement_timeout.0,
        ..Default::default()
    };
    Ok(Arc::new(solely_postgres::PostgresStore::open(&config.store.url, &options).await?))
}

#[cfg(not(feature = "postgres"))]
#[expect(clippy::unused_async, reason = "its twin opens connections")]
async fn postgres(_config: &Config) -> Result<Arc<dyn Store>, OpenError> {
    Err(OpenError::UnknownUrl)
}

/// Redis beside the store, if there is to be one. That it cannot be reached yet is no error.
#[cfg(feature = "redis")]
pub(crate) async fn companion(
    config: &Config,
    store: &Arc<dyn Store>,
    metrics: &Arc<Metrics>,
) -> Result<Option<Arc<dyn Companion>>, OpenError> {
    if config.redis.url.is_empty() {
        return Ok(None);
    }
    if let Some(problem) = solely_redis::problem(&config.redis.url) {
        return Err(OpenError::Config(format!("`redis.url`: {problem}")));
    }
    let options = solely_redis::Options {
        connect_timeout: config.redis.connect_timeout.0,
        command_timeout: config.redis.command_timeout.0,
        retries: config.redis.retries,
        forms: solely_core::systems::forms(config),
        guards: solely_core::fault::Guards::all(),
    };
    let redis = solely_redis::Redis::open(&config.redis.url, options, store.clone(), metrics.clone()).await?;
    Ok(Some(Arc::new(redis)))
}

/// Without the feature there is none, and asking for one is a mistake.
#[cfg(not(feature = "redis"))]
#[expect(clippy::unused_async, reason = "its twin connects")]
pub(crate) async fn companion(
    config: &Config,
    _store: &Arc<dyn Store>,
    _metrics: &Arc<Metrics>,
) -> Result<Option<Arc<dyn Companion>>, OpenError> {
    if config.redis.url.is_empty() {
        return Ok(None);
    }
    Err(OpenError::Config("`redis.url` needs the feature `redis`".to_owned()))
}
