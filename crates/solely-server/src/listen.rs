//! Connections: how many, how slow, and how they end.
//!
//! A client that does not send its header in time is cut off; one that stalls in the middle of its
//! body is, too; beyond [`limits::CONNECTIONS_MAX`] connections the next is closed at once. Told to
//! stop, requests under way are finished and idle connections closed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use solely_core::limits;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// Serves until `stop`, then finishes what is under way for as long as `grace`.
pub(crate) async fn serve(listener: TcpListener, app: Router, stop: &CancellationToken, grace: Duration) {
    let (places, open) = (Arc::new(Semaphore::new(limits::CONNECTIONS_MAX)), TaskTracker::new());
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(limits::HEADER_TIME).max_headers(100);
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file handles, as a rule: those that end give theirs back.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(TROUBLE).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let _ = stream.set_nodelay(true);
        let app = app.clone();
        let service =
            hyper::service::service_fn(move |request: Request<Incoming>| answer(app.clone(), request));
        let connection = server.serve_connection(TokioIo::new(stream), service).with_upgrades();
        let stopping = stop.clone();
        open.spawn(async move {
            let mut connection = std::pin::pin!(connection);
            // However it ends, it has ended.
            tokio::select! {
                _ = connection.as_mut() => {}
                () = stopping.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            drop(place);
        });
    }
    drop(listener);
    open.close();
    // Requests still open at the end of the grace end with the process; what they asked for is
    // committed or not.
    let _ = tokio::time::timeout(grace, open.wait()).await;
}

async fn answer(app: Router, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    app.oneshot(request.map(Body::new)).await
}

const TROUBLE: Duration = Duration::from_millis(50);
