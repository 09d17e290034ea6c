//! Jobs: enqueue, claim, renew, rescue, revive, cancel. Settlement is in [`crate::commit`].

use std::time::Duration;

use async_trait::async_trait;
use solely_core::clock::{Timestamp, millis};
use solely_core::commit::{Commit, Settled};
use solely_core::event::NewEvent;
use solely_core::job::{
    Claim, ClaimReply, ClaimRequest, Claimed, Enqueued, Job, JobState, JobStore, NewJob, OnRunning, Renewed,
    RescueRequest, Rescued, ReviveRequest, Revived, Window,
};
use solely_core::{JobId, Json, StoreError, fault, limits};
use tokio_postgres::Error;
use uuid::Uuid;

use crate::row::{self, JOB_COLUMNS, signed};
use crate::transaction::transact;
use crate::{PostgresStore, Tx, event};

#[async_trait]
impl JobStore for PostgresStore {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        transact!(self, |tx| async {
            let now = tx.now().await?;
            enqueue_all(tx, &jobs, now).await
        }
        .await)
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimReply, StoreError> {
        transact!(self, |tx| claim(tx, &request).await)
    }

    async fn renew(&self, claims: Vec<Claim>, lock: Duration) -> Result<Vec<Renewed>, StoreError> {
        transact!(self, |tx| async {
            lock_jobs(tx, &claims).await?;
            let now = tx.now().await?;
            let mut renewed = Vec::with_capacity(claims.len());
            for claim in &claims {
                renewed.push(renew_one(tx, *claim, lock, now, self.guards.fence).await?);
            }
            Ok(renewed)
        }
        .await)
    }

    async fn settle(&self, commits: Vec<Commit>) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        self.settle_each(commits).await
    }

    async fn rescue(&self, request: RescueRequest) -> Result<Rescued, StoreError> {
        transact!(self, |tx| rescue(tx, &request).await)
    }

    async fn revive(&self, request: ReviveRequest) -> Result<Vec<Revived>, StoreError> {
        transact!(self, |tx| revive(tx, &request).await)
    }

    async fn cancel(&self, queue: String, keys: Vec<String>) -> Result<Vec<JobId>, StoreError> {
        transact!(self, |tx| async {
            let now = tx.now().await?;
            let mut closed = Vec::new();
            for key in &keys {
                closed.extend(cancel_one(tx, &queue, key, now).await?);
            }
            Ok(closed)
        }
        .await)
    }
}

/// Makes jobs in the order of their keys, so that two batches cannot wait for each other, and
/// answers in the order given.
pub(crate) async fn enqueue_all(
    tx: &Tx<'_>,
    jobs: &[NewJob],
    now: Timestamp,
) -> Result<Vec<Enqueued>, Error> {
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by(|&a, &b| (&jobs[a].queue, &jobs[a].key, a).cmp(&(&jobs[b].queue, &jobs[b].key, b)));
    let mut outcomes = vec![Enqueued::Created; jobs.len()];
    for place in order {
        outcomes[place] = enqueue_one(tx, &jobs[place], now).await?;
    }
    Ok(outcomes)
}

/// Makes one job, or says which one is in its way.
///
/// The insert waits for a racing one to commit or not; if the job that was in the way has ended
/// by the time it is looked for, the insert is tried again: never no job at all.
async fn enqueue_one(tx: &Tx<'_>, job: &NewJob, now: Timestamp) -> Result<Enqueued, Error> {
    if let Window::Check(_) = job.window
        && let Some((of, until)) = sent_before(tx, job, now).await?
    {
        return Ok(match live_duplicate(tx, job, now).await? {
            Some(duplicate) => duplicate,
            None => Enqueued::InWindow { of, until },
        });
    }
    while !insert(tx, job, now).await? {
        if let Some(duplicate) = live_duplicate(tx, job, now).await? {
            return Ok(duplicate);
        }
    }
    if let Window::Check(window) | Window::Pass(window) = job.window {
        remember(tx, job, now.plus(window)).await?;
    }
    Ok(Enqueued::Created)
}

/// False if a live job has the key.
async fn insert(tx: &Tx<'_>, job: &NewJob, now: Timestamp) -> Result<bool, Error> {
    let inserted = tx
        .execute(
            "INSERT INTO jobs (id, queue, kind, key, state, priority, run_at, due_at, max_attempts,
                               payload, attributes, trace, created_at, updated_at)
             VALUES ($1, $2, $3, $4, 0, $5, $6, $6, $7, $8, $9, $10, $11, $11)
             ON CONFLICT (key, queue) WHERE state <= 2 DO NOTHING",
            &[
                &row::uuid(job.id.as_bytes()),
                &job.queue,
                &job.kind,
                &job.key,
                &i16::from(job.priority),
                &now.plus(job.delay).as_millis(),
                &i32::try_from(job.max_attempts).unwrap_or(i32::MAX),
                &job.payload.as_str(),
                &job.attributes.as_str(),
                &job.trace,
                &now.as_millis(),
            ],
        )
        .await?;
    Ok(inserted == 1)
}

