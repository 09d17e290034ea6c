//! reserve as a user meets it: the routes, their codes and messages, keys of idempotency, audit, sweeping, metrics.

use std::time::{Duration, Instant};

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use solely_core::{Clock, Timestamp};
use tempfile::TempDir;

use crate::server::Server;
use crate::socket::PATIENCE;

/// A merchant with boxes for the next two hours.
pub(crate) async fn stock(post: impl AsyncFn(&str, Value) -> (u16, Value), id: &str, quantity: u32) {
    let now = Clock::system().now();
    let until = now.plus(Duration::from_secs(2 * 3_600));
    stock_until(post, id, quantity, (now, until)).await;
}

async fn stock_until(
    post: impl AsyncFn(&str, Value) -> (u16, Value),
    id: &str,
    quantity: u32,
    (start, end): (Timestamp, Timestamp),
) {
    let made =
        post("/v1/merchants", json!({"id": "m1", "name": "Bakery", "timezone": "Europe/Berlin"})).await;
    assert_eq!(made.0, 201, "{made:?}");
    let made = post("/v1/merchants/m1/box-types", json!({"id": "t1", "name": "Evening box"})).await;
    assert_eq!(made.0, 201, "{made:?}");
    let body = json!({
        "id": id, "boxTypeId": "t1", "quantity": quantity, "price": 450, "currency": "EUR",
        "pickupStart": start.to_string(), "pickupEnd": end.to_string(),
    });
    let (status, made) = post("/v1/inventory", body).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!((&made["merchantId"], &made["status"]), (&json!("m1"), &json!("ACTIVE")));
}

pub(crate) async fn shop(more: &str, quantity: u32) -> Server {
    let folder = TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("solely.toml"), format!("[reserve]\n{more}\n")).expect("is written");
    let server = Server::start_in(folder).await;
    stock(async |path: &str, body| server.post(path, body).await, "box", quantity).await;
    server
}

pub(crate) async fn reserve(server: &Server, user: &str) -> (u16, Value) {
    server.post("/v1/reservations", json!({"userId": user, "boxInventoryId": "box"})).await
}

pub(crate) fn path(reservation: &Value, what: &str) -> String {
    format!("/v1/reservations/{}{what}", reservation["id"].as_str().expect("an id"))
}

async fn keyed(server: &Server, key: &str, body: Value) -> (u16, bool, Value) {
    let request =
        server.client.post(format!("{}/v1/reservations", server.url)).header("Idempotency-Key", key);
    let answer = request.json(&body).send().await.expect("answers");
    let replayed = answer.headers().get("idempotent-replay").is_some_and(|value| value == "true");
    (answer.status().as_u16(), replayed, answer.json().await.expect("JSON"))
}

