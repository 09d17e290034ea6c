//! CONSOLIDATE: makes the run's result current.
//!
//! First, in small steps of which any can be repeated: what runs left behind that never became
//! current is taken away, and what a full run did not see within the prices of its completed
//! partitions is marked as removed. None of it can be seen yet. Then one row is switched, together
//! with the run's end, the watermark and this message's completion.

use async_trait::async_trait;

use super::schedule::failed_run;
use super::system::{Feed, subject};
use super::{Mode, PartitionStatus, PriceRange, RunState, RunStatus, Step};
use crate::commit::Effect;
use crate::event::NewEvent;
use crate::job::Job;
use crate::json::Json;
use crate::worker::{Delivery, Done, Failure, Handler};

/// Consolidates runs.
pub(super) struct Consolidations(pub(super) Feed);

#[async_trait]
impl Handler for Consolidations {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let Some((state, source)) = self.0.at_stage(&delivery.job, RunStatus::Consolidating).await? else {
            return Ok(Done::default());
        };
        let (run, store) = (&state.run, self.0.jobs.store());
        let failed = |error: crate::StoreError| Failure::transient(error.to_string());
        let (found, current) = store.counts(run.id).await.map_err(failed)?;
        // Where all that is current was seen, nothing has vanished.
        let is_full = run.mode == Mode::Full;
        let within =
            if is_full && found.changed + found.unchanged < current { fetched(&state) } else { Vec::new() };
        while store.consolidate(run.id, within.clone()).await.map_err(failed)? {}
        let (counts, _) = store.counts(run.id).await.map_err(failed)?;
        let details = serde_json::json!({
            "added": counts.added, "changed": counts.changed, "unchanged": counts.unchanged,
            "removed": counts.removed,
        });
        let told = NewEvent::new(subject(run.id), "run_completed").details(Json::of(&details));
        // What was not fetched may have changed: the next incremental run still has to look for it.
        let all = fetched(&state).iter().any(|range| range.holds(source.settings.range));
        let effect = Effect::Feed(Step::Switch { run: run.id, counts, move_watermark: all });
        Ok(Done { effect, events: vec![told], ..Done::default() })
    }

    fn died(&self, job: &Job, error: &str) -> Done {
        failed_run(job, RunStatus::Consolidating, error)
    }
}

/// The prices within which a record that a full run has not seen has vanished: those of completed
/// partitions, taken together where they touch.
fn fetched(state: &RunState) -> Vec<PriceRange> {
    let completed = |status| status == PartitionStatus::Completed;
    let mut ranges: Vec<PriceRange> =
        state.partitions.iter().filter(|p| completed(p.status)).map(|p| p.range).collect();
    ranges.sort_unstable();
    let mut whole: Vec<PriceRange> = Vec::new();
    for range in ranges {
        match whole.last_mut() {
            Some(last) if range.min <= last.max.saturating_add(1) => last.max = last.max.max(range.max),
            _ => whole.push(range),
        }
    }
    whole
}
