//! Boxes that someone has, or had.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use solely_core::ReservationId;
use solely_core::reserve::{
    NewReservation, Operation, Refusal, Reservation, ReservationFilter, ReservationStatus, pickup_code,
    subject_of,
};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ApiErrors};
use crate::extract::{Body, Path, Query, check_key};
use crate::page::{self, Page};
use crate::routes::inventory::{AuditQuery, audit_of};
use crate::routes::reserve::{Buyer, not_yours};
use crate::routes::timeline::ShownEvent;

/// Boxes of one reservation.
const QUANTITY_MAX: u32 = solely_core::reserve::UNITS_MAX;

/// Boxes to be held.
#[derive(Deserialize, Serialize, ToSchema)]
#[schema(as = NewReservation)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ReservationBody {
    /// For whom.
    user_id: String,
    /// Of what.
    box_inventory_id: String,
    /// How long they are held.
    ttl_minutes: Option<f64>,
    /// How many; one if there is none.
    #[schema(minimum = 1, maximum = 1000)]
    quantity: Option<u32>,
    /// The most that one may cost.
    max_price: Option<i64>,
}

/// How long a hold is to last.
#[derive(Deserialize, Serialize, ToSchema)]
#[schema(as = Extension)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ExtendBody {
    /// From now on.
    ttl_minutes: Option<f64>,
}

/// What is shown to collect.
#[derive(Deserialize, Serialize, ToSchema)]
#[schema(as = Collection)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CollectBody {
    /// The reservation's code.
    pickup_code: String,
}

/// Nothing more is said.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoBody {}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ListQuery {
    user_id: Option<String>,
    merchant_id: Option<String>,
    status: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

/// Holds boxes
#[utoipa::path(
    post,
    path = "/v1/reservations",
    tag = "reserve",
    security(("key" = ["reserve:write"]), ("user" = [])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the request repeatable")),
    request_body = ReservationBody,
    responses(
        (status = 201, body = Reservation),
        (status = 404, description = "BOX_NOT_FOUND"),
        (status = 409, description = "PICKUP_WINDOW_CLOSED, BOX_UNAVAILABLE, ACTIVE_RESERVATION_EXISTS, INSUFFICIENT_INVENTORY, PRICE_CHANGED, IDEMPOTENCY_IN_PROGRESS"),
        (status = 422, description = "IDEMPOTENCY_KEY_REUSED"),
        (status = 504, description = "OUTCOME_UNKNOWN: the store was lost while it was written to"),
        ApiErrors,
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    buyer: Buyer,
    Body(body): Body<ReservationBody>,
) -> Result<Response, ApiError> {
    check_key("userId", &body.user_id)?;
    check_key("boxInventoryId", &body.box_inventory_id)?;
    buyer.must_be(&body.user_id)?;
    let quantity = body.quantity.unwrap_or(1);
    if !(1..=QUANTITY_MAX).contains(&quantity) {
        return Err(ApiError::invalid(format!("`quantity` is 1 to {QUANTITY_MAX}")));
    }
    if body.max_price.is_some_and(|most| most < 0) {
        return Err(ApiError::invalid("`maxPrice` is not negative"));
    }
    let new = NewReservation {
        id: ReservationId::new(),
        pickup_code: pickup_code(),
        user_id: body.user_id.clone(),
        inventory_id: body.box_inventory_id.clone(),
        ttl: ttl(&app, body.ttl_minutes)?,
        quantity,
        max_price: body.max_price,
    };
    buyer.ask(&app, Operation::Reserve(new), &body, StatusCode::CREATED).await
}

/// How long was asked for, if that is allowed.
fn ttl(app: &App, minutes: Option<f64>) -> Result<Option<Duration>, ApiError> {
    let times = app.reserve.times();
    let asked = minutes.map(|minutes| Duration::try_from_secs_f64(minutes * 60.0));
    let within = |ttl: &Duration| (times.least..=times.most).contains(ttl);
    match asked {
        None => Ok(None),
        Some(Ok(ttl)) if within(&ttl) => Ok(Some(ttl)),
        Some(_) => {
            let of = |time: Duration| time.as_secs_f64() / 60.0;
            let (least, most) = (of(times.least), of(times.most));
            Err(ApiError::invalid(format!("`ttlMinutes` is {least} to {most}")))
        }
    }
}

/// A reservation, judged by the clock
#[utoipa::path(
    get,
    path = "/v1/reservations/{id}",
    tag = "reserve",
    security(("key" = ["reserve:read"]), ("user" = [])),
    params(("id" = String, Path, description = "The reservation")),
    responses((status = 200, body = Reservation), (status = 404, description = "RESERVATION_NOT_FOUND"), ApiErrors)
)]
pub(crate) async fn show(
    State(app): State<App>,
    Path(id): Path<String>,
    buyer: Buyer,
) -> Result<Json<Reservation>, ApiError> {
    let found = find(&app, &id).await?;
    buyer.must_be(&found.user_id)?;
    Ok(Json(found))
}

