//! Stock: never one too many, never one lost, one open reservation for a user and merchant, each ended once.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use solely_core::fault::{Guard, Guards};
use solely_core::reserve::{
    Batch, BoxType, Change, Decided, HoldTimes, IdempotencyKey, InventoryFilter, InventoryStatus,
    InventoryView, Merchant, NewInventory, NewReservation, Operation, PaymentStatus, Refusal, Request,
    Reservation, ReservationFilter, ReservationStatus, Reserve, Rules, Verdict, pickup_code, subject_of,
    subject_of_item, window,
};
use solely_core::{ReservationId, Store, Timestamp};

use crate::World;
use crate::world::secs;

const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const TIMES: HoldTimes = HoldTimes {
    usual: Duration::from_secs(20 * 60),
    least: Duration::from_secs(15 * 60),
    most: Duration::from_secs(30 * 60),
    offer: Duration::from_secs(10 * 60),
};

/// A merchant with boxes, and those who want one.
pub(crate) struct Shop {
    pub(crate) world: World,
    pub(crate) store: Arc<dyn Store>,
    /// What decides, if it is not the store itself: a process's reserve, with whatever stands beside it.
    pub(crate) through: Option<Reserve>,
    rules: Arc<Rules>,
}

impl Shop {
    pub(crate) async fn open(world: World) -> Self {
        let store = world.store();
        let shop = Self { world, store, through: None, rules: Arc::new(Rules::new(TIMES)) };
        for merchant in ["m1", "m2"] {
            let (id, name, timezone) = (merchant.to_owned(), "Bakery".to_owned(), "Europe/Berlin".to_owned());
            let made = Operation::CreateMerchant(Merchant { id, name, timezone });
            assert!(matches!(shop.ask(made).await, Verdict::Merchant(_)));
            let (id, name) = (format!("type-{merchant}"), "Evening box".to_owned());
            let made = BoxType { id, merchant_id: merchant.to_owned(), name };
            assert!(matches!(shop.ask(Operation::CreateBoxType(made)).await, Verdict::BoxType(_)));
        }
        shop
    }

    /// The same, with notifications that are to be delivered.
    pub(crate) fn notifying(mut self) -> Self {
        self.rules = Arc::new(Rules { notify: true, ..Rules::new(TIMES) });
        self
    }

    fn without(mut self, guard: Guard) -> Self {
        self.rules = Arc::new(Rules { guards: Guards::without(guard), ..Rules::new(TIMES) });
        self
    }

    /// The store's clock.
    pub(crate) async fn now(&self) -> Timestamp {
        self.store.lapsed(1).await.expect("reads").now
    }

    pub(crate) async fn decide(&self, requests: Vec<Request>) -> Vec<Decided> {
        if let Some(reserve) = &self.through {
            let mut decided = Vec::with_capacity(requests.len());
            for request in requests {
                decided.push(reserve.decide(request).await.expect("decides"));
            }
            return decided;
        }
        self.store.decide(Batch::of(requests), self.rules.clone()).await.expect("decides").0
    }

    /// How many of ten boxes each of two batches is sold, the second of which gets to the store before the first.
    async fn sold_of_two_batches(&self, first: usize, second: usize, know: bool) -> (usize, usize) {
        let item = format!("box-{first}-{second}");
        self.boxes(&item, "m1", 11).await;
        // Remembered, where an engine remembers what it sold.
        self.reserve(&format!("before-{item}"), &item).await.expect("is sold");
        let buyers = |of: &str, count: usize| {
            let one = |nth| Request::new(reserve(&format!("{of}-{item}-{nth}"), &item));
            (0..count).map(one).collect::<Vec<_>>()
        };
        let first = Batch::of(buyers("first", first));
        let second =
            Batch::behind(know.then(|| first.ahead()).into_iter().collect(), buyers("second", second));
        let sold = async |batch| {
            let (decided, _) = self.store.decide(batch, self.rules.clone()).await.expect("decides");
            decided.iter().filter(|one| matches!(one.verdict, Verdict::Reservation(_))).count()
        };
        // Asked first; what does not know better goes on to its end.
        let (second, first) = if know {
            tokio::join!(sold(second), sold(first))
        } else {
            (sold(second).await, sold(first).await)
        };
        (first, second)
    }

    pub(crate) async fn ask(&self, operation: Operation) -> Verdict {
        self.decide(vec![Request::new(operation)]).await.remove(0).verdict
    }

    /// Boxes of a merchant for the next two hours.
    pub(crate) async fn boxes(&self, id: &str, merchant: &str, quantity: u32) {
        self.boxes_until(id, merchant, quantity, 120 * MINUTE).await;
    }

