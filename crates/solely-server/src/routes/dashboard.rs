//! The dashboard's files: one page, its modules, and what they stand on.
//!
//! They lie in `web/` as they are served, without a step in between: a build of a developer reads them
//! from there at every request, another has them inside. Nothing of them is secret; what they show is
//! asked for by the browser, with its own rights.

use std::borrow::Cow;

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use rust_embed::{Embed, EmbeddedFile};
use sha2::{Digest as _, Sha256};

use crate::error::{ApiError, ApiErrors, set};
use crate::extract::Path;

#[derive(Embed)]
#[folder = "../../web/dashboard"]
struct Dashboard;

#[derive(Embed)]
#[folder = "../../web/vendor"]
struct Vendor;

#[derive(Embed)]
#[folder = "../../web/demo"]
struct Demo;

const CLIENT: &str = include_str!("../../../../web/client.js");

/// Nothing but what this server serves is loaded, run or framed, and no text becomes HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

fn file(name: &str, found: Option<EmbeddedFile>, headers: &HeaderMap) -> Result<Response, ApiError> {
    let found = found.ok_or_else(|| ApiError::not_found("There is no such file."))?;
    Ok(answer(name, found.data, found.metadata.sha256_hash(), headers))
}

/// A file, or that it is what the browser has.
fn answer(name: &str, data: Cow<'static, [u8]>, hash: [u8; 32], headers: &HeaderMap) -> Response {
    let etag = format!("\"{}\"", data_encoding::HEXLOWER.encode(&hash[..12]));
    let known = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let mut response = if known.is_some_and(|known| known.contains(&etag)) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        data.into_response()
    };
    let opener = HeaderName::from_static("cross-origin-opener-policy");
    for (name, value) in [
        (CONTENT_TYPE, kind(name)),
        (ETAG, etag.as_str()),
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (opener, "same-origin"),
    ] {
        set(&mut response, name, value);
    }
    response
}

fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

/// A name that stays within its folder.
fn plain(name: &str) -> Result<&str, ApiError> {
    let fine = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    if fine && !name.starts_with('.') { Ok(name) } else { Err(ApiError::not_found("There is no such file.")) }
}

fn shell(headers: &HeaderMap) -> Result<Response, ApiError> {
    file("index.html", Dashboard::get("index.html"), headers)
}

/// The pages of the dashboard: one document, which shows what its address says.
macro_rules! pages {
    ($($name:ident $path:literal $what:literal),+ $(,)?) => {$(
        #[doc = $what]
        #[utoipa::path(get, path = $path, tag = "dashboard", security(()), responses((status = 200, body = String, content_type = "text/html"), ApiErrors))]
        pub(crate) async fn $name(headers: HeaderMap) -> Result<Response, ApiError> {
            shell(&headers)
        }
    )+};
}

pages! {
    overview "/" "The overview: rates, charts, what needs a look",
    enrich "/enrich" "Places and their links",
    products "/products" "Product searches",
    boxes "/boxes" "Stock, holds, waiting lists",
    runs "/runs" "Runs of feeds, a bar for each partition",
    jobs "/jobs" "Queues, jobs and dead letters",
    leases "/leases" "Leases",
    upstreams "/upstreams" "Upstreams",
    alerts "/alerts" "Alerts",
    explain "/explain" "From any key to its timeline",
}

/// A file of the dashboard
#[utoipa::path(
    get,
    path = "/dashboard/{file}",
    tag = "dashboard",
    security(()),
    params(("file" = String, Path)),
    responses((status = 200, body = String, content_type = "text/javascript"), ApiErrors)
)]
pub(crate) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, ApiError> {
    let name = plain(&name)?;
    file(name, Dashboard::get(name), &headers)
}

/// A file that others have written
#[utoipa::path(
    get,
    path = "/vendor/{file}",
    tag = "dashboard",
    security(()),
    params(("file" = String, Path)),
    responses((status = 200, body = String, content_type = "text/javascript"), ApiErrors)
)]
pub(crate) async fn vendor(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, ApiError> {
    let name = plain(&name)?;
    file(name, Vendor::get(name), &headers)
}

/// A module for browsers: subscribe, merge, reconnect
///
/// `import { connect } from "/client.js"`. Any page may import it.
#[utoipa::path(
    get,
    path = "/client.js",
    tag = "dashboard",
    security(()),
    responses((status = 200, body = String, content_type = "text/javascript"), ApiErrors)
)]
pub(crate) async fn client(headers: HeaderMap) -> Response {
    let hash = Sha256::digest(CLIENT.as_bytes()).into();
    answer("client.js", Cow::Borrowed(CLIENT.as_bytes()), hash, &headers)
}

/// The pages of `solely demo`, by their names.
pub(crate) async fn demo_page(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, ApiError> {
    let name = plain(&name)?;
    let name = if name.contains('.') { name.to_owned() } else { format!("{name}.html") };
    file(&name, Demo::get(&name), &headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_within_its_folder() {
        for name in ["main.js", "uPlot.min.css", "a-b_c.svg"] {
            assert!(plain(name).is_ok(), "{name}");
        }
        for name in ["..", "../x", "a/b", ".hidden", "a\\b", "é"] {
            assert!(plain(name).is_err(), "{name}");
        }
    }
}
