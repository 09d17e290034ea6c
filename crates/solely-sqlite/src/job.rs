//! Jobs: enqueue, claim, renew, rescue, revive, cancel. Settlement is in [`crate::commit`].

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Error, OptionalExtension, Row, params};
use solely_core::clock::{Timestamp, millis};
use solely_core::commit::{Commit, Settled};
use solely_core::event::NewEvent;
use solely_core::fault::Guard;
use solely_core::job::{
    Claim, ClaimReply, ClaimRequest, Claimed, Enqueued, Job, JobState, JobStore, NewJob, OnRunning, Renewed,
    RescueRequest, Rescued, ReviveRequest, Revived, Window,
};
use solely_core::{JobId, Json, StoreError, fault, limits};

use crate::row::{self, JOB_COLUMNS, signed};
use crate::writer::Tx;
use crate::{SqliteStore, event};

#[async_trait]
impl JobStore for SqliteStore {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        self.writer.run("enqueue", move |tx| jobs.iter().map(|job| enqueue_one(tx, job)).collect()).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimReply, StoreError> {
        self.writer.run("claim", move |tx| claim(tx, &request)).await
    }

    async fn renew(&self, claims: Vec<Claim>, lock: Duration) -> Result<Vec<Renewed>, StoreError> {
        let fence_holds = self.guards.hold(Guard::Fence);
        self.writer
            .run("renew", move |tx| {
                claims.iter().map(|claim| renew_one(tx, *claim, lock, fence_holds)).collect()
            })
            .await
    }

    async fn settle(&self, commits: Vec<Commit>) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        self.settle_each(commits).await
    }

    async fn rescue(&self, request: RescueRequest) -> Result<Rescued, StoreError> {
        self.writer.housekeep("rescue", move |tx| rescue(tx, &request)).await
    }

    async fn revive(&self, request: ReviveRequest) -> Result<Vec<Revived>, StoreError> {
        self.writer.run("revive", move |tx| revive(tx, &request)).await
    }

    async fn cancel(&self, queue: String, keys: Vec<String>) -> Result<Vec<JobId>, StoreError> {
        self.writer
            .run("cancel", move |tx| {
                let closed = keys.iter().map(|key| cancel_one(tx, &queue, key));
                closed.filter_map(Result::transpose).collect()
            })
            .await
    }
}

/// Makes one job, or says which one is in its way.
pub(crate) fn enqueue_one(tx: &Tx<'_>, job: &NewJob) -> Result<Enqueued, Error> {
    if let Window::Check(_) = job.window
        && let Some((of, until)) = sent_before(tx, job)?
    {
        return Ok(match live_duplicate(tx, job)? {
            Some(duplicate) => duplicate,
            None => Enqueued::InWindow { of, until },
        });
    }
    if !insert(tx, job)? {
        return Ok(live_duplicate(tx, job)?.expect("what the unique index refused for is there"));
    }
    if let Window::Check(window) | Window::Pass(window) = job.window {
        remember(tx, job, tx.now.plus(window))?;
    }
    Ok(Enqueued::Created)
}

/// False if a live job has the key.
fn insert(tx: &Tx<'_>, job: &NewJob) -> Result<bool, Error> {
    let due_ms = tx.now.plus(job.delay).as_millis();
    let mut insert = tx.conn.prepare_cached(
        "INSERT INTO jobs (id, queue, kind, key, state, live, priority, run_at, due_at, max_attempts,
                           payload, attributes, trace, created_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, 0, 1, ?5, ?6, ?6, ?7, ?8, ?9, ?10, ?11, ?11)
         ON CONFLICT (key, queue) WHERE live = 1 DO NOTHING",
    )?;
    let inserted = insert.execute(params![
        job.id.as_bytes(),
        job.queue,
        job.kind,
        job.key,
        job.priority,
        due_ms,
        job.max_attempts,
        job.payload.as_str(),
        job.attributes.as_str(),
        job.trace,
        tx.now_ms(),
    ])?;
    Ok(inserted == 1)
}

