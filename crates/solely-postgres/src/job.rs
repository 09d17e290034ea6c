//! Jobs: enqueue, claim, renew, rescue, revive, cancel. Settlement is in [`crate::commit`].

use std::time::Duration;

use async_trait::async_trait;
use solely_core::clock::Timestamp;
use solely_core::commit::{Commit, Settled};
use solely_core::event::NewEvent;
use solely_core::fault::Guard;
use solely_core::job::{
    Claim, ClaimReply, ClaimRequest, Claimed, Enqueued, Job, JobStore, NewJob, OnRunning, Renewed,
    RescueRequest, Rescued, ReviveRequest, Revived, Window,
};
use solely_core::{JobId, Json, StoreError, fault, limits};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};
use uuid::Uuid;

use crate::batch::Together;
use crate::connection::Connections;
use crate::row::{self, JOB_COLUMNS, millis, signed};
use crate::transaction::{Values, Write, transact};
use crate::{PostgresStore, Tx, event};

#[async_trait]
impl JobStore for PostgresStore {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        self.enqueues.submit(jobs).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimReply, StoreError> {
        transact!(self.work, |tx| claim(tx, &request).await)
    }

    async fn renew(&self, claims: Vec<Claim>, lock: Duration) -> Result<Vec<Renewed>, StoreError> {
        transact!(self.work, |tx| renew(tx, &claims, lock, self.guards.hold(Guard::Fence)).await)
    }

