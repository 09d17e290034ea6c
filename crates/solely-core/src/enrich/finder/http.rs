//! The plain finder: `POST {url}` with `{"placeId","name","cityText","addressText"}` answers
//! `{"candidates":[{"title","url","snippet"}]}`, or what it has decided: `{"status":"FOUND","url"}`,
//! `{"status":"NOT_FOUND"}`.

use async_trait::async_trait;
use serde::Deserialize;

use super::{Candidate, Finder, Findings, Place};
use crate::enrich::Status;
use crate::upstream::http::{Ask, HttpClient, unreadable};
use crate::upstream::{CallFailed, UpstreamError};

/// A finder that speaks this.
pub struct HttpFinder {
    client: HttpClient,
    url: String,
    api_key: Option<String>,
}

impl HttpFinder {
    /// A finder at a URL, with a bearer token if it wants one.
    pub fn new(client: HttpClient, url: &str, api_key: Option<String>) -> Self {
        Self { client, url: url.to_owned(), api_key }
    }
}

#[derive(Deserialize)]
struct Answer {
    status: Option<Status>,
    url: Option<String>,
    candidates: Option<Vec<Candidate>>,
}

#[async_trait]
impl Finder for HttpFinder {
    async fn ask(
        &self,
        place: &Place,
        _query: usize,
        trace: Option<&str>,
    ) -> Result<Findings, CallFailed<UpstreamError>> {
        let ask = Ask { bearer: self.api_key.as_deref(), trace, ..Ask::default() };
        let body = serde_json::to_value(place).unwrap_or_default();
        let answer = self.client.post(&self.url, &ask, &body).await?;
        let answer: Answer = serde_json::from_slice(&answer).map_err(unreadable)?;
        match answer {
            Answer { status: Some(Status::Found), url: Some(url), .. } => Ok(Findings::Found { url }),
            Answer { status: Some(Status::Found), url: None, .. } => Err(unreadable("FOUND without a `url`")),
            Answer { status: Some(Status::NotFound), .. } => Ok(Findings::NotFound),
            Answer { candidates: Some(candidates), .. } => Ok(Findings::Candidates(candidates)),
            Answer { .. } => Err(unreadable("there is neither `candidates` nor `status`")),
        }
    }
}
