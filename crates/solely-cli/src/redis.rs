//! From the configuration of Redis to a companion.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use solely_core::Store;
use solely_core::companion::{Companion, Form};
use solely_core::config::RedisConfig;
use solely_core::fault::Guards;
use solely_core::metrics::Metrics;
use solely_redis::{Options, Redis};

/// What is wrong with it, if anything is.
pub(crate) fn problem(config: &RedisConfig) -> Option<String> {
    if config.url.is_empty() {
        return None;
    }
    let url = solely_redis::problem(&config.url).map(|problem| format!("`redis.url`: {problem}"));
    let short = |key: &str, time: Duration| time.is_zero().then(|| format!("`redis.{key}` is at least 1ms"));
    url.or_else(|| short("connect_timeout", config.connect_timeout.0))
        .or_else(|| short("command_timeout", config.command_timeout.0))
        .or_else(|| (config.retries > 10).then(|| "`redis.retries` is at most 10".to_owned()))
}

/// Redis, if there is to be one. That it cannot be reached yet is no error.
pub(crate) async fn open(
    config: &RedisConfig,
    forms: Vec<Arc<dyn Form>>,
    store: &Arc<dyn Store>,
    metrics: &Arc<Metrics>,
) -> Result<Option<Arc<dyn Companion>>> {
    if config.url.is_empty() {
        return Ok(None);
    }
    let options = Options {
        connect_timeout: config.connect_timeout.0,
        command_timeout: config.command_timeout.0,
        retries: config.retries,
        forms,
        guards: Guards::from_env(),
    };
    let redis = Redis::open(&config.url, options, store.clone(), metrics.clone()).await?;
    Ok(Some(Arc::new(redis)))
}
