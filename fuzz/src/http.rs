//! A request of any route: which one, then a line with what stands in its path and query, then its body.

use std::sync::LazyLock;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use tower::ServiceExt as _;

use crate::stage::on_stage;

/// What a caller waits for an answer that may take its time: a lease that another has.
const PATIENCE: Duration = Duration::from_millis(100);

/// Every route of the description but the socket.
static ROUTES: LazyLock<Vec<(Method, String)>> = LazyLock::new(|| {
    let api = serde_json::to_value(solely_server::openapi()).expect("a description");
    let mut routes = Vec::new();
    for (path, methods) in api["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            if let Ok(method) = Method::from_bytes(method.to_uppercase().as_bytes())
                && path != "/v1/ws"
            {
                routes.push((method, path.clone()));
            }
        }
    }
    routes
});

pub(crate) fn fuzz(data: &[u8]) {
    let Some((which, rest)) = data.split_first() else { return };
    let (method, path) = &ROUTES[usize::from(*which) % ROUTES.len()];
    let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    let (line, body) = (&rest[..end], rest.get(end + 1..).unwrap_or_default());
    let Ok(request) = Request::builder()
        .method(method)
        .uri(uri(path, line))
        .header("host", "127.0.0.1")
        .header("content-type", "application/json")
        .body(Body::from(body.to_vec()))
    else {
        return;
    };
    on_stage(|stage| {
        stage.runtime.block_on(async {
            let answer = tokio::time::timeout(PATIENCE, stage.router.clone().oneshot(request)).await;
            let Ok(Ok(answer)) = answer else { return };
            let status = answer.status();
            assert!(!status.is_server_error(), "{method} {path}: {status}");
            // What is a stream may have no end.
            if status.is_client_error() {
                let body = answer.into_body().collect().await.expect("a body").to_bytes();
                assert_is_error(&body, status);
            }
        });
    });
}

/// The one body of errors.
fn assert_is_error(body: &[u8], status: StatusCode) {
    let text = String::from_utf8_lossy(body);
    let error: serde_json::Value =
        serde_json::from_slice(body).unwrap_or_else(|_| panic!("{status} is no JSON: {text}"));
    for field in ["error", "message", "requestId"] {
        assert!(
            error[field].as_str().is_some_and(|said| !said.is_empty()),
            "{status} without {field}: {text}"
        );
    }
}

/// The path with each part of the line in the place of a name, and what is behind a `?` as its query.
fn uri(path: &str, line: &[u8]) -> String {
    let cut = line.iter().position(|byte| *byte == b'?');
    let (names, query) = line.split_at(cut.unwrap_or(line.len()));
    let mut names = names.split(|byte| *byte == b'/');
    let parts = path.split('/').map(|part| match part.strip_prefix('{') {
        Some(_) => {
            let name = names.next().filter(|name| !name.is_empty()).unwrap_or(b"x");
            percent_encode(name, NON_ALPHANUMERIC).to_string()
        }
        None => part.to_owned(),
    });
    let mut uri = parts.collect::<Vec<_>>().join("/");
    for byte in query {
        match byte {
            b'?' | b'&' | b'=' | b'%' | b'-' | b'.' | b':' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                uri.push(char::from(*byte));
            }
            byte => uri.push_str(percent_encoding::percent_encode_byte(*byte)),
        }
    }
    uri
}
