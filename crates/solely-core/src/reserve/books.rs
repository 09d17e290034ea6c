//! The rows that a batch is decided on, and what becomes of them.
//!
//! An engine locks the merchants that a batch touches, looks at the clock, fills the books with the rows that
//! [`Wanted`] names, has the batch decided ([`super::decide`]) and writes what has changed, all in one
//! transaction. Deciding is pure: the same rows, requests and instant have the same outcome on every engine.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use super::making::{self, Making};
use super::model::{BoxType, Inventory, Merchant, PaymentStatus, Reservation, ReservationStatus};
use super::operation::{IdempotencyKey, Operation, Request, Verdict};
use super::waitlist::{Line, Wait, WaitStatus};
use crate::clock::Timestamp;
use crate::event::NewEvent;
use crate::id::{ReservationId, WaitId};
use crate::job::NewJob;

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
    /// Entries of waiting lists.
    pub waits: BTreeSet<WaitId>,
    /// Inventories that someone is to wait for.
    pub joined: BTreeSet<String>,
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
                Operation::Join(new) => {
                    wanted.items.entry(new.inventory_id.clone()).or_default();
                    wanted.buyers.insert((new.inventory_id.clone(), new.user_id.clone()));
                    wanted.joined.insert(new.inventory_id.clone());
                }
                Operation::Leave(id) => {
                    wanted.waits.insert(*id);
                }
                Operation::Confirm(id)
                | Operation::Accept(id)
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

/// What a batch has left of an inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Of which.
    pub id: String,
    /// Which version this is; what is told of an earlier one is older.
    pub version: u64,
    /// Units that can be had.
    pub free: u32,
}

/// What a batch has changed, for those who keep copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// When.
    pub now: Timestamp,
    /// Inventories.
    pub items: Vec<Left>,
    /// Reservations as they are.
    pub reservations: Vec<Reservation>,
    /// Whether something is due for delivery.
    pub notified: bool,
}

/// A row as it was read, and as it is to be.
#[derive(Clone, Debug)]
pub(super) struct Kept<T> {
    /// None: it is new.
    before: Option<T>,
    pub(super) now: T,
}

impl<T: Clone> Kept<T> {
    /// A row that is there.
    pub(super) fn read(row: T) -> Self {
        Self { before: Some(row.clone()), now: row }
    }
}

impl<T> Kept<T> {
    /// One that is made.
    pub(super) fn made(row: T) -> Self {
        Self { before: None, now: row }
    }
}

impl<T: PartialEq> Kept<T> {
    pub(super) fn changed(&self) -> bool {
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
    /// Reservations that were made and are told of by their own rows, unless there are events.
    pub(super) makings: Vec<Making>,
    /// Whether what becomes of reservations is to be delivered, and of which something is.
    pub(super) notify: bool,
    pub(super) notified: BTreeSet<ReservationId>,
    /// Who buys of which inventory, and which are waited for from now on.
    pub(super) buyers: BTreeSet<(String, String)>,
    pub(super) joined: BTreeSet<String>,
    pub(super) waits: HashMap<WaitId, Kept<Wait>>,
    /// Live entries of a user at a merchant.
    pub(super) waits_of: HashMap<(String, String), BTreeSet<WaitId>>,
    /// Who waits for an inventory, in their order.
    pub(super) lines: HashMap<String, BTreeMap<u64, WaitId>>,
    pub(super) lines_known: HashMap<String, Line>,
    /// How many are ahead of an entry.
    pub(super) ahead: HashMap<WaitId, u64>,
    /// Where someone waits: what time has ended.
    pub(super) overdue: Vec<ReservationId>,
    /// Inventories of which something may be offered.
    pub(super) freed: BTreeSet<String>,
}

impl Books {
    /// Empty ones, at an instant of the store's clock that was looked at under the merchants' locks.
    pub fn at(now: Timestamp, wanted: &Wanted) -> Self {
        Self {
            now,
            notify: false,
            notified: BTreeSet::new(),
            buyers: wanted.buyers.clone(),
            joined: wanted.joined.clone(),
            waits: HashMap::new(),
            waits_of: HashMap::new(),
            lines: HashMap::new(),
            lines_known: HashMap::new(),
            ahead: HashMap::new(),
            overdue: Vec::new(),
            freed: BTreeSet::new(),
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
            makings: Vec::new(),
        }
    }

    /// A merchant that is there.
    pub fn merchant(&mut self, row: Merchant) {
        self.merchants.insert(row.id.clone(), Kept::read(row));
    }

