//! A slow, moody upstream that counts who asks for what.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Json, Router, routing};
use rand::RngExt as _;
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::feeds;

/// What was asked for.
#[derive(Default)]
struct Counts {
    /// How often, by page.
    pages: HashMap<String, u64>,
    /// When, of calls that say nothing else.
    times: Vec<Instant>,
    /// Reads of entries that were compared with the store.
    reads: u64,
    /// What processes found to be wrong.
    violations: Vec<String>,
}

type Calls = Arc<Mutex<Counts>>;

/// The upstream of one torture.
pub struct CountingUpstream {
    /// Where it listens.
    pub address: SocketAddr,
    calls: Calls,
}

impl CountingUpstream {
    /// Serves until the runtime ends.
    pub async fn start() -> Result<Self> {
        let calls = Calls::default();
        let app = Router::new()
            .route("/feed/{source}", routing::get(page))
            .route("/feed/{source}/count", routing::get(count))
            .route("/ping", routing::get(ping))
            .route("/reads", routing::post(reads))
            .route("/violations", routing::post(violation))
            .with_state(calls.clone());
        let listener = TcpListener::bind(("127.0.0.1", solely_testing::free_port())).await?;
        let address = listener.local_addr()?;
        tokio::spawn(async { axum::serve(listener, app).await });
        Ok(Self { address, calls })
    }

    /// How many different pages were asked for, and how often.
    pub fn calls(&self) -> (usize, u64) {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        (calls.pages.len(), calls.pages.values().sum())
    }

    /// Reads of entries that were compared with the store, and what was found to be wrong since the
    /// last time this was asked.
    pub fn entries(&self) -> (u64, Vec<String>) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        (calls.reads, std::mem::take(&mut calls.violations))
    }

    /// When `/ping` was called, in order.
    pub fn pings(&self) -> Vec<Instant> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).times.clone()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    min_price: i64,
    max_price: i64,
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    limit: u64,
}

async fn ping(State(calls): State<Calls>) {
    calls.lock().unwrap_or_else(PoisonError::into_inner).times.push(Instant::now());
}

async fn reads(State(calls): State<Calls>, count: String) {
    calls.lock().unwrap_or_else(PoisonError::into_inner).reads += count.parse().unwrap_or(0);
}

async fn violation(State(calls): State<Calls>, text: String) {
    calls.lock().unwrap_or_else(PoisonError::into_inner).violations.push(text);
}

async fn count(Query(asked): Query<Asked>) -> Json<serde_json::Value> {
    Json(serde_json::json!({"count": feeds::count((asked.min_price, asked.max_price))}))
}

async fn page(
    State(calls): State<Calls>,
    Path(source): Path<String>,
    Query(asked): Query<Asked>,
) -> Result<String, StatusCode> {
    let key = format!("{source}:{}:{}", asked.min_price, asked.offset);
    *calls.lock().unwrap_or_else(PoisonError::into_inner).pages.entry(key).or_default() += 1;
    // Mostly quick, at times much longer than a lock lasts, at times out of order.
    let mood = rand::rng().random_range(0..100);
    let takes = if mood < 4 { rand::rng().random_range(300..1_600) } else { rand::rng().random_range(1..12) };
    tokio::time::sleep(Duration::from_millis(takes)).await;
    if mood == 99 {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    let found = feeds::records(&source, (asked.min_price, asked.max_price), asked.offset, asked.limit);
    let items: Vec<&str> = found.iter().map(|record| record.payload.as_str()).collect();
    Ok(format!(r#"{{"items":[{}]}}"#, items.join(",")))
}
