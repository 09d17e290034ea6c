//! enrich: provider links for search results. One lookup per place; the answer to everyone who waits.
//!
//! ```text
//!  request ─▶ memory ─▶ Redis: copy, else hint ─▶ the store, one statement for all that is missing:
//!                                                 an entry that may be served  → attached
//!                                                 else a live job, made or seen → PENDING, and remembered
//!                                                                                 with the request
//!  job ─▶ looks again ─▶ finder ─▶ matcher ─▶ one commit: entry, completion, timeline ─▶ copies, notes
//!                                                                                        ─▶ lease given back
//!  socket ─▶ registered ─▶ what its request waits for is read ─▶ a patch for each that is resolved
//! ```
//!
//! *What is true* is the entry of a place (space `enrich:PROVIDER`, key: the place), and of a request
//! what it was told (space [`UNCOPIED`], key: the request). *PENDING is answered
//! only for a place that has a live job in the transaction that answers* ([`EnrichStore::wait`]): a lease
//! that someone holds changes what is logged, never whether this is looked at. *Three guards*, each of
//! which alone keeps a second lookup from happening: the entry, the lease, the queue's unique key; and a
//! job looks once more before it calls out.
//!
//! *What a crash does*: before the statement commits, nothing was promised. After it, the job is there,
//! and its death, by whomever, writes an entry too: nobody is left on PENDING. A
//! process that dies after the commit and before it has told anyone is found out by the others: their
//! sockets read what they wait for, slowly, whether or not they are told.
//!
//! *Three ages*: an entry is fresh for nine tenths of its life, then served and refreshed ahead, once;
//! past its life it is kept for as long as a request can be asked about.

mod copy;
mod decision;
pub mod finder;
mod job;
pub mod matcher;
pub mod place;
mod request;
mod subscription;
mod system;
pub(crate) mod timeline;
mod waiting;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cache::{Age, Entry, EntryKey, UNCOPIED};
use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::id::JobId;
use crate::job::{JobState, NewJob};
use crate::json::Json;

pub use copy::PlaceForm;
use request::WARM_PRIORITY;
pub use request::{Answered, AskError, Asker, PlaceRef, Recalled, State, Wanted, Warmed};
pub use subscription::{Listens, Subscribed, Subscription, Unheard};
pub use system::{Enrich, EnrichParts, Lives, Looked, Provider, ProviderSettings, forms};

/// Whether there is a link.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// There is.
    Found,
    /// There is none, or it could not be found out.
    NotFound,
}

impl Status {
    /// The word that the API uses.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Found => "FOUND",
            Self::NotFound => "NOT_FOUND",
        }
    }
}

/// What is known of a place at a provider. The value of its entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// Whether there is a link.
    pub status: Status,
    /// The link.
    pub url: Option<String>,
    /// Why it is so, where there is something to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

/// Says in `meta.reason` that a lookup was given up.
pub const LOOKUP_FAILED: &str = "lookup_failed";

impl Resolved {
    /// A lookup that was given up.
    pub fn failed() -> Self {
        let meta = Some(serde_json::json!({"reason": LOOKUP_FAILED}));
        Self { status: Status::NotFound, url: None, meta }
    }

    /// Whether it says that a lookup was given up.
    pub fn is_failed(&self) -> bool {
        self.meta.as_ref().is_some_and(|meta| meta["reason"] == LOOKUP_FAILED)
    }

    /// What an entry of a place holds.
    pub fn of(entry: &Entry) -> Option<Self> {
        entry.value.parse().ok()
    }
}

/// The queue of a provider's lookups, which is also the space of its entries.
pub fn queue(provider: &str) -> String {
    format!("enrich:{provider}")
}

/// The entry of a place at a provider.
pub fn entry_key(provider: &str, place: &str) -> EntryKey {
    EntryKey::new(queue(provider), place)
}

/// The provider of a space, if it is one of ours.
pub(crate) fn provider_of(space: &str) -> Option<&str> {
    space.strip_prefix("enrich:")
}

/// What the timeline calls a place.
pub fn subject(place: &str) -> String {
    format!("place:{place}")
}

/// The entry that says what a request was told.
pub fn request_key(request: &str) -> EntryKey {
    EntryKey::new(UNCOPIED, request)
}

/// A place that a request was told of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldPlace {
    /// Its name.
    pub name: String,
    /// Where it was in the request.
    #[serde(rename = "n")]
    pub place: u32,
    /// What its wait is for, if it was told PENDING: an entry that is written after this instant, which is when
    /// the one was written that was there and could not be served. Where there was none the time is less than
    /// zero: minus the time when it was told. So no two waits have the same, and what was being written while
    /// the request looked ends its wait, though it is of an earlier instant than the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<i64>,
}

