//! What is told of a place: the events of its lookups' ends, and from each of them, or from a lookup that is
//! still to end, that it was made. The making is no event of its own: it would be a second row, written while
//! a caller waits, that says what the job's row does.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{WARM_PRIORITY, provider_of, subject};
use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::event::{Event, EventId, NewEvent};
use crate::job::Job;
use crate::json::Json;
use crate::queue::JobFilter;
use crate::store::Store;

/// The making of a lookup, as the event of its end tells of it (`details.made`).
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, Deserialize)]
pub(super) struct Made {
    /// When.
    at: Timestamp,
    /// Why.
    reason: String,
}

impl Made {
    /// That of a lookup.
    pub(super) fn of(job: &Job, refreshes: bool) -> Self {
        let reason = match (refreshes, job.priority) {
            (true, _) => "refresh_ahead",
            (false, WARM_PRIORITY) => "warm",
            (false, _) => "cache_miss",
        };
        Self { at: job.created_at, reason: reason.to_owned() }
    }
}

/// Details of an end that say how it began.
#[derive(Deserialize)]
struct End {
    provider: String,
    job: String,
    made: Made,
}

/// Details that name a lookup.
#[derive(Deserialize)]
struct JobOf {
    job: String,
}

/// What can be seen of a lookup.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attributes {
    request_id: Option<String>,
}

/// Lookups of one place that are live: one for each provider.
const LIVE_MAX: u32 = 100;
/// Behind all that was written, with room for one of each provider.
const LIVE: i64 = i64::MAX - LIVE_MAX as i64;

/// A page of a place's timeline.
///
/// The making that comes from an event has the negative of its id, and comes before it.
pub(crate) async fn of_place(
    store: &dyn Store,
    place: String,
    after: Option<EventId>,
    limit: u32,
) -> Result<Vec<Event>, StoreError> {
    let after = after.map_or(0, |id| id.0);
    // Behind the making of an event comes the event.
    let made_of = after.min(0).saturating_neg();
    let written_after = if after < 0 { made_of - 1 } else { after };
    // The live ones first: one that ends meanwhile is told of by its end.
    let live = JobFilter { key: Some(place.clone()), live: true, limit: LIVE_MAX, ..JobFilter::default() };
    let mut live = store.jobs(live).await?;
    live.reverse();
    // A lookup that was brought back, or made by an older server, has told of its making before.
    let (mut events, mut told) = (Vec::new(), BTreeSet::new());
    if after < LIVE {
        for event in store.timeline(subject(&place), Some(EventId(written_after)), limit).await? {
            let making = made_by(&event);
            let is_new = job_made(making.as_ref().unwrap_or(&event)).is_none_or(|job| told.insert(job));
            events.extend(making.filter(|_| is_new && event.id.0 != made_of));
            events.push(event);
        }
    }
    let made = (LIVE..).zip(&live).filter(|(id, _)| *id > after);
    let made = made.filter_map(|(id, job)| made_of_job(EventId(id), &place, job));
    events.extend(made.filter(|making| job_made(making).is_none_or(|job| !told.contains(&job))));
    events.truncate(limit as usize);
    Ok(events)
}

/// The lookup whose making this tells of.
fn job_made(event: &Event) -> Option<String> {
    let of: JobOf = event.told.details.parse().ok()?;
    event.told.event.ends_with("_job_enqueued").then_some(of.job)
}

/// The making of the lookup whose end this tells of.
fn made_by(event: &Event) -> Option<Event> {
    let End { provider, job, made } = event.told.details.parse().ok()?;
    let request = event.told.request_id.clone();
    Some(making(EventId(-event.id.0), &event.told.subject, &provider, &job, made, request))
}

/// The making of a lookup that has not ended.
fn made_of_job(id: EventId, place: &str, job: &Job) -> Option<Event> {
    let provider = provider_of(&job.queue)?;
    let request = job.attributes.parse::<Attributes>().ok().and_then(|attributes| attributes.request_id);
    Some(making(id, &subject(place), provider, &job.id.to_string(), Made::of(job, false), request))
}

fn making(
    id: EventId,
    subject: &str,
    provider: &str,
    job: &str,
    made: Made,
    request_id: Option<String>,
) -> Event {
    let told = NewEvent::new(subject, format!("{provider}_job_enqueued"))
        .outcome("PENDING")
        .reason(made.reason)
        .details(Json::of(&serde_json::json!({"provider": provider, "job": job})));
    Event { id, at: made.at, told: NewEvent { request_id, ..told } }
}
