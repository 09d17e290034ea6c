//! The plain plugin: `POST {url}/{operation}` with `{"token","payload","userId","hint","requestId"}` answers
//! `{"products":[…],"partial"?}`.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::{Brought, Plugin, PluginCall};
use crate::products::catalogue::Catalogue;
use crate::upstream::http::{Ask, HttpClient, unreadable};
use crate::upstream::{CallFailed, UpstreamError};

/// A plugin that speaks this.
pub struct HttpPlugin {
    client: HttpClient,
    url: String,
}

impl HttpPlugin {
    /// A plugin at a URL.
    pub fn new(client: HttpClient, url: &str) -> Self {
        Self { client, url: url.trim_end_matches('/').to_owned() }
    }
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    products: &'a RawValue,
    #[serde(default)]
    partial: bool,
}

#[async_trait]
impl Plugin for HttpPlugin {
    async fn call(&self, call: &PluginCall) -> Result<Brought, CallFailed<UpstreamError>> {
        let url = format!("{}/{}", self.url, call.operation);
        let body = json!({
            "token": call.token, "payload": call.payload, "userId": call.user_id, "hint": call.hint,
            "requestId": call.request_id,
        });
        let ask = Ask { trace: call.trace.as_deref(), private: true, ..Ask::default() };
        let answer = self.client.post(&url, &ask, &body).await?;
        let answer: Answer<'_> = serde_json::from_slice(&answer).map_err(unreadable)?;
        let catalogue = Catalogue::parse(answer.products.get()).map_err(unreadable)?;
        Ok(Brought { catalogue, partial: answer.partial })
    }
}
