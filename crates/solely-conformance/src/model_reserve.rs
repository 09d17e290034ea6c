//! Random sequences of everything that changes stock, with jumps of the clock, against a plain model.
//!
//! The model has no counters: it is a list of reservations, and what is free is what the list leaves. Beside it is a list
//! of those who wait; whenever a merchant is touched, what is free there goes to the first who may have it. After every
//! step what the store shows is what the model says, swept or not, and every box is somewhere: nothing is free while
//! someone waits who may have it, and nobody who walks in is faster.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use proptest::prelude::*;
use solely_core::reserve::{
    Change, InventoryView, NewReservation, NewWait, Operation, PaymentStatus, Refusal, Request, Reservation,
    ReservationFilter, ReservationInner, ReservationStatus, Reserve, Verdict, WaitFilter, WaitStatus,
};
use solely_core::{ReservationId, Store, Timestamp, WaitId};

use crate::reserve::{Shop, TIMES, new};
use crate::waitlist::join;
use crate::{Engine, World, seed};

const MINUTE: Duration = Duration::from_secs(60);
/// What a case takes, at most.
const MOMENT: Duration = Duration::from_secs(30);
/// Who buys and waits.
const USERS: u8 = 6;
/// Boxes, and whose they are.
const ITEMS: [(&str, &str); 3] = [("a", "m1"), ("b", "m1"), ("c", "m2")];

#[derive(Clone, Debug)]
enum Op {
    Reserve {
        user: u8,
        item: usize,
        quantity: u32,
        minutes: Option<u64>,
    },
    Confirm(usize),
    Collect(usize),
    Cancel(usize),
    Extend(usize, u64),
    Change {
        item: usize,
        add: i64,
        closed: Option<bool>,
    },
    Join {
        user: u8,
        item: usize,
    },
    Leave(usize),
    Accept(usize),
    /// In one batch, in this order.
    Together(Vec<Op>),
    Advance {
        minutes: u64,
    },
    Sweep,
    Restart,
    /// What stands beside the store goes away, or comes back empty.
    Flap,
}

/// What stands beside a store, and may go away and come back.
#[async_trait]
pub trait Beside: Send + Sync {
    /// reserve of a new process on this store, with it.
    async fn reserve(&self, store: Arc<dyn Store>) -> Reserve;

    /// Ends it, or starts it again, empty.
    async fn flap(&self);
}

fn single() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..USERS, 0..3_usize, 1..4_u32, prop::option::of(15..31_u64))
            .prop_map(|(user, item, quantity, minutes)| Op::Reserve { user, item, quantity, minutes }),
        2 => (0..32_usize).prop_map(Op::Confirm),
        2 => (0..32_usize).prop_map(Op::Collect),
        2 => (0..32_usize).prop_map(Op::Cancel),
        2 => (0..32_usize, 15..31_u64).prop_map(|(which, minutes)| Op::Extend(which, minutes)),
        1 => (0..3_usize, -3..4_i64, prop_oneof![8 => Just(None), 1 => Just(Some(true)), 2 => Just(Some(false))])
            .prop_map(|(item, add, closed)| Op::Change { item, add, closed }),
        4 => (0..USERS, 0..3_usize).prop_map(|(user, item)| Op::Join { user, item }),
        1 => (0..16_usize).prop_map(Op::Leave),
        3 => (0..32_usize).prop_map(Op::Accept),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => single(),
        3 => prop::collection::vec(single(), 2..6).prop_map(Op::Together),
        4 => (1..26_u64).prop_map(|minutes| Op::Advance { minutes }),
        2 => Just(Op::Sweep),
        1 => Just(Op::Restart),
        1 => Just(Op::Flap),
    ]
}

#[derive(Clone, Debug)]
struct Item {
    id: &'static str,
    merchant: &'static str,
    original: u32,
    withdrawn: u32,
    closed: bool,
    pickup_end: Timestamp,
}

/// Someone who waits, or waited.
#[derive(Clone, Debug)]
struct Waiter {
    id: WaitId,
    user: String,
    item: &'static str,
    /// What was offered; it may have ended since.
    offer: Option<ReservationId>,
    left: bool,
}

#[derive(Default)]
struct Model {
    items: Vec<Item>,
    reservations: Vec<Reservation>,
    waiters: Vec<Waiter>,
    /// Offers that were taken.
    taken: Vec<ReservationId>,
}

