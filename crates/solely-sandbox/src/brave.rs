//! Brave's web search. Its refusals say in `X-RateLimit-Reset` when a window begins anew.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Sandbox, web};

/// What is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    q: String,
    count: usize,
}

pub(crate) async fn search(
    State(sandbox): State<Sandbox>,
    headers: HeaderMap,
    Query(asked): Query<Asked>,
) -> Response {
    let has_key = headers.get("x-subscription-token").is_some_and(|token| !token.is_empty());
    if !has_key || !(1..=20).contains(&asked.count) {
        let error = json!({"type": "ErrorResponse", "error": {"status": 422, "code": "VALIDATION"}});
        return (StatusCode::UNPROCESSABLE_ENTITY, Json(error)).into_response();
    }
    if let Some(failure) = sandbox.mood().answer(&sandbox, "brave", None).await {
        if failure.status() != StatusCode::TOO_MANY_REQUESTS {
            return failure;
        }
        let limits = [
            ("x-ratelimit-limit", "1, 2000"),
            ("x-ratelimit-remaining", "0, 1876"),
            ("x-ratelimit-reset", "1, 1419704"),
        ];
        let error = json!({"type": "ErrorResponse", "error": {"status": 429, "code": "RATE_LIMITED"}});
        return (StatusCode::TOO_MANY_REQUESTS, limits, Json(error)).into_response();
    }
    let marked = |page: web::Page| {
        let name = page.title.replace('&', "&amp;");
        let description = format!("<strong>{}</strong>", page.snippet.replace('&', "&amp;"));
        json!({"title": name, "url": page.url, "description": description, "language": "en"})
    };
    let results: Vec<Value> = web::search(&sandbox, &asked.q).into_iter().map(marked).collect();
    Json(json!({"type": "search", "query": {"original": asked.q}, "web": {"type": "search", "results": results}}))
        .into_response()
}