    pub(crate) async fn boxes_until(&self, id: &str, merchant: &str, quantity: u32, lasts: Duration) {
        let start = self.now().await;
        let made = NewInventory {
            id: id.to_owned(),
            box_type_id: format!("type-{merchant}"),
            quantity,
            price: 450,
            currency: "EUR".to_owned(),
            window: window::Window::Instants { start, end: start.plus(lasts) },
            pricing: None,
        };
        let made = self.ask(Operation::CreateInventory(made)).await;
        assert!(matches!(made, Verdict::Inventory(_)), "{made:?}");
    }

    async fn reserve(&self, user: &str, item: &str) -> Result<Reservation, Refusal> {
        of(self.ask(reserve(user, item)).await)
    }

    async fn must(&self, user: &str, item: &str) -> Reservation {
        self.reserve(user, item).await.expect("is reserved")
    }

    async fn does(&self, operation: Operation) -> Result<Reservation, Refusal> {
        of(self.ask(operation).await)
    }

    pub(crate) async fn look(&self, item: &str) -> InventoryView {
        let filter =
            InventoryFilter { ids: Some(vec![item.to_owned()]), limit: 1, ..InventoryFilter::default() };
        self.store.inventories(filter).await.expect("reads").remove(0)
    }

    pub(crate) async fn read(&self, id: ReservationId) -> Reservation {
        let filter = ReservationFilter { id: Some(id), limit: 1, ..ReservationFilter::default() };
        self.store.reservations(filter).await.expect("reads").remove(0)
    }

    async fn left(&self, item: &str) -> u32 {
        self.look(item).await.remaining_quantity
    }

    /// The oldest holds whose time is over.
    pub(crate) async fn oldest(&self, limit: u32) -> Vec<ReservationId> {
        let lapsed = self.store.lapsed(limit).await.expect("reads");
        lapsed.ids.into_iter().map(|(_, id)| id).collect()
    }

    /// One round of the sweeper.
    pub(crate) async fn sweep(&self, limit: u32) -> usize {
        self.expire(&self.oldest(limit).await).await
    }

    pub(crate) async fn expire(&self, ids: &[ReservationId]) -> usize {
        let requests: Vec<Request> = ids.iter().map(|id| Request::new(Operation::Expire(*id))).collect();
        let decided = self.decide(requests).await;
        decided.iter().filter(|one| matches!(one.verdict, Verdict::Reservation(_))).count()
    }

    /// Everything adds up, whoever looks.
    pub(crate) async fn adds_up(&self) {
        let report = self.store.check().await.expect("checks");
        assert_eq!(report.violations, []);
    }
}

