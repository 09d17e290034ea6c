//! Every route, on one screen.

use axum::Router;
use axum::http::StatusCode;
use axum::middleware;
use axum::routing::{get, post, put};
use tower_http::catch_panic::CatchPanicLayer;

use crate::error::ApiError;
use crate::routes::{dead_letter, health, job, lease, metrics, queue, timeline, upstream};
use crate::{App, request_id};

/// The routes and the layers around them.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(metrics::text))
        .route("/v1/leases", get(lease::list).post(lease::acquire))
        .route("/v1/leases/{id}", put(lease::renew).delete(lease::release))
        .route("/v1/jobs", get(job::list))
        .route("/v1/jobs/{id}", get(job::show))
        .route("/v1/jobs/{id}/retry", post(job::retry))
        .route("/v1/queues", get(queue::list))
        .route("/v1/queues/{name}/pause", post(queue::pause))
        .route("/v1/queues/{name}/resume", post(queue::resume))
        .route("/v1/dead-letters", get(dead_letter::list))
        .route("/v1/dead-letters/redrive", post(dead_letter::redrive))
        .route("/v1/upstreams", get(upstream::list))
        .route("/v1/timeline", get(timeline::list))
        .fallback(|| async { ApiError::not_found("There is no such route.") })
        .method_not_allowed_fallback(|| async {
            let message = "This route does not know this method.";
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message)
        })
        .layer(CatchPanicLayer::custom(request_id::panicked))
        .layer(middleware::from_fn(request_id::layer))
        .with_state(app)
}
