//! Who may call from a browser.
//!
//! Without access control a page of another site, or a name of another site that resolves to this
//! machine, must not reach the server: `Host` is one of this machine's own names and `Origin`, where
//! there is one, is the server's own or one that the configuration names. With access control a
//! foreign page has no key to send, and only the sockets' `Origin` matters, which is checked too.

use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN, VARY,
};
use axum::http::uri::Authority;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};

use crate::App;
use crate::error::{ApiError, set};

/// A page of another origin that the configuration names.
pub(crate) struct Visitor {
    origin: HeaderValue,
    /// It asks what it may do before it does it.
    asks_first: bool,
}

/// Refuses foreign hosts and origins. None: nothing is said to a browser of another origin.
pub(crate) fn check(app: &App, request: &Request) -> Result<Option<Visitor>, ApiError> {
    let text = |name: HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
    let host = text(HOST).or_else(|| request.uri().authority().map(Authority::as_str));
    if app.access.is_open() && !host.is_some_and(is_of_this_machine) {
        return Err(refused("The Host is not this machine's."));
    }
    let Some(origin) = request.headers().get(ORIGIN) else { return Ok(None) };
    let named = origin.to_str().unwrap_or_default();
    let allowed = app.cors_origins.iter().any(|allowed| allowed == named);
    let place = named.strip_prefix("http://").or_else(|| named.strip_prefix("https://"));
    let own = place.is_some() && place == host;
    if !allowed && !own {
        return Err(refused("The Origin is foreign; `server.cors_origins` names those that are not."));
    }
    let asks_first =
        request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    Ok((allowed || asks_first).then(|| Visitor { origin: origin.clone(), asks_first }))
}

impl Visitor {
    /// The answer to one that asks first.
    pub(crate) fn answer(&self) -> Option<Response> {
        self.asks_first.then(|| StatusCode::NO_CONTENT.into_response())
    }

    /// Lets its page read the answer, if the configuration names it.
    pub(crate) fn may_read(&self, app: &App, response: &mut Response) {
        let named = self.origin.to_str().unwrap_or_default();
        if !app.cors_origins.iter().any(|allowed| allowed == named) {
            return;
        }
        response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin.clone());
        set(response, VARY, "Origin");
        set(response, ACCESS_CONTROL_EXPOSE_HEADERS, "X-Request-Id, Retry-After, Idempotent-Replay");
        if self.asks_first {
            set(response, ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PUT, PATCH, DELETE");
            let headers = "Authorization, Content-Type, Idempotency-Key, X-Request-Id, traceparent";
            set(response, ACCESS_CONTROL_ALLOW_HEADERS, headers);
            set(response, ACCESS_CONTROL_MAX_AGE, "600");
        }
    }
}

fn refused(message: &str) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "FORBIDDEN", message)
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
