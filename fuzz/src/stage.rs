//! A server without a network: its systems on a store in memory, with upstreams that answer at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use solely_core::config::Config;
use solely_core::enrich::finder::{Finder, Findings, Place};
use solely_core::feed::source::{Found, Scope, Source, Window};
use solely_core::metrics::Metrics;
use solely_core::products::catalogue::Catalogue;
use solely_core::products::plugin::{Brought, Plugin, PluginCall};
use solely_core::systems::{Own, Systems, SystemsParts};
use solely_core::upstream::{CallFailed, UpstreamError};
use solely_server::{Access, App, Parts};
use solely_sqlite::SqliteStore;
use tokio::runtime::Runtime;

/// Inputs after which everything is made anew, so that what they leave behind does not pile up.
const INPUTS: u32 = 4_000;

/// See the module.
pub(crate) struct Stage {
    pub(crate) runtime: Runtime,
    pub(crate) systems: Systems,
    pub(crate) router: Router,
    left: u32,
}

thread_local! {
    static STAGE: RefCell<Option<Stage>> = const { RefCell::new(None) };
}

/// Does something on the stage.
pub(crate) fn on_stage(act: impl FnOnce(&Stage)) {
    STAGE.with_borrow_mut(|stage| {
        let there = stage.get_or_insert_with(Stage::new);
        act(there);
        there.left -= 1;
        if there.left == 0 {
            *stage = None;
        }
    });
}

/// A configuration with one of everything.
pub(crate) const CONFIG: &str = r#"
[enrich.providers.wolt]
enabled = true
[products.plugins.tours]
operations = ["searchProducts", "searchProductsForItinerary"]
wait = "100ms"
[feed.sources.diamonds]
"#;

impl Stage {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let config: Config = toml::from_str(CONFIG).expect("a configuration");
        let (systems, router) = runtime.block_on(async {
            let store = SqliteStore::open("sqlite::memory:", &solely_sqlite::Options::default());
            let parts = SystemsParts {
                store: Arc::new(store.expect("opens")),
                companion: None,
                metrics: Arc::new(Metrics::default()),
                own: Own {
                    finders: BTreeMap::from([("wolt".to_owned(), Arc::new(Upstream) as Arc<dyn Finder>)]),
                    plugins: BTreeMap::from([("tours".to_owned(), Arc::new(Upstream) as Arc<dyn Plugin>)]),
                    sources: BTreeMap::from([("diamonds".to_owned(), Arc::new(Upstream) as Arc<dyn Source>)]),
                },
            };
            let systems = Systems::new(&config, parts).expect("systems");
            let app = App::new(Parts {
                systems: systems.clone(),
                access: Access::open(),
                cors_origins: Vec::new(),
                max_body: 1 << 20,
                max_in_flight: 1_000,
                queue_depth: 100,
            });
            (systems, solely_server::router(app))
        });
        Self { runtime, systems, router, left: INPUTS }
    }
}

/// Knows nothing, and says so at once.
struct Upstream;

#[async_trait]
impl Finder for Upstream {
    async fn ask(&self, _: &Place, _: usize, _: Option<&str>) -> Result<Findings, CallFailed<UpstreamError>> {
        Ok(Findings::NotFound)
    }
}

#[async_trait]
impl Plugin for Upstream {
    async fn call(&self, _: &PluginCall) -> Result<Brought, CallFailed<UpstreamError>> {
        let text =
            r#"[{"productId":"p","productName":"Kayak","options":[{"optionId":"o1","optionName":"Day"}]}]"#;
        Ok(Brought { catalogue: Catalogue::parse(text).expect("products"), partial: false })
    }
}

#[async_trait]
impl Source for Upstream {
    async fn count(&self, _: &Scope) -> Result<u64, CallFailed<UpstreamError>> {
        Ok(0)
    }

    async fn page(&self, _: &Scope, _: &Window) -> Result<Vec<Found>, CallFailed<UpstreamError>> {
        Ok(Vec::new())
    }
}
