//! Plugins: whoever has the products.
//!
//! A plugin is asked for the whole catalogue; filters are not its business. Adding a kind is one file here, with a name
//! in [`PluginKind`] and a line in [`configured`].

pub mod http;
pub mod octo;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::catalogue::Catalogue;
use crate::config::{PluginConfig, PluginKind};
use crate::upstream::http::HttpClient;
use crate::upstream::{CallFailed, UpstreamError};

/// What is asked of a plugin.
#[derive(Clone)]
pub struct PluginCall {
    /// Which of its operations.
    pub operation: String,
    /// Whatever it needs to know the user by. Never shown, never logged.
    pub token: Map<String, Value>,
    /// What else was asked for.
    pub payload: Map<String, Value>,
    /// For whom.
    pub user_id: String,
    /// Which of the user's accounts.
    pub hint: Option<String>,
    /// The request that it is for.
    pub request_id: String,
    /// A `traceparent` to be carried on.
    pub trace: Option<String>,
}

/// What a plugin brings.
#[derive(Debug)]
pub struct Brought {
    /// The products.
    pub catalogue: Catalogue,
    /// Whether there are more.
    pub partial: bool,
}

/// Has products. One call is one request.
#[async_trait]
pub trait Plugin: Send + Sync + 'static {
    /// Asks for the catalogue.
    async fn call(&self, call: &PluginCall) -> Result<Brought, CallFailed<UpstreamError>>;
}

/// The plugin that a configuration describes.
pub fn configured(config: &PluginConfig, client: &HttpClient) -> Arc<dyn Plugin> {
    match config.kind {
        PluginKind::Http => Arc::new(http::HttpPlugin::new(client.clone(), &config.url)),
        PluginKind::Octo => Arc::new(octo::OctoPlugin::new(client.clone(), &config.url)),
    }
}
