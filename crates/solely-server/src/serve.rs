//! From a listener to an orderly end.
//!
//! Told to stop, the server takes no new connection and no new job, lets requests and
//! deliveries finish for the grace period, releases the rest, and says that its process leaves,
//! so that nobody waits for its locks. The heartbeat goes on until the last delivery is settled.

use std::time::Duration;

use solely_core::store::Retention;
use solely_core::systems::Work;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{App, listen, router};

/// What runs beside the HTTP server.
pub struct Runtime {
    /// How long finished things are kept.
    pub retention: Retention,
    /// How long requests and deliveries may go on once it is told to stop.
    pub grace: Duration,
}

/// Serves until `stop`, then drains.
pub async fn serve(listener: TcpListener, app: App, runtime: Runtime, stop: CancellationToken) {
    let grace = runtime.grace.saturating_sub(SETTLING.min(runtime.grace / 4));
    let app = app.with(|app| app.stop = stop.clone());
    let work = Work { more: Vec::new(), retention: runtime.retention, grace, stop: stop.clone() };
    let (systems, working) = (app.systems.clone(), app.systems.work(work));
    let alerts = tokio::spawn(stop.clone().run_until_cancelled_owned(watch_alerts(app.clone())));
    let sockets = app.sockets.clone();
    listen::serve(listener, router(app), &stop, grace).await;
    let _ = tokio::time::timeout(SETTLING, sockets.closed()).await;
    let _ = alerts.await;
    working.ended().await;
    systems.close().await;
}

/// Judges alerts now and then, so that they know since when they fire.
async fn watch_alerts(app: App) {
    let mut ticks = tokio::time::interval(ALERTS_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = app.alerts.evaluate(&*app.store, &app.upstreams, &app.feed).await {
            tracing::debug!(%error, "alerts cannot be judged");
        }
    }
}

const ALERTS_EVERY: Duration = Duration::from_secs(10);

/// What is kept of the grace for releasing, settling and leaving.
const SETTLING: Duration = Duration::from_secs(2);
