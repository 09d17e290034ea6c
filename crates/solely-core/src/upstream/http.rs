//! Asking upstreams over HTTP: answers bounded in size, refusals told apart.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::Value;

use crate::clock::Timestamp;
use crate::limits;
use crate::upstream::{CallFailed, UpstreamError};

/// A client for all upstreams of a process. Clones share its connections.
#[derive(Clone)]
pub struct HttpClient {
    client: reqwest::Client,
}

/// Whether a client can speak to servers over TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Yes, trusting the authorities of the system, which takes a moment to read.
    SystemAuthorities,
    /// To none of them.
    Nobody,
}

impl Tls {
    /// What it takes to speak to these URLs.
    pub fn for_urls<'a>(mut urls: impl Iterator<Item = &'a str>) -> Self {
        if urls.any(|url| url.starts_with("https://")) { Self::SystemAuthorities } else { Self::Nobody }
    }
}

/// A client to be made.
pub fn builder(tls: Tls) -> reqwest::ClientBuilder {
    let mut roots = rustls::RootCertStore::empty();
    if tls == Tls::SystemAuthorities {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider knows them")
        .with_root_certificates(roots)
        .with_no_client_auth();
    reqwest::Client::builder().tls_backend_preconfigured(config)
}

/// What goes with a request.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ask<'a> {
    pub(crate) query: &'a [(&'static str, String)],
    pub(crate) bearer: Option<&'a str>,
    pub(crate) headers: &'a [(&'static str, String)],
    pub(crate) trace: Option<&'a str>,
    /// What is asked holds a secret, which a refusal might repeat: its words are not told.
    pub(crate) private: bool,
    /// Whether a refusal, by its status and its words, says that a quota is used up, and how long to wait then.
    pub(crate) quota: Option<fn(StatusCode, &str) -> Option<Duration>>,
}

