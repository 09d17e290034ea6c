//! Queues.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use solely_core::clock::{Clock, Timestamp};
use solely_core::queue::Queue;
use solely_core::reserve::notify;
use solely_core::{enrich, feed, products};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ApiErrors};
use crate::extract::{Body, Path, Query, check_key};
use crate::page::{self, Page};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    limit: Option<u32>,
    cursor: Option<String>,
}

/// Queues by name.
#[utoipa::path(
    get,
    path = "/v1/queues",
    tag = "queues",
    security(("key" = ["admin:read"])),
    params(("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Items of a page"), ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before")),
    responses((status = 200, body = Page<Queue>), ApiErrors)
)]
pub(crate) async fn list(
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<Queue>>, ApiError> {
    let limit = page::limit(query.limit)?;
    let mut queues = app.store.queues().await?;
    // Those of this server are there though they have nothing.
    for known in app.jobs.metrics().known_queues() {
        if let Err(place) = queues.binary_search_by(|queue| queue.name.cmp(known)) {
            queues.insert(place, Queue::empty(known.clone()));
        }
    }
    if let Some(after) = query.cursor {
        queues.retain(|queue| queue.name > after);
    }
    Ok(Json(Page::of(queues, limit, |queue| queue.name.clone())))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PauseBody {
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
}

/// Nothing of the queue is claimed before `until`, or before somebody resumes it.
#[utoipa::path(
    post,
    path = "/v1/queues/{name}/pause",
    tag = "queues",
    security(("key" = ["admin:write"])),
    params(("name" = String, Path)),
    request_body = PauseBody,
    responses((status = 200, body = Queue), ApiErrors)
)]
pub(crate) async fn pause(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<PauseBody>,
) -> Result<Json<Queue>, ApiError> {
    let until = body.until.unwrap_or(Timestamp::FAR_FUTURE).min(Timestamp::FAR_FUTURE);
    if until <= Clock::system().now() {
        return Err(ApiError::invalid("`until` is in the past"));
    }
    set(&app, name, Some(until)).await
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResumeBody {}

/// The queue goes on now.
#[utoipa::path(
    post,
    path = "/v1/queues/{name}/resume",
    tag = "queues",
    security(("key" = ["admin:write"])),
    params(("name" = String, Path)),
    request_body = ResumeBody,
    responses((status = 200, body = Queue), ApiErrors)
)]
pub(crate) async fn resume(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(_nothing): Body<ResumeBody>,
) -> Result<Json<Queue>, ApiError> {
    set(&app, name, None).await
}

async fn set(app: &App, name: String, until: Option<Timestamp>) -> Result<Json<Queue>, ApiError> {
    check_key("name", &name)?;
    if !is_known(app, &name).await? {
        return Err(ApiError::not_found(format!("There is no queue `{name}`.")));
    }
    app.jobs.pause(name.clone(), until).await?;
    let queues = app.store.queues().await?;
    let found = queues.into_iter().find(|queue| queue.name == name);
    Ok(Json(found.unwrap_or_else(|| Queue::empty(name))))
}

/// Whether there is such a queue: one of the systems', or one that has jobs or is paused.
async fn is_known(app: &App, name: &str) -> Result<bool, ApiError> {
    let ours = [products::QUEUE, notify::QUEUE].contains(&name) || feed::QUEUES.contains(&name);
    let of_places = || app.enrich.providers().any(|provider| enrich::queue(&provider.name) == name);
    Ok(ours || of_places() || app.store.queues().await?.iter().any(|queue| queue.name == name))
}
