//! Notifications: signed as an independent implementation verifies it, in order per reservation, none lost.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use futures::future::join_all;
use serde_json::{Value, json};
use solely_testing::free_port;
use standardwebhooks::Webhook;

use crate::reserve::{path, reserve, shop};
use crate::server::Server;
use crate::socket::PATIENCE;
use crate::waitlist::join;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// What a receiver took, and how it behaves.
#[derive(Default)]
struct Receiver {
    taken: Mutex<Vec<(String, Value)>>,
    /// Every delivery, taken or not: its id, its time and its body.
    seen: Mutex<Vec<(String, u64, Bytes)>>,
    calls: AtomicUsize,
    down: AtomicBool,
    /// Every so many calls it fails; 0: never.
    fails_every: AtomicUsize,
    /// A reservation whose notifications are not taken.
    refuses: Mutex<Option<String>>,
}

async fn take(State(receiver): State<Arc<Receiver>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let nth = receiver.calls.fetch_add(1, Ordering::SeqCst) + 1;
    Webhook::new(SECRET).expect("a secret").verify(&body, &headers).expect("the signature is right");
    let message: Value = serde_json::from_slice(&body).expect("JSON");
    let text = |name: &str| headers[name].to_str().expect("text").to_owned();
    let at = text("webhook-timestamp").parse().expect("seconds");
    receiver.seen.lock().expect("no panic").push((text("webhook-id"), at, body.clone()));
    let every = receiver.fails_every.load(Ordering::SeqCst);
    let refused = receiver.refuses.lock().expect("no panic").as_deref() == message["data"]["id"].as_str();
    if receiver.down.load(Ordering::SeqCst) || refused || (every > 0 && nth.is_multiple_of(every)) {
        return StatusCode::INTERNAL_SERVER_ERROR;
    }
    receiver.taken.lock().expect("no panic").push((text("webhook-id"), message));
    StatusCode::NO_CONTENT
}

