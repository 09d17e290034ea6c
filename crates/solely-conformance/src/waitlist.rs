//! Waiting lists: what is freed is offered in the same transaction, to the first in line who may have it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use solely_core::WaitId;
use solely_core::job::{ClaimReply, ClaimRequest};
use solely_core::reserve::{
    Change, Follows, InventoryStatus, NewReservation, NewWait, Operation, PaymentStatus, Refusal, Request,
    Reservation, ReservationFilter, ReservationStatus, ToldTo, Verdict, WaitFilter, WaitStatus, WaitView,
    notify, subject_of,
};

use crate::World;
use crate::reserve::{Shop, TIMES, new, of};

const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn join(user: &str, item: &str) -> Operation {
    Operation::Join(NewWait { id: WaitId::new(), user_id: user.to_owned(), inventory_id: item.to_owned() })
}

impl Shop {
    async fn joins(&self, user: &str, item: &str) -> Result<WaitView, Refusal> {
        match self.ask(join(user, item)).await {
            Verdict::Wait(wait) => Ok(wait),
            Verdict::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    async fn leaves(&self, id: WaitId) -> Result<(), Refusal> {
        match self.ask(Operation::Leave(id)).await {
            Verdict::Wait(_) => Ok(()),
            Verdict::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    /// Users in line or with an offer, with their positions.
    async fn line(&self, item: &str) -> Vec<(String, u64)> {
        let found = self
            .store
            .waitlist(WaitFilter { inventory_id: item.to_owned(), user_id: None, after: None, limit: 100 })
            .await;
        found.expect("reads").into_iter().map(|(_, wait)| (wait.user_id, wait.position)).collect()
    }

    /// What a user is offered.
    async fn offer_of(&self, user: &str) -> Option<Reservation> {
        let status = Some(ReservationStatus::Offered);
        let filter = ReservationFilter {
            user_id: Some(user.to_owned()),
            status,
            limit: 10,
            ..ReservationFilter::default()
        };
        self.store.reservations(filter).await.expect("reads").into_iter().next()
    }

    async fn do_it(&self, operation: Operation) -> Result<Reservation, Refusal> {
        of(self.ask(operation).await)
    }

    async fn buys(&self, user: &str, item: &str) -> Result<Reservation, Refusal> {
        self.do_it(Operation::Reserve(new(user, item))).await
    }
}

/// What is given back is offered at once to who waits, before anyone who walks in; what is accepted is held.
pub async fn what_is_freed_is_offered_to_the_first_in_line(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 1).await;
    let held = shop.buys("u1", "box").await.expect("is held");
    let first = shop.joins("u2", "box").await.expect("waits");
    assert_eq!((first.position, first.status, first.reservation_id), (1, WaitStatus::Waiting, None));
    assert_eq!(shop.joins("u3", "box").await.expect("waits").position, 2);
    assert_eq!(shop.joins("u2", "box").await.expect("is the same"), first);
    shop.do_it(Operation::Cancel(held.id)).await.expect("is given back");
    let offer = shop.offer_of("u2").await.expect("is offered");
    assert_eq!(offer.expires_at, offer.reserved_at.plus(TIMES.offer));
    assert_eq!((offer.quantity, offer.total_amount, offer.payment_status), (1, 450, PaymentStatus::Pending));
    assert_eq!(shop.line("box").await, [("u2".to_owned(), 0), ("u3".to_owned(), 1)]);
    let (inventory_id, user_id) = ("box".to_owned(), Some("u3".to_owned()));
    let own = shop
        .store
        .waitlist(WaitFilter { inventory_id, user_id, after: None, limit: 5 })
        .await
        .expect("reads");
    assert_eq!(own.into_iter().map(|(_, wait)| wait.position).collect::<Vec<_>>(), [1]);
    assert_eq!(shop.buys("walk-in", "box").await, Err(Refusal::BoxUnavailable));
    for not_yet in [Operation::Confirm(offer.id), Operation::Extend { id: offer.id, ttl: None }] {
        assert_eq!(shop.do_it(not_yet).await, Err(Refusal::InvalidState));
    }
    let taken = shop.do_it(Operation::Accept(offer.id)).await.expect("is taken");
    assert_eq!(taken.status, ReservationStatus::Active);
    assert_eq!(taken.expires_at, taken.reserved_at.plus(TIMES.usual));
    assert_eq!(shop.do_it(Operation::Accept(offer.id)).await.expect("is the same"), taken);
    assert_eq!(shop.line("box").await, [("u3".to_owned(), 1)]);
    shop.do_it(Operation::Confirm(offer.id)).await.expect("is paid");
    shop.adds_up().await;
}

/// Whoever joins where a box is free is offered it at once.
pub async fn joining_where_a_box_is_free_is_offered_at_once(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 1).await;
    let wait = shop.joins("u1", "box").await.expect("waits");
    assert_eq!((wait.status, wait.position), (WaitStatus::Offered, 0));
    let offer = shop.offer_of("u1").await.expect("is offered");
    assert_eq!(wait.reservation_id, Some(offer.id));
    assert_eq!(shop.joins("u1", "box").await.expect("is the same"), wait);
    assert_eq!(shop.look("box").await.remaining_quantity, 0);
    assert_eq!(shop.joins("u2", "box").await.expect("waits").position, 1);
    shop.adds_up().await;
}

/// An offer that is not taken, given back or left passes on, each time in the transaction that ends it.
pub async fn an_unused_offer_passes_on(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 1).await;
    let mut waits = Vec::new();
    for user in ["u1", "u2", "u3", "u4"] {
        waits.push(shop.joins(user, "box").await.expect("waits"));
    }
    let first = shop.offer_of("u1").await.expect("is offered");
    // Its time is over: nobody has looked, and nobody who walks in has it.
    shop.world.advance(TIMES.offer + MINUTE);
    assert_eq!(shop.look("box").await.remaining_quantity, 0, "others wait for it");
    assert_eq!(shop.look("box").await.status, InventoryStatus::SoldOut);
    assert_eq!(shop.buys("walk-in", "box").await, Err(Refusal::BoxUnavailable));
    assert_eq!(shop.do_it(Operation::Accept(first.id)).await, Err(Refusal::ReservationExpired));
    let second = shop.offer_of("u2").await.expect("it passed on");
    shop.do_it(Operation::Cancel(second.id)).await.expect("is not wanted");
    assert!(shop.offer_of("u3").await.is_some());
    shop.leaves(waits[2].id).await.expect("leaves with an offer");
    assert!(shop.offer_of("u3").await.is_none() && shop.offer_of("u4").await.is_some());
    shop.leaves(waits[2].id).await.expect("has left");
    let taken = shop.offer_of("u4").await.expect("is offered");
    shop.do_it(Operation::Accept(taken.id)).await.expect("is taken");
    assert_eq!(shop.leaves(waits[3].id).await, Err(Refusal::InvalidState));
    assert_eq!(shop.leaves(WaitId::new()).await, Err(Refusal::WaitNotFound));
    assert_eq!(shop.line("box").await, []);
    shop.adds_up().await;
}

/// The sweeper ends what nobody looks at, and offers it.
pub async fn a_sweep_offers_what_it_frees(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 3).await;
    for user in ["u1", "u2", "u3"] {
        shop.buys(user, "box").await.expect("is held");
    }
    for user in ["w1", "w2"] {
        shop.joins(user, "box").await.expect("waits");
    }
    shop.world.advance(TIMES.usual + MINUTE);
    assert_eq!(shop.look("box").await.remaining_quantity, 1, "two of three are waited for");
    assert_eq!(shop.sweep(10).await, 3);
    assert!(shop.offer_of("w1").await.is_some() && shop.offer_of("w2").await.is_some());
    assert_eq!(shop.look("box").await.remaining_quantity, 1);
    shop.buys("walk-in", "box").await.expect("nobody waits for it");
    shop.adds_up().await;
}

