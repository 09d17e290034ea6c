//! Fresh stores to measure.

use std::sync::Arc;

use anyhow::Result;
use solely_core::Store;
use solely_postgres::PostgresStore;
use solely_sqlite::SqliteStore;
use solely_testing::PostgresServer;
use tempfile::TempDir;
use tokio_postgres::NoTls;

pub(crate) fn sqlite(folder: &TempDir) -> Result<Arc<dyn Store>> {
    let url = format!("sqlite:{}", folder.path().join("bench.db").display());
    Ok(Arc::new(SqliteStore::open(&url, &solely_sqlite::Options::default())?))
}

/// A private server, with the settings it has when it is installed: every commit is durable.
pub(crate) struct Postgres(PostgresServer);

impl Postgres {
    pub(crate) fn start() -> Self {
        Self(PostgresServer::start())
    }

    /// A database of its own; those of earlier rounds are dropped.
    pub(crate) async fn database(&self) -> Result<String> {
        let (client, connection) = tokio_postgres::connect(&self.0.url(), NoTls).await?;
        tokio::spawn(connection);
        for row in client.query("SELECT datname FROM pg_database WHERE datname LIKE 'bench_%'", &[]).await? {
            let old: &str = row.get(0);
            client.batch_execute(&format!("DROP DATABASE {old} WITH (FORCE)")).await?;
        }
        let name = format!("bench_{}", uuid::Uuid::now_v7().simple());
        client.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        client.batch_execute("CHECKPOINT").await?;
        Ok(format!("postgres://postgres@127.0.0.1:{}/{name}", self.0.port()))
    }

    /// A store in a database of its own.
    pub(crate) async fn store(&self) -> Result<Arc<dyn Store>> {
        store_at(&self.database().await?).await
    }
}

/// A store in a database that is there.
pub(crate) async fn store_at(url: &str) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(PostgresStore::open(url, &solely_postgres::Options::default()).await?))
}
