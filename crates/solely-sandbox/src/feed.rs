//! The plain source of feeds.

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;

use crate::Sandbox;
use crate::catalogue::Stone;

/// What is asked for.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Asked {
    min_price: i64,
    max_price: i64,
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    limit: u64,
    updated_from: Option<jiff::Timestamp>,
    updated_to: Option<jiff::Timestamp>,
}

impl Asked {
    fn wants(&self, stone: &Stone) -> bool {
        self.updated_from.is_none_or(|from| stone.updated_ms >= from.as_millisecond())
            && self.updated_to.is_none_or(|to| stone.updated_ms <= to.as_millisecond())
    }

    fn all(&self) -> bool {
        self.updated_from.is_none() && self.updated_to.is_none()
    }
}

pub(crate) async fn count(State(sandbox): State<Sandbox>, Query(asked): Query<Asked>) -> Response {
    if let Some(failure) = sandbox.mood().answer(&sandbox, "feed.count", None).await {
        return failure;
    }
    let count = sandbox.look(|catalogue| {
        let stones = catalogue.within(asked.min_price, asked.max_price);
        if asked.all() { stones.len() } else { stones.iter().filter(|stone| asked.wants(stone)).count() }
    });
    axum::Json(serde_json::json!({"count": count})).into_response()
}

pub(crate) async fn page(State(sandbox): State<Sandbox>, Query(asked): Query<Asked>) -> Response {
    if let Some(failure) = sandbox.mood().answer(&sandbox, "feed", Some(asked.offset)).await {
        return failure;
    }
    if asked.limit == 0 {
        return (StatusCode::BAD_REQUEST, "a page has a limit").into_response();
    }
    let body = sandbox.look(|catalogue| {
        let stones = catalogue.within(asked.min_price, asked.max_price);
        let (skip, take) =
            (usize::try_from(asked.offset).unwrap_or(usize::MAX), usize::try_from(asked.limit).unwrap_or(0));
        let size = catalogue.record_bytes;
        if asked.all() {
            let from = skip.min(stones.len());
            let to = from.saturating_add(take).min(stones.len());
            items(stones[from..to].iter(), size)
        } else {
            items(stones.iter().filter(|stone| asked.wants(stone)).skip(skip).take(take), size)
        }
    });
    sandbox.calls().note_page((asked.min_price, asked.max_price, asked.offset));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn items<'a>(stones: impl Iterator<Item = &'a Stone>, size: usize) -> String {
    let mut body = String::from(r#"{"items":["#);
    for (place, stone) in stones.enumerate() {
        if place > 0 {
            body.push(',');
        }
        body.push_str(&stone.json(size));
    }
    body.push_str("]}");
    body
}
