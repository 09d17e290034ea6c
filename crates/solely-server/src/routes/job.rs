//! Jobs.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use solely_core::clock::Timestamp;
use solely_core::job::{Job, JobState, ReviveRequest, Revived};
use solely_core::queue::JobFilter;
use solely_core::{JobId, Json as Stored};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ApiErrors, ErrorBody};
use crate::extract::{Body, Path, Query};
use crate::page::{self, Page};

/// A job as clients see it: without its payload.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShownJob {
    #[schema(value_type = String)]
    id: JobId,
    queue: String,
    kind: String,
    key: String,
    state: JobState,
    priority: u8,
    attempts: u32,
    max_attempts: u32,
    #[schema(value_type = String, format = DateTime)]
    run_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    locked_until: Option<Timestamp>,
    error: Option<String>,
    #[schema(value_type = Object)]
    attributes: Stored,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl From<Job> for ShownJob {
    fn from(job: Job) -> Self {
        Self {
            id: job.id,
            queue: job.queue,
            kind: job.kind,
            key: job.key,
            state: job.state,
            priority: job.priority,
            attempts: job.attempts,
            max_attempts: job.max_attempts,
            run_at: job.run_at,
            locked_until: job.locked_until,
            error: job.error,
            attributes: job.attributes,
            created_at: job.created_at,
            updated_at: job.updated_at,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    queue: Option<String>,
    state: Option<String>,
    key: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

/// Jobs, newest first.
#[utoipa::path(
    get,
    path = "/v1/jobs",
    tag = "jobs",
    security(("key" = ["admin:read"])),
    params(("queue" = Option<String>, Query), ("state" = Option<JobState>, Query), ("key" = Option<String>, Query), ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Items of a page"), ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before")),
    responses((status = 200, body = Page<ShownJob>), ApiErrors)
)]
pub(crate) async fn list(
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<ShownJob>>, ApiError> {
    let state = query.state.as_deref().map(state).transpose()?;
    let filter = JobFilter {
        queue: query.queue,
        state,
        key: query.key,
        live: false,
        before: page::cursor(query.cursor.as_deref())?,
        limit: page::limit(query.limit)?,
    };
    Ok(Json(page_of(&app, filter).await?))
}

/// A page of what a filter shows.
pub(crate) async fn page_of(app: &App, mut filter: JobFilter) -> Result<Page<ShownJob>, ApiError> {
    let limit = filter.limit;
    filter.limit += 1;
    let jobs = app.store.jobs(filter).await?;
    Ok(Page::of(jobs, limit, |job| job.id.to_string()).map(ShownJob::from))
}

fn state(word: &str) -> Result<JobState, ApiError> {
    word.parse().map_err(|()| {
        let known: Vec<&str> = JobState::ALL.into_iter().map(JobState::word).collect();
        ApiError::invalid(format!("`state` is one of {}", known.join(", ")))
    })
}

/// One job.
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}",
    tag = "jobs",
    security(("key" = ["admin:read"])),
    params(("id" = String, Path)),
    responses((status = 200, body = ShownJob), (status = 404, body = ErrorBody), ApiErrors)
)]
pub(crate) async fn show(State(app): State<App>, Path(id): Path<JobId>) -> Result<Json<ShownJob>, ApiError> {
    find(&app, id).await.map(|job| Json(job.into()))
}

async fn find(app: &App, id: JobId) -> Result<Job, ApiError> {
    app.store.job(id).await?.ok_or_else(|| ApiError::not_found(format!("There is no job `{id}`.")))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryBody {}

/// Brings one dead job back.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/retry",
    tag = "jobs",
    security(("key" = ["admin:write"])),
    params(("id" = String, Path)),
    request_body = RetryBody,
    responses((status = 200, body = ShownJob), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody, description = "JOB_SUPERSEDED, INVALID_STATE"), ApiErrors)
)]
pub(crate) async fn retry(
    State(app): State<App>,
    Path(id): Path<JobId>,
    Body(_nothing): Body<RetryBody>,
) -> Result<Json<ShownJob>, ApiError> {
    find(&app, id).await?;
    let request = ReviveRequest { ids: Some(vec![id]), limit: 1, ..ReviveRequest::default() };
    match app.jobs.revive(request).await?.first() {
        Some(Revived::Ready { .. }) => find(&app, id).await.map(|job| Json(job.into())),
        Some(Revived::Superseded { by, .. }) => {
            let message = format!("The newer job `{by}` has its key; this one was closed.");
            Err(ApiError::conflict("JOB_SUPERSEDED", message).details(serde_json::json!({"by": by})))
        }
        None => Err(ApiError::conflict("INVALID_STATE", "Only a dead job can be retried.")),
    }
}