    async fn settle(&self, commits: Vec<Commit>) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        self.settle_each(commits).await
    }

    async fn rescue(&self, request: RescueRequest) -> Result<Rescued, StoreError> {
        transact!(self.work, |tx| rescue(tx, &request).await)
    }

    async fn revive(&self, request: ReviveRequest) -> Result<Vec<Revived>, StoreError> {
        transact!(self.work, |tx| revive(tx, &request).await)
    }

    async fn cancel(&self, queue: String, keys: Vec<String>) -> Result<Vec<JobId>, StoreError> {
        transact!(self.work, |tx| async {
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

/// The enqueues of many callers, as one transaction.
pub(crate) struct Enqueues(pub(crate) Connections);

#[async_trait]
impl Together for Enqueues {
    type Request = Vec<NewJob>;
    type Answer = Vec<Enqueued>;

    fn weight(jobs: &Vec<NewJob>) -> usize {
        jobs.len()
    }

    async fn run(&self, calls: &[Vec<NewJob>]) -> Result<Vec<Vec<Enqueued>>, StoreError> {
        let jobs: Vec<&NewJob> = calls.iter().flatten().collect();
        let outcomes: Result<Vec<Enqueued>, StoreError> =
            transact!(self.0, |tx| enqueue_all(tx, &jobs, None).await);
        let mut outcomes = outcomes?.into_iter();
        Ok(calls.iter().map(|call| outcomes.by_ref().take(call.len()).collect()).collect())
    }
}

/// Makes jobs, and answers in the order given. The time is the store's own if none is given.
pub(crate) async fn enqueue_all(
    tx: &Tx<'_>,
    jobs: &[&NewJob],
    now: Option<Timestamp>,
) -> Result<Vec<Enqueued>, Error> {
    let mut outcomes = vec![Enqueued::Created; jobs.len()];
    let Some((insertion, order)) = insertion(jobs, now, tx.offset_ms()) else { return Ok(outcomes) };
    for found in &tx.query(&insertion.sql, &insertion.values()).await? {
        outcomes[order[row::place(found, 0)]] = not_made(found);
    }
    Ok(outcomes)
}

/// The statement that makes jobs, and the order that it makes them in; none if there are none.
pub(crate) fn insertion<'a>(
    jobs: &[&'a NewJob],
    now: Option<Timestamp>,
    offset_ms: i64,
) -> Option<(Write<'a>, Vec<usize>)> {
    if jobs.is_empty() {
        return None;
    }
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by(|&a, &b| (&jobs[a].queue, &jobs[a].key, a).cmp(&(&jobs[b].queue, &jobs[b].key, b)));
    let column = |of: fn(&NewJob) -> &str| order.iter().map(|&n| of(jobs[n])).collect::<Vec<&str>>();
    let number = |of: fn(&NewJob) -> i64| order.iter().map(|&n| of(jobs[n])).collect::<Vec<i64>>();
    let flag = |of: fn(&NewJob) -> bool| order.iter().map(|&n| of(jobs[n])).collect::<Vec<bool>>();
    let window = |job: &NewJob| match job.window {
        Window::Check(window) | Window::Pass(window) => Some(millis(window)),
        Window::Off => None,
    };
    let windows: Vec<Option<i64>> = order.iter().map(|&n| window(jobs[n])).collect();
    let windows = windows.iter().any(Option::is_some).then_some(windows);
    let most = |job: &NewJob| i32::try_from(job.max_attempts).unwrap_or(i32::MAX);
    let values: Vec<Box<dyn ToSql + Sync + Send + 'a>> = vec![
        Box::new(order.iter().map(|&n| row::uuid(jobs[n].id.as_bytes())).collect::<Vec<Uuid>>()),
        Box::new(column(|job| &job.queue)),
        Box::new(column(|job| &job.kind)),
        Box::new(column(|job| &job.key)),
        Box::new(order.iter().map(|&n| i16::from(jobs[n].priority)).collect::<Vec<i16>>()),
        Box::new(number(|job| millis(job.delay))),
        Box::new(order.iter().map(|&n| most(jobs[n])).collect::<Vec<i32>>()),
        Box::new(column(|job| job.payload.as_str())),
        Box::new(column(|job| job.attributes.as_str())),
        Box::new(order.iter().map(|&n| jobs[n].trace.as_deref()).collect::<Vec<Option<&str>>>()),
        Box::new(windows),
        Box::new(flag(|job| matches!(job.window, Window::Check(_)))),
        Box::new(flag(|job| job.on_running == OnRunning::RunAgain)),
        Box::new(now.map(Timestamp::as_millis)),
        Box::new(offset_ms),
    ];
    let sql = "SELECT * FROM solely_enqueue($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
                                          coalesce($14::bigint, solely_now($15)))";
    Some((Write { sql: sql.to_owned(), values }, order))
}

/// Why a job was not made, from a row of `solely_enqueue`.
fn not_made(found: &Row) -> Enqueued {
    let (of, until) = (row::job_id(found, 2), found.get::<_, Option<i64>>(4).map(Timestamp::from_millis));
    match found.get::<_, i16>(1) {
        1 => Enqueued::Again { of },
        2 => Enqueued::Duplicate { of, state: row::state(found, 3), until },
        _ => Enqueued::InWindow { of, until: until.expect("a window has an end") },
    }
}

/// Both statements are sent at once.
async fn claim(tx: &Tx<'_>, request: &ClaimRequest) -> Result<ClaimReply, Error> {
    fault::point("claim.begin");
    let process = row::uuid(request.process.as_bytes());
    let (limit, lock_ms) = (i32::try_from(request.limit).unwrap_or(i32::MAX), millis(request.lock));
    let sql = format!("SELECT {JOB_COLUMNS}, fence FROM solely_claim($1, $2, $3, $4, $5)");
    let values: Values<'_> = &[&process, &request.queue, &limit, &lock_ms, &tx.offset_ms()];
    let waits: Values<'_> = &[&process, &request.queue, &tx.offset_ms()];
    let next = "SELECT alive, wait_ms FROM solely_next_due($1, $2, $3)";
    let (rows, next) = tx.query_then_one(&sql, values, next, waits).await?;
    if !next.get::<_, bool>(0) {
        return Ok(ClaimReply::NotAlive);
    }
    let mut jobs: Vec<Claimed> = rows.iter().map(row::claimed).collect();
    jobs.sort_by_key(|claimed| (claimed.job.priority, claimed.job.run_at, claimed.job.id));
    let wait = next.get::<_, Option<i64>>(1).and_then(|wait_ms| u64::try_from(wait_ms).ok());
    Ok(ClaimReply::Jobs { jobs, next_due_in: wait.map(Duration::from_millis) })
}

/// Claims in the order of their jobs' ids, in which rows are locked, as columns.
pub(crate) fn in_order(claims: &[Claim]) -> (Vec<usize>, Vec<Uuid>, Vec<i64>) {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    order.sort_by_key(|&n| claims[n].job);
    let ids = order.iter().map(|&n| row::uuid(claims[n].job.as_bytes())).collect();
    let fences = order.iter().map(|&n| signed(claims[n].fence)).collect();
    (order, ids, fences)
}

async fn renew(
    tx: &Tx<'_>,
    claims: &[Claim],
    lock: Duration,
    fence_holds: bool,
) -> Result<Vec<Renewed>, Error> {
    let (order, ids, fences) = in_order(claims);
    let rows = tx
        .query(
            "SELECT * FROM solely_renew($1, $2, $3, $4, $5)",
            &[&ids, &fences, &millis(lock), &tx.offset_ms(), &fence_holds],
        )
        .await?;
    let mut renewed = vec![Renewed::Lost; claims.len()];
    for found in &rows {
        renewed[order[row::place(found, 0)]] = Renewed::Until(row::time(found, 1));
    }
    Ok(renewed)
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

async fn revive(tx: &Tx<'_>, request: &ReviveRequest) -> Result<Vec<Revived>, Error> {
    let ids: Option<Vec<Uuid>> =
        request.ids.as_ref().map(|ids| ids.iter().map(|id| row::uuid(id.as_bytes())).collect());
    // By their ids if they are named, else all that are dead.
    let which = if ids.is_some() { "id = ANY ($3)" } else { "ends_at IS NOT NULL AND $3::uuid[] IS NULL" };
    let sql = format!(
        "SELECT id, queue, key
           FROM jobs
          WHERE state = 4 AND {which}
            AND ($1::text IS NULL OR queue = $1)
            AND ($2::text IS NULL OR strpos(error, $2) > 0)
          ORDER BY id
          LIMIT $4
            FOR UPDATE"
    );
    let rows = tx.query(&sql, &[&request.queue, &request.error, &ids, &i64::from(request.limit)]).await?;
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
async fn revive_one(tx: &Tx<'_>, dead: Dead, now: Timestamp, dry_run: bool) -> Result<Revived, Error> {
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
async fn wake(tx: &Tx<'_>, dead: &Dead, now: Timestamp) -> Result<bool, Error> {
    tx.batch("SAVEPOINT wake").await?;
    let woken = tx
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
            tx.batch("RELEASE wake").await?;
            let told = NewEvent::new(format!("job:{}", dead.id), "job_revived");
            event::insert(tx, &[told], now).await?;
            Ok(true)
        }
        Err(error) if error.code() == Some(&tokio_postgres::error::SqlState::UNIQUE_VIOLATION) => {
            tx.batch("ROLLBACK TO wake").await?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

pub(crate) async fn cancel_one(
    tx: &Tx<'_>,
    queue: &str,
    key: &str,
    now: Timestamp,
) -> Result<Option<JobId>, Error> {
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