pub(crate) fn of(verdict: Verdict) -> Result<Reservation, Refusal> {
    match verdict {
        Verdict::Reservation(reservation) => Ok(reservation),
        Verdict::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn new(user: &str, item: &str) -> NewReservation {
    NewReservation {
        id: ReservationId::new(),
        pickup_code: pickup_code(),
        user_id: user.to_owned(),
        inventory_id: item.to_owned(),
        ttl: None,
        quantity: 1,
        max_price: None,
    }
}

fn reserve(user: &str, item: &str) -> Operation {
    Operation::Reserve(new(user, item))
}

fn several(user: &str, item: &str, quantity: u32) -> Operation {
    Operation::Reserve(NewReservation { quantity, ..new(user, item) })
}

fn collect(of: &Reservation) -> Operation {
    Operation::Collect { id: of.id, code: of.pickup_code.clone() }
}

fn extend(id: ReservationId, ttl: Duration) -> Operation {
    Operation::Extend { id, ttl: Some(ttl) }
}

/// Boxes that are put on offer, sold and closed in one batch are all of that.
pub async fn what_is_made_can_be_sold_in_the_same_batch(world: World) {
    let shop = Shop::open(world).await;
    let start = shop.now().await;
    let made = NewInventory {
        id: "box".to_owned(),
        box_type_id: "type-m1".to_owned(),
        quantity: 2,
        price: 450,
        currency: "EUR".to_owned(),
        window: window::Window::Instants { start, end: start.plus(120 * MINUTE) },
        pricing: None,
    };
    let closed = Change { inventory_id: "box".to_owned(), add: 0, closed: Some(true) };
    let batch = [
        Operation::CreateInventory(made),
        reserve("anna", "box"),
        Operation::Change(closed),
        reserve("ben", "box"),
    ];
    let decided = shop.decide(batch.into_iter().map(Request::new).collect()).await;
    let held = of(decided[1].verdict.clone()).expect("is reserved");
    assert_eq!(of(decided[3].verdict.clone()), Err(Refusal::BoxUnavailable));
    shop.adds_up().await;
    assert_eq!(shop.reserve("ben", "box").await, Err(Refusal::BoxUnavailable));
    shop.does(Operation::Confirm(held.id)).await.expect("is paid");
    shop.adds_up().await;
}

/// A hold takes a box, keeps its price, and lasts as long as it says or until the window closes.
pub async fn a_hold_takes_a_box(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 3).await;
    let held = shop.must("u1", "box").await;
    assert_eq!((held.status, held.payment_status), (ReservationStatus::Active, PaymentStatus::Pending));
    assert_eq!((held.merchant_id.as_str(), held.quantity, held.total_amount), ("m1", 1, 450));
    assert_eq!(held.expires_at, held.reserved_at.plus(TIMES.usual));
    assert_eq!(shop.left("box").await, 2);
    shop.boxes_until("late", "m1", 1, 10 * MINUTE).await;
    let late = shop.must("u2", "late").await;
    assert!(late.expires_at < late.reserved_at.plus(TIMES.usual), "the window closes sooner");
    assert_eq!(shop.look("late").await.status, InventoryStatus::SoldOut);
    shop.adds_up().await;
}

/// One open reservation per user and merchant, paid or not; another merchant is another matter.
pub async fn one_open_reservation_for_a_user_and_merchant(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("a", "m1", 9).await;
    shop.boxes("b", "m1", 9).await;
    shop.boxes("c", "m2", 9).await;
    let first = shop.must("u1", "a").await;
    assert_eq!(shop.reserve("u1", "b").await, Err(Refusal::ActiveReservationExists));
    shop.must("u1", "c").await;
    shop.does(Operation::Confirm(first.id)).await.expect("is paid");
    assert_eq!(shop.reserve("u1", "a").await, Err(Refusal::ActiveReservationExists));
    shop.does(Operation::Cancel(first.id)).await.expect("is given back");
    shop.must("u1", "b").await;
    let batch = ["a", "b", "a"].map(|item| Request::new(reserve("u7", item)));
    let decided = shop.decide(batch.to_vec()).await;
    let made = decided.into_iter().filter(|one| matches!(one.verdict, Verdict::Reservation(_))).count();
    assert_eq!(made, 1, "in one batch, too");
    shop.adds_up().await;
}

/// The last box goes to one of many who ask at once, and everyone else is told why not.
pub async fn of_many_who_want_the_last_box_one_has_it(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 5).await;
    let users: Vec<String> = (0..40).map(|n| format!("u{n}")).collect();
    let verdicts = join_all(users.iter().map(|user| shop.reserve(user, "box"))).await;
    assert_eq!(verdicts.iter().filter(|verdict| verdict.is_ok()).count(), 5);
    assert!(verdicts.iter().filter_map(|one| one.as_ref().err()).all(|why| *why == Refusal::BoxUnavailable));
    assert_eq!(shop.left("box").await, 0);
    shop.adds_up().await;
}

/// The twin: where stock is read, and written later however it is then, more are sold than there are.
pub async fn without_the_guard_of_the_count_it_is_oversold(world: World) {
    let shop = Shop::open(world).await;
    for round in 0..50 {
        let item = format!("box-{round}");
        shop.boxes(&item, "m1", 3).await;
    }
    let shop = shop.without(Guard::Decrement);
    for round in 0..50 {
        let item = format!("box-{round}");
        let users: Vec<String> = (0..8).map(|n| format!("u{round}-{n}")).collect();
        let buys = users.iter().map(|user| {
            let requests = Batch::of(vec![Request::new(reserve(user, &item))]);
            shop.store.decide(requests, shop.rules.clone())
        });
        let sold = join_all(buys).await.into_iter().flatten().flat_map(|(decided, _)| decided);
        let sold = sold.filter(|one| matches!(one.verdict, Verdict::Reservation(_))).count();
        let report = shop.store.check().await.expect("checks");
        if sold > 3 && report.violations.iter().any(|broken| broken.rule.contains("stock")) {
            return;
        }
    }
    panic!("reading, then writing is as good as the guard");
}

/// Of two batches of a line the one that was sealed first is decided first, whichever gets to the store first and whether or
/// not there is enough for it.
pub async fn who_came_first_is_sold_to_first(world: World) {
    let shop = Shop::open(world).await;
    for (first, second) in [(12, 3), (6, 6), (4, 3)] {
        let sold = shop.sold_of_two_batches(first, second, true).await;
        assert_eq!(sold, (first.min(10), second.min(10 - first.min(10))));
    }
    shop.adds_up().await;
}

/// The twin: batches that do not know each other are decided as they come.
pub async fn without_its_place_the_second_is_sold_to_first(world: World) {
    let shop = Shop::open(world).await;
    let sold = shop.sold_of_two_batches(12, 3, false).await;
    assert_eq!(sold, (7, 3));
}

