//! A second worker that dies with its work in hand, again and again, and is replaced.
//!
//! It is a process as far as the store knows: it has an identity and a heartbeat, and claims jobs in its
//! own name. It lives in a runtime of its own, which is dropped from one instruction to the next. What it
//! had claimed is free when it has been silent for five seconds, and the server does it.

use std::time::Duration;

use solely_core::ProcessId;
use solely_core::limits;
use solely_core::liveness::Beat;
use solely_core::worker::Worker;
use solely_server::App;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const LIVES: Duration = Duration::from_secs(20);
const MOURNED: Duration = Duration::from_secs(12);

/// Starts one, lets it die, and starts another, until told to stop.
pub(crate) fn keep_replacing(app: App, stop: CancellationToken) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let Ok(life) = begin(&app) else { return };
            let stopped = stop.run_until_cancelled(tokio::time::sleep(LIVES)).await.is_none();
            // Nothing of it is waited for, released or settled.
            life.shutdown_background();
            if stopped || stop.run_until_cancelled(tokio::time::sleep(MOURNED)).await.is_none() {
                return;
            }
        }
    })
}

fn begin(app: &App) -> std::io::Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let process = ProcessId::random();
    let worker =
        Worker { jobs: app.jobs.clone(), process, queues: app.enrich.queues(), grace: Duration::ZERO };
    let store = app.store.clone();
    runtime.spawn(async move {
        loop {
            let beat = Beat { process, dead_after: limits::DEAD_AFTER };
            let _ = store.beat(beat).await;
            tokio::time::sleep(limits::BEAT_EVERY).await;
        }
    });
    runtime.spawn(worker.run(CancellationToken::new()));
    Ok(runtime)
}
