//! The description of the routes, and a page that shows it.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::App;

/// The description of every route
#[utoipa::path(get, path = "/openapi.json", tag = "health", security(()), responses((status = 200, body = Object)))]
pub(crate) async fn openapi(State(app): State<App>) -> Response {
    file("application/json", app.openapi.to_string())
}

/// A page that shows the description
#[utoipa::path(get, path = "/docs", tag = "health", security(()), responses((status = 200, body = String, content_type = "text/html")))]
pub(crate) async fn page() -> Response {
    file("text/html; charset=utf-8", include_str!("docs/docs.html"))
}

/// The page's script
#[utoipa::path(get, path = "/docs/docs.js", tag = "health", security(()), responses((status = 200, body = String, content_type = "text/javascript")))]
pub(crate) async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("docs/docs.js"))
}

/// The page's style
#[utoipa::path(get, path = "/docs/docs.css", tag = "health", security(()), responses((status = 200, body = String, content_type = "text/css")))]
pub(crate) async fn style() -> Response {
    file("text/css; charset=utf-8", include_str!("docs/docs.css"))
}

/// Nothing but what this server serves is loaded, run or framed.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn file(kind: &'static str, content: impl IntoResponse) -> Response {
    let mut response = content.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
