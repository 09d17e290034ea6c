//! The systems of one process, put together and set to work. The server and the library both stand on this.
//!
//! ```text
//!   config ──┐
//!   own  ────┼─▶ Systems ──▶ work ──▶ Working ──(stop)──▶ ended
//!   store ───┘   one bus,     worker · upkeep · sweeper     drains, then leaves,
//!                one process  · feeds · watches             then closes the store
//! ```
//!
//! *Own* finders, plugins and sources are those that a program brings in Rust; each is configured under its name like
//! any other, but for where it is.
//!
//! *The end*: told to stop, no new job is taken; deliveries finish for the grace period, the rest are released. The
//! heartbeat goes on until the last of them is settled, or the process would be taken for dead while it drains.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bus::Bus;
use crate::cache::Cache;
use crate::companion::{Companion, Form};
use crate::config::{Config, PluginConfig, ProviderConfig, SourceConfig};
use crate::enrich::finder::Finder;
use crate::enrich::{self, Enrich, EnrichParts, Provider};
use crate::feed::source::Source;
use crate::feed::{self, Feed, FeedSource};
use crate::id::ProcessId;
use crate::lease::Leases;
use crate::metrics::Metrics;
use crate::products::plugin::Plugin;
use crate::products::{self, Products, ProductsParts};
use crate::queue::Jobs;
use crate::reserve::{self, Reserve, ReserveParts};
use crate::store::{Retention, Store};
use crate::upkeep::Upkeep;
use crate::upstream::Upstreams;
use crate::upstream::http::{HttpClient, Tls};
use crate::worker::{QueueSpec, Worker};

/// Finders, plugins and sources that a program brings itself, by their names in the configuration.
#[derive(Clone, Default)]
pub struct Own {
    /// Of enrich.
    pub finders: BTreeMap<String, Arc<dyn Finder>>,
    /// Of products.
    pub plugins: BTreeMap<String, Arc<dyn Plugin>>,
    /// Of feed.
    pub sources: BTreeMap<String, Arc<dyn Source>>,
}

/// What systems stand on.
pub struct SystemsParts {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Copies, hints and wake-ups beside it, if there are any.
    pub companion: Option<Arc<dyn Companion>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What the program brings itself.
    pub own: Own,
}

/// The systems of one process. Clones share everything.
#[derive(Clone)]
pub struct Systems {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Copies, hints and wake-ups beside it, if there are any.
    pub companion: Option<Arc<dyn Companion>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// This process, as the store knows it.
    pub process: ProcessId,
    /// Jobs, with wake-ups.
    pub jobs: Jobs,
    /// Leases, with waiting.
    pub leases: Leases,
    /// Entries, read through copies.
    pub cache: Cache,
    /// Provider links of places.
    pub enrich: Enrich,
    /// Product searches.
    pub products: Products,
    /// Boxes that are reserved.
    pub reserve: Reserve,
    /// Sources that are copied, with their runs.
    pub feed: Feed,
    /// What they call.
    pub upstreams: Upstreams,
}

impl Systems {
    /// The systems that a configuration describes. It has been checked with [`problem`].
    pub fn new(config: &Config, parts: SystemsParts) -> Result<Self, reqwest::Error> {
        let SystemsParts { store, companion, metrics, own } = parts;
        let client = client(config, &own)?;
        let bus = Bus::new();
        // The first that is up carries the notes.
        if let Some(companion) = &companion {
            companion.connect_bus(&bus);
        }
        store.connect_bus(&bus);
        let process = ProcessId::random();
        let jobs = Jobs::new(store.clone(), bus.clone(), metrics.clone());
        let cache = Cache::new(store.clone(), bus.clone(), metrics.clone(), companion.clone());
        let leases = Leases::new(store.clone(), bus, metrics.clone()).with_hints(companion.clone());
        let upstreams = Made { config, own: &own, client: &client, store: &store, metrics: &metrics };
        let feed = Feed::new(jobs.clone(), upstreams.sources());
        metrics.sources(feed.sources().map(|source| source.name.as_str()));
        let parts = EnrichParts { jobs: jobs.clone(), cache: cache.clone(), companion: companion.clone() };
        let enrich = Enrich::new(parts, &config.enrich, upstreams.providers());
        let parts = ProductsParts {
            jobs: jobs.clone(),
            cache: cache.clone(),
            leases: leases.clone(),
            companion: companion.clone(),
            process,
        };
        let products = Products::new(parts, upstreams.apps());
        let parts =
            ReserveParts { jobs: jobs.clone(), companion: companion.clone(), client: Some(client.clone()) };
        let reserve = Reserve::new(parts, &config.reserve);
        let enabled = enrich.providers().filter(|provider| provider.settings.enabled);
        let called = enabled.map(|provider| provider.upstream.clone());
        let called = called.chain(products.apps().map(|app| app.upstream.clone()));
        let called = called.chain(feed.sources().map(|source| source.upstream.clone()));
        let upstreams = Upstreams::new(called);
        Ok(Self {
            store,
            companion,
            metrics,
            process,
            jobs,
            leases,
            cache,
            enrich,
            products,
            reserve,
            feed,
            upstreams,
        })
    }

