//! A socket, as a client has it.

use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::server::Server;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Socket(pub(crate) WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Socket {
    pub(crate) async fn open(server: &Server) -> Self {
        Self::open_at(&server.url).await
    }

    pub(crate) async fn open_at(url: &str) -> Self {
        let url = format!("{}/v1/ws", url.replace("http://", "ws://"));
        Self(tokio_tungstenite::connect_async(url).await.expect("opens").0)
    }

    pub(crate) async fn say(&mut self, message: Value) {
        self.0.send(Message::text(message.to_string())).await.expect("is sent");
    }

    /// What comes next. None: the socket was closed.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        Some(serde_json::from_str(&self.text().await?).expect("JSON"))
    }

    /// The same, as it comes.
    pub(crate) async fn next_text(&mut self) -> String {
        self.text().await.expect("the socket is open")
    }

    async fn text(&mut self) -> Option<String> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let message = tokio::time::timeout_at(deadline, self.0.next()).await.expect("something comes");
            match message {
                Some(Ok(Message::Text(text))) => return Some(text.to_string()),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => return None,
            }
        }
    }

    /// Subscribes; how many places are pending.
    pub(crate) async fn subscribe(&mut self, request: &str) -> u64 {
        self.say(json!({"v": 1, "type": "subscribe", "channel": "search", "requestId": request})).await;
        let ack = self.next().await.expect("an answer");
        assert_eq!(
            (&ack["type"], &ack["channel"], &ack["requestId"]),
            (&json!("sub_ack"), &json!("search"), &json!(request))
        );
        ack["pending"].as_u64().expect("a number")
    }

    /// The next patch: place and status at Wolt.
    pub(crate) async fn patch(&mut self) -> (String, String) {
        let patch = self.next().await.expect("a patch");
        assert_eq!(patch["type"], "RESULT_PATCH", "{patch}");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        (text(&patch["placeId"]), text(&patch["patch"]["providers"]["wolt"]["status"]))
    }

    /// Nothing came before the answer to a ping.
    pub(crate) async fn assert_silent(&mut self) {
        self.say(json!({"type": "ping"})).await;
        assert_eq!(self.next().await, Some(json!({"type": "pong"})), "nothing else was said");
    }
}
