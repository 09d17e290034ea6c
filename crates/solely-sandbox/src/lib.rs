//! Upstreams to try solely against, speaking the real shapes.
//!
//! | route | speaks |
//! |---|---|
//! | `GET /feed`, `GET /feed/count` | the plain source of feeds |
//! | `POST /nivoda` | Nivoda's GraphQL: authenticate, count, pages |
//! | `POST /finder` | the plain finder of places' links |
//! | `GET /brave/res/v1/web/search` | Brave's web search |
//! | `GET /google/customsearch/v1` | Google's Programmable Search |
//! | `GET /wolt/v1/cities`, `POST /wolt/v1/pages/search` | the venue search of Wolt's pages |
//! | `POST /products/{operation}` | the plain plugin of products |
//! | `GET /octo/products` | the OCTO products API |
//! | `GET /_calls` | how often each was called, and with what outcome |
//! | `POST /_mood` | latency, errors, 429 and hangs from now on |
//!
//! Both sources copy from one [`catalogue`]: stones with prices, of which most are cheap.

mod brave;
pub mod catalogue;
pub mod feed;
pub mod finder;
mod google;
pub mod mood;
pub mod nivoda;
mod octo;
mod products;
mod web;
mod wolt;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use axum::extract::State;
use axum::{Json, Router, routing};
use tokio::net::TcpListener;

use catalogue::Catalogue;
use mood::Mood;

/// The upstreams, and what is known of their callers. Clones share everything.
#[derive(Clone, Default)]
pub struct Sandbox(Arc<Inner>);

#[derive(Default)]
struct Inner {
    catalogue: RwLock<Catalogue>,
    mood: RwLock<Mood>,
    calls: Mutex<Calls>,
    tokens: Mutex<nivoda::Tokens>,
    /// What the plain plugin answers.
    products: RwLock<products::Answer>,
}

/// What was asked for.
#[derive(Default)]
struct Calls {
    /// How often, by route and outcome.
    counts: BTreeMap<String, u64>,
    /// When, in order.
    times: Vec<Instant>,
    /// Traces that came with them.
    traces: std::collections::BTreeSet<String>,
    /// Pages that were answered: prices, offset, and how often.
    pages: BTreeMap<(i64, i64, u64), u64>,
    /// Places that were looked for, and how often.
    places: BTreeMap<String, u64>,
    /// What the web was searched for, in order.
    queries: Vec<String>,
    /// What the next calls are answered with.
    next: VecDeque<u16>,
    /// The first query, counted from the tightest, that finds a place.
    found_from: usize,
}

/// Calls whose time, and pages whose count, are remembered.
const REMEMBERED: usize = 1_000_000;

impl Calls {
    fn note_time(&mut self) {
        if self.times.len() < REMEMBERED {
            self.times.push(Instant::now());
        }
    }

    fn note_place(&mut self, place: &str) {
        if self.places.len() < REMEMBERED || self.places.contains_key(place) {
            *self.places.entry(place.to_owned()).or_default() += 1;
        }
    }

    fn note_query(&mut self, query: &str) {
        if self.queries.len() < REMEMBERED {
            self.queries.push(query.to_owned());
        }
    }

    fn note_page(&mut self, page: (i64, i64, u64)) {
        if self.pages.len() < REMEMBERED || self.pages.contains_key(&page) {
            *self.pages.entry(page).or_default() += 1;
        }
    }
}

impl Sandbox {
    /// Upstreams with these stones.
    pub fn new(catalogue: Catalogue) -> Self {
        let sandbox = Self::default();
        *sandbox.0.catalogue.write().unwrap_or_else(PoisonError::into_inner) = catalogue;
        sandbox
    }

