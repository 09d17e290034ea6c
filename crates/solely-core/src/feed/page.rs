//! `WORK_ITEM`: one message, one page.
//!
//! Before anything is fetched the partition's row is looked at. If the message is not for where
//! the partition is, it changes nothing and is done with; should the row show that work remains,
//! the message that carries it is made again (if it is there already, that is a duplicate). If it
//! is, the page is fetched, and everything that follows from it is one commit.

use std::collections::BTreeMap;

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};

use super::message::{WorkDone, WorkItem};
use super::source::{Found, Scope, Window};
use super::system::{ChangeError, End, Feed, FeedSource, change_of, subject};
use super::{
    Page, PartitionStatus, Place, PriceRange, Record, RunChange, RunStatus, SetGoing, Step, UpdatedWithin,
};
use crate::commit::Effect;
use crate::event::NewEvent;
use crate::job::Job;
use crate::json::Json;
use crate::limits;
use crate::worker::{Delivery, Done, Failure, Handler};

/// Fetches and writes pages.
pub(super) struct Pages(pub(super) Feed);

#[async_trait]
impl Handler for Pages {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let item: WorkItem = delivery
            .job
            .payload
            .parse()
            .map_err(|error| Failure::permanent(format!("the message cannot be read: {error}")))?;
        let source = self.0.known(&item.source)?;
        let store = self.0.jobs.store();
        let place =
            store.place(item.partition()).await.map_err(|error| Failure::transient(error.to_string()))?;
        let Some(place) = place else { return Ok(Done::default()) };
        if place.next_offset != item.offset || place.status == PartitionStatus::Completed {
            tracing::info!(
                target: "solely::decision",
                event = "feed_offset_mismatch",
                run = %item.run_id,
                partition = item.partition_id,
                offset = item.offset,
                next_offset = place.next_offset,
            );
            return Ok(self.elsewhere(&item, place, &source, &delivery.job));
        }
        if place.status == PartitionStatus::Failed {
            // Somebody brought the dead letter back: the partition goes on with it.
            self.revive(&item).await?;
        } else if place.run != RunStatus::Running {
            return Ok(Done { events: vec![mismatch(&item, place)], ..Done::default() });
        }
        if item.offset >= limits::PARTITION_RECORDS_MAX {
            return Err(Failure::permanent("the partition has no end"));
        }
        let updated = item.updated_from.zip(item.updated_to).map(|(from, to)| UpdatedWithin { from, to });
        let scope = Scope { range: item.range, updated, trace: delivery.job.trace.clone() };
        let window = Window { offset: item.offset, limit: item.limit };
        let found = source.page(&scope, &window).await;
        self.0.jobs.metrics().feed_page(&source.name, found.as_ref().map(Vec::len));
        stored(&item, place, found?, &source, delivery.job.trace.clone())
    }

    fn died(&self, job: &Job, error: &str) -> Done {
        let Ok(item) = job.payload.parse::<WorkItem>() else { return Done::default() };
        let details = serde_json::json!({"partitionId": item.partition_id, "offset": item.offset});
        let told =
            NewEvent::new(subject(item.run_id), "partition_failed").reason(error).details(Json::of(&details));
        let step = Step::FailPartition {
            of: item.partition(),
            offset: item.offset,
            error: error.to_owned(),
            attempts: job.attempts,
        };
        let done = WorkDone::job(&item, Some(error.to_owned()), job.trace.clone());
        Done { effect: Effect::Feed(step), next_jobs: vec![done], events: vec![told], otherwise: Vec::new() }
    }
}

impl Pages {
    /// The partition is elsewhere. If it has work left, there is a message that carries it.
    fn elsewhere(&self, item: &WorkItem, place: Place, source: &FeedSource, job: &Job) -> Done {
        self.0.jobs.metrics().feed_mismatch(&source.name);
        let told = mismatch(item, place);
        if place.status != PartitionStatus::Running || place.run != RunStatus::Running {
            return Done { events: vec![told], ..Done::default() };
        }
        let carrier = WorkItem { offset: place.next_offset, ..item.clone() };
        let step = Step::At { of: item.partition(), offset: place.next_offset };
        Done {
            effect: Effect::Feed(step),
            next_jobs: vec![carrier.job(&source.settings, job.trace.clone())],
            otherwise: vec![told.clone()],
            events: vec![told],
        }
    }

