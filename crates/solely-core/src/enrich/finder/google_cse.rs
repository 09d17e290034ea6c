//! Google's Programmable Search: `GET /customsearch/v1?key=&cx=&q=&num=` answers
//! `{"items":[{"title","link","snippet"}]}`. Two queries: with the city, and without. A quota that is used up is a 429
//! or a 403 that says so, and names no time.

use std::time::Duration;

use async_trait::async_trait;
use reqwest::StatusCode;
use serde::Deserialize;

use super::web_search::{Queries, plain};
use super::{Candidate, Finder, Findings, Place, below, or_empty};
use crate::upstream::http::{Ask, HttpClient, unreadable};
use crate::upstream::{CallFailed, UpstreamError};

/// Results of a query: as many as it gives.
const COUNT: usize = 10;
/// How long it is left alone when a quota is used up: the shortest is by the minute.
const QUOTA_PAUSE: Duration = Duration::from_secs(60);

/// A finder that searches with Google.
pub struct GoogleCseFinder {
    client: HttpClient,
    url: String,
    api_key: String,
    engine_id: String,
    hosts: Vec<String>,
}

impl GoogleCseFinder {
    /// A finder at a base URL, for links on these hosts.
    pub fn new(
        client: HttpClient,
        url: &str,
        api_key: String,
        engine_id: String,
        hosts: Vec<String>,
    ) -> Self {
        Self { client, url: below(url, "/customsearch/v1"), api_key, engine_id, hosts }
    }

    fn asked(&self, place: &Place) -> Vec<String> {
        let queries = Queries::of(place, &self.hosts);
        [queries.exactly(), Some(queries.by_name())].into_iter().flatten().collect()
    }
}

/// Nothing was found: there are no `items`.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    items: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    #[serde(default, deserialize_with = "or_empty")]
    title: String,
    #[serde(default, deserialize_with = "or_empty")]
    link: String,
    #[serde(default, deserialize_with = "or_empty")]
    snippet: String,
}

/// How long to wait if a refusal is about a quota.
fn quota(status: StatusCode, said: &str) -> Option<Duration> {
    let used_up = [
        "rateLimitExceeded",
        "RateLimitExceeded",
        "dailyLimitExceeded",
        "quotaExceeded",
        "RESOURCE_EXHAUSTED",
    ];
    let refused = status == StatusCode::FORBIDDEN && used_up.iter().any(|reason| said.contains(reason));
    (refused || status == StatusCode::TOO_MANY_REQUESTS).then_some(QUOTA_PAUSE)
}

#[async_trait]
impl Finder for GoogleCseFinder {
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
        let (key, engine) = (self.api_key.clone(), self.engine_id.clone());
        let parameters = [("key", key), ("cx", engine), ("q", asked), ("num", COUNT.to_string())];
        let ask = Ask { query: &parameters, trace, quota: Some(quota), ..Ask::default() };
        let answer = self.client.get(&self.url, &ask).await?;
        let answer: Answer = serde_json::from_slice(&answer).map_err(unreadable)?;
        let candidate = |found: Found| Candidate {
            title: plain(&found.title),
            url: found.link,
            snippet: plain(&found.snippet),
        };
        Ok(Findings::Candidates(answer.items.into_iter().map(candidate).collect()))
    }
}
