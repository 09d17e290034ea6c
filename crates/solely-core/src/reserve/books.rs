//! The rows that a batch is decided on, and what becomes of them.
//!
//! An engine locks the merchants that a batch touches, looks at the clock, fills the books with the rows that
//! [`Wanted`] names, has the batch decided ([`super::decide`]) and writes what has changed, all in one
//! transaction. Deciding is pure: the same rows, requests and instant have the same outcome on every engine.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use super::model::{BoxType, Inventory, Merchant, PaymentStatus, Reservation, ReservationStatus};
use super::operation::{IdempotencyKey, Operation, Request, Verdict};
use crate::clock::Timestamp;
use crate::event::NewEvent;
use crate::id::ReservationId;

/// The rows that a batch needs, in the order in which they are locked and read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Inventories, each with the units that are asked of it: so many of its lapsed holds may be needed.
    pub items: BTreeMap<String, u64>,
    /// Reservations, with the inventories they are of.
    pub reservations: BTreeSet<ReservationId>,
    /// Who buys of which inventory: their open reservation at its merchant is needed, with its inventory.
    pub buyers: BTreeSet<(String, String)>,
    /// Merchants,
    pub merchants: BTreeSet<String>,
    /// and box types, with their merchants.
    pub box_types: BTreeSet<String>,
    /// Keys of idempotency.
    pub keys: BTreeSet<IdempotencyKey>,
}

impl Wanted {
    /// What these requests need.
    pub fn of(requests: &[Request]) -> Self {
        let mut wanted = Self::default();
        for request in requests {
            wanted.keys.extend(request.idempotency.iter().map(|(key, _)| key.clone()));
            match &request.operation {
                Operation::CreateMerchant(merchant) => {
                    wanted.merchants.insert(merchant.id.clone());
                }
                Operation::CreateBoxType(made) => {
                    wanted.merchants.insert(made.merchant_id.clone());
                    wanted.box_types.insert(made.id.clone());
                }
                Operation::CreateInventory(made) => {
                    wanted.box_types.insert(made.box_type_id.clone());
                    wanted.items.entry(made.id.clone()).or_default();
                }
                Operation::Change(change) => {
                    let units = wanted.items.entry(change.inventory_id.clone()).or_default();
                    *units += change.add.min(0).unsigned_abs();
                }
                Operation::Reserve(new) => {
                    *wanted.items.entry(new.inventory_id.clone()).or_default() += u64::from(new.quantity);
                    wanted.buyers.insert((new.inventory_id.clone(), new.user_id.clone()));
                }
                Operation::Confirm(id)
                | Operation::Cancel(id)
                | Operation::Expire(id)
                | Operation::Collect { id, .. }
                | Operation::Extend { id, .. } => {
                    wanted.reservations.insert(*id);
                }
            }
        }
        wanted
    }
}

/// What a batch has changed, for those who keep copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// When.
    pub now: Timestamp,
    /// Inventories, and what is free of each.
    pub items: Vec<(String, u32)>,
    /// Reservations as they are.
    pub reservations: Vec<Reservation>,
}

/// A row as it was read, and as it is to be.
#[derive(Clone, Debug)]
pub(super) struct Kept<T> {
    /// None: it is new.
    before: Option<T>,
    pub(super) now: T,
}

