//! The OCTO products API, for callers with a key.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::json;

use crate::Sandbox;

pub(crate) async fn products(State(sandbox): State<Sandbox>, headers: HeaderMap) -> Response {
    let has_key = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("Bearer ") && value.len() > 7);
    if !has_key {
        let error = json!({"error": "UNAUTHORIZED", "errorMessage": "You did not send a valid API key."});
        return (StatusCode::FORBIDDEN, Json(error)).into_response();
    }
    if let Some(failure) = sandbox.mood().answer(&sandbox, "octo", None).await {
        return failure;
    }
    Json(json!([{
        "id": "octo-1", "internalName": "kayak-internal", "title": "Kayak Tour", "reference": null, "locale": "en",
        "timeZone": "Europe/London", "allowFreesale": false, "instantConfirmation": true, "availabilityType": "START_TIME",
        "deliveryFormats": ["QRCODE"], "defaultCurrency": "EUR", "availableCurrencies": ["EUR", "USD"], "pricingPer": "UNIT",
        "options": [{
            "id": "DEFAULT", "default": true, "internalName": "Morning", "reference": null,
            "restrictions": {"minUnits": 1, "maxUnits": 9},
            "units": [{
                "id": "adult", "internalName": "Adult", "type": "ADULT",
                "restrictions": {"minAge": 18, "maxAge": 100, "paxCount": 1},
                "pricingFrom": [{"original": 4000, "retail": 3500, "net": 3000, "currency": "EUR", "currencyPrecision": 2}],
            }],
        }],
    }]))
    .into_response()
}