/// Two lines of one batch are not decided on the same stock.
pub async fn requests_of_one_batch_share_the_stock(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 3).await;
    let batch = [several("u1", "box", 2), several("u2", "box", 2), several("u3", "box", 1)];
    let decided = shop.decide(batch.into_iter().map(Request::new).collect()).await;
    let verdicts: Vec<_> = decided.into_iter().map(|one| of(one.verdict).map(|made| made.quantity)).collect();
    assert_eq!(verdicts, [Ok(2), Err(Refusal::InsufficientInventory), Ok(1)]);
    shop.adds_up().await;
}

/// Refusals, in the order of the contract.
pub async fn refusals_have_an_order(world: World) {
    let shop = Shop::open(world).await;
    assert_eq!(shop.reserve("u1", "nothing").await, Err(Refusal::BoxNotFound));
    shop.boxes("box", "m1", 2).await;
    let dear = Operation::Reserve(NewReservation { max_price: Some(449), ..new("u1", "box") });
    assert_eq!(shop.does(dear).await, Err(Refusal::PriceChanged));
    assert_eq!(shop.does(several("u1", "box", 3)).await, Err(Refusal::InsufficientInventory));
    shop.must("u1", "box").await;
    assert_eq!(shop.does(several("u1", "box", 3)).await, Err(Refusal::ActiveReservationExists));
    let change = |closed| Change { inventory_id: "box".to_owned(), add: 0, closed: Some(closed) };
    shop.ask(Operation::Change(change(true))).await;
    assert_eq!(
        shop.reserve("u1", "box").await,
        Err(Refusal::BoxUnavailable),
        "before what is the user's own"
    );
    assert_eq!(shop.look("box").await.status, InventoryStatus::Closed);
    shop.ask(Operation::Change(change(false))).await;
    shop.world.advance(121 * MINUTE);
    assert_eq!(shop.reserve("u2", "box").await, Err(Refusal::PickupWindowClosed));
    assert_eq!(shop.look("box").await.status, InventoryStatus::Expired);
    shop.adds_up().await;
}

/// Of the ways out of a state one wins; the others are told which, and the winner may repeat itself.
pub async fn each_reservation_ends_once(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 9).await;
    let paid = shop.must("u1", "box").await;
    let confirmed = shop.does(Operation::Confirm(paid.id)).await.expect("is paid");
    assert_eq!(confirmed.expires_at, shop.look("box").await.pickup_end);
    assert_eq!(shop.does(Operation::Confirm(paid.id)).await, Ok(confirmed));
    assert_eq!(shop.does(extend(paid.id, TIMES.usual)).await, Err(Refusal::InvalidState));
    let collected = shop.does(collect(&paid)).await.expect("is collected");
    assert_eq!(
        (collected.status, collected.payment_status),
        (ReservationStatus::Completed, PaymentStatus::Paid)
    );
    assert_eq!(shop.does(collect(&paid)).await, Ok(collected));
    assert_eq!(shop.does(Operation::Cancel(paid.id)).await, Err(Refusal::AlreadyCompleted));
    assert_eq!(shop.does(Operation::Confirm(paid.id)).await, Err(Refusal::AlreadyCompleted));
    let given_back = shop.must("u2", "box").await;
    shop.does(Operation::Confirm(given_back.id)).await.expect("is paid");
    let cancelled = shop.does(Operation::Cancel(given_back.id)).await.expect("is given back");
    assert_eq!(cancelled.payment_status, PaymentStatus::Refunded);
    assert_eq!(shop.does(Operation::Cancel(given_back.id)).await, Ok(cancelled));
    assert_eq!(shop.does(collect(&given_back)).await, Err(Refusal::AlreadyCancelled));
    assert_eq!(shop.does(Operation::Confirm(given_back.id)).await, Err(Refusal::AlreadyCancelled));
    let unpaid = shop.must("u3", "box").await;
    shop.does(collect(&unpaid)).await.expect("may be paid where it is collected");
    let nobody = ReservationId::new();
    assert_eq!(shop.does(Operation::Confirm(nobody)).await, Err(Refusal::ReservationNotFound));
    assert_eq!(shop.left("box").await, 7);
    shop.adds_up().await;
}

/// Confirm, cancel and collect at the same time: one wins, and no box is given back twice.
pub async fn of_those_who_end_it_at_once_one_wins(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 20).await;
    for round in 0..10 {
        let held = shop.must(&format!("u{round}"), "box").await;
        let ends = [Operation::Cancel(held.id), collect(&held), Operation::Cancel(held.id), collect(&held)];
        let ended = join_all(ends.into_iter().map(|end| shop.does(end))).await;
        let ways: Vec<ReservationStatus> = ended.iter().flatten().map(|one| one.status).collect();
        assert_eq!(ways.len(), 2, "the winner, and the winner again: {ended:?}");
        assert_eq!(ways[0], ways[1]);
    }
    shop.adds_up().await;
}

