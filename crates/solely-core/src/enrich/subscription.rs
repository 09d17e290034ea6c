//! Subscriptions: whoever listens to a request hears the end of everything that it was told PENDING.
//!
//! *Register, then read*: the request, and each place that it waits for, is watched before it is read, so
//! that a change is either seen by that read or heard of after it, whichever process made it. The
//! acknowledgement comes first, then a patch for each place that is resolved; each is told once, and told
//! again only if the request has been told PENDING again since. A request that was not seen yet is
//! watched as well: clients may subscribe first and ask then.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::place::write_state;
use super::request::State;
use super::system::{Enrich, Inner};
use super::{Told, ends_wait, provider_of, request_key};
use crate::cache::watch::{Heard, Hears, NoWatch, Watch};
use crate::cache::{Entry, EntryKey, UNCOPIED};
use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::fault::Guard;

/// Where messages go.
pub trait Listens: Send + Sync {
    /// Takes a message, without waiting. False if it will take no more.
    fn push(&self, message: String) -> bool;

    /// Nothing more can be told: whoever listens has to begin anew.
    fn end(&self);
}

/// Why there is no subscription.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unheard {
    /// More is watched than can be.
    #[error("there are too many subscriptions")]
    TooMany,
    /// The store cannot say.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Someone listens to a request, until this is dropped.
pub struct Subscription(Arc<Listening>);

/// What the acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribed {
    /// How many places are pending.
    pub pending: usize,
}

/// The patch that was written last.
pub(super) struct LastPatch {
    of: EntryKey,
    updated_at: Timestamp,
    request_id: String,
    text: String,
}

struct Listening {
    request_id: String,
    listens: Arc<dyn Listens>,
    inner: Arc<Inner>,
    watch: Mutex<Option<Watch>>,
    state: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// Since when the request waits for a place.
    pending: HashMap<EntryKey, i64>,
    /// What it was told of, and since when it had waited.
    done: HashMap<EntryKey, i64>,
    acknowledged: bool,
    /// What was heard before the acknowledgement.
    early: Vec<Entry>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let watch = self.0.watch.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(watch);
    }
}

impl Enrich {
    /// Listens to a request. `acknowledge` makes the first message.
    pub async fn subscribe(
        &self,
        request_id: &str,
        listens: Arc<dyn Listens>,
        acknowledge: impl FnOnce(Subscribed) -> String + Send,
    ) -> Result<Subscription, Unheard> {
        let inner = &self.inner;
        let listening = Arc::new(Listening {
            request_id: request_id.to_owned(),
            listens,
            inner: inner.clone(),
            watch: Mutex::default(),
            state: Mutex::default(),
        });
        let watch = inner.watches.begin(listening.clone());
        *listening.watch.lock().unwrap_or_else(PoisonError::into_inner) = Some(watch);
        // From here on it ends with the subscription.
        let subscription = Subscription(listening.clone());
        let key = request_key(request_id);
        listening.watch_also(vec![key.clone()], false).map_err(too_many)?;
        let store = inner.jobs.store();
        let mut resolved = Vec::new();
        if let Some(request) = store.kept_entries(vec![key]).await?.into_iter().next().flatten() {
            let waits = listening.take(&request);
            listening.watch_also(waits.clone(), false).map_err(too_many)?;
            resolved = store.kept_entries(waits).await?.into_iter().flatten().collect();
        }
        listening.acknowledge(&resolved, acknowledge);
        Ok(subscription)
    }
}

fn too_many(_: NoWatch) -> Unheard {
    Unheard::TooMany
}

impl Listening {
    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the request waits for, as far as it is new.
    fn take(&self, request: &Entry) -> Vec<EntryKey> {
        let Ok(told) = request.value.parse::<Told>() else { return Vec::new() };
        let mut state = self.state();
        let mut new = Vec::new();
        for (name, told) in told.0 {
            let (Some(since), Some(key)) = (told.since, Told::key(&name)) else { continue };
            let known = state.pending.get(&key) == Some(&since) || state.done.get(&key) == Some(&since);
            if !known {
                state.pending.insert(key.clone(), since);
                new.push(key);
            }
        }
        new
    }

