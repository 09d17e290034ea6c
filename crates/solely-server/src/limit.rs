//! Bounds on what is under way: past them a request is refused at once, and nothing grows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use solely_core::access::Caller;
use solely_core::limits;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::App;
use crate::error::ApiError;

/// What is under way in this process.
#[derive(Clone)]
pub(crate) struct Load {
    requests: Arc<Semaphore>,
    callers: Arc<Mutex<HashMap<String, Bucket>>>,
}

/// What a caller has left of its rate.
struct Bucket {
    left: f64,
    at: Instant,
}

impl Load {
    /// A process with so many requests under way at most.
    pub(crate) fn new(requests: usize) -> Self {
        Self { requests: Arc::new(Semaphore::new(requests)), callers: Arc::default() }
    }
}

/// Routes that an operator needs most when there is too much of everything.
const ALWAYS: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// A place for a request among those under way, while it is held; none where one is not needed.
pub(crate) fn place<'a>(app: &'a App, request: &Request) -> Result<Option<SemaphorePermit<'a>>, ApiError> {
    if ALWAYS.contains(&request.uri().path()) {
        return Ok(None);
    }
    app.load.requests.try_acquire().map(Some).map_err(|_| {
        let message = "There are as many requests under way as there may be.";
        let refused = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "OVERLOADED", message);
        refused.retry_after(Duration::from_secs(1))
    })
}

/// Refuses a caller that asks more often than it may. Whoever is not known is not counted: there is
/// no access control then, or the route is open.
pub(crate) fn check_rate(app: &App, caller: &Caller) -> Result<(), ApiError> {
    if *caller == Caller::Anyone {
        return Ok(());
    }
    let Some(wait) = app.load.take(&caller.name(), Instant::now()) else { return Ok(()) };
    let message = format!("At most {} requests a second.", limits::CALLER_RATE);
    let refused = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_REQUESTS", message);
    Err(refused.retry_after(wait))
}

impl Load {
    /// Takes one from a caller's rate; how long until there is one, if there is none.
    fn take(&self, caller: &str, now: Instant) -> Option<Duration> {
        let (rate, most) = (f64::from(limits::CALLER_RATE), f64::from(limits::CALLER_BURST));
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if callers.len() >= CALLERS_MAX && !callers.contains_key(caller) {
            // Those whose bucket is full again are as if they had never asked.
            callers.retain(|_, bucket| {
                bucket.left + now.saturating_duration_since(bucket.at).as_secs_f64() * rate < most
            });
        }
        let bucket = callers.entry(caller.to_owned()).or_insert(Bucket { left: most, at: now });
        let grown = bucket.left + now.saturating_duration_since(bucket.at).as_secs_f64() * rate;
        *bucket = Bucket { left: grown.min(most), at: now };
        if bucket.left < 1.0 {
            return Some(Duration::from_secs_f64((1.0 - bucket.left) / rate));
        }
        bucket.left -= 1.0;
        None
    }
}

/// Callers that are remembered at once: full buckets are forgotten beyond that.
const CALLERS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_has_a_burst_and_then_its_rate() {
        let (load, now) = (Load::new(1), Instant::now());
        for _ in 0..limits::CALLER_BURST {
            assert_eq!(load.take("a", now), None);
        }
        let wait = load.take("a", now).expect("is refused");
        assert_eq!(load.take("b", now), None, "another has its own");
        assert_eq!(load.take("a", now + wait), None);
        assert!(load.take("a", now + wait).is_some());
    }
}