/// The live job of the key, marked to run again if it is running and that is asked for.
async fn live_duplicate(tx: &Tx<'_>, job: &NewJob, now: Timestamp) -> Result<Option<Enqueued>, Error> {
    let found = tx
        .optional(
            "SELECT id, state, CASE WHEN state = 2 THEN ends_at END
               FROM jobs
              WHERE queue = $1 AND key = $2 AND state <= 2
                FOR UPDATE",
            &[&job.queue, &job.key],
        )
        .await?;
    let Some(found) = found else { return Ok(None) };
    let (of, state) = (row::job_id(&found, 0), row::state(&found, 1));
    if state == JobState::Running && job.on_running == OnRunning::RunAgain {
        tx.execute(
            "UPDATE jobs SET again = true, payload = $2, updated_at = $3 WHERE id = $1",
            &[&row::uuid(of.as_bytes()), &job.payload.as_str(), &now.as_millis()],
        )
        .await?;
        return Ok(Some(Enqueued::Again { of }));
    }
    let until = found.get::<_, Option<i64>>(2).map(Timestamp::from_millis);
    Ok(Some(Enqueued::Duplicate { of, state, until }))
}

async fn sent_before(tx: &Tx<'_>, job: &NewJob, now: Timestamp) -> Result<Option<(JobId, Timestamp)>, Error> {
    let found = tx
        .optional(
            "SELECT job, until FROM sent_keys WHERE queue = $1 AND key = $2 AND until > $3",
            &[&job.queue, &job.key, &now.as_millis()],
        )
        .await?;
    Ok(found.map(|found| (row::job_id(&found, 0), row::time(&found, 1))))
}

async fn remember(tx: &Tx<'_>, job: &NewJob, until: Timestamp) -> Result<(), Error> {
    tx.execute(
        "INSERT INTO sent_keys (queue, key, job, until) VALUES ($1, $2, $3, $4)
         ON CONFLICT (queue, key) DO UPDATE SET job = excluded.job, until = excluded.until",
        &[&job.queue, &job.key, &row::uuid(job.id.as_bytes()), &until.as_millis()],
    )
    .await
    .map(drop)
}

async fn claim(tx: &Tx<'_>, request: &ClaimRequest) -> Result<ClaimReply, Error> {
    fault::point("claim.begin");
    let process = row::uuid(request.process.as_bytes());
    if tx.optional("SELECT 1 FROM processes WHERE id = $1", &[&process]).await?.is_none() {
        return Ok(ClaimReply::NotAlive);
    }
    let now = tx.now().await?;
    let paused = tx
        .optional(
            "SELECT paused_until FROM queues WHERE name = $1 AND paused_until > $2",
            &[&request.queue, &now.as_millis()],
        )
        .await?;
    if let Some(paused) = paused {
        let left = row::time(&paused, 0).since(now);
        return Ok(ClaimReply::Jobs { jobs: Vec::new(), next_due_in: Some(left) });
    }
    let limit = i32::try_from(request.limit).unwrap_or(i32::MAX);
    // A join, because `id = ANY (…)` may walk the whole key on a table that was never analysed.
    let sql = format!(
        "UPDATE jobs
            SET state = 2, due_at = NULL, process = $4, ends_at = $5, updated_at = $3,
                fence = fence + 1, attempts = attempts + 1, again = false
           FROM unnest(ARRAY(SELECT solely_due($1, $2, $3))) AS due (due_id)
          WHERE id = due_id
         RETURNING {JOB_COLUMNS}, fence"
    );
    let ends_at = now.plus(request.lock).as_millis();
    let rows = tx.query(&sql, &[&request.queue, &limit, &now.as_millis(), &process, &ends_at]).await?;
    let mut jobs: Vec<Claimed> = rows.iter().map(row::claimed).collect();
    jobs.sort_by_key(|claimed| (claimed.job.priority, claimed.job.run_at, claimed.job.id));
    let next_due_in =
        if jobs.len() < request.limit { next_due(tx, &request.queue, now).await? } else { None };
    Ok(ClaimReply::Jobs { jobs, next_due_in })
}

