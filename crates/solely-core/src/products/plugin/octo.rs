//! The OCTO products API: `GET {url}/products`, with the token's `apiKey` as a bearer, mapped to the product shape.
//! `octoEnv`, `acceptLanguage` and `resellerId` of the token are sent on; its `endpoint` is not: where a plugin is comes
//! from the configuration alone.

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::{Brought, Plugin, PluginCall};
use crate::products::catalogue::Catalogue;
use crate::upstream::http::{Ask, HttpClient, unreadable};
use crate::upstream::{CallFailed, UpstreamError};

/// What it should tell besides the products themselves.
const CAPABILITIES: &str = "octo/pricing, octo/content";

/// A plugin that speaks OCTO.
pub struct OctoPlugin {
    client: HttpClient,
    url: String,
}

impl OctoPlugin {
    /// A plugin at a base URL.
    pub fn new(client: HttpClient, url: &str) -> Self {
        Self { client, url: format!("{}/products", url.trim_end_matches('/')) }
    }
}

#[async_trait]
impl Plugin for OctoPlugin {
    async fn call(&self, call: &PluginCall) -> Result<Brought, CallFailed<UpstreamError>> {
        let text = |name: &str| call.token.get(name).and_then(Value::as_str).map(str::to_owned);
        let mut headers = vec![("Octo-Capabilities", CAPABILITIES.to_owned())];
        let told = [
            ("Octo-Env", "octoEnv"),
            ("Accept-Language", "acceptLanguage"),
            ("Octo-Reseller-Id", "resellerId"),
        ];
        headers.extend(told.into_iter().filter_map(|(header, field)| Some((header, text(field)?))));
        let key = text("apiKey");
        let ask = Ask {
            bearer: key.as_deref(),
            headers: &headers,
            trace: call.trace.as_deref(),
            private: true,
            ..Ask::default()
        };
        let answer = self.client.get(&self.url, &ask).await?;
        let answer: Vec<Map<String, Value>> = serde_json::from_slice(&answer).map_err(unreadable)?;
        let products: Vec<Value> = answer.iter().map(product).collect();
        let text = serde_json::to_string(&products).map_err(unreadable)?;
        let catalogue = Catalogue::parse(&text).map_err(unreadable)?;
        Ok(Brought { catalogue, partial: false })
    }
}

fn product(octo: &Map<String, Value>) -> Value {
    let mut product = json!({
        "productId": octo.get("id"), "productName": name(octo), "options": list(octo, "options", option),
    });
    keep(
        octo,
        &mut product,
        &["availableCurrencies", "defaultCurrency", "pricingPer", "reference", "timeZone"],
    );
    product
}

fn option(octo: &Map<String, Value>) -> Value {
    let mut option = json!({
        "optionId": octo.get("id"), "optionName": name(octo), "units": list(octo, "units", unit),
    });
    keep(octo, &mut option, &["default", "reference", "restrictions", "cancellationCutoff"]);
    option
}

fn unit(octo: &Map<String, Value>) -> Value {
    let mut unit = json!({"unitId": octo.get("id"), "unitName": name(octo)});
    if let Some(pricing) = octo.get("pricingFrom").or_else(|| octo.get("pricing")) {
        unit["pricing"] = pricing.clone();
    }
    keep(octo, &mut unit, &["subtitle", "type", "restrictions", "reference"]);
    unit
}

/// The title for people, or the internal name.
fn name(octo: &Map<String, Value>) -> Option<&Value> {
    let title = octo.get("title").filter(|title| title.as_str().is_some_and(|title| !title.is_empty()));
    title.or_else(|| octo.get("internalName"))
}

fn list(octo: &Map<String, Value>, field: &str, each: fn(&Map<String, Value>) -> Value) -> Vec<Value> {
    let listed = octo.get(field).and_then(Value::as_array).into_iter().flatten();
    listed.filter_map(Value::as_object).map(each).collect()
}

fn keep(octo: &Map<String, Value>, into: &mut Value, fields: &[&str]) {
    for field in fields {
        if let Some(value) = octo.get(*field).filter(|value| !value.is_null()) {
            into[*field] = value.clone();
        }
    }
}
