//! Alerts.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use solely_core::alert::Alert;

use crate::App;
use crate::error::{ApiError, ApiErrors};
use crate::extract::Query;
use crate::page::{self, Page};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    limit: Option<u32>,
    cursor: Option<String>,
}

/// Every alert, firing or not
#[utoipa::path(
    get,
    path = "/v1/alerts",
    tag = "health",
    security(("key" = ["admin:read"])),
    params(("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Items of a page"), ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before")),
    responses((status = 200, body = Page<Alert>), ApiErrors)
)]
pub(crate) async fn list(
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<Alert>>, ApiError> {
    let limit = page::limit(query.limit)?;
    let alerts = app.alerts.evaluate(&*app.store, &app.upstreams, &app.feed).await?;
    Ok(Json(Page::part_of(alerts, limit, query.cursor.as_deref(), |alert| alert.name.to_string())))
}
