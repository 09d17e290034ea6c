//! `WORK_DONE`: a partition has ended; when all have, so has the work of the run.
//!
//! The counters that it reads changed in the transaction that sent it, so the message of the last
//! ending finds all of them. It moves the run only if the counters are still the same: a partition
//! that was retried meanwhile ends again, with a message of its own.

use async_trait::async_trait;

use super::message::{OfRun, WorkDone};
use super::system::{Feed, FeedSource, subject};
use super::{Run, RunStatus, Step};
use crate::commit::Effect;
use crate::event::NewEvent;
use crate::json::Json;
use crate::worker::{Delivery, Done, Failure, Handler};

/// Ends runs.
pub(super) struct Endings(pub(super) Feed);

#[async_trait]
impl Handler for Endings {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let message: WorkDone = delivery
            .job
            .payload
            .parse()
            .map_err(|error| Failure::permanent(format!("the message cannot be read: {error}")))?;
        let state = self.0.jobs.store().run(message.run_id).await;
        let Some(state) = state.map_err(|error| Failure::transient(error.to_string()))? else {
            return Ok(Done::default());
        };
        let source = self.0.known(&state.run.source)?;
        Ok(ended(&state.run, &source))
    }
}

/// What the end of a partition means for its run.
fn ended(run: &Run, source: &FeedSource) -> Done {
    if run.status != RunStatus::Running || run.completed + run.failed < run.expected {
        return Done::default();
    }
    let counted = serde_json::json!({"completed": run.completed, "failed": run.failed});
    let (to, error, event, next_jobs) = if run.is_enough() {
        (RunStatus::Consolidating, None, "run_consolidating", vec![OfRun::consolidate(run, source)])
    } else {
        let why = format!("{} of {} partitions failed", run.failed, run.expected);
        (RunStatus::Failed, Some(why), "run_failed", Vec::new())
    };
    let mut told = NewEvent::new(subject(run.id), event).details(Json::of(&counted));
    told.reason.clone_from(&error);
    let step = Step::End { run: run.id, completed: run.completed, failed: run.failed, to, error };
    Done { effect: Effect::Feed(step), next_jobs, events: vec![told], otherwise: Vec::new() }
}
