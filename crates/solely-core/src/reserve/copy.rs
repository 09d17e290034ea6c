//! What stands in Redis for others to read, and the leases that thin the crowd. Nothing here decides anything.
//!
//! Behind every commit: `reservation:ttl:ID`, `user:reservations:USER:MERCHANT` and `inventory:quantity:ID`. Two processes
//! may write a quantity in another order than they changed it; so what was touched within the hour is compared with the
//! store in turns, counted as drift where it differs, and written anew.
//!
//! Before a batch its inventory's lease is asked for, with those of its buyers. One that is held is waited for a moment,
//! and no longer: whoever goes on without it waits at the merchant's row.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::InventoryFilter;
use super::books::{Left, Touched};
use super::model::Reservation;
use super::operation::{Operation, Request};
use crate::clock::Timestamp;
use crate::companion::{Companion, Hinted, Note};
use crate::error::StoreError;
use crate::id::LeaseId;
use crate::metrics::Metrics;
use crate::store::Store;

/// How long a quantity is copied for.
const QUANTITY_LIFE: Duration = Duration::from_secs(3_600);
/// Inventories that are compared in one round.
const COMPARED_MAX: usize = 200;
/// Inventories that are remembered to be compared.
const TOUCHED_MAX: usize = 10_000;
/// How long a held lease is waited for,
const THIN_FOR: Duration = Duration::from_millis(3);
/// and how often it is asked for meanwhile.
const THIN_LOOK: Duration = Duration::from_millis(1);
/// Batches whose copies wait to be written.
const WRITES_MAX: usize = 1_024;
/// Buyers whose leases are taken with their inventory's.
const BUYERS_MAX: usize = 63;

/// The copies of one process. Clones share them.
#[derive(Clone)]
pub(super) struct ReserveCopies {
    companion: Arc<dyn Companion>,
    /// What the owners of this process's leases begin with.
    ours: String,
    lock_ttl: Duration,
    touched: Arc<Mutex<Known>>,
    merchants: moka::sync::Cache<String, String>,
    writes: mpsc::Sender<Vec<Note>>,
}

/// Inventories whose quantities have copies.
#[derive(Default)]
struct Known {
    /// Since when each was not touched, and which version that left.
    since: BTreeMap<String, (Instant, u64)>,
    /// Where the last round of comparing ended.
    after: String,
}

impl Known {
    /// The next that are to be compared. What was not touched for as long as a copy lives has none.
    fn next(&mut self) -> Vec<String> {
        self.since.retain(|_, (since, _)| since.elapsed() < QUANTITY_LIFE);
        let behind = (std::ops::Bound::Excluded(self.after.clone()), std::ops::Bound::Unbounded);
        let mut ids: Vec<String> =
            self.since.range(behind).map(|(id, _)| id.clone()).take(COMPARED_MAX).collect();
        if ids.len() < COMPARED_MAX {
            let from_the_start = self.since.keys().take_while(|id| **id <= self.after);
            ids.extend(from_the_start.take(COMPARED_MAX - ids.len()).cloned().collect::<Vec<_>>());
        }
        self.after = ids.last().cloned().unwrap_or_default();
        ids
    }
}

/// Leases that thin the crowd, until they are given back.
pub(super) struct Thinned {
    companion: Arc<dyn Companion>,
    keys: Vec<String>,
    owner: String,
}

impl Drop for Thinned {
    fn drop(&mut self) {
        let (companion, keys) = (self.companion.clone(), std::mem::take(&mut self.keys));
        let owner = std::mem::take(&mut self.owner);
        tokio::spawn(async move { companion.give_back(&keys, &owner).await });
    }
}

impl ReserveCopies {
    pub(super) fn new(companion: Arc<dyn Companion>, lock_ttl: Duration) -> Self {
        let merchants = moka::sync::Cache::builder().max_capacity(TOUCHED_MAX as u64).build();
        let (writes, mut written) = mpsc::channel(WRITES_MAX);
        let redis = companion.clone();
        tokio::spawn(async move {
            while let Some(notes) = written.recv().await {
                redis.note(notes).await;
            }
        });
        let ours = LeaseId::random().to_string();
        Self { companion, ours, lock_ttl, touched: Arc::default(), merchants, writes }
    }

    /// Takes the leases of a batch, if they are to be had within a moment.
    pub(super) async fn thin(&self, requests: &[Request]) -> Option<Thinned> {
        let mut keys = BTreeSet::new();
        for request in requests {
            let Operation::Reserve(new) = &request.operation else { continue };
            keys.insert(format!("lock:inventory:{}", new.inventory_id));
            if requests.len() <= BUYERS_MAX
                && let Some(merchant) = self.merchants.get(&new.inventory_id)
            {
                keys.insert(format!("lock:user_merchant:{}:{merchant}", new.user_id));
            }
        }
        if keys.is_empty() {
            return None;
        }
        let owner = format!("{}:{}", self.ours, LeaseId::random());
        let keys: Vec<String> = keys.into_iter().collect();
        let thinned = Thinned { companion: self.companion.clone(), keys, owner };
        let takes = async {
            while let Hinted::Held { owner, .. } =
                self.companion.take(&thinned.keys, &thinned.owner, self.lock_ttl).await
            {
                // Those of one process stand in lines anyway: what the batch before this one is just giving back
                // is not waited for.
                if owner.starts_with(&self.ours) {
                    break;
                }
                tokio::time::sleep(THIN_LOOK).await;
            }
        };
        // Whatever was taken, if anything was, is given back with it; only one's own is.
        let _ = tokio::time::timeout(THIN_FOR, takes).await;
        Some(thinned)
    }

