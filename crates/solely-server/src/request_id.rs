//! The outermost layer: every request has an id, every error the one body.

use axum::extract::Request;
use axum::http::{HeaderName, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use tracing::Instrument as _;

use crate::error::{ApiError, set};
use crate::extract::Asker;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Takes the client's id or makes one, says of the log lines between that they are the request's, and
/// writes the body of an error that comes back.
pub(crate) async fn layer(mut request: Request, next: Next) -> Response {
    let id = given(&request).unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let trace = trace_id(&request);
    let span = trace.map(|trace_id| tracing::info_span!("request", requestId = id, traceId = trace_id));
    let span = span.unwrap_or_else(|| tracing::info_span!("request", requestId = id));
    let traceparent = trace.and_then(|_| request.headers().get("traceparent")?.to_str().ok());
    let asker = Asker { request_id: id.clone(), trace: traceparent.map(str::to_owned) };
    request.extensions_mut().insert(asker);
    let mut response = next.run(request).instrument(span).await;
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

/// The trace that a W3C `traceparent` names.
fn trace_id(request: &Request) -> Option<&str> {
    let parent = request.headers().get("traceparent")?.to_str().ok()?;
    let mut parts = parent.split('-');
    let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, length| {
        text.len() == length
            && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let named = hex(version, 2) && version != "ff" && hex(trace, 32) && hex(span, 16);
    (named && trace.bytes().any(|byte| byte != b'0')).then_some(trace)
}

/// A handler that panicked: an error like any other.
pub(crate) fn panicked(_panic: Box<dyn std::any::Any + Send>) -> Response {
    let message = "Something went wrong in the server; its log says more.";
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", message).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_from_a_traceparent() {
        let trace = |parent: &str| {
            let request = Request::builder().header("traceparent", parent).body(axum::body::Body::empty());
            trace_id(&request.expect("a request")).map(str::to_owned)
        };
        let id = "0af7651916cd43dd8448eb211c80319c";
        assert_eq!(trace(&format!("00-{id}-b7ad6b7169203331-01")).as_deref(), Some(id));
        for parent in [
            "",
            "00",
            &format!("ff-{id}-b7ad6b7169203331-01"),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-XYZ-b7-01",
        ] {
            assert_eq!(trace(parent), None, "{parent}");
        }
    }
}