/// Who has a reservation at the merchant keeps the place and is passed over, until it has ended, whatever ends it.
pub async fn who_may_not_have_one_is_passed_over(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 1).await;
    shop.boxes("other", "m1", 5).await;
    let held = shop.buys("u1", "box").await.expect("is held");
    let elsewhere = shop.buys("u2", "other").await.expect("is held");
    shop.joins("u2", "box").await.expect("waits, though it has one");
    shop.joins("u3", "box").await.expect("waits");
    shop.do_it(Operation::Cancel(held.id)).await.expect("is given back");
    assert!(shop.offer_of("u2").await.is_none());
    let offer = shop.offer_of("u3").await.expect("is the first who may have it");
    assert_eq!(shop.line("box").await, [("u2".to_owned(), 1), ("u3".to_owned(), 0)]);
    shop.do_it(Operation::Cancel(offer.id)).await.expect("is not wanted");
    assert_eq!(shop.look("box").await.remaining_quantity, 1, "nobody who waits may have it");
    // What ends elsewhere makes it theirs, in that transaction.
    let code = elsewhere.pickup_code.clone();
    shop.do_it(Operation::Collect { id: elsewhere.id, code }).await.expect("is collected");
    assert!(shop.offer_of("u2").await.is_some());
    assert_eq!(shop.buys("walk-in", "box").await, Err(Refusal::BoxUnavailable));
    shop.adds_up().await;
}

