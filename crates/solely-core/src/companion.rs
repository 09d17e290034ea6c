//! A companion of the store: copies, hints and wake-ups, for several processes at once.
//!
//! Redis is one. Nothing in a companion decides: its copies are true only for as long as they
//! are known to follow the store, its hints may refuse early and never allow, its wake-ups only
//! save waiting. Whatever goes wrong with it is a miss, not an error: none of these methods fail.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::bus::Bus;
use crate::cache::{Age, Change, Entry, EntryKey};
use crate::clock::Timestamp;
use crate::json::Json;

/// How the entries of some spaces look as copies.
pub trait Form: Send + Sync {
    /// Whether it is meant for this space.
    fn covers(&self, space: &str) -> bool;

    /// The name of an entry's copy.
    fn name(&self, key: &EntryKey) -> String;

    /// A glob that matches the name of every copy in this form, and of nothing else.
    fn names(&self) -> String;

    /// An entry as text: a JSON object with the field `updatedAt`.
    fn write(&self, entry: &Entry) -> String;

    /// The name of a key beside a copy that holds its `updatedAt` alone, for others to read. Not kept in a cluster, where it
    /// may lie elsewhere.
    fn beside(&self, _name: &str) -> Option<String> {
        None
    }

    /// The entry that a text holds, at this instant of the store's clock; none if it is no copy.
    fn read(&self, key: &EntryKey, text: &str, now: Timestamp) -> Option<Entry>;
}

/// The form of every space that has none of its own: `entry:LENGTH:SPACE:KEY`, with all fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainForm;

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Plain<'a> {
    #[serde(borrow)]
    value: &'a serde_json::value::RawValue,
    version: u64,
    updated_at: Timestamp,
    fresh_until: Timestamp,
    stale_until: Timestamp,
}

impl Form for PlainForm {
    fn covers(&self, _space: &str) -> bool {
        true
    }

    fn name(&self, key: &EntryKey) -> String {
        // With its length, so that no other space and key have this name.
        format!("entry:{}:{}:{}", key.space.len(), key.space, key.key)
    }

    fn names(&self) -> String {
        "entry:*".to_owned()
    }

    fn write(&self, entry: &Entry) -> String {
        let value: &serde_json::value::RawValue =
            serde_json::from_str(entry.value.as_str()).expect("an entry holds JSON");
        let Entry { version, updated_at, fresh_until, stale_until, .. } = *entry;
        Json::of(&Plain { value, version, updated_at, fresh_until, stale_until }).into_string()
    }

    fn read(&self, key: &EntryKey, text: &str, now: Timestamp) -> Option<Entry> {
        let Plain { value, version, updated_at, fresh_until, stale_until } =
            serde_json::from_str(text).ok()?;
        let value = Json::from_stored(value.get().to_owned());
        let age = Age::of(now, fresh_until, stale_until);
        Some(Entry {
            key: key.clone(),
            value,
            version,
            updated_at,
            fresh_until,
            stale_until,
            as_of: now,
            age,
        })
    }
}

/// What a companion has of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copied {
    /// A copy that follows the store.
    Entry(Entry),
    /// A copy that did, before the store or the companion could not be reached. Good enough only
    /// when the store cannot be asked.
    Doubtful(Entry),
    /// None.
    Missing,
}

/// A key to be read, with the hint to be taken if there is no copy of it.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The entry.
    pub key: EntryKey,
    /// The hint's key.
    pub hint: String,
    /// For whom it would be.
    pub owner: String,
}

/// What became of a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hinted {
    /// The caller has it. It allows nothing.
    Taken {
        /// Grows from one holder to the next.
        fence: u64,
    },
    /// Another has it.
    Held {
        /// Who.
        owner: String,
        /// For how long, at most.
        ends_in: Duration,
    },
    /// Nobody knows.
    Unknown,
}

/// A read of copies, and what is needed to add to them.
#[derive(Clone, Debug)]
pub struct CopiesRead {
    /// In the order asked for.
    pub copies: Vec<Copied>,
    /// Those that may be added to the copies, if the store has them.
    pub visit: Visit,
}