/// A hold whose time is over is over, whether or not it was swept: it cannot be paid, extended, collected or given back.
pub async fn a_lapsed_hold_is_over_before_it_is_swept(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 2).await;
    let held = shop.must("u1", "box").await;
    shop.world.advance(TIMES.usual);
    assert_eq!(shop.read(held.id).await.status, ReservationStatus::Expired);
    assert_eq!(shop.left("box").await, 2, "its box is free");
    for operation in [
        Operation::Confirm(held.id),
        collect(&held),
        Operation::Cancel(held.id),
        extend(held.id, TIMES.usual),
    ] {
        assert_eq!(shop.does(operation).await, Err(Refusal::ReservationExpired));
    }
    shop.adds_up().await;
    assert_eq!((shop.sweep(10).await, shop.sweep(10).await), (1, 0), "it is given back once");
    assert_eq!(shop.does(Operation::Confirm(held.id)).await, Err(Refusal::ReservationExpired));
    assert_eq!(shop.left("box").await, 2);
    shop.adds_up().await;
}

/// The very instant of the deadline is too late, and the one before is not.
pub async fn the_deadline_itself_is_too_late(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 2).await;
    let (first, second) = (shop.must("u1", "box").await, shop.must("u2", "box").await);
    let nearly = first.expires_at.since(shop.now().await).saturating_sub(secs(2));
    shop.world.advance(nearly);
    shop.does(Operation::Confirm(first.id)).await.expect("is in time");
    shop.world.advance(secs(4));
    assert_eq!(shop.does(Operation::Confirm(second.id)).await, Err(Refusal::ReservationExpired));
    shop.adds_up().await;
}

/// Whoever wants a box has what lapsed, and their own stale hold stands in nobody's way, least of all their own.
pub async fn lapsed_holds_are_given_back_to_who_wants_them(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 2).await;
    shop.boxes("other", "m1", 1).await;
    shop.must("u1", "box").await;
    shop.must("u2", "box").await;
    assert_eq!(shop.reserve("u3", "box").await, Err(Refusal::BoxUnavailable));
    shop.world.advance(TIMES.usual);
    shop.must("u3", "box").await;
    let again = shop.must("u1", "other").await;
    assert_eq!(again.box_inventory_id, "other", "the stale hold was of another box");
    assert_eq!(shop.left("box").await, 1);
    shop.adds_up().await;
}

/// More holds of one item lapse than a sweep takes, many at the same instant: each is given back once.
pub async fn a_sweep_may_be_larger_than_a_batch(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 40).await;
    let batch = (0..40).map(|n| Request::new(reserve(&format!("u{n}"), "box"))).collect();
    let decided = shop.decide(batch).await;
    let ends: std::collections::BTreeSet<_> =
        decided.iter().map(|one| of(one.verdict.clone()).expect("is held").expires_at).collect();
    assert_eq!(ends.len(), 1, "one deadline");
    shop.world.advance(TIMES.usual);
    let oldest = shop.oldest(16).await;
    let both = tokio::join!(shop.expire(&oldest), shop.expire(&oldest));
    assert_eq!(both.0 + both.1, 16, "two sweepers at once give nothing back twice");
    assert_eq!((shop.sweep(16).await, shop.sweep(16).await, shop.sweep(16).await), (16, 8, 0));
    assert_eq!(shop.left("box").await, 40);
    shop.adds_up().await;
}

/// As many lapsed holds are given back at once as a large request needs.
pub async fn one_request_may_need_many_lapsed_holds(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 30).await;
    let batch = (0..30).map(|n| Request::new(reserve(&format!("u{n}"), "box"))).collect();
    shop.decide(batch).await;
    shop.world.advance(TIMES.usual);
    assert_eq!(shop.does(several("all", "box", 30)).await.map(|one| one.quantity), Ok(30));
    assert_eq!(shop.left("box").await, 0);
    shop.adds_up().await;
}

/// Extending never revives, never shortens, never goes past the longest hold nor the window.
pub async fn extending_has_bounds(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 2).await;
    let held = shop.must("u1", "box").await;
    let same = shop.does(extend(held.id, TIMES.least)).await.expect("is extended");
    assert_eq!(same.expires_at, held.expires_at, "never earlier than it was");
    shop.world.advance(18 * MINUTE);
    let longer = shop.does(extend(held.id, TIMES.usual)).await.expect("is extended");
    assert_eq!(longer.expires_at, held.reserved_at.plus(TIMES.most), "never past the longest");
    shop.world.advance(13 * MINUTE);
    assert_eq!(shop.does(extend(held.id, TIMES.usual)).await, Err(Refusal::ReservationExpired));
    shop.boxes_until("short", "m2", 1, 25 * MINUTE).await;
    let held = shop.must("u1", "short").await;
    shop.world.advance(10 * MINUTE);
    let longer = shop.does(extend(held.id, TIMES.usual)).await.expect("is extended");
    assert_eq!(longer.expires_at, shop.look("short").await.pickup_end);
    shop.adds_up().await;
}