/// The code of an offer that the model has not seen yet.
const UNSEEN: &str = "unseen";

impl Model {
    fn sold(&self, item: &str, now: Timestamp) -> u32 {
        let takes = |one: &&Reservation| {
            let paid = one.payment_status == PaymentStatus::Paid;
            one.box_inventory_id == item
                && match one.status {
                    ReservationStatus::Completed => true,
                    ReservationStatus::Active | ReservationStatus::Offered => paid || now < one.expires_at,
                    // A no-show stays sold.
                    ReservationStatus::Expired => paid,
                    ReservationStatus::Cancelled => false,
                }
        };
        self.reservations.iter().filter(takes).map(|one| one.quantity).sum()
    }

    fn free(&self, item: &Item, now: Timestamp) -> u32 {
        item.original - item.withdrawn - self.sold(item.id, now)
    }

    /// Whether someone has a reservation at a merchant that is live.
    fn has_one(&self, user: &str, merchant: &str, now: Timestamp) -> bool {
        let live = |one: &Reservation| {
            one.user_id == user && one.merchant_id == merchant && one.status.is_open() && now < one.expires_at
        };
        self.reservations.iter().any(live)
    }

    /// Those in line for an item, in their order.
    fn line(&self, item: &str) -> Vec<&Waiter> {
        let waits = |waiter: &&Waiter| waiter.item == item && waiter.offer.is_none() && !waiter.left;
        self.waiters.iter().filter(waits).collect()
    }

    /// What someone who walks in could take.
    fn for_walk_ins(&self, item: &Item, now: Timestamp) -> u32 {
        let may = |waiter: &&&Waiter| !self.has_one(&waiter.user, item.merchant, now);
        let first = u32::try_from(self.line(item.id).iter().filter(may).count()).expect("few");
        self.free(item, now).saturating_sub(first)
    }

    /// What is free at these merchants goes to the first who may have it.
    fn settle(&mut self, merchants: &[&str], now: Timestamp) {
        let items: Vec<Item> =
            self.items.iter().filter(|item| merchants.contains(&item.merchant)).cloned().collect();
        for item in items {
            while self.free(&item, now) > 0 && !item.closed && now < item.pickup_end {
                let may = |waiter: &&Waiter| !self.has_one(&waiter.user, item.merchant, now);
                let Some(next) = self.line(item.id).into_iter().find(may).map(|waiter| waiter.id) else {
                    break;
                };
                let waiter = self.waiters.iter_mut().find(|waiter| waiter.id == next).expect("is in line");
                let id = ReservationId::new();
                waiter.offer = Some(id);
                self.reservations.push(Reservation {
                    id,
                    user_id: waiter.user.clone(),
                    merchant_id: item.merchant.to_owned(),
                    box_inventory_id: item.id.to_owned(),
                    status: ReservationStatus::Offered,
                    payment_status: PaymentStatus::Pending,
                    pickup_code: UNSEEN.to_owned(),
                    quantity: 1,
                    total_amount: 450,
                    currency: "EUR".to_owned(),
                    reserved_at: now,
                    expires_at: now.plus(TIMES.offer).min(item.pickup_end),
                    completed_at: None,
                    cancelled_at: None,
                    inner: ReservationInner { offered: true, ..ReservationInner::default() },
                });
            }
        }
    }

    /// A place in line, or what became of it: its position and its status.
    fn join(&mut self, new: &NewWait, now: Timestamp) -> Result<(WaitId, u64, WaitStatus), Refusal> {
        let item = self.items.iter().find(|item| item.id == new.inventory_id).expect("is there").clone();
        if now >= item.pickup_end {
            return Err(Refusal::PickupWindowClosed);
        }
        let live = |waiter: &&Waiter| {
            let offered = |id| self.reservations.iter().find(|one| one.id == id).expect("was made");
            let is_open =
                |one: &Reservation| one.status == ReservationStatus::Offered && now < one.expires_at;
            waiter.item == item.id
                && waiter.user == new.user_id
                && !waiter.left
                && waiter.offer.is_none_or(|id| is_open(offered(id)))
        };
        let id = match self.waiters.iter().find(live) {
            Some(waiter) => waiter.id,
            None if item.closed => return Err(Refusal::BoxUnavailable),
            None => {
                let (id, user) = (new.id, new.user_id.clone());
                self.waiters.push(Waiter { id, user, item: item.id, offer: None, left: false });
                self.settle(&[item.merchant], now);
                new.id
            }
        };
        let place = self.line(item.id).iter().position(|waiter| waiter.id == id);
        Ok(match place {
            Some(place) => (id, place as u64 + 1, WaitStatus::Waiting),
            None => (id, 0, WaitStatus::Offered),
        })
    }

