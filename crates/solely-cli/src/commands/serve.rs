//! `solely serve`.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use solely_core::config::{AuthMode, Config};
use solely_core::metrics::Metrics;
use solely_core::systems::{self, Own, Systems, SystemsParts};
use solely_server::{Access, App, Parts, Runtime};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Failed;
use crate::config::{self, Flags};
use crate::{logging, redis, store};

pub(crate) fn run(file: Option<&Path>, listen: Option<SocketAddr>) -> Result<(), Failed> {
    let config = config::load(file, Flags { listen })?.config;
    logging::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let app = app(&config).await?;
        let beside = Runtime { retention: (&config.retention).into(), grace: config.server.shutdown_grace.0 };
        let address = config.server.listen;
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        let stop = stop_on_signal()?;
        tokio::spawn(give_memory_back());
        tracing::info!(address = %listener.local_addr()?, store = app.store.kind(), "solely is ready");
        solely_server::serve(listener, app, beside, stop).await;
        tracing::info!("solely has stopped");
        Ok(())
    })
}

/// Everything that a configuration names, put together.
pub(crate) async fn app(config: &Config) -> Result<App, Failed> {
    let store = store::open(&config.store, solely_sqlite::Access::Serve).await?;
    let metrics = Arc::new(Metrics::new(&systems::queues(config)));
    let companion = redis::open(&config.redis, systems::forms(config), &store, &metrics).await?;
    let secret = Some(config.auth.jwt_secret.as_str()).filter(|secret| !secret.is_empty());
    if secret.is_some_and(|secret| secret.len() < GUESSED_BYTES) {
        tracing::warn!("`auth.jwt_secret` has fewer than {GUESSED_BYTES} bytes: it could be found by trying");
    }
    let access = match config.auth.mode {
        AuthMode::None => Access::open(),
        AuthMode::Keys => Access::by_keys(store.clone(), secret),
    };
    let systems = Systems::new(config, SystemsParts { store, companion, metrics, own: Own::default() })?;
    Ok(App::new(Parts {
        systems,
        access,
        cors_origins: config.server.cors_origins.clone(),
        max_body: config.server.max_body.0,
        max_in_flight: config.server.max_in_flight,
        queue_depth: config.alerts.queue_depth,
    }))
}

/// The allocator looks at what it may give back to the system when a large piece of memory comes or goes, and keeps
/// everything while nobody asks for anything. So one does, now and then.
async fn give_memory_back() {
    let mut ticks = tokio::time::interval(GIVE_BACK_EVERY);
    loop {
        ticks.tick().await;
        drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGE)));
    }
}

/// Longer than the allocator keeps what is unused.
const GIVE_BACK_EVERY: std::time::Duration = std::time::Duration::from_secs(3);
/// A piece of memory that no two others share a page with.
const LARGE: usize = 4 << 20;

/// Cancelled by SIGTERM or SIGINT. A second one ends the process at once.
pub(super) fn stop_on_signal() -> std::io::Result<CancellationToken> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        for again in [false, true] {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            if again {
                std::process::exit(130);
            }
            tracing::info!("told to stop; finishing what is under way");
            stopping.cancel();
        }
    });
    Ok(stop)
}

/// A secret that is shorter can be found by trying.
const GUESSED_BYTES: usize = 16;
