//! Time, in one place.
//!
//! Deadlines that are stored are computed and compared by the store, on its own clock: a
//! process never compares its idea of *now* with a stored deadline. [`Clock`] is what the
//! embedded store uses as that clock; it can be shifted by tests and it is the only module
//! that reads the system's time. Waiting and local trust use tokio's monotonic instants.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An instant on the store's clock, in whole milliseconds since 1970 (UTC).
///
/// Written as RFC 3339 with exactly three decimals, as the HTTP contract asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Later than anything that is meant: "until somebody resumes it". RFC 3339 can still write it
    /// in any time zone.
    pub const FAR_FUTURE: Self = Self(253_402_128_000_000);

    /// An instant from milliseconds since 1970.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// This instant moved into the future, at most to [`Timestamp::FAR_FUTURE`].
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)).min(Self::FAR_FUTURE.0))
    }

    /// This instant moved into the past.
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(millis(duration)))
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(at) => write!(f, "{at:.3}"),
            Err(_) => write!(f, "{}ms", self.0),
        }
    }
}

impl std::str::FromStr for Timestamp {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<jiff::Timestamp>().map(|at| Self(at.as_millisecond()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom(format!("`{text}` is not an RFC 3339 time")))
    }
}

/// A duration as whole milliseconds, saturating.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A wall clock that tests can move.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    offset_ms: Arc<AtomicI64>,
}

impl Clock {
    /// The system's wall clock.
    pub fn system() -> Self {
        Self::default()
    }

    /// The present instant.
    pub fn now(&self) -> Timestamp {
        let system = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(millis(system).saturating_add(self.offset_ms.load(Ordering::Relaxed)))
    }

    /// How far this clock has been moved.
    pub fn offset_ms(&self) -> i64 {
        self.offset_ms.load(Ordering::Relaxed)
    }

    /// Moves the clock by a signed number of milliseconds, for all who share it.
    pub fn shift_ms(&self, by_ms: i64) {
        self.offset_ms.fetch_add(by_ms, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_rfc_3339_with_three_decimals_and_reads_back() {
        let at = Timestamp::from_millis(1_700_000_000_050);
        assert_eq!(at.to_string(), "2023-11-14T22:13:20.050Z");
        assert_eq!(at.to_string().parse::<Timestamp>().expect("parses"), at);
        assert_eq!(Timestamp::FAR_FUTURE.to_string(), "9999-12-30T00:00:00.000Z");
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp::FAR_FUTURE.plus(Duration::from_secs(1)), Timestamp::FAR_FUTURE);
        assert_eq!(Timestamp::from_millis(1).since(Timestamp::from_millis(5)), Duration::ZERO);
    }
}
