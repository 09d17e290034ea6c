//! The WebSocket.
//!
//! A socket is bounded: the size of a message, the number of sockets and of subscriptions, the time that
//! a client may be silent, and what it leaves unread: one that does not read is closed with 1013, and
//! catches up by subscribing again. Nobody waits for it meanwhile: what is told goes into its outbox, and
//! its own task sends it. When the server stops, every socket is closed with 1001.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use solely_core::access::{Area, Caller, Scope};
use solely_core::enrich::{Listens, Subscribed, Subscription, Unheard};
use solely_core::limits;
use solely_core::reserve::Watched;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::App;
use crate::error::{ApiError, ApiErrors};
use crate::extract::check_key;
use crate::live;

/// The sockets of this process.
#[derive(Clone)]
pub(crate) struct Sockets {
    places: Arc<Semaphore>,
    /// The keys that sockets were opened with, each with what tells their sockets that it was revoked.
    keys: Arc<Mutex<HashMap<String, Weak<CancellationToken>>>>,
}

impl Default for Sockets {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(limits::SOCKETS_MAX)), keys: Arc::default() }
    }
}

impl Sockets {
    /// Waits until every socket is closed.
    pub(crate) async fn closed(&self) {
        let all = u32::try_from(limits::SOCKETS_MAX).unwrap_or(u32::MAX);
        let _ = self.places.acquire_many(all).await;
    }

    /// Cancelled when what a socket was opened with is good no more.
    fn good(&self, app: &App, caller: &Caller) -> Arc<CancellationToken> {
        let Caller::Key { id, .. } = caller else { return Arc::default() };
        let mut keys = self.keys();
        let known = keys.get(id);
        if let Some(good) = known.and_then(Weak::upgrade) {
            return good;
        }
        let (good, is_followed) = (Arc::<CancellationToken>::default(), known.is_some());
        keys.insert(id.clone(), Arc::downgrade(&good));
        if !is_followed {
            tokio::spawn(self.clone().follow(app.clone(), id.clone()));
        }
        good
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<String, Weak<CancellationToken>>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a key for as long as it has sockets.
    async fn follow(self, app: App, id: String) {
        while !app.access.is_revoked(&id).await {
            tokio::select! {
                () = app.stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_AT_KEYS) => {}
            }
            let mut keys = self.keys();
            if keys.get(&id).is_none_or(|good| good.strong_count() == 0) {
                keys.remove(&id);
                return;
            }
        }
        if let Some(good) = self.keys().remove(&id).and_then(|good| good.upgrade()) {
            good.cancel();
        }
    }
}

/// How often a key that sockets were opened with is looked at. What is known of it may be as old as
/// [`limits::KEY_TRUST`].
const LOOK_AT_KEYS: Duration = Duration::from_secs(1);

/// Opens a socket
///
/// By header, or by `?ticket=…` from `POST /v1/ws/tickets`. Then `{"v":1,"type":"subscribe","channel":"search",
/// "requestId":…}` is answered with `sub_ack` or `sub_nack`, and followed by a `RESULT_PATCH` for each place. Channel
/// `inventory` with an `inventoryId` is followed by an `INVENTORY_PATCH` as stock moves, `reservations` with a `userId`
/// by what becomes of that user's reservations.
#[utoipa::path(
    get,
    path = "/v1/ws",
    tag = "access",
    security(("key" = [])),
    params(("ticket" = Option<String>, Query, description = "Instead of a header, once")),
    responses((status = 101, description = "The socket is open"), ApiErrors)
)]
pub(crate) async fn open(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade =
        upgrade.map_err(|_| ApiError::invalid("this route opens a WebSocket: the request is no upgrade"))?;
    let Ok(place) = app.sockets.places.clone().try_acquire_owned() else {
        let message = "There are as many sockets as there may be.";
        let refused = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "OVERLOADED", message);
        return Err(refused.retry_after(Duration::from_secs(5)));
    };
    let upgrade = upgrade
        .max_message_size(limits::SOCKET_MESSAGE_BYTES_MAX)
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_write_buffer_size(WRITE_BUFFER_MAX);
    Ok(upgrade.on_upgrade(move |socket| async move {
        let socket = Socket::new(socket, app, caller);
        socket.serve().await;
        drop(place as OwnedSemaphorePermit);
    }))
}