/// A paid box that nobody collects stays sold; its buyer may have another.
pub async fn a_no_show_stays_sold(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes_until("box", "m1", 2, 30 * MINUTE).await;
    let paid = shop.must("u1", "box").await;
    shop.does(Operation::Confirm(paid.id)).await.expect("is paid");
    shop.world.advance(31 * MINUTE);
    let gone = shop.read(paid.id).await;
    assert_eq!((gone.status, gone.payment_status), (ReservationStatus::Expired, PaymentStatus::Paid));
    shop.boxes("next", "m1", 1).await;
    shop.must("u1", "next").await;
    assert_eq!(shop.left("box").await, 1);
    assert_eq!(shop.sweep(10).await, 0, "it was ended on the way");
    shop.adds_up().await;
}

/// A code is needed to collect; five wrong ones end the guessing for a while.
pub async fn codes_cannot_be_guessed(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 2).await;
    let held = shop.must("u1", "box").await;
    shop.does(Operation::Confirm(held.id)).await.expect("is paid");
    let wrong = || Operation::Collect { id: held.id, code: "0000-0000".to_owned() };
    for _ in 0..5 {
        assert_eq!(shop.does(wrong()).await, Err(Refusal::WrongCode));
    }
    assert!(matches!(shop.does(collect(&held)).await, Err(Refusal::TooManyCodes(_))), "the right one, too");
    shop.world.advance(6 * MINUTE);
    let small = Operation::Collect { id: held.id, code: held.pickup_code.to_lowercase().replace('-', "") };
    shop.does(small).await.expect("is collected");
    shop.adds_up().await;
}

/// Boxes are added, taken out as far as they are free, and the offer closed and opened.
pub async fn stock_is_changed(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 2).await;
    shop.must("u1", "box").await;
    let change = |add| Operation::Change(Change { inventory_id: "box".to_owned(), add, closed: None });
    let Verdict::Inventory(more) = shop.ask(change(3)).await else { panic!("is changed") };
    assert_eq!((more.original_quantity, more.remaining_quantity), (5, 4));
    assert_eq!(shop.ask(change(-5)).await, Verdict::Refused(Refusal::InsufficientInventory));
    let Verdict::Inventory(less) = shop.ask(change(-4)).await else { panic!("is changed") };
    assert_eq!(
        (less.original_quantity, less.remaining_quantity, less.status),
        (5, 0, InventoryStatus::SoldOut)
    );
    shop.world.advance(TIMES.usual);
    let Verdict::Inventory(less) = shop.ask(change(-1)).await else { panic!("what lapsed is free") };
    assert_eq!(less.remaining_quantity, 0);
    shop.adds_up().await;
}

/// Ids that a client brings make creations idempotent; the same id for something else is refused.
pub async fn creations_may_be_repeated(world: World) {
    let shop = Shop::open(world).await;
    let merchant = |name: &str| {
        let (id, name, timezone) = ("m9".to_owned(), name.to_owned(), "UTC".to_owned());
        Operation::CreateMerchant(Merchant { id, name, timezone })
    };
    let both = tokio::join!(shop.ask(merchant("Deli")), shop.ask(merchant("Deli")));
    assert_eq!(both.0, both.1);
    assert_eq!(shop.ask(merchant("Other")).await, Verdict::Refused(Refusal::AlreadyExists));
    let boxes = async |quantity| {
        let now = Timestamp::from_millis(4_000_000_000_000);
        let made = NewInventory {
            id: "box-9".to_owned(),
            box_type_id: "type-m1".to_owned(),
            quantity,
            price: 450,
            currency: "EUR".to_owned(),
            window: window::Window::Instants { start: now, end: now.plus(MINUTE) },
            pricing: None,
        };
        shop.ask(Operation::CreateInventory(made)).await
    };
    let made = boxes(3).await;
    assert_eq!(boxes(3).await, made);
    assert_eq!(boxes(99).await, Verdict::Refused(Refusal::AlreadyExists), "so many were not put on offer");
    let more = Change { inventory_id: "box-9".to_owned(), add: 2, closed: None };
    let changed = shop.ask(Operation::Change(more)).await;
    assert_eq!(boxes(3).await, changed, "what has become of it since is another matter");
    let made = BoxType { id: "t".to_owned(), merchant_id: "nobody".to_owned(), name: "Box".to_owned() };
    let refused = shop.ask(Operation::CreateBoxType(made)).await;
    assert_eq!(refused, Verdict::Refused(Refusal::MerchantNotFound));
}

