//! Boxes on offer.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use solely_core::Timestamp;
use solely_core::event::EventId;
use solely_core::reserve::pricing::Pricing;
use solely_core::reserve::window::Window;
use solely_core::reserve::{
    Change, InventoryFilter, InventoryStatus, InventoryView, NewInventory, Operation, UNITS_MAX,
    subject_of_item,
};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ApiErrors};
use crate::extract::{Body, Path, Query, check_key};
use crate::page::{self, Page};
use crate::routes::reserve::{Buyer, id};
use crate::routes::timeline::ShownEvent;

/// The most that one box may cost, in the smallest unit of its currency.
const PRICE_MAX: i64 = 1_000_000_000_000;

/// Boxes to be put on offer: for a window of two instants, or of a date and two times of the merchant's day.
#[derive(Deserialize, Serialize, ToSchema)]
#[schema(as = NewInventory)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct InventoryBody {
    /// Its id, which makes the request idempotent; one is made if there is none.
    id: Option<String>,
    /// Of what.
    box_type_id: String,
    /// How many.
    #[schema(maximum = 10_000_000)]
    quantity: u32,
    /// What one costs, in the smallest unit of the currency.
    #[schema(minimum = 0)]
    price: i64,
    /// Three letters.
    #[schema(pattern = "^[A-Z]{3}$")]
    currency: String,
    /// From when they are given out,
    #[schema(value_type = Option<String>, format = DateTime)]
    pickup_start: Option<Timestamp>,
    /// and until when.
    #[schema(value_type = Option<String>, format = DateTime)]
    pickup_end: Option<Timestamp>,
    /// The merchant's day, as `2026-11-16`,
    pickup_date: Option<String>,
    /// from this time of it, as `18:00`,
    pickup_start_time: Option<String>,
    /// until this one; of the next day, if it is not later.
    pickup_end_time: Option<String>,
    /// How the price falls.
    #[schema(value_type = Option<Object>)]
    pricing: Option<Pricing>,
}

/// What is to become of an inventory.
#[derive(Deserialize, Serialize, ToSchema)]
#[schema(as = InventoryChange)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ChangeBody {
    /// Boxes more; a negative number takes out what is still free.
    add_quantity: Option<i64>,
    /// `CLOSED` or `ACTIVE`.
    status: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ListQuery {
    merchant_id: Option<String>,
    status: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    pub(crate) limit: Option<u32>,
    pub(crate) cursor: Option<String>,
}

/// Puts boxes on offer
#[utoipa::path(
    post,
    path = "/v1/inventory",
    tag = "reserve",
    security(("key" = ["reserve:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the request repeatable")),
    request_body = InventoryBody,
    responses(
        (status = 201, body = InventoryView),
        (status = 404, description = "BOX_TYPE_NOT_FOUND"),
        (status = 409, description = "ALREADY_EXISTS"),
        (status = 422, description = "IDEMPOTENCY_KEY_REUSED"),
        (status = 504, description = "OUTCOME_UNKNOWN: the store was lost while it was written to"),
        ApiErrors,
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    buyer: Buyer,
    Body(body): Body<InventoryBody>,
) -> Result<Response, ApiError> {
    check_key("boxTypeId", &body.box_type_id)?;
    if body.quantity > UNITS_MAX {
        return Err(ApiError::invalid(format!("`quantity` is 0 to {UNITS_MAX}")));
    }
    if !(0..=PRICE_MAX).contains(&body.price) {
        return Err(ApiError::invalid(format!("`price` is 0 to {PRICE_MAX}")));
    }
    if body.currency.len() != 3 || !body.currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return Err(ApiError::invalid("`currency` is three capital letters, such as EUR"));
    }
    let made = NewInventory {
        id: id(body.id.clone())?,
        box_type_id: body.box_type_id.clone(),
        quantity: body.quantity,
        price: body.price,
        currency: body.currency.clone(),
        window: window(&body)?,
        pricing: body.pricing.clone(),
    };
    buyer.ask(&app, Operation::CreateInventory(made), &body, StatusCode::CREATED).await
}

fn window(body: &InventoryBody) -> Result<Window, ApiError> {
    let daily = (&body.pickup_date, &body.pickup_start_time, &body.pickup_end_time);
    match ((body.pickup_start, body.pickup_end), daily) {
        ((Some(start), Some(end)), (None, None, None)) => {
            if start >= end {
                return Err(ApiError::invalid("`pickupEnd` is after `pickupStart`"));
            }
            Ok(Window::Instants { start, end })
        }
        ((None, None), (Some(date), Some(start), Some(end))) => {
            let date =
                date.parse().map_err(|_| ApiError::invalid("`pickupDate` is a date, as 2026-11-16"))?;
            let time = |field: &str, text: &str| {
                text.parse().map_err(|_| ApiError::invalid(format!("`{field}` is a time of day, as 18:00")))
            };
            let (start, end) = (time("pickupStartTime", start)?, time("pickupEndTime", end)?);
            if start == end {
                return Err(ApiError::invalid("`pickupEndTime` is another time than `pickupStartTime`"));
            }
            Ok(Window::Daily { date, start, end })
        }
        _ => Err(ApiError::invalid(
            "the window is `pickupStart` and `pickupEnd`, or `pickupDate`, `pickupStartTime` and `pickupEndTime`",
        )),
    }
}