async fn find(app: &App, id: &str) -> Result<Reservation, ApiError> {
    let filter = ReservationFilter { id: Some(reservation(id)?), limit: 1, ..ReservationFilter::default() };
    app.reserve.reservations(filter).await?.into_iter().next().ok_or_else(no_reservation)
}

/// What cannot be an id names nothing.
fn reservation(id: &str) -> Result<ReservationId, ApiError> {
    id.parse().map_err(|_| no_reservation())
}

fn no_reservation() -> ApiError {
    let refusal = Refusal::ReservationNotFound;
    ApiError::new(StatusCode::NOT_FOUND, refusal.code(), refusal.message())
}

/// Reservations in the order they were made, judged by the clock
#[utoipa::path(
    get,
    path = "/v1/reservations",
    tag = "reserve",
    security(("key" = ["reserve:read"]), ("user" = [])),
    params(("userId" = Option<String>, Query, description = "Those of a user"), ("merchantId" = Option<String>, Query, description = "Those at a merchant"), ("status" = Option<String>, Query, description = "ACTIVE, OFFERED, COMPLETED, CANCELLED or EXPIRED"), ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Items of a page"), ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before")),
    responses((status = 200, body = Page<Reservation>), ApiErrors)
)]
pub(crate) async fn list(
    State(app): State<App>,
    buyer: Buyer,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<Reservation>>, ApiError> {
    let limit = page::limit(query.limit)?;
    for (field, text) in [("userId", &query.user_id), ("merchantId", &query.merchant_id)] {
        text.as_ref().map_or(Ok(()), |text| check_key(field, text))?;
    }
    let status = query.status.as_deref().map(str::parse::<ReservationStatus>).transpose();
    let of_statuses = "`status` is ACTIVE, OFFERED, COMPLETED, CANCELLED or EXPIRED";
    let user_id = match (query.user_id, buyer.user()) {
        (Some(asked), Some(user)) if asked != user => return Err(not_yours()),
        (asked, user) => asked.or_else(|| user.map(str::to_owned)),
    };
    let filter = ReservationFilter {
        id: None,
        user_id,
        merchant_id: query.merchant_id,
        status: status.map_err(|()| ApiError::invalid(of_statuses))?,
        after: page::cursor(query.cursor.as_deref())?,
        limit: limit + 1,
    };
    let found = app.reserve.reservations(filter).await?;
    Ok(Json(Page::of(found, limit, |one| one.id.to_string())))
}

/// The payment was taken
#[utoipa::path(
    post,
    path = "/v1/reservations/{id}/confirm",
    tag = "reserve",
    security(("key" = ["reserve:write"])),
    params(("id" = String, Path, description = "The reservation"), ("Idempotency-Key" = Option<String>, Header, description = "Makes the request repeatable")),
    request_body = NoBody,
    responses(
        (status = 200, body = Reservation),
        (status = 404, description = "RESERVATION_NOT_FOUND"),
        (status = 409, description = "RESERVATION_EXPIRED, ALREADY_CANCELLED, ALREADY_COMPLETED, INVALID_STATE"),
        (status = 422, description = "IDEMPOTENCY_KEY_REUSED"),
        (status = 504, description = "OUTCOME_UNKNOWN: the store was lost while it was written to"),
        ApiErrors,
    )
)]
pub(crate) async fn confirm(
    State(app): State<App>,
    Path(id): Path<String>,
    buyer: Buyer,
    Body(body): Body<NoBody>,
) -> Result<Response, ApiError> {
    buyer.ask(&app, Operation::Confirm(reservation(&id)?), &body, StatusCode::OK).await
}

/// The boxes were collected
#[utoipa::path(
    post,
    path = "/v1/reservations/{id}/collect",
    tag = "reserve",
    security(("key" = ["reserve:write"])),
    params(("id" = String, Path, description = "The reservation"), ("Idempotency-Key" = Option<String>, Header, description = "Makes the request repeatable")),
    request_body = CollectBody,
    responses(
        (status = 200, body = Reservation),
        (status = 403, description = "WRONG_CODE"),
        (status = 404, description = "RESERVATION_NOT_FOUND"),
        (status = 409, description = "RESERVATION_EXPIRED, ALREADY_CANCELLED, INVALID_STATE"),
        (status = 429, description = "TOO_MANY_REQUESTS: too many wrong codes"),
        (status = 422, description = "IDEMPOTENCY_KEY_REUSED"),
        (status = 504, description = "OUTCOME_UNKNOWN: the store was lost while it was written to"),
        ApiErrors,
    )
)]
pub(crate) async fn collect(
    State(app): State<App>,
    Path(id): Path<String>,
    buyer: Buyer,
    Body(body): Body<CollectBody>,
) -> Result<Response, ApiError> {
    check_key("pickupCode", &body.pickup_code)?;
    let operation = Operation::Collect { id: reservation(&id)?, code: body.pickup_code.clone() };
    buyer.ask(&app, operation, &body, StatusCode::OK).await
}

