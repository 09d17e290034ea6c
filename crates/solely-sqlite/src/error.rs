//! SQLite's errors, named by what the caller can do next.

use rusqlite::{Error, ErrorCode};
use solely_core::StoreError;

/// What a command that failed tells its caller. In every case the command's own writes were
/// rolled back.
pub(crate) fn store_error(error: &Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure
            | ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::CannotOpen
            | ErrorCode::ReadOnly
            | ErrorCode::OutOfMemory
            | ErrorCode::OperationInterrupted,
        ) => StoreError::Unavailable(error.to_string()),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Unusable(error.to_string()),
        _ => StoreError::Refused(error.to_string()),
    }
}
