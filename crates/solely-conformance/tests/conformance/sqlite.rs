//! The promises on the embedded engine.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use solely_conformance::{Engine, model_job, model_lease, model_reserve};
use solely_core::{Clock, Store};
use solely_sqlite::{Options, SqliteStore};
use tempfile::TempDir;

struct Sqlite {
    folder: TempDir,
    clock: Clock,
    store: Arc<SqliteStore>,
}

impl Sqlite {
    fn open(folder: &TempDir, clock: &Clock) -> Arc<SqliteStore> {
        let url = format!("sqlite:{}", folder.path().join("solely.db").display());
        let options = Options { clock: clock.clone(), ..Options::default() };
        Arc::new(SqliteStore::open(&url, &options).expect("opens"))
    }
}

#[async_trait]
impl Engine for Sqlite {
    async fn fresh() -> Self {
        let folder = TempDir::new().expect("a folder");
        let clock = Clock::system();
        let store = Self::open(&folder, &clock);
        Self { folder, clock, store }
    }

    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn reopen(&mut self) {
        self.store.close().await;
        self.store = Self::open(&self.folder, &self.clock);
    }

    fn advance(&self, by: Duration) {
        self.clock.shift_ms(i64::try_from(by.as_millis()).expect("short"));
    }
}

solely_conformance::stamp!(crate::sqlite::Sqlite);

#[test]
fn jobs_agree_with_a_plain_model() {
    model_job::jobs_agree_with_a_plain_model::<Sqlite>(120);
}

#[test]
fn leases_agree_with_a_plain_model() {
    model_lease::leases_agree_with_a_plain_model::<Sqlite>(120);
}

#[test]
fn stock_agrees_with_a_plain_model() {
    model_reserve::stock_agrees_with_a_plain_model::<Sqlite>(60);
}

#[test]
fn stock_agrees_with_a_plain_model_though_redis_comes_and_goes() {
    model_reserve::stock_agrees_with_a_plain_model_beside::<Sqlite>(
        25,
        &crate::beside::FlappingRedis::start(),
    );
}
