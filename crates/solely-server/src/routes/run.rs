//! Runs of feeds, and their partitions.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use solely_core::RunId;
use solely_core::clock::Timestamp;
use solely_core::feed::{
    Asked, ChangeError, Mode, NewPartition, Partition, PartitionStatus, PinWhat, PriceRange, Run, RunState,
    RunStatus, StartError,
};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ApiErrors, ErrorBody};
use crate::extract::{Asker, Body, Path, PathPair, Query};
use crate::page::{self, Page};
use crate::stream;

/// A run as clients see it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShownRun {
    #[schema(value_type = String)]
    run_id: RunId,
    source: String,
    mode: Mode,
    status: RunStatus,
    force: bool,
    limit: u32,
    expected_workers: u32,
    completed_workers: u32,
    failed_workers: u32,
    records_processed: u64,
    total_records: u64,
    records_per_second: f64,
    eta_seconds: Option<u64>,
    error: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    started_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    completed_at: Option<Timestamp>,
    consolidation: Option<ShownConsolidation>,
    partitions: Vec<ShownPartition>,
}

/// What a consolidation counted.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShownConsolidation {
    /// running, completed, skipped (a partition failed) or failed.
    status: &'static str,
    added: u64,
    changed: u64,
    unchanged: u64,
    removed: u64,
    #[schema(value_type = Option<String>, format = DateTime)]
    completed_at: Option<Timestamp>,
}

/// A partition as clients see it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShownPartition {
    partition_id: String,
    min_price: i64,
    max_price: i64,
    total_records: Option<u64>,
    next_offset: u64,
    completed: bool,
    status: PartitionStatus,
    records_processed: u64,
    attempts: u32,
    error: Option<String>,
    stuck: bool,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// A run and its partitions, as they stand.
pub(crate) fn shown(app: &App, state: RunState) -> ShownRun {
    let RunState { run, partitions, now } = state;
    let processed: u64 = partitions.iter().map(|partition| partition.records).sum();
    let total: u64 = partitions.iter().filter_map(|partition| partition.total).sum();
    let worked = run.running_at.map(|began| run.completed_at.unwrap_or(now).since(began));
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more digits")]
    let rate = worked.map_or(0.0, |worked| processed as f64 / worked.as_secs_f64().max(0.001));
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let eta = (run.status == RunStatus::Running && rate > 0.0)
        .then(|| (total.saturating_sub(processed) as f64 / rate).ceil() as u64);
    let stuck_after = app.feed.source(&run.source).map(|source| source.settings.stuck_after);
    let consolidation = consolidation(&run);
    let partition = |partition: Partition| ShownPartition {
        stuck: stuck_after.is_some_and(|after| partition.is_stuck(run.status, after, now)),
        partition_id: partition.id,
        min_price: partition.range.min,
        max_price: partition.range.max,
        total_records: partition.total,
        next_offset: partition.next_offset,
        completed: partition.status == PartitionStatus::Completed,
        status: partition.status,
        records_processed: partition.records,
        attempts: partition.attempts,
        error: partition.error,
        updated_at: partition.updated_at,
    };
    let partitions = partitions.into_iter().map(partition).collect();
    ShownRun {
        run_id: run.id,
        source: run.source,
        mode: run.mode,
        status: run.status,
        force: run.force,
        limit: run.limit,
        expected_workers: run.expected,
        completed_workers: run.completed,
        failed_workers: run.failed,
        records_processed: processed,
        total_records: total,
        records_per_second: (rate * 10.0).round() / 10.0,
        eta_seconds: eta,
        error: run.error,
        started_at: run.started_at,
        completed_at: run.completed_at,
        consolidation,
        partitions,
    }
}

fn consolidation(run: &Run) -> Option<ShownConsolidation> {
    let status = match run.status {
        RunStatus::Consolidating => "running",
        RunStatus::Completed => "completed",
        RunStatus::Failed if run.failed > 0 => "skipped",
        RunStatus::Failed if run.expected > 0 => "failed",
        _ => return None,
    };
    let counts = run.counts.unwrap_or_default();
    let completed_at = run.completed_at.filter(|_| run.status == RunStatus::Completed);
    Some(ShownConsolidation {
        status,
        added: counts.added,
        changed: counts.changed,
        unchanged: counts.unchanged,
        removed: counts.removed,
        completed_at,
    })
}

