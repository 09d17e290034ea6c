//! A Redis beside a store, which comes and goes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use solely_conformance::model_reserve::Beside;
use solely_core::Store;
use solely_core::bus::Bus;
use solely_core::companion::Companion;
use solely_core::config::ReserveConfig;
use solely_core::metrics::Metrics;
use solely_core::queue::Jobs;
use solely_core::reserve::{Reserve, ReserveParts};
use solely_redis::{Options, Redis};
use solely_testing::RedisServer;
use tokio::sync::Mutex;

pub(crate) struct FlappingRedis {
    url: String,
    server: Mutex<(RedisServer, bool)>,
}

impl FlappingRedis {
    pub(crate) fn start() -> Self {
        let server = RedisServer::start();
        Self { url: server.url(), server: Mutex::new((server, true)) }
    }
}

#[async_trait]
impl Beside for FlappingRedis {
    async fn reserve(&self, store: Arc<dyn Store>) -> Reserve {
        let metrics = Arc::new(Metrics::default());
        let short = Duration::from_millis(200);
        let options = Options { connect_timeout: short, command_timeout: short, ..Options::default() };
        let redis = Redis::open(&self.url, options, store.clone(), metrics.clone()).await.expect("opens");
        let companion: Arc<dyn Companion> = Arc::new(redis);
        let jobs = Jobs::new(store, Bus::new(), metrics);
        Reserve::new(
            ReserveParts { jobs, companion: Some(companion), client: None },
            &ReserveConfig::default(),
        )
    }

    async fn flap(&self) {
        let (server, up) = &mut *self.server.lock().await;
        if *up {
            server.crash();
        } else {
            server.start_again();
        }
        *up = !*up;
    }
}
