//! Columns to values and back.

use std::time::Duration;

use solely_core::clock::Timestamp;
use solely_core::job::{Claim, Claimed, Job, JobState};
use solely_core::{JobId, Json};
use tokio_postgres::Row;
use uuid::Uuid;

/// The columns that [`job`] reads, in its order.
pub(crate) const JOB_COLUMNS: &str = "id, queue, kind, key, state, priority, attempts, max_attempts, run_at, \
                                      CASE WHEN state = 2 THEN ends_at END, error, payload, attributes, \
                                      trace, created_at, updated_at";

/// The same without the payload, which a listing does not show and which may be large.
pub(crate) const LISTED_COLUMNS: &str = "id, queue, kind, key, state, priority, attempts, max_attempts, run_at, \
                                         CASE WHEN state = 2 THEN ends_at END, error, '{}', attributes, \
                                         trace, created_at, updated_at";

/// A job from [`JOB_COLUMNS`].
pub(crate) fn job(row: &Row) -> Job {
    Job {
        id: job_id(row, 0),
        queue: row.get(1),
        kind: row.get(2),
        key: row.get(3),
        state: state(row, 4),
        priority: u8::try_from(row.get::<_, i16>(5)).unwrap_or(0),
        attempts: u32::try_from(row.get::<_, i32>(6)).unwrap_or(0),
        max_attempts: u32::try_from(row.get::<_, i32>(7)).unwrap_or(0),
        run_at: time(row, 8),
        locked_until: row.get::<_, Option<i64>>(9).map(Timestamp::from_millis),
        error: row.get(10),
        payload: Json::from_stored(row.get(11)),
        attributes: Json::from_stored(row.get(12)),
        trace: row.get(13),
        created_at: time(row, 14),
        updated_at: time(row, 15),
    }
}

/// A delivery from [`JOB_COLUMNS`] and the fence behind them.
pub(crate) fn claimed(row: &Row) -> Claimed {
    let job = job(row);
    Claimed { claim: Claim { job: job.id, fence: unsigned(row, 16) }, job }
}

pub(crate) fn uuid(bytes: &[u8; 16]) -> Uuid {
    Uuid::from_bytes(*bytes)
}

pub(crate) fn job_id(row: &Row, column: usize) -> JobId {
    JobId::from_bytes(row.get::<_, Uuid>(column).into_bytes())
}

/// A CHECK keeps the column within the codes.
pub(crate) fn state(row: &Row, column: usize) -> JobState {
    let code = u8::try_from(row.get::<_, i16>(column)).unwrap_or(u8::MAX);
    JobState::from_code(code).expect("the column's CHECK allows known states only")
}

pub(crate) fn time(row: &Row, column: usize) -> Timestamp {
    Timestamp::from_millis(row.get(column))
}

pub(crate) fn unsigned(row: &Row, column: usize) -> u64 {
    u64::try_from(row.get::<_, i64>(column)).unwrap_or(0)
}

pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A place in an array of the statement, which counts from one.
pub(crate) fn place(row: &Row, column: usize) -> usize {
    usize::try_from(row.get::<_, i32>(column) - 1).expect("the statement counts from one")
}

/// A span in milliseconds that can be added to any time.
pub(crate) fn millis(span: Duration) -> i64 {
    solely_core::clock::millis(span).min(SPAN_MAX_MS)
}

/// Some six thousand years.
const SPAN_MAX_MS: i64 = 200_000_000_000_000;
