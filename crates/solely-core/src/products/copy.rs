//! How the copies of catalogues look in Redis: `products:APP:HASH` holds `{"products":[…],"updatedAt",…}`, and
//! `products:APP:HASH:lastUpdated`, `…:lock` and `…:jobLock` stand beside it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::flight::Stored;
use crate::cache::{Age, Entry, EntryKey};
use crate::clock::Timestamp;
use crate::companion::Form;
use crate::json::Json;

/// The form of all catalogues.
struct CatalogueForm;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Copy<'a> {
    #[serde(borrow)]
    products: &'a RawValue,
    version: u64,
    updated_at: Timestamp,
    fresh_until: Timestamp,
    stale_until: Timestamp,
}

impl Form for CatalogueForm {
    fn covers(&self, space: &str) -> bool {
        space.starts_with("products:")
    }

    fn name(&self, key: &EntryKey) -> String {
        format!("{}:{}", key.space, key.key)
    }

    /// A hash has so many digits, and what stands beside a copy has a longer name.
    fn names(&self) -> String {
        format!("products:*:{}", "?".repeat(HASH_DIGITS))
    }

    fn beside(&self, name: &str) -> Option<String> {
        Some(format!("{name}:lastUpdated"))
    }

    fn write(&self, entry: &Entry) -> String {
        let stored: Stored<'_> =
            serde_json::from_str(entry.value.as_str()).expect("an entry holds a catalogue");
        let Entry { version, updated_at, fresh_until, stale_until, .. } = *entry;
        let products = stored.products;
        Json::of(&Copy { products, version, updated_at, fresh_until, stale_until }).into_string()
    }

    fn read(&self, key: &EntryKey, text: &str, now: Timestamp) -> Option<Entry> {
        let Copy { products, version, updated_at, fresh_until, stale_until } =
            serde_json::from_str(text).ok()?;
        Some(Entry {
            key: key.clone(),
            value: Json::of(&Stored { products }),
            version,
            updated_at,
            fresh_until,
            stale_until,
            as_of: now,
            age: Age::of(now, fresh_until, stale_until),
        })
    }
}

/// Digits of a key's hash.
const HASH_DIGITS: usize = 32;

/// How the copies of catalogues look.
pub fn forms() -> Vec<Arc<dyn Form>> {
    vec![Arc::new(CatalogueForm)]
}