impl<T: PartialEq> Kept<T> {
    fn changed(&self) -> bool {
        self.before.as_ref().is_some_and(|before| *before != self.now)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Books {
    pub(super) now: Timestamp,
    pub(super) merchants: HashMap<String, Kept<Merchant>>,
    pub(super) box_types: HashMap<String, Kept<BoxType>>,
    pub(super) items: HashMap<String, Kept<Inventory>>,
    pub(super) reservations: HashMap<ReservationId, Kept<Reservation>>,
    /// Who has an open reservation at which merchant.
    pub(super) open: HashMap<(String, String), ReservationId>,
    /// Holds of an inventory whose time is over, oldest first.
    pub(super) lapsed: HashMap<String, VecDeque<ReservationId>>,
    pub(super) keys: HashMap<IdempotencyKey, (String, Verdict)>,
    pub(super) busy: HashSet<IdempotencyKey>,
    pub(super) new_keys: Vec<(IdempotencyKey, String, Verdict)>,
    pub(super) events: Vec<NewEvent>,
}

impl Books {
    /// Empty ones, at an instant of the store's clock that was looked at under the merchants' locks.
    pub fn at(now: Timestamp) -> Self {
        Self {
            now,
            merchants: HashMap::new(),
            box_types: HashMap::new(),
            items: HashMap::new(),
            reservations: HashMap::new(),
            open: HashMap::new(),
            lapsed: HashMap::new(),
            keys: HashMap::new(),
            busy: HashSet::new(),
            new_keys: Vec::new(),
            events: Vec::new(),
        }
    }

    /// A merchant that is there.
    pub fn merchant(&mut self, row: Merchant) {
        self.merchants.insert(row.id.clone(), Kept { before: Some(row.clone()), now: row });
    }

    /// A box type that is there.
    pub fn box_type(&mut self, row: BoxType) {
        self.box_types.insert(row.id.clone(), Kept { before: Some(row.clone()), now: row });
    }

    /// An inventory that is there.
    pub fn item(&mut self, row: Inventory) {
        self.items.insert(row.id.clone(), Kept { before: Some(row.clone()), now: row });
    }

    /// A reservation that is there.
    pub fn reservation(&mut self, row: Reservation) {
        if row.status.is_open() {
            self.open.insert((row.merchant_id.clone(), row.user_id.clone()), row.id);
        }
        self.reservations.insert(row.id, Kept { before: Some(row.clone()), now: row });
    }

    /// The same, and it is one of the oldest holds of its inventory whose time is over; in their order.
    pub fn lapsed(&mut self, row: Reservation) {
        self.lapsed.entry(row.box_inventory_id.clone()).or_default().push_back(row.id);
        self.reservation(row);
    }

    /// A key that was used before: the digest of what was asked, and what was decided.
    pub fn key(&mut self, key: IdempotencyKey, digest: String, verdict: Verdict) {
        self.keys.insert(key, (digest, verdict));
    }

    /// A key whose first request is under way elsewhere.
    pub fn busy_key(&mut self, key: IdempotencyKey) {
        self.busy.insert(key);
    }

    /// When it is.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    pub(super) fn add_merchant(&mut self, row: Merchant) {
        self.merchants.insert(row.id.clone(), Kept { before: None, now: row });
    }

    pub(super) fn add_box_type(&mut self, row: BoxType) {
        self.box_types.insert(row.id.clone(), Kept { before: None, now: row });
    }

    pub(super) fn add_item(&mut self, row: Inventory) {
        self.items.insert(row.id.clone(), Kept { before: None, now: row });
    }

    pub(super) fn add_reservation(&mut self, row: Reservation) {
        self.open.insert((row.merchant_id.clone(), row.user_id.clone()), row.id);
        self.reservations.insert(row.id, Kept { before: None, now: row });
    }

    /// Merchants to be inserted.
    pub fn new_merchants(&self) -> Vec<&Merchant> {
        sorted(new(&self.merchants), |row| row.id.clone())
    }

    /// Box types to be inserted.
    pub fn new_box_types(&self) -> Vec<&BoxType> {
        sorted(new(&self.box_types), |row| row.id.clone())
    }

    /// Inventories to be inserted.
    pub fn new_items(&self) -> Vec<&Inventory> {
        sorted(new(&self.items), |row| row.id.clone())
    }

    /// Inventories to be updated, if each still has the version that it is given with.
    pub fn changed_items(&self) -> Vec<(&Inventory, u64)> {
        // What is counted when it is read is no change.
        let changed = |kept: &&Kept<Inventory>| {
            let before = kept.before.as_ref();
            before.is_some_and(|before| Inventory { lapsed: kept.now.lapsed, ..before.clone() } != kept.now)
        };
        let rows = self.items.values().filter(changed);
        let rows = rows.map(|kept| (&kept.now, kept.before.as_ref().map_or(0, |before| before.version)));
        sorted(rows, |(row, _)| row.id.clone())
    }

    /// Reservations to be inserted.
    pub fn new_reservations(&self) -> Vec<&Reservation> {
        sorted(new(&self.reservations), |row| row.id)
    }

    /// Reservations to be updated, if each still has the statuses that it is given with.
    pub fn changed_reservations(&self) -> Vec<(&Reservation, ReservationStatus, PaymentStatus)> {
        let rows = self.reservations.values().filter(|kept| kept.changed()).filter_map(|kept| {
            let before = kept.before.as_ref()?;
            Some((&kept.now, before.status, before.payment_status))
        });
        sorted(rows, |(row, _, _)| row.id)
    }

    /// What is changed by all this.
    pub fn touched(&self) -> Touched {
        let items =
            self.new_items().into_iter().chain(self.changed_items().into_iter().map(|(item, _)| item));
        let changed = self.changed_reservations().into_iter().map(|(changed, _, _)| changed);
        Touched {
            now: self.now,
            items: items.map(|item| (item.id.clone(), item.free())).collect(),
            reservations: self.new_reservations().into_iter().chain(changed).cloned().collect(),
        }
    }

    /// Keys to be inserted.
    pub fn new_keys(&self) -> &[(IdempotencyKey, String, Verdict)] {
        &self.new_keys
    }

    /// What is to be told.
    pub fn events(&self) -> &[NewEvent] {
        &self.events
    }
}

fn new<K, T>(rows: &HashMap<K, Kept<T>>) -> impl Iterator<Item = &T> {
    rows.values().filter(|kept| kept.before.is_none()).map(|kept| &kept.now)
}

/// In the order of their keys, so that two batches cannot wait for each other.
fn sorted<T, K: Ord>(rows: impl Iterator<Item = T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut rows: Vec<T> = rows.collect();
    rows.sort_by_cached_key(key);
    rows
}
