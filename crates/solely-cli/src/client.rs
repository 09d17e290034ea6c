//! Speaking HTTP to a running server.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use reqwest::Method;
use serde_json::Value;
use solely_core::upstream::http::{self, Tls};

/// Where the server is, and who asks.
#[derive(Args)]
pub(crate) struct Remote {
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7420", env = "SOLELY_URL")]
    url: String,
    /// A key, if the server asks for one
    #[arg(long, value_name = "KEY", env = "SOLELY_KEY", hide_env_values = true)]
    key: Option<String>,
}

/// A server to be asked.
pub(crate) struct Client {
    http: reqwest::Client,
    remote: Remote,
}

impl Client {
    pub(crate) fn new(remote: Remote) -> Result<Self> {
        let tls = Tls::for_urls(std::iter::once(remote.url.as_str()));
        let http = http::builder(tls).timeout(Duration::from_secs(70)).build()?;
        Ok(Self { http, remote })
    }

    pub(crate) async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Value> {
        self.send(Method::GET, path, query, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.send(Method::POST, path, &[], Some(body)).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Value> {
        let url = format!("{}{path}", self.remote.url.trim_end_matches('/'));
        let mut request = self.http.request(method, &url).query(query);
        if let Some(key) = &self.remote.key {
            request = request.bearer_auth(key);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.map_err(reqwest::Error::without_url);
        let answer = answer.with_context(|| format!("no server answers at {}", self.remote.url))?;
        let status = answer.status();
        let body: Value = answer.json().await.context("the answer is not JSON; is this solely?")?;
        if status.is_success() {
            return Ok(body);
        }
        let word = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
        Err(anyhow!("{} ({})", word("message"), word("error")))
    }
}