/// The life of a box: held, paid, collected; and all that is not possible on the way.
#[tokio::test]
async fn a_box_is_held_paid_and_collected() {
    let server = shop("", 2).await;
    let (status, held) = reserve(&server, "u1").await;
    assert_eq!(status, 201, "{held}");
    let shape: Vec<&String> = held.as_object().expect("an object").keys().collect();
    let expected = [
        "boxInventoryId",
        "cancelledAt",
        "completedAt",
        "currency",
        "expiresAt",
        "id",
        "merchantId",
        "paymentStatus",
        "pickupCode",
        "quantity",
        "reservedAt",
        "status",
        "totalAmount",
        "userId",
    ];
    assert_eq!(shape, expected);
    assert_eq!((&held["status"], &held["paymentStatus"]), (&json!("ACTIVE"), &json!("PENDING")));
    assert_eq!((&held["totalAmount"], &held["currency"]), (&json!(450), &json!("EUR")));
    let code = held["pickupCode"].as_str().expect("a code");
    assert!(code.len() == 9 && code.as_bytes()[4] == b'-', "{code}");
    let (status, again) = reserve(&server, "u1").await;
    assert_eq!((status, &again["error"]), (409, &json!("ACTIVE_RESERVATION_EXISTS")));
    assert_eq!(again["message"], "You already have an active reservation with this merchant.");
    let (status, paid) = server.post(&path(&held, "/confirm"), json!({})).await;
    assert_eq!((status, &paid["paymentStatus"]), (200, &json!("PAID")));
    assert_eq!(server.post(&path(&held, "/confirm"), json!({})).await, (200, paid));
    let (status, wrong) = server.post(&path(&held, "/collect"), json!({"pickupCode": "0000-0000"})).await;
    assert_eq!((status, &wrong["error"]), (403, &json!("WRONG_CODE")));
    let (status, collected) = server.post(&path(&held, "/collect"), json!({"pickupCode": code})).await;
    assert_eq!((status, &collected["status"]), (200, &json!("COMPLETED")));
    assert!(collected["completedAt"].is_string());
    let (status, refused) = server.post(&path(&held, "/cancel"), json!({})).await;
    assert_eq!((status, &refused["error"]), (409, &json!("ALREADY_COMPLETED")));
    let item = server.get("/v1/inventory/box").await;
    assert_eq!((&item["originalQuantity"], &item["remainingQuantity"]), (&json!(2), &json!(1)));
    assert!(!server.log().contains(code), "a code is never logged");
    let audit = server.get(&path(&held, "/audit")).await;
    let events: Vec<&str> = audit["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|item| item["event"].as_str().expect("text"))
        .collect();
    assert_eq!(events, ["reserve", "confirm", "collect", "collect", "cancel"]);
    let of_box = server.get("/v1/inventory/box/audit").await;
    assert!(
        of_box["items"]
            .as_array()
            .expect("a list")
            .iter()
            .any(|item| item["reason"] == "ACTIVE_RESERVATION_EXISTS")
    );
    assert!(!of_box.to_string().contains(code), "nor told");
}

/// The last one, and then none: each refusal says why.
#[tokio::test]
async fn what_is_sold_out_is_said_to_be() {
    let server = shop("", 1).await;
    let both = json!({"userId": "u1", "boxInventoryId": "box", "quantity": 2});
    let (status, few) = server.post("/v1/reservations", both).await;
    assert_eq!((status, &few["error"]), (409, &json!("INSUFFICIENT_INVENTORY")));
    let dear = json!({"userId": "u1", "boxInventoryId": "box", "maxPrice": 449});
    let (status, dear) = server.post("/v1/reservations", dear).await;
    assert_eq!((status, &dear["error"]), (409, &json!("PRICE_CHANGED")));
    assert_eq!(reserve(&server, "u1").await.0, 201);
    let (status, none) = reserve(&server, "u2").await;
    assert_eq!((status, &none["error"]), (409, &json!("BOX_UNAVAILABLE")));
    assert_eq!(none["message"], "This box is no longer available.");
    assert_eq!(server.get("/v1/inventory/box").await["status"], "SOLD_OUT");
    let listed = server.get("/v1/inventory?merchantId=m1&status=SOLD_OUT").await;
    assert_eq!(listed["items"][0]["id"], "box");
    assert_eq!(server.get("/v1/inventory?status=ACTIVE").await["items"], json!([]));
    let change = json!({"addQuantity": 2}).to_string();
    let changed = server.send(Method::PATCH, "/v1/inventory/box", Some(&change)).await;
    assert_eq!(changed.status(), 200);
    assert_eq!(reserve(&server, "u2").await.0, 201);
}

/// A hold ends by time, before anybody swept it, and its box is free again.
#[tokio::test]
async fn time_ends_a_hold() {
    let short = "hold_ttl = \"1s\"\nhold_ttl_min = \"100ms\"\nhold_ttl_max = \"3s\"\nsweep_every = \"1h\"";
    let server = shop(short, 1).await;
    let (_, held) = reserve(&server, "u1").await;
    let deadline = Instant::now() + PATIENCE;
    while server.get(&path(&held, "")).await["status"] != "EXPIRED" {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(server.get("/v1/inventory/box").await["remainingQuantity"], 1);
    for what in ["/confirm", "/cancel", "/extend"] {
        let (status, late) = server.post(&path(&held, what), json!({})).await;
        assert_eq!((status, &late["error"]), (409, &json!("RESERVATION_EXPIRED")), "{what}");
    }
    assert_eq!(reserve(&server, "u2").await.0, 201);
    let asked = json!({"userId": "u3", "boxInventoryId": "box", "ttlMinutes": 0.01});
    assert_eq!(server.post("/v1/reservations", asked).await.0, 409);
}

/// The sweeper gives back what time has ended, and says how far it is behind.
#[tokio::test]
async fn the_sweeper_sweeps() {
    let server = shop("hold_ttl = \"200ms\"\nhold_ttl_min = \"100ms\"\nsweep_every = \"100ms\"", 3).await;
    for user in ["u1", "u2", "u3"] {
        assert_eq!(reserve(&server, user).await.0, 201);
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let metrics = server.client.get(format!("{}/metrics", server.url)).send().await.expect("answers");
        let metrics = metrics.text().await.expect("text");
        if metrics.contains("solely_reserve_decided_total{operation=\"expire\",outcome=\"done\"} 3") {
            assert!(
                metrics.contains("solely_reserve_decided_total{operation=\"reserve\",outcome=\"done\"} 3")
            );
            assert!(metrics.contains("solely_reserve_sweep_lag_ms 0"), "{metrics}");
            break;
        }
        assert!(Instant::now() < deadline, "{metrics}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let alerts = server.get("/v1/alerts").await;
    let names: Vec<&str> = alerts["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|item| item["name"].as_str().expect("text"))
        .collect();
    for name in ["lock_failure_rate", "reservation_failure_rate", "cleanup_lag", "inventory_inconsistency"] {
        assert!(names.contains(&name), "{names:?}");
    }
}

/// The same key and body is answered as the first time, also a refusal; another body is refused; twins are one.
#[tokio::test]
async fn keys_of_idempotency() {
    let server = shop("", 2).await;
    let body = |user: &str| json!({"userId": user, "boxInventoryId": "box"});
    let (status, replayed, first) = keyed(&server, "k1", body("u1")).await;
    assert_eq!((status, replayed), (201, false));
    assert_eq!(keyed(&server, "k1", body("u1")).await, (201, true, first));
    let (status, _, other) = keyed(&server, "k1", body("u2")).await;
    assert_eq!((status, &other["error"]), (422, &json!("IDEMPOTENCY_KEY_REUSED")));
    let (status, _, refused) = keyed(&server, "k2", body("u1")).await;
    assert_eq!((status, &refused["error"]), (409, &json!("ACTIVE_RESERVATION_EXISTS")));
    let (status, replayed, again) = keyed(&server, "k2", body("u1")).await;
    assert_eq!((status, replayed, &again["error"]), (409, true, &refused["error"]));
    let twins = join_all((0..20).map(|_| keyed(&server, "k3", body("u3")))).await;
    assert!(
        twins.iter().all(|(status, _, one)| *status == 201 && one["id"] == twins[0].2["id"]),
        "{twins:?}"
    );
    assert_eq!(twins.iter().filter(|(_, replayed, _)| !replayed).count(), 1);
    let (status, _, long) = keyed(&server, &"x".repeat(300), body("u4")).await;
    assert_eq!((status, &long["error"]), (400, &json!("INVALID_REQUEST")));
}

/// A window may be a date and times of the merchant's day.
#[tokio::test]
async fn windows_in_the_merchants_zone() {
    let server = shop("", 1).await;
    let body = json!({
        "boxTypeId": "t1", "quantity": 3, "price": 450, "currency": "EUR",
        "pickupDate": "2099-07-01", "pickupStartTime": "18:00", "pickupEndTime": "19:30",
        "pricing": {"kind": "linear", "floor": 200, "startsAt": "2099-07-01T16:00:00Z"},
    });
    let (status, made) = server.post("/v1/inventory", body).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(made["pickupStart"], "2099-07-01T16:00:00.000Z");
    assert_eq!(made["pickupEnd"], "2099-07-01T17:30:00.000Z");
    assert_eq!((&made["currentPrice"], &made["price"]), (&json!(450), &json!(450)));
}

/// A crowd on one server: as many as there are boxes have one, and a merged commit says so for many at once.
#[tokio::test]
async fn a_crowd_at_one_box() {
    let server = shop("", 50).await;
    let users: Vec<String> = (0..300).map(|n| format!("u{n}")).collect();
    let answers = join_all(users.iter().map(|user| reserve(&server, user))).await;
    let held = answers.iter().filter(|(status, _)| *status == 201).count();
    assert_eq!(held, 50);
    let refused =
        answers.iter().filter(|(status, body)| *status == 409 && body["error"] == "BOX_UNAVAILABLE");
    assert_eq!(refused.count(), 250);
    let codes: std::collections::HashSet<&str> =
        answers.iter().filter_map(|(_, body)| body["pickupCode"].as_str()).collect();
    assert_eq!(codes.len(), 50);
}