    /// The queues of all systems, and how this process works them.
    pub fn queues(&self) -> Vec<QueueSpec> {
        let mut queues = self.enrich.queues();
        queues.extend(self.products.queues());
        queues.extend(self.feed.queues());
        queues.extend(self.reserve.queues());
        queues
    }

    /// Works the queues, and does all that goes on by itself, until it is told to stop.
    pub fn work(&self, work: Work) -> Working {
        let Work { more, retention, grace, stop } = work;
        let mut queues = self.queues();
        queues.extend(more);
        let upkeep = Upkeep::new(self.jobs.clone(), self.process, &queues, retention);
        let worker = Worker { jobs: self.jobs.clone(), process: self.process, queues, grace };
        let drained = CancellationToken::new();
        let (reserve, watch) = (self.reserve.clone(), self.reserve.watch().clone());
        let (sweeping, watching) = (stop.clone(), stop.clone());
        Working {
            upkeep: tokio::spawn(upkeep.run(drained.clone())),
            others: vec![
                tokio::spawn(self.feed.clone().keep(stop.clone())),
                tokio::spawn(async move { reserve.sweep_until(sweeping).await }),
                tokio::spawn(async move { watch.run(watching).await }),
                tokio::spawn(worker.run(stop)),
            ],
            drained,
        }
    }

    /// Closes what is beside the store, and then the store. Later calls are refused.
    pub async fn close(&self) {
        if let Some(companion) = &self.companion {
            companion.close().await;
        }
        self.store.close().await;
    }
}

/// How systems work.
pub struct Work {
    /// Queues beside their own.
    pub more: Vec<QueueSpec>,
    /// How long finished things are kept.
    pub retention: Retention,
    /// How long deliveries may go on once it is told to stop.
    pub grace: Duration,
    /// Cancelled when it is to stop.
    pub stop: CancellationToken,
}

/// Systems at work.
pub struct Working {
    upkeep: JoinHandle<()>,
    others: Vec<JoinHandle<()>>,
    drained: CancellationToken,
}

impl Working {
    /// Waits until it was told to stop, has drained, and has said that its process leaves.
    pub async fn ended(self) {
        for other in self.others {
            let _ = other.await;
        }
        self.drained.cancel();
        let _ = self.upkeep.await;
    }
}

/// What a configuration says of upstreams, with what it takes to make them.
struct Made<'a> {
    config: &'a Config,
    own: &'a Own,
    client: &'a HttpClient,
    store: &'a Arc<dyn Store>,
    metrics: &'a Metrics,
}

