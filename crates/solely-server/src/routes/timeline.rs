//! Why a thing is as it is.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use solely_core::Json as Stored;
use solely_core::clock::Timestamp;
use solely_core::event::{Event, EventId};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ApiErrors};
use crate::extract::{Query, check_key};
use crate::page::{self, Page};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    subject: String,
    limit: Option<u32>,
    cursor: Option<String>,
}

/// An event as clients see it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShownEvent {
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    subject: String,
    event: String,
    outcome: Option<String>,
    reason: Option<String>,
    request_id: Option<String>,
    #[schema(value_type = Object)]
    details: Stored,
}

impl From<Event> for ShownEvent {
    fn from(event: Event) -> Self {
        let told = event.told;
        Self {
            at: event.at,
            subject: told.subject,
            event: told.event,
            outcome: told.outcome,
            reason: told.reason,
            request_id: told.request_id,
            details: told.details,
        }
    }
}

/// Kinds of subjects that have a timeline.
const KINDS: [&str; 6] = ["place", "products", "inventory", "reservation", "run", "job"];

/// A subject's events, in order.
#[utoipa::path(
    get,
    path = "/v1/timeline",
    tag = "timeline",
    security(("key" = ["admin:read"])),
    params(("subject" = String, Query, description = "place:, products:, inventory:, reservation:, run: or job:, and a key"), ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Items of a page"), ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before")),
    responses((status = 200, body = Page<ShownEvent>), ApiErrors)
)]
pub(crate) async fn list(
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<ShownEvent>>, ApiError> {
    check_key("subject", &query.subject)?;
    let known =
        query.subject.split_once(':').is_some_and(|(kind, rest)| KINDS.contains(&kind) && !rest.is_empty());
    if !known {
        return Err(ApiError::invalid(format!(
            "`subject` is one of {}, a colon and a key",
            KINDS.join(", ")
        )));
    }
    let limit = page::limit(query.limit)?;
    let after = page::cursor::<i64>(query.cursor.as_deref())?.map(EventId);
    let events = solely_core::event::timeline(&*app.store, query.subject, after, limit + 1).await?;
    Ok(Json(Page::of(events, limit, |event| event.id.0.to_string()).map(ShownEvent::from)))
}