/// What is read of a socket at once; messages are short.
const READ_BUFFER: usize = 1024;
/// What may wait in a socket for its client to read.
const WRITE_BUFFER_MAX: usize = 256 * 1024;
/// How long one message may take to be sent.
const SENDING: Duration = Duration::from_secs(20);
/// Messages that are sent before anything else is looked at.
const SENT_AT_ONCE: usize = 64;

/// What a socket is still to be sent.
#[derive(Default)]
struct Outbox {
    messages: Mutex<VecDeque<Utf8Bytes>>,
    some: Notify,
    /// Too much was left unread, or nothing more can be told.
    full: AtomicBool,
    /// A signal of its own: whoever waits for it while it sends must not use up the other.
    filled: Notify,
}

impl Outbox {
    fn messages(&self) -> MutexGuard<'_, VecDeque<Utf8Bytes>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    async fn until_full(&self) {
        if !self.is_full() {
            self.filled.notified().await;
        }
    }
}

impl Listens for Outbox {
    fn push(&self, message: String) -> bool {
        let mut messages = self.messages();
        let fits = messages.len() < limits::SOCKET_UNREAD_MAX && !self.is_full();
        if fits {
            messages.push_back(message.into());
            drop(messages);
            self.some.notify_one();
        } else {
            drop(messages);
            self.end();
        }
        fits
    }

    fn end(&self) {
        *self.messages() = VecDeque::new();
        self.full.store(true, Ordering::Relaxed);
        self.filled.notify_one();
        self.some.notify_one();
    }
}

impl live::Hears for Outbox {
    fn is_behind(&self) -> bool {
        self.messages().len() >= DASHBOARD_UNREAD
    }

    fn hear(&self, message: Utf8Bytes) {
        if !self.is_full() {
            self.messages().push_back(message);
            self.some.notify_one();
        }
    }
}

/// Messages that a dashboard may leave unread before it is passed over.
const DASHBOARD_UNREAD: usize = 8;

/// Why a socket ends.
enum End {
    /// The client has left, or cannot be reached.
    Gone,
    /// It is closed, and told so.
    Close(u16, &'static str),
}

const SLOW: End = End::Close(close_code::AGAIN, "too much was left unread");

/// What a client says.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Said {
    Ping,
    Subscribe(Topic),
    Unsubscribe(Topic),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Topic {
    #[serde(default = "version")]
    v: u32,
    #[serde(default = "search")]
    channel: String,
    request_id: Option<String>,
    user_id: Option<String>,
    inventory_id: Option<String>,
}

const fn version() -> u32 {
    1
}

fn search() -> String {
    "search".to_owned()
}

/// What a client can listen to.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Channel {
    /// The places of a request.
    Search(String),
    /// The reservations of a user.
    Reservations(String),
    /// An inventory's stock.
    Inventory(String),
}

impl Topic {
    /// The channel that is meant, if there is one.
    fn channel(self) -> Option<Channel> {
        let named = |field: &str, name: Option<String>| name.filter(|name| check_key(field, name).is_ok());
        let channel = match self.channel.as_str() {
            "search" => Channel::Search(named("requestId", self.request_id)?),
            "reservations" => Channel::Reservations(named("userId", self.user_id)?),
            "inventory" => Channel::Inventory(named("inventoryId", self.inventory_id)?),
            _ => return None,
        };
        (self.v == version()).then_some(channel)
    }
}

impl Channel {
    /// Whether a caller may listen to it: a user to what is its own.
    fn is_open_to(&self, caller: &Caller) -> bool {
        match (self, caller) {
            (Self::Search(_), _) => caller.may(Scope::read(Area::Enrich)),
            (Self::Reservations(user), Caller::User { user_id }) => user == user_id,
            (Self::Inventory(_), Caller::User { .. }) => true,
            (Self::Reservations(_) | Self::Inventory(_), _) => caller.may(Scope::read(Area::Reserve)),
        }
    }
}

/// What is listened to, for as long as it is kept.
enum Kept {
    #[expect(dead_code, reason = "it is kept, not looked at")]
    Search(Subscription),
    #[expect(dead_code, reason = "it is kept, not looked at")]
    Watched(Watched),
}