/// An inventory, as it is now
#[utoipa::path(
    get,
    path = "/v1/inventory/{id}",
    tag = "reserve",
    security(("key" = ["reserve:read"]), ("user" = [])),
    params(("id" = String, Path, description = "The inventory")),
    responses((status = 200, body = InventoryView), (status = 404, description = "BOX_NOT_FOUND"), ApiErrors)
)]
pub(crate) async fn show(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<InventoryView>, ApiError> {
    find(&app, id).await.map(Json)
}

/// What cannot be an id names nothing.
pub(crate) async fn find(app: &App, id: String) -> Result<InventoryView, ApiError> {
    check_key("id", &id).map_err(|_| no_box())?;
    let filter = InventoryFilter { ids: Some(vec![id]), limit: 1, ..InventoryFilter::default() };
    app.reserve.inventories(filter).await?.into_iter().next().ok_or_else(no_box)
}

pub(crate) fn no_box() -> ApiError {
    let refusal = solely_core::reserve::Refusal::BoxNotFound;
    ApiError::new(StatusCode::NOT_FOUND, refusal.code(), refusal.message())
}

/// Inventories, as they are now
#[utoipa::path(
    get,
    path = "/v1/inventory",
    tag = "reserve",
    security(("key" = ["reserve:read"]), ("user" = [])),
    params(("merchantId" = Option<String>, Query, description = "Those of a merchant"), ("status" = Option<String>, Query, description = "ACTIVE, SOLD_OUT, EXPIRED or CLOSED"), ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Items of a page"), ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before")),
    responses((status = 200, body = Page<InventoryView>), ApiErrors)
)]
pub(crate) async fn list(
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<InventoryView>>, ApiError> {
    let limit = page::limit(query.limit)?;
    for (field, text) in [("merchantId", &query.merchant_id), ("cursor", &query.cursor)] {
        text.as_ref().map_or(Ok(()), |text| check_key(field, text))?;
    }
    let status = query.status.as_deref().map(str::parse::<InventoryStatus>).transpose();
    let filter = InventoryFilter {
        ids: None,
        merchant_id: query.merchant_id,
        status: status.map_err(|()| ApiError::invalid("`status` is ACTIVE, SOLD_OUT, EXPIRED or CLOSED"))?,
        after: query.cursor,
        limit: limit + 1,
    };
    let found = app.reserve.inventories(filter).await?;
    Ok(Json(Page::of(found, limit, |inventory| inventory.id.clone())))
}

/// Adds boxes, takes out what is free, closes or opens
#[utoipa::path(
    patch,
    path = "/v1/inventory/{id}",
    tag = "reserve",
    security(("key" = ["reserve:write"])),
    params(("id" = String, Path, description = "The inventory")),
    request_body = ChangeBody,
    responses(
        (status = 200, body = InventoryView),
        (status = 404, description = "BOX_NOT_FOUND"),
        (status = 409, description = "INSUFFICIENT_INVENTORY: fewer are free"),
        (status = 422, description = "IDEMPOTENCY_KEY_REUSED"),
        (status = 504, description = "OUTCOME_UNKNOWN: the store was lost while it was written to"),
        ApiErrors,
    )
)]
pub(crate) async fn change(
    State(app): State<App>,
    Path(inventory_id): Path<String>,
    buyer: Buyer,
    Body(body): Body<ChangeBody>,
) -> Result<Response, ApiError> {
    let closed = match body.status.as_deref() {
        None => None,
        Some("CLOSED") => Some(true),
        Some("ACTIVE") => Some(false),
        Some(_) => return Err(ApiError::invalid("`status` is CLOSED or ACTIVE")),
    };
    check_key("id", &inventory_id).map_err(|_| no_box())?;
    let add = body.add_quantity.unwrap_or(0);
    if add.unsigned_abs() > u64::from(UNITS_MAX) {
        return Err(ApiError::invalid(format!("`addQuantity` is at most {UNITS_MAX}")));
    }
    let change = Change { inventory_id, add, closed };
    buyer.ask(&app, Operation::Change(change), &body, StatusCode::OK).await
}

/// Every attempt at an inventory's boxes, refused ones too
#[utoipa::path(
    get,
    path = "/v1/inventory/{id}/audit",
    tag = "reserve",
    security(("key" = ["reserve:read"])),
    params(("id" = String, Path, description = "The inventory"), ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Items of a page"), ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before")),
    responses((status = 200, body = Page<ShownEvent>), (status = 404, description = "BOX_NOT_FOUND"), ApiErrors)
)]
pub(crate) async fn audit(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(query): Query<AuditQuery>,
) -> Result<Json<Page<ShownEvent>>, ApiError> {
    let found = find(&app, id).await?;
    audit_of(&app, subject_of_item(&found.id), &query).await
}

/// A page of a subject's events.
pub(crate) async fn audit_of(
    app: &App,
    subject: String,
    query: &AuditQuery,
) -> Result<Json<Page<ShownEvent>>, ApiError> {
    let limit = page::limit(query.limit)?;
    let after = page::cursor::<i64>(query.cursor.as_deref())?.map(EventId);
    let events = app.store.timeline(subject, after, limit + 1).await?;
    Ok(Json(Page::of(events, limit, |event| event.id.0.to_string()).map(ShownEvent::from)))
}
