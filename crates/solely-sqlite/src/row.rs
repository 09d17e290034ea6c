//! Columns to values and back.

use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Error, Row};
use solely_core::clock::Timestamp;
use solely_core::job::{Claim, Claimed, Job, JobState};
use solely_core::{JobId, Json};

/// The columns that [`job`] reads, in its order.
pub(crate) const JOB_COLUMNS: &str = "id, queue, kind, key, state, priority, attempts, max_attempts, run_at, \
                                      iif(state = 2, ends_at, NULL), error, payload, attributes, trace, created_at, updated_at";

/// The same without the payload, which a listing does not show and which may be large.
pub(crate) const LISTED_COLUMNS: &str = "id, queue, kind, key, state, priority, attempts, max_attempts, run_at, \
                                         iif(state = 2, ends_at, NULL), error, '{}', attributes, trace, \
                                         created_at, updated_at";

/// A job from [`JOB_COLUMNS`].
pub(crate) fn job(row: &Row<'_>) -> Result<Job, Error> {
    Ok(Job {
        id: job_id(row, 0)?,
        queue: row.get(1)?,
        kind: row.get(2)?,
        key: row.get(3)?,
        state: state(row, 4)?,
        priority: row.get(5)?,
        attempts: row.get(6)?,
        max_attempts: row.get(7)?,
        run_at: time(row, 8)?,
        locked_until: row.get::<_, Option<i64>>(9)?.map(Timestamp::from_millis),
        error: row.get(10)?,
        payload: Json::from_stored(row.get(11)?),
        attributes: Json::from_stored(row.get(12)?),
        trace: row.get(13)?,
        created_at: time(row, 14)?,
        updated_at: time(row, 15)?,
    })
}

/// A delivery from [`JOB_COLUMNS`] and the fence behind them.
pub(crate) fn claimed(row: &Row<'_>) -> Result<Claimed, Error> {
    let job = job(row)?;
    Ok(Claimed { claim: Claim { job: job.id, fence: unsigned(row, 16)? }, job })
}

pub(crate) fn job_id(row: &Row<'_>, column: usize) -> Result<JobId, Error> {
    row.get(column).map(JobId::from_bytes)
}

pub(crate) fn state(row: &Row<'_>, column: usize) -> Result<JobState, Error> {
    let code: u8 = row.get(column)?;
    JobState::from_code(code).ok_or_else(|| {
        let wrong = FromSqlError::OutOfRange(i64::from(code));
        Error::FromSqlConversionFailure(column, Type::Integer, Box::new(wrong))
    })
}

pub(crate) fn time(row: &Row<'_>, column: usize) -> Result<Timestamp, Error> {
    row.get(column).map(Timestamp::from_millis)
}

/// SQLite's integers are signed; ours that are not are written from below 2^63.
pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> Result<u64, Error> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| Error::IntegralValueOutOfRange(column, value))
}

pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
