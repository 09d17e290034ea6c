//! A bakery that sells what is left of the day in boxes. Every so often there is a sale with more buyers
//! than boxes: some pay and collect, some change their mind, some forget and lose what they held, and the
//! others wait in line.

use std::time::Duration;

use serde_json::{Value, json};
use solely_core::clock::{Clock, Timestamp};
use tokio::sync::Semaphore;

use super::{Town, between};

const MERCHANT: &str = "corner-bakery";
const BUYERS: usize = 48;
/// Boxes of a sale,
const BOXES: u32 = 18;
/// how long one lasts,
const SALE: Duration = Duration::from_secs(150);
/// and how long after one the next begins.
const BETWEEN_SALES: Duration = Duration::from_secs(45);
/// Whoever stands in the shop at once.
const IN_THE_SHOP: usize = 24;

/// Opens, and sells until the day is over.
pub(super) async fn day(town: &Town) {
    town.post("/v1/merchants", json!({"id": MERCHANT, "name": "Corner Bakery", "timezone": "Europe/Berlin"}))
        .await;
    for (id, name) in [("surprise-bag", "Surprise bag"), ("bread-box", "Bread box"), ("cake-box", "Cake box")]
    {
        town.post(&format!("/v1/merchants/{MERCHANT}/box-types"), json!({"id": id, "name": name})).await;
    }
    // Names that tell one demo's sales from another's, in the order in which they are made.
    let now = Clock::system().now();
    offer(town, "bread-evening", "bread-box", (12, 650), Duration::from_secs(3_600), now).await;
    offer(town, "cake-evening", "cake-box", (3, 1_200), Duration::from_secs(3_600), now).await;
    let shop = Semaphore::new(IN_THE_SHOP);
    let sales = async {
        for number in 1_u32.. {
            let sale = format!("sale-{number:04}");
            offer(town, &sale, "surprise-bag", (BOXES, 900), SALE, Clock::system().now()).await;
            tokio::join!(rush(town, &sale, number, &shop), tokio::time::sleep(BETWEEN_SALES));
        }
    };
    tokio::join!(sales, regulars(town, &shop));
}

async fn offer(
    town: &Town,
    id: &str,
    kind: &str,
    (boxes, price): (u32, i64),
    lasts: Duration,
    now: Timestamp,
) {
    let end = now.plus(lasts);
    let body = json!({
        "id": id, "boxTypeId": kind, "quantity": boxes, "price": price, "currency": "EUR",
        "pickupStart": now, "pickupEnd": end,
        "pricing": {"kind": "linear", "floor": price / 3, "startsAt": now},
    });
    town.post("/v1/inventory", body).await;
}

/// More people than boxes, all within a few seconds.
async fn rush(town: &Town, sale: &str, number: u32, shop: &Semaphore) {
    let buyers = (0..BUYERS).map(|nth| async move {
        tokio::time::sleep(between(0, 9_000)).await;
        let Ok(_place) = shop.acquire().await else { return };
        buy(town, &format!("guest-{number}-{nth}"), sale).await;
    });
    join_all(buyers).await;
}

/// People who come for bread at any time.
async fn regulars(town: &Town, shop: &Semaphore) {
    loop {
        for name in ["noor", "emil", "sena", "otto", "mila"] {
            tokio::time::sleep(between(2_500, 6_000)).await;
            let Ok(_place) = shop.acquire().await else { return };
            buy(town, name, "bread-evening").await;
        }
        // What was sold is baked again.
        let more = json!({"addQuantity": 3});
        town.ask(reqwest::Method::PATCH, "/v1/inventory/bread-evening", Some(more)).await;
    }
}

/// One buyer's way: hold, then pay and collect, or think better of it, or forget.
async fn buy(town: &Town, user: &str, sale: &str) {
    let held = town.post("/v1/reservations", json!({"userId": user, "boxInventoryId": sale})).await;
    let reservation = match held.text("id") {
        Some(id) if held.is_ok() => Some((id, held.text("pickupCode"))),
        _ if held.body["error"] == "BOX_UNAVAILABLE" => wait_in_line(town, user, sale).await,
        _ => None,
    };
    let Some((id, code)) = reservation else { return };
    tokio::time::sleep(between(1_500, 7_000)).await;
    match rand::random::<u32>() % 10 {
        0..=5 => {
            town.post(&format!("/v1/reservations/{id}/confirm"), json!({})).await;
            tokio::time::sleep(between(3_000, 12_000)).await;
            let code = json!({"pickupCode": code});
            town.post(&format!("/v1/reservations/{id}/collect"), code).await;
        }
        6..=7 => {
            town.post(&format!("/v1/reservations/{id}/cancel"), json!({})).await;
        }
        _ => {} // Forgotten: the hold lapses.
    }
}

/// Waits for a box that somebody gives back, and takes it. Most people do not.
async fn wait_in_line(town: &Town, user: &str, sale: &str) -> Option<(String, Option<String>)> {
    if !rand::random::<u32>().is_multiple_of(3) {
        return None;
    }
    let entry = town.post(&format!("/v1/inventory/{sale}/waitlist"), json!({"userId": user})).await;
    if !entry.is_ok() {
        return None;
    }
    for _ in 0..12 {
        tokio::time::sleep(between(1_500, 2_500)).await;
        let offers = town.get(&format!("/v1/reservations?userId={user}&status=OFFERED")).await;
        let offer: Option<Value> = offers.body["items"].get(0).cloned();
        if let Some(id) = offer.as_ref().and_then(|offer| offer["id"].as_str()) {
            let accepted = town.post(&format!("/v1/reservations/{id}/accept"), json!({})).await;
            return accepted.is_ok().then(|| (id.to_owned(), accepted.text("pickupCode")));
        }
    }
    None
}

/// Waits for all of them, on this task: there are a few dozen.
async fn join_all(all: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut running: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        running.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