    fn leave(&mut self, id: WaitId, now: Timestamp) -> Result<(), Refusal> {
        let waiter = self.waiters.iter_mut().find(|waiter| waiter.id == id).expect("was made");
        let Some(offer) = waiter.offer else {
            waiter.left = true;
            return Ok(());
        };
        let one = self.reservations.iter_mut().find(|one| one.id == offer).expect("was made");
        match one.status {
            ReservationStatus::Offered if now < one.expires_at => {
                one.status = ReservationStatus::Cancelled;
                one.cancelled_at = Some(now);
                Ok(())
            }
            ReservationStatus::Offered | ReservationStatus::Expired => Ok(()),
            // What was taken, and then given back, was taken.
            _ if self.taken.contains(&offer) => Err(Refusal::InvalidState),
            _ => Ok(()),
        }
    }

    fn reserve(&mut self, asked: &NewReservation, now: Timestamp) -> Result<Reservation, Refusal> {
        let item = self.items.iter().find(|item| item.id == asked.inventory_id).expect("is there").clone();
        if now >= item.pickup_end {
            return Err(Refusal::PickupWindowClosed);
        }
        let free = self.free(&item, now);
        if free == 0 || item.closed {
            return Err(Refusal::BoxUnavailable);
        }
        if self.has_one(&asked.user_id, item.merchant, now) {
            return Err(Refusal::ActiveReservationExists);
        }
        if free < asked.quantity {
            return Err(Refusal::InsufficientInventory);
        }
        let made = Reservation {
            id: asked.id,
            user_id: asked.user_id.clone(),
            merchant_id: item.merchant.to_owned(),
            box_inventory_id: item.id.to_owned(),
            status: ReservationStatus::Active,
            payment_status: PaymentStatus::Pending,
            pickup_code: asked.pickup_code.clone(),
            quantity: asked.quantity,
            total_amount: 450 * i64::from(asked.quantity),
            currency: "EUR".to_owned(),
            reserved_at: now,
            expires_at: now.plus(asked.ttl.unwrap_or(TIMES.usual)).min(item.pickup_end),
            completed_at: None,
            cancelled_at: None,
            inner: ReservationInner::default(),
        };
        self.reservations.push(made.clone());
        Ok(made)
    }

    fn transition(&mut self, operation: &Operation, now: Timestamp) -> Result<Reservation, Refusal> {
        let id = operation.reservation().expect("is about one");
        let place = self.reservations.iter().position(|one| one.id == id).expect("was made");
        let ends = self
            .items
            .iter()
            .find(|item| item.id == self.reservations[place].box_inventory_id)
            .map(|item| item.pickup_end)
            .expect("is there");
        let one = &mut self.reservations[place];
        let (paid, lapsed) = (one.payment_status == PaymentStatus::Paid, now >= one.expires_at);
        match one.status {
            ReservationStatus::Active | ReservationStatus::Offered if lapsed => {
                return Err(Refusal::ReservationExpired);
            }
            ReservationStatus::Expired => return Err(Refusal::ReservationExpired),
            ReservationStatus::Offered
                if !matches!(operation, Operation::Accept(_) | Operation::Cancel(_)) =>
            {
                return Err(Refusal::InvalidState);
            }
            ReservationStatus::Active if matches!(operation, Operation::Accept(_)) => {
                return if one.inner.offered { Ok(one.clone()) } else { Err(Refusal::InvalidState) };
            }
            ReservationStatus::Active | ReservationStatus::Offered => {}
            ReservationStatus::Completed if matches!(operation, Operation::Collect { .. }) => {
                return Ok(one.clone());
            }
            ReservationStatus::Completed => return Err(Refusal::AlreadyCompleted),
            ReservationStatus::Cancelled if matches!(operation, Operation::Cancel(_)) => {
                return Ok(one.clone());
            }
            ReservationStatus::Cancelled => return Err(Refusal::AlreadyCancelled),
        }
        match operation {
            Operation::Confirm(_) => {
                one.payment_status = PaymentStatus::Paid;
                one.expires_at = ends;
            }
            Operation::Collect { .. } => {
                one.status = ReservationStatus::Completed;
                one.payment_status = PaymentStatus::Paid;
                one.completed_at = Some(now);
            }
            Operation::Cancel(_) => {
                one.status = ReservationStatus::Cancelled;
                one.cancelled_at = Some(now);
                if paid {
                    one.payment_status = PaymentStatus::Refunded;
                }
            }
            Operation::Accept(_) => {
                one.status = ReservationStatus::Active;
                one.reserved_at = now;
                one.expires_at = now.plus(TIMES.usual).min(ends);
                self.taken.push(id);
            }
            Operation::Extend { .. } if paid => return Err(Refusal::InvalidState),
            Operation::Extend { ttl, .. } => {
                let last = one.reserved_at.plus(TIMES.most).min(ends);
                let until = now.plus(ttl.unwrap_or(TIMES.usual)).min(last);
                one.expires_at = one.expires_at.max(until);
            }
            other => panic!("{other:?}"),
        }
        Ok(one.clone())
    }
}

