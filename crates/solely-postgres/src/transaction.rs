//! Transactions: opened together with their first statement, run again after a collision, read
//! back after a cut COMMIT.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use deadpool_postgres::Object;
use futures::poll;
use solely_core::StoreError;
use solely_core::clock::Timestamp;
use tokio::sync::Mutex;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, SimpleQueryMessage};

use crate::PostgresStore;
use crate::connection::{Connections, Session};
use crate::error::{is_collision, is_lost, store_error};

/// Parameters of a statement.
pub(crate) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A statement and its values.
pub(crate) struct Write<'a> {
    pub(crate) sql: String,
    pub(crate) values: Vec<Box<dyn ToSql + Sync + Send + 'a>>,
}

impl Write<'_> {
    pub(crate) fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect()
    }
}

/// The answers to BEGIN and to the question for the transaction's id. They are on their way while
/// the first statement is.
type Opening<'a> = Pin<Box<dyn Future<Output = Result<String, Error>> + Send + 'a>>;

/// A transaction.
pub(crate) struct Tx<'a> {
    client: &'a Object,
    links: &'a Connections,
    life: String,
    opening: Mutex<Opening<'a>>,
}

impl<'a> Tx<'a> {
    pub(crate) async fn begin(links: &'a Connections, client: &'a Object) -> Result<Tx<'a>, Error> {
        let mut opening: Opening<'a> = Box::pin(async move {
            let answers = client.simple_query("BEGIN; SELECT pg_current_xact_id()").await?;
            let id = answers.iter().find_map(|answer| match answer {
                SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            });
            Ok(id.unwrap_or_default().to_owned())
        });
        // The first look sends it; nothing needs to wait for its answer before COMMIT.
        let opening = match poll!(&mut opening) {
            std::task::Poll::Ready(opened) => Box::pin(async { opened }),
            std::task::Poll::Pending => opening,
        };
        Ok(Self { client, links, life: links.life(), opening: Mutex::new(opening) })
    }

    /// What is added to the database's clock.
    pub(crate) fn offset_ms(&self) -> i64 {
        self.links.clock.offset_ms()
    }

    /// The store's time now. Asked for after what is decided about has been locked.
    pub(crate) async fn now(&self) -> Result<Timestamp, Error> {
        let row = self.one("SELECT solely_now($1)", &[&self.offset_ms()]).await?;
        Ok(Timestamp::from_millis(row.get(0)))
    }

    /// Runs a prepared statement; rows changed.
    pub(crate) async fn execute(&self, sql: &str, values: Values<'_>) -> Result<u64, Error> {
        let statement = self.client.prepare_cached(sql).await?;
        self.client.execute(&statement, values).await
    }

    /// All rows of a prepared statement.
    pub(crate) async fn query(&self, sql: &str, values: Values<'_>) -> Result<Vec<Row>, Error> {
        let statement = self.client.prepare_cached(sql).await?;
        self.client.query(&statement, values).await
    }

    /// The one row of a prepared statement.
    pub(crate) async fn one(&self, sql: &str, values: Values<'_>) -> Result<Row, Error> {
        let statement = self.client.prepare_cached(sql).await?;
        self.client.query_one(&statement, values).await
    }

    /// All rows of one prepared statement and the one row of another, which does not wait for the
    /// first one's answer to be sent, but runs after it.
    pub(crate) async fn query_then_one(
        &self,
        first: &str,
        values: Values<'_>,
        then: &str,
        then_values: Values<'_>,
    ) -> Result<(Vec<Row>, Row), Error> {
        let first = self.client.prepare_cached(first).await?;
        let then = self.client.prepare_cached(then).await?;
        futures::try_join!(self.client.query(&first, values), self.client.query_one(&then, then_values))
    }

    /// The rows of prepared statements that run one after the other and are sent without waiting for each other's answers:
    /// one round trip, once they are known to the connection.
    pub(crate) async fn in_a_row(&self, statements: &[(&str, Values<'_>)]) -> Result<Vec<Vec<Row>>, Error> {
        // All of them first: one that has yet to be prepared would be sent behind the others.
        let mut prepared = Vec::with_capacity(statements.len());
        for (sql, _) in statements {
            prepared.push(self.client.prepare_cached(sql).await?);
        }
        let sent = prepared
            .iter()
            .zip(statements)
            .map(|(prepared, (_, values))| self.client.query(prepared, values));
        // The first that failed says why; those behind it only that it did.
        futures::future::join_all(sent).await.into_iter().collect()
    }

    /// Runs prepared statements one after the other, in one round trip.
    pub(crate) async fn write_in_a_row(&self, writes: Vec<Write<'_>>) -> Result<(), Error> {
        let values: Vec<Vec<&(dyn ToSql + Sync)>> = writes.iter().map(Write::values).collect();
        let statements: Vec<(&str, Values<'_>)> = writes
            .iter()
            .zip(&values)
            .map(|(write, values)| (write.sql.as_str(), values.as_slice()))
            .collect();
        self.in_a_row(&statements).await.map(drop)
    }

    /// The one row of a prepared statement, if there is one.
    pub(crate) async fn optional(&self, sql: &str, values: Values<'_>) -> Result<Option<Row>, Error> {
        let statement = self.client.prepare_cached(sql).await?;
        self.client.query_opt(&statement, values).await
    }

    /// Runs statements that are used once.
    pub(crate) async fn batch(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await
    }

    /// Commits what went well, rolls back what did not. None: it took longer than it may.
    pub(crate) async fn end<T>(self, outcome: Option<Result<T, Error>>) -> Ended<T> {
        match outcome {
            Some(Ok(value)) => self.commit(value).await,
            Some(Err(error)) if is_lost(&error) => Ended::Lost(error.to_string()),
            Some(Err(error)) => match self.links.within(self.batch("ROLLBACK")).await {
                Some(Ok(())) => Ended::RolledBack(error),
                _ => Ended::Lost(error.to_string()),
            },
            None => Ended::Lost(NO_ANSWER.to_owned()),
        }
    }

    async fn commit<T>(self, value: T) -> Ended<T> {
        let id = match self.links.within(async { self.opening.lock().await.as_mut().await }).await {
            Some(Ok(id)) => id,
            Some(Err(error)) => return Ended::Lost(error.to_string()),
            None => return Ended::Lost(NO_ANSWER.to_owned()),
        };
        match self.links.within(self.batch("COMMIT")).await {
            Some(Ok(())) => Ended::Committed(value),
            Some(Err(error)) if !is_lost(&error) => Ended::RolledBack(error),
            _ => Ended::Cut { value, id, life: self.life },
        }
    }
}

/// How a transaction ended.
pub(crate) enum Ended<T> {
    /// It is true.
    Committed(T),
    /// A statement, or COMMIT itself, was refused: nothing of it is true, and the connection can
    /// be used again.
    RolledBack(Error),
    /// The connection was lost before COMMIT: nothing of it is true.
    Lost(String),
    /// The connection was lost at COMMIT.
    Cut {
        /// What is true if it was committed.
        value: T,
        /// The transaction's id,
        id: String,
        /// in this life of the database.
        life: String,
    },
}

const NO_ANSWER: &str = "the database does not answer";

/// How often a transaction that collides is run.
const TRIES: u32 = 10;

impl Connections {
    /// What a transaction's end means. None if it is to be run again. The connection is back in
    /// the pool, or closed, before anything is waited for.
    pub(crate) async fn conclude<T>(
        &self,
        session: Session,
        ended: Ended<T>,
        tries: &mut u32,
    ) -> Result<Option<T>, StoreError> {
        *tries += 1;
        match ended {
            Ended::Committed(value) => {
                session.give_back();
                Ok(Some(value))
            }
            Ended::RolledBack(error) => {
                session.give_back();
                if !is_collision(&error) || *tries >= TRIES {
                    return Err(store_error(&error));
                }
                tokio::time::sleep(Duration::from_millis(1) * *tries).await;
                Ok(None)
            }
            // The server may have been restarted since this connection was used last.
            Ended::Lost(_) if *tries == 1 => Ok(None),
            Ended::Lost(why) => Err(StoreError::Unavailable(why)),
            Ended::Cut { value, id, life } => {
                drop(session);
                tracing::warn!(transaction = id, "the answer to a COMMIT was lost; reading it back");
                self.read_back(&id, &life).await.map(|()| Some(value))
            }
        }
    }

    /// What became of a transaction whose COMMIT was cut off. If the database has crashed since,
    /// its id may be another's by now, and nobody can say.
    async fn read_back(&self, id: &str, life: &str) -> Result<(), StoreError> {
        let unknown = || StoreError::Unknown("the connection was lost while committing".to_owned());
        for wait in 0..50 {
            tokio::time::sleep(Duration::from_millis(20 * wait.min(10))).await;
            let Ok(client) = self.get().await else { continue };
            let values: Values<'_> = &[&id];
            let asked = client.query_one(
                "SELECT pg_xact_status($1::text::xid8), stats_reset::text FROM pg_stat_bgwriter",
                values,
            );
            let Some(row) = self.within(asked).await else { continue };
            if row.as_ref().is_ok_and(|row| row.get::<_, Option<&str>>(1).unwrap_or_default() != life) {
                return Err(unknown());
            }
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

    /// Answers from one statement outside a transaction. Run again if the connection was lost, or it met another.
    pub(crate) async fn read(&self, sql: &str, values: Values<'_>) -> Result<Vec<Row>, StoreError> {
        for last in [false, true] {
            let session = self.session().await?;
            let rows = async {
                let statement = session.prepare_cached(sql).await?;
                session.query(&statement, values).await
            };
            match self.within(rows).await {
                Some(Ok(rows)) => {
                    session.give_back();
                    return Ok(rows);
                }
                // The server may have been restarted since this connection was used last.
                Some(Err(error)) if !last && is_lost(&error) => {}
                Some(Err(error)) => {
                    let again = !last && is_collision(&error);
                    if !is_lost(&error) {
                        session.give_back();
                    }
                    if !again {
                        return Err(store_error(&error));
                    }
                }
                None => break,
            }
        }
        Err(StoreError::Unavailable(NO_ANSWER.to_owned()))
    }
}

impl PostgresStore {
    pub(crate) async fn read(&self, sql: &str, values: Values<'_>) -> Result<Vec<Row>, StoreError> {
        self.work.read(sql, values).await
    }
}

/// Runs work in a transaction of these [`Connections`] and commits it; run again after a deadlock
/// or a serialisation failure. A macro, because a closure that borrows a transaction and is sent
/// between threads cannot be written down yet.
macro_rules! transact {
    ($links:expr, |$tx:ident| $work:expr) => {{
        let mut tries = 0;
        loop {
            let session = $links.session().await?;
            let ended = match $crate::transaction::Tx::begin(&$links, &session).await {
                Ok(transaction) => {
                    let outcome: Option<Result<_, tokio_postgres::Error>> = {
                        let $tx = &transaction;
                        $links.within(async { $work }).await
                    };
                    transaction.end(outcome).await
                }
                Err(error) => $crate::transaction::Ended::Lost(error.to_string()),
            };
            if let Some(value) = $links.conclude(session, ended, &mut tries).await? {
                break Ok(value);
            }
        }
    }};
}
pub(crate) use transact;
