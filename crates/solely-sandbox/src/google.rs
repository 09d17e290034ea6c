//! Google's Programmable Search. Its quota is used up with a 429, or with a 403 that gives a reason.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Sandbox, web};

/// What is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    key: String,
    cx: String,
    q: String,
    num: usize,
}

pub(crate) async fn search(State(sandbox): State<Sandbox>, Query(asked): Query<Asked>) -> Response {
    if asked.key.is_empty() || asked.cx.is_empty() || !(1..=10).contains(&asked.num) {
        return refusal(StatusCode::BAD_REQUEST, "badRequest", "INVALID_ARGUMENT");
    }
    if let Some(failure) = sandbox.mood().answer(&sandbox, "google", None).await {
        return match failure.status() {
            StatusCode::TOO_MANY_REQUESTS => {
                refusal(StatusCode::TOO_MANY_REQUESTS, "rateLimitExceeded", "RESOURCE_EXHAUSTED")
            }
            StatusCode::FORBIDDEN => {
                refusal(StatusCode::FORBIDDEN, "dailyLimitExceeded", "PERMISSION_DENIED")
            }
            _ => failure,
        };
    }
    let item = |page: web::Page| json!({"kind": "customsearch#result", "title": page.title, "link": page.url, "snippet": page.snippet});
    let items: Vec<Value> = web::search(&sandbox, &asked.q).into_iter().map(item).collect();
    let found = items.len();
    Json(json!({
        "kind": "customsearch#search", "searchInformation": {"totalResults": found.to_string()}, "items": items,
    }))
    .into_response()
}

fn refusal(status: StatusCode, reason: &str, word: &str) -> Response {
    let error = json!({"error": {
        "code": status.as_u16(), "message": "Quota exceeded for quota metric 'Queries'.", "status": word,
        "errors": [{"message": "Quota exceeded.", "domain": "usageLimits", "reason": reason}],
    }});
    (status, Json(error)).into_response()
}
