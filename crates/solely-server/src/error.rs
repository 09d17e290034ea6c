//! Errors as clients see them: a status, a stable code, a sentence, and when to try again.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use solely_core::StoreError;
use utoipa::openapi::{ContentBuilder, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema};

/// An error on its way to a client.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    retry_after: Option<Duration>,
    details: Option<Value>,
    replayed: bool,
}

/// Says that an answer is that of an earlier request with the same key.
pub(crate) const REPLAY: HeaderName = HeaderName::from_static("idempotent-replay");

/// The one body of every error.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ErrorBody {
    /// A stable code.
    error: &'static str,
    /// A sentence for people.
    message: String,
    /// The request's id, as in `X-Request-Id`.
    request_id: String,
    /// When trying again can help, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    /// What a program can use.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    details: Option<Value>,
}

/// What any route may answer.
pub(crate) struct ApiErrors;

impl IntoResponses for ApiErrors {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let says = |what: &str| {
            let schema = utoipa::openapi::Ref::from_schema_name("ErrorBody");
            ResponseBuilder::new()
                .description(what)
                .content("application/json", ContentBuilder::new().schema(Some(schema)).build())
                .build()
        };
        [
            ("400", "INVALID_REQUEST: the message names the field"),
            ("401", "UNAUTHENTICATED: there is no key, or it is nobody's"),
            ("403", "FORBIDDEN: the key has no scope for this, or the origin is foreign"),
            ("404", "NOT_FOUND"),
            ("413", "BODY_TOO_LARGE"),
            ("429", "TOO_MANY_REQUESTS: see retryAfter"),
            ("503", "STORE_UNAVAILABLE, OVERLOADED: see retryAfter"),
        ]
        .into_iter()
        .map(|(status, what)| (status.to_owned(), RefOr::T(says(what))))
        .collect()
    }
}

impl ApiError {
    /// An error of this status, code and sentence.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), retry_after: None, details: None, replayed: false }
    }

    /// Something is wrong with the request; the message names the field.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "INVALID_REQUEST", message)
    }

    /// There is no such thing.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NOT_FOUND", message)
    }

    /// The state of things does not allow it.
    pub fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    /// Says when trying again can help.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Adds what a program can use.
    pub fn details(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }

    /// Says that it is the answer to an earlier request with the same key.
    pub(crate) fn replayed(mut self, replayed: bool) -> Self {
        self.replayed = replayed;
        self
    }

    /// The whole response, once the request's id is known.
    pub(crate) fn into_body(self, request_id: &str) -> Response {
        let retry_ms = self.retry_after.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        let body = ErrorBody {
            error: self.code,
            message: self.message,
            request_id: request_id.to_owned(),
            retry_after: retry_ms,
            details: self.details,
        };
        let mut response = (self.status, axum::Json(body)).into_response();
        if let Some(retry_ms) = retry_ms {
            set(&mut response, header::RETRY_AFTER, &retry_ms.div_ceil(1_000).to_string());
        }
        if self.replayed {
            set(&mut response, REPLAY, "true");
        }
        response
    }
}

pub(crate) fn set(response: &mut Response<Body>, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

impl IntoResponse for ApiError {
    /// An empty response that carries the error; the outermost layer writes the body.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// How long a client waits before it asks a store again that is away.
const STORE_RETRY: Duration = Duration::from_secs(1);

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        tracing::warn!(%error, "the store could not answer");
        if error.retryable() {
            let message = "The store is not available at the moment. Please try again.";
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "STORE_UNAVAILABLE", message).retry_after(STORE_RETRY)
        } else {
            let message =
                "The store refused the request. This is a mistake of the server; its log says more.";
            Self::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", message)
        }
    }
}
