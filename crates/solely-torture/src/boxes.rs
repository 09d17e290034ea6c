//! Boxes under torture: every process buys, pays, collects and gives back boxes of the same few inventories.
//!
//! Holds last a second or two, so that time ends many of them. Whoever is told that it has a box says so to the upstream,
//! which outlives the process; in the end each of those is a row, no user has had two at a time, and every box is
//! somewhere.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use solely_core::Clock;
use solely_core::config::{ReserveConfig, Span};
use solely_core::fault::{Guard, Guards};
use solely_core::reserve::{
    BoxType, Decided, IdempotencyKey, Merchant, NewInventory, NewReservation, NewWait, Operation, Request,
    Reserve, ReserveError, ReserveParts, Verdict, pickup_code, window::Window,
};
use solely_core::{ReservationId, Timestamp, WaitId};

/// Merchants, each with two inventories.
const MERCHANTS: u32 = 2;
/// Users that buy; fewer than there are buyers, so that one buys twice at a time.
const USERS: u32 = 12;
/// Buyers of one process at once.
const BUYERS: usize = 3;
/// Boxes of an inventory.
const BOXES: u32 = 8;

/// How boxes are held under torture.
fn config() -> ReserveConfig {
    let millis = |millis| Span(Duration::from_millis(millis));
    ReserveConfig {
        hold_ttl: millis(1_500),
        hold_ttl_min: millis(500),
        hold_ttl_max: millis(3_000),
        offer_ttl: millis(800),
        sweep_every: millis(500),
        ..ReserveConfig::default()
    }
}

/// reserve of a process under torture.
pub fn reserve(parts: ReserveParts) -> Reserve {
    Reserve::new(parts, &config())
}

/// Buys for as long as it is let, and sweeps.
pub async fn traffic(reserve: Reserve, client: reqwest::Client, upstream: String) {
    prepare(&reserve).await;
    let sweeps = reserve.sweep_until(tokio_util::sync::CancellationToken::new());
    let reserve = Arc::new(reserve.clone());
    let buyers = (0..BUYERS).map(|_| buy(reserve.clone(), client.clone(), upstream.clone()));
    tokio::join!(sweeps, futures::future::join_all(buyers));
}

fn item(n: u32) -> String {
    format!("box-{n}")
}

/// Merchants and boxes (`box-0` and on), made by whoever comes first.
pub async fn prepare(reserve: &Reserve) {
    let (start, end) = (Timestamp::from_millis(0), Clock::system().now().plus(Duration::from_secs(86_400)));
    // Whole days, so that all processes mean the same.
    let end = Timestamp::from_millis(end.as_millis() / 86_400_000 * 86_400_000 + 86_400_000);
    let mut made = Vec::new();
    for n in 0..MERCHANTS {
        let (id, name, timezone) = (format!("m{n}"), "Bakery".to_owned(), "UTC".to_owned());
        made.push(Operation::CreateMerchant(Merchant { id: id.clone(), name, timezone }));
        let (type_id, name) = (format!("t{n}"), "Box".to_owned());
        made.push(Operation::CreateBoxType(BoxType { id: type_id.clone(), merchant_id: id, name }));
        for of in 0..2 {
            made.push(Operation::CreateInventory(NewInventory {
                id: item(n * 2 + of),
                box_type_id: type_id.clone(),
                quantity: BOXES,
                price: 100,
                currency: "EUR".to_owned(),
                window: Window::Instants { start, end },
                pricing: None,
            }));
        }
    }
    for operation in made {
        until_decided(reserve, &Request::new(operation)).await;
    }
}

/// Asks until there is a verdict: the store may be away, and nothing has happened then.
async fn until_decided(reserve: &Reserve, request: &Request) -> Decided {
    loop {
        match reserve.decide(request.clone()).await {
            Ok(decided) => return decided,
            Err(ReserveError::NotInTime | ReserveError::Unknown | ReserveError::Store(_)) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Waits for a box: what is offered at once is accepted or not, and whoever is tired of it leaves.
async fn wait_for_one(reserve: &Reserve, user_id: String, inventory_id: String) {
    let new = NewWait { id: WaitId::new(), user_id, inventory_id };
    let decided = until_decided(reserve, &Request::new(Operation::Join(new))).await;
    let Verdict::Wait(wait) = decided.verdict else { return };
    let next = match (wait.reservation_id, rand::rng().random_range(0..3)) {
        (Some(offer), 0) => Some(Operation::Accept(offer)),
        (Some(offer), 1) => Some(Operation::Cancel(offer)),
        (_, 2) => Some(Operation::Leave(wait.id)),
        _ => None,
    };
    if let Some(operation) = next {
        let _ = reserve.decide(Request::new(operation)).await;
    }
}

async fn buy(reserve: Arc<Reserve>, client: reqwest::Client, upstream: String) {
    let one_active = Guards::from_env().hold(Guard::OneActive);
    loop {
        let (user, of) = (rand::rng().random_range(0..USERS), rand::rng().random_range(0..MERCHANTS * 2));
        if one_active && rand::rng().random_range(0..4) == 0 {
            wait_for_one(&reserve, format!("u{user}"), item(of)).await;
        }
        let new = NewReservation {
            id: ReservationId::new(),
            pickup_code: pickup_code(),
            user_id: format!("u{user}"),
            inventory_id: item(of),
            ttl: None,
            quantity: rand::rng().random_range(1..3),
            max_price: None,
        };
        let key = IdempotencyKey { scope: "torture".to_owned(), key: new.id.to_string() };
        let request = Request {
            idempotency: one_active.then(|| (key, "d".to_owned())),
            ..Request::new(Operation::Reserve(new))
        };
        // With its key, as a client does that was not answered.
        let decided = until_decided(&reserve, &request).await;
        if let Verdict::Reservation(held) = decided.verdict {
            let _ = client.post(format!("{upstream}/held")).body(held.id.to_string()).send().await;
            let next = match rand::rng().random_range(0..6) {
                0 => vec![Operation::Confirm(held.id), Operation::Cancel(held.id)],
                1 => vec![Operation::Cancel(held.id), Operation::Cancel(held.id)],
                2 => vec![Operation::Extend { id: held.id, ttl: None }],
                3 => {
                    // What is collected is put on offer again, or there would soon be nothing left.
                    let add = i64::from(held.quantity);
                    let change = solely_core::reserve::Change {
                        inventory_id: held.box_inventory_id,
                        add,
                        closed: None,
                    };
                    vec![
                        Operation::Collect { id: held.id, code: held.pickup_code },
                        Operation::Change(change),
                    ]
                }
                _ => Vec::new(),
            };
            for operation in next {
                let _ = reserve.decide(Request::new(operation)).await;
            }
        }
        let pause = rand::rng().random_range(20..120);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}
