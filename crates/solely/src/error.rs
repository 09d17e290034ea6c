//! What can go wrong before there is a store.

use solely_core::StoreError;

/// Why a store was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL names no engine of this build. It is not repeated here: it may hold a password.
    #[error(
        "the store's URL is not one that this build knows: sqlite:FILE, sqlite::memory: (feature `sqlite`) or \
         postgres://user:password@host/database (feature `postgres`)"
    )]
    UnknownUrl,
    /// Something in the configuration is wrong; it says what.
    #[error("{0}")]
    Config(String),
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl OpenError {
    /// Whether the same call may succeed later without anyone changing anything.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Store(error) if error.retryable())
    }
}
