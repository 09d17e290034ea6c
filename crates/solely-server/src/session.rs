//! A browser that is logged in.
//!
//! The dashboard sends a key once (`POST /v1/login`, as any caller sends it) and gets a cookie that
//! scripts cannot read and that no other site's request carries. The cookie holds the key: nothing of a
//! session is stored, so that every server of a deployment knows it, and a revoked key ends it within
//! seconds like any other use of that key.
//!
//! A browser sends a cookie by itself, so a cookie alone proves that the browser was logged in and not
//! that its user wanted this request. Whatever changes something therefore carries a token beside it,
//! which is made of the key and told only to pages of this origin; and a request that says where it
//! comes from must come from here, whatever origins may call with a key of their own.

use axum::http::header::{COOKIE, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use solely_core::access::{KEY_PREFIX, hash, same_secret};
use solely_core::limits;

use crate::error::ApiError;

const NAME: &str = "solely_session";
/// The header that carries the token.
pub(crate) const CSRF: HeaderName = HeaderName::from_static("x-csrf-token");

/// The key of the browser's cookie, if it has one.
pub(crate) fn key(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.split_once('='));
    let (_, key) = pairs.find(|(name, _)| name.trim() == NAME)?;
    Some(key.trim()).filter(|key| key.starts_with(KEY_PREFIX))
}

/// The token that goes with a key.
pub(crate) fn csrf_token(key: &str) -> String {
    hash(&format!("csrf:{key}"))
}

/// Refuses a request with a cookie that the browser's user may not have wanted.
pub(crate) fn check(method: &Method, headers: &HeaderMap, key: &str) -> Result<(), ApiError> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let from_here = text(&ORIGIN).is_none_or(|origin| {
        let place = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        place.is_some() && place == text(&HOST)
    });
    if !from_here {
        let message = "A page of another origin cannot use this browser's login: it needs a key of its own.";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "FORBIDDEN", message));
    }
    let given = text(&CSRF).unwrap_or_default();
    let wanted = csrf_token(key);
    if same_secret(given, &wanted) || matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let message =
        "A change by a browser that is logged in carries `X-CSRF-Token`, as `GET /v1/session` tells it.";
    Err(ApiError::new(StatusCode::FORBIDDEN, "FORBIDDEN", message))
}

/// The cookie of a browser that logs in. Only over TLS, if it came over TLS: a proxy says so.
pub(crate) fn cookie(headers: &HeaderMap, key: &str) -> String {
    let age = limits::SESSION_TTL.as_secs();
    format!("{NAME}={key}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{}", secure(headers))
}

/// The cookie of one that logs out.
pub(crate) fn no_cookie(headers: &HeaderMap) -> String {
    format!("{NAME}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0{}", secure(headers))
}

fn secure(headers: &HeaderMap) -> &'static str {
    let scheme = headers.get("x-forwarded-proto").and_then(|value| value.to_str().ok());
    if scheme == Some("https") { "; Secure" } else { "" }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_str(text).expect("a header");
        pairs.iter().map(|(name, text)| (name.clone(), value(text))).collect()
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        let found = |cookies: &str| key(&headers(&[(COOKIE, cookies)])).map(str::to_owned);
        assert_eq!(found("a=b; solely_session=solely_x_y; c=d").as_deref(), Some("solely_x_y"));
        for cookies in ["", "a=b", "solely_session=", "solely_session=other", "xsolely_session=solely_x_y"] {
            assert_eq!(found(cookies), None, "{cookies}");
        }
    }

    #[test]
    fn a_change_needs_the_token_and_this_origin() {
        let key = "solely_x_y";
        let token = csrf_token(key);
        let refused =
            |method: &Method, pairs: &[(HeaderName, &str)]| check(method, &headers(pairs), key).is_err();
        assert!(!refused(&Method::GET, &[(HOST, "here:1")]));
        assert!(!refused(&Method::POST, &[(HOST, "here:1"), (CSRF, &token)]));
        assert!(!refused(&Method::POST, &[(HOST, "here:1"), (ORIGIN, "https://here:1"), (CSRF, &token)]));
        assert!(refused(&Method::POST, &[(HOST, "here:1")]));
        assert!(refused(&Method::DELETE, &[(HOST, "here:1"), (CSRF, &csrf_token("solely_x_z"))]));
        for origin in ["http://there:1", "http://here:2", "null", "here:1"] {
            assert!(refused(&Method::GET, &[(HOST, "here:1"), (ORIGIN, origin)]), "{origin}");
        }
    }
}
