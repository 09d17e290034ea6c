//! The checker: it knows what should be there, and reads the tables with SQL of its own.

use std::collections::HashSet;
use std::path::PathBuf;

use async_trait::async_trait;
use solely_core::StoreError;
use solely_core::feed::{CONSOLIDATE, WORK_DONE, WORK_ITEMS};
use tokio_postgres::NoTls;

use crate::feeds::{PAGES, PARTITIONS, RECORDS, Run};

/// What a checker needs of a database: one number for one query, or its texts.
#[async_trait]
pub trait Numbers: Send + Sync {
    /// The number that a query answers.
    async fn number(&self, sql: &str) -> Result<i64, StoreError>;

    /// The texts that a query answers.
    async fn texts(&self, sql: &str) -> Result<Vec<String>, StoreError>;

    /// How an id is written as 32 digits.
    fn digits(&self, column: &str) -> String;
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

    async fn texts(&self, sql: &str) -> Result<Vec<String>, StoreError> {
        let texts = || {
            let conn = rusqlite::Connection::open(&self.0)?;
            conn.prepare(sql)?.query_map([], |row| row.get(0))?.collect::<Result<Vec<_>, _>>()
        };
        texts().map_err(|error| StoreError::Refused(error.to_string()))
    }

    fn digits(&self, column: &str) -> String {
        format!("lower(hex({column}))")
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

    async fn texts(&self, sql: &str) -> Result<Vec<String>, StoreError> {
        let away = |error: tokio_postgres::Error| StoreError::Unavailable(error.to_string());
        let (client, connection) = tokio_postgres::connect(&self.0, NoTls).await.map_err(away)?;
        let connection = tokio::spawn(connection);
        let rows = client.query(sql, &[]).await.map_err(away)?;
        drop(client);
        let _ = connection.await;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    fn digits(&self, column: &str) -> String {
        format!("replace({column}::text, '-', '')")
    }
}

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has ended.
    Ended,
    /// It is active, and a message carries it.
    Active,
    /// It is active, and nothing carries it. There is no moment at which that may be.
    Stranded,
}

/// How a run stands, at one moment.
pub async fn standing(numbers: &dyn Numbers, run: &Run) -> Result<Standing, StoreError> {
    let sql = format!(
        "SELECT CAST(CASE WHEN status NOT IN ('scheduling', 'running', 'consolidating') THEN 0
                          WHEN EXISTS (SELECT 1 FROM jobs WHERE state <= 2 AND key LIKE '%{0}%') THEN 1
                          ELSE 2 END AS bigint)
           FROM run_metadata WHERE run_id = '{0}'",
        run.id
    );
    Ok(match numbers.number(&sql).await? {
        0 => Standing::Ended,
        1 => Standing::Active,
        _ => Standing::Stranded,
    })
}

/// What is wrong with runs of which nothing is left to be worked: every page exactly once, none
/// stranded, each settled by the delivery that had it last, consolidated once.
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
    let of_key = format!("key LIKE '%{}:%'", run.id);
    let sum = |column: &str| {
        format!("SELECT CAST(coalesce(sum({column}), 0) AS bigint) FROM worker_runs WHERE {of_run}")
    };
    let of_event = format!("event = 'page_settled' AND subject LIKE 'page:{}:%'", run.id);
    let (records, pages) = (PARTITIONS * RECORDS, PARTITIONS * PAGES);
    let of_partitions =
        |what: &str| format!("SELECT count(*) FROM partition_progress WHERE {of_run} AND {what}");
    vec![
        (
            "records seen",
            format!(
                "SELECT count(*) FROM seen JOIN run_metadata USING (feed, number) WHERE {of_run} AND kind < 3"
            ),
            records,
        ),
        ("records counted", sum("records_processed"), records),
        ("pages counted", sum("pages_processed"), pages),
        ("complete partitions", of_partitions("completed"), PARTITIONS),
        ("partitions at their end", of_partitions(&format!("next_offset = {RECORDS}")), PARTITIONS),
        (
            "WORK_DONE messages",
            format!("SELECT count(*) FROM jobs WHERE queue = '{WORK_DONE}' AND {of_key}"),
            PARTITIONS,
        ),
        (
            "messages of pages",
            format!("SELECT count(*) FROM jobs WHERE queue = '{WORK_ITEMS}' AND {of_key}"),
            pages,
        ),
        (
            "consolidations",
            format!("SELECT count(*) FROM jobs WHERE queue = '{CONSOLIDATE}' AND key LIKE '%{}'", run.id),
            1,
        ),
        (
            "completed runs with all partitions",
            format!(
                "SELECT count(*) FROM run_metadata
                  WHERE {of_run} AND status = 'completed' AND completed_workers = {PARTITIONS}
                    AND expected_workers = {PARTITIONS} AND added + changed + unchanged = {records}
                    AND removed = 0"
            ),
            1,
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

/// Reservations that are there, by the digits of their ids, and how many of them time has ended.
pub async fn reservations(of: &dyn Numbers) -> Result<(HashSet<String>, u64), StoreError> {
    let rows = of.texts(&format!("SELECT {} FROM reservations", of.digits("id"))).await?;
    let expired = of.number("SELECT count(*) FROM reservations WHERE status = 4").await?;
    Ok((rows.into_iter().collect(), u64::try_from(expired).unwrap_or(0)))
}

/// What is wrong with stock at this moment, counted from the reservations.
pub async fn boxes(of: &dyn Numbers) -> Result<Vec<String>, StoreError> {
    let mut wrong = of
        .texts(
            "SELECT id || ': ' || held || ' held, and ' || taken || ' by its reservations: stock is wrong'
               FROM (SELECT id, held, (SELECT coalesce(sum(quantity), 0) FROM reservations AS r
                                        WHERE r.inventory_id = inventory.id AND r.status <= 1 AND r.payment = 0) AS taken
                       FROM inventory) AS counted
              WHERE held <> taken",
        )
        .await?;
    wrong.extend(
        of.texts(
            "SELECT user_id || ': has ' || count(*) || ' open reservations at ' || merchant_id
               FROM reservations WHERE status <= 1 GROUP BY user_id, merchant_id HAVING count(*) > 1",
        )
        .await?,
    );
    Ok(wrong)
}

/// Takes away the index that keeps one open reservation for a user and merchant.
pub async fn drop_the_index_of_open_reservations(of: &dyn Numbers) -> Result<(), StoreError> {
    of.texts("DROP INDEX reservations_open").await.map(drop)
}