struct Case<'a> {
    shop: Shop,
    model: Model,
    beside: Option<&'a dyn Beside>,
}

impl<'a> Case<'a> {
    async fn begin(world: World, beside: Option<&'a dyn Beside>) -> Self {
        let mut shop = Shop::open(world).await;
        if let Some(beside) = beside {
            shop.through = Some(beside.reserve(shop.store.clone()).await);
        }
        let mut model = Model::default();
        for (id, merchant) in ITEMS {
            shop.boxes(id, merchant, 5).await;
            let pickup_end = shop.look(id).await.pickup_end;
            model.items.push(Item { id, merchant, original: 5, withdrawn: 0, closed: false, pickup_end });
        }
        Self { shop, model, beside }
    }

    fn some(&self, which: usize) -> Option<&Reservation> {
        let made = &self.model.reservations;
        (!made.is_empty()).then(|| &made[which % made.len()])
    }

    fn operation(&self, op: &Op) -> Option<Operation> {
        let id = |which: usize| self.some(which).map(|one| one.id);
        Some(match op {
            Op::Reserve { user, item, quantity, minutes } => {
                let ttl = minutes.map(|minutes| MINUTE * u32::try_from(minutes).expect("small"));
                let asked = new(&format!("u{user}"), ITEMS[*item].0);
                Operation::Reserve(NewReservation { quantity: *quantity, ttl, ..asked })
            }
            Op::Confirm(which) => Operation::Confirm(id(*which)?),
            Op::Collect(which) => {
                let one = self.some(*which)?;
                Operation::Collect { id: one.id, code: one.pickup_code.clone() }
            }
            Op::Cancel(which) => Operation::Cancel(id(*which)?),
            Op::Extend(which, minutes) => {
                let ttl = MINUTE * u32::try_from(*minutes).expect("small");
                Operation::Extend { id: id(*which)?, ttl: Some(ttl) }
            }
            Op::Change { item, add, closed } => {
                let inventory_id = ITEMS[*item].0.to_owned();
                Operation::Change(Change { inventory_id, add: *add, closed: *closed })
            }
            Op::Join { user, item } => join(&format!("u{user}"), ITEMS[*item].0),
            Op::Leave(which) => {
                let waiters = &self.model.waiters;
                Operation::Leave(waiters.get(which % waiters.len().max(1))?.id)
            }
            Op::Accept(which) => Operation::Accept(id(*which)?),
            Op::Together(_) | Op::Advance { .. } | Op::Sweep | Op::Restart | Op::Flap => return None,
        })
    }

    async fn run(&mut self, op: &Op) {
        match op {
            Op::Advance { minutes } => {
                self.shop.world.advance(MINUTE * u32::try_from(*minutes).expect("small"));
            }
            Op::Sweep => {
                let before = self.shop.now().await;
                let ids = self.shop.oldest(3).await;
                let merchants =
                    self.merchants_of(&ids.iter().map(|id| Operation::Expire(*id)).collect::<Vec<_>>());
                self.shop.expire(&ids).await;
                self.model.settle(&merchants, before);
            }
            Op::Restart => {
                self.shop.world.restart().await;
                self.shop.store = self.shop.world.store();
                if let Some(beside) = self.beside {
                    self.shop.through = Some(beside.reserve(self.shop.store.clone()).await);
                }
            }
            Op::Flap => {
                if let Some(beside) = self.beside {
                    beside.flap().await;
                }
            }
            Op::Together(ops) => {
                let operations = ops.iter().filter_map(|op| self.operation(op)).collect();
                self.decide(operations).await;
            }
            single => {
                let operations = self.operation(single).into_iter().collect();
                self.decide(operations).await;
            }
        }
        self.see_offers().await;
        self.assert_same().await;
    }

