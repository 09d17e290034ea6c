//! Those who wait for a box.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use solely_core::WaitId;
use solely_core::reserve::{NewWait, Operation, Refusal, WaitFilter, WaitView};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ApiErrors};
use crate::extract::{Body, Path, Query, check_key};
use crate::page::{self, Page};
use crate::routes::inventory::{AuditQuery, find, no_box};
use crate::routes::reserve::Buyer;

/// Someone who is to wait.
#[derive(Deserialize, Serialize, ToSchema)]
#[schema(as = NewWait)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct WaitBody {
    /// Who.
    user_id: String,
}

/// Waits for a box
///
/// Where one is free it is offered at once. Joining twice answers the same entry.
#[utoipa::path(
    post,
    path = "/v1/inventory/{id}/waitlist",
    tag = "reserve",
    security(("key" = ["reserve:write"]), ("user" = [])),
    params(("id" = String, Path, description = "The inventory"), ("Idempotency-Key" = Option<String>, Header, description = "Makes the request repeatable")),
    request_body = WaitBody,
    responses(
        (status = 201, body = WaitView),
        (status = 404, description = "BOX_NOT_FOUND"),
        (status = 409, description = "PICKUP_WINDOW_CLOSED, BOX_UNAVAILABLE, WAITLIST_FULL, IDEMPOTENCY_IN_PROGRESS"),
        (status = 422, description = "IDEMPOTENCY_KEY_REUSED"),
        (status = 504, description = "OUTCOME_UNKNOWN: the store was lost while it was written to"),
        ApiErrors,
    )
)]
pub(crate) async fn join(
    State(app): State<App>,
    Path(inventory_id): Path<String>,
    buyer: Buyer,
    Body(body): Body<WaitBody>,
) -> Result<Response, ApiError> {
    check_key("id", &inventory_id).map_err(|_| no_box())?;
    check_key("userId", &body.user_id)?;
    buyer.must_be(&body.user_id)?;
    let new = NewWait { id: WaitId::new(), user_id: body.user_id.clone(), inventory_id };
    buyer.ask(&app, Operation::Join(new), &body, StatusCode::CREATED).await
}

/// Those who wait for a box or have an offer, in their order
///
/// A user sees its own place alone.
#[utoipa::path(
    get,
    path = "/v1/inventory/{id}/waitlist",
    tag = "reserve",
    security(("key" = ["reserve:read"]), ("user" = [])),
    params(("id" = String, Path, description = "The inventory"), ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Items of a page"), ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before")),
    responses((status = 200, body = Page<WaitView>), (status = 404, description = "BOX_NOT_FOUND"), ApiErrors)
)]
pub(crate) async fn list(
    State(app): State<App>,
    Path(id): Path<String>,
    buyer: Buyer,
    Query(query): Query<AuditQuery>,
) -> Result<Json<Page<WaitView>>, ApiError> {
    let limit = page::limit(query.limit)?;
    let after = page::cursor::<u64>(query.cursor.as_deref())?;
    let inventory_id = find(&app, id).await?.id;
    let user_id = buyer.user().map(str::to_owned);
    let found = app.reserve.waitlist(WaitFilter { inventory_id, user_id, after, limit: limit + 1 }).await?;
    Ok(Json(Page::of(found, limit, |(ordinal, _)| ordinal.to_string()).map(|(_, wait)| wait)))
}

/// Waits no longer, or does not want what was offered
#[utoipa::path(
    delete,
    path = "/v1/waitlist/{id}",
    tag = "reserve",
    security(("key" = ["reserve:write"]), ("user" = [])),
    params(("id" = String, Path, description = "The entry")),
    responses(
        (status = 204, description = "It is in line no longer"),
        (status = 404, description = "WAITLIST_ENTRY_NOT_FOUND"),
        (status = 409, description = "INVALID_STATE: what was offered was taken"),
        (status = 504, description = "OUTCOME_UNKNOWN: the store was lost while it was written to"),
        ApiErrors,
    )
)]
pub(crate) async fn leave(
    State(app): State<App>,
    Path(id): Path<String>,
    buyer: Buyer,
) -> Result<Response, ApiError> {
    let refusal = Refusal::WaitNotFound;
    let unknown = || ApiError::new(StatusCode::NOT_FOUND, refusal.code(), refusal.message());
    let id: WaitId = id.parse().map_err(|_| unknown())?;
    buyer.ask(&app, Operation::Leave(id), &(), StatusCode::NO_CONTENT).await
}