struct Socket {
    stream: WebSocket,
    app: App,
    outbox: Arc<Outbox>,
    subscriptions: HashMap<Channel, Kept>,
    caller: Caller,
    /// A dashboard follows what goes on.
    dashboard: Option<live::Listening>,
    heard: Instant,
    /// Cancelled when the key that it was opened with is revoked.
    good: Arc<CancellationToken>,
}

impl Socket {
    fn new(stream: WebSocket, app: App, caller: Caller) -> Box<Self> {
        let (outbox, subscriptions, heard) = (Arc::default(), HashMap::new(), Instant::now());
        let good = app.sockets.good(&app, &caller);
        Box::new(Self { stream, app, outbox, subscriptions, caller, dashboard: None, heard, good })
    }

    async fn serve(mut self: Box<Self>) {
        if let End::Close(code, reason) = self.run().await {
            self.subscriptions.clear();
            Box::pin(self.close(code, reason)).await;
        }
    }

    async fn run(&mut self) -> End {
        let mut pulse = tokio::time::interval_at(Instant::now() + limits::SOCKET_PULSE, limits::SOCKET_PULSE);
        pulse.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let outbox = self.outbox.clone();
            let ended = tokio::select! {
                () = self.app.stop.cancelled() => Err(End::Close(close_code::AWAY, "the server stops")),
                () = self.good.cancelled() => Box::pin(self.dismiss()).await,
                () = outbox.some.notified() => Box::pin(self.send_some()).await,
                _ = pulse.tick() => {
                    if self.heard.elapsed() > limits::SOCKET_PULSE * 3 {
                        Err(End::Close(close_code::POLICY, "nothing was heard"))
                    } else {
                        Box::pin(self.send(Message::Ping(axum::body::Bytes::new()))).await
                    }
                }
                message = self.stream.recv() => {
                    self.heard = Instant::now();
                    match message {
                        Some(Ok(Message::Text(text))) => Box::pin(self.answer(text)).await,
                        Some(Ok(Message::Binary(_))) => {
                            self.say(NACK);
                            Ok(())
                        }
                        Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(()),
                        Some(Ok(Message::Close(_)) | Err(_)) | None => Err(End::Gone),
                    }
                }
            };
            if let Err(end) = ended {
                return end;
            }
        }
    }

    /// The key that it was opened with was revoked. A dashboard is told, so that it asks for another.
    async fn dismiss(&mut self) -> Result<(), End> {
        if self.dashboard.take().is_some() {
            self.send(Message::Text(Utf8Bytes::from_static(live::UNAUTHORIZED))).await?;
        }
        Err(End::Close(close_code::POLICY, "the key was revoked"))
    }

    fn say(&self, message: &str) {
        self.outbox.push(message.to_owned());
    }

    /// Sends what is there, some at a time.
    async fn send_some(&mut self) -> Result<(), End> {
        let some: Vec<Utf8Bytes> = {
            let mut messages = self.outbox.messages();
            let count = messages.len().min(SENT_AT_ONCE);
            let some = messages.drain(..count).collect();
            if messages.is_empty() {
                messages.shrink_to_fit();
            } else {
                self.outbox.some.notify_one();
            }
            some
        };
        if self.outbox.is_full() {
            return Err(SLOW);
        }
        for message in some {
            self.send(Message::Text(message)).await?;
        }
        Ok(())
    }

    /// Sends one message, for as long as its client reads now and then.
    async fn send(&mut self, message: Message) -> Result<(), End> {
        let outbox = self.outbox.clone();
        tokio::select! {
            biased;
            sent = self.stream.send(message) => sent.map_err(|_| End::Gone),
            () = outbox.until_full() => Err(SLOW),
            () = tokio::time::sleep(SENDING) => Err(SLOW),
        }
    }

    async fn answer(&mut self, text: Utf8Bytes) -> Result<(), End> {
        if let Some(wanted) = live::read(&text) {
            self.show(&wanted);
            return Ok(());
        }
        match serde_json::from_str(&text) {
            Ok(Said::Ping) => self.say(PONG),
            Ok(Said::Subscribe(topic)) => match topic.channel() {
                Some(channel) => return self.subscribe(channel).await,
                None => self.say(NACK),
            },
            Ok(Said::Unsubscribe(topic)) => match topic.channel() {
                Some(channel) => drop(self.subscriptions.remove(&channel)),
                None => self.say(NACK),
            },
            Err(_) => self.say(NACK),
        }
        Ok(())
    }

    /// A dashboard wants to see something else.
    fn show(&mut self, wanted: &live::Wanted) {
        self.dashboard = None;
        let live::Wanted::Topics { topics, since } = wanted else { return };
        let (app, hears) = (&self.app, self.outbox.clone());
        match app.live.listen(app, &self.caller, (topics, *since), hears) {
            Ok(listening) => self.dashboard = Some(listening),
            Err(live::Refused::Unauthorized) => self.say(live::UNAUTHORIZED),
            Err(live::Refused::TooMany) => self.say(live::TOO_MANY),
        }
    }

    async fn subscribe(&mut self, channel: Channel) -> Result<(), End> {
        if !channel.is_open_to(&self.caller) {
            self.say(UNAUTHORIZED);
            return Ok(());
        }
        // Subscribing again begins anew.
        self.subscriptions.remove(&channel);
        if self.subscriptions.len() >= limits::SUBSCRIPTIONS_MAX {
            self.say(TOO_MANY);
            return Ok(());
        }
        match listen(&self.app, self.outbox.clone(), &channel).await {
            Ok(Some(kept)) => drop(self.subscriptions.insert(channel, kept)),
            Ok(None) => self.say(NACK),
            Err(Unheard::TooMany) => self.say(TOO_MANY),
            Err(Unheard::Store(error)) => {
                tracing::warn!(%error, "a subscription cannot be read");
                return Err(End::Close(close_code::AGAIN, "the store is not available"));
            }
        }
        Ok(())
    }

    async fn close(&mut self, code: u16, reason: &'static str) {
        let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
        let closing = async {
            let _ = self.stream.send(Message::Close(Some(frame))).await;
            // Until the other side has closed too.
            while let Some(Ok(_)) = self.stream.recv().await {}
        };
        let _ = tokio::time::timeout(CLOSING, closing).await;
    }
}

