//! The plain plugin of products. It has two tours, until it is told otherwise, and counts its calls as `products`; what a
//! call was asked for is remembered as a query.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::sync::PoisonError;

use crate::Sandbox;

/// What is asked for.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Asked {
    token: Map<String, Value>,
    payload: Map<String, Value>,
    user_id: String,
    hint: Option<String>,
    request_id: String,
}

/// What it answers.
pub(crate) struct Answer {
    pub(crate) products: Value,
    pub(crate) partial: bool,
}

impl Default for Answer {
    fn default() -> Self {
        let products = json!([
            {"productId": "p1", "productName": "Kayak Tour", "supplierId": "acme", "options": [
                {"optionId": "o1", "optionName": "Morning"}, {"optionId": "o2", "optionName": "Evening"}]},
            {"productId": "p2", "productName": "City Walk", "options": [{"optionId": "o3", "optionName": "Noon"}]},
        ]);
        Self { products, partial: false }
    }
}

pub(crate) async fn search(
    State(sandbox): State<Sandbox>,
    Path(operation): Path<String>,
    Json(asked): Json<Asked>,
) -> Response {
    let what = json!({"operation": operation, "payload": asked.payload, "userId": asked.user_id, "hint": asked.hint});
    sandbox.calls().note_query(&what.to_string());
    if let Some(failure) = sandbox.mood().answer(&sandbox, "products", None).await {
        return failure;
    }
    let answer = sandbox.0.products.read().unwrap_or_else(PoisonError::into_inner);
    let body = if answer.partial {
        json!({"products": answer.products, "partial": true})
    } else {
        json!({"products": answer.products})
    };
    Json(body).into_response()
}