    /// The merchants that operations are about.
    fn merchants_of(&self, operations: &[Operation]) -> Vec<&'static str> {
        let of_item = |id: &str| ITEMS.iter().find(|(item, _)| *item == id).map(|(_, merchant)| *merchant);
        let of = |operation: &Operation| match operation {
            Operation::Reserve(new) => of_item(&new.inventory_id),
            Operation::Change(change) => of_item(&change.inventory_id),
            Operation::Join(new) => of_item(&new.inventory_id),
            Operation::Leave(id) => self
                .model
                .waiters
                .iter()
                .find(|waiter| waiter.id == *id)
                .and_then(|waiter| of_item(waiter.item)),
            other => {
                let made = self.model.reservations.iter().find(|one| Some(one.id) == other.reservation());
                made.and_then(|one| of_item(&one.box_inventory_id))
            }
        };
        operations.iter().filter_map(of).collect()
    }

    /// What the store decides is what the model does.
    async fn decide(&mut self, operations: Vec<Operation>) {
        let before = self.shop.now().await;
        let merchants = self.merchants_of(&operations);
        let requests = operations.iter().cloned().map(Request::new).collect();
        let decided = self.shop.decide(requests).await;
        self.model.settle(&merchants, before);
        for (operation, decided) in operations.iter().zip(decided) {
            // Time stands still but for what a case takes; nothing ends within that.
            let expected = match operation {
                Operation::Reserve(asked) => self.model.reserve(asked, before).map(Verdict::Reservation),
                Operation::Change(change) => self.change(change, before, &decided.verdict),
                Operation::Join(new) => {
                    let expected = self.model.join(new, before);
                    let shown = match &decided.verdict {
                        Verdict::Wait(wait) => Ok((wait.id, wait.position, wait.status)),
                        Verdict::Refused(refusal) => Err(refusal.clone()),
                        other => panic!("{other:?}"),
                    };
                    assert_eq!(shown, expected, "{operation:?}");
                    continue;
                }
                Operation::Leave(id) => {
                    let expected = self.model.leave(*id, before);
                    let shown = match &decided.verdict {
                        Verdict::Wait(_) => Ok(()),
                        Verdict::Refused(refusal) => Err(refusal.clone()),
                        other => panic!("{other:?}"),
                    };
                    assert_eq!(shown, expected, "{operation:?}");
                    self.model.settle(&merchants, before);
                    continue;
                }
                transition => self.model.transition(transition, before).map(Verdict::Reservation),
            };
            self.model.settle(&merchants, before);
            match (decided.verdict, expected.unwrap_or_else(Verdict::Refused)) {
                (Verdict::Reservation(one), Verdict::Reservation(like)) => {
                    assert!(same(&one, &like), "{operation:?}: {one:?}, not {like:?}");
                    // From here on to the millisecond.
                    let known = self.model.reservations.iter_mut().find(|known| known.id == one.id);
                    *known.expect("is there") = one;
                }
                (verdict, expected) => assert_eq!(verdict, expected, "{operation:?}"),
            }
        }
    }

    /// What the model has offered is offered, under an id and with a code that the store made.
    async fn see_offers(&mut self) {
        for user in 0..USERS {
            let user_id = Some(format!("u{user}"));
            let filter =
                ReservationFilter { user_id: user_id.clone(), limit: 200, ..ReservationFilter::default() };
            let shown = self.shop.store.reservations(filter).await.expect("reads");
            let known = self.model.reservations.iter().filter(|one| Some(&one.user_id) == user_id.as_ref());
            assert_eq!(known.count(), shown.len(), "reservations of u{user}");
            for one in shown {
                if let Some(known) = self.model.reservations.iter_mut().find(|known| known.id == one.id) {
                    // One that was left is given back at an instant that nobody was told.
                    if known.cancelled_at.is_some() && same(&one, known) {
                        known.cancelled_at = one.cancelled_at;
                    }
                    continue;
                }
                let unseen = |known: &&mut Reservation| {
                    known.pickup_code == UNSEEN
                        && known.user_id == one.user_id
                        && known.box_inventory_id == one.box_inventory_id
                };
                let known = self.model.reservations.iter_mut().find(unseen);
                let known = known.unwrap_or_else(|| panic!("nobody expects {one:?}"));
                let waiter = self.model.waiters.iter_mut().find(|waiter| waiter.offer == Some(known.id));
                waiter.expect("has an offer").offer = Some(one.id);
                for taken in &mut self.model.taken {
                    if *taken == known.id {
                        *taken = one.id;
                    }
                }
                *known = Reservation { id: one.id, pickup_code: one.pickup_code.clone(), ..known.clone() };
                assert!(same(&one, known), "{one:?}, not {known:?}");
                *known = one;
            }
        }
    }

    fn change(&mut self, change: &Change, now: Timestamp, verdict: &Verdict) -> Result<Verdict, Refusal> {
        let place =
            self.model.items.iter().position(|item| item.id == change.inventory_id).expect("is there");
        let free = self.model.free(&self.model.items[place], now);
        let units = u32::try_from(change.add.unsigned_abs()).expect("small");
        if change.add < 0 && free < units {
            return Err(Refusal::InsufficientInventory);
        }
        let item = &mut self.model.items[place];
        item.closed = change.closed.unwrap_or(item.closed);
        if change.add < 0 {
            item.withdrawn += units;
        } else {
            item.original += units;
        }
        Ok(verdict.clone())
    }

    async fn assert_same(&self) {
        let now = self.shop.now().await;
        for item in &self.model.items {
            let InventoryView { original_quantity, remaining_quantity, .. } = self.shop.look(item.id).await;
            let expected = (item.original, self.model.for_walk_ins(item, now));
            assert_eq!((original_quantity, remaining_quantity), expected, "{}", item.id);
            let filter =
                WaitFilter { inventory_id: item.id.to_owned(), user_id: None, after: None, limit: 200 };
            let shown = self.shop.store.waitlist(filter).await.expect("reads").into_iter();
            let shown = shown.filter(|(_, wait)| wait.status == WaitStatus::Waiting);
            let shown: Vec<(WaitId, u64)> = shown.map(|(_, wait)| (wait.id, wait.position)).collect();
            let line = self.model.line(item.id).into_iter().map(|waiter| waiter.id).zip(1..);
            assert_eq!(shown, line.collect::<Vec<_>>(), "the line for {}", item.id);
        }
        for one in &self.model.reservations {
            let shown = self.shop.read(one.id).await;
            assert_eq!(shown, one.clone().at(now));
        }
        self.shop.adds_up().await;
    }
}

