//! A socket: each line is a message, and a server that is well answers a ping behind them, or has closed the socket.

use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio_tungstenite::tungstenite::Message;

use crate::stage::{Stage, on_stage};

/// Messages of one socket.
const MESSAGES: usize = 16;

pub(crate) fn fuzz(data: &[u8]) {
    on_stage(|stage| stage.runtime.block_on(talk(stage, data)));
}

async fn talk(stage: &Stage, data: &[u8]) {
    let (client, server) = tokio::io::duplex(1 << 16);
    let service = TowerToHyperService::new(stage.router.clone());
    let serving = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(server), service)
        .with_upgrades();
    let serving = tokio::spawn(serving);
    let (mut socket, _) =
        tokio_tungstenite::client_async("ws://127.0.0.1/v1/ws", client).await.expect("a socket is opened");
    for line in data.split(|byte| *byte == b'\n').take(MESSAGES) {
        let message = match std::str::from_utf8(line) {
            Ok(text) => Message::text(text),
            Err(_) => Message::binary(line.to_vec()),
        };
        if socket.send(message).await.is_err() {
            break;
        }
    }
    let _ = socket.send(Message::text(r#"{"type":"ping"}"#)).await;
    let answered = async {
        while let Some(Ok(heard)) = socket.next().await {
            if heard.is_close() || heard.to_text().is_ok_and(|text| text.contains("\"pong\"")) {
                return;
            }
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), answered).await.is_ok(), "nothing is answered");
    drop(socket);
    serving.abort();
}