/// A run to be started.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct StartBody {
    source: String,
    /// Records of a page.
    limit: Option<u32>,
    #[serde(default)]
    mode: Mode,
    /// Consolidate if at least 70 % of the partitions succeed.
    #[serde(default)]
    force: bool,
    /// Instead of those that the scheduler makes.
    partitions: Option<Vec<WantedPartition>>,
}

/// A partition that a client wants.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct WantedPartition {
    partition_id: String,
    min_price: i64,
    max_price: i64,
}

/// The run that was started.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StartedRun {
    #[schema(value_type = String)]
    run_id: RunId,
}

/// Starts a run of a source.
#[utoipa::path(
    post,
    path = "/v1/runs",
    tag = "runs",
    security(("key" = ["feed:write"])),
    request_body = StartBody,
    responses((status = 202, body = StartedRun), (status = 409, body = ErrorBody, description = "RUN_ACTIVE"), ApiErrors)
)]
pub(crate) async fn start(
    State(app): State<App>,
    Asker { request_id, trace }: Asker,
    Body(body): Body<StartBody>,
) -> Result<(StatusCode, Json<StartedRun>), ApiError> {
    if body.partitions.as_ref().is_some_and(Vec::is_empty) {
        return Err(ApiError::invalid("`partitions` has at least one of them, or is left out"));
    }
    let wanted = |wanted: WantedPartition| NewPartition {
        id: wanted.partition_id,
        range: PriceRange { min: wanted.min_price, max: wanted.max_price },
        total: None,
    };
    let asked = Asked {
        source: body.source,
        limit: body.limit,
        mode: body.mode,
        force: body.force,
        partitions: body.partitions.into_iter().flatten().map(wanted).collect(),
        not_within: None,
        trace,
        request_id: Some(request_id),
    };
    let run_id = app.feed.start(asked).await.map_err(not_started)?;
    Ok((StatusCode::ACCEPTED, Json(StartedRun { run_id })))
}

fn not_started(error: StartError) -> ApiError {
    match error {
        StartError::NoSource(name) => ApiError::not_found(format!("There is no source `{name}`.")),
        StartError::Invalid(why) => ApiError::invalid(why),
        StartError::Active(run) => active(run),
        StartError::NotDue => ApiError::conflict("INVALID_STATE", "The last run began too recently."),
        StartError::Store(error) => error.into(),
    }
}

fn active(run: RunId) -> ApiError {
    let message = format!("Run `{run}` of this source is active.");
    ApiError::conflict("RUN_ACTIVE", message).details(json!({"runId": run}))
}

fn not_changed(error: ChangeError) -> ApiError {
    match error {
        ChangeError::NotFound(what) => ApiError::not_found(format!("There is no such {what}.")),
        ChangeError::State(why) => {
            ApiError::conflict("INVALID_STATE", format!("This cannot be done: {why}."))
        }
        ChangeError::Active(run) => active(run),
        ChangeError::Store(error) => error.into(),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    source: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

/// Runs, newest first.
#[utoipa::path(
    get,
    path = "/v1/runs",
    tag = "runs",
    security(("key" = ["feed:read"])),
    params(("source" = Option<String>, Query), ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Items of a page"), ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before")),
    responses((status = 200, body = Page<ShownRun>), ApiErrors)
)]
pub(crate) async fn list(
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<ShownRun>>, ApiError> {
    let limit = page::limit(query.limit)?;
    let before = page::cursor(query.cursor.as_deref())?;
    let runs = app.store.runs(query.source, before, limit + 1).await?;
    Ok(Json(Page::of(runs, limit, |state| state.run.id.to_string()).map(|state| shown(&app, state))))
}

/// One run.
#[utoipa::path(
    get,
    path = "/v1/runs/{id}",
    tag = "runs",
    security(("key" = ["feed:read"])),
    params(("id" = String, Path)),
    responses((status = 200, body = ShownRun), ApiErrors)
)]
pub(crate) async fn show(State(app): State<App>, Path(id): Path<RunId>) -> Result<Json<ShownRun>, ApiError> {
    let state = app.store.run(id).await?.ok_or_else(|| not_changed(ChangeError::NotFound("run")))?;
    Ok(Json(shown(&app, state)))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangeBody {}

/// Stops a run.
#[utoipa::path(
    post,
    path = "/v1/runs/{id}/cancel",
    tag = "runs",
    security(("key" = ["feed:write"])),
    params(("id" = String, Path)),
    request_body = ChangeBody,
    responses((status = 200, body = ShownRun), (status = 409, body = ErrorBody, description = "INVALID_STATE"), ApiErrors)
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    Path(id): Path<RunId>,
    Body(_nothing): Body<ChangeBody>,
) -> Result<Json<ShownRun>, ApiError> {
    let state = app.feed.cancel(id).await.map_err(not_changed)?;
    Ok(Json(shown(&app, state)))
}