/// The live job of the key, marked to run again if it is running and that is asked for.
fn live_duplicate(tx: &Tx<'_>, job: &NewJob) -> Result<Option<Enqueued>, Error> {
    let mut find = tx.conn.prepare_cached(
        "SELECT id, state, iif(state = 2, ends_at, NULL) FROM jobs WHERE queue = ?1 AND key = ?2 AND live = 1",
    )?;
    let found = find
        .query_row((&job.queue, &job.key), |found| {
            let until = found.get::<_, Option<i64>>(2)?.map(Timestamp::from_millis);
            Ok((row::job_id(found, 0)?, row::state(found, 1)?, until))
        })
        .optional()?;
    let Some((of, state, until)) = found else { return Ok(None) };
    if state == JobState::Running && job.on_running == OnRunning::RunAgain {
        let mut mark = tx
            .conn
            .prepare_cached("UPDATE jobs SET again = 1, payload = ?2, updated_at = ?3 WHERE id = ?1")?;
        mark.execute((of.as_bytes(), job.payload.as_str(), tx.now_ms()))?;
        return Ok(Some(Enqueued::Again { of }));
    }
    Ok(Some(Enqueued::Duplicate { of, state, until }))
}

fn sent_before(tx: &Tx<'_>, job: &NewJob) -> Result<Option<(JobId, Timestamp)>, Error> {
    let mut find = tx
        .conn
        .prepare_cached("SELECT job, until FROM sent_keys WHERE queue = ?1 AND key = ?2 AND until > ?3")?;
    find.query_row((&job.queue, &job.key, tx.now_ms()), |found| {
        Ok((row::job_id(found, 0)?, row::time(found, 1)?))
    })
    .optional()
}

fn remember(tx: &Tx<'_>, job: &NewJob, until: Timestamp) -> Result<(), Error> {
    let mut upsert = tx.conn.prepare_cached(
        "INSERT INTO sent_keys (queue, key, job, until) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (queue, key) DO UPDATE SET job = excluded.job, until = excluded.until",
    )?;
    upsert.execute((&job.queue, &job.key, job.id.as_bytes(), until.as_millis())).map(drop)
}

fn claim(tx: &Tx<'_>, request: &ClaimRequest) -> Result<ClaimReply, Error> {
    fault::point("claim.begin");
    let mut alive = tx.conn.prepare_cached("SELECT 1 FROM processes WHERE id = ?1")?;
    if !alive.exists([request.process.as_bytes()])? {
        return Ok(ClaimReply::NotAlive);
    }
    let mut paused =
        tx.conn.prepare_cached("SELECT paused_until FROM queues WHERE name = ?1 AND paused_until > ?2")?;
    let paused_until = paused.query_row((&request.queue, tx.now_ms()), |row| row::time(row, 0)).optional()?;
    if let Some(until) = paused_until {
        return Ok(ClaimReply::Jobs { jobs: Vec::new(), next_due_in: Some(until.since(tx.now)) });
    }
    let mut due = due_jobs(tx, request)?;
    // Not RETURNING: that makes SQLite keep a statement journal and a scratch table per row.
    let mut take = tx.conn.prepare_cached(
        "UPDATE jobs
            SET state = 2, due_at = NULL, process = ?2, ends_at = ?3, updated_at = ?4,
                fence = fence + 1, attempts = attempts + 1, again = 0
          WHERE id = ?1",
    )?;
    let locked_until = tx.now.plus(request.lock);
    for Claimed { claim, job } in &mut due.jobs {
        take.execute(params![
            job.id.as_bytes(),
            request.process.as_bytes(),
            locked_until.as_millis(),
            tx.now_ms()
        ])?;
        claim.fence += 1;
        job.attempts += 1;
        job.state = JobState::Running;
        job.locked_until = Some(locked_until);
        job.updated_at = tx.now;
    }
    Ok(ClaimReply::Jobs { jobs: due.jobs, next_due_in: due.next_due_at.map(|at| at.since(tx.now)) })
}

struct Due {
    jobs: Vec<Claimed>,
    /// When the next of those that are not due yet will be.
    next_due_at: Option<Timestamp>,
}

static SELECT_DUE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {JOB_COLUMNS}, fence
           FROM jobs
          WHERE queue = ?1 AND priority = ?2 AND due_at <= ?3
          ORDER BY due_at, id
          LIMIT ?4"
    )
});

