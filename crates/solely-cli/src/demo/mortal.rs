//! A second worker that dies with its work in hand, again and again, and is replaced.
//!
//! It is a process as far as the store knows: it has an identity and a heartbeat, and claims jobs in its
//! own name. It lives in a runtime of its own, which is dropped from one instruction to the next, once its
//! time has come and there is a job in its hands. What it had claimed is free when it has been silent for
//! five seconds, and the server does it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use solely_core::ProcessId;
use solely_core::job::Job;
use solely_core::limits;
use solely_core::liveness::Beat;
use solely_core::worker::{Delivery, Done, Failure, Handler, Worker};
use solely_server::App;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const LIVES: Duration = Duration::from_secs(20);
const MOURNED: Duration = Duration::from_secs(12);

/// Starts one, lets it die, and starts another, until told to stop.
pub(crate) fn keep_replacing(app: App, stop: CancellationToken) -> JoinHandle<()> {
    tokio::spawn(async move {
        while let Ok(life) = Life::begin(&app) {
            let stopped = stop.run_until_cancelled(life.to_its_end()).await.is_none();
            // Nothing of it is waited for, released or settled.
            life.runtime.shutdown_background();
            if stopped || stop.run_until_cancelled(tokio::time::sleep(MOURNED)).await.is_none() {
                return;
            }
        }
    })
}

/// One worker, from its first heartbeat to its last.
struct Life {
    runtime: Runtime,
    /// Its time has come: the next job is its last.
    over: CancellationToken,
    /// A job is in its hands, and will not be done by them.
    in_hand: Arc<Notify>,
}

impl Life {
    fn begin(app: &App) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (over, in_hand) = (CancellationToken::new(), Arc::new(Notify::new()));
        let process = ProcessId::random();
        let mut queues = app.enrich.queues();
        for queue in &mut queues {
            let handler = queue.handler.clone();
            queue.handler = Arc::new(Hands { handler, over: over.clone(), in_hand: in_hand.clone() });
        }
        let worker = Worker { jobs: app.jobs.clone(), process, queues, grace: Duration::ZERO };
        let store = app.store.clone();
        runtime.spawn(async move {
            loop {
                let beat = Beat { process, dead_after: limits::DEAD_AFTER };
                let _ = store.beat(beat).await;
                tokio::time::sleep(limits::BEAT_EVERY).await;
            }
        });
        runtime.spawn(worker.run(CancellationToken::new()));
        Ok(Self { runtime, over, in_hand })
    }

    async fn to_its_end(&self) {
        tokio::time::sleep(LIVES).await;
        self.over.cancel();
        self.in_hand.notified().await;
    }
}

/// Does the work of a queue, until the end.
struct Hands {
    handler: Arc<dyn Handler>,
    over: CancellationToken,
    in_hand: Arc<Notify>,
}

#[async_trait]
impl Handler for Hands {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        if let Some(done) = self.over.run_until_cancelled(self.handler.handle(delivery)).await {
            return done;
        }
        self.in_hand.notify_one();
        std::future::pending().await
    }

    fn died(&self, job: &Job, error: &str) -> Done {
        self.handler.died(job, error)
    }
}