/// The same key and request is decided once; another request with the key is refused; refusals are kept, too.
pub async fn a_key_is_decided_once(world: World) {
    let mut shop = Shop::open(world).await;
    shop.boxes("box", "m1", 1).await;
    let keyed = |key: &str, digest: &str, operation| Request {
        idempotency: Some((IdempotencyKey { scope: "s".to_owned(), key: key.to_owned() }, digest.to_owned())),
        ..Request::new(operation)
    };
    let batch = vec![keyed("k", "d", reserve("u1", "box")), keyed("k", "d", reserve("u1", "box"))];
    let decided = shop.decide(batch).await;
    assert_eq!(decided[0].verdict, decided[1].verdict, "its twin in the batch has the same verdict");
    assert_eq!((decided[0].replayed, decided[1].replayed), (false, true));
    let refused = shop.decide(vec![keyed("sold-out", "d", reserve("u2", "box"))]).await;
    assert_eq!(refused[0].verdict, Verdict::Refused(Refusal::BoxUnavailable));
    let other = shop.decide(vec![keyed("k", "other", reserve("u1", "box"))]).await;
    assert_eq!(other[0].verdict, Verdict::Refused(Refusal::IdempotencyKeyReused));
    let first = decided[0].verdict.clone();
    shop.does(Operation::Cancel(of(first.clone()).expect("is held").id)).await.expect("is given back");
    shop.world.restart().await;
    shop.store = shop.world.store();
    let again = shop.decide(vec![keyed("k", "d", reserve("u1", "box"))]).await;
    assert_eq!((&again[0].verdict, again[0].replayed), (&first, true), "the first answer, after a restart");
    let still = shop.decide(vec![keyed("sold-out", "d", reserve("u2", "box"))]).await;
    assert_eq!((&still[0].verdict, still[0].replayed), (&refused[0].verdict, true));
    let retention = solely_core::store::Retention::default();
    shop.world.advance(25 * 60 * MINUTE);
    while shop.store.prune(retention).await.expect("prunes").more {}
    let fresh = shop.decide(vec![keyed("k", "other", reserve("u1", "box"))]).await;
    assert_eq!(
        fresh[0].verdict,
        Verdict::Refused(Refusal::PickupWindowClosed),
        "after a day it is forgotten"
    );
    shop.adds_up().await;
}

/// Twins with one key at once, apart: one reservation.
pub async fn twins_with_one_key_are_one_reservation(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 50).await;
    for round in 0..10 {
        let key = IdempotencyKey { scope: "s".to_owned(), key: format!("k{round}") };
        let asks = (0..8).map(|_| {
            let request = Request {
                idempotency: Some((key.clone(), "d".to_owned())),
                ..Request::new(reserve(&format!("u{round}"), "box"))
            };
            shop.decide(vec![request])
        });
        let verdicts: Vec<Verdict> =
            join_all(asks).await.into_iter().map(|mut one| one.remove(0).verdict).collect();
        let made: std::collections::HashSet<_> =
            verdicts.iter().filter_map(|verdict| of(verdict.clone()).ok()).map(|one| one.id).collect();
        assert_eq!(made.len(), 1, "{verdicts:?}");
        let busy = |verdict: &&Verdict| **verdict == Verdict::Refused(Refusal::IdempotencyInProgress);
        let told = verdicts.iter().filter(|verdict| of((*verdict).clone()).is_ok() || busy(verdict)).count();
        assert_eq!(told, 8);
    }
    assert_eq!(shop.left("box").await, 40);
}

