//! Upstreams.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use solely_core::upstream::UpstreamStatus;

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

/// Upstreams by name, as this process sees them; pauses are shared.
#[utoipa::path(
    get,
    path = "/v1/upstreams",
    tag = "upstreams",
    security(("key" = ["admin:read"])),
    params(("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Items of a page"), ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before")),
    responses((status = 200, body = Page<UpstreamStatus>), ApiErrors)
)]
pub(crate) async fn list(
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<UpstreamStatus>>, ApiError> {
    let limit = page::limit(query.limit)?;
    let upstreams = app.upstreams.status(&*app.store).await?;
    Ok(Json(Page::part_of(upstreams, limit, query.cursor.as_deref(), UpstreamStatus::shared_name)))
}
