//! Settlement: the fence first, then the effect, the jobs that follow, the events.
//!
//! Each commit is one command of the writer, so it has a savepoint of its own: it is all or
//! nothing, and shares its COMMIT with its neighbours.

use rusqlite::{Error, OptionalExtension, params};
use solely_core::cache::Put;
use solely_core::clock::Timestamp;
use solely_core::commit::{Commit, Effect, Settled, Verdict};
use solely_core::fault::{self, Guard, Guards};
use solely_core::job::{Claim, OnRunning, Window};
use solely_core::{JobId, StoreError};

use crate::row::signed;
use crate::writer::Tx;
use crate::{SqliteStore, cache, event, feed, job};

impl SqliteStore {
    pub(crate) async fn settle_each(
        &self,
        mut commits: Vec<Commit>,
    ) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        if !self.guards.hold(Guard::PageTransaction) {
            self.apply_effects_apart(&mut commits).await?;
        }
        let guards = self.guards;
        let works = commits.into_iter().map(|commit| move |tx: &Tx<'_>| settle(tx, &commit, guards));
        self.writer.run_each("settle", works).await
    }

    /// What solely never does unless a fault test opens the guard: the effect in one
    /// transaction, the completion and the next job in another.
    async fn apply_effects_apart(&self, commits: &mut [Commit]) -> Result<(), StoreError> {
        for commit in commits {
            let effect = std::mem::take(&mut commit.effect);
            let applied = self.writer.run("settle", move |tx| apply(tx, &effect)).await?;
            if !applied {
                commit.next_jobs.clear();
                commit.events.clear();
            }
        }
        Ok(())
    }
}

fn settle(tx: &Tx<'_>, commit: &Commit, guards: Guards) -> Result<Settled, Error> {
    fault::point("settle.begin");
    let Some(run_again) = pass_verdict(tx, commit, guards)? else { return Ok(Settled::Stale) };
    fault::point("settle.fenced");
    if run_again && matches!(commit.verdict, Verdict::Dead { .. }) {
        succeed_the_dead(tx, commit.claim.job)?;
    }
    let applied = apply(tx, &commit.effect)?;
    fault::point("settle.effect");
    if applied {
        for next in &commit.next_jobs {
            job::enqueue_one(tx, next)?;
        }
        fault::point("settle.next");
    }
    for told in if applied { &commit.events } else { &commit.otherwise } {
        event::insert(tx, told)?;
    }
    Ok(if applied { Settled::Applied } else { Settled::Skipped })
}

/// Moves the job's row, if the claim is the job's; answers whether it was marked to run again.
///
/// The fence, the state and the lock are looked at first, and everything depends on them. One
/// thread writes, so what was looked at is still true when it is acted upon.
fn pass_verdict(tx: &Tx<'_>, commit: &Commit, guards: Guards) -> Result<Option<bool>, Error> {
    let Some(run_again) = look_at_claim(tx, commit.claim, guards)? else { return Ok(None) };
    match &commit.verdict {
        Verdict::Complete if run_again => run_once_more(tx, commit.claim.job)?,
        Verdict::Complete => complete(tx, commit.claim.job)?,
        Verdict::Retry { delay, error } => {
            let due_at = Some(tx.now.plus(*delay));
            put_back(
                tx,
                commit.claim.job,
                &PutBack { state: 1, due_at, attempt_back: 0, error: Some(error) },
            )?;
        }
        Verdict::Postpone { delay, error } => {
            let due_at = Some(tx.now.plus(*delay));
            put_back(
                tx,
                commit.claim.job,
                &PutBack {
                    state: 1,
                    due_at,
                    attempt_back: 1,
                    error: Some(error.as_str()).filter(|error| !error.is_empty()),
                },
            )?;
        }
        Verdict::Release => {
            put_back(
                tx,
                commit.claim.job,
                &PutBack { state: 0, due_at: None, attempt_back: 1, error: None },
            )?;
        }
        Verdict::Dead { error } => bury(tx, commit.claim.job, error)?,
    }
    Ok(Some(run_again))
}

/// None if the claim is not the job's any more; else whether a trigger came while it ran.
fn look_at_claim(tx: &Tx<'_>, claim: Claim, guards: Guards) -> Result<Option<bool>, Error> {
    let mut look = tx.conn.prepare_cached(
        "SELECT again
           FROM jobs
          WHERE id = ?1 AND (fence = ?2 AND state = 2 AND ends_at > ?3 OR NOT ?4)",
    )?;
    let values = params![claim.job.as_bytes(), signed(claim.fence), tx.now_ms(), guards.hold(Guard::Fence)];
    look.query_row(values, |row| row.get(0)).optional()
}

