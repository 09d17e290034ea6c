//! Speaking HTTP to a running server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use reqwest::Method;
use serde_json::Value;
use solely_core::upstream::http::{self, Tls};

use crate::commands::Failed;
use crate::config;

/// Where the server is, and who asks.
#[derive(Args)]
pub(crate) struct Remote {
    /// The server; without it the local one, where `./solely.toml` or the default says
    #[arg(long, value_name = "URL", env = "SOLELY_URL")]
    url: Option<String>,
    /// A key, if the server asks for one
    #[arg(long, value_name = "KEY", env = "SOLELY_KEY", hide_env_values = true)]
    key: Option<String>,
}

/// A server to be asked.
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    key: Option<String>,
}

impl Client {
    pub(crate) fn new(remote: Remote) -> Result<Self, Failed> {
        let url = match remote.url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => local(config::load(None, config::Flags::default())?.config.server.listen),
        };
        let tls = Tls::for_urls(std::iter::once(url.as_str()));
        let http = http::builder(tls).timeout(Duration::from_secs(70)).build()?;
        Ok(Self { http, url, key: remote.key })
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
        let url = format!("{}{path}", self.url);
        let mut request = self.http.request(method, &url).query(query);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.map_err(reqwest::Error::without_url);
        let answer = answer.with_context(|| format!("no server answers at {}", self.url))?;
        let status = answer.status();
        let body: Value = answer.json().await.context("the answer is not JSON; is this solely?")?;
        if status.is_success() {
            return Ok(body);
        }
        let word = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
        Err(anyhow!("{} ({})", word("message"), word("error")))
    }
}

/// Where a server of this machine is reached that listens there.
fn local(listen: SocketAddr) -> String {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, listen.port()))
}
