//! products: product search through slow plugins, fresh or stale at once.
//!
//! A catalogue is the whole of what a plugin knows for a user; it is cached as one entry, parsed once
//! ([`catalogue`]) and filtered on read ([`filter`]). Who calls the plugin has the **flight** of the key: a lease row
//! with a fence, in every deployment ([`flight`]). A flight is a task of the process and belongs to no caller; whoever
//! wants the same waits for it, in this process by its channel, elsewhere by the lease's end. What it brings is written
//! with its fence as the entry's version, so that a late answer never replaces a newer one. A failure is an entry, too:
//! all processes leave the key alone for as long.
//!
//! **If it dies**: between the call and the write, the lease ends with the process, and another calls again. Between
//! the write and the release, the entry is there, and nobody needs the lease. A refresh that is delivered twice finds
//! newer data the second time.

mod app;
pub mod catalogue;
mod copy;
pub mod filter;
mod flight;
mod job;
mod look;
pub mod plugin;
pub mod search;
mod system;

pub use app::{App, AppSettings};
pub use copy::forms;
pub use search::{Answer, Search, SearchError, State};
pub use system::{Products, ProductsParts};

use sha2::{Digest as _, Sha256};

use crate::cache::EntryKey;

/// The queue of refreshes.
pub const QUEUE: &str = "products";

/// The entry of a catalogue: the operation for a user, with what else was asked of the plugin.
pub(crate) fn entry_key(app: &str, of: &KeyOf<'_>) -> EntryKey {
    let text = serde_json::to_vec(of).unwrap_or_default();
    let hash = data_encoding::HEXLOWER.encode(&Sha256::digest(text)[..16]);
    EntryKey::new(format!("products:{app}"), hash)
}

/// What a key is made of.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyOf<'a> {
    pub(crate) user_id: &'a str,
    pub(crate) hint: Option<&'a str>,
    pub(crate) operation: &'a str,
    /// Sorted by name: two that differ in their order are one.
    pub(crate) payload: std::collections::BTreeMap<&'a str, &'a serde_json::Value>,
}

/// What the timeline tells of a catalogue.
pub(crate) fn subject(key: &EntryKey) -> String {
    format!("{}:{}", key.space, key.key)
}

/// The entry that says why a catalogue could not be had.
pub(crate) fn failure_key(key: &EntryKey) -> EntryKey {
    EntryKey::new("product-failures", subject(key))
}

/// The lease of a flight, also its name in Redis.
pub(crate) fn lock_name(key: &EntryKey) -> String {
    format!("{}:{}:lock", key.space, key.key)
}

/// What stops a second refresh from being queued, in Redis.
pub(crate) fn job_lock_name(key: &EntryKey) -> String {
    format!("{}:{}:jobLock", key.space, key.key)
}
