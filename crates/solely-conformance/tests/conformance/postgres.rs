//! The promises on PostgreSQL: one private server for all tests, one database for each.
//!
//! `cargo xtask test` starts the server and says where in `SOLELY_TEST_POSTGRES`; without it the
//! first test of the process starts one, which ends with the process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use solely_conformance::{Engine, model_job, model_lease, model_reserve};
use solely_core::{Clock, Store};
use solely_postgres::{Options, PostgresStore};
use solely_testing::fresh_database;

struct Postgres {
    url: String,
    clock: Clock,
    store: Arc<PostgresStore>,
}

impl Postgres {
    async fn open(url: &str, clock: &Clock) -> Arc<PostgresStore> {
        let options = Options { clock: clock.clone(), max_connections: 8, ..Options::default() };
        Arc::new(PostgresStore::open(url, &options).await.expect("opens"))
    }
}

#[async_trait]
impl Engine for Postgres {
    async fn fresh() -> Self {
        let (url, clock) = (fresh_database(), Clock::system());
        let store = Self::open(&url, &clock).await;
        Self { url, clock, store }
    }

    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn reopen(&mut self) {
        self.store.close().await;
        self.store = Self::open(&self.url, &self.clock).await;
    }

    fn advance(&self, by: Duration) {
        self.clock.shift_ms(i64::try_from(by.as_millis()).expect("short"));
    }
}

solely_conformance::stamp!(crate::postgres::Postgres);

#[test]
fn jobs_agree_with_a_plain_model() {
    model_job::jobs_agree_with_a_plain_model::<Postgres>(25);
}

#[test]
fn leases_agree_with_a_plain_model() {
    model_lease::leases_agree_with_a_plain_model::<Postgres>(25);
}

#[test]
fn stock_agrees_with_a_plain_model() {
    model_reserve::stock_agrees_with_a_plain_model::<Postgres>(12);
}

#[test]
fn stock_agrees_with_a_plain_model_though_redis_comes_and_goes() {
    model_reserve::stock_agrees_with_a_plain_model_beside::<Postgres>(
        8,
        &crate::beside::FlappingRedis::start(),
    );
}
