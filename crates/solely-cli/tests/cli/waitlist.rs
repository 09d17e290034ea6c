//! Waiting lists as a user meets them: the routes, their codes, what becomes of an offer, prices that fall.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use solely_core::Clock;
use tempfile::TempDir;

use crate::reserve::{path, reserve, shop, stock};
use crate::server::Server;

pub(crate) async fn join(server: &Server, user: &str) -> (u16, Value) {
    server.post("/v1/inventory/box/waitlist", json!({"userId": user})).await
}

async fn offer_of(server: &Server, user: &str) -> Value {
    let found = server.get(&format!("/v1/reservations?userId={user}&status=OFFERED")).await;
    found["items"][0].clone()
}

async fn delete(server: &Server, entry: &Value) -> u16 {
    let path = format!("/v1/waitlist/{}", entry["id"].as_str().expect("an id"));
    server.send(Method::DELETE, &path, None).await.status().as_u16()
}

/// Who waits is offered what is given back, and nobody who walks in is faster.
#[tokio::test]
async fn what_is_given_back_is_offered_and_accepted() {
    let server = shop("", 1).await;
    let (_, held) = reserve(&server, "u1").await;
    let (status, first) = join(&server, "u2").await;
    assert_eq!(status, 201, "{first}");
    let shape: Vec<&String> = first.as_object().expect("an object").keys().collect();
    assert_eq!(shape, ["createdAt", "id", "inventoryId", "position", "reservationId", "status", "userId"]);
    assert_eq!(
        (&first["position"], &first["status"], &first["reservationId"]),
        (&json!(1), &json!("WAITING"), &Value::Null)
    );
    assert_eq!(join(&server, "u2").await, (201, first.clone()), "joining twice is the same entry");
    assert_eq!(join(&server, "u3").await.1["position"], 2);
    let list = server.get("/v1/inventory/box/waitlist?limit=1").await;
    assert_eq!(list["items"][0]["userId"], "u2");
    let next =
        format!("/v1/inventory/box/waitlist?cursor={}", list["nextCursor"].as_str().expect("a cursor"));
    let rest = server.get(&next).await;
    assert_eq!((&rest["items"][0]["userId"], &rest["items"][0]["position"]), (&json!("u3"), &json!(2)));
    let (status, _) = server.post(&path(&held, "/cancel"), json!({})).await;
    assert_eq!(status, 200);
    let (status, refused) = reserve(&server, "walk-in").await;
    assert_eq!((status, &refused["error"]), (409, &json!("BOX_UNAVAILABLE")));
    let shown = server.get("/v1/inventory/box").await;
    assert_eq!((&shown["remainingQuantity"], &shown["status"]), (&json!(0), &json!("SOLD_OUT")));
    let offer = offer_of(&server, "u2").await;
    assert_eq!((&offer["status"], &offer["paymentStatus"]), (&json!("OFFERED"), &json!("PENDING")));
    let (status, refused) = server.post(&path(&offer, "/confirm"), json!({})).await;
    assert_eq!((status, &refused["error"]), (409, &json!("INVALID_STATE")));
    let (status, taken) = server.post(&path(&offer, "/accept"), json!({})).await;
    assert_eq!((status, &taken["status"]), (200, &json!("ACTIVE")));
    assert_eq!(server.post(&path(&offer, "/accept"), json!({})).await, (200, taken), "the same again");
    let (status, refused) = server.post(&path(&held, "/accept"), json!({})).await;
    assert_eq!((status, &refused["error"]), (409, &json!("ALREADY_CANCELLED")));
    assert_eq!(server.post(&path(&offer, "/confirm"), json!({})).await.0, 200);
    let told = server.get("/v1/inventory/box/audit").await;
    let items = told["items"].as_array().expect("a list").iter();
    let done: Vec<&str> =
        items.filter(|item| item["outcome"] != "refused").filter_map(|item| item["event"].as_str()).collect();
    assert_eq!(done, ["create", "reserve", "join", "join", "cancel", "offer", "accept", "confirm"]);
}