/// The boxes are given back
#[utoipa::path(
    post,
    path = "/v1/reservations/{id}/cancel",
    tag = "reserve",
    security(("key" = ["reserve:write"]), ("user" = [])),
    params(("id" = String, Path, description = "The reservation"), ("Idempotency-Key" = Option<String>, Header, description = "Makes the request repeatable")),
    request_body = NoBody,
    responses(
        (status = 200, body = Reservation),
        (status = 404, description = "RESERVATION_NOT_FOUND"),
        (status = 409, description = "RESERVATION_EXPIRED, ALREADY_COMPLETED"),
        (status = 422, description = "IDEMPOTENCY_KEY_REUSED"),
        (status = 504, description = "OUTCOME_UNKNOWN: the store was lost while it was written to"),
        ApiErrors,
    )
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    Path(id): Path<String>,
    buyer: Buyer,
    Body(body): Body<NoBody>,
) -> Result<Response, ApiError> {
    buyer.ask(&app, Operation::Cancel(reservation(&id)?), &body, StatusCode::OK).await
}

/// An offer is taken
#[utoipa::path(
    post,
    path = "/v1/reservations/{id}/accept",
    tag = "reserve",
    security(("key" = ["reserve:write"]), ("user" = [])),
    params(("id" = String, Path, description = "The reservation that is offered"), ("Idempotency-Key" = Option<String>, Header, description = "Makes the request repeatable")),
    request_body = NoBody,
    responses(
        (status = 200, body = Reservation),
        (status = 404, description = "RESERVATION_NOT_FOUND"),
        (status = 409, description = "RESERVATION_EXPIRED, ALREADY_CANCELLED, ALREADY_COMPLETED, INVALID_STATE"),
        (status = 422, description = "IDEMPOTENCY_KEY_REUSED"),
        (status = 504, description = "OUTCOME_UNKNOWN: the store was lost while it was written to"),
        ApiErrors,
    )
)]
pub(crate) async fn accept(
    State(app): State<App>,
    Path(id): Path<String>,
    buyer: Buyer,
    Body(body): Body<NoBody>,
) -> Result<Response, ApiError> {
    buyer.ask(&app, Operation::Accept(reservation(&id)?), &body, StatusCode::OK).await
}

/// A hold lasts longer
#[utoipa::path(
    post,
    path = "/v1/reservations/{id}/extend",
    tag = "reserve",
    security(("key" = ["reserve:write"]), ("user" = [])),
    params(("id" = String, Path, description = "The reservation"), ("Idempotency-Key" = Option<String>, Header, description = "Makes the request repeatable")),
    request_body = ExtendBody,
    responses(
        (status = 200, body = Reservation),
        (status = 404, description = "RESERVATION_NOT_FOUND"),
        (status = 409, description = "RESERVATION_EXPIRED, ALREADY_CANCELLED, ALREADY_COMPLETED, INVALID_STATE"),
        (status = 422, description = "IDEMPOTENCY_KEY_REUSED"),
        (status = 504, description = "OUTCOME_UNKNOWN: the store was lost while it was written to"),
        ApiErrors,
    )
)]
pub(crate) async fn extend(
    State(app): State<App>,
    Path(id): Path<String>,
    buyer: Buyer,
    Body(body): Body<ExtendBody>,
) -> Result<Response, ApiError> {
    let operation = Operation::Extend { id: reservation(&id)?, ttl: ttl(&app, body.ttl_minutes)? };
    buyer.ask(&app, operation, &body, StatusCode::OK).await
}

/// Every attempt at a reservation, refused ones too
#[utoipa::path(
    get,
    path = "/v1/reservations/{id}/audit",
    tag = "reserve",
    security(("key" = ["reserve:read"]), ("user" = [])),
    params(("id" = String, Path, description = "The reservation"), ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Items of a page"), ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before")),
    responses((status = 200, body = Page<ShownEvent>), (status = 404, description = "RESERVATION_NOT_FOUND"), ApiErrors)
)]
pub(crate) async fn audit(
    State(app): State<App>,
    Path(id): Path<String>,
    buyer: Buyer,
    Query(query): Query<AuditQuery>,
) -> Result<Json<Page<ShownEvent>>, ApiError> {
    let found = find(&app, &id).await?;
    buyer.must_be(&found.user_id)?;
    audit_of(&app, subject_of(found.id), &query).await
}
