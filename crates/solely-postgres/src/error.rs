//! PostgreSQL's errors, named by what the caller can do next.

use solely_core::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// What a statement that failed tells its caller, its transaction being rolled back.
pub(crate) fn store_error(error: &Error) -> StoreError {
    let text = error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string);
    match error.code() {
        None => StoreError::Unavailable(text),
        Some(_) if ends_connection(error) => StoreError::Unavailable(text),
        Some(&SqlState::LOCK_NOT_AVAILABLE) => StoreError::Overloaded,
        Some(code) if is_passing(code) => StoreError::Unavailable(text),
        Some(_) => StoreError::Refused(text),
    }
}

fn is_passing(code: &SqlState) -> bool {
    // Connection trouble, transactions that never began, collisions, resources, shutdown, timeouts.
    ["08", "25", "40", "53", "57"].iter().any(|class| code.code().starts_with(class))
}

/// Whether the connection is gone, or is of no use: the server ends it, its transaction never
/// began, or it leads to a standby.
pub(crate) fn is_lost(error: &Error) -> bool {
    let in_no_transaction = |code: &SqlState| code.code().starts_with("25");
    error.code().is_none_or(in_no_transaction) || is_shutdown(error) || ends_connection(error)
}

/// Whether the server ends the connection with it, whatever it says: what it was doing may be done. A COMMIT is, if the log
/// was written before what failed.
fn ends_connection(error: &Error) -> bool {
    let severity = error.as_db_error().and_then(DbError::parsed_severity);
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
}

/// Whether the server ends this connection, or takes none yet.
pub(crate) fn is_shutdown(error: &Error) -> bool {
    let ends = [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW];
    error.code().is_some_and(|code| ends.contains(code))
}

/// Rows that another may have written since they were looked for: of leases, only by a renewal that was under way.
const COME_FIRST: [&str; 6] = [
    "leases_pkey",
    "merchants_pkey",
    "box_types_pkey",
    "inventory_pkey",
    "reservations_open",
    "idempotency_keys_pkey",
];

/// Whether the transaction may simply be run again.
pub(crate) fn is_collision(error: &Error) -> bool {
    let collisions = [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE];
    let came_first = || {
        let constraint = error.as_db_error().and_then(DbError::constraint);
        error.code() == Some(&SqlState::UNIQUE_VIOLATION)
            && constraint.is_some_and(|constraint| COME_FIRST.contains(&constraint))
    };
    error.code().is_some_and(|code| collisions.contains(code)) || came_first()
}
