//! Leases.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use solely_core::lease::{HeldKey, Holder, Lease, LeaseRenewed, LeaseRequest, WaitedLease};
use solely_core::{LeaseId, limits};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ApiErrors, ErrorBody};
use crate::extract::{Body, Path, Query, check_key};
use crate::page::{self, Page};

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AcquireBody {
    /// What is to be leased, all of it or none.
    #[schema(min_items = 1, max_items = 64)]
    keys: Vec<String>,
    /// A name for people.
    #[schema(min_length = 1, max_length = 512)]
    owner: String,
    /// How long the lease lasts.
    #[schema(minimum = 100, maximum = 86_400_000)]
    ttl_ms: u64,
    /// How long to wait for keys that are held.
    #[serde(default)]
    #[schema(maximum = 60_000)]
    wait_ms: u64,
}

impl AcquireBody {
    fn request(self) -> Result<(LeaseRequest, Duration), ApiError> {
        let mut keys: Vec<String> = Vec::with_capacity(self.keys.len().min(limits::LEASE_KEYS_MAX));
        for key in self.keys {
            check_key("keys", &key)?;
            if !keys.contains(&key) {
                keys.push(key);
            }
            if keys.len() > limits::LEASE_KEYS_MAX {
                break;
            }
        }
        if keys.is_empty() || keys.len() > limits::LEASE_KEYS_MAX {
            return Err(ApiError::invalid(format!("`keys` has 1 to {} keys", limits::LEASE_KEYS_MAX)));
        }
        check_key("owner", &self.owner)?;
        let wait = Duration::from_millis(self.wait_ms);
        if wait > limits::LEASE_WAIT_MAX {
            return Err(ApiError::invalid(format!(
                "`waitMs` is 0 to {}",
                limits::LEASE_WAIT_MAX.as_millis()
            )));
        }
        let (id, ttl, owner) = (LeaseId::random(), ttl(self.ttl_ms)?, self.owner);
        Ok((LeaseRequest { id, keys, owner, ttl, holder: Holder::Client }, wait))
    }
}

fn ttl(millis: u64) -> Result<Duration, ApiError> {
    let (min, max) = (limits::LEASE_TTL_MIN, limits::LEASE_TTL_MAX);
    let ttl = Duration::from_millis(millis);
    if ttl < min || ttl > max {
        return Err(ApiError::invalid(format!("`ttlMs` is {} to {}", min.as_millis(), max.as_millis())));
    }
    Ok(ttl)
}

/// Takes a lease, waiting for it if asked to.
#[utoipa::path(
    post,
    path = "/v1/leases",
    tag = "leases",
    security(("key" = ["admin:write"])),
    request_body = AcquireBody,
    responses((status = 200, body = Lease), (status = 409, body = ErrorBody, description = "LEASE_HELD"), ApiErrors)
)]
pub(crate) async fn acquire(
    State(app): State<App>,
    Body(body): Body<AcquireBody>,
) -> Result<Json<Lease>, ApiError> {
    let (request, wait) = body.request()?;
    match app.leases.acquire(request, wait).await? {
        WaitedLease::Acquired(lease) => Ok(Json(lease)),
        WaitedLease::Held(obstacle) => {
            let message =
                format!("`{}` is held by `{}` until {}.", obstacle.key, obstacle.owner, obstacle.expires_at);
            let held = ApiError::conflict("LEASE_HELD", message).retry_after(obstacle.ends_in);
            Err(held.details(serde_json::json!(obstacle)))
        }
        WaitedLease::TooManyWaiting => {
            let message = "Too many callers wait for leases already.";
            let busy = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "TOO_MANY_WAITING", message);
            Err(busy.retry_after(Duration::from_secs(1)))
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RenewBody {
    /// The lease's own time if none is given.
    #[schema(minimum = 100, maximum = 86_400_000)]
    ttl_ms: Option<u64>,
}

fn not_found() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "LEASE_NOT_FOUND", "There is no such lease, or it has ended.")
}

/// Moves a lease's end.
#[utoipa::path(
    put,
    path = "/v1/leases/{id}",
    tag = "leases",
    security(("key" = ["admin:write"])),
    params(("id" = String, Path, description = "The leaseId")),
    request_body = RenewBody,
    responses((status = 200, body = Lease), (status = 404, body = ErrorBody, description = "LEASE_NOT_FOUND"), ApiErrors)
)]
pub(crate) async fn renew(
    State(app): State<App>,
    Path(id): Path<String>,
    Body(body): Body<RenewBody>,
) -> Result<Json<Lease>, ApiError> {
    let ttl = body.ttl_ms.map(ttl).transpose()?;
    let id: LeaseId = id.parse().map_err(|_| not_found())?;
    match app.leases.renew(id, ttl).await? {
        LeaseRenewed::Renewed(lease) => Ok(Json(lease)),
        LeaseRenewed::Lost => Err(not_found()),
    }
}

/// Ends a lease.
#[utoipa::path(
    delete,
    path = "/v1/leases/{id}",
    tag = "leases",
    security(("key" = ["admin:write"])),
    params(("id" = String, Path, description = "The leaseId")),
    responses((status = 204), (status = 404, body = ErrorBody, description = "LEASE_NOT_FOUND"), ApiErrors)
)]
pub(crate) async fn release(State(app): State<App>, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    let id: LeaseId = id.parse().map_err(|_| not_found())?;
    if app.leases.release(id).await? { Ok(StatusCode::NO_CONTENT) } else { Err(not_found()) }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    limit: Option<u32>,
    cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ListedKey {
    #[serde(flatten)]
    held: HeldKey,
    waiters: usize,
}

/// The keys that are held, in order.
#[utoipa::path(
    get,
    path = "/v1/leases",
    tag = "leases",
    security(("key" = ["admin:read"])),
    params(("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Items of a page"), ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before")),
    responses((status = 200, body = Page<ListedKey>), ApiErrors)
)]
pub(crate) async fn list(
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<ListedKey>>, ApiError> {
    let limit = page::limit(query.limit)?;
    let held = app.leases.held(query.cursor, limit + 1).await?;
    let page = Page::of(held, limit, |(held, _)| held.key.clone());
    Ok(Json(page.map(|(held, waiters)| ListedKey { held, waiters })))
}
