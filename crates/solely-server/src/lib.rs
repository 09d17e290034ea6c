//! The HTTP surface. It never names an engine.
//!
//! All routes are on one screen in [`router()`]; a handler extracts, calls one thing of
//! `solely-core`, and answers, in about ten lines. Errors are values ([`ApiError`]); the
//! outermost layer (`request_id`) turns them into the one error body of the contract, so that
//! every error, also of an unknown route or a wrong method, has the same shape.

mod error;
mod extract;
mod page;
mod request_id;
mod router;
mod routes;
mod serve;

use std::sync::Arc;

use solely_core::Store;
use solely_core::bus::Bus;
use solely_core::cache::Cache;
use solely_core::companion::Companion;
use solely_core::lease::Leases;
use solely_core::metrics::Metrics;
use solely_core::queue::Jobs;
use solely_core::upstream::Upstreams;

pub use error::ApiError;
pub use router::router;
pub use serve::{Runtime, serve};

/// What handlers work with.
#[derive(Clone)]
pub struct App {
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
    /// The upstreams of this process.
    pub upstreams: Upstreams,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The largest body of a request, in bytes.
    pub max_body: usize,
}

impl App {
    /// An app on a store, with a companion if there is one.
    pub fn new(
        store: Arc<dyn Store>,
        companion: Option<Arc<dyn Companion>>,
        metrics: Arc<Metrics>,
        max_body: usize,
    ) -> Self {
        let bus = Bus::new();
        // The first that is up carries the notes.
        if let Some(companion) = &companion {
            companion.connect_bus(&bus);
        }
        store.connect_bus(&bus);
        Self {
            cache: Cache::new(store.clone(), bus.clone(), metrics.clone(), companion.clone()),
            jobs: Jobs::new(store.clone(), bus.clone(), metrics.clone()),
            leases: Leases::new(store.clone(), bus, metrics.clone()).with_hints(companion.clone()),
            upstreams: Upstreams::default(),
            companion,
            store,
            metrics,
            max_body,
        }
    }
}
