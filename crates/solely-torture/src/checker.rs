//! The checker: it knows what should be there, and reads the tables with SQL of its own.

use std::path::PathBuf;

use async_trait::async_trait;
use solely_core::StoreError;
use tokio_postgres::NoTls;

use crate::paged::{Run, WORK_DONE, WORK_ITEMS};

/// What a checker needs of a database: one number for one query.
#[async_trait]
pub trait Numbers: Send + Sync {
    /// The number that a query answers.
    async fn number(&self, sql: &str) -> Result<i64, StoreError>;
}

/// A SQLite file, through a connection of the checker's own.
pub struct Sqlite(pub PathBuf);

#[async_trait]
impl Numbers for Sqlite {
    async fn number(&self, sql: &str) -> Result<i64, StoreError> {
        let conn =
            rusqlite::Connection::open(&self.0).map_err(|error| StoreError::Unusable(error.to_string()))?;
        conn.query_row(sql, [], |row| row.get(0)).map_err(|error| StoreError::Refused(error.to_string()))
    }
}

/// A PostgreSQL database, through a connection of the checker's own.
pub struct Postgres(pub String);

#[async_trait]
impl Numbers for Postgres {
    async fn number(&self, sql: &str) -> Result<i64, StoreError> {
        let away = |error: tokio_postgres::Error| StoreError::Unavailable(error.to_string());
        let (client, connection) = tokio_postgres::connect(&self.0, NoTls).await.map_err(away)?;
        let connection = tokio::spawn(connection);
        let row = client.query_one(sql, &[]).await.map_err(away)?;
        drop(client);
        let _ = connection.await;
        Ok(row.get(0))
    }
}

/// How many messages of a run are still to be worked.
pub async fn left(numbers: &dyn Numbers, run: &Run) -> Result<i64, StoreError> {
    let sql = format!(
        "SELECT count(*) FROM jobs WHERE queue = '{WORK_ITEMS}' AND state <= 2 AND key LIKE '{}:%'",
        run.id
    );
    numbers.number(&sql).await
}

/// What is wrong with runs of which nothing is left to be worked: every page exactly once, none
/// stranded, and each settled by the delivery that had it last.
pub async fn violations(numbers: &dyn Numbers, runs: &[Run]) -> Result<Vec<String>, StoreError> {
    let mut wrong = Vec::new();
    for run in runs {
        for (what, sql, expected) in expected(run) {
            let found = numbers.number(&sql).await?;
            if found != i64::try_from(expected).unwrap_or(i64::MAX) {
                wrong.push(format!("{}: {found} {what}, expected {expected}", run.id));
            }
        }
    }
    Ok(wrong)
}

fn expected(run: &Run) -> Vec<(&'static str, String, u64)> {
    let of_run = format!("run_id = '{}'", run.id);
    let of_key = format!("key LIKE '{}:%'", run.id);
    let sum = |column: &str| {
        format!("SELECT CAST(coalesce(sum({column}), 0) AS bigint) FROM worker_runs WHERE {of_run}")
    };
    let of_event = format!("event = 'page_settled' AND subject LIKE 'page:{}:%'", run.id);
    let (records, pages) = (run.partitions * run.records, run.partitions * run.pages());
    vec![
        ("records", format!("SELECT count(*) FROM records WHERE {of_run}"), records),
        ("records counted", sum("records_processed"), records),
        ("pages counted", sum("pages_processed"), pages),
        (
            "complete partitions",
            format!("SELECT count(*) FROM partition_progress WHERE {of_run} AND completed"),
            run.partitions,
        ),
        (
            "partitions at their end",
            format!(
                "SELECT count(*) FROM partition_progress WHERE {of_run} AND next_offset = {}",
                run.records
            ),
            run.partitions,
        ),
        (
            "WORK_DONE messages",
            format!("SELECT count(*) FROM jobs WHERE queue = '{WORK_DONE}' AND {of_key}"),
            run.partitions,
        ),
        (
            "messages of pages",
            format!("SELECT count(*) FROM jobs WHERE queue = '{WORK_ITEMS}' AND {of_key}"),
            pages,
        ),
        ("settlements of pages", format!("SELECT count(*) FROM events WHERE {of_event}"), pages),
        (
            "settlements by a delivery that had lost its page",
            format!(
                "SELECT count(*)
                   FROM events JOIN jobs ON events.subject = 'page:' || jobs.key
                  WHERE {of_event} AND jobs.queue = '{WORK_ITEMS}'
                    AND CAST(events.reason AS bigint) <> jobs.fence"
            ),
            0,
        ),
    ]
}