/// A hold elsewhere whose time is over stands in nobody's way, swept or not.
pub async fn a_lapsed_hold_elsewhere_does_not_cost_the_place(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 1).await;
    shop.boxes("other", "m1", 1).await;
    shop.buys("u2", "other").await.expect("is held");
    shop.joins("u2", "box").await.expect("waits, though it has one");
    assert!(shop.offer_of("u2").await.is_none());
    shop.joins("u3", "other").await.expect("waits");
    shop.world.advance(TIMES.usual + MINUTE);
    assert_eq!(shop.look("box").await.remaining_quantity, 0, "u2 may have it by now");
    assert_eq!(shop.buys("walk-in", "box").await, Err(Refusal::BoxUnavailable));
    assert_eq!(shop.offer_of("u2").await.map(|offer| offer.box_inventory_id), Some("box".to_owned()));
    let other = shop.offer_of("u3").await.map(|offer| offer.box_inventory_id);
    assert_eq!(other, Some("other".to_owned()), "and what it held is offered, too");
    shop.adds_up().await;
}

/// What is added, and what is opened again, goes to those who wait first; nothing is offered once it is closed.
pub async fn what_is_added_is_offered_unless_it_is_closed(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 0).await;
    for user in ["u1", "u2", "u3"] {
        shop.joins(user, "box").await.expect("waits");
    }
    let change = |add, closed| Operation::Change(Change { inventory_id: "box".to_owned(), add, closed });
    let Verdict::Inventory(view) = shop.ask(change(2, None)).await else { panic!("is changed") };
    assert_eq!((view.remaining_quantity, view.status), (0, InventoryStatus::SoldOut));
    assert_eq!(shop.line("box").await.len(), 3);
    assert!(shop.offer_of("u2").await.is_some() && shop.offer_of("u3").await.is_none());
    shop.ask(change(5, Some(true))).await;
    assert!(shop.offer_of("u3").await.is_none(), "it is closed");
    assert_eq!(shop.joins("u4", "box").await, Err(Refusal::BoxUnavailable));
    shop.ask(change(0, Some(false))).await;
    assert!(shop.offer_of("u3").await.is_some(), "it is open again");
    assert_eq!(shop.look("box").await.remaining_quantity, 4);
    assert_eq!(shop.ask(change(-5, None)).await, Verdict::Refused(Refusal::InsufficientInventory));
    shop.adds_up().await;
}

/// An offer ends with the window at the latest, and none is made once the window has closed.
pub async fn no_offer_after_the_window(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes_until("box", "m1", 1, 35 * MINUTE).await;
    let held = shop.buys("u1", "box").await.expect("is held");
    for user in ["u2", "u3"] {
        shop.joins(user, "box").await.expect("waits");
    }
    shop.world.advance(19 * MINUTE);
    shop.do_it(Operation::Extend { id: held.id, ttl: Some(30 * MINUTE) }).await.expect("lasts longer");
    shop.world.advance(10 * MINUTE);
    shop.do_it(Operation::Cancel(held.id)).await.expect("is given back");
    let offer = shop.offer_of("u2").await.expect("is offered");
    let ends = shop.look("box").await.pickup_end;
    assert_eq!(offer.expires_at, ends, "the window closes before the offer would");
    shop.world.advance(7 * MINUTE);
    assert_eq!(shop.do_it(Operation::Accept(offer.id)).await, Err(Refusal::ReservationExpired));
    shop.sweep(10).await;
    assert!(shop.offer_of("u3").await.is_none(), "the window has closed");
    assert_eq!(shop.joins("u4", "box").await, Err(Refusal::PickupWindowClosed));
    assert_eq!(shop.line("box").await, [("u3".to_owned(), 1)]);
    assert_eq!(shop.store.close_waits(10).await, Ok(1), "there is nothing left to wait for");
    assert_eq!(shop.store.close_waits(10).await, Ok(0));
    assert_eq!(shop.line("box").await, []);
    shop.adds_up().await;
}

