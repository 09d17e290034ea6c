//! What a program brings itself, put together with what is configured.

use std::collections::BTreeSet;
use std::sync::Arc;

use solely_core::config::{Config, PluginConfig, ProviderConfig, SourceConfig};
use solely_core::enrich::finder::Finder;
use solely_core::feed::source::Source;
use solely_core::metrics::Metrics;
use solely_core::products::plugin::Plugin;
use solely_core::systems::{self, Own, Systems, SystemsParts};
use solely_core::worker::{Handler, QueueSpec};

use crate::{OpenError, Solely, engine};

/// A [`Solely`] to be opened. Made by [`Solely::builder`].
#[must_use = "nothing is opened before `open`"]
pub struct Builder {
    config: Config,
    own: Own,
    queues: Vec<QueueSpec>,
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        let mut config = Config::default();
        url.clone_into(&mut config.store.url);
        Self { config, own: Own::default(), queues: Vec::new() }
    }

    /// Changes what is configured: times, limits, upstreams over HTTP, anything of `solely.toml` that does not concern the
    /// HTTP server.
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Keeps copies, hints and wake-ups in this Redis. Nothing in it decides. Needs the feature `redis`.
    pub fn redis(self, url: &str) -> Self {
        self.configure(|config| url.clone_into(&mut config.redis.url))
    }

    /// Works a queue with a handler, in the usual way.
    pub fn handler(self, queue: impl Into<String>, handler: impl Handler) -> Self {
        self.queue(QueueSpec::new(queue, Arc::new(handler)))
    }

    /// Works a queue.
    pub fn queue(mut self, queue: QueueSpec) -> Self {
        self.queues.push(queue);
        self
    }

    /// Links of places come from this finder, in the usual way.
    pub fn provider(self, name: &str, finder: impl Finder) -> Self {
        let config = self.config.enrich.providers.get(name).cloned();
        let config = ProviderConfig { enabled: true, ..config.unwrap_or_default() };
        self.provider_with(name, config, finder)
    }

    /// Links of places come from this finder; of its configuration, what says where a finder is counts for nothing.
    pub fn provider_with(mut self, name: &str, config: ProviderConfig, finder: impl Finder) -> Self {
        self.config.enrich.providers.insert(name.to_owned(), config);
        self.own.finders.insert(name.to_owned(), Arc::new(finder));
        self
    }

    /// Products come from this plugin, in the usual way.
    pub fn plugin(self, name: &str, plugin: impl Plugin) -> Self {
        let config = self.config.products.plugins.get(name).cloned();
        self.plugin_with(name, config.unwrap_or_default(), plugin)
    }

    /// Products come from this plugin; of its configuration, what says where a plugin is counts for nothing.
    pub fn plugin_with(mut self, name: &str, config: PluginConfig, plugin: impl Plugin) -> Self {
        self.config.products.plugins.insert(name.to_owned(), config);
        self.own.plugins.insert(name.to_owned(), Arc::new(plugin));
        self
    }

    /// Records are copied from this source, in the usual way.
    pub fn source(self, name: &str, source: impl Source) -> Self {
        let config = self.config.feed.sources.get(name).cloned();
        self.source_with(name, config.unwrap_or_default(), source)
    }

    /// Records are copied from this source; of its configuration, what says where a source is counts for nothing.
    pub fn source_with(mut self, name: &str, config: SourceConfig, source: impl Source) -> Self {
        self.config.feed.sources.insert(name.to_owned(), config);
        self.own.sources.insert(name.to_owned(), Arc::new(source));
        self
    }

    /// Opens the store, bringing its schema up to date. Nothing is worked before [`Solely::start`].
    pub async fn open(self) -> Result<Solely, OpenError> {
        let Self { config, own, queues } = self;
        if let Some(problem) = systems::problem(&config, &own).or_else(|| twice(&queues, &config)) {
            return Err(OpenError::Config(problem));
        }
        let store = engine::store(&config).await?;
        let counted = queues.iter().map(|queue| queue.name.clone()).chain(systems::queues(&config));
        let metrics = Arc::new(Metrics::new(&counted.collect::<Vec<_>>()));
        let companion = engine::companion(&config, &store, &metrics).await?;
        let parts = SystemsParts { store, companion, metrics, own };
        let systems = Systems::new(&config, parts);
        let systems = systems.map_err(|error| OpenError::Config(format!("no HTTP client: {error}")))?;
        let (config, queues) = (Arc::new(config), queues.into());
        Ok(Solely { systems, config, queues, started: Arc::default() })
    }
}

/// A queue that is worked by two handlers.
fn twice(queues: &[QueueSpec], config: &Config) -> Option<String> {
    let mut seen: BTreeSet<String> = systems::queues(config).into_iter().collect();
    let twice = queues.iter().find(|queue| !seen.insert(queue.name.clone()))?;
    Some(format!("the queue `{}` has two handlers", twice.name))
}
