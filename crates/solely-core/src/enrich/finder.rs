//! Finders: whatever knows, or can find, links of a place.
//!
//! A finder asks and does not judge: unless it has decided itself, the matcher picks among its
//! candidates. It may have several queries for a place, from tight to loose; one is one call, and the
//! next is made only if nothing was accepted. Adding a kind is one file here, with a name in
//! [`FinderKind`] and a line in [`configured`].

pub mod brave;
pub mod google_cse;
pub mod http;
mod web_search;
pub mod wolt;
// What docs/ADDING-A-PROVIDER.md shows.
#[cfg(test)]
pub mod yellow_pages;

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::config::{FinderKind, ProviderConfig};
use crate::upstream::http::HttpClient;
use crate::upstream::{CallFailed, UpstreamError};

/// A place to be looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// Its id.
    pub place_id: String,
    /// Its name.
    pub name: String,
    /// The city that was searched in.
    pub city_text: Option<String>,
    /// Its address.
    pub address_text: Option<String>,
}

/// A link that may be the place's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The page's title.
    #[serde(default, deserialize_with = "or_empty")]
    pub title: String,
    /// Where it is.
    pub url: String,
    /// What a search says of it.
    #[serde(default, deserialize_with = "or_empty")]
    pub snippet: String,
}

/// What a finder says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Findings {
    /// These may be it.
    Candidates(Vec<Candidate>),
    /// This is it.
    Found {
        /// Where it is.
        url: String,
    },
    /// There is none.
    NotFound,
}

/// Finds links. One call is one request.
#[async_trait]
pub trait Finder: Send + Sync + 'static {
    /// How many queries there are for a place.
    fn queries(&self, _place: &Place) -> usize {
        1
    }

    /// Asks one of them. A `traceparent` is carried on.
    async fn ask(
        &self,
        place: &Place,
        query: usize,
        trace: Option<&str>,
    ) -> Result<Findings, CallFailed<UpstreamError>>;
}

/// The finder that a configuration describes.
pub fn configured(config: &ProviderConfig, client: &HttpClient) -> Arc<dyn Finder> {
    let (client, url, hosts) = (client.clone(), config.finder_url(), config.hosts.clone());
    let key = Some(config.api_key.clone()).filter(|key| !key.is_empty());
    match config.finder {
        FinderKind::Http => Arc::new(http::HttpFinder::new(client, url, key)),
        FinderKind::Brave => Arc::new(brave::BraveFinder::new(client, url, config.api_key.clone(), hosts)),
        FinderKind::GoogleCse => {
            let (key, engine) = (config.api_key.clone(), config.engine_id.clone());
            Arc::new(google_cse::GoogleCseFinder::new(client, url, key, engine, hosts))
        }
        FinderKind::Wolt => Arc::new(wolt::WoltFinder::new(client, url)),
    }
}

/// A path below the URL of a finder, unless it is there already.
fn below(base: &str, path: &str) -> String {
    let base = base.trim_end_matches('/');
    if base.ends_with(path) { base.to_owned() } else { format!("{base}{path}") }
}

/// A text that may be `null`.
fn or_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