/// Whatever is given back, joined, left and bought at once, nobody who walks in is faster than who waits.
pub async fn nobody_overtakes(world: World) {
    let shop = Shop::open(world).await;
    let mut overtakes = 0;
    for round in 0..10 {
        let item = format!("box-{round}");
        shop.boxes(&item, "m1", 3).await;
        let mut held = Vec::new();
        for n in 0..3 {
            held.push(shop.buys(&format!("h{round}-{n}"), &item).await.expect("is held"));
        }
        for n in 0..3 {
            shop.joins(&format!("w{round}-{n}"), &item).await.expect("waits");
        }
        let frees = held.iter().map(|one| shop.ask(Operation::Cancel(one.id)));
        let users: Vec<String> = (0..6).map(|n| format!("i{round}-{n}")).collect();
        let walks = users.iter().map(|user| shop.buys(user, &item));
        let (_, walked) = futures::join!(join_all(frees), join_all(walks));
        overtakes += walked.iter().filter(|bought| bought.is_ok()).count();
        for n in 0..3 {
            assert!(shop.offer_of(&format!("w{round}-{n}")).await.is_some());
        }
    }
    assert_eq!(overtakes, 0);
    shop.adds_up().await;
}

/// In one batch: what one gives back is offered before the next is decided.
pub async fn a_batch_offers_between_its_requests(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 1).await;
    let held = shop.buys("u1", "box").await.expect("is held");
    let batch = [
        Operation::Reserve(new("early", "box")),
        join("w1", "box"),
        Operation::Cancel(held.id),
        Operation::Reserve(new("late", "box")),
        join("w2", "box"),
        join("w1", "box"),
    ];
    let decided = shop.decide(batch.into_iter().map(Request::new).collect()).await;
    let verdicts: Vec<Verdict> = decided.into_iter().map(|one| one.verdict).collect();
    assert_eq!(verdicts[0], Verdict::Refused(Refusal::BoxUnavailable));
    assert!(matches!(&verdicts[1], Verdict::Wait(wait) if wait.position == 1));
    assert!(matches!(&verdicts[2], Verdict::Reservation(_)));
    assert_eq!(verdicts[3], Verdict::Refused(Refusal::BoxUnavailable));
    assert!(matches!(&verdicts[4], Verdict::Wait(wait) if wait.position == 1));
    assert!(matches!(&verdicts[5], Verdict::Wait(wait) if wait.status == WaitStatus::Offered));
    shop.adds_up().await;
}

/// A key makes joining repeatable: the same answer, whatever has happened since.
pub async fn joining_with_a_key_is_answered_as_it_was(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 1).await;
    let held = shop.buys("u1", "box").await.expect("is held");
    let key = solely_core::reserve::IdempotencyKey { scope: "anyone".to_owned(), key: "k".to_owned() };
    let request =
        Request { idempotency: Some((key, "digest".to_owned())), ..Request::new(join("u2", "box")) };
    let first = shop.decide(vec![request.clone()]).await.remove(0);
    shop.do_it(Operation::Cancel(held.id)).await.expect("is given back");
    let again = shop.decide(vec![request]).await.remove(0);
    assert!(again.replayed);
    assert_eq!(again.verdict, first.verdict);
}