    /// The routes.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/feed", routing::get(feed::page))
            .route("/feed/count", routing::get(feed::count))
            .route("/nivoda", routing::post(nivoda::graphql))
            .route("/finder", routing::post(finder::find))
            .route("/brave/res/v1/web/search", routing::get(brave::search))
            .route("/google/customsearch/v1", routing::get(google::search))
            .route("/wolt/v1/cities", routing::get(wolt::cities))
            .route("/wolt/v1/pages/search", routing::post(wolt::search))
            .route("/products/{operation}", routing::post(products::search))
            .route("/octo/products", routing::get(octo::products))
            .route("/_calls", routing::get(calls))
            .route("/_mood", routing::post(set_mood))
            .layer(axum::middleware::from_fn_with_state(self.clone(), note_trace))
            .with_state(self.clone())
    }

    /// Serves until it is told to stop.
    pub async fn serve(
        &self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        axum::serve(listener, self.router()).with_graceful_shutdown(stop).await
    }

    /// Serves at a free port until the runtime ends.
    pub async fn start(&self, port: u16) -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let address = listener.local_addr()?;
        let router = self.router();
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(address)
    }

    /// Changes the stones.
    pub fn change<T>(&self, change: impl FnOnce(&mut Catalogue) -> T) -> T {
        change(&mut self.0.catalogue.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the stones.
    pub fn look<T>(&self, look: impl FnOnce(&Catalogue) -> T) -> T {
        look(&self.0.catalogue.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How it behaves from now on.
    pub fn set_mood(&self, mood: Mood) {
        *self.0.mood.write().unwrap_or_else(PoisonError::into_inner) = mood;
    }

    /// Answers the next calls with these statuses, whatever the mood.
    pub fn answer_next(&self, statuses: &[u16]) {
        self.calls().next.extend(statuses);
    }

    /// What the plain plugin answers from now on: products, and whether there are more.
    pub fn set_products(&self, products: serde_json::Value, partial: bool) {
        let answer = products::Answer { products, partial };
        *self.0.products.write().unwrap_or_else(PoisonError::into_inner) = answer;
    }

    /// From now on no place is found by queries that are tighter than the so-manieth.
    pub fn find_from(&self, query: usize) {
        self.calls().found_from = query;
    }

    /// What the web was searched for, in order.
    pub fn queries(&self) -> Vec<String> {
        self.calls().queries.clone()
    }

    /// Makes tokens that were given out end.
    pub fn expire_tokens(&self) {
        self.0.tokens.lock().unwrap_or_else(PoisonError::into_inner).expire();
    }

    /// How often something was called: `feed`, `feed.count`, `nivoda.page`, and with a failure
    /// `feed 500`.
    pub fn count_of(&self, what: &str) -> u64 {
        self.calls().counts.get(what).copied().unwrap_or(0)
    }

    /// When it was called, in order, whatever the outcome.
    pub fn times(&self) -> Vec<Instant> {
        self.calls().times.clone()
    }

    /// Pages that were answered, with their prices and offset, and how often each was.
    pub fn pages(&self) -> BTreeMap<(i64, i64, u64), u64> {
        self.calls().pages.clone()
    }

    /// Places that were looked for, and how often each was.
    pub fn places(&self) -> BTreeMap<String, u64> {
        self.calls().places.clone()
    }

    /// Traces (W3C `traceparent`) that calls came with.
    pub fn traces(&self) -> Vec<String> {
        self.calls().traces.iter().cloned().collect()
    }

    fn mood(&self) -> Mood {
        self.0.mood.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn called(&self, what: &str) {
        *self.calls().counts.entry(what.to_owned()).or_default() += 1;
    }
}

async fn note_trace(
    State(sandbox): State<Sandbox>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    let trace = request.headers().get("traceparent").and_then(|trace| trace.to_str().ok());
    if let Some(trace) = trace.filter(|_| sandbox.calls().traces.len() < REMEMBERED) {
        sandbox.calls().traces.insert(trace.to_owned());
    }
    next.run(request).await
}

async fn calls(State(sandbox): State<Sandbox>) -> Json<BTreeMap<String, u64>> {
    Json(sandbox.calls().counts.clone())
}

async fn set_mood(State(sandbox): State<Sandbox>, Json(mood): Json<Mood>) -> Json<Mood> {
    sandbox.set_mood(mood.clone());
    Json(mood)
}
