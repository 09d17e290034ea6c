//! One look at each topic, in the shapes that the routes have.

use serde_json::{Value, json};
use solely_core::StoreError;
use solely_core::clock::Timestamp;
use solely_core::job::JobState;
use solely_core::limits;
use solely_core::queue::JobFilter;
use solely_core::reserve::{
    InventoryFilter, InventoryStatus, Reservation, ReservationFilter, ReservationStatus,
};

use super::totals::Totals;
use crate::App;
use crate::routes::job::ShownJob;
use crate::routes::run;

/// What the overview is shown, and what is remembered of it.
pub(super) struct Overview {
    pub(super) data: Value,
    pub(super) totals: Totals,
}

/// Counters, queues, upstreams, alerts. What the store cannot say while it is away is left out.
pub(super) async fn overview(app: &App, since: Timestamp, now: Timestamp) -> Overview {
    let queues = app.store.queues().await;
    let upstreams = app.upstreams.status(&*app.store).await.unwrap_or_default();
    let alerts = app.alerts.evaluate(&*app.store, &app.upstreams, &app.feed).await.unwrap_or_default();
    let calls = upstreams.iter().map(|upstream| upstream.calls).sum();
    let failures = upstreams.iter().map(|upstream| upstream.failures).sum();
    let totals = Totals::read(&app.metrics.text(), calls, failures);
    let redis = app.companion.as_ref().map(|companion| companion.ok());
    let data = json!({
        "at": now,
        "since": since,
        "store": {"kind": app.store.kind(), "ok": queues.is_ok()},
        "redis": {"configured": redis.is_some(), "ok": redis.unwrap_or(false)},
        "totals": totals.object(),
        "queues": queues.unwrap_or_default(),
        "upstreams": upstreams,
        "alerts": alerts,
    });
    Overview { data, totals }
}

/// Runs of a page.
const RUNS: u32 = 12;
/// Jobs of a page.
const JOBS: u32 = 50;

pub(super) async fn runs(app: &App) -> Result<Value, StoreError> {
    let runs = app.store.runs(None, None, RUNS).await?;
    let shown: Vec<_> = runs.into_iter().map(|state| run::shown(app, state)).collect();
    Ok(json!({"items": shown, "sources": app.feed.sources().map(|source| &source.name).collect::<Vec<_>>()}))
}

pub(super) async fn jobs(app: &App) -> Result<Value, StoreError> {
    let page = |state| JobFilter { state, limit: JOBS, ..JobFilter::default() };
    let newest = app.store.jobs(page(None)).await?;
    let dead = app.store.jobs(page(Some(JobState::Dead))).await?;
    let shown = |jobs: Vec<_>| jobs.into_iter().map(ShownJob::from).collect::<Vec<_>>();
    Ok(json!({"items": shown(newest), "dead": shown(dead)}))
}

pub(super) async fn leases(app: &App) -> Result<Value, StoreError> {
    let held = app.leases.held(None, limits::DASHBOARD_ITEMS).await?;
    let shown = held.into_iter().map(|(held, waiters)| {
        let mut shown = json!(held);
        shown["waiters"] = waiters.into();
        shown
    });
    Ok(json!({"items": shown.collect::<Vec<_>>()}))
}

/// Boxes on offer and who has some. What one collects with is nobody else's business.
pub(super) async fn boxes(app: &App) -> Result<Value, StoreError> {
    let mut items = Vec::new();
    for status in [InventoryStatus::Active, InventoryStatus::SoldOut] {
        let filter = InventoryFilter {
            status: Some(status),
            limit: limits::DASHBOARD_ITEMS,
            ..InventoryFilter::default()
        };
        items.extend(app.reserve.inventories(filter).await?);
    }
    let mut holds = Vec::new();
    for status in [ReservationStatus::Offered, ReservationStatus::Active] {
        let filter = ReservationFilter {
            status: Some(status),
            limit: limits::DASHBOARD_ITEMS,
            ..ReservationFilter::default()
        };
        holds.extend(app.reserve.reservations(filter).await?.iter().map(without_code));
    }
    Ok(json!({"items": items, "holds": holds}))
}

fn without_code(reservation: &Reservation) -> Value {
    let mut shown = json!(reservation);
    if let Some(fields) = shown.as_object_mut() {
        fields.remove("pickupCode");
    }
    shown
}
