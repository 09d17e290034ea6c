//! The plain source: `GET {url}?minPrice=&maxPrice=&offset=&limit=` answers `{"items":[{"id",…}]}`,
//! and `GET {url}/count?minPrice=&maxPrice=` answers `{"count"}`.

use std::borrow::Cow;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Found, Scope, Source, Window};
use crate::json::Json;
use crate::upstream::http::{Ask, HttpClient, unreadable};
use crate::upstream::{CallFailed, UpstreamError};

/// A source that speaks this.
pub struct HttpSource {
    client: HttpClient,
    url: String,
    api_key: Option<String>,
}

impl HttpSource {
    /// A source at a URL, with a bearer token if it wants one.
    pub fn new(client: HttpClient, url: &str, api_key: Option<String>) -> Self {
        Self { client, url: url.trim_end_matches('/').to_owned(), api_key }
    }

    async fn ask(
        &self,
        path: &str,
        scope: &Scope,
        rest: &[(&'static str, String)],
    ) -> Result<Vec<u8>, CallFailed<UpstreamError>> {
        let mut query =
            vec![("minPrice", scope.range.min.to_string()), ("maxPrice", scope.range.max.to_string())];
        query.extend_from_slice(rest);
        if let Some(updated) = scope.updated {
            query.push(("updatedFrom", updated.from.to_string()));
            query.push(("updatedTo", updated.to.to_string()));
        }
        let ask = Ask {
            query: &query,
            bearer: self.api_key.as_deref(),
            trace: scope.trace.as_deref(),
            ..Ask::default()
        };
        self.client.get(&format!("{}{path}", self.url), &ask).await
    }
}

#[derive(Deserialize)]
struct Count {
    count: u64,
}

#[derive(Deserialize)]
struct Items<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

/// What is looked at of a record.
#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    id: Id<'a>,
    price: Option<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Id<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Number(i64),
}

#[async_trait]
impl Source for HttpSource {
    async fn count(&self, scope: &Scope) -> Result<u64, CallFailed<UpstreamError>> {
        let answer = self.ask("/count", scope, &[]).await?;
        serde_json::from_slice::<Count>(&answer).map(|count| count.count).map_err(unreadable)
    }

    async fn page(&self, scope: &Scope, window: &Window) -> Result<Vec<Found>, CallFailed<UpstreamError>> {
        let rest = [("offset", window.offset.to_string()), ("limit", window.limit.to_string())];
        let answer = self.ask("", scope, &rest).await?;
        let items: Items<'_> = serde_json::from_slice(&answer).map_err(unreadable)?;
        items.items.into_iter().map(found).collect()
    }
}

fn found(raw: &RawValue) -> Result<Found, CallFailed<UpstreamError>> {
    let item: Item<'_> = serde_json::from_str(raw.get()).map_err(unreadable)?;
    let id = match item.id {
        Id::Text(text) => text.into_owned(),
        Id::Number(number) => number.to_string(),
    };
    let price = item.price.as_ref().and_then(whole);
    Ok(Found { id, payload: Json::copied(raw.get()), price })
}

/// A price in whole units.
fn whole(price: &serde_json::Value) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "a price beyond that is no price")]
    let floor = |price: f64| price.floor() as i64;
    price.as_i64().or_else(|| price.as_f64().map(floor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_kept_as_it_came() {
        let raw = r#"{ "id": "a\u00e9", "price": 12.75, "z": [1,  2] }"#;
        let raw: &RawValue = serde_json::from_str(raw).expect("JSON");
        let found = found(raw).expect("a record");
        assert_eq!((found.id.as_str(), found.price), ("aé", Some(12)));
        assert_eq!(found.payload.as_str(), raw.get());
        let number: &RawValue = serde_json::from_str(r#"{"id":7}"#).expect("JSON");
        assert_eq!(super::found(number).expect("a record").id, "7");
        for bad in [r#"{"price":1}"#, r#"{"id":null}"#, "[]", "7"] {
            let raw: &RawValue = serde_json::from_str(bad).expect("JSON");
            assert!(matches!(super::found(raw).expect_err(bad).error, UpstreamError::Permanent(_)));
        }
    }
}
