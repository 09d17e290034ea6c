//! What the routes of reserve share: who asks, with which key, and how a verdict is answered.

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use solely_core::access::Caller;
use solely_core::reserve::{IdempotencyKey, Operation, Refusal, Request, ReserveError, Verdict};

use crate::App;
use crate::error::{ApiError, REPLAY, set};
use crate::extract::{Asker, check_key};

/// Bytes of an `Idempotency-Key`.
const IDEMPOTENCY_KEY_MAX: usize = 255;
/// When a request may be tried again whose turn did not come.
const LOCK_RETRY: Duration = Duration::from_secs(2);
/// When one may be whose twin is under way.
const TWIN_RETRY: Duration = Duration::from_secs(1);

/// Who asks, for what, and with which key.
pub(crate) struct Buyer {
    caller: Caller,
    asker: Asker,
    key: Option<String>,
    route: String,
    path: String,
}

impl FromRequestParts<App> for Buyer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let asker = Asker::from_request_parts(parts, app).await?;
        let caller = parts.extensions.get::<Caller>().cloned().unwrap_or(Caller::Anyone);
        let key = match parts.headers.get("idempotency-key") {
            None => None,
            Some(value) => Some(
                value
                    .to_str()
                    .ok()
                    .filter(|key| !key.is_empty() && key.len() <= IDEMPOTENCY_KEY_MAX)
                    .map(str::to_owned)
                    .ok_or_else(|| {
                        ApiError::invalid(format!(
                            "`Idempotency-Key` has 1 to {IDEMPOTENCY_KEY_MAX} plain characters"
                        ))
                    })?,
            ),
        };
        let route = parts.extensions.get::<axum::extract::MatchedPath>();
        let route = format!("{} {}", parts.method, route.map_or("", axum::extract::MatchedPath::as_str));
        Ok(Self { caller, asker, key, route, path: parts.uri.path().to_owned() })
    }
}

impl Buyer {
    /// The user that asks, if it is one and not a service.
    pub(crate) fn user(&self) -> Option<&str> {
        match &self.caller {
            Caller::User { user_id } => Some(user_id),
            Caller::Anyone | Caller::Key { .. } => None,
        }
    }

    /// Refuses a user that asks for another.
    pub(crate) fn must_be(&self, user_id: &str) -> Result<(), ApiError> {
        match self.user() {
            Some(user) if user != user_id => Err(not_yours()),
            _ => Ok(()),
        }
    }

    /// Has an operation decided, and answers with what came of it.
    pub(crate) async fn ask(
        self,
        app: &App,
        operation: Operation,
        body: &impl Serialize,
        status: StatusCode,
    ) -> Result<Response, ApiError> {
        let idempotency = self.key.as_ref().map(|key| {
            let scope = format!("{} {}", self.caller.name(), self.route);
            let said = serde_json::to_string(body).unwrap_or_default();
            let digest = Sha256::digest(format!("{}\n{said}", self.path));
            (IdempotencyKey { scope, key: key.clone() }, data_encoding::HEXLOWER.encode(&digest))
        });
        let request = Request {
            operation,
            only_of: self.user().map(str::to_owned),
            idempotency,
            request_id: Some(self.asker.request_id),
        };
        let decided = app.reserve.decide(request).await.map_err(not_decided)?;
        let mut response = match decided.verdict {
            Verdict::Merchant(merchant) => (status, axum::Json(merchant)).into_response(),
            Verdict::BoxType(made) => (status, axum::Json(made)).into_response(),
            Verdict::Inventory(inventory) => (status, axum::Json(inventory)).into_response(),
            Verdict::Reservation(reservation) => (status, axum::Json(reservation)).into_response(),
            Verdict::Wait(_) if status == StatusCode::NO_CONTENT => status.into_response(),
            Verdict::Wait(wait) => (status, axum::Json(wait)).into_response(),
            Verdict::Refused(refusal) => return Err(refused(&refusal).replayed(decided.replayed)),
        };
        if decided.replayed {
            set(&mut response, REPLAY, "true");
        }
        Ok(response)
    }
}

fn refused(refusal: &Refusal) -> ApiError {
    let status = match refusal {
        Refusal::MerchantNotFound
        | Refusal::BoxTypeNotFound
        | Refusal::BoxNotFound
        | Refusal::WaitNotFound
        | Refusal::ReservationNotFound => StatusCode::NOT_FOUND,
        Refusal::Invalid(_) => StatusCode::BAD_REQUEST,
        Refusal::WrongCode | Refusal::NotYours => StatusCode::FORBIDDEN,
        Refusal::TooManyCodes(_) => StatusCode::TOO_MANY_REQUESTS,
        Refusal::IdempotencyKeyReused => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::CONFLICT,
    };
    let error = ApiError::new(status, refusal.code(), refusal.message());
    match refusal {
        Refusal::TooManyCodes(left) => error.retry_after(Duration::from_millis(*left)),
        Refusal::IdempotencyInProgress => error.retry_after(TWIN_RETRY),
        _ => error,
    }
}

fn not_decided(error: ReserveError) -> ApiError {
    match error {
        ReserveError::NotInTime => {
            let message = "Unable to process reservation at this time. Please try again.";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "LOCK_ACQUISITION_FAILED", message)
                .retry_after(LOCK_RETRY)
        }
        ReserveError::Unknown => {
            let message = "The store was lost while it was written to, and it cannot be said what came of this. \
                           Look at your reservations, or ask again with the same Idempotency-Key.";
            ApiError::new(StatusCode::GATEWAY_TIMEOUT, "OUTCOME_UNKNOWN", message)
        }
        ReserveError::Store(error) => error.into(),
    }
}

pub(crate) fn not_yours() -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "FORBIDDEN", "A user may do this for itself alone.")
}

/// An id that a client brings, or one that is made.
pub(crate) fn id(given: Option<String>) -> Result<String, ApiError> {
    match given {
        Some(id) => check_key("id", &id).map(|()| id),
        None => Ok(solely_core::ReservationId::new().to_string()),
    }
}