impl HttpClient {
    /// A client that follows no redirects: where an upstream is comes from the configuration alone.
    pub fn new(tls: Tls) -> Result<Self, reqwest::Error> {
        let client = builder(tls)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("solely/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build()?;
        Ok(Self { client })
    }

    pub(crate) async fn get(&self, url: &str, ask: &Ask<'_>) -> Result<Vec<u8>, CallFailed<UpstreamError>> {
        self.send(self.client.get(url), ask).await
    }

    pub(crate) async fn post(
        &self,
        url: &str,
        ask: &Ask<'_>,
        body: &Value,
    ) -> Result<Vec<u8>, CallFailed<UpstreamError>> {
        self.send(self.client.post(url).json(body), ask).await
    }

    /// Posts a text that is JSON, to the letter.
    pub(crate) async fn post_text(
        &self,
        url: &str,
        ask: &Ask<'_>,
        json: String,
    ) -> Result<Vec<u8>, CallFailed<UpstreamError>> {
        let request = self.client.post(url).header(reqwest::header::CONTENT_TYPE, "application/json");
        self.send(request.body(json), ask).await
    }

    async fn send(
        &self,
        mut request: RequestBuilder,
        ask: &Ask<'_>,
    ) -> Result<Vec<u8>, CallFailed<UpstreamError>> {
        if !ask.query.is_empty() {
            request = request.query(ask.query);
        }
        if let Some(token) = ask.bearer {
            request = request.bearer_auth(token);
        }
        for (name, value) in ask.headers {
            request = request.header(*name, value);
        }
        if let Some(trace) = ask.trace {
            request = request.header("traceparent", trace);
        }
        let answer = request.send().await.map_err(unreachable)?;
        if answer.status().is_success() { body(answer).await } else { Err(refusal(answer, ask).await) }
    }
}

fn unreachable(error: reqwest::Error) -> CallFailed<UpstreamError> {
    // The URL may hold a secret; what is wrong is in the causes.
    let error = error.without_url();
    let mut why = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(deeper) = cause {
        why = format!("{why}: {deeper}");
        cause = deeper.source();
    }
    CallFailed { error: UpstreamError::Transient(why), blame: true, retry_after: None }
}

async fn body(mut answer: Response) -> Result<Vec<u8>, CallFailed<UpstreamError>> {
    // Where nothing is stated there is room for whatever may come; what is not written to takes no memory.
    let stated = answer.content_length().map(|stated| usize::try_from(stated).unwrap_or(usize::MAX));
    let room = within(stated.unwrap_or(limits::ANSWER_BYTES_MAX))?;
    let mut body = Vec::with_capacity(stated.unwrap_or(0).min(LIKELY));
    while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
        let length = within(body.len() + chunk.len())?;
        if length > body.capacity().max(LIKELY) {
            // Moved this once, and not with every doubling: what was left behind would count for a while.
            body.reserve_exact(room.max(length) - body.len());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// An answer of so many bytes is read, unless it is larger than any may be.
fn within(length: usize) -> Result<usize, CallFailed<UpstreamError>> {
    if length <= limits::ANSWER_BYTES_MAX {
        return Ok(length);
    }
    let why = format!("the answer is larger than {} bytes", limits::ANSWER_BYTES_MAX);
    Err(CallFailed { error: UpstreamError::Permanent(why), blame: false, retry_after: None })
}

/// What a status other than success means.
async fn refusal(mut answer: Response, ask: &Ask<'_>) -> CallFailed<UpstreamError> {
    let (status, retry_after) = (answer.status(), retry_after(answer.headers()));
    let reset =
        Some(answer.headers()).filter(|_| status == StatusCode::TOO_MANY_REQUESTS).and_then(reset_after);
    // The beginning of what it says may help whoever reads the error.
    let said = answer.chunk().await.ok().flatten().unwrap_or_default();
    let said = String::from_utf8_lossy(&said[..said.len().min(REFUSAL_BYTES)]).into_owned();
    let quota = ask.quota.and_then(|quota| quota(status, &said));
    let retry_after = retry_after.or(reset).or(quota);
    let said: String = if ask.private { String::new() } else { said.chars().take(200).collect() };
    let why = format!("the upstream answered {status}{}{said}", if said.is_empty() { "" } else { ": " });
    let may_pass = status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
        );
    // One that asks for no time at all is tried again like any other that failed, ever later.
    let asked = retry_after.is_some_and(|wait| !wait.is_zero());
    let error = match status {
        StatusCode::TOO_MANY_REQUESTS if asked => UpstreamError::Throttled(why),
        _ if quota.is_some() => UpstreamError::Throttled(why),
        _ if may_pass => UpstreamError::Transient(why),
        _ => UpstreamError::Permanent(why),
    };
    CallFailed { error, blame: status.is_server_error(), retry_after }
}

/// An answer that is not what it should be: asking again would not help.
pub(crate) fn unreadable(what: impl std::fmt::Display) -> CallFailed<UpstreamError> {
    let error = UpstreamError::Permanent(format!("the answer cannot be read: {what}"));
    CallFailed { error, blame: false, retry_after: None }
}

/// How long it asks to be left alone: in seconds, or until a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_zoned(text).ok()?;
    let until = Timestamp::from_millis(date.timestamp().as_millisecond());
    Some(until.since(crate::Clock::system().now()))
}

/// When a used up quota is there again, where one says so: `X-RateLimit-Remaining` and `X-RateLimit-Reset`, in
/// seconds, a number for each of its windows.
fn reset_after(headers: &HeaderMap) -> Option<Duration> {
    let numbers = |name: &str| -> Option<Vec<u64>> {
        let text = headers.get(name)?.to_str().ok()?;
        text.split(',').map(|number| number.trim().parse().ok()).collect()
    };
    let resets = numbers("x-ratelimit-reset")?;
    let remaining = numbers("x-ratelimit-remaining").unwrap_or_default();
    let used_up = |nth: usize| remaining.get(nth).is_none_or(|left| *left == 0);
    let longest = resets.iter().enumerate().filter(|(nth, _)| used_up(*nth)).map(|(_, reset)| *reset).max();
    longest.or_else(|| resets.first().copied()).map(Duration::from_secs)
}

/// What is read of a refusal.
const REFUSAL_BYTES: usize = 4_096;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// What is made room for because an answer says it is so large.
const LIKELY: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().expect("a header"));
            retry_after(&headers)
        };
        assert_eq!(of("7"), Some(Duration::from_secs(7)));
        assert_eq!(of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let later = of("Fri, 01 Jan 2100 00:00:00 GMT").expect("a date");
        assert!(later > Duration::from_secs(1_000_000));
        assert_eq!(of("soon"), None);
    }

    #[test]
    fn the_window_that_is_used_up_says_when() {
        let of = |remaining: &str, reset: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-ratelimit-remaining", remaining.parse().expect("a header"));
            headers.insert("x-ratelimit-reset", reset.parse().expect("a header"));
            reset_after(&headers).map(|after| after.as_secs())
        };
        assert_eq!(of("0, 14523", "1, 1419704"), Some(1));
        assert_eq!(of("0, 0", "1, 3600"), Some(3_600));
        assert_eq!(of("1, 1", "7, 9"), Some(7));
        assert_eq!(of("0", "soon"), None);
    }
}
