//! The WebSocket.
//!
//! A socket is bounded: the size of a message, the number of sockets, the time that a client may be
//! silent. When the server stops, every socket is closed with 1001.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use solely_core::limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::App;
use crate::error::{ApiError, ApiErrors};

/// The sockets of this process.
#[derive(Clone)]
pub(crate) struct Sockets(Arc<Semaphore>);

impl Default for Sockets {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(limits::SOCKETS_MAX)))
    }
}

impl Sockets {
    /// Waits until every socket is closed.
    pub(crate) async fn closed(&self) {
        let all = u32::try_from(limits::SOCKETS_MAX).unwrap_or(u32::MAX);
        let _ = self.0.acquire_many(all).await;
    }
}

/// Opens a socket
///
/// By header, or by `?ticket=…` from `POST /v1/ws/tickets`.
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
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade =
        upgrade.map_err(|_| ApiError::invalid("this route opens a WebSocket: the request is no upgrade"))?;
    let Ok(place) = app.sockets.0.clone().try_acquire_owned() else {
        let message = "There are as many sockets as there may be.";
        let refused = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "OVERLOADED", message);
        return Err(refused.retry_after(Duration::from_secs(5)));
    };
    let upgrade = upgrade.max_message_size(limits::SOCKET_MESSAGE_BYTES_MAX);
    Ok(upgrade.on_upgrade(move |socket| serve(socket, app, place)))
}

/// What a client says.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Said {
    Ping,
    Subscribe,
    Unsubscribe,
}

async fn serve(mut socket: WebSocket, app: App, _place: OwnedSemaphorePermit) {
    let mut heard = Instant::now();
    let mut pulse = tokio::time::interval(limits::SOCKET_PULSE);
    loop {
        tokio::select! {
            () = app.stop.cancelled() => {
                close(&mut socket, close_code::AWAY, "the server stops").await;
                return;
            }
            _ = pulse.tick() => {
                if heard.elapsed() > limits::SOCKET_PULSE * 3 {
                    close(&mut socket, close_code::POLICY, "nothing was heard").await;
                    return;
                }
                if socket.send(Message::Ping(axum::body::Bytes::new())).await.is_err() {
                    return;
                }
            }
            message = socket.recv() => {
                heard = Instant::now();
                let answer = match message {
                    Some(Ok(Message::Text(text))) => answer(&text),
                    Some(Ok(Message::Binary(_))) => NACK,
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                };
                if socket.send(Message::Text(Utf8Bytes::from_static(answer))).await.is_err() {
                    return;
                }
            }
        }
    }
}

const PONG: &str = r#"{"type":"pong"}"#;
const NACK: &str = r#"{"type":"sub_nack","reason":"invalid_request"}"#;

/// There is no channel to subscribe to yet: whatever asks for one is refused.
fn answer(text: &str) -> &'static str {
    match serde_json::from_str(text) {
        Ok(Said::Ping) => PONG,
        Ok(Said::Subscribe | Said::Unsubscribe) | Err(_) => NACK,
    }
}

async fn close(socket: &mut WebSocket, code: u16, reason: &'static str) {
    let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
    let _ = socket.send(Message::Close(Some(frame))).await;
    // Until the other side has closed too, or does not.
    let _ = tokio::time::timeout(CLOSING, async { while let Some(Ok(_)) = socket.recv().await {} }).await;
}

const CLOSING: Duration = Duration::from_secs(2);
