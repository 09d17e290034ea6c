//! What PostgreSQL sells without reading: it is as it would be if it had been read.

use std::sync::Arc;
use std::time::Duration;

use solely_core::check::CheckStore as _;
use solely_core::clock::Timestamp;
use solely_core::event::EventStore as _;
use solely_core::queue::{JobFilter, QueueStore as _};
use solely_core::reserve::pricing::{Pricing, Step};
use solely_core::reserve::{
    Batch, BoxType, Change, Decided, HoldTimes, IdempotencyKey, Merchant, NewInventory, NewReservation,
    NewWait, Operation, Refusal, Request, Reservation, ReservationFilter, ReserveStore as _, Rules, Verdict,
    pickup_code, subject_of, window::Window,
};
use solely_core::{Clock, ReservationId, WaitId};
use solely_postgres::{Options, PostgresStore};
use solely_testing::{PostgresServer, fresh_database};
use tokio_postgres::{Client, NoTls};

const TIMES: HoldTimes = HoldTimes {
    usual: Duration::from_secs(20 * 60),
    least: Duration::from_secs(15 * 60),
    most: Duration::from_secs(30 * 60),
    offer: Duration::from_secs(10 * 60),
};

/// A process that sells boxes, and a look at its database.
struct Shop {
    url: String,
    store: Arc<PostgresStore>,
    looks: Client,
    rules: Arc<Rules>,
}

impl Shop {
    async fn open() -> Self {
        Self::open_with(|rules| rules, None).await
    }

    async fn open_with(rules: impl Fn(Rules) -> Rules, pricing: Option<Pricing>) -> Self {
        Self::open_on(fresh_database(), rules, pricing).await
    }

    async fn open_on(url: String, rules: impl Fn(Rules) -> Rules, pricing: Option<Pricing>) -> Self {
        let looks = connect(&url).await;
        let name: String =
            looks.query_one("SELECT current_database()::text", &[]).await.expect("looks").get(0);
        looks
            .batch_execute(&format!("ALTER DATABASE {name} SET track_functions = 'all'"))
            .await
            .expect("is set");
        let store = Arc::new(another(&url).await);
        let shop = Self { store, looks, rules: Arc::new(rules(Rules::new(TIMES))), url };
        let text = str::to_owned;
        let merchant = Merchant { id: text("m"), name: text("Bakery"), timezone: text("UTC") };
        shop.ask(Operation::CreateMerchant(merchant)).await;
        let box_type = BoxType { id: text("t"), merchant_id: text("m"), name: text("Box") };
        shop.ask(Operation::CreateBoxType(box_type)).await;
        let now = shop.now().await;
        let made = NewInventory {
            id: text("box"),
            box_type_id: text("t"),
            quantity: 10,
            price: 450,
            currency: text("EUR"),
            window: Window::Instants { start: now, end: now.plus(Duration::from_secs(2 * 3_600)) },
            pricing,
        };
        shop.ask(Operation::CreateInventory(made)).await;
        shop
    }

    async fn now(&self) -> Timestamp {
        self.store.lapsed(1).await.expect("reads").now
    }

    async fn decide(&self, requests: Vec<Request>) -> Vec<Decided> {
        decide(&self.store, requests, &self.rules).await
    }

    async fn ask(&self, operation: Operation) -> Verdict {
        self.decide(vec![Request::new(operation)]).await.remove(0).verdict
    }

    async fn buy(&self, user: &str) -> Reservation {
        bought(self.ask(Operation::Reserve(new(user))).await)
    }

    /// How often a sale was tried without reading.
    async fn sales(&self) -> i64 {
        // What a connection counts is told when it is idle, or ends.
        let calls = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_user_functions WHERE funcname IN ('solely_sell', 'solely_sell_one')";
        self.looks.query_one(calls, &[]).await.expect("looks").get(0)
    }

    async fn until_sales(&self, count: i64) {
        while self.sales().await < count {
            tokio::task::yield_now().await;
        }
    }

    async fn left(&self) -> i32 {
        self.looks.query_one("SELECT remaining FROM inventory", &[]).await.expect("looks").get(0)
    }

    async fn adds_up(&self) {
        assert_eq!(self.store.check().await.expect("checks").violations, []);
    }

    /// The merchant, in the hands of a transaction that has not ended.
    async fn merchant_held(&self) -> Client {
        let holder = connect(&self.url).await;
        let hold = "BEGIN; SELECT 1 FROM merchants WHERE id = 'm' FOR NO KEY UPDATE";
        holder.batch_execute(hold).await.expect("locks");
        holder
    }

