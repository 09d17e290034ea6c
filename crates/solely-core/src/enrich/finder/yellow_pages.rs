//! The yellow pages: `GET /search?what=&where=` answers `[{"name","link","street"}]`.

use async_trait::async_trait;
use serde::Deserialize;

use super::{Candidate, Finder, Findings, Place, below};
use crate::upstream::http::{Ask, HttpClient, unreadable};
use crate::upstream::{CallFailed, UpstreamError};

/// Asks the yellow pages.
pub struct YellowPagesFinder {
    client: HttpClient,
    url: String,
}

impl YellowPagesFinder {
    /// A finder at this address.
    pub fn new(client: HttpClient, url: &str) -> Self {
        Self { client, url: below(url, "/search") }
    }
}

#[derive(Deserialize)]
struct Found {
    name: String,
    link: String,
    street: String,
}

#[async_trait]
impl Finder for YellowPagesFinder {
    async fn ask(
        &self,
        place: &Place,
        _query: usize,
        trace: Option<&str>,
    ) -> Result<Findings, CallFailed<UpstreamError>> {
        let parameters =
            [("what", place.name.clone()), ("where", place.city_text.clone().unwrap_or_default())];
        let ask = Ask { query: &parameters, trace, ..Ask::default() };
        let answer = self.client.get(&self.url, &ask).await?;
        let found: Vec<Found> = serde_json::from_slice(&answer).map_err(unreadable)?;
        let candidate =
            |found: Found| Candidate { title: found.name, url: found.link, snippet: found.street };
        Ok(Findings::Candidates(found.into_iter().map(candidate).collect()))
    }
}
