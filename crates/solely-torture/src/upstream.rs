//! A slow, moody upstream that counts who asks for what.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router, routing};
use rand::RngExt as _;
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::feeds;
use crate::places::Waiting;

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
    /// How often places were looked up, but for calls that failed.
    places: HashMap<String, u64>,
    /// How often the products of users were called for, but for calls that failed.
    users: HashMap<String, u64>,
    /// Reservations that somebody was told to have.
    held: HashSet<String>,
    /// Requests that wait, and since when someone listens.
    waiting: BTreeMap<String, (Waiting, Option<Instant>)>,
    /// Requests that have heard of everything.
    heard: u64,
    /// Calls that it failed, throttled, left unanswered or answered with nonsense.
    troubles: u64,
    /// Nothing can be written: what is asked for now cannot be remembered, and is asked for again.
    forgetful: bool,
}

/// How long someone may listen before another does: it may have died.
const LISTENS_FOR: Duration = Duration::from_secs(30);

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
            .route("/finder", routing::post(find))
            .route("/plugin/{operation}", routing::post(products))
            .route("/held", routing::post(held))
            .route("/waiting", routing::post(waits))
            .route("/listen", routing::post(listen))
            .route("/heard", routing::post(heard))
            .route("/ping", routing::get(ping))
            .route("/reads", routing::post(reads))
            .route("/violations", routing::post(violation))
            .with_state(calls.clone());
        let listener = TcpListener::bind(("127.0.0.1", solely_testing::free_port())).await?;
        let address = listener.local_addr()?;
        tokio::spawn(async { axum::serve(listener, app).await });
        Ok(Self { address, calls })
    }

    /// Whether those who ask can remember the answer. Calls of those who cannot are not counted.
    pub fn set_forgetful(&self, forgetful: bool) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).forgetful = forgetful;
    }

    /// Calls that it failed, throttled, left unanswered or answered with nonsense.
    pub fn troubles(&self) -> u64 {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).troubles
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

    /// Places that were looked up, and how often each was, but for calls that failed.
    pub fn places(&self) -> HashMap<String, u64> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).places.clone()
    }

    /// Users whose products were called for, and how often, but for calls that failed.
    pub fn users(&self) -> HashMap<String, u64> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).users.clone()
    }

    /// Reservations that somebody was told to have.
    pub fn held(&self) -> HashSet<String> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).held.clone()
    }

    /// Requests that wait, and how many have heard of everything.
    pub fn waiting(&self) -> (Vec<Waiting>, u64) {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        (calls.waiting.values().map(|(waiting, _)| waiting.clone()).collect(), calls.heard)
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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sought {
    place_id: String,
}

/// Counts a call, and takes its time over it. At times it fails, in one way or another, which is not counted as a call.
async fn answers(calls: &Calls, count: impl FnOnce(&mut Counts)) -> Result<(), Response> {
    let mood = rand::rng().random_range(0..100);
    let takes = if mood < 4 { rand::rng().random_range(300..1_600) } else { rand::rng().random_range(5..60) };
    {
        let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
        if mood < 96 {
            if !calls.forgetful {
                count(&mut calls);
            }
        } else {
            calls.troubles += 1;
        }
    }
    tokio::time::sleep(Duration::from_millis(takes)).await;
    Err(match mood {
        ..96 => return Ok(()),
        96 => throttled(),
        97 => "{\"status\":".into_response(),
        98 => {
            tokio::time::sleep(HANGS_FOR).await;
            StatusCode::GATEWAY_TIMEOUT.into_response()
        }
        _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    })
}

/// It wants to be left alone for a second.
fn throttled() -> Response {
    (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")]).into_response()
}

/// Longer than anybody waits for it.
const HANGS_FOR: Duration = Duration::from_secs(7);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Called {
    user_id: String,
}

async fn products(
    State(calls): State<Calls>,
    Json(called): Json<Called>,
) -> Result<Json<serde_json::Value>, Response> {
    answers(&calls, |calls| *calls.users.entry(called.user_id.clone()).or_default() += 1).await?;
    let product = serde_json::json!({"productId": called.user_id, "productName": "Kayak", "options": [{"optionId": "o"}]});
    Ok(Json(serde_json::json!({"products": [product]})))
}

async fn find(
    State(calls): State<Calls>,
    Json(sought): Json<Sought>,
) -> Result<Json<serde_json::Value>, Response> {
    answers(&calls, |calls| *calls.places.entry(sought.place_id.clone()).or_default() += 1).await?;
    let url = format!("https://wolt.com/{}", sought.place_id);
    Ok(Json(serde_json::json!({"status": "FOUND", "url": url})))
}

async fn held(State(calls): State<Calls>, id: String) {
    calls.lock().unwrap_or_else(PoisonError::into_inner).held.insert(id);
}

async fn waits(State(calls): State<Calls>, Json(waiting): Json<Waiting>) {
    let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    calls.waiting.insert(waiting.request.clone(), (waiting, None));
}

/// A request that nobody listens to, if there is one.
async fn listen(State(calls): State<Calls>) -> Json<Option<Waiting>> {
    let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    let alone = |(_, since): &&mut (Waiting, Option<Instant>)| {
        since.is_none_or(|since: Instant| since.elapsed() > LISTENS_FOR)
    };
    let found = calls.waiting.values_mut().find(alone);
    Json(found.map(|(waiting, since)| {
        *since = Some(Instant::now());
        waiting.clone()
    }))
}

async fn heard(State(calls): State<Calls>, request: String) {
    let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    calls.heard += u64::from(calls.waiting.remove(&request).is_some());
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
) -> Result<String, Response> {
    let key = format!("{source}:{}:{}", asked.min_price, asked.offset);
    *calls.lock().unwrap_or_else(PoisonError::into_inner).pages.entry(key).or_default() += 1;
    // Mostly quick, at times much longer than a lock lasts, at times out of order.
    let mood = rand::rng().random_range(0..400);
    let takes =
        if mood < 16 { rand::rng().random_range(300..1_600) } else { rand::rng().random_range(1..12) };
    tokio::time::sleep(Duration::from_millis(takes)).await;
    if mood >= 395 {
        calls.lock().unwrap_or_else(PoisonError::into_inner).troubles += 1;
        return Err(if mood == 395 { throttled() } else { StatusCode::SERVICE_UNAVAILABLE.into_response() });
    }
    let found = feeds::records(&source, (asked.min_price, asked.max_price), asked.offset, asked.limit);
    let items: Vec<&str> = found.iter().map(|record| record.payload.as_str()).collect();
    Ok(format!(r#"{{"items":[{}]}}"#, items.join(",")))
}