    async fn until_one_waits_for_a_lock(&self) {
        let waits = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while self.looks.query_one(waits, &[]).await.expect("looks").get::<_, i64>(0) == 0 {
            tokio::task::yield_now().await;
        }
    }

    /// Makes the functions that sell others: as they would be without a guard.
    async fn with(&self, guard: &str, instead: &str) {
        let sources =
            "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname IN ('solely_sell', 'solely_sell_one')";
        let sources = self.looks.query(sources, &[]).await.expect("looks");
        let sources = sources.iter().map(|source| source.get::<_, String>(0));
        let guarded: Vec<String> = sources.filter(|source| source.contains(guard)).collect();
        assert_ne!(guarded, Vec::<String>::new(), "{guard}");
        for source in guarded {
            self.looks.batch_execute(&source.replace(guard, instead)).await.expect("is made");
        }
    }
}

async fn decide(store: &PostgresStore, requests: Vec<Request>, rules: &Arc<Rules>) -> Vec<Decided> {
    store.decide(Batch::of(requests), rules.clone()).await.expect("decides").0
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

/// A process of its own.
async fn another(url: &str) -> PostgresStore {
    PostgresStore::open(url, &Options::default()).await.expect("opens")
}

fn new(user: &str) -> NewReservation {
    NewReservation {
        id: ReservationId::new(),
        pickup_code: pickup_code(),
        user_id: user.to_owned(),
        inventory_id: "box".to_owned(),
        ttl: None,
        quantity: 1,
        max_price: None,
    }
}

fn bought(verdict: Verdict) -> Reservation {
    match verdict {
        Verdict::Reservation(reservation) => reservation,
        other => panic!("{other:?}"),
    }
}

/// Who buys of what was just seen is sold to by one statement, and has what anyone would have.
#[tokio::test]
async fn what_was_just_seen_is_sold_at_once() {
    let shop = Shop::open().await;
    let before = shop.now().await;
    let held = shop.buy("a").await;
    let three = vec![Request::new(Operation::Reserve(new("b"))), Request::new(Operation::Reserve(new("c")))];
    for decided in shop.decide(three).await {
        bought(decided.verdict);
    }
    shop.until_sales(2).await;
    assert_eq!(shop.left().await, 7);
    // Its time is never ahead of the store's, and not much behind.
    let moment = Duration::from_millis(50);
    assert!(held.reserved_at >= before.minus(moment) && held.reserved_at <= shop.now().await);
    assert_eq!(held.expires_at, held.reserved_at.plus(TIMES.usual));
    let filter = ReservationFilter { id: Some(held.id), limit: 1, ..Default::default() };
    assert_eq!(shop.store.reservations(filter).await.expect("reads"), std::slice::from_ref(&held));
    let subject = subject_of(held.id);
    let told = shop.store.timeline(subject, None, 9).await.expect("reads");
    assert_eq!(told.iter().map(|told| told.told.event.as_str()).collect::<Vec<_>>(), ["reserve"]);
    shop.adds_up().await;
}

/// Two processes that sell of one inventory never sell one too many, however wrong each remembers it.
#[tokio::test]
async fn two_processes_sell_what_there_is() {
    let shop = Shop::open().await;
    let other = another(&shop.url).await;
    let mut sold = 0;
    for n in 0..24 {
        let store = if n % 3 == 0 { &other } else { &*shop.store };
        let new = Request::new(Operation::Reserve(new(&format!("user-{n}"))));
        let decided = decide(store, vec![new], &shop.rules).await.remove(0);
        match decided.verdict {
            Verdict::Reservation(_) => sold += 1,
            Verdict::Refused(refusal) => assert_eq!(refusal, Refusal::BoxUnavailable),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((sold, shop.left().await), (10, 0));
    shop.adds_up().await;
}

/// Without the look at the version it would be sold although it was closed meanwhile; with it, it is not.
async fn sold_although_closed(shop: &Shop) -> bool {
    let other = another(&shop.url).await;
    shop.buy("first").await;
    let closed = Change { inventory_id: "box".to_owned(), add: 0, closed: Some(true) };
    decide(&other, vec![Request::new(Operation::Change(closed))], &shop.rules).await;
    matches!(shop.ask(Operation::Reserve(new("late"))).await, Verdict::Reservation(_))
}

#[tokio::test]
async fn what_changed_meanwhile_is_read_again() {
    assert!(!sold_although_closed(&Shop::open().await).await);
}

#[tokio::test]
async fn without_the_version_it_is_sold_as_it_was() {
    let shop = Shop::open().await;
    shop.with("version = as_version", "version >= as_version").await;
    assert!(sold_although_closed(&shop).await);
}

/// Two batches, one decided and sent behind the other while someone has the merchant, who then changes the inventory. What
/// they are told.
async fn sold_behind(shop: &Shop, change: &str) -> [Verdict; 2] {
    shop.buy("first").await;
    let holder = shop.merchant_held().await;
    let asks = |user: &str| Request::new(Operation::Reserve(new(user)));
    let both = |user: &str| vec![asks(user), asks(&format!("{user} too"))];
    let ahead = Batch::of(both("ahead"));
    let behind = Batch::behind(vec![ahead.ahead()], both("behind"));
    let decided = async |batch| {
        shop.store.decide(batch, shop.rules.clone()).await.expect("decides").0.remove(0).verdict
    };
    let buying = async { tokio::join!(decided(ahead), decided(behind)).into() };
    let changing = async {
        shop.until_one_waits_for_a_lock().await;
        holder.batch_execute(change).await.expect("changes");
    };
    let (told, ()): ([Verdict; 2], ()) = tokio::join!(buying, changing);
    told
}

const CLOSES: &str = "UPDATE inventory SET closed = true, version = version + 1; COMMIT";

/// What was decided behind another is sold if that one was, and both as they would have been alone.
#[tokio::test]
async fn one_is_sold_behind_the_other() {
    let shop = Shop::open().await;
    for verdict in sold_behind(&shop, "COMMIT").await {
        bought(verdict);
    }
    shop.until_sales(3).await;
    assert_eq!((shop.left().await, shop.sales().await), (5, 3), "each was sold at the first try");
    shop.buy("next").await;
    shop.until_sales(4).await;
    shop.adds_up().await;
}

/// The version that the one ahead would have left is what someone else has made of it instead.
#[tokio::test]
async fn what_is_behind_one_that_was_not_sold_is_not_sold_either() {
    let shop = Shop::open().await;
    for verdict in sold_behind(&shop, CLOSES).await {
        assert!(matches!(verdict, Verdict::Refused(_)), "{verdict:?}");
    }
    assert_eq!(shop.left().await, 9);
    shop.adds_up().await;
}

/// One that is behind another and not sold, because that one was not, is decided after it all the same.
#[tokio::test]
async fn who_is_behind_does_not_overtake() {
    let shop = Shop::open().await;
    shop.buy("known").await;
    let asks = |user: &str| Request::new(Operation::Reserve(new(user)));
    let many =
        |of: &str, count: usize| (0..count).map(|nth| asks(&format!("{of}-{nth}"))).collect::<Vec<_>>();
    // Nine are left. One of the first has a box, which a sale that reads nothing learns from the database.
    let mut first = many("first", 7);
    first.push(asks("known"));
    let ahead = Batch::of(first);
    let behind = Batch::behind(vec![ahead.ahead()], many("second", 2));
    let last = Batch::behind(vec![behind.ahead()], many("third", 2));
    let sold = async |batch| {
        let (decided, _) = shop.store.decide(batch, shop.rules.clone()).await.expect("decides");
        decided.iter().filter(|one| matches!(one.verdict, Verdict::Reservation(_))).count()
    };
    assert_eq!(tokio::join!(sold(last), sold(behind), sold(ahead)), (0, 2, 7));
    shop.adds_up().await;
}

#[tokio::test]
async fn without_a_look_at_the_one_ahead_it_is_sold_although_closed() {
    let shop = Shop::open().await;
    shop.with("NOT EXISTS (SELECT 1 FROM reservations WHERE id = behind)", "false").await;
    let [ahead, behind] = sold_behind(&shop, CLOSES).await;
    assert!(matches!(ahead, Verdict::Refused(_)), "{ahead:?}");
    bought(behind);
}

/// What is told of what is left by a batch that was decided behind another and is sold once that one has been decided by
/// reading, which sold to fewer than were expected; and what is left.
async fn left_behind_fewer(shop: &Shop) -> (u32, i32) {
    // However long it takes, and not before the one ahead is over.
    shop.with("now_ms >= until_ms", "false").await;
    let lock = "PERFORM 1 FROM merchants WHERE id = merchant FOR NO KEY UPDATE;\n    now_ms := solely_now(offset_ms);\n    IF now_ms < from_ms OR false THEN\n        RETURN ARRAY[now_ms];\n    END IF;\n    IF behind";
    shop.with(
        lock,
        &format!("IF behind IS NOT NULL THEN PERFORM pg_advisory_xact_lock(7); END IF;\n    {lock}"),
    )
    .await;
    shop.buy("known").await;
    let (holder, gate) = (shop.merchant_held().await, connect(&shop.url).await);
    gate.batch_execute("SELECT pg_advisory_lock(7)").await.expect("locks");
    let asks = |user: &str| Request::new(Operation::Reserve(new(user)));
    let ahead = Batch::of(vec![asks("ahead"), asks("known")]);
    let behind = Batch::behind(vec![ahead.ahead()], vec![asks("behind"), asks("behind too")]);
    let first = async {
        let (decided, _) = shop.store.decide(ahead, shop.rules.clone()).await.expect("decides");
        assert_eq!(decided[1].verdict, Verdict::Refused(Refusal::ActiveReservationExists));
        gate.batch_execute("SELECT pg_advisory_unlock(7)").await.expect("lets go");
    };
    let second = shop.store.decide(behind, shop.rules.clone());
    let changing = async {
        shop.until_one_waits_for_a_lock().await;
        holder.batch_execute("COMMIT").await.expect("lets go");
    };
    let ((), second, ()) = tokio::join!(first, second, changing);
    let (_, touched) = second.expect("decides");
    (touched.items[0].free, shop.left().await)
}

#[tokio::test]
async fn what_is_left_is_said_by_the_row() {
    let shop = Shop::open().await;
    assert_eq!(left_behind_fewer(&shop).await, (6, 6));
    shop.buy("next").await;
    shop.adds_up().await;
}

#[tokio::test]
async fn without_the_row_it_would_be_fewer() {
    let shop = Shop::open().await;
    shop.with("ARRAY[now_ms, lapsed, left_of, held_of]", "ARRAY[now_ms, lapsed]").await;
    assert_eq!(left_behind_fewer(&shop).await, (5, 6));
}

/// Whether it is sold although it was closed by what has the number of what is remembered: the database has lost the last
/// of what was done, as one may that takes over from another, and has done something else since.
async fn sold_in_another_life(begins: bool) -> bool {
    let server = PostgresServer::start();
    let shop = Shop::open_on(server.url(), |rules| rules, None).await;
    shop.buy("first").await;
    let begun = if begins { "SELECT pg_stat_reset_shared('bgwriter');" } else { "" };
    let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
    let change = format!("UPDATE inventory SET closed = true; {begun} {others}");
    shop.looks.batch_execute(&change).await.expect("changes");
    shop.now().await;
    matches!(shop.ask(Operation::Reserve(new("late"))).await, Verdict::Reservation(_))
}

#[tokio::test]
async fn nothing_is_remembered_beyond_a_life() {
    assert!(!sold_in_another_life(true).await);
}

#[tokio::test]
async fn in_the_same_life_it_would_be_sold() {
    assert!(sold_in_another_life(false).await);
}

/// When a reservation was made, by its row, whose sale waited for the merchant until some instant; and that instant.
async fn made_behind_a_lock(shop: &Shop) -> (Timestamp, Timestamp) {
    shop.buy("first").await;
    let holder = shop.merchant_held().await;
    let (store, rules) = (shop.store.clone(), shop.rules.clone());
    let buying = tokio::spawn(async move {
        let request = Request::new(Operation::Reserve(new("waits")));
        decide(&store, vec![request], &rules).await.remove(0)
    });
    shop.until_one_waits_for_a_lock().await;
    // Longer than what was decided is good for, on the store's own clock.
    let waited = shop.now().await.plus(Duration::from_millis(300));
    while shop.now().await < waited {
        tokio::task::yield_now().await;
    }
    holder.batch_execute("COMMIT").await.expect("lets go");
    (bought(buying.await.expect("buys").verdict).reserved_at, waited)
}

/// What was decided is not true for ever: whoever had to wait for the merchant is decided at the time when the wait is over.
#[tokio::test]
async fn a_sale_that_comes_late_is_decided_anew() {
    let shop = Shop::open().await;
    let (made, waited) = made_behind_a_lock(&shop).await;
    assert!(made >= waited, "{made} is before {waited}");
    shop.adds_up().await;
}

#[tokio::test]
async fn without_the_time_it_would_be_sold_as_of_before() {
    let shop = Shop::open().await;
    shop.with("now_ms >= until_ms", "false").await;
    let (made, waited) = made_behind_a_lock(&shop).await;
    assert!(made < waited, "{made} is not before {waited}");
}

/// Whoever has a reservation there is refused, and whoever asks again with a key has the same.
#[tokio::test]
async fn buyers_and_keys_are_known_though_nothing_is_read() {
    let shop = Shop::open().await;
    let keyed = |user: &str, key: &str| {
        let key = IdempotencyKey { scope: "s".to_owned(), key: key.to_owned() };
        let idempotency = Some((key, "digest".to_owned()));
        Request { idempotency, ..Request::new(Operation::Reserve(new(user))) }
    };
    let first = bought(shop.decide(vec![keyed("a", "k")]).await.remove(0).verdict);
    let again = shop.decide(vec![keyed("a", "k")]).await.remove(0);
    assert!(again.replayed);
    assert_eq!(bought(again.verdict), first);
    // In between, others are sold to at once again.
    for user in ["b", "c", "d", "e"] {
        shop.buy(user).await;
    }
    let twice = shop.decide(vec![keyed("a", "other")]).await.remove(0);
    assert_eq!(twice.verdict, Verdict::Refused(Refusal::ActiveReservationExists));
    assert_eq!(shop.left().await, 5);
    shop.adds_up().await;
}

/// Holds that lapse between two sales are counted with the second, though nothing had lapsed and none was to by the first.
#[tokio::test]
async fn what_has_lapsed_since_is_told_of() {
    let brief = HoldTimes { usual: Duration::from_millis(400), ..TIMES };
    let shop = Shop::open_with(|_| Rules::new(brief), None).await;
    let free = async |user: &str| {
        let request = Request::new(Operation::Reserve(new(user)));
        let (decided, touched) =
            shop.store.decide(Batch::of(vec![request]), shop.rules.clone()).await.expect("decides");
        let [decided] = decided.try_into().expect("is one");
        let left: Vec<_> = touched.items.into_iter().map(|left| (left.id, left.free)).collect();
        (bought(decided.verdict), left)
    };
    let left = |count| vec![("box".to_owned(), count)];
    let (first, items) = free("a").await;
    assert_eq!(items, left(9));
    assert_eq!(free("b").await.1, left(8));
    let (third, items) = free("c").await;
    assert_eq!(items, left(7));
    assert!(third.reserved_at < first.expires_at, "the machine is too slow for this");
    while shop.now().await < third.expires_at {
        tokio::task::yield_now().await;
    }
    assert_eq!(free("d").await.1, left(9));
    shop.until_sales(3).await;
    shop.adds_up().await;
}

/// Nobody passes those who wait, though they came since it was seen.
#[tokio::test]
async fn who_waits_is_not_passed() {
    let shop = Shop::open().await;
    let other = another(&shop.url).await;
    for n in 0..10 {
        shop.buy(&format!("user-{n}")).await;
    }
    let wait = WaitId::new();
    let join = NewWait { id: wait, user_id: "patient".to_owned(), inventory_id: "box".to_owned() };
    let joined = decide(&other, vec![Request::new(Operation::Join(join))], &shop.rules).await.remove(0);
    assert!(matches!(joined.verdict, Verdict::Wait(_)), "{joined:?}");
    // One box more, of which this process knows and the other does not; it is offered to who waits.
    let more = Change { inventory_id: "box".to_owned(), add: 1, closed: None };
    shop.ask(Operation::Change(more)).await;
    let late = shop.ask(Operation::Reserve(new("late"))).await;
    assert_eq!(late, Verdict::Refused(Refusal::BoxUnavailable));
    shop.adds_up().await;
}

/// Notifications that are to be delivered are made with the sale.
#[tokio::test]
async fn what_is_to_be_delivered_is_made_with_it() {
    let shop = Shop::open_with(|rules| Rules { notify: true, ..rules }, None).await;
    let held = [shop.buy("a").await.id, shop.buy("b").await.id];
    shop.until_sales(2).await;
    let filter = JobFilter { queue: Some("notifications".to_owned()), limit: 9, ..JobFilter::default() };
    let jobs = shop.store.jobs(filter).await.expect("reads");
    let mut keys: Vec<String> = jobs.iter().map(|job| job.key.clone()).collect();
    keys.sort();
    assert_eq!(keys, held.map(|id| id.to_string()));
}

/// A price that falls just then is looked at when it is sold.
#[tokio::test]
async fn a_price_that_is_about_to_fall_is_read() {
    let step = |at| Step { at, price: 400 };
    let steps = vec![step(Clock::system().now().plus(Duration::from_millis(1_500)))];
    let shop = Shop::open_with(|rules| rules, Some(Pricing::Steps { steps: steps.clone() })).await;
    let mut paid = Vec::new();
    for n in 0..10 {
        while n == 9 && shop.now().await < steps[0].at {
            tokio::task::yield_now().await;
        }
        let held = shop.buy(&format!("user-{n}")).await;
        assert_eq!(held.total_amount, if held.reserved_at < steps[0].at { 450 } else { 400 });
        paid.push(held.total_amount);
    }
    assert!(paid.contains(&400), "{paid:?}");
}
