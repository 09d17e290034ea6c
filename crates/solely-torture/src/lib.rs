//! Real processes, real faults, an independent checker.
//!
//! Worker processes are killed, made to die at named points, paused beyond their locks and
//! continued; a [`proxy`] in front of PostgreSQL cuts connections, also between a COMMIT and its
//! answer; the database itself is restarted. A [`checker`] with SQL of its own then says what is
//! wrong. Everything is drawn from one printed seed.
//!
//! It can fail: each guard of [`torture::Break`] can be switched off, and the checker must then
//! report what the guard prevents.

pub mod boxes;
pub mod catalogues;
pub mod checker;
pub mod entries;
pub mod feeds;
pub mod places;
pub mod process;
pub mod proxy;
pub mod subject;
pub mod torture;
pub mod upstream;
