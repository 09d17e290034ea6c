//! Real processes, real faults, an independent checker.
//!
//! Worker processes are killed, made to die at named points, paused beyond their locks and
//! continued; a [`proxy`] in front of PostgreSQL cuts connections, also between a COMMIT and its
//! answer; the database itself is restarted; or one process works on a file ([`ground`]). A [`checker`] with SQL of its own then says what is
//! wrong. Everything is drawn from one printed seed.
//!
//! It can fail: each guard of [`torture::Break`] can be switched off, and the checker must then
//! report what the guard prevents.

pub mod boxes;
pub mod catalogues;
pub mod checker;
pub mod entries;
pub mod feeds;
pub mod ground;
pub mod places;
pub mod plan;
pub mod process;
pub mod proxy;
pub mod subject;
pub mod torture;
pub mod upstream;

/// The time in seconds, by the clock that all processes share: that of solely is wrong in each of them.
pub(crate) fn seconds() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
