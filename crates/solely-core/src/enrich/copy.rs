//! How the copies of places look in Redis, as the documents name them: `ext:PROVIDER:place:PLACE` holds
//! `{"status","url","updatedAt","meta"?}`, and `ext:PROVIDER:lock:PLACE` is the lease of its lookup.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Resolved, Status, entry_key, provider_of, system::Lives};
use crate::cache::{Age, Entry, EntryKey};
use crate::clock::Timestamp;
use crate::companion::Form;
use crate::json::Json;

/// The lease of a lookup.
pub(super) fn lock_name(key: &EntryKey) -> String {
    format!("ext:{}:lock:{}", provider_of(&key.space).unwrap_or_default(), key.key)
}

/// The form of one provider's places.
pub struct PlaceForm {
    provider: String,
    lives: Lives,
}

impl PlaceForm {
    /// The form of a provider whose entries live this long.
    pub(super) fn new(provider: &str, lives: Lives) -> Self {
        Self { provider: provider.to_owned(), lives }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Copy {
    status: Status,
    url: Option<String>,
    updated_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    meta: Option<Value>,
}

impl Form for PlaceForm {
    fn covers(&self, space: &str) -> bool {
        provider_of(space) == Some(&self.provider)
    }

    fn name(&self, key: &EntryKey) -> String {
        format!("ext:{}:place:{}", self.provider, key.key)
    }

    fn names(&self) -> String {
        format!("ext:{}:place:*", self.provider)
    }

    fn write(&self, entry: &Entry) -> String {
        let Resolved { status, url, meta } = Resolved::of(entry).unwrap_or_else(Resolved::failed);
        Json::of(&Copy { status, url, updated_at: entry.updated_at, meta }).into_string()
    }

    /// Its ends are those that it was written with: they follow from what it says. Redis ends it by
    /// itself.
    fn read(&self, key: &EntryKey, text: &str, now: Timestamp) -> Option<Entry> {
        let Copy { status, url, updated_at, meta } = serde_json::from_str(text).ok()?;
        let resolved = Resolved { status, url, meta };
        let lifetimes = self.lives.of(&resolved);
        let (fresh_until, stale_until) = (updated_at.plus(lifetimes.fresh), updated_at.plus(lifetimes.stale));
        Some(Entry {
            key: entry_key(&self.provider, &key.key),
            value: Json::of(&resolved),
            version: 0,
            updated_at,
            fresh_until,
            stale_until,
            as_of: now,
            age: Age::of(now, fresh_until, stale_until),
        })
    }
}
