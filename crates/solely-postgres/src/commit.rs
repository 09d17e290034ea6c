//! Settlement: the fence first, then the effect, the jobs that follow, the events.
//!
//! The commits of one call share a transaction; each has a savepoint, so it is all or nothing
//! and judged by itself. The jobs' rows are locked first, in order, and only then is the clock
//! looked at: a settlement that waited for a lock is judged by the time after the wait.

use solely_core::cache::Put;
use solely_core::clock::Timestamp;
use solely_core::commit::{Commit, Effect, Settled, Verdict};
use solely_core::fault::{self, Guards};
use solely_core::job::{Claim, NewJob, OnRunning, Window};
use solely_core::{JobId, Json, StoreError};
use tokio_postgres::Error;

use crate::error::{is_collision, store_error};
use crate::row::{self, signed};
use crate::transaction::transact;
use crate::{PostgresStore, Tx, cache, event, feed, job};

impl PostgresStore {
    pub(crate) async fn settle_each(
        &self,
        mut commits: Vec<Commit>,
    ) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        if !self.guards.page_transaction {
            self.apply_effects_apart(&mut commits).await?;
        }
        let claims: Vec<Claim> = commits.iter().map(|commit| commit.claim).collect();
        let settled = transact!(self, |tx| async {
            job::lock_jobs(tx, &claims).await?;
            let now = tx.now().await?;
            let mut outcomes = Vec::with_capacity(commits.len());
            for commit in &commits {
                outcomes.push(settle_apart(tx, commit, now, self.guards).await?);
            }
            fault::point("settle.commit");
            Ok(outcomes)
        }
        .await);
        fault::point("settle.committed");
        settled
    }

    /// What solely never does unless a fault test opens the guard: the effect in one
    /// transaction, the completion and the next job in another.
    async fn apply_effects_apart(&self, commits: &mut [Commit]) -> Result<(), StoreError> {
        for commit in commits {
            let effect = std::mem::take(&mut commit.effect);
            let applied = transact!(self, |tx| async {
                let now = tx.now().await?;
                apply(tx, &effect, now).await
            }
            .await)?;
            fault::point("settle.committed");
            if !applied {
                commit.next_jobs.clear();
                commit.events.clear();
            }
        }
        Ok(())
    }
}

/// One commit in a savepoint of its own. `Err` only for what concerns the whole transaction.
async fn settle_apart(
    tx: &mut Tx<'_>,
    commit: &Commit,
    now: Timestamp,
    guards: Guards,
) -> Result<Result<Settled, StoreError>, Error> {
    let part = tx.savepoint().await?;
    match settle(&part, commit, now, guards).await {
        Ok(settled) => {
            part.keep().await?;
            Ok(Ok(settled))
        }
        Err(error) if is_collision(&error) || error.code().is_none() => Err(error),
        Err(error) => {
            part.undo().await?;
            Ok(Err(store_error(&error)))
        }
    }
}

async fn settle(tx: &Tx<'_>, commit: &Commit, now: Timestamp, guards: Guards) -> Result<Settled, Error> {
    fault::point("settle.begin");
    let Some(run_again) = look_at_claim(tx, commit.claim, now, guards).await? else {
        return Ok(Settled::Stale);
    };
    pass_verdict(tx, commit, run_again, now).await?;
    fault::point("settle.fenced");
    if run_again && matches!(commit.verdict, Verdict::Dead { .. }) {
        succeed_the_dead(tx, commit.claim.job, now).await?;
    }
    let applied = apply(tx, &commit.effect, now).await?;
    fault::point("settle.effect");
    if applied {
        job::enqueue_all(tx, &commit.next_jobs, now).await?;
        fault::point("settle.next");
    }
    event::insert(tx, if applied { &commit.events } else { &commit.otherwise }, now).await?;
    Ok(if applied { Settled::Applied } else { Settled::Skipped })
}

/// None if the claim is not the job's any more; else whether a trigger came while it ran.
async fn look_at_claim(
    tx: &Tx<'_>,
    claim: Claim,
    now: Timestamp,
    guards: Guards,
) -> Result<Option<bool>, Error> {
    let found = tx
        .optional(
            "SELECT again
               FROM jobs
              WHERE id = $1 AND (fence = $2 AND state = 2 AND ends_at > $3 OR NOT $4)
                FOR UPDATE",
            &[&row::uuid(claim.job.as_bytes()), &signed(claim.fence), &now.as_millis(), &guards.fence],
        )
        .await?;
    Ok(found.map(|found| found.get(0)))
}