/// Begins to listen; none if there is nothing to listen to.
async fn listen(app: &App, outbox: Arc<Outbox>, channel: &Channel) -> Result<Option<Kept>, Unheard> {
    let watch = app.reserve.watch();
    let acknowledge = |channel: &str, field: &str, name: &str| {
        let name = serde_json::Value::from(name);
        format!(r#"{{"type":"sub_ack","channel":"{channel}","{field}":{name}}}"#)
    };
    Ok(match channel {
        Channel::Search(id) => {
            let request_id = serde_json::Value::from(id.as_str());
            let acknowledge = move |Subscribed { pending }| {
                format!(
                    r#"{{"type":"sub_ack","channel":"search","requestId":{request_id},"pending":{pending}}}"#
                )
            };
            Some(Kept::Search(app.enrich.subscribe(id, outbox, acknowledge).await?))
        }
        Channel::Reservations(user) => {
            let acknowledgement = acknowledge("reservations", "userId", user);
            Some(Kept::Watched(watch.reservations(user, outbox, acknowledgement).await?))
        }
        Channel::Inventory(id) => {
            let acknowledgement = acknowledge("inventory", "inventoryId", id);
            watch.inventory(id, outbox, acknowledgement).await?.map(Kept::Watched)
        }
    })
}

const PONG: &str = r#"{"type":"pong"}"#;
const NACK: &str = r#"{"type":"sub_nack","reason":"invalid_request"}"#;
const UNAUTHORIZED: &str = r#"{"type":"sub_nack","reason":"unauthorized"}"#;
const TOO_MANY: &str = r#"{"type":"sub_nack","reason":"too_many"}"#;
const CLOSING: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever sends waits for the outbox to be full meanwhile. What is pushed then is still to be sent.
    #[tokio::test]
    async fn what_is_pushed_while_another_is_sent_is_not_forgotten() {
        let outbox = Outbox::default();
        let full = outbox.until_full();
        tokio::pin!(full);
        assert!(futures::poll!(&mut full).is_pending(), "it is not full");
        assert!(outbox.push("a".to_owned()));
        assert!(futures::poll!(&mut full).is_pending(), "it is not full");
        tokio::time::timeout(Duration::ZERO, outbox.some.notified())
            .await
            .expect("there is something to send");
        for _ in 0..limits::SOCKET_UNREAD_MAX {
            outbox.push("b".to_owned());
        }
        full.await;
        assert!(outbox.messages().is_empty() && !outbox.push("c".to_owned()));
    }
}
