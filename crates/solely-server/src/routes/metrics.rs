//! Prometheus.

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::App;
use crate::error::ApiErrors;

/// Everything that is counted. Gauges of queues are read as they are asked for; a store that is
/// away leaves them as they were.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "health",
    security(("key" = ["admin:read"])),
    responses((status = 200, body = String, description = "Prometheus text"), ApiErrors)
)]
pub(crate) async fn text(State(app): State<App>) -> impl IntoResponse {
    if let Ok(queues) = app.store.queues().await {
        app.metrics.queues(&queues);
    }
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.metrics.text())
}