/// Walks the priorities that the queue has, most urgent first, and takes what is due of each:
/// jobs that wait for later are never looked at, however many there are.
fn due_jobs(tx: &Tx<'_>, request: &ClaimRequest) -> Result<Due, Error> {
    let mut next_priority = tx.conn.prepare_cached(
        "SELECT min(priority) FROM jobs WHERE queue = ?1 AND priority > ?2 AND due_at IS NOT NULL",
    )?;
    let mut due = tx.conn.prepare_cached(&SELECT_DUE)?;
    let mut later = tx
        .conn
        .prepare_cached("SELECT min(due_at) FROM jobs WHERE queue = ?1 AND priority = ?2 AND due_at > ?3")?;
    let mut found = Due { jobs: Vec::new(), next_due_at: None };
    let mut priority = -1;
    while found.jobs.len() < request.limit {
        let next: Option<i64> = next_priority.query_row((&request.queue, priority), |row| row.get(0))?;
        let Some(next) = next else { break };
        priority = next;
        let missing = signed((request.limit - found.jobs.len()) as u64);
        for job in due.query_map((&request.queue, priority, tx.now_ms(), missing), row::claimed)? {
            found.jobs.push(job?);
        }
        let at: Option<i64> = later.query_row((&request.queue, priority, tx.now_ms()), |row| row.get(0))?;
        let at = at.map(Timestamp::from_millis);
        found.next_due_at = [found.next_due_at, at].into_iter().flatten().min();
    }
    Ok(found)
}

fn renew_one(tx: &Tx<'_>, claim: Claim, lock: Duration, fence_holds: bool) -> Result<Renewed, Error> {
    let until = tx.now.plus(lock);
    let mut renew = tx.conn.prepare_cached(
        "UPDATE jobs
            SET ends_at = ?3
          WHERE id = ?1 AND state = 2 AND (fence = ?2 AND ends_at > ?4 OR NOT ?5)",
    )?;
    let changed = renew.execute(params![
        claim.job.as_bytes(),
        signed(claim.fence),
        until.as_millis(),
        tx.now_ms(),
        fence_holds,
    ])?;
    Ok(if changed == 1 { Renewed::Until(until) } else { Renewed::Lost })
}

fn rescue(tx: &Tx<'_>, request: &RescueRequest) -> Result<Rescued, Error> {
    let mut lapsed = tx.conn.prepare_cached(&format!(
        "SELECT {JOB_COLUMNS}, fence
           FROM jobs
          WHERE state = 2 AND ends_at IS NOT NULL
            AND (ends_at <= ?1 OR NOT EXISTS (SELECT 1 FROM processes WHERE processes.id = jobs.process))
            AND (attempts < max_attempts OR queue IN (SELECT value FROM json_each(?2)))
          ORDER BY ends_at
          LIMIT ?3"
    ))?;
    let queues = Json::of(&request.queues);
    let jobs: Result<Vec<Claimed>, Error> =
        lapsed.query_map((tx.now_ms(), queues.as_str(), request.limit), row::claimed)?.collect();
    let mut rescued = Rescued::default();
    for lapsed in jobs? {
        if lapsed.job.attempts < lapsed.job.max_attempts {
            free(tx, &lapsed.job)?;
            rescued.freed.push((lapsed.job.id, lapsed.job.queue));
        } else {
            rescued.exhausted.push(take_over(tx, lapsed, request)?);
        }
    }
    Ok(rescued)
}

/// Puts a lapsed job back at its old place in the queue.
fn free(tx: &Tx<'_>, job: &Job) -> Result<(), Error> {
    let mut free = tx.conn.prepare_cached(
        "UPDATE jobs
            SET state = 0, due_at = run_at, process = NULL, ends_at = NULL, updated_at = ?2
          WHERE id = ?1",
    )?;
    free.execute((job.id.as_bytes(), tx.now_ms()))?;
    let lock_ended = job.locked_until.is_some_and(|until| until <= tx.now);
    let reason = if lock_ended { "lock_ended" } else { "process_dead" };
    let details = serde_json::json!({"queue": job.queue, "key": job.key, "attempts": job.attempts});
    let told =
        NewEvent::new(format!("job:{}", job.id), "job_rescued").reason(reason).details(Json::of(&details));
    event::insert(tx, &told)
}

/// Gives a lapsed job without attempts left to the rescuer, who will settle it as dead.
fn take_over(tx: &Tx<'_>, mut lapsed: Claimed, request: &RescueRequest) -> Result<Claimed, Error> {
    let mut take = tx
        .conn
        .prepare_cached("UPDATE jobs SET fence = fence + 1, process = ?2, ends_at = ?3 WHERE id = ?1")?;
    let until = tx.now.plus(limits::RESCUE_LOCK).as_millis();
    take.execute((lapsed.job.id.as_bytes(), request.process.as_bytes(), until))?;
    lapsed.claim.fence += 1;
    Ok(lapsed)
}