/// Leaving, declining and being too late each pass the offer on; what is wrong has a code.
#[tokio::test]
async fn an_offer_passes_on() {
    let server = shop("offer_ttl = \"1s\"\nsweep_every = \"200ms\"", 1).await;
    let (status, free) = join(&server, "u1").await;
    assert_eq!((status, &free["status"], &free["position"]), (201, &json!("OFFERED"), &json!(0)));
    let entries = [join(&server, "u2").await.1, join(&server, "u3").await.1, join(&server, "u4").await.1];
    assert_eq!(delete(&server, &entries[1]).await, 204, "leaves while it waits");
    assert_eq!(delete(&server, &entries[1]).await, 204, "has left");
    // Its time ends by itself, and the sweeper passes it on.
    let deadline = std::time::Instant::now() + crate::socket::PATIENCE;
    while offer_of(&server, "u2").await.is_null() {
        assert!(std::time::Instant::now() < deadline, "the offer passes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (status, late) = server
        .post(
            &format!("/v1/reservations/{}/accept", free["reservationId"].as_str().expect("an id")),
            json!({}),
        )
        .await;
    assert_eq!((status, &late["error"]), (409, &json!("RESERVATION_EXPIRED")));
    assert_eq!(delete(&server, &entries[0]).await, 204, "does not want what is offered");
    let offer = offer_of(&server, "u4").await;
    assert_eq!(offer["status"], "OFFERED", "{offer}");
    assert_eq!(server.post(&path(&offer, "/accept"), json!({})).await.0, 200);
    assert_eq!(delete(&server, &entries[2]).await, 409, "what was offered was taken");
    for (method, path, body, expected) in [
        (Method::DELETE, "/v1/waitlist/nonsense", None, (404, "WAITLIST_ENTRY_NOT_FOUND")),
        (
            Method::DELETE,
            "/v1/waitlist/01980000-0000-7000-8000-000000000000",
            None,
            (404, "WAITLIST_ENTRY_NOT_FOUND"),
        ),
        (Method::POST, "/v1/inventory/none/waitlist", Some(r#"{"userId":"u1"}"#), (404, "BOX_NOT_FOUND")),
        (Method::GET, "/v1/inventory/none/waitlist", None, (404, "BOX_NOT_FOUND")),
        (Method::POST, "/v1/inventory/box/waitlist", Some(r#"{"userId":""}"#), (400, "INVALID_REQUEST")),
        (
            Method::POST,
            "/v1/inventory/box/waitlist",
            Some(r#"{"userId":"u1","more":1}"#),
            (400, "INVALID_REQUEST"),
        ),
        (Method::GET, "/v1/inventory/box/waitlist?limit=0", None, (400, "INVALID_REQUEST")),
        (Method::GET, "/v1/inventory/box/waitlist?cursor=x", None, (400, "INVALID_REQUEST")),
    ] {
        let answer = server.send(method, path, body).await;
        let status = answer.status().as_u16();
        let answer: Value = answer.json().await.expect("JSON");
        assert_eq!((status, answer["error"].as_str().expect("a code")), expected, "{path}");
    }
}

/// A price falls in steps; a hold keeps the price that it was made at, and `maxPrice` protects a buyer.
#[tokio::test]
async fn a_price_falls_and_a_hold_keeps_its_own() {
    let server = Server::start_in(TempDir::new().expect("a folder")).await;
    stock(async |path: &str, body| server.post(path, body).await, "other", 1).await;
    let (now, minute) = (Clock::system().now(), Duration::from_secs(60));
    let steps = json!([{"at": now.to_string(), "price": 300}, {"at": now.plus(60 * minute).to_string(), "price": 100}]);
    let body = json!({
        "id": "box", "boxTypeId": "t1", "quantity": 5, "price": 450, "currency": "EUR",
        "pickupStart": now.to_string(), "pickupEnd": now.plus(120 * minute).to_string(),
        "pricing": {"kind": "steps", "steps": steps},
    });
    let (status, made) = server.post("/v1/inventory", body).await;
    assert_eq!((status, &made["price"], &made["currentPrice"]), (201, &json!(450), &json!(300)), "{made}");
    let (_, held) = reserve(&server, "u1").await;
    assert_eq!(held["totalAmount"], 300);
    let cheap = json!({"userId": "u2", "boxInventoryId": "box", "maxPrice": 299});
    let (status, refused) = server.post("/v1/reservations", cheap).await;
    assert_eq!((status, &refused["error"]), (409, &json!("PRICE_CHANGED")));
    let (_, offered) = join(&server, "u3").await;
    let offer =
        server.get(&format!("/v1/reservations/{}", offered["reservationId"].as_str().expect("an id"))).await;
    assert_eq!(offer["totalAmount"], 300, "an offer keeps its price, too");
    for wrong in [
        json!({"kind": "linear", "floor": 451, "startsAt": now.to_string()}),
        json!({"kind": "steps", "steps": []}),
        json!({"kind": "guess"}),
    ] {
        let body = json!({
            "boxTypeId": "t1", "quantity": 5, "price": 450, "currency": "EUR",
            "pickupStart": now.to_string(), "pickupEnd": now.plus(120 * minute).to_string(), "pricing": wrong,
        });
        let (status, refused) = server.post("/v1/inventory", body).await;
        assert_eq!((status, &refused["error"]), (400, &json!("INVALID_REQUEST")), "{refused}");
    }
}