/// One visit to a companion: what is read from the store after it may be copied back.
#[derive(Clone, Debug, Default)]
pub struct Visit {
    /// Which connection it was and how far its copies followed, by place of the key; none where
    /// nothing may be added.
    pub places: Vec<Option<(u64, Arc<str>)>>,
}

/// Copies of entries.
#[async_trait]
pub trait Copies: Send + Sync {
    /// What it has of these keys. One round trip.
    async fn read(&self, keys: &[EntryKey]) -> CopiesRead;

    /// The same, and takes the hint of each that is missing.
    async fn read_or_hint(&self, wanted: &[Wanted], ttl: Duration) -> (CopiesRead, Vec<Option<Hinted>>);

    /// Adds copies of entries that were read from the store after a visit; only where there are
    /// none, and only soon. Each comes with its place in that visit.
    async fn back_fill(&self, visit: Visit, entries: Vec<(usize, Entry)>, read_at: Instant);

    /// Replaces older copies by what was read from the store at an instant, and marks what was
    /// forgotten.
    async fn replace(&self, changes: Vec<Change>, read_at: Instant);
}

/// Hints: leases that save work and decide nothing.
#[async_trait]
pub trait Hints: Send + Sync {
    /// Takes all of these keys for an owner, or none. One round trip.
    async fn take(&self, keys: &[String], owner: &str, ttl: Duration) -> Hinted;

    /// Moves the end of those that are the owner's, and sets those again that have vanished.
    /// False if one of them had vanished.
    async fn keep(&self, keys: &[String], owner: &str, ttl: Duration) -> bool;

    /// Gives back those that are the owner's.
    async fn give_back(&self, keys: &[String], owner: &str);
}

/// A plain key that others read. Nothing of ours depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A text, for a while.
    Set {
        /// Its key.
        name: String,
        /// What it says.
        value: String,
        /// For how long.
        ttl: Duration,
    },
    /// A member of a set, which lasts for a while from now.
    Add {
        /// The set's key.
        name: String,
        /// Its member.
        member: String,
        /// For how long.
        ttl: Duration,
    },
    /// A member of a set no longer.
    Remove {
        /// The set's key.
        name: String,
        /// Its member.
        member: String,
    },
    /// Gone.
    Delete {
        /// Its key.
        name: String,
    },
}

impl Note {
    /// Its key.
    pub fn name(&self) -> &str {
        match self {
            Self::Set { name, .. }
            | Self::Add { name, .. }
            | Self::Remove { name, .. }
            | Self::Delete { name } => name,
        }
    }
}

/// Plain keys that others read.
#[async_trait]
pub trait Notes: Send + Sync {
    /// Writes them, if it can.
    async fn note(&self, notes: Vec<Note>);

    /// What these keys say, where it is known.
    async fn noted(&self, names: &[String]) -> Vec<Option<String>>;
}

/// A companion, whole.
#[async_trait]
pub trait Companion: Copies + Hints + Notes {
    /// Whether it answers and its copies follow the store.
    fn ok(&self) -> bool;

    /// Connects a bus to those of other processes.
    fn connect_bus(&self, bus: &Bus);

    /// Ends its connections.
    async fn close(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_copy_reads_back() {
        let at = Timestamp::from_millis;
        let entry = Entry {
            key: EntryKey::new("space", "a b"),
            value: Json::from_stored(r#"{"deep":[1,{"x":"é"}]}"#.to_owned()),
            version: 3,
            updated_at: at(1_000),
            fresh_until: at(2_000),
            stale_until: at(3_000),
            as_of: at(2_500),
            age: Age::Stale,
        };
        let text = PlainForm.write(&entry);
        assert_eq!(PlainForm.read(&entry.key, &text, at(2_500)).as_ref(), Some(&entry));
        assert_eq!(PlainForm.read(&entry.key, r#"{"updatedAt":"x"}"#, at(0)), None);
    }
}