/// Whether two reservations are the same but for the moment that a case takes.
fn same(one: &Reservation, other: &Reservation) -> bool {
    let like = |at: Option<Timestamp>, like: Option<Timestamp>| match (at, like) {
        (Some(at), Some(like)) => at.since(like).max(like.since(at)) < MOMENT,
        (at, like) => at == like,
    };
    let same_times = [
        (Some(one.expires_at), Some(other.expires_at)),
        (Some(one.reserved_at), Some(other.reserved_at)),
        (one.completed_at, other.completed_at),
        (one.cancelled_at, other.cancelled_at),
    ];
    let timeless = |of: &Reservation| Reservation {
        expires_at: Timestamp::default(),
        reserved_at: Timestamp::default(),
        completed_at: None,
        cancelled_at: None,
        ..of.clone()
    };
    same_times.into_iter().all(|(at, other)| like(at, other)) && timeless(one) == timeless(other)
}

/// Whatever is done in whatever order, the store does what the model does, and every box is somewhere.
pub fn stock_agrees_with_a_plain_model<E: Engine>(cases: u32) {
    agrees::<E>(cases, None);
}

/// The same, decided by a process's reserve, while what stands beside it comes and goes: it changes nothing but speed.
pub fn stock_agrees_with_a_plain_model_beside<E: Engine>(cases: u32, beside: &dyn Beside) {
    agrees::<E>(cases, Some(beside));
}

fn agrees<E: Engine>(cases: u32, beside: Option<&dyn Beside>) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let outcome = seed::runner(cases).run(&prop::collection::vec(op(), 1..40), |ops| {
        runtime.block_on(async {
            let mut case = Case::begin(World::on(E::fresh().await).await, beside).await;
            for op in &ops {
                case.run(op).await;
            }
        });
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
