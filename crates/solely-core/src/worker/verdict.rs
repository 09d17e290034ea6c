//! From what a handler returned to the commit that settles its job. Pure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::commit::{Commit, Verdict};
use crate::event::NewEvent;
use crate::job::{Claim, Claimed, Job};
use crate::json::Json;
use crate::limits;

use super::{Backoff, Done, Failure, Handler, QueueSpec};

/// The settlement of a delivery.
pub(super) fn commit(spec: &QueueSpec, delivered: &Claimed, result: Result<Done, Failure>) -> Commit {
    let (claim, job) = (delivered.claim, &delivered.job);
    match result {
        Ok(done) => with(Commit::new(claim, Verdict::Complete), done),
        Err(Failure::Postponed { delay, error }) => {
            Commit::new(claim, Verdict::Postpone { delay, error: shortened(error) })
        }
        Err(Failure::Permanent { error }) => commit_dead(&*spec.handler, claim, job, error),
        Err(Failure::Transient { error, .. }) if job.attempts >= job.max_attempts => {
            commit_dead(&*spec.handler, claim, job, error)
        }
        Err(Failure::Transient { error, at_most }) => {
            let delay = wait(spec.backoff, job.attempts).min(at_most.unwrap_or(Duration::MAX));
            retry(claim, job, delay, shortened(error))
        }
    }
}

/// The settlement of a job that is given up, with what that means for its system.
pub(crate) fn commit_dead(handler: &dyn Handler, claim: Claim, job: &Job, error: String) -> Commit {
    let error = shortened(error);
    // A handler whose `died` panics leaves a dead letter without its effect, said aloud, rather
    // than a job that nobody can ever settle.
    let done = catch_unwind(AssertUnwindSafe(|| handler.died(job, &error))).unwrap_or_else(|_| {
        tracing::error!(job = %job.id, queue = job.queue, "`died` panicked; the job dies without its effect");
        Done::default()
    });
    let mut commit = with(Commit::new(claim, Verdict::Dead { error: error.clone() }), done);
    let event = told(job, "job_dead").reason(error);
    // Dead is dead whether or not the effect still applies.
    commit.otherwise.push(event.clone());
    commit.events.push(event);
    commit
}

fn retry(claim: Claim, job: &Job, delay: Duration, error: String) -> Commit {
    let mut commit = Commit::new(claim, Verdict::Retry { delay, error: error.clone() });
    commit.events.push(told(job, "job_retry_scheduled").reason(error));
    commit
}

fn told(job: &Job, event: &str) -> NewEvent {
    let details = serde_json::json!({"queue": job.queue, "key": job.key, "attempts": job.attempts});
    NewEvent::new(format!("job:{}", job.id), event).details(Json::of(&details))
}

fn with(mut commit: Commit, done: Done) -> Commit {
    commit.effect = done.effect;
    commit.next_jobs = done.next_jobs;
    commit.events = done.events;
    commit.otherwise = done.otherwise;
    commit
}

fn wait(backoff: Backoff, attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(20);
    let full = backoff.first.saturating_mul(1 << doublings).min(backoff.longest);
    full.mul_f64(1.0 - rand::random::<f64>() / 2.0)
}

/// An error as it can be kept: not too long, and without the one character that not every store
/// can hold.
fn shortened(mut error: String) -> String {
    error.retain(|character| character != '\0');
    if error.len() > limits::ERROR_BYTES_MAX {
        let mut end = limits::ERROR_BYTES_MAX;
        while !error.is_char_boundary(end) {
            end -= 1;
        }
        error.truncate(end);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_are_jittered_downwards() {
        let backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(10) };
        for (attempts, full) in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 10.0), (10_000, 10.0)] {
            let wait = wait(backoff, attempts).as_secs_f64();
            assert!(wait > full / 2.0 - 0.001 && wait <= full, "{attempts}: {wait}");
        }
    }

    #[test]
    fn long_errors_are_cut_between_characters() {
        let error = shortened("é".repeat(limits::ERROR_BYTES_MAX));
        assert!(error.len() <= limits::ERROR_BYTES_MAX);
    }
}
