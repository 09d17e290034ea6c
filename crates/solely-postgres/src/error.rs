//! PostgreSQL's errors, named by what the caller can do next.

use deadpool_postgres::PoolError;
use solely_core::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// What a statement that failed tells its caller, its transaction being rolled back.
pub(crate) fn store_error(error: &Error) -> StoreError {
    let text = error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string);
    match error.code() {
        None => StoreError::Unavailable(text),
        Some(code) if is_passing(code) => StoreError::Unavailable(text),
        Some(_) => StoreError::Refused(text),
    }
}

fn is_passing(code: &SqlState) -> bool {
    // Connection trouble, resources, shutdown, timeouts: classes 08, 53, 57.
    ["08", "53", "57", "40"].iter().any(|class| code.code().starts_with(class))
}

/// Whether the transaction may simply be run again.
pub(crate) fn is_collision(error: &Error) -> bool {
    let collisions = [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE];
    error.code().is_some_and(|code| collisions.contains(code))
}

pub(crate) fn pool_error(error: &PoolError) -> StoreError {
    match error {
        PoolError::Backend(error) => store_error(error),
        PoolError::Timeout(_) => StoreError::Overloaded,
        other => StoreError::Unavailable(other.to_string()),
    }
}
