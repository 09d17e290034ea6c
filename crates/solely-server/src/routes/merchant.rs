//! Merchants and their kinds of boxes.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use solely_core::reserve::{BoxType, Merchant, Operation, window};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ApiErrors};
use crate::extract::{Body, Path, check_key};
use crate::routes::reserve::{Buyer, id};

/// A merchant to be made.
#[derive(Deserialize, Serialize, ToSchema)]
#[schema(as = NewMerchant)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct MerchantBody {
    /// Its id, which makes the request idempotent; one is made if there is none.
    id: Option<String>,
    /// Its name.
    name: String,
    /// The zone of its daily times, such as `Europe/Berlin`; `UTC` if there is none.
    timezone: Option<String>,
}

/// A kind of box to be made.
#[derive(Deserialize, Serialize, ToSchema)]
#[schema(as = NewBoxType)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct BoxTypeBody {
    /// Its id, which makes the request idempotent; one is made if there is none.
    id: Option<String>,
    /// Its name.
    name: String,
}

/// Makes a merchant
#[utoipa::path(
    post,
    path = "/v1/merchants",
    tag = "reserve",
    security(("key" = ["reserve:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the request repeatable")),
    request_body = MerchantBody,
    responses(
        (status = 201, body = Merchant),
        (status = 409, description = "ALREADY_EXISTS"),
        (status = 422, description = "IDEMPOTENCY_KEY_REUSED"),
        (status = 504, description = "OUTCOME_UNKNOWN: the store was lost while it was written to"),
        ApiErrors,
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    buyer: Buyer,
    Body(body): Body<MerchantBody>,
) -> Result<Response, ApiError> {
    check_key("name", &body.name)?;
    let timezone = body.timezone.clone().unwrap_or_else(|| "UTC".to_owned());
    if !window::is_zone(&timezone) {
        return Err(ApiError::invalid("`timezone` is the name of a time zone, such as Europe/Berlin"));
    }
    let merchant = Merchant { id: id(body.id.clone())?, name: body.name.clone(), timezone };
    buyer.ask(&app, Operation::CreateMerchant(merchant), &body, StatusCode::CREATED).await
}

/// Makes a kind of box of a merchant
#[utoipa::path(
    post,
    path = "/v1/merchants/{id}/box-types",
    tag = "reserve",
    security(("key" = ["reserve:write"])),
    params(("id" = String, Path, description = "The merchant"), ("Idempotency-Key" = Option<String>, Header, description = "Makes the request repeatable")),
    request_body = BoxTypeBody,
    responses(
        (status = 201, body = BoxType),
        (status = 404, description = "MERCHANT_NOT_FOUND"),
        (status = 409, description = "ALREADY_EXISTS"),
        (status = 422, description = "IDEMPOTENCY_KEY_REUSED"),
        (status = 504, description = "OUTCOME_UNKNOWN: the store was lost while it was written to"),
        ApiErrors,
    )
)]
pub(crate) async fn create_box_type(
    State(app): State<App>,
    Path(merchant_id): Path<String>,
    buyer: Buyer,
    Body(body): Body<BoxTypeBody>,
) -> Result<Response, ApiError> {
    check_key("merchantId", &merchant_id)?;
    check_key("name", &body.name)?;
    let made = BoxType { id: id(body.id.clone())?, merchant_id, name: body.name.clone() };
    buyer.ask(&app, Operation::CreateBoxType(made), &body, StatusCode::CREATED).await
}
