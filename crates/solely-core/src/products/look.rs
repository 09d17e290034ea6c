//! Looking at what is cached of a key: in memory at once, else together with whoever else wants to know.
//!
//! A look that is under way answers nobody who came after it began, because what it finds may be from before them; those
//! wait for one more look, all together. However large a crowd is, it is two looks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::flight::Failed;
use super::system::{Inner, Shelved};
use crate::cache::{Age, EntryKey};
use crate::clock::Timestamp;
use crate::error::StoreError;

/// A catalogue that takes more is not kept with its copy.
const MADE_MAX: usize = 4 * 1024 * 1024;

/// What may be served of a key, and when it was looked at.
#[derive(Clone, Debug)]
pub(super) struct Cached {
    pub(super) shelved: Arc<Shelved>,
    pub(super) as_of: Timestamp,
}

/// What a look finds.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    /// A catalogue.
    Cached(Cached),
    /// None, and the key is to be left alone.
    Failed(Failed),
    /// None.
    Nothing,
}

type Found = watch::Receiver<Option<Result<Seen, StoreError>>>;
type Finds = watch::Sender<Option<Result<Seen, StoreError>>>;

/// The looks that are under way, each with the one that comes after it, if someone wants one.
#[derive(Default)]
pub(super) struct Looks(Mutex<HashMap<EntryKey, Option<(Finds, Found)>>>);

impl Looks {
    fn lock(&self) -> MutexGuard<'_, HashMap<EntryKey, Option<(Finds, Found)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The look after the one that is under way; none if nobody wants it, and then none is under way.
    fn next(&self, key: &EntryKey) -> Option<Finds> {
        let mut looks = self.lock();
        let wanted = looks.get_mut(key).and_then(Option::take);
        if wanted.is_none() {
            looks.remove(key);
        }
        wanted.map(|(finds, _)| finds)
    }
}

/// A row of looks at a key. However it ends, a panic included, another can be begun.
struct UnderWay<'a> {
    inner: &'a Inner,
    key: &'a EntryKey,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.inner.looks.lock().remove(self.key);
    }
}

impl Inner {
    /// What memory has of a key, if that can be trusted.
    pub(super) fn at_hand(&self, key: &EntryKey) -> Option<Cached> {
        let remembered = self.cache.remembered(key)?;
        let shelved = if let Some(shelved) = remembered.made::<Shelved>() {
            shelved
        } else {
            let shelved = self.shelve(remembered.entry())?;
            // One that is large would take the room of all others; it is on the shelf.
            if shelved.catalogue.size() <= MADE_MAX {
                self.cache.keep_made(key, &remembered, shelved.clone(), shelved.catalogue.size());
            }
            shelved
        };
        let as_of = remembered.as_of;
        (as_of < remembered.entry().stale_until).then_some(Cached { shelved, as_of })
    }

    /// What there is of a key.
    pub(super) async fn see(self: &Arc<Self>, key: &EntryKey) -> Result<Seen, StoreError> {
        if let Some(cached) = self.at_hand(key) {
            return Ok(Seen::Cached(cached));
        }
        let mut found = self.look_together(key);
        let seen = found.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
        seen.unwrap_or_else(|| Err(StoreError::Unavailable("the look at the cache was lost".to_owned())))
    }

    fn look_together(self: &Arc<Self>, key: &EntryKey) -> Found {
        let mut looks = self.looks.lock();
        if let Some(next) = looks.get_mut(key) {
            return next.get_or_insert_with(|| watch::channel(None)).1.clone();
        }
        looks.insert(key.clone(), None);
        drop(looks);
        let (finds, found) = watch::channel(None);
        let (inner, key) = (self.clone(), key.clone());
        tokio::spawn(async move {
            let under_way = UnderWay { inner: &inner, key: &key };
            let mut finds = finds;
            loop {
                let seen = inner.look_at(&key).await;
                finds.send_replace(Some(seen));
                match inner.looks.next(&key) {
                    Some(next) => finds = next,
                    None => break,
                }
            }
            // It is gone already, and may be someone else's.
            std::mem::forget(under_way);
        });
        found
    }

    /// Looks at a catalogue; at its failure only if there is none, so that a copy is enough while the store is away.
    async fn look_at(&self, key: &EntryKey) -> Result<Seen, StoreError> {
        let found = self.cache.read(vec![key.clone()]).await?.into_iter().next().flatten();
        if let Some(entry) = found.filter(|entry| entry.age != Age::Gone)
            && let Some(shelved) = self.shelve(&entry)
        {
            return Ok(Seen::Cached(Cached { shelved, as_of: entry.as_of }));
        }
        Ok(self.failure(key).await?.map_or(Seen::Nothing, Seen::Failed))
    }
}
