//! Who may call from a browser.
//!
//! Without access control a page of another site, or a name of another site that resolves to this
//! machine, must not reach the server: `Host` is one of this machine's own names and `Origin`, where
//! there is one, is the server's own or one that the configuration names. With access control a
//! foreign page has no key to send, and only the sockets' `Origin` matters, which is checked too.

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN, VARY,
};
use axum::http::uri::Authority;
use axum::http::{HeaderName, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::App;
use crate::error::{ApiError, set};

/// Refuses foreign hosts and origins, and answers browsers that ask first.
pub(crate) async fn layer(State(app): State<App>, request: Request, next: Next) -> Response {
    let host = text(&request, &HOST).or_else(|| request.uri().authority().map(ToString::to_string));
    if app.access.is_open() && !host.as_deref().is_some_and(is_of_this_machine) {
        return refused("The Host is not this machine's.");
    }
    let Some(origin) = text(&request, &ORIGIN) else { return next.run(request).await };
    let allowed = app.cors_origins.contains(&origin);
    let own =
        host.is_some_and(|host| origin == format!("http://{host}") || origin == format!("https://{host}"));
    if !allowed && !own {
        return refused("The Origin is foreign; `server.cors_origins` names those that are not.");
    }
    let asks_first =
        request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response =
        if asks_first { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    if allowed {
        set(&mut response, ACCESS_CONTROL_ALLOW_ORIGIN, &origin);
        set(&mut response, VARY, "Origin");
        set(&mut response, ACCESS_CONTROL_EXPOSE_HEADERS, "X-Request-Id, Retry-After, Idempotent-Replay");
        if asks_first {
            set(&mut response, ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PUT, PATCH, DELETE");
            let headers = "Authorization, Content-Type, Idempotency-Key, X-Request-Id, traceparent";
            set(&mut response, ACCESS_CONTROL_ALLOW_HEADERS, headers);
            set(&mut response, ACCESS_CONTROL_MAX_AGE, "600");
        }
    }
    response
}

fn text(request: &Request, name: &HeaderName) -> Option<String> {
    request.headers().get(name)?.to_str().ok().map(str::to_owned)
}

fn refused(message: &str) -> Response {
    ApiError::new(StatusCode::FORBIDDEN, "FORBIDDEN", message).into_response()
}

/// Names that no other site can have.
fn is_of_this_machine(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let loopback = name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    loopback || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machines_names_are_its_own() {
        for host in
            ["localhost", "localhost:7420", "127.0.0.1:7420", "127.1.2.3", "[::1]:7420", "LOCALHOST:1"]
        {
            assert!(is_of_this_machine(host), "{host}");
        }
        for host in
            ["example.org", "localhost.example.org", "127.0.0.1.example.org", "10.0.0.1:7420", "", "::1"]
        {
            assert!(!is_of_this_machine(host), "{host}");
        }
    }
}
