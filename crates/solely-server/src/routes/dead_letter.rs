//! Dead letters.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use solely_core::job::{JobState, ReviveRequest, Revived};
use solely_core::queue::JobFilter;
use solely_core::{JobId, limits};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ApiErrors};
use crate::extract::{Body, Query};
use crate::page::{self, Page};
use crate::routes::job::{ShownJob, page_of};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    queue: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

/// Dead jobs, newest first.
#[utoipa::path(
    get,
    path = "/v1/dead-letters",
    tag = "jobs",
    security(("key" = ["admin:read"])),
    params(("queue" = Option<String>, Query), ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Items of a page"), ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before")),
    responses((status = 200, body = Page<ShownJob>), ApiErrors)
)]
pub(crate) async fn list(
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<ShownJob>>, ApiError> {
    let filter = JobFilter {
        queue: query.queue,
        state: Some(JobState::Dead),
        key: None,
        live: false,
        before: page::cursor(query.cursor.as_deref())?,
        limit: page::limit(query.limit)?,
    };
    Ok(Json(page_of(&app, filter).await?))
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RedriveBody {
    queue: Option<String>,
    #[schema(value_type = Option<Vec<String>>)]
    ids: Option<Vec<JobId>>,
    error: Option<String>,
    limit: Option<u32>,
    rate_per_second: Option<u32>,
    #[serde(default)]
    dry_run: bool,
}

impl RedriveBody {
    fn request(self) -> Result<ReviveRequest, ApiError> {
        let limit = self.limit.unwrap_or(limits::REDRIVE_MAX);
        if !(1..=limits::REDRIVE_MAX).contains(&limit) {
            return Err(ApiError::invalid(format!("`limit` is 1 to {}", limits::REDRIVE_MAX)));
        }
        if self.rate_per_second == Some(0) {
            return Err(ApiError::invalid("`ratePerSecond` is at least 1"));
        }
        if self.ids.as_ref().is_some_and(|ids| ids.len() > limits::REDRIVE_MAX as usize) {
            return Err(ApiError::invalid(format!("`ids` has at most {} ids", limits::REDRIVE_MAX)));
        }
        Ok(ReviveRequest {
            queue: self.queue,
            ids: self.ids,
            error: self.error,
            limit,
            rate_per_second: self.rate_per_second,
            dry_run: self.dry_run,
        })
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Redriven {
    redriven: usize,
    superseded: usize,
}

/// Brings dead jobs back. One whose key a newer job has is closed instead.
#[utoipa::path(
    post,
    path = "/v1/dead-letters/redrive",
    tag = "jobs",
    security(("key" = ["admin:write"])),
    request_body = RedriveBody,
    responses((status = 200, body = Redriven), ApiErrors)
)]
pub(crate) async fn redrive(
    State(app): State<App>,
    Body(body): Body<RedriveBody>,
) -> Result<Json<Redriven>, ApiError> {
    let outcomes = app.jobs.revive(body.request()?).await?;
    let redriven = outcomes.iter().filter(|outcome| matches!(outcome, Revived::Ready { .. })).count();
    Ok(Json(Redriven { redriven, superseded: outcomes.len() - redriven }))
}