    /// Writes what a batch has changed.
    pub(super) fn follow(&self, touched: Touched) {
        let Touched { now, items, reservations, .. } = touched;
        if items.is_empty() && reservations.is_empty() {
            return;
        }
        let mut notes = Vec::with_capacity(items.len() + 2 * reservations.len());
        // Until they stand in line to be written: of two batches of an item the later one is written last.
        let mut known = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        for Left { id, version, free } in items {
            if known.since.get(&id).is_some_and(|(_, later)| *later > version) {
                continue;
            }
            notes.push(quantity(&id, free));
            if known.since.len() < TOUCHED_MAX || known.since.contains_key(&id) {
                known.since.insert(id, (Instant::now(), version));
            }
        }
        for reservation in &reservations {
            self.merchants.insert(reservation.box_inventory_id.clone(), reservation.merchant_id.clone());
            notes.extend(of_reservation(reservation, now));
        }
        // One after the other; what there is no room for is written with the next change.
        let _ = self.writes.try_send(notes);
    }

    /// The next inventories to be compared; none while there is nothing to be compared with.
    pub(super) fn next(&self) -> Vec<String> {
        if !self.companion.ok() {
            return Vec::new();
        }
        self.touched.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    /// Those whose copies differ from the store.
    pub(super) async fn differing(
        &self,
        store: &dyn Store,
        ids: Vec<String>,
    ) -> Result<Vec<String>, StoreError> {
        let found = self.compared(store, ids).await?;
        Ok(found.into_iter().map(|(id, _, _)| id).collect())
    }

    /// Writes those anew whose copies still differ, and counts by how much.
    pub(super) async fn repair(
        &self,
        store: &dyn Store,
        metrics: &Metrics,
        ids: Vec<String>,
    ) -> Result<(), StoreError> {
        let found = self.compared(store, ids).await?;
        let drift: u64 = found.iter().map(|(_, says, free)| u64::from(says.abs_diff(*free))).sum();
        metrics.reserve.drifted(drift);
        if !found.is_empty() {
            tracing::warn!(drift, "copies of quantities differed from the store and were written anew");
            self.companion.note(found.iter().map(|(id, _, free)| quantity(id, *free)).collect()).await;
        }
        Ok(())
    }

    /// Inventories whose copies differ: what they say, and what is free.
    async fn compared(
        &self,
        store: &dyn Store,
        ids: Vec<String>,
    ) -> Result<Vec<(String, u32, u32)>, StoreError> {
        let names: Vec<String> = ids.iter().map(|id| quantity_name(id)).collect();
        let before = free(store, &ids).await?;
        let copies = self.companion.noted(&names).await;
        let after = free(store, &ids).await?;
        let mut differ = Vec::new();
        for (((id, before), after), copy) in ids.into_iter().zip(before).zip(after).zip(copies) {
            // What moves while it is looked at says nothing.
            let (Some(free), Some(copy)) = (after.filter(|free| Some(*free) == before), copy) else {
                continue;
            };
            let says: u32 = copy.parse().unwrap_or(u32::MAX);
            if says != free {
                differ.push((id, says, free));
            }
        }
        Ok(differ)
    }
}

async fn free(store: &dyn Store, ids: &[String]) -> Result<Vec<Option<u32>>, StoreError> {
    let limit = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    let filter = InventoryFilter { ids: Some(ids.to_vec()), limit, ..InventoryFilter::default() };
    let found = store.inventories(filter).await?;
    let of = |id: &String| found.iter().find(|item| item.id == *id).map(|item| item.remaining_quantity);
    Ok(ids.iter().map(of).collect())
}

fn quantity_name(id: &str) -> String {
    format!("inventory:quantity:{id}")
}

fn quantity(id: &str, free: u32) -> Note {
    Note::Set { name: quantity_name(id), value: free.to_string(), ttl: QUANTITY_LIFE }
}

fn of_reservation(reservation: &Reservation, now: Timestamp) -> [Note; 2] {
    let name = format!("reservation:ttl:{}", reservation.id);
    let set = format!("user:reservations:{}:{}", reservation.user_id, reservation.merchant_id);
    let member = reservation.id.to_string();
    let ttl = reservation.expires_at.since(now);
    if !reservation.status.is_open() || ttl.is_zero() {
        return [Note::Delete { name }, Note::Remove { name: set, member }];
    }
    let value = serde_json::json!({
        "reservationId": reservation.id,
        "userId": reservation.user_id,
        "boxInventoryId": reservation.box_inventory_id,
        "expiresAt": reservation.expires_at,
    });
    [Note::Set { name, value: value.to_string(), ttl }, Note::Add { name: set, member, ttl }]
}