impl Receiver {
    /// Listens; itself and the settings of a server that tells it.
    async fn start() -> (Arc<Self>, String) {
        let receiver = Arc::new(Self::default());
        let address = format!("127.0.0.1:{}", free_port());
        let listener = tokio::net::TcpListener::bind(&address).await.expect("listens");
        let router = Router::new().route("/hook", axum::routing::post(take)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let settings = format!("webhook_url = \"http://{address}/hook\"\nwebhook_secret = \"{SECRET}\"");
        (receiver, settings)
    }

    /// What was taken, each once, by reservation, in the order it came.
    fn by_reservation(&self) -> HashMap<String, Vec<String>> {
        let (mut seen, mut all) = (HashSet::new(), HashMap::<String, Vec<String>>::new());
        for (id, message) in self.taken.lock().expect("no panic").iter() {
            if seen.insert(id.clone()) {
                let text = |value: &Value| value.as_str().expect("text").to_owned();
                all.entry(text(&message["data"]["id"])).or_default().push(text(&message["type"]));
            }
        }
        all
    }

    async fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE * 2;
        while !done(self) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.by_reservation());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn words(kinds: &[&str]) -> Vec<String> {
    kinds.iter().map(|kind| format!("reservation.{kind}")).collect()
}

/// Every word of the contract, with the reservation as it was then.
#[tokio::test]
async fn every_change_is_delivered_as_it_was() {
    let (receiver, settings) = Receiver::start().await;
    let server = shop(&format!("{settings}\nhold_ttl_min = \"1s\"\nsweep_every = \"100ms\""), 1).await;
    let (_, held) = reserve(&server, "u1").await;
    assert_eq!(server.post(&path(&held, "/extend"), json!({})).await.0, 200);
    assert_eq!(server.post(&path(&held, "/confirm"), json!({})).await.0, 200);
    let (_, wait) = join(&server, "u2").await;
    assert_eq!(server.post(&path(&held, "/cancel"), json!({})).await.0, 200);
    let offers = server.get("/v1/reservations?userId=u2").await;
    let offer = &offers["items"][0];
    assert_eq!(wait["status"], "WAITING");
    assert_eq!(server.post(&path(offer, "/accept"), json!({})).await.0, 200);
    let code = json!({"pickupCode": offer["pickupCode"]});
    assert_eq!(server.post(&path(offer, "/collect"), code).await.0, 200);
    let added = server.send(reqwest::Method::PATCH, "/v1/inventory/box", Some(r#"{"addQuantity":1}"#)).await;
    assert_eq!(added.status(), 200);
    let body = json!({"userId": "u3", "boxInventoryId": "box", "ttlMinutes": 0.02});
    let (status, brief) = server.post("/v1/reservations", body).await;
    assert_eq!(status, 201, "{brief}");
    let id = |reservation: &Value| reservation["id"].as_str().expect("an id").to_owned();
    let expected = HashMap::from([
        (id(&held), words(&["reserved", "extended", "confirmed", "cancelled"])),
        (id(offer), words(&["offered", "accepted", "collected"])),
        (id(&brief), words(&["reserved", "expired"])),
    ]);
    receiver.until("all are delivered, in order", |receiver| receiver.by_reservation() == expected).await;
    let taken = receiver.taken.lock().expect("no panic").clone();
    let (_, first) =
        taken.iter().find(|(_, message)| message["type"] == "reservation.reserved").expect("came");
    assert_eq!(first["data"], held, "the reservation as it was when it was reserved");
    let (_, last) =
        taken.iter().find(|(_, message)| message["type"] == "reservation.cancelled").expect("came");
    assert_eq!(last["data"]["paymentStatus"], "REFUNDED");
    assert!(last["timestamp"].as_str().is_some_and(|at| at.ends_with('Z')));
    let jobs = server.get(&format!("/v1/jobs?queue=notifications&key={}", id(&held))).await;
    assert_eq!(jobs["items"][0]["kind"], "notification", "{jobs}");
}

/// What is sent again has the id and the words of the first time, so that a receiver can tell, and a time of its own, so
/// that it is not taken for something that was recorded.
#[tokio::test]
async fn what_is_sent_again_has_its_id_and_a_time_of_its_own() {
    let (receiver, settings) = Receiver::start().await;
    receiver.down.store(true, Ordering::SeqCst);
    let server = shop(&settings, 2).await;
    assert_eq!(reserve(&server, "u1").await.0, 201);
    let seen = |receiver: &Receiver| receiver.seen.lock().expect("no panic").clone();
    let later = |seen: &[(String, u64, Bytes)]| seen.iter().any(|(_, at, _)| *at > seen[0].1);
    receiver.until("it is sent again, later", |receiver| later(&seen(receiver))).await;
    receiver.down.store(false, Ordering::SeqCst);
    receiver.until("it is taken", |receiver| !receiver.taken.lock().expect("no panic").is_empty()).await;
    let seen = seen(&receiver);
    let (id, _, body) = &seen[0];
    assert!(seen.iter().all(|again| (&again.0, &again.2) == (id, body)), "{seen:?}");
    assert_eq!(&receiver.taken.lock().expect("no panic")[0].0, id);
}

/// A receiver that is down, then answers 500 now and then: none is lost, the order is kept, and one reservation whose
/// notifications are never taken holds up no other.
#[tokio::test]
async fn none_is_lost_and_none_holds_up_another() {
    let (receiver, settings) = Receiver::start().await;
    receiver.down.store(true, Ordering::SeqCst);
    let server = shop(&settings, 40).await;
    let users: Vec<String> = (0..20).map(|n| format!("u{n}")).collect();
    let held = join_all(users.iter().map(|user| reserve(&server, user))).await;
    for (_, one) in &held {
        assert_eq!(server.post(&path(one, "/confirm"), json!({})).await.0, 200);
    }
    receiver.until("it was tried", |receiver| receiver.calls.load(Ordering::SeqCst) >= 20).await;
    let id = |one: &Value| one["id"].as_str().expect("an id").to_owned();
    let stubborn = id(&held[0].1);
    *receiver.refuses.lock().expect("no panic") = Some(stubborn.clone());
    receiver.fails_every.store(3, Ordering::SeqCst);
    receiver.down.store(false, Ordering::SeqCst);
    for (_, one) in &held {
        assert_eq!(server.post(&path(one, "/cancel"), json!({})).await.0, 200);
    }
    let all = words(&["reserved", "confirmed", "cancelled"]);
    let others = |receiver: &Receiver| {
        let taken = receiver.by_reservation();
        held[1..].iter().all(|(_, one)| taken.get(&id(one)) == Some(&all)) && !taken.contains_key(&stubborn)
    };
    receiver.until("all others are delivered, in order", others).await;
    *receiver.refuses.lock().expect("no panic") = None;
    receiver
        .until("and that one, too", |receiver| receiver.by_reservation().get(&stubborn) == Some(&all))
        .await;
}

/// A server that is killed between a change and its delivery: another delivers it.
#[tokio::test]
async fn a_killed_server_loses_no_notification() {
    let (receiver, settings) = Receiver::start().await;
    receiver.down.store(true, Ordering::SeqCst);
    let server = shop(&settings, 5).await;
    let (_, held) = reserve(&server, "u1").await;
    assert_eq!(server.post(&path(&held, "/confirm"), json!({})).await.0, 200);
    let server: Server = server.replaced().await;
    receiver.down.store(false, Ordering::SeqCst);
    let id = held["id"].as_str().expect("an id");
    let all = words(&["reserved", "confirmed"]);
    receiver.until("both are delivered", |receiver| receiver.by_reservation().get(id) == Some(&all)).await;
    drop(server);
}
