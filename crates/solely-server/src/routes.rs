//! Handlers, one file a noun.

pub(crate) mod alert;
pub(crate) mod dashboard;
pub(crate) mod dead_letter;
pub(crate) mod docs;
pub(crate) mod enrich;
pub(crate) mod feed;
pub(crate) mod health;
pub(crate) mod inventory;
pub(crate) mod job;
pub(crate) mod lease;
pub(crate) mod merchant;
pub(crate) mod metrics;
pub(crate) mod products;
pub(crate) mod queue;
pub(crate) mod reservation;
pub(crate) mod reserve;
pub(crate) mod run;
pub(crate) mod session;
pub(crate) mod ticket;
pub(crate) mod timeline;
pub(crate) mod upstream;
pub(crate) mod waitlist;
