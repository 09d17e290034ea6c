//! Coverage-guided fuzzing of whatever comes from outside: bodies of requests, messages on sockets, answers of upstreams,
//! configurations, copies in Redis and stored jobs.
//!
//! `SOLELY_FUZZ` names the target; everything else is libFuzzer's. Each target runs the program's own code from where such
//! bytes come in, on an embedded store in memory, and ends the process if it panics, answers with a server error, breaks
//! the shape of errors, or does not answer.

#![no_main]

mod config;
mod http;
mod socket;
mod stage;
mod stored;
mod upstream;

use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| match std::env::var("SOLELY_FUZZ").as_deref() {
    Ok("http") => http::fuzz,
    Ok("socket") => socket::fuzz,
    Ok("upstream") => upstream::fuzz,
    Ok("config") => config::fuzz,
    Ok("stored") => stored::fuzz,
    other => panic!("SOLELY_FUZZ is http, socket, upstream, config or stored, not {other:?}"),
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));