impl Made<'_> {
    fn providers(&self) -> Vec<Provider> {
        let ttl = self.config.enrich.request_ttl.0;
        let of = |(name, config): (&String, &ProviderConfig)| match self.own.finders.get(name) {
            Some(finder) => Provider::of(name, config, ttl, finder.clone(), self.store),
            None => Provider::configured(name, config, ttl, self.client, self.store),
        };
        self.config.enrich.providers.iter().map(of).collect()
    }

    fn apps(&self) -> Vec<products::App> {
        let of = |(name, config): (&String, &PluginConfig)| match self.own.plugins.get(name) {
            Some(plugin) => products::App::of(name, config, plugin.clone(), self.store, self.metrics),
            None => products::App::configured(name, config, self.client, self.store, self.metrics),
        };
        self.config.products.plugins.iter().map(of).collect()
    }

    fn sources(&self) -> Vec<FeedSource> {
        let of = |(name, config): (&String, &SourceConfig)| match self.own.sources.get(name) {
            Some(source) => FeedSource::of(name, config, source.clone(), self.store),
            None => FeedSource::configured(name, config, self.client, self.store),
        };
        self.config.feed.sources.iter().map(of).collect()
    }
}

/// The one client of all upstreams that are called over HTTP.
fn client(config: &Config, own: &Own) -> Result<HttpClient, reqwest::Error> {
    let providers = config.enrich.providers.iter();
    let providers = providers.filter(|(name, one)| one.enabled && !own.finders.contains_key(*name));
    let providers = providers.map(|(_, one)| ProviderConfig::finder_url(one));
    let plugins = config.products.plugins.iter().filter(|(name, _)| !own.plugins.contains_key(*name));
    let plugins = plugins.map(|(_, one)| one.url.as_str());
    let sources = config.feed.sources.iter().filter(|(name, _)| !own.sources.contains_key(*name));
    let sources = sources.map(|(_, one)| one.url.as_str());
    let webhook = std::iter::once(config.reserve.webhook_url.as_str());
    HttpClient::new(Tls::for_urls(providers.chain(plugins).chain(sources).chain(webhook)))
}

/// How the copies of a configuration's systems look.
pub fn forms(config: &Config) -> Vec<Arc<dyn Form>> {
    enrich::forms(&config.enrich).into_iter().chain(products::forms()).collect()
}

/// The queues of a configuration's systems, which are counted from the start.
pub fn queues(config: &Config) -> Vec<String> {
    let enabled = config.enrich.providers.iter().filter(|(_, provider)| provider.enabled);
    let of_places = enabled.map(|(name, _)| enrich::queue(name));
    let of_feeds: &[&str] = if config.feed.sources.is_empty() { &[] } else { &feed::QUEUES };
    let of_products = (!config.products.plugins.is_empty()).then_some(products::QUEUE);
    let of_boxes = (!config.reserve.webhook_url.is_empty()).then_some(reserve::notify::QUEUE);
    let others = of_feeds.iter().copied().chain(of_products).chain(of_boxes);
    others.map(str::to_owned).chain(of_places).collect()
}

/// What is wrong with what a configuration says of systems, if anything is.
pub fn problem(config: &Config, own: &Own) -> Option<String> {
    let ttl = config.enrich.request_ttl.0;
    if ttl < Duration::from_millis(100) || ttl > Duration::from_secs(86_400) {
        return Some("`enrich.request_ttl` is 100ms to 1d".to_owned());
    }
    if let Some((key, problem)) = config.reserve.problem() {
        return Some(format!("`reserve.{key}` {problem}"));
    }
    let providers = config.enrich.providers.iter().map(|(name, one)| {
        let ours = own.finders.contains_key(name);
        ("enrich.providers", name, if ours { one.limits_problem() } else { one.problem() })
    });
    let sources = config.feed.sources.iter().map(|(name, one)| {
        let ours = own.sources.contains_key(name);
        ("feed.sources", name, if ours { one.limits_problem() } else { one.problem() })
    });
    let plugins = config.products.plugins.iter().map(|(name, one)| {
        let ours = own.plugins.contains_key(name);
        ("products.plugins", name, if ours { one.limits_problem() } else { one.problem() })
    });
    let of = |(section, name, problem): (&str, &String, Option<(&'static str, String)>)| {
        if !is_name(name) {
            let letters = format!("a name has 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`");
            return Some(format!("`{section}.{name}`: {letters}"));
        }
        problem.map(|(key, problem)| format!("`{section}.{name}.{key}` {problem}"))
    };
    providers.chain(sources).chain(plugins).find_map(of)
}

/// Bytes of the name of a provider, a plugin or a source.
const NAME_BYTES_MAX: usize = 64;

fn is_name(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(known)
}
