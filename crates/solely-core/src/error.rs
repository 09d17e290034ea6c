//! What can go wrong with a store, named by what the caller can do next.

/// Every store method's error.
///
/// Refusals that belong to the domain (a lease that is held, a claim that is stale) are
/// outcomes, not errors: see the outcome enums beside each trait.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StoreError {
    /// The store cannot be reached or cannot write. **Nothing was changed**; try later.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// More is waiting than may wait. **Nothing was changed**; try later.
    #[error("the store has more work waiting than it accepts")]
    Overloaded,
    /// The connection was lost while committing, and the outcome could not be read back.
    #[error("the outcome of the write is not known: {0}")]
    Unknown(String),
    /// The store refused what it was given. Trying again cannot help; **nothing was changed**.
    #[error("the store refused the write: {0}")]
    Refused(String),
    /// The store holds something that this version cannot read, or is used by another process.
    #[error("{0}")]
    Unusable(String),
}

impl StoreError {
    /// A stable code for clients and logs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unavailable(_) | Self::Overloaded | Self::Unknown(_) => "STORE_UNAVAILABLE",
            Self::Refused(_) => "STORE_REFUSED",
            Self::Unusable(_) => "STORE_UNUSABLE",
        }
    }

    /// Whether the same call may succeed later without anyone changing anything.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Overloaded | Self::Unknown(_))
    }
}
