//! Sources: what a feed copies from.

pub mod http;
pub mod nivoda;

use std::sync::Arc;

use async_trait::async_trait;

use super::{FeedSource, PriceRange, SourceSettings, UpdatedWithin};
use crate::config::{SourceConfig, SourceKind};
use crate::json::Json;
use crate::store::Store;
use crate::upstream::http::HttpClient;
use crate::upstream::{CallFailed, Upstream, UpstreamError, UpstreamKind, UpstreamLimits};

/// Which records are asked for.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Of these prices.
    pub range: PriceRange,
    /// Changed in this time.
    pub updated: Option<UpdatedWithin>,
    /// The W3C `traceparent` that is carried to the source.
    pub trace: Option<String>,
}

/// Part of a scope, in the source's own stable order.
#[derive(Clone, Debug)]
pub struct Window {
    /// From the record at this place on,
    pub offset: u64,
    /// this many.
    pub limit: u32,
}

/// A record as a source gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The source's stable id.
    pub id: String,
    /// All of it.
    pub payload: Json,
    /// Its price in the source's unit, where it says.
    pub price: Option<i64>,
}

/// Pages that may fail whenever they are tried, without the source being taken for away.
const FAILING_PAGES: u32 = 8;

/// What a feed copies from. One call is one request.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// How many records there are.
    async fn count(&self, scope: &Scope) -> Result<u64, CallFailed<UpstreamError>>;

    /// Some of them.
    async fn page(&self, scope: &Scope, window: &Window) -> Result<Vec<Found>, CallFailed<UpstreamError>>;
}

impl FeedSource {
    /// The source that a configuration describes.
    pub fn configured(
        name: &str,
        config: &SourceConfig,
        client: &HttpClient,
        store: &Arc<dyn Store>,
    ) -> Self {
        let (client, url) = (client.clone(), config.url.as_str());
        let source: Arc<dyn Source> = match config.kind {
            SourceKind::Http => {
                let key = Some(config.api_key.clone()).filter(|key| !key.is_empty());
                Arc::new(http::HttpSource::new(client, url, key))
            }
            SourceKind::Nivoda => {
                let (name, password) = (config.username.clone(), config.password.clone());
                Arc::new(nivoda::NivodaSource::new(client, url, name, password))
            }
        };
        Self::of(name, config, source, store)
    }

    /// The same, with a source of one's own.
    pub fn of(name: &str, config: &SourceConfig, source: Arc<dyn Source>, store: &Arc<dyn Store>) -> Self {
        let limits = UpstreamLimits {
            name: name.to_owned(),
            kind: UpstreamKind::Source,
            timeout: config.timeout.0,
            concurrency: config.concurrency,
            rate: config.rate,
            // A few pages that always fail are given up before it opens; a source that is away is not
            // called, and costs no message its attempts.
            failures: config.max_deliveries.saturating_mul(FAILING_PAGES),
        };
        let upstream = Arc::new(Upstream::new(limits, store.clone()));
        Self { name: name.to_owned(), settings: config.into(), upstream, source }
    }
}

impl From<&SourceConfig> for SourceSettings {
    fn from(config: &SourceConfig) -> Self {
        Self {
            page_limit: config.page_limit,
            page_max: config.page_max(),
            page_overlap: config.page_overlap,
            range: PriceRange { min: config.min_price, max: config.max_price },
            overlap: config.overlap.0,
            max_partitions: config.max_partitions,
            min_records_per_partition: config.min_records_per_partition,
            concurrency: config.concurrency,
            timeout: config.timeout.0,
            lock: config.lock_duration.0,
            max_deliveries: config.max_deliveries,
            duplicate_window: config.duplicate_window.0,
            stuck_after: config.stuck_after.0,
            every: config.every.map(|every| every.0),
            end: config.end,
        }
    }
}