async fn next_due(tx: &Tx<'_>, queue: &str, now: Timestamp) -> Result<Option<Duration>, Error> {
    let row = tx
        .one(
            "SELECT min(later.due_at)
               FROM generate_series(0, 9) AS urgency
              CROSS JOIN LATERAL (SELECT due_at FROM jobs
                                   WHERE queue = $1 AND priority = urgency AND due_at > $2
                                   ORDER BY due_at LIMIT 1) AS later",
            &[&queue, &now.as_millis()],
        )
        .await?;
    Ok(row.get::<_, Option<i64>>(0).map(|at| Timestamp::from_millis(at).since(now)))
}

/// Locks the rows of these claims in the order of their ids.
pub(crate) async fn lock_jobs(tx: &Tx<'_>, claims: &[Claim]) -> Result<(), Error> {
    let mut ids: Vec<Uuid> = claims.iter().map(|claim| row::uuid(claim.job.as_bytes())).collect();
    ids.sort_unstable();
    tx.query(
        "SELECT 1
           FROM unnest($1::uuid[]) AS wanted (wanted_id)
          CROSS JOIN LATERAL (SELECT 1 FROM jobs WHERE id = wanted_id FOR UPDATE) AS locked",
        &[&ids],
    )
    .await
    .map(drop)
}

async fn renew_one(
    tx: &Tx<'_>,
    claim: Claim,
    lock: Duration,
    now: Timestamp,
    fence_holds: bool,
) -> Result<Renewed, Error> {
    let until = now.plus(lock);
    let changed = tx
        .execute(
            "UPDATE jobs
                SET ends_at = $3
              WHERE id = $1 AND state = 2 AND (fence = $2 AND ends_at > $4 OR NOT $5)",
            &[
                &row::uuid(claim.job.as_bytes()),
                &signed(claim.fence),
                &until.as_millis(),
                &now.as_millis(),
                &fence_holds,
            ],
        )
        .await?;
    Ok(if changed == 1 { Renewed::Until(until) } else { Renewed::Lost })
}

async fn rescue(tx: &Tx<'_>, request: &RescueRequest) -> Result<Rescued, Error> {
    let now = tx.now().await?;
    let sql = format!(
        "SELECT {JOB_COLUMNS}, fence
           FROM jobs
          WHERE state = 2 AND ends_at IS NOT NULL
            AND (ends_at <= $1 OR NOT EXISTS (SELECT 1 FROM processes WHERE processes.id = jobs.process))
            AND (attempts < max_attempts OR queue = ANY($2))
          ORDER BY ends_at
          LIMIT $3
            FOR UPDATE SKIP LOCKED"
    );
    let limit = i64::from(request.limit);
    let rows = tx.query(&sql, &[&now.as_millis(), &request.queues, &limit]).await?;
    let mut rescued = Rescued::default();
    for lapsed in rows.iter().map(row::claimed) {
        if lapsed.job.attempts < lapsed.job.max_attempts {
            free(tx, &lapsed.job, now).await?;
            rescued.freed.push((lapsed.job.id, lapsed.job.queue));
        } else {
            rescued.exhausted.push(take_over(tx, lapsed, request, now).await?);
        }
    }
    Ok(rescued)
}

/// Puts a lapsed job back at its old place in the queue.
async fn free(tx: &Tx<'_>, job: &Job, now: Timestamp) -> Result<(), Error> {
    tx.execute(
        "UPDATE jobs
            SET state = 0, due_at = run_at, process = NULL, ends_at = NULL, updated_at = $2
          WHERE id = $1",
        &[&row::uuid(job.id.as_bytes()), &now.as_millis()],
    )
    .await?;
    let lock_ended = job.locked_until.is_some_and(|until| until <= now);
    let reason = if lock_ended { "lock_ended" } else { "process_dead" };
    let details = serde_json::json!({"queue": job.queue, "key": job.key, "attempts": job.attempts});
    let told =
        NewEvent::new(format!("job:{}", job.id), "job_rescued").reason(reason).details(Json::of(&details));
    event::insert(tx, &[told], now).await
}

/// Gives a lapsed job without attempts left to the rescuer, who will settle it as dead.
async fn take_over(
    tx: &Tx<'_>,
    mut lapsed: Claimed,
    request: &RescueRequest,
    now: Timestamp,
) -> Result<Claimed, Error> {
    tx.execute(
        "UPDATE jobs SET fence = fence + 1, process = $2, ends_at = $3 WHERE id = $1",
        &[
            &row::uuid(lapsed.job.id.as_bytes()),
            &row::uuid(request.process.as_bytes()),
            &now.plus(limits::RESCUE_LOCK).as_millis(),
        ],
    )
    .await?;
    lapsed.claim.fence += 1;
    Ok(lapsed)
}

