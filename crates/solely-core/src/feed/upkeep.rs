//! What a feed does by itself: stuck partitions are reported and set going, runs that are due begin.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::message::WorkItem;
use super::system::{Asked, ChangeError, Feed, FeedSource, StartError, change_of, subject};
use super::{PartitionKey, PartitionStatus, RunChange, RunStatus};
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::json::Json;

/// Stuck partitions that one look takes care of.
const STUCK_BATCH: u32 = 100;

pub(super) async fn keep(feed: Feed, stop: CancellationToken) {
    let Some(period) = period(&feed) else { return };
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Some(Err(error)) = stop.run_until_cancelled(look_after(&feed)).await {
            feed.jobs.metrics().upkeep_failed();
            tracing::warn!(%error, "feeds could not be looked after");
        }
    }
}

/// Often enough for the most impatient source.
fn period(feed: &Feed) -> Option<Duration> {
    let wants = |source: &FeedSource| {
        let stuck = source.settings.stuck_after / 4;
        source.settings.every.map_or(stuck, |every| stuck.min(every / 10))
    };
    let shortest = feed.sources().map(|source| wants(source)).min()?;
    Some(shortest.clamp(Duration::from_millis(200), Duration::from_secs(30)))
}

pub(super) async fn look_after(feed: &Feed) -> Result<(), StoreError> {
    for source in feed.sources() {
        begin_if_due(feed, source).await?;
        let stuck_after = source.settings.stuck_after;
        let stuck = feed.jobs.store().stuck(source.name.clone(), stuck_after, STUCK_BATCH).await?;
        for of in stuck {
            set_going(feed, source, &of).await?;
        }
    }
    Ok(())
}

/// The row of the source decides which instance starts it.
async fn begin_if_due(feed: &Feed, source: &FeedSource) -> Result<(), StoreError> {
    let Some(every) = source.settings.every else { return Ok(()) };
    let asked = Asked { source: source.name.clone(), not_within: Some(every), ..Asked::default() };
    match feed.start(asked).await {
        Ok(run) => tracing::info!(source = source.name, %run, "a run is due and has begun"),
        Err(StartError::Store(error)) => return Err(error),
        Err(StartError::Active(_) | StartError::NotDue) => {}
        Err(other) => tracing::warn!(source = source.name, %other, "a run is due and cannot begin"),
    }
    Ok(())
}

/// Reports a stuck partition, and makes the message that carries it if there is none.
async fn set_going(feed: &Feed, source: &FeedSource, of: &PartitionKey) -> Result<(), StoreError> {
    let changed = feed.change(of.run, |state| {
        let found = state.partitions.iter().find(|partition| partition.id == of.partition);
        let stuck =
            |p: &&super::Partition| p.is_stuck(state.run.status, source.settings.stuck_after, state.now);
        let Some(partition) = found.filter(stuck).filter(|p| p.status == PartitionStatus::Running) else {
            return Err(ChangeError::State("it goes on".to_owned()));
        };
        let outcome = if partition.message.is_none() { "requeued" } else { "waiting" };
        let details = serde_json::json!({
            "partitionId": of.partition, "nextOffset": partition.next_offset, "since": partition.updated_at,
            "attempts": partition.attempts, "message": partition.message,
        });
        let mut told =
            NewEvent::new(subject(of.run), "partition_stuck").outcome(outcome).details(Json::of(&details));
        told.reason.clone_from(&partition.error);
        let at = partition.next_offset;
        let item = WorkItem::of(&state.run, &of.partition, partition.range, partition.total, at);
        let carrier =
            partition.message.is_none().then(|| item.job(&source.settings, state.run.trace.clone()));
        Ok(RunChange {
            stuck: vec![(of.partition.clone(), at)],
            jobs: carrier.into_iter().collect(),
            ..change_of(state, RunStatus::Running, told)
        })
    });
    match changed.await {
        Ok(_) => tracing::warn!(run = %of.run, partition = of.partition, "a partition is stuck"),
        Err(ChangeError::Store(error)) => return Err(error),
        Err(_) => {}
    }
    Ok(())
}
