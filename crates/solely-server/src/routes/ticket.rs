//! Tickets: a minute in which a socket can be opened without a header, once.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use solely_core::Timestamp;
use solely_core::access::{Caller, new_ticket};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ApiErrors};
use crate::extract::Body;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TicketBody {}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ticket {
    ticket: String,
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
}

/// Makes a ticket that stands for the caller: `/v1/ws?ticket=…`
#[utoipa::path(
    post,
    path = "/v1/ws/tickets",
    tag = "access",
    security(("key" = [])),
    request_body = TicketBody,
    responses((status = 201, body = Ticket), ApiErrors)
)]
pub(crate) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Body(_nothing): Body<TicketBody>,
) -> Result<(StatusCode, Json<Ticket>), ApiError> {
    let (ticket, stored) = new_ticket(caller);
    let expires_at = app.store.create_ticket(stored).await?;
    Ok((StatusCode::CREATED, Json(Ticket { ticket, expires_at })))
}
