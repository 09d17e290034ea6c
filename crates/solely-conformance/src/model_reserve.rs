//! Random sequences of everything that changes stock, with jumps of the clock, against a plain model.
//!
//! The model has no counters: it is a list of reservations, and what is free is what the list leaves. After every step
//! what the store shows is what the model says, swept or not, and every box is somewhere.

use std::time::Duration;

use proptest::prelude::*;
use solely_core::Timestamp;
use solely_core::reserve::{
    Change, InventoryView, NewReservation, Operation, PaymentStatus, Refusal, Request, Reservation,
    ReservationStatus, Verdict,
};

use crate::reserve::{Shop, TIMES, new};
use crate::{Engine, World, seed};

const MINUTE: Duration = Duration::from_secs(60);
/// What a case takes, at most.
const MOMENT: Duration = Duration::from_secs(30);
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
    },
    /// In one batch, in this order.
    Together(Vec<Op>),
    Advance {
        minutes: u64,
    },
    Sweep,
    Restart,
}

fn single() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..4_u8, 0..3_usize, 1..4_u32, prop::option::of(15..31_u64))
            .prop_map(|(user, item, quantity, minutes)| Op::Reserve { user, item, quantity, minutes }),
        2 => (0..32_usize).prop_map(Op::Confirm),
        2 => (0..32_usize).prop_map(Op::Collect),
        2 => (0..32_usize).prop_map(Op::Cancel),
        2 => (0..32_usize, 15..31_u64).prop_map(|(which, minutes)| Op::Extend(which, minutes)),
        1 => (0..3_usize, -3..4_i64).prop_map(|(item, add)| Op::Change { item, add }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => single(),
        3 => prop::collection::vec(single(), 2..6).prop_map(Op::Together),
        4 => (1..26_u64).prop_map(|minutes| Op::Advance { minutes }),
        2 => Just(Op::Sweep),
        1 => Just(Op::Restart),
    ]
}

#[derive(Clone, Debug)]
struct Item {
    id: &'static str,
    merchant: &'static str,
    original: u32,
    withdrawn: u32,
    pickup_end: Timestamp,
}

#[derive(Default)]
struct Model {
    items: Vec<Item>,
    reservations: Vec<Reservation>,
}

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

    fn reserve(&mut self, asked: &NewReservation, now: Timestamp) -> Result<Reservation, Refusal> {
        let item = self.items.iter().find(|item| item.id == asked.inventory_id).expect("is there").clone();
        if now >= item.pickup_end {
            return Err(Refusal::PickupWindowClosed);
        }
        let free = self.free(&item, now);
        if free == 0 {
            return Err(Refusal::BoxUnavailable);
        }
        let open = |one: &Reservation| {
            one.user_id == asked.user_id
                && one.merchant_id == item.merchant
                && one.status == ReservationStatus::Active
                && now < one.expires_at
        };
        if self.reservations.iter().any(open) {
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
            inner: solely_core::reserve::ReservationInner::default(),
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
            ReservationStatus::Active if lapsed => return Err(Refusal::ReservationExpired),
            ReservationStatus::Expired => return Err(Refusal::ReservationExpired),
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

struct Case {
    shop: Shop,
    model: Model,
}

impl Case {
    async fn begin(world: World) -> Self {
        let shop = Shop::open(world).await;
        let mut model = Model::default();
        for (id, merchant) in ITEMS {
            shop.boxes(id, merchant, 5).await;
            let pickup_end = shop.look(id).await.pickup_end;
            model.items.push(Item { id, merchant, original: 5, withdrawn: 0, pickup_end });
        }
        Self { shop, model }
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
            Op::Change { item, add } => {
                let inventory_id = ITEMS[*item].0.to_owned();
                Operation::Change(Change { inventory_id, add: *add, closed: None })
            }
            Op::Together(_) | Op::Advance { .. } | Op::Sweep | Op::Restart => return None,
        })
    }

    async fn run(&mut self, op: &Op) {
        match op {
            Op::Advance { minutes } => {
                self.shop.world.advance(MINUTE * u32::try_from(*minutes).expect("small"));
            }
            Op::Sweep => {
                self.shop.sweep(3).await;
            }
            Op::Restart => {
                self.shop.world.restart().await;
                self.shop.store = self.shop.world.store();
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
        self.assert_same().await;
    }

    /// What the store decides is what the model does.
    async fn decide(&mut self, operations: Vec<Operation>) {
        let before = self.shop.now().await;
        let requests = operations.iter().cloned().map(Request::new).collect();
        let decided = self.shop.decide(requests).await;
        for (operation, decided) in operations.iter().zip(decided) {
            // Time stands still but for what a case takes; nothing ends within that.
            let expected = match operation {
                Operation::Reserve(asked) => self.model.reserve(asked, before).map(Verdict::Reservation),
                Operation::Change(change) => self.change(change, before, &decided.verdict),
                transition => self.model.transition(transition, before).map(Verdict::Reservation),
            };
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

    fn change(&mut self, change: &Change, now: Timestamp, verdict: &Verdict) -> Result<Verdict, Refusal> {
        let place =
            self.model.items.iter().position(|item| item.id == change.inventory_id).expect("is there");
        let free = self.model.free(&self.model.items[place], now);
        let units = u32::try_from(change.add.unsigned_abs()).expect("small");
        if change.add < 0 && free < units {
            return Err(Refusal::InsufficientInventory);
        }
        let item = &mut self.model.items[place];
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
            let expected = (item.original, self.model.free(item, now));
            assert_eq!((original_quantity, remaining_quantity), expected, "{}", item.id);
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
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let outcome = seed::runner(cases).run(&prop::collection::vec(op(), 1..40), |ops| {
        runtime.block_on(async {
            let mut case = Case::begin(World::on(E::fresh().await).await).await;
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