async fn pass_verdict(tx: &Tx<'_>, commit: &Commit, run_again: bool, now: Timestamp) -> Result<(), Error> {
    let job = commit.claim.job;
    match &commit.verdict {
        Verdict::Complete if run_again => run_once_more(tx, job, now).await,
        Verdict::Complete => complete(tx, job, now).await,
        Verdict::Retry { delay, error } => {
            let due_at = Some(now.plus(*delay));
            put_back(tx, job, now, &PutBack { state: 1, due_at, attempt_back: 0, error: Some(error) }).await
        }
        Verdict::Postpone { delay, error } => {
            let due_at = Some(now.plus(*delay));
            put_back(tx, job, now, &PutBack { state: 1, due_at, attempt_back: 1, error: Some(error) }).await
        }
        Verdict::Release => {
            put_back(tx, job, now, &PutBack { state: 0, due_at: None, attempt_back: 1, error: None }).await
        }
        Verdict::Dead { error } => bury(tx, job, error, now).await,
    }
}

/// Done. The payload is not needed any more, and may hold a secret.
async fn complete(tx: &Tx<'_>, job: JobId, now: Timestamp) -> Result<(), Error> {
    tx.execute(
        "UPDATE jobs
            SET state = 3, due_at = NULL, ends_at = $2, updated_at = $2, payload = '{}', error = NULL,
                process = NULL
          WHERE id = $1",
        &[&row::uuid(job.as_bytes()), &now.as_millis()],
    )
    .await
    .map(drop)
}

/// Done, but a trigger came while it ran: as if it had been made anew.
async fn run_once_more(tx: &Tx<'_>, job: JobId, now: Timestamp) -> Result<(), Error> {
    tx.execute(
        "UPDATE jobs
            SET state = 0, run_at = $2, due_at = $2, updated_at = $2, attempts = 0, again = false,
                error = NULL, process = NULL, ends_at = NULL
          WHERE id = $1",
        &[&row::uuid(job.as_bytes()), &now.as_millis()],
    )
    .await
    .map(drop)
}

struct PutBack<'a> {
    state: i16,
    /// None: where it was.
    due_at: Option<Timestamp>,
    /// Attempts given back.
    attempt_back: i32,
    error: Option<&'a str>,
}

/// Back into the queue. A trigger that came meanwhile is served by the next delivery.
async fn put_back(tx: &Tx<'_>, job: JobId, now: Timestamp, back: &PutBack<'_>) -> Result<(), Error> {
    tx.execute(
        "UPDATE jobs
            SET state = $3, due_at = coalesce($4, run_at), run_at = coalesce($4, run_at),
                attempts = greatest(attempts - $5, 0), error = coalesce($6, error), ends_at = NULL,
                again = false, process = NULL, updated_at = $2
          WHERE id = $1",
        &[
            &row::uuid(job.as_bytes()),
            &now.as_millis(),
            &back.state,
            &back.due_at.map(Timestamp::as_millis),
            &back.attempt_back,
            &back.error,
        ],
    )
    .await
    .map(drop)
}

/// Dead, with its payload kept for a redrive.
async fn bury(tx: &Tx<'_>, job: JobId, error: &str, now: Timestamp) -> Result<(), Error> {
    tx.execute(
        "UPDATE jobs
            SET state = 4, due_at = NULL, ends_at = $2, updated_at = $2, error = $3, again = false,
                process = NULL
          WHERE id = $1",
        &[&row::uuid(job.as_bytes()), &now.as_millis(), &error],
    )
    .await
    .map(drop)
}

/// A trigger that came while the job died is not lost with it: a new job carries it.
async fn succeed_the_dead(tx: &Tx<'_>, dead: JobId, now: Timestamp) -> Result<(), Error> {
    let found = tx
        .one(
            "SELECT queue, key, kind, payload, attributes, priority, max_attempts, trace FROM jobs WHERE id = $1",
            &[&row::uuid(dead.as_bytes())],
        )
        .await?;
    let successor = NewJob {
        id: JobId::new(),
        queue: found.get(0),
        key: found.get(1),
        kind: found.get(2),
        payload: Json::from_stored(found.get(3)),
        attributes: Json::from_stored(found.get(4)),
        priority: u8::try_from(found.get::<_, i16>(5)).unwrap_or(0),
        delay: std::time::Duration::ZERO,
        max_attempts: u32::try_from(found.get::<_, i32>(6)).unwrap_or(1),
        window: Window::Off,
        on_running: OnRunning::RunAgain,
        trace: found.get(7),
    };
    job::enqueue_all(tx, &[successor], now).await.map(drop)
}

/// Applies an effect. False if its condition does not hold; nothing of it was then written.
async fn apply(tx: &Tx<'_>, effect: &Effect, now: Timestamp) -> Result<bool, Error> {
    match effect {
        Effect::None => Ok(true),
        Effect::PutEntries(entries) => {
            let outcomes = cache::put_all(tx, entries, now).await?;
            Ok(outcomes.is_empty() || outcomes.iter().any(|put| matches!(put, Put::Stored { .. })))
        }
        Effect::Page(page) => feed::write_page(tx, page, now).await,
        Effect::FailPartition(failed) => feed::fail_partition(tx, failed).await,
        Effect::Delivered(events) => event::mark_delivered(tx, events).await.map(|()| true),
    }
}