/// Done. The payload is not needed any more, and may hold a secret.
fn complete(tx: &Tx<'_>, job: JobId) -> Result<(), Error> {
    let mut complete = tx.conn.prepare_cached(
        "UPDATE jobs
            SET state = 3, live = NULL, due_at = NULL, ends_at = ?2, updated_at = ?2,
                payload = '{}', error = NULL, process = NULL
          WHERE id = ?1",
    )?;
    complete.execute((job.as_bytes(), tx.now_ms())).map(drop)
}

/// Done, but a trigger came while it ran: as if it had been made anew.
fn run_once_more(tx: &Tx<'_>, job: JobId) -> Result<(), Error> {
    let mut requeue = tx.conn.prepare_cached(
        "UPDATE jobs
            SET state = 0, live = 1, run_at = ?2, due_at = ?2, updated_at = ?2, attempts = 0, again = 0,
                error = NULL, process = NULL, ends_at = NULL
          WHERE id = ?1",
    )?;
    requeue.execute((job.as_bytes(), tx.now_ms())).map(drop)
}

struct PutBack<'a> {
    state: u8,
    /// None: where it was.
    due_at: Option<Timestamp>,
    /// Attempts given back.
    attempt_back: u8,
    error: Option<&'a str>,
}

/// Back into the queue. A trigger that came meanwhile is served by the next delivery.
fn put_back(tx: &Tx<'_>, job: JobId, back: &PutBack<'_>) -> Result<(), Error> {
    let mut put_back = tx.conn.prepare_cached(
        "UPDATE jobs
            SET state = ?3, live = 1, due_at = coalesce(?4, run_at), run_at = coalesce(?4, run_at),
                attempts = max(attempts - ?5, 0), error = coalesce(?6, error), ends_at = NULL,
                again = 0, process = NULL, updated_at = ?2
          WHERE id = ?1",
    )?;
    let due_at = back.due_at.map(Timestamp::as_millis);
    put_back
        .execute(params![job.as_bytes(), tx.now_ms(), back.state, due_at, back.attempt_back, back.error])
        .map(drop)
}

/// Dead, with its payload kept for a redrive.
fn bury(tx: &Tx<'_>, job: JobId, error: &str) -> Result<(), Error> {
    let mut bury = tx.conn.prepare_cached(
        "UPDATE jobs
            SET state = 4, live = NULL, due_at = NULL, error = ?3, ends_at = ?2, again = 0,
                process = NULL, updated_at = ?2
          WHERE id = ?1",
    )?;
    bury.execute((job.as_bytes(), tx.now_ms(), error)).map(drop)
}

/// A trigger that came while the job died is not lost with it: a new job carries it.
fn succeed_the_dead(tx: &Tx<'_>, dead: JobId) -> Result<(), Error> {
    let mut find = tx.conn.prepare_cached(
        "SELECT queue, key, kind, payload, attributes, priority, max_attempts, trace FROM jobs WHERE id = ?1",
    )?;
    let successor = find.query_row([dead.as_bytes()], |row| {
        Ok(solely_core::job::NewJob {
            id: JobId::new(),
            queue: row.get(0)?,
            key: row.get(1)?,
            kind: row.get(2)?,
            payload: solely_core::Json::from_stored(row.get(3)?),
            attributes: solely_core::Json::from_stored(row.get(4)?),
            priority: row.get(5)?,
            delay: std::time::Duration::ZERO,
            max_attempts: row.get(6)?,
            window: Window::Off,
            on_running: OnRunning::RunAgain,
            trace: row.get(7)?,
        })
    })?;
    job::enqueue_one(tx, &successor).map(drop)
}

/// Applies an effect. False if its condition does not hold; nothing of it was then written.
fn apply(tx: &Tx<'_>, effect: &Effect) -> Result<bool, Error> {
    match effect {
        Effect::None => Ok(true),
        Effect::PutEntries(entries) => {
            let mut stored = entries.is_empty();
            for entry in entries {
                stored |= matches!(cache::put(tx, entry)?, Put::Stored { .. });
            }
            Ok(stored)
        }
        Effect::Feed(step) => feed::take(tx, step),
        Effect::Delivered(events) => {
            for id in events {
                event::mark_delivered(tx, *id)?;
            }
            Ok(true)
        }
    }
}
