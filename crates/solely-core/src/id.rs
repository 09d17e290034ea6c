//! Identifiers: `UUIDv7`, typed so that two of them cannot be confused.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock::Timestamp;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// The id's sixteen bytes, as engines store it.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// An id read back from storage.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::try_parse(text).map(Self)
            }
        }
    };
}

id!(
    /// A job. Ids made by one process grow, so that rows go in at the end of their table.
    JobId
);
id!(
    /// A run of a feed. Ids made by one process grow.
    RunId
);
id!(
    /// A reservation. Ids made by one process grow.
    ReservationId
);
id!(
    /// A place in a waiting list. Ids made by one process grow.
    WaitId
);
id!(
    /// A lease. It proves ownership, so all of it but the time is random.
    LeaseId
);
id!(
    /// One start of one process: random, never a configured name.
    ProcessId
);

impl JobId {
    /// When it was made, by the clock of whoever made it.
    pub fn made_at(self) -> Timestamp {
        let (seconds, nanos) = self.0.get_timestamp().map_or((0, 0), |at| at.to_unix());
        let millis = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000);
        Timestamp::from_millis(millis.saturating_add(i64::from(nanos / 1_000_000)))
    }

    /// A new id, greater than every earlier one of this process.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl Default for JobId {
    fn default() -> Self {
        Self::new()
    }
}

impl RunId {
    /// A new id, greater than every earlier one of this process.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl ReservationId {
    /// A new id, greater than every earlier one of this process.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl WaitId {
    /// A new id, greater than every earlier one of this process.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl Default for WaitId {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for ReservationId {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for RunId {
    fn default() -> Self {
        Self::new()
    }
}

impl LeaseId {
    /// A new id with 74 random bits.
    pub fn random() -> Self {
        Self(unguessable())
    }
}

impl ProcessId {
    /// A new identity.
    pub fn random() -> Self {
        Self(unguessable())
    }
}

/// `Uuid::now_v7` counts up within a millisecond, so a neighbour's id could be guessed from
/// one's own; this takes only the time from the clock.
fn unguessable() -> Uuid {
    let millis = crate::Clock::system().now().as_millis();
    let random: [u8; 10] = rand::random();
    uuid::Builder::from_unix_timestamp_millis(u64::try_from(millis).unwrap_or(0), &random).into_uuid()
}