/// Goes on with the unfinished partitions of a cancelled or failed run.
#[utoipa::path(
    post,
    path = "/v1/runs/{id}/resume",
    tag = "runs",
    security(("key" = ["feed:write"])),
    params(("id" = String, Path)),
    request_body = ChangeBody,
    responses((status = 200, body = ShownRun), (status = 409, body = ErrorBody, description = "INVALID_STATE, RUN_ACTIVE"), ApiErrors)
)]
pub(crate) async fn resume(
    State(app): State<App>,
    Path(id): Path<RunId>,
    Body(_nothing): Body<ChangeBody>,
) -> Result<Json<ShownRun>, ApiError> {
    let state = app.feed.resume(id).await.map_err(not_changed)?;
    Ok(Json(shown(&app, state)))
}

/// Sets a failed partition going again, from where it is.
#[utoipa::path(
    post,
    path = "/v1/runs/{id}/partitions/{pid}/retry",
    tag = "runs",
    security(("key" = ["feed:write"])),
    params(("id" = String, Path), ("pid" = String, Path)),
    request_body = ChangeBody,
    responses((status = 200, body = ShownRun), (status = 409, body = ErrorBody, description = "INVALID_STATE, RUN_ACTIVE"), ApiErrors)
)]
pub(crate) async fn retry(
    State(app): State<App>,
    PathPair(id, partition): PathPair<RunId>,
    Body(_nothing): Body<ChangeBody>,
) -> Result<Json<ShownRun>, ApiError> {
    let state = app.feed.retry_partition(id, &partition).await.map_err(not_changed)?;
    Ok(Json(shown(&app, state)))
}

/// Where a partition is to go on.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ResetBody {
    #[schema(minimum = 0, maximum = 100_000_000)]
    next_offset: u64,
}

/// Sets a partition going from an offset.
#[utoipa::path(
    post,
    path = "/v1/runs/{id}/partitions/{pid}/reset",
    tag = "runs",
    security(("key" = ["feed:write"])),
    params(("id" = String, Path), ("pid" = String, Path)),
    request_body = ResetBody,
    responses((status = 200, body = ShownRun), (status = 409, body = ErrorBody, description = "INVALID_STATE, RUN_ACTIVE"), ApiErrors)
)]
pub(crate) async fn reset(
    State(app): State<App>,
    PathPair(id, partition): PathPair<RunId>,
    Body(body): Body<ResetBody>,
) -> Result<Json<ShownRun>, ApiError> {
    let most = solely_core::limits::PARTITION_RECORDS_MAX;
    if body.next_offset > most {
        return Err(ApiError::invalid(format!("`nextOffset` is 0 to {most}")));
    }
    let state = app.feed.reset_partition(id, &partition, body.next_offset).await.map_err(not_changed)?;
    Ok(Json(shown(&app, state)))
}

/// What a run saw, one record a line.
#[utoipa::path(
    get,
    path = "/v1/runs/{id}/records",
    tag = "runs",
    security(("key" = ["feed:read"])),
    params(("id" = String, Path)),
    responses((status = 200, body = String, content_type = "application/x-ndjson"), (status = 410, body = ErrorBody, description = "RECORDS_GONE: a later run has been current for long"), ApiErrors)
)]
pub(crate) async fn records(State(app): State<App>, Path(id): Path<RunId>) -> Result<Response, ApiError> {
    stream::records(&app, PinWhat::Run(id)).await
}
