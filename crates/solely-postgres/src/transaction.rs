//! Transactions: run again after a collision, read back after a cut COMMIT.

use std::time::Duration;

use deadpool_postgres::{Object, Transaction};
use solely_core::clock::Timestamp;
use solely_core::{Clock, StoreError};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use crate::PostgresStore;
use crate::error::{is_collision, pool_error, store_error};

/// Parameters of a statement.
pub(crate) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A transaction, or a savepoint within one.
pub(crate) struct Tx<'a> {
    inner: Transaction<'a>,
    clock: &'a Clock,
}

impl Tx<'_> {
    /// The store's time now. Asked for after what is decided about has been locked.
    pub(crate) async fn now(&self) -> Result<Timestamp, Error> {
        let row = self.one("SELECT solely_now($1)", &[&self.clock.offset_ms()]).await?;
        Ok(Timestamp::from_millis(row.get(0)))
    }

    /// Runs a prepared statement; rows changed.
    pub(crate) async fn execute(&self, sql: &str, values: Values<'_>) -> Result<u64, Error> {
        let statement = self.inner.prepare_cached(sql).await?;
        self.inner.execute(&statement, values).await
    }

    /// All rows of a prepared statement.
    pub(crate) async fn query(&self, sql: &str, values: Values<'_>) -> Result<Vec<Row>, Error> {
        let statement = self.inner.prepare_cached(sql).await?;
        self.inner.query(&statement, values).await
    }

    /// The one row of a prepared statement.
    pub(crate) async fn one(&self, sql: &str, values: Values<'_>) -> Result<Row, Error> {
        let statement = self.inner.prepare_cached(sql).await?;
        self.inner.query_one(&statement, values).await
    }

    /// The one row of a prepared statement, if there is one.
    pub(crate) async fn optional(&self, sql: &str, values: Values<'_>) -> Result<Option<Row>, Error> {
        let statement = self.inner.prepare_cached(sql).await?;
        self.inner.query_opt(&statement, values).await
    }

    /// Runs statements that are used once.
    pub(crate) async fn batch(&self, sql: &str) -> Result<(), Error> {
        self.inner.batch_execute(sql).await
    }

    /// A part that can be undone alone.
    pub(crate) async fn savepoint(&mut self) -> Result<Tx<'_>, Error> {
        let inner = self.inner.savepoint("part").await?;
        Ok(Tx { inner, clock: self.clock })
    }

    /// Keeps a savepoint's part.
    pub(crate) async fn keep(self) -> Result<(), Error> {
        self.inner.commit().await
    }

    /// Undoes a savepoint's part, or the transaction.
    pub(crate) async fn undo(self) -> Result<(), Error> {
        self.inner.rollback().await
    }
}

/// How often a transaction that collides is run.
const TRIES: u32 = 10;

impl PostgresStore {
    pub(crate) async fn connection(&self) -> Result<Object, StoreError> {
        self.pool.get().await.map_err(|error| pool_error(&error))
    }

    pub(crate) async fn begin<'a>(&'a self, client: &'a mut Object) -> Result<Tx<'a>, StoreError> {
        let inner = client.transaction().await.map_err(|error| store_error(&error))?;
        Ok(Tx { inner, clock: &self.clock })
    }

    /// Commits what went well. None if it collided and is to be run again.
    pub(crate) async fn finish<T>(
        &self,
        tx: Tx<'_>,
        outcome: Result<T, Error>,
        tries: &mut u32,
    ) -> Result<Option<T>, StoreError> {
        let committed = match outcome {
            Ok(value) => self.commit(tx, value).await,
            Err(error) => {
                let _ = tx.undo().await;
                Err(Failed::Statement(error))
            }
        };
        *tries += 1;
        match committed {
            Ok(value) => Ok(Some(value)),
            Err(Failed::Statement(error)) if is_collision(&error) && *tries < TRIES => {
                tokio::time::sleep(Duration::from_millis(1) * *tries).await;
                Ok(None)
            }
            Err(Failed::Statement(error)) => Err(store_error(&error)),
            Err(Failed::Commit(error)) => Err(error),
        }
    }

    async fn commit<T>(&self, tx: Tx<'_>, value: T) -> Result<T, Failed> {
        let id: Option<String> = tx
            .one("SELECT pg_current_xact_id_if_assigned()::text", &[])
            .await
            .map_err(Failed::Statement)?
            .get(0);
        match tx.inner.commit().await {
            Ok(()) => Ok(value),
            Err(error) if error.code().is_some() => Err(Failed::Statement(error)),
            Err(error) => {
                tracing::warn!(%error, "the answer to a COMMIT was lost; reading it back");
                self.read_back(id).await.map(|()| value).map_err(Failed::Commit)
            }
        }
    }

    /// What became of a transaction whose COMMIT was cut off.
    async fn read_back(&self, id: Option<String>) -> Result<(), StoreError> {
        let Some(id) = id else { return Ok(()) };
        let unknown = || StoreError::Unknown("the connection was lost while committing".to_owned());
        for wait in 0..50 {
            tokio::time::sleep(Duration::from_millis(20 * wait.min(10))).await;
            let Ok(client) = self.connection().await else { continue };
            let row = client.query_one("SELECT pg_xact_status($1::text::xid8)", &[&id]).await;
            match row.as_ref().map(|row| row.get::<_, Option<&str>>(0)) {
                Ok(Some("committed")) => return Ok(()),
                Ok(Some("aborted")) => {
                    return Err(StoreError::Unavailable(
                        "the connection was lost before committing".to_owned(),
                    ));
                }
                Ok(None) => return Err(unknown()),
                Ok(Some(_)) | Err(_) => {}
            }
        }
        Err(unknown())
    }

    /// Answers from one statement outside a transaction.
    pub(crate) async fn read(&self, sql: &str, values: Values<'_>) -> Result<Vec<Row>, StoreError> {
        let client = self.connection().await?;
        let rows = async {
            let statement = client.prepare_cached(sql).await?;
            client.query(&statement, values).await
        };
        rows.await.map_err(|error| store_error(&error))
    }
}

enum Failed {
    /// A statement, or COMMIT itself, was refused: nothing of the transaction is true.
    Statement(Error),
    /// COMMIT was cut off, and this is what was read back.
    Commit(StoreError),
}

/// Runs work in a transaction and commits it; run again after a deadlock or a serialisation
/// failure. A macro, because a closure that borrows a transaction and is sent between threads
/// cannot be written down yet.
macro_rules! transact {
    ($store:expr, |$tx:ident| $work:expr) => {{
        let mut tries = 0;
        loop {
            let mut client = $store.connection().await?;
            let mut transaction = $store.begin(&mut client).await?;
            let outcome: Result<_, tokio_postgres::Error> = {
                let $tx = &mut transaction;
                $work
            };
            if let Some(value) = $store.finish(transaction, outcome, &mut tries).await? {
                break Ok(value);
            }
        }
    }};
}
pub(crate) use transact;