/// Batches that touch the same merchants in any order do not wait for each other for ever.
pub async fn batches_of_two_items_of_one_merchant_go_on(world: World) {
    let shop = Shop::open(world).await;
    for (item, merchant) in [("a", "m1"), ("b", "m1"), ("c", "m2")] {
        shop.boxes(item, merchant, 1_000).await;
    }
    let orders = [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"], ["b", "a", "c"]];
    let batches = (0..40).map(|n| {
        let user = |item: &str| format!("u{n}-{item}");
        shop.decide(orders[n % 4].map(|item| Request::new(reserve(&user(item), item))).to_vec())
    });
    for decided in join_all(batches).await {
        assert!(decided.iter().all(|one| matches!(one.verdict, Verdict::Reservation(_))));
    }
    assert_eq!((shop.left("a").await, shop.left("b").await, shop.left("c").await), (960, 960, 960));
    shop.adds_up().await;
}

/// That a reservation was made is told as it was then, by its row or beside other events, in the order in which things
/// happened, page by page.
pub async fn a_making_is_told_as_it_was(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 4).await;
    let asks = |user: &str| Request {
        request_id: Some(format!("asks-{user}")),
        ..Request::new(reserve(user, "box"))
    };
    // Alone in their batch, then behind and before a refusal.
    let batches = [vec!["a", "b"], vec!["c", "a", "d", "e"]];
    let mut made = Vec::new();
    for batch in batches {
        let decided = shop.decide(batch.into_iter().map(asks).collect()).await;
        made.extend(decided.into_iter().filter_map(|one| match one.verdict {
            Verdict::Reservation(made) => Some(made),
            _ => None,
        }));
    }
    let [a, .., d] = made.as_slice() else { panic!("four are made: {made:?}") };
    shop.does(Operation::Extend { id: a.id, ttl: Some(MINUTE * 30) }).await.expect("lasts longer");
    shop.does(Operation::Confirm(d.id)).await.expect("is paid");
    for made in [a, d] {
        let events = shop.store.timeline(subject_of(made.id), None, 10).await.expect("reads");
        let first = &events[0];
        let then: serde_json::Value = serde_json::from_str(first.told.details.as_str()).expect("an object");
        assert_eq!((first.told.event.as_str(), first.at), ("reserve", made.reserved_at));
        assert_eq!(first.told.request_id, Some(format!("asks-{}", made.user_id)));
        assert_eq!(then["userId"], made.user_id.as_str());
        assert_eq!((&then["status"], &then["paymentStatus"]), (&"ACTIVE".into(), &"PENDING".into()));
        assert_eq!(then["expiresAt"], serde_json::json!(made.expires_at), "and not what it is by now");
        assert_eq!(events.len(), 2);
    }
    let (mut words, mut after) = (Vec::new(), None);
    loop {
        let page = shop.store.timeline(subject_of_item("box"), after, 2).await.expect("reads");
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 2 && after.is_none_or(|after| after < page[0].id), "each once, in order");
        after = Some(last.id);
        words.extend(page.into_iter().map(|event| {
            let user = event.told.request_id.unwrap_or_default();
            format!("{} {}{}", event.told.event, user, event.told.reason.unwrap_or_default())
        }));
    }
    let expected = [
        "create ",
        "reserve asks-a",
        "reserve asks-b",
        "reserve asks-c",
        "reserve asks-aACTIVE_RESERVATION_EXISTS",
        "reserve asks-d",
        "reserve asks-eBOX_UNAVAILABLE",
        "extend ",
        "confirm ",
    ];
    assert_eq!(words, expected);
}

/// What happened is told for the reservation and for the box, refused attempts too, those once.
pub async fn every_attempt_is_told(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 1).await;
    let held = shop.must("u1", "box").await;
    let batch = (0..5).map(|_| Request::new(reserve("u2", "box"))).collect();
    shop.decide(batch).await;
    shop.does(Operation::Cancel(held.id)).await.expect("is given back");
    let told = async |subject: String| -> Vec<(String, Option<String>)> {
        let events = shop.store.timeline(subject, None, 100).await.expect("reads");
        events.into_iter().map(|event| (event.told.event, event.told.reason)).collect()
    };
    let plain = |event: &str| (event.to_owned(), None);
    assert_eq!(told(subject_of(held.id)).await, [plain("reserve"), plain("cancel")]);
    let refused = ("reserve".to_owned(), Some("BOX_UNAVAILABLE".to_owned()));
    let all = [plain("create"), plain("reserve"), refused, plain("cancel")];
    assert_eq!(told(subject_of_item("box")).await, all);
}

/// Lists are by user, merchant and what stands now.
pub async fn reservations_are_listed(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("a", "m1", 9).await;
    shop.boxes("b", "m2", 9).await;
    let (first, second) = (shop.must("u1", "a").await, shop.must("u1", "b").await);
    shop.must("u2", "a").await;
    shop.does(Operation::Cancel(second.id)).await.expect("is given back");
    let list = async |filter| -> Vec<ReservationId> {
        shop.store.reservations(filter).await.expect("reads").into_iter().map(|one| one.id).collect()
    };
    let all = ReservationFilter { limit: 10, ..ReservationFilter::default() };
    let of_user = ReservationFilter { user_id: Some("u1".to_owned()), ..all.clone() };
    assert_eq!(list(of_user.clone()).await, [first.id, second.id]);
    let at = ReservationFilter { merchant_id: Some("m1".to_owned()), ..of_user.clone() };
    assert_eq!(list(at).await, [first.id]);
    let active = ReservationFilter { status: Some(ReservationStatus::Active), ..of_user.clone() };
    assert_eq!(list(active.clone()).await, [first.id]);
    shop.world.advance(TIMES.usual);
    assert_eq!(list(active).await, [], "it has lapsed");
    let expired = ReservationFilter { status: Some(ReservationStatus::Expired), ..of_user };
    assert_eq!(list(expired).await, [first.id]);
    let page = ReservationFilter { after: Some(first.id), limit: 1, ..all };
    assert_eq!(list(page).await, [second.id]);
}
