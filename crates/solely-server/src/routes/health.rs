//! Alive, and ready.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;

/// The process answers.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "health",
    security(()),
    responses((status = 200, body = String, description = "The process answers"))
)]
pub(crate) async fn alive() -> &'static str {
    "ok\n"
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Ready {
    status: &'static str,
    version: &'static str,
    store: StoreHealth,
    redis: RedisHealth,
}

#[derive(Serialize, ToSchema)]
struct StoreHealth {
    kind: &'static str,
    ok: bool,
}

#[derive(Serialize, ToSchema)]
struct RedisHealth {
    configured: bool,
    ok: bool,
}

/// The store can be reached and its schema is current. Without Redis, where there is to be one, it
/// is slower and nothing else.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "health",
    security(()),
    responses((status = 200, body = Ready), (status = 503, body = Ready, description = "The store cannot be reached"))
)]
pub(crate) async fn ready(State(app): State<App>) -> (StatusCode, Json<Ready>) {
    let ok = app.store.health().await.is_ok();
    let store = StoreHealth { kind: app.store.kind(), ok };
    let redis = RedisHealth {
        configured: app.companion.is_some(),
        ok: app.companion.as_ref().is_some_and(|redis| redis.ok()),
    };
    let (code, status) = match ok {
        false => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        true if redis.configured && !redis.ok => (StatusCode::OK, "degraded"),
        true => (StatusCode::OK, "ready"),
    };
    (code, Json(Ready { status, version: env!("CARGO_PKG_VERSION"), store, redis }))
}