    fn watch_also(&self, keys: Vec<EntryKey>, then_read: bool) -> Result<(), NoWatch> {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        match &*watch {
            Some(watch) if then_read => watch.add(keys),
            Some(watch) => watch.add_unread(keys),
            None => Ok(()),
        }
    }

    /// The acknowledgement, and then what is resolved.
    fn acknowledge(&self, resolved: &[Entry], acknowledge: impl FnOnce(Subscribed) -> String) {
        let replay = self.inner.guards.hold(Guard::Replay);
        let mut state = self.state();
        let early = std::mem::take(&mut state.early);
        let mut patches: Vec<(EntryKey, String)> = Vec::new();
        for entry in resolved.iter().chain(&early) {
            let Some(&since) = state.pending.get(&entry.key) else { continue };
            if ends_wait(entry, since) {
                state.pending.remove(&entry.key);
                state.done.insert(entry.key.clone(), since);
                patches.extend(self.patch(entry).filter(|_| replay).map(|patch| (entry.key.clone(), patch)));
            }
        }
        self.listens.push(acknowledge(Subscribed { pending: state.pending.len() }));
        for (key, patch) in patches {
            self.tell(&key, patch);
        }
        state.acknowledged = true;
    }

    fn tell(&self, key: &EntryKey, patch: String) -> bool {
        if let Some(decisions) = provider_of(&key.space).and_then(|name| self.inner.decisions.get(name)) {
            decisions.counted.patches.inc();
        }
        self.listens.push(patch)
    }

    /// What is told of an entry: the same text for all who listen to the request, one after the other.
    fn patch(&self, entry: &Entry) -> Option<String> {
        let mut last = self.inner.last_patch.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |last: &&LastPatch| {
            last.of == entry.key && last.updated_at == entry.updated_at && last.request_id == self.request_id
        };
        if let Some(last) = last.as_ref().filter(same) {
            return Some(last.text.clone());
        }
        let text = self.written(entry)?;
        *last = Some(LastPatch {
            of: entry.key.clone(),
            updated_at: entry.updated_at,
            request_id: self.request_id.clone(),
            text: text.clone(),
        });
        Some(text)
    }

    fn written(&self, entry: &Entry) -> Option<String> {
        let (state, provider) = (State::of(entry)?, provider_of(&entry.key.space)?);
        let json = |text: &str| serde_json::to_string(text).unwrap_or_default();
        let mut text = format!(
            r#"{{"type":"RESULT_PATCH","requestId":{},"placeId":{},"patch":{{"providers":{{{}:"#,
            json(&self.request_id),
            json(&entry.key.key),
            json(provider),
        );
        write_state(&mut text, &state, true);
        text.push('}');
        if provider == "wolt" && self.inner.legacy_wolt_field {
            let _ = write!(text, r#","wolt":"#);
            write_state(&mut text, &state, false);
        }
        text.push_str("}}");
        Some(text)
    }
}

impl Hears for Listening {
    fn hear(&self, entry: &Entry) -> Heard {
        if entry.key.space == UNCOPIED {
            let new = self.take(entry);
            if self.watch_also(new, true).is_ok() {
                return Heard::More;
            }
            // It waits for more than can be watched. It is not left to wait in silence.
            self.listens.end();
            return Heard::Nothing;
        }
        let mut state = self.state();
        let Some(&since) = state.pending.get(&entry.key) else { return Heard::Enough };
        if !ends_wait(entry, since) {
            return Heard::More;
        }
        if !state.acknowledged {
            state.early.push(entry.clone());
            return Heard::Enough;
        }
        state.pending.remove(&entry.key);
        state.done.insert(entry.key.clone(), since);
        drop(state);
        let told = self.patch(entry).is_none_or(|patch| self.tell(&entry.key, patch));
        if told { Heard::Enough } else { Heard::Nothing }
    }
}
