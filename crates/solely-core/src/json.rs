//! JSON that is carried, not looked at.

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};

/// A JSON text. Engines store it as it is; whoever wrote it parses it again.
#[derive(Clone, PartialEq, Eq)]
pub struct Json(Arc<str>);

impl Json {
    /// The JSON form of a value.
    ///
    /// # Panics
    /// If the value cannot be written as JSON (a map with keys that are not strings): a
    /// mistake in the type, not in the data.
    pub fn of(value: &impl Serialize) -> Self {
        Self(serde_json::to_string(value).expect("the type has a JSON form").into())
    }

    /// A text read back from storage. It is trusted to be JSON.
    pub fn from_stored(text: String) -> Self {
        Self(text.into())
    }

    /// A copy of a text that is JSON.
    pub fn copied(text: &str) -> Self {
        Self(text.into())
    }

    /// An empty object.
    pub fn empty() -> Self {
        Self("{}".into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, owned.
    pub fn into_string(self) -> String {
        (*self.0).to_owned()
    }

    /// The value it holds.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

impl Default for Json {
    fn default() -> Self {
        Self::empty()
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // What was stored is written through without being built up as a tree; a text that is
        // no JSON after all becomes a string, so that a listing never fails over one row.
        match serde_json::from_str::<&serde_json::value::RawValue>(&self.0) {
            Ok(raw) => raw.serialize(serializer),
            Err(_) => serializer.serialize_str(&self.0),
        }
    }
}

/// A text as JSON.
pub fn write_text(into: &mut String, text: &str) {
    let plain = |byte: u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    if text.bytes().all(plain) {
        into.push('"');
        into.push_str(text);
        into.push('"');
    } else {
        into.push_str(&serde_json::to_string(text).unwrap_or_default());
    }
}