/// What becomes of a reservation is due for delivery, and a job is there for it, in the same commit; none otherwise.
pub async fn a_change_is_due_for_delivery_with_its_job(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 2).await;
    let silent = shop.buys("u0", "box").await.expect("is held");
    assert_eq!(shop.store.outbox(subject_of(silent.id), 10).await.expect("reads"), []);
    let shop = shop.notifying();
    let held = shop.buys("u1", "box").await.expect("is held");
    shop.joins("u2", "box").await.expect("waits");
    shop.do_it(Operation::Confirm(held.id)).await.expect("is paid");
    shop.do_it(Operation::Cancel(held.id)).await.expect("is given back");
    let offer = shop.offer_of("u2").await.expect("is offered");
    let due = |id| {
        let store = shop.store.clone();
        async move {
            let due = store.outbox(subject_of(id), 10).await.expect("reads");
            due.into_iter().map(|event| event.told.event).collect::<Vec<_>>()
        }
    };
    assert_eq!(due(held.id).await, ["reserve", "confirm", "cancel"]);
    assert_eq!(due(offer.id).await, ["offer"]);
    let request = ClaimRequest {
        process: shop.world.process,
        queue: notify::QUEUE.to_owned(),
        limit: 10,
        lock: MINUTE,
    };
    let ClaimReply::Jobs { jobs, .. } = shop.store.claim(request).await.expect("claims") else {
        panic!("this process has beaten")
    };
    let mut keys: Vec<String> = jobs.into_iter().map(|claimed| claimed.job.key).collect();
    keys.sort();
    let mut expected = vec![held.id.to_string(), offer.id.to_string()];
    expected.sort();
    assert_eq!(keys, expected, "one for each reservation");
}

/// What is told to a user: each of its reservations, with what became of it, in order.
pub async fn a_user_is_told_of_its_reservations(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 3).await;
    let held = shop.buys("u1", "box").await.expect("is held");
    shop.do_it(Operation::Confirm(held.id)).await.expect("is paid");
    shop.buys("u2", "box").await.expect("is held");
    let follows = |user: &str, told| Follows { user_id: user.to_owned(), told };
    let words =
        |told: &ToldTo| -> Vec<String> { told.events.iter().map(|event| event.told.event.clone()).collect() };
    let from_the_start = || Some(BTreeMap::new());
    let both = vec![follows("u1", from_the_start()), follows("nobody", from_the_start())];
    let told = shop.store.told_to(both, 16).await.expect("reads");
    assert_eq!((told.len(), told[0].reservation.id, told[0].is_open), (1, held.id, true));
    assert_eq!(words(&told[0]), ["reserve", "confirm"]);
    let first = told[0].events[0].id;
    let some = shop.store.told_to(vec![follows("u1", from_the_start())], 1).await.expect("reads");
    assert_eq!(words(&some[0]), ["reserve"], "so many at a time");
    let last = shop.store.told_to(vec![follows("u1", None)], 16).await.expect("reads");
    assert_eq!(words(&last[0]), ["confirm"], "where it is");
    let known = Some(BTreeMap::from([(held.id, first)]));
    let rest = shop.store.told_to(vec![follows("u1", known.clone())], 16).await.expect("reads");
    assert_eq!(words(&rest[0]), ["confirm"], "what came after");
    // One that is known is told of however many came after it.
    shop.boxes("other", "m2", 30).await;
    for _ in 0..25 {
        let later = shop.buys("u1", "other").await.expect("is held");
        shop.do_it(Operation::Cancel(later.id)).await.expect("is given back");
    }
    shop.do_it(Operation::Cancel(held.id)).await.expect("is given back");
    let told = shop.store.told_to(vec![follows("u1", known)], 16).await.expect("reads");
    let of_held = told.iter().find(|told| told.reservation.id == held.id).expect("is told of");
    assert_eq!((words(of_held), of_held.is_open), (vec!["confirm".to_owned(), "cancel".to_owned()], false));
}

/// Joining is bounded by those who wait already; and whoever asks for several is told what is left.
pub async fn waiting_for_several_is_one_at_a_time(world: World) {
    let shop = Shop::open(world).await;
    shop.boxes("box", "m1", 4).await;
    let many = Operation::Reserve(NewReservation { quantity: 4, ..new("u1", "box") });
    let held = shop.do_it(many).await.expect("is held");
    for user in ["w1", "w2"] {
        shop.joins(user, "box").await.expect("waits");
    }
    shop.do_it(Operation::Cancel(held.id)).await.expect("is given back");
    assert!(shop.offer_of("w1").await.is_some() && shop.offer_of("w2").await.is_some());
    assert_eq!(shop.look("box").await.remaining_quantity, 2, "the rest is for who walks in");
    shop.adds_up().await;
}
