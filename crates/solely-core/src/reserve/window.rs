//! Pickup windows: two instants, or a date and two times of a merchant's day.

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;

use crate::clock::Timestamp;

/// When boxes are given out, as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Window {
    /// From an instant to another.
    Instants {
        /// From when,
        start: Timestamp,
        /// until when.
        end: Timestamp,
    },
    /// On a day of the merchant's, from a time to another; one that is not later is of the next day.
    Daily {
        /// The day.
        date: Date,
        /// From when,
        start: Time,
        /// until when.
        end: Time,
    },
}

impl Window {
    /// The two instants, in a zone.
    ///
    /// A time that a day does not have (clocks go forward) is as much later; one that it has twice (they go back) is the
    /// first for the start and the second for the end: nobody finds a closed door.
    pub fn instants(&self, timezone: &str) -> Option<(Timestamp, Timestamp)> {
        match self {
            Self::Instants { start, end } => Some((*start, *end)),
            Self::Daily { date, start, end } => {
                let zone = TimeZone::get(timezone).ok()?;
                let last = if end > start { *date } else { date.tomorrow().ok()? };
                let at = |date: Date, time: Time, late: bool| {
                    let ambiguous = zone.to_ambiguous_zoned(date.to_datetime(time));
                    let folds = matches!(ambiguous.offset(), jiff::tz::AmbiguousOffset::Fold { .. });
                    let zoned = if late && folds { ambiguous.later() } else { ambiguous.compatible() };
                    zoned.ok().map(|zoned| Timestamp::from_millis(zoned.timestamp().as_millisecond()))
                };
                Some((at(*date, *start, false)?, at(last, *end, true)?))
            }
        }
    }
}

/// Whether there is such a zone.
pub fn is_zone(timezone: &str) -> bool {
    TimeZone::get(timezone).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instants(date: &str, start: &str, end: &str) -> (String, String) {
        let parse = |text: &str| text.parse::<Time>().expect("a time");
        let window =
            Window::Daily { date: date.parse().expect("a date"), start: parse(start), end: parse(end) };
        let (start, end) = window.instants("Europe/Berlin").expect("a zone");
        (start.to_string(), end.to_string())
    }

    #[test]
    fn times_of_a_day_are_those_of_its_zone() {
        let expected = ("2026-11-16T17:00:00.000Z".to_owned(), "2026-11-16T18:30:00.000Z".to_owned());
        assert_eq!(instants("2026-11-16", "18:00", "19:30"), expected);
        let expected = ("2026-07-01T16:00:00.000Z".to_owned(), "2026-07-01T17:30:00.000Z".to_owned());
        assert_eq!(instants("2026-07-01", "18:00", "19:30"), expected);
    }

    #[test]
    fn a_window_may_end_after_midnight() {
        let expected = ("2026-11-16T21:00:00.000Z".to_owned(), "2026-11-16T23:30:00.000Z".to_owned());
        assert_eq!(instants("2026-11-16", "22:00", "00:30"), expected);
    }

    #[test]
    fn days_on_which_clocks_are_changed() {
        // 02:30 does not exist: it is as much later. The window is an hour shorter.
        let expected = ("2026-03-29T00:30:00.000Z".to_owned(), "2026-03-29T01:30:00.000Z".to_owned());
        assert_eq!(instants("2026-03-29", "01:30", "02:30"), expected);
        // 02:30 is there twice: the first opens, the second closes.
        let expected = ("2026-10-25T00:30:00.000Z".to_owned(), "2026-10-25T01:45:00.000Z".to_owned());
        assert_eq!(instants("2026-10-25", "02:30", "02:45"), expected);
    }
}
