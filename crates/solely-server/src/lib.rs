//! The HTTP surface. It never names an engine.
//!
//! All routes are on one screen in [`router()`]; a handler extracts, calls one thing of
//! `solely-core`, and answers, in about ten lines. Errors are values ([`ApiError`]); the
//! outermost layer (`request_id`) turns them into the one error body of the contract, so that
//! every error, also of an unknown route or a wrong method, has the same shape.

mod access;
mod error;
mod extract;
mod gate;
mod limit;
mod listen;
mod live;
mod openapi;
mod origin;
mod page;
mod request_id;
mod router;
mod routes;
mod serve;
mod session;
mod stream;
mod ws;

use std::sync::Arc;

use solely_core::ProcessId;
use solely_core::Store;
use solely_core::alert::Alerts;
use solely_core::bus::Bus;
use solely_core::cache::Cache;
use solely_core::companion::Companion;
use solely_core::config::{EnrichConfig, ReserveConfig};
use solely_core::enrich::{Enrich, EnrichParts, Provider};
use solely_core::feed::{Feed, FeedSource};
use solely_core::lease::Leases;
use solely_core::metrics::Metrics;
use solely_core::products::{self, Products, ProductsParts};
use solely_core::queue::Jobs;
use solely_core::reserve::{Reserve, ReserveParts};
use solely_core::upstream::Upstreams;
use solely_core::upstream::http::HttpClient;
use tokio_util::sync::CancellationToken;

pub use access::{Access, Rule, Rules, rules};
pub use error::ApiError;
pub use live::Remembering;
pub use router::{openapi, router};
pub use serve::{Runtime, serve};

/// What handlers work with. Clones share it, and cost next to nothing: every layer and handler of every request has one.
#[derive(Clone)]
pub struct App(Arc<Shared>);

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// What all clones of an [`App`] share.
#[derive(Clone)]
pub struct Shared {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Copies, hints and wake-ups beside the store, if there are any.
    pub companion: Option<Arc<dyn Companion>>,
    /// Entries, read through copies.
    pub cache: Cache,
    /// Jobs, with wake-ups.
    pub jobs: Jobs,
    /// Leases, with waiting.
    pub leases: Leases,
    /// Provider links of places.
    pub enrich: Enrich,
    /// Product searches.
    pub products: Products,
    /// Boxes that are reserved.
    pub reserve: Reserve,
    /// Sources that are copied, with their runs.
    pub feed: Feed,
    /// The upstreams of this process.
    pub upstreams: Upstreams,
    /// This process, as the store knows it.
    pub process: ProcessId,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What an operator should look at.
    pub alerts: Alerts,
    /// How callers are known, and what they may do.
    pub access: Access,
    /// Other origins that browsers may call and connect from.
    pub cors_origins: Arc<Vec<String>>,
    /// The largest body of a request, in bytes.
    pub max_body: usize,
    /// Cancelled when the server stops: sockets close.
    pub stop: CancellationToken,
    /// Whether this is `solely demo`, which has pages of its own.
    pub demo: bool,
    openapi: Arc<str>,
    load: limit::Load,
    sockets: ws::Sockets,
    live: live::Live,
}

/// What an app is made of.
pub struct Parts {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Copies, hints and wake-ups beside it, if there are any.
    pub companion: Option<Arc<dyn Companion>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// How links are looked up,
    pub enrich: EnrichConfig,
    /// and at whom.
    pub providers: Vec<Provider>,
    /// Plugins that have products.
    pub plugins: Vec<products::App>,
    /// How boxes are reserved,
    pub reserve: ReserveConfig,
    /// and what delivers the news of it.
    pub client: HttpClient,
    /// Sources that are copied.
    pub sources: Vec<FeedSource>,
    /// How callers are known.
    pub access: Access,
    /// Other origins that browsers may call and connect from.
    pub cors_origins: Vec<String>,
    /// The largest body of a request, in bytes.
    pub max_body: usize,
    /// Requests under way; one more is refused.
    pub max_in_flight: usize,
    /// A queue with more jobs that wait is deep.
    pub queue_depth: u64,
}

impl App {
    /// An app of these parts.
    pub fn new(parts: Parts) -> Self {
        let Parts { store, companion, metrics, sources, plugins, providers, .. } = parts;
        let Parts { access, cors_origins, max_body, .. } = parts;
        let bus = Bus::new();
        // The first that is up carries the notes.
        if let Some(companion) = &companion {
            companion.connect_bus(&bus);
        }
        store.connect_bus(&bus);
        let jobs = Jobs::new(store.clone(), bus.clone(), metrics.clone());
        let feed = Feed::new(jobs.clone(), sources);
        metrics.sources(feed.sources().map(|source| source.name.as_str()));
        let cache = Cache::new(store.clone(), bus.clone(), metrics.clone(), companion.clone());
        let parts_of = EnrichParts { jobs: jobs.clone(), cache: cache.clone(), companion: companion.clone() };
        let enrich = Enrich::new(parts_of, &parts.enrich, providers);
        let leases = Leases::new(store.clone(), bus, metrics.clone()).with_hints(companion.clone());
        let process = ProcessId::random();
        let parts_of = ProductsParts {
            jobs: jobs.clone(),
            cache: cache.clone(),
            leases: leases.clone(),
            companion: companion.clone(),
            process,
        };
        let products = Products::new(parts_of, plugins);
        let parts_of =
            ReserveParts { jobs: jobs.clone(), companion: companion.clone(), client: Some(parts.client) };
        let reserve = Reserve::new(parts_of, &parts.reserve);
        let of_providers = enrich.providers().filter(|provider| provider.settings.enabled);
        let upstreams = of_providers
            .map(|provider| provider.upstream.clone())
            .chain(products.apps().map(|app| app.upstream.clone()))
            .chain(feed.sources().map(|source| source.upstream.clone()));
        Self(Arc::new(Shared {
            upstreams: Upstreams::new(upstreams),
            cache,
            jobs,
            enrich,
            leases,
            products,
            reserve,
            process,
            feed,
            companion,
            store,
            alerts: Alerts::new(metrics.clone(), parts.queue_depth),
            metrics,
            access,
            cors_origins: Arc::new(cors_origins),
            max_body,
            stop: CancellationToken::new(),
            demo: false,
            openapi: "{}".into(),
            load: limit::Load::new(parts.max_in_flight),
            sockets: ws::Sockets::default(),
            live: live::Live::default(),
        }))
    }

    /// The same, but for what this changes. For the start: whoever has a clone already keeps what it has.
    #[must_use]
    pub fn with(self, change: impl FnOnce(&mut Shared)) -> Self {
        let mut shared = Arc::unwrap_or_clone(self.0);
        change(&mut shared);
        Self(Arc::new(shared))
    }

    /// Remembers what is counted for dashboards that are opened later, as long as this is held.
    pub fn remember(&self) -> Remembering {
        self.live.remember(self)
    }
}