    /// A box type that is there.
    pub fn box_type(&mut self, row: BoxType) {
        self.box_types.insert(row.id.clone(), Kept::read(row));
    }

    /// An inventory that is there.
    pub fn item(&mut self, row: Inventory) {
        self.items.insert(row.id.clone(), Kept::read(row));
    }

    /// A reservation that is there.
    pub fn reservation(&mut self, row: Reservation) {
        if row.status.is_open() {
            self.open.insert((row.merchant_id.clone(), row.user_id.clone()), row.id);
        }
        self.reservations.insert(row.id, Kept::read(row));
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
        self.merchants.insert(row.id.clone(), Kept::made(row));
    }

    pub(super) fn add_box_type(&mut self, row: BoxType) {
        self.box_types.insert(row.id.clone(), Kept::made(row));
    }

    pub(super) fn add_item(&mut self, row: Inventory) {
        self.items.insert(row.id.clone(), Kept::made(row));
    }

    pub(super) fn add_reservation(&mut self, row: Reservation) {
        self.open.insert((row.merchant_id.clone(), row.user_id.clone()), row.id);
        self.reservations.insert(row.id, Kept::made(row));
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

    /// Inventories as they are once all this is written.
    pub fn items_written(&self) -> impl Iterator<Item = Inventory> {
        let changed: HashSet<&str> = self.changed_items().iter().map(|(item, _)| item.id.as_str()).collect();
        self.items.values().map(move |kept| {
            let version = kept.now.version + u64::from(changed.contains(kept.now.id.as_str()));
            Inventory { version, ..kept.now.clone() }
        })
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

    /// Whether this batch has ended a reservation.
    pub(super) fn has_ended(&self, id: ReservationId) -> bool {
        self.reservations.get(&id).is_some_and(|kept| kept.changed() && !kept.now.status.is_open())
    }

    /// Entries of waiting lists to be inserted.
    pub fn new_waits(&self) -> Vec<&Wait> {
        sorted(new(&self.waits), |row| row.id)
    }

    /// Entries to be updated, if each still has the status that it is given with.
    pub fn changed_waits(&self) -> Vec<(&Wait, WaitStatus)> {
        let rows = self.waits.values().filter(|kept| kept.changed());
        let rows = rows.filter_map(|kept| Some((&kept.now, kept.before.as_ref()?.status)));
        sorted(rows, |(row, _)| row.id)
    }

    /// What is changed by all this, once it is written.
    pub fn touched(self) -> Touched {
        let new = self.new_items().into_iter().map(|item| (item, item.version));
        let items = new.chain(self.changed_items().into_iter().map(|(item, before)| (item, before + 1)));
        let left =
            |(item, version): (&Inventory, u64)| Left { id: item.id.clone(), version, free: item.free() };
        let items = items.map(left).collect();
        let is_new = |kept: &Kept<Reservation>| kept.before.is_none() || kept.changed();
        let reservations = self.reservations.into_values().filter(is_new).map(|kept| kept.now).collect();
        Touched { now: self.now, items, reservations, notified: !self.notified.is_empty() }
    }

    /// Whose an inventory is that was read.
    pub fn merchant_of(&self, item: &str) -> Option<&str> {
        self.items.get(item).map(|item| item.now.merchant_id.as_str())
    }

    /// Keys to be inserted.
    pub fn new_keys(&self) -> &[(IdempotencyKey, String, Verdict)] {
        &self.new_keys
    }

    /// Jobs that deliver what is told.
    pub fn new_jobs(&self) -> Vec<NewJob> {
        self.notified.iter().map(|id| super::notify::job(*id)).collect()
    }

    /// What is to be told.
    pub fn events(&self) -> &[NewEvent] {
        &self.events
    }

    /// What the rows of new reservations tell by themselves, in the order of their ids. Nothing, if there are events.
    pub fn makings(&self) -> &[Making] {
        &self.makings
    }

    /// Once all is decided: rows tell of themselves only if there is nothing else to tell.
    pub(super) fn settle_makings(&mut self) {
        if self.events.is_empty() {
            self.makings.sort_by_key(|made| made.id);
            return;
        }
        for made in std::mem::take(&mut self.makings).into_iter().rev() {
            if let Some(row) = self.reservations.get(&made.id) {
                let event = making::making(&row.now, made.request_id, made.until);
                self.events.insert(made.behind, event);
            }
        }
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
