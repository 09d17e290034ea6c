//! Why a thing is as it is.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use solely_core::Json as Stored;
use solely_core::clock::Timestamp;
use solely_core::event::{Event, EventId};

use crate::App;
use crate::error::ApiError;
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
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShownEvent {
    at: Timestamp,
    subject: String,
    event: String,
    outcome: Option<String>,
    reason: Option<String>,
    request_id: Option<String>,
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
