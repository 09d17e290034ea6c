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

use crate::fault;

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
        let mut text = *b"0000-00-00T00:00:00.000Z";
        if written(self.0, &mut text) {
            f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
        } else {
            write!(f, "{}ms", self.0)
        }
    }
}

impl std::str::FromStr for Timestamp {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(millis) = read(text.as_bytes()) {
            return Ok(Self(millis));
        }
        let at = Self(text.parse::<jiff::Timestamp>()?.as_millisecond());
        // What could not be written could not be read again.
        let mut text = *b"0000-00-00T00:00:00.000Z";
        if written(at.0, &mut text) {
            Ok(at)
        } else {
            Err(jiff::Error::from_args(format_args!("the year is 0 to 9999")))
        }
    }
}

const DAY_MS: i64 = 86_400_000;
/// Where the fields of a written time begin, and how long each is.
const FIELDS: [(usize, usize); 7] = [(0, 4), (5, 2), (8, 2), (11, 2), (14, 2), (17, 2), (20, 3)];

/// Writes a time of the years 0 to 9999 over a text of its shape. False for another.
///
/// Times are in every answer and every line of the log; a calendar that knows of zones and eras takes
/// ten times as long.
fn written(millis: i64, text: &mut [u8; 24]) -> bool {
    let (days, of_day) = (millis.div_euclid(DAY_MS), millis.rem_euclid(DAY_MS));
    // Days are counted from the first of March of the year 0, so that a leap day ends its year.
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    if !(0..=9_999).contains(&year) {
        return false;
    }
    let fields =
        [year, month, day, of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1_000 % 60, of_day % 1_000];
    for ((at, length), mut value) in FIELDS.into_iter().zip(fields) {
        for digit in text[at..at + length].iter_mut().rev() {
            *digit = b'0' + u8::try_from(value % 10).unwrap_or(0);
            value /= 10;
        }
    }
    true
}

/// Reads a time that is written as above; none for any other way to write one.
fn read(text: &[u8]) -> Option<i64> {
    let shape = b"0000-00-00T00:00:00.000Z";
    let fits = |(byte, like): (&u8, &u8)| if *like == b'0' { byte.is_ascii_digit() } else { byte == like };
    if text.len() != shape.len() || !text.iter().zip(shape).all(fits) {
        return None;
    }
    let field = |(at, length): (usize, usize)| {
        text[at..at + length].iter().fold(0_i64, |value, digit| value * 10 + i64::from(digit - b'0'))
    };
    let [year, month, day, hour, minute, second, milli] = FIELDS.map(field);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let longest = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=longest).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let march_month = (month + 9) % 12;
    let of_year = (153 * march_month + 2) / 5 + day - 1;
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    let days = era * 146_097 + of_era - 719_468;
    Some(days * DAY_MS + hour * 3_600_000 + minute * 60_000 + second * 1_000 + milli)
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
        let offset = self.offset_ms.load(Ordering::Relaxed).saturating_add(fault::skew_ms());
        Timestamp(millis(system).saturating_add(offset))
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
    fn other_ways_to_write_a_time_are_read_too() {
        let at = |text: &str| text.parse::<Timestamp>().map(Timestamp::as_millis);
        assert_eq!(at("2023-11-14T22:13:20Z").expect("reads"), 1_700_000_000_000);
        assert_eq!(at("2023-11-15T00:13:20.050+02:00").expect("reads"), 1_700_000_000_050);
        for wrong in ["2023-02-29T00:00:00.000Z", "2023-13-01T00:00:00.000Z", "2023-01-01T24:00:00.000Z", "x"]
        {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }

    proptest::proptest! {
        /// A calendar made by others agrees.
        #[test]
        fn a_time_is_written_and_read_as_others_do(millis in -62_167_219_200_000_i64..=253_402_214_400_000) {
            let at = Timestamp::from_millis(millis);
            let others = jiff::Timestamp::from_millisecond(millis).expect("in range");
            proptest::prop_assert_eq!(at.to_string(), format!("{others:.3}"));
            proptest::prop_assert_eq!(at.to_string().parse::<Timestamp>().expect("reads"), at);
        }
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp::FAR_FUTURE.plus(Duration::from_secs(1)), Timestamp::FAR_FUTURE);
        assert_eq!(Timestamp::from_millis(1).since(Timestamp::from_millis(5)), Duration::ZERO);
    }
}
