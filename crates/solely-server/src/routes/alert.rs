//! Alerts.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use solely_core::alert::Alert;

use crate::App;
use crate::error::{ApiError, ApiErrors};
use crate::extract::Query;
use crate::page::Page;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {}

/// Every alert, firing or not
#[utoipa::path(
    get,
    path = "/v1/alerts",
    tag = "health",
    security(("key" = ["admin:read"])),
    responses((status = 200, body = Page<Alert>), ApiErrors)
)]
pub(crate) async fn list(
    State(app): State<App>,
    Query(_none): Query<ListQuery>,
) -> Result<Json<Page<Alert>>, ApiError> {
    let alerts = app.alerts.evaluate(&*app.store, &app.upstreams, &app.feed).await?;
    Ok(Json(Page::whole(alerts)))
}
