//! An app: a plugin, and how it is used.

use std::sync::Arc;
use std::time::Duration;

use super::plugin::{self, Plugin};
use crate::config::PluginConfig;
use crate::metrics::{Metrics, ProductMetrics};
use crate::store::Store;
use crate::upstream::http::HttpClient;
use crate::upstream::{Upstream, UpstreamKind, UpstreamLimits};

/// How a plugin's products are had.
#[derive(Clone, Debug)]
pub struct AppSettings {
    /// Its operations; the first is the one that is meant where none is named.
    pub operations: Vec<String>,
    /// Older is stale,
    pub ttr: Duration,
    /// and older than this is gone.
    pub ttl: Duration,
    /// Only what is cached is served.
    pub do_not_call: bool,
    /// How long the lease of a call outlives its holder.
    pub lock_ttl: Duration,
    /// For how long no second refresh is queued.
    pub job_lock_ttl: Duration,
    /// How long a caller waits.
    pub wait: Duration,
    /// How long an empty answer is kept where there was nothing before.
    pub empty_ttl: Duration,
    /// How long a key is left alone after a failure; doubles.
    pub failure_backoff: Duration,
    /// Calls at once by one process.
    pub concurrency: usize,
}

/// An app: a plugin, and how it is used.
pub struct App {
    /// Its name, the `appKey`.
    pub name: String,
    /// How its products are had.
    pub settings: AppSettings,
    /// Its limits.
    pub upstream: Arc<Upstream>,
    /// Who has the products.
    pub plugin: Arc<dyn Plugin>,
    /// What is counted.
    pub counted: ProductMetrics,
}

impl App {
    /// The app that a configuration describes.
    pub fn configured(
        name: &str,
        config: &PluginConfig,
        client: &HttpClient,
        store: &Arc<dyn Store>,
        metrics: &Metrics,
    ) -> Self {
        Self::of(name, config, plugin::configured(config, client), store, metrics)
    }

    /// The same, with a plugin of one's own.
    pub fn of(
        name: &str,
        config: &PluginConfig,
        plugin: Arc<dyn Plugin>,
        store: &Arc<dyn Store>,
        metrics: &Metrics,
    ) -> Self {
        let upstream = UpstreamLimits {
            name: name.to_owned(),
            kind: UpstreamKind::Plugin,
            timeout: config.timeout.0,
            concurrency: config.concurrency,
            rate: config.rate,
            failures: FAILURES_OPEN,
        };
        let mut operations = config.operations.clone();
        operations.sort_by_key(|operation| operation != PREFERRED);
        let settings = AppSettings {
            operations,
            ttr: config.ttr.0,
            ttl: config.ttl.0,
            do_not_call: config.do_not_call,
            lock_ttl: config.lock_ttl.0,
            job_lock_ttl: config.job_lock_ttl.0,
            wait: config.wait.0,
            empty_ttl: config.empty_ttl.0,
            failure_backoff: config.failure_backoff.0,
            concurrency: config.concurrency,
        };
        Self {
            name: name.to_owned(),
            settings,
            upstream: Arc::new(Upstream::new(upstream, store.clone())),
            plugin,
            counted: metrics.app(name),
        }
    }
}

/// The operation that is meant where none is named, if a plugin has it.
const PREFERRED: &str = "searchProducts";
/// Failures in a row, of any key, that open a plugin's breaker.
const FAILURES_OPEN: u32 = 20;