fn revive(tx: &Tx<'_>, request: &ReviveRequest) -> Result<Vec<Revived>, Error> {
    let found = match &request.ids {
        Some(ids) => dead_of_ids(tx, request, ids)?,
        None => dead_of_queue(tx, request)?,
    };
    let mut revived = Vec::with_capacity(found.len());
    for (place, (id, queue, key)) in (0_u32..).zip(found) {
        let wait = request
            .rate_per_second
            .map_or(Duration::ZERO, |rate| Duration::from_secs(1) * place / rate.max(1));
        revived.push(revive_one(tx, id, queue, &key, wait, request.dry_run)?);
    }
    Ok(revived)
}

/// A dead job's id, queue and key.
type Dead = (JobId, String, String);

fn dead(row: &Row<'_>) -> Result<Dead, Error> {
    Ok((row::job_id(row, 0)?, row.get(1)?, row.get(2)?))
}

/// The oldest dead jobs that fit.
fn dead_of_queue(tx: &Tx<'_>, request: &ReviveRequest) -> Result<Vec<Dead>, Error> {
    let mut find = tx.conn.prepare_cached(
        "SELECT id, queue, key
           FROM jobs
          WHERE state = 4 AND ends_at IS NOT NULL
            AND (?1 IS NULL OR queue = ?1) AND (?2 IS NULL OR instr(error, ?2) > 0)
          ORDER BY id
          LIMIT ?3",
    )?;
    find.query_map((&request.queue, &request.error, request.limit), dead)?.collect()
}

/// Those of these jobs that are dead and fit, oldest first.
fn dead_of_ids(tx: &Tx<'_>, request: &ReviveRequest, ids: &[JobId]) -> Result<Vec<Dead>, Error> {
    let mut find = tx.conn.prepare_cached(
        "SELECT id, queue, key
           FROM jobs
          WHERE id = ?1 AND state = 4 AND (?2 IS NULL OR queue = ?2) AND (?3 IS NULL OR instr(error, ?3) > 0)",
    )?;
    let wanted: BTreeSet<JobId> = ids.iter().copied().collect();
    let mut found = Vec::new();
    for id in wanted {
        found.extend(find.query_row((id.as_bytes(), &request.queue, &request.error), dead).optional()?);
        if found.len() >= request.limit as usize {
            break;
        }
    }
    Ok(found)
}

/// A newer live job of the key wins; this one alone is then closed.
fn revive_one(
    tx: &Tx<'_>,
    id: JobId,
    queue: String,
    key: &str,
    wait: Duration,
    dry_run: bool,
) -> Result<Revived, Error> {
    let mut live =
        tx.conn.prepare_cached("SELECT id FROM jobs WHERE queue = ?1 AND key = ?2 AND live = 1")?;
    let newer = live.query_row((&queue, key), |row| row::job_id(row, 0)).optional()?;
    if let Some(by) = newer {
        if !dry_run {
            close(tx, id, &format!("superseded by {by}"))?;
        }
        return Ok(Revived::Superseded { id, by });
    }
    if !dry_run {
        let mut wake = tx.conn.prepare_cached(
            "UPDATE jobs
                SET state = 0, live = 1, run_at = ?2, due_at = ?2, attempts = 0, again = 0, updated_at = ?3,
                    ends_at = NULL
              WHERE id = ?1",
        )?;
        wake.execute((id.as_bytes(), tx.now_ms().saturating_add(millis(wait)), tx.now_ms()))?;
        event::insert(tx, &NewEvent::new(format!("job:{id}"), "job_revived"))?;
    }
    Ok(Revived::Ready { id, queue })
}

pub(crate) fn cancel_one(tx: &Tx<'_>, queue: &str, key: &str) -> Result<Option<JobId>, Error> {
    let mut find = tx
        .conn
        .prepare_cached("SELECT id FROM jobs WHERE queue = ?1 AND key = ?2 AND live = 1 AND state <= 1")?;
    let found = find.query_row((queue, key), |row| row::job_id(row, 0)).optional()?;
    if let Some(id) = found {
        close(tx, id, "cancelled")?;
    }
    Ok(found)
}

fn close(tx: &Tx<'_>, id: JobId, why: &str) -> Result<(), Error> {
    let mut close = tx.conn.prepare_cached(
        "UPDATE jobs
            SET state = 5, live = NULL, due_at = NULL, ends_at = ?2, updated_at = ?2,
                error = ?3, payload = '{}'
          WHERE id = ?1",
    )?;
    close.execute((id.as_bytes(), tx.now_ms(), why))?;
    event::insert(tx, &NewEvent::new(format!("job:{id}"), "job_cancelled").reason(why))
}