/// What a request was told, by `PROVIDER/PLACE`. The value of its entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Told(pub BTreeMap<String, ToldPlace>);

impl Told {
    /// The name of a place at a provider within a request.
    pub fn name(key: &EntryKey) -> String {
        format!("{}/{}", provider_of(&key.space).unwrap_or_default(), key.key)
    }

    /// The other way round.
    pub fn key(name: &str) -> Option<EntryKey> {
        let (provider, place) = name.split_once('/')?;
        Some(entry_key(provider, place))
    }

    /// Adds what it was told now. What it was told PENDING stays so; what it waits for again it waits for
    /// from now on.
    pub fn add(&mut self, later: Self) {
        for (name, told) in later.0 {
            match self.0.get_mut(&name) {
                Some(before) if told.since.is_none() => before.name = told.name,
                _ => drop(self.0.insert(name, told)),
            }
        }
    }
}

/// Whether an entry ends a wait (see [`ToldPlace::since`]): it may be served, or was written since.
pub fn ends_wait(entry: &Entry, since: i64) -> bool {
    entry.age != Age::Gone || entry.updated_at > Timestamp::from_millis(since)
}

/// A place that is missing in the copies.
#[derive(Clone, Debug)]
pub struct NewWait {
    /// Its entry.
    pub key: EntryKey,
    /// Its name.
    pub name: String,
    /// Where it is in the request.
    pub place: u32,
    /// The lookup, should there be none.
    pub job: NewJob,
    /// Its lease was taken just now. It allows nothing; but as a rule nobody else looks it up then.
    pub leased: bool,
}

/// What a request asks of the store.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Who asks; nobody who could be told later, when places are warmed.
    pub request: Option<AskingRequest>,
    /// The places that are missing in the copies, each once.
    pub waits: Vec<NewWait>,
}

/// A request that will be told.
#[derive(Clone, Debug)]
pub struct AskingRequest {
    /// Its id.
    pub id: String,
    /// How long it can still be asked about.
    pub ttl: Duration,
    /// What it is told from the copies.
    pub told: Told,
}

/// What the store says of a place.
#[derive(Clone, Debug, PartialEq)]
pub enum Waits {
    /// It has an entry that may be served.
    Resolved(Entry),
    /// A lookup was made.
    Made,
    /// A lookup was there, live in the transaction that answers.
    Known {
        /// Which one.
        of: JobId,
        /// Its state.
        state: JobState,
        /// Whose request made it.
        by: Option<String>,
    },
}

/// What became of asking.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// For each place, in the order given. If any waits, the request is remembered.
    Answered(Vec<Waits>),
    /// The request has been used for as many places as one can have. Nothing was changed.
    TooMany,
}

/// Bytes of what a request was told that may be there when it is told more.
pub const TOLD_BYTES_MAX: usize = 256 * 1024;

/// What enrich needs of a store beside jobs and entries.
#[async_trait]
pub trait EnrichStore: Send + Sync {
    /// One transaction: looks at the entries of the places once more, makes a lookup for each that has
    /// none that may be served and has no live lookup, and remembers with the request what it is told.
    ///
    /// It may be run again: whoever finds its own job has made it.
    async fn wait(&self, ask: Ask) -> Result<Asked, StoreError>;
}

/// How a lookup is described to its handler.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lookup {
    /// The place.
    #[serde(flatten)]
    pub place: finder::Place,
    /// Whose request it is.
    pub request_id: Option<String>,
    /// The entry that it refreshes: when that was written.
    #[serde(default)]
    pub refreshes: Option<Timestamp>,
}

/// A [`Lookup`] as it is written: what is not known takes no room in its row.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Payload<'a> {
    place_id: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    city_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refreshes: Option<Timestamp>,
}

/// What can be seen of a lookup from outside.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Attributes<'a> {
    place_id: &'a str,
    name: &'a str,
    city_text: Option<&'a str>,
    request_id: Option<&'a str>,
}

impl Lookup {
    /// The job that does it.
    pub(crate) fn job(&self, provider: &Provider, trace: Option<String>) -> NewJob {
        let mut job = NewJob::new(queue(&provider.name), self.place.place_id.clone());
        job.payload = Json::of(&Payload {
            place_id: &self.place.place_id,
            name: &self.place.name,
            city_text: self.place.city_text.as_deref(),
            address_text: self.place.address_text.as_deref(),
            request_id: self.request_id.as_deref(),
            refreshes: self.refreshes,
        });
        job.attributes = Json::of(&Attributes {
            place_id: &self.place.place_id,
            name: &self.place.name,
            city_text: self.place.city_text.as_deref(),
            request_id: self.request_id.as_deref(),
        });
        job.max_attempts = provider.settings.max_attempts;
        job.trace = trace;
        "lookup".clone_into(&mut job.kind);
        job
    }
}
