//! Sockets that follow an inventory, or a user's reservations, on this server and on another.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use solely_testing::{RedisServer, fresh_database};
use tempfile::TempDir;

use crate::reserve::{path, reserve, shop, stock};
use crate::server::Server;
use crate::socket::Socket;

impl Socket {
    async fn follow(&mut self, channel: &str, field: &str, name: &str) {
        self.say(json!({"v": 1, "type": "subscribe", "channel": channel, field: name})).await;
        let ack = self.next().await.expect("an answer");
        assert_eq!(ack, json!({"type": "sub_ack", "channel": channel, field: name}));
    }
}

/// Stock that moves is patched; what is told last is the truth; no more than ten a second.
#[tokio::test]
async fn stock_is_patched_as_it_moves() {
    let server = shop("", 200).await;
    let mut socket = Socket::open(&server).await;
    socket.follow("inventory", "inventoryId", "box").await;
    reserve(&server, "u0").await;
    let patch = socket.next().await.expect("a patch");
    let expected = json!({
        "type": "INVENTORY_PATCH", "inventoryId": "box",
        "patch": {"remainingQuantity": 199, "status": "ACTIVE", "currentPrice": 450},
    });
    assert_eq!(patch, expected);
    let began = Instant::now();
    for n in 1..200 {
        assert_eq!(reserve(&server, &format!("u{n}")).await.0, 201);
    }
    let mut patches = 0;
    loop {
        let patch = socket.next().await.expect("a patch");
        patches += 1;
        if patch["patch"]["remainingQuantity"] == 0 {
            assert_eq!(patch["patch"]["status"], "SOLD_OUT");
            break;
        }
    }
    let most = began.elapsed().as_millis() / 100 + 2;
    assert!(patches <= most, "{patches} patches in {:?}", began.elapsed());
    socket.assert_silent().await;
    socket.say(json!({"v": 1, "type": "unsubscribe", "channel": "inventory", "inventoryId": "box"})).await;
    server.send(Method::PATCH, "/v1/inventory/box", Some(r#"{"addQuantity":5}"#)).await;
    socket.assert_silent().await;
    for wrong in [
        json!({"v": 1, "type": "subscribe", "channel": "inventory", "inventoryId": "none"}),
        json!({"v": 1, "type": "subscribe", "channel": "inventory"}),
        json!({"v": 1, "type": "subscribe", "channel": "reservations", "inventoryId": "box"}),
        json!({"v": 1, "type": "subscribe", "channel": "weather", "requestId": "x"}),
    ] {
        socket.say(wrong).await;
        assert_eq!(socket.next().await, Some(json!({"type": "sub_nack", "reason": "invalid_request"})));
    }
}

/// A user hears what becomes of its reservations, each once and in order, and nothing of another's.
#[tokio::test]
async fn a_user_hears_of_its_reservations() {
    let server = shop("hold_ttl_min = \"1s\"\nsweep_every = \"100ms\"", 5).await;
    let (_, before) = reserve(&server, "u1").await;
    let mut socket = Socket::open(&server).await;
    socket.follow("reservations", "userId", "u1").await;
    reserve(&server, "u2").await;
    assert_eq!(server.post(&path(&before, "/confirm"), json!({})).await.0, 200);
    let told = socket.next().await.expect("something");
    assert_eq!(told["type"], "reservation.confirmed");
    let expected: Value = server.get(&path(&before, "")).await;
    assert_eq!(told["data"], expected);
    assert_eq!(server.post(&path(&before, "/cancel"), json!({})).await.0, 200);
    let body = json!({"userId": "u1", "boxInventoryId": "box", "ttlMinutes": 0.02});
    assert_eq!(server.post("/v1/reservations", body).await.0, 201);
    for expected in ["cancelled", "reserved", "expired"] {
        let told = socket.next().await.expect("something");
        assert_eq!(told["type"], format!("reservation.{expected}"), "{told}");
        assert_eq!(told["data"]["userId"], "u1");
    }
    socket.assert_silent().await;
}

/// What one server sells is seen at another, at once where something carries notes between them.
#[tokio::test]
async fn another_server_tells_of_it() {
    for with_redis in [true, false] {
        let (database, redis) = (fresh_database(), RedisServer::start());
        let mut env = vec![("DATABASE_URL", database.as_str()), ("SOLELY__STORE__MAX_CONNECTIONS", "6")];
        let url = redis.url();
        if with_redis {
            env.push(("REDIS_URL", &url));
        }
        let sells = Server::start_with(TempDir::new().expect("a folder"), &env).await;
        let shows = Server::start_with(TempDir::new().expect("a folder"), &env).await;
        stock(async |path: &str, body| sells.post(path, body).await, "box", 50).await;
        let mut stock = Socket::open(&shows).await;
        stock.follow("inventory", "inventoryId", "box").await;
        let mut user = Socket::open(&shows).await;
        user.follow("reservations", "userId", "u0").await;
        let (_, held) = reserve(&sells, "u0").await;
        let patch = stock.next().await.expect("a patch");
        assert_eq!(patch["patch"]["remainingQuantity"], 49, "{patch}");
        let told = user.next().await.expect("something");
        assert_eq!((&told["type"], &told["data"]), (&json!("reservation.reserved"), &held));
        // By now it is known that someone follows: no poll is waited for.
        let mut fastest = Duration::MAX;
        for n in 1..10 {
            let began = Instant::now();
            assert_eq!(reserve(&sells, &format!("u{n}")).await.0, 201);
            assert_eq!(stock.next().await.expect("a patch")["patch"]["remainingQuantity"], 49 - n);
            fastest = fastest.min(began.elapsed());
        }
        assert!(fastest < Duration::from_millis(500), "it took {fastest:?}");
    }
}
