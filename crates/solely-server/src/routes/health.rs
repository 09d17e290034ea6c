//! Alive, and ready.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;

use crate::App;

/// The process answers.
pub(crate) async fn alive() -> &'static str {
    "ok\n"
}

#[derive(Serialize)]
pub(crate) struct Ready {
    status: &'static str,
    version: &'static str,
    store: StoreHealth,
    redis: RedisHealth,
}

#[derive(Serialize)]
struct StoreHealth {
    kind: &'static str,
    ok: bool,
}

#[derive(Serialize)]
struct RedisHealth {
    configured: bool,
    ok: bool,
}

/// The store can be reached and its schema is current.
pub(crate) async fn ready(State(app): State<App>) -> (StatusCode, Json<Ready>) {
    let ok = app.store.health().await.is_ok();
    let (code, status) =
        if ok { (StatusCode::OK, "ready") } else { (StatusCode::SERVICE_UNAVAILABLE, "unavailable") };
    let store = StoreHealth { kind: app.store.kind(), ok };
    let redis = RedisHealth { configured: false, ok: false };
    (code, Json(Ready { status, version: env!("CARGO_PKG_VERSION"), store, redis }))
}