async fn revive(tx: &mut Tx<'_>, request: &ReviveRequest) -> Result<Vec<Revived>, Error> {
    let ids: Option<Vec<Uuid>> =
        request.ids.as_ref().map(|ids| ids.iter().map(|id| row::uuid(id.as_bytes())).collect());
    let rows = tx
        .query(
            "SELECT id, queue, key
               FROM jobs
              WHERE state = 4 AND ends_at IS NOT NULL
                AND ($1::text IS NULL OR queue = $1)
                AND ($2::text IS NULL OR strpos(error, $2) > 0)
                AND ($3::uuid[] IS NULL OR id = ANY($3))
              ORDER BY id
              LIMIT $4
                FOR UPDATE",
            &[&request.queue, &request.error, &ids, &i64::from(request.limit)],
        )
        .await?;
    let now = tx.now().await?;
    let mut revived = Vec::with_capacity(rows.len());
    for (place, found) in (0_u32..).zip(&rows) {
        let spread = |rate: u32| Duration::from_secs(1) * place / rate.max(1);
        let dead = Dead {
            id: row::job_id(found, 0),
            queue: found.get(1),
            key: found.get(2),
            due_ms: now.as_millis() + millis(request.rate_per_second.map_or(Duration::ZERO, spread)),
        };
        revived.push(revive_one(tx, dead, now, request.dry_run).await?);
    }
    Ok(revived)
}

struct Dead {
    id: JobId,
    queue: String,
    key: String,
    due_ms: i64,
}

/// A newer live job of the key wins; this one alone is then closed. One that is made at the
/// very moment is met by the unique index, inside a savepoint.
async fn revive_one(tx: &mut Tx<'_>, dead: Dead, now: Timestamp, dry_run: bool) -> Result<Revived, Error> {
    loop {
        let newer = tx
            .optional(
                "SELECT id FROM jobs WHERE queue = $1 AND key = $2 AND state <= 2",
                &[&dead.queue, &dead.key],
            )
            .await?;
        if let Some(newer) = newer {
            let by = row::job_id(&newer, 0);
            if !dry_run {
                close(tx, dead.id, &format!("superseded by {by}"), now).await?;
            }
            return Ok(Revived::Superseded { id: dead.id, by });
        }
        if dry_run || wake(tx, &dead, now).await? {
            return Ok(Revived::Ready { id: dead.id, queue: dead.queue });
        }
    }
}

/// False if a live job took the key meanwhile.
async fn wake(tx: &mut Tx<'_>, dead: &Dead, now: Timestamp) -> Result<bool, Error> {
    let part = tx.savepoint().await?;
    let woken = part
        .execute(
            "UPDATE jobs
                SET state = 0, run_at = $2, due_at = $2, ends_at = NULL, attempts = 0, again = false,
                    updated_at = $3
              WHERE id = $1",
            &[&row::uuid(dead.id.as_bytes()), &dead.due_ms, &now.as_millis()],
        )
        .await;
    match woken {
        Ok(_) => {
            let told = NewEvent::new(format!("job:{}", dead.id), "job_revived");
            event::insert(&part, &[told], now).await?;
            part.keep().await?;
            Ok(true)
        }
        Err(error) if error.code() == Some(&tokio_postgres::error::SqlState::UNIQUE_VIOLATION) => {
            part.undo().await?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

async fn cancel_one(tx: &Tx<'_>, queue: &str, key: &str, now: Timestamp) -> Result<Option<JobId>, Error> {
    let found = tx
        .optional(
            "SELECT id FROM jobs WHERE queue = $1 AND key = $2 AND state <= 1 FOR UPDATE",
            &[&queue, &key],
        )
        .await?;
    let Some(id) = found.map(|found| row::job_id(&found, 0)) else { return Ok(None) };
    close(tx, id, "cancelled", now).await?;
    Ok(Some(id))
}

async fn close(tx: &Tx<'_>, id: JobId, why: &str, now: Timestamp) -> Result<(), Error> {
    tx.execute(
        "UPDATE jobs
            SET state = 5, due_at = NULL, ends_at = $2, updated_at = $2, error = $3, payload = '{}'
          WHERE id = $1",
        &[&row::uuid(id.as_bytes()), &now.as_millis(), &why],
    )
    .await?;
    event::insert(tx, &[NewEvent::new(format!("job:{id}"), "job_cancelled").reason(why)], now).await
}
