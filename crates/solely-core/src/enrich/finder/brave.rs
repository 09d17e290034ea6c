//! Brave's web search: `GET /res/v1/web/search?q=&count=` with the key in `X-Subscription-Token` answers
//! `{"web":{"results":[{"title","url","description"}]}}`. Four queries, each looser. A quota that is used up is a 429,
//! whose `X-RateLimit-Reset` says when to come back.

use async_trait::async_trait;
use serde::Deserialize;

use super::web_search::{Queries, plain};
use super::{Candidate, Finder, Findings, Place, below, or_empty};
use crate::upstream::http::{Ask, HttpClient, unreadable};
use crate::upstream::{CallFailed, UpstreamError};

/// Results of a query: as many as it gives.
const COUNT: usize = 20;

/// A finder that searches with Brave.
pub struct BraveFinder {
    client: HttpClient,
    url: String,
    api_key: String,
    hosts: Vec<String>,
}

impl BraveFinder {
    /// A finder at a base URL, for links on these hosts.
    pub fn new(client: HttpClient, url: &str, api_key: String, hosts: Vec<String>) -> Self {
        Self { client, url: below(url, "/res/v1/web/search"), api_key, hosts }
    }

    fn asked(&self, place: &Place) -> Vec<String> {
        let queries = Queries::of(place, &self.hosts);
        let loose = [Some(queries.by_name()), Some(queries.somehow())];
        [queries.exactly(), queries.with_city()].into_iter().chain(loose).flatten().collect()
    }
}

/// Nothing was found: there is no `web`.
#[derive(Deserialize)]
struct Answer {
    web: Option<Web>,
}

#[derive(Deserialize)]
struct Web {
    #[serde(default)]
    results: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    #[serde(default, deserialize_with = "or_empty")]
    title: String,
    #[serde(default, deserialize_with = "or_empty")]
    url: String,
    #[serde(default, deserialize_with = "or_empty")]
    description: String,
}

#[async_trait]
impl Finder for BraveFinder {
    fn queries(&self, place: &Place) -> usize {
        self.asked(place).len()
    }

    async fn ask(
        &self,
        place: &Place,
        query: usize,
        trace: Option<&str>,
    ) -> Result<Findings, CallFailed<UpstreamError>> {
        let asked = self.asked(place).into_iter().nth(query).unwrap_or_default();
        let parameters = [("q", asked), ("count", COUNT.to_string())];
        let headers =
            [("X-Subscription-Token", self.api_key.clone()), ("Accept", "application/json".to_owned())];
        let ask = Ask { query: &parameters, headers: &headers, trace, ..Ask::default() };
        let answer = self.client.get(&self.url, &ask).await?;
        let answer: Answer = serde_json::from_slice(&answer).map_err(unreadable)?;
        let candidate = |found: Found| Candidate {
            title: plain(&found.title),
            url: found.url,
            snippet: plain(&found.description),
        };
        let results = answer.web.map(|web| web.results).unwrap_or_default();
        Ok(Findings::Candidates(results.into_iter().map(candidate).collect()))
    }
}
