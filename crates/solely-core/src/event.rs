//! Events: one table that is timeline, audit and outbox.
//!
//! An event is written in the transaction of what it tells of. What a row already says is not
//! written again: a job's life is told by its row, its troubles by events. An event with a
//! `topic` is also due for delivery, in the order of ids within its topic, until an
//! [`crate::commit::Effect::Delivered`] takes it out of the outbox; it stays in the timeline.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::id::JobId;
use crate::job::{Job, JobState};
use crate::json::Json;
use crate::store::Store;

/// An event's place in the order of its store. Later is greater; gaps mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub i64);

/// Something to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// What it is about: `place:ChIJ123`, `job:…`, `run:…`.
    pub subject: String,
    /// What happened.
    pub event: String,
    /// How it ended, in a word.
    pub outcome: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// Whose request caused it.
    pub request_id: Option<String>,
    /// What else is worth knowing: an object.
    pub details: Json,
    /// Where it is to be delivered, if anywhere.
    pub topic: Option<String>,
    /// What else it is about: it is in that subject's timeline, too.
    pub also: Option<String>,
}

impl NewEvent {
    /// An event about a subject.
    pub fn new(subject: impl Into<String>, event: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            event: event.into(),
            outcome: None,
            reason: None,
            request_id: None,
            details: Json::empty(),
            topic: None,
            also: None,
        }
    }

    /// With an outcome.
    pub fn outcome(mut self, outcome: impl Into<String>) -> Self {
        self.outcome = Some(outcome.into());
        self
    }

    /// With a reason.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// With details.
    pub fn details(mut self, details: Json) -> Self {
        self.details = details;
        self
    }

    /// Due for delivery to a topic.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }
}

/// An event as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its place in the order.
    pub id: EventId,
    /// When it was written.
    pub at: Timestamp,
    /// What it said.
    pub told: NewEvent,
}

/// What the event table can do beside being written to by commits.
#[async_trait]
pub trait EventStore: Send + Sync {
    /// Writes events that belong to no other transaction.
    async fn append(&self, events: Vec<NewEvent>) -> Result<(), StoreError>;

    /// A page of a subject's events in order, after a given one.
    async fn timeline(
        &self,
        subject: String,
        after: Option<EventId>,
        limit: u32,
    ) -> Result<Vec<Event>, StoreError>;

    /// The oldest events that are due for delivery to a topic, in order.
    async fn outbox(&self, topic: String, limit: u32) -> Result<Vec<Event>, StoreError>;
}

/// A page of a subject's timeline: its events and, for a job, what its row says by itself, its
/// making before them and its present state behind them; for a place, the making of its lookups.
pub async fn timeline(
    store: &dyn Store,
    subject: String,
    after: Option<EventId>,
    limit: u32,
) -> Result<Vec<Event>, StoreError> {
    let job = match subject.strip_prefix("job:").and_then(|id| id.parse::<JobId>().ok()) {
        Some(id) => store.job(id).await?,
        None => None,
    };
    if let Some(place) = subject.strip_prefix("place:") {
        let place = place.to_owned();
        return crate::enrich::timeline::of_place(store, place, after, limit).await;
    }
    let mut events = store.timeline(subject, after.filter(|id| *id > MADE), limit).await?;
    if let Some(job) = job {
        let whole = events.len() < limit as usize;
        if after.is_none() {
            events.insert(0, told_by_row(&job, MADE, job.created_at, "job_enqueued"));
        }
        if let (true, Some(event)) = (whole && after != Some(NOW), state_event(job.state)) {
            events.push(told_by_row(&job, NOW, job.updated_at, event));
        }
        events.truncate(limit as usize);
    }
    Ok(events)
}

/// Before and behind all written events of a job.
const MADE: EventId = EventId(0);
const NOW: EventId = EventId(i64::MAX);

/// The event that a state implies. A dead, cancelled or retrying job has told of it itself.
fn state_event(state: JobState) -> Option<&'static str> {
    match state {
        JobState::Running => Some("job_running"),
        JobState::Completed => Some("job_completed"),
        JobState::Ready | JobState::Retrying | JobState::Dead | JobState::Cancelled => None,
    }
}

fn told_by_row(job: &Job, id: EventId, at: Timestamp, event: &str) -> Event {
    let details = serde_json::json!({"queue": job.queue, "key": job.key, "attempts": job.attempts});
    Event { id, at, told: NewEvent::new(format!("job:{}", job.id), event).details(Json::of(&details)) }
}
