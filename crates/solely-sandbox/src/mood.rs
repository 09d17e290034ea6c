//! How upstreams behave: slow, failing, throttling, hanging.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use rand::RngExt as _;
use serde::{Deserialize, Serialize};

use crate::Sandbox;

/// How upstreams behave. As it comes: at once, and well.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Mood {
    /// How long an answer takes.
    pub latency_ms: u64,
    /// Of a hundred calls, so many fail with 500.
    pub errors_percent: f64,
    /// Answers 429 for this long,
    pub throttle_for_ms: u64,
    /// at the beginning of every so long.
    pub throttle_every_ms: u64,
    /// Of a hundred calls, so many are never answered.
    pub hangs_percent: f64,
    /// Pages that begin at this offset are never answered.
    pub hang_offset: Option<u64>,
    /// Every call fails with this status.
    pub status: Option<u16>,
    /// Pages that begin at this offset fail with that status (or 400).
    pub bad_offset: Option<u64>,
    /// Every answer is a success that nobody can read,
    pub malformed: bool,
    /// or one that does not end for so many bytes.
    pub bytes: usize,
}

impl Mood {
    /// Waits, and answers with a failure if this call is to fail.
    pub(crate) async fn answer(
        &self,
        sandbox: &Sandbox,
        what: &str,
        offset: Option<u64>,
    ) -> Option<Response> {
        sandbox.called(what);
        sandbox.calls().note_time();
        let next = sandbox.calls().next.pop_front();
        if let Some(status) = next.and_then(|status| StatusCode::from_u16(status).ok()) {
            sandbox.called(&format!("{what} {}", status.as_u16()));
            return Some((status, "as it was told").into_response());
        }
        if self.latency_ms > 0 {
            tokio::time::sleep(Duration::from_millis(self.latency_ms)).await;
        }
        if self.throttles() {
            sandbox.called(&format!("{what} 429"));
            let after = [(header::RETRY_AFTER, "1")];
            return Some((StatusCode::TOO_MANY_REQUESTS, after, "too many requests").into_response());
        }
        let hangs = self.hang_offset.is_some() && self.hang_offset == offset;
        if hangs || Self::chance(self.hangs_percent) {
            sandbox.called(&format!("{what} hang"));
            tokio::time::sleep(Duration::from_secs(3_600)).await;
        }
        let bad = self.bad_offset.is_some() && self.bad_offset == offset;
        let status = match self.status {
            Some(status) if self.bad_offset.is_none() || bad => Some(status),
            None if bad => Some(400),
            _ if Self::chance(self.errors_percent) => Some(500),
            _ => None,
        };
        if self.malformed {
            return Some("{\"sections\": [{\"web\"".into_response());
        }
        if self.bytes > 0 {
            return Some(vec![b' '; self.bytes].into_response());
        }
        let status = StatusCode::from_u16(status?).ok()?;
        sandbox.called(&format!("{what} {}", status.as_u16()));
        Some((status, "as its mood is").into_response())
    }

    fn chance(percent: f64) -> bool {
        percent > 0.0 && rand::rng().random_bool((percent / 100.0).clamp(0.0, 1.0))
    }

    fn throttles(&self) -> bool {
        if self.throttle_every_ms == 0 {
            return false;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        now % u128::from(self.throttle_every_ms) < u128::from(self.throttle_for_ms)
    }
}
