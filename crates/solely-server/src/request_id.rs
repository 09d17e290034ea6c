//! The outermost layer: every request has an id, every error the one body.

use axum::extract::Request;
use axum::http::{HeaderName, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::error::{ApiError, set};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Takes the client's id or makes one, and writes the body of an error that comes back.
pub(crate) async fn layer(request: Request, next: Next) -> Response {
    let id = given(&request).unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let allow = response.headers_mut().remove(header::ALLOW);
        response = error.into_body(&id);
        if let Some(allow) = allow {
            response.headers_mut().insert(header::ALLOW, allow);
        }
    }
    set(&mut response, REQUEST_ID, &id);
    response
}

/// The client's own id, if it is one that can be echoed and logged as it is.
fn given(request: &Request) -> Option<String> {
    let id = request.headers().get(REQUEST_ID)?.to_str().ok()?;
    let fine =
        !id.is_empty() && id.len() <= REQUEST_ID_BYTES_MAX && id.bytes().all(|byte| byte.is_ascii_graphic());
    fine.then(|| id.to_owned())
}

/// A handler that panicked: an error like any other.
pub(crate) fn panicked(_panic: Box<dyn std::any::Any + Send>) -> Response {
    let message = "Something went wrong in the server; its log says more.";
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", message).into_response()
}