    /// Sets a failed partition going with the message in hand.
    async fn revive(&self, item: &WorkItem) -> Result<(), Failure> {
        let revived = self.0.change(item.run_id, |state| {
            let details = serde_json::json!({"partitionId": item.partition_id, "nextOffset": item.offset});
            let told = NewEvent::new(subject(item.run_id), "partition_retried").details(Json::of(&details));
            if !matches!(state.run.status, RunStatus::Running | RunStatus::Failed) {
                return Err(ChangeError::State(format!("the run is {}", state.run.status.word())));
            }
            let at = SetGoing {
                partition: item.partition_id.clone(),
                seen_at: item.offset,
                next_offset: item.offset,
            };
            Ok(RunChange { going: vec![at], ..change_of(state, RunStatus::Running, told) })
        });
        match revived.await {
            Ok(_) => Ok(()),
            Err(ChangeError::Store(error)) => Err(Failure::transient(error.to_string())),
            Err(other) => Err(Failure::permanent(other.to_string())),
        }
    }
}

fn mismatch(item: &WorkItem, place: Place) -> NewEvent {
    let details = serde_json::json!({
        "partitionId": item.partition_id, "offset": item.offset, "nextOffset": place.next_offset,
        "run": place.run, "partition": place.status,
    });
    NewEvent::new(subject(item.run_id), "feed_offset_mismatch").outcome("skipped").details(Json::of(&details))
}

/// Everything that follows from a page.
fn stored(
    item: &WorkItem,
    place: Place,
    found: Vec<Found>,
    source: &FeedSource,
    trace: Option<String>,
) -> Result<Done, Failure> {
    let (settings, received) = (&source.settings, found.len() as u64);
    if received > u64::from(item.limit) {
        let why = format!("the source answered {received} records where {} were asked for", item.limit);
        return Err(Failure::permanent(why));
    }
    let last = match settings.end {
        End::ShortPage => received < u64::from(item.limit),
        End::EmptyPage => received == 0,
    };
    let again = if last { 0 } else { u64::from(settings.page_overlap).min(received.saturating_sub(1)) };
    let next_offset = item.offset + received - again;
    let (next, events) = if last {
        let details = serde_json::json!({"partitionId": item.partition_id, "nextOffset": next_offset});
        let told = NewEvent::new(subject(item.run_id), "partition_completed").details(Json::of(&details));
        (WorkDone::job(item, None, trace), vec![told])
    } else {
        (WorkItem { offset: next_offset, ..item.clone() }.job(settings, trace), Vec::new())
    };
    let page = Page {
        of: item.partition(),
        offset: item.offset,
        next_offset,
        last,
        records: records(found, item.range)?,
    };
    Ok(Done {
        effect: Effect::Feed(Step::Page(page)),
        next_jobs: vec![next],
        events,
        otherwise: vec![mismatch(item, place)],
    })
}

/// The records of a page in the order of their ids; of one that is there twice, the last.
fn records(found: Vec<Found>, within: PriceRange) -> Result<Vec<Record>, Failure> {
    let mut records = BTreeMap::new();
    for found in found {
        let max = limits::RECORD_ID_BYTES_MAX;
        if found.id.is_empty() || found.id.len() > max || found.id.contains('\0') {
            return Err(Failure::permanent(format!("a record's id has 1 to {max} bytes and no zero byte")));
        }
        let mut hash = [0; 16];
        hash.copy_from_slice(&Sha256::digest(found.payload.as_str().as_bytes())[..16]);
        let price = found.price.map_or(within, |price| PriceRange { min: price, max: price });
        records.insert(found.id.clone(), Record { id: found.id, payload: found.payload, hash, price });
    }
    Ok(records.into_values().collect())
}
