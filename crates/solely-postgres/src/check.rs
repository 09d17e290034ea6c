//! What `solely check` verifies, as queries that find what must not be.

use async_trait::async_trait;
use deadpool_postgres::Object;
use solely_core::StoreError;
use solely_core::check::{CheckReport, CheckStore, Violation};
use tokio_postgres::Error;

use crate::PostgresStore;
use crate::error::store_error;

#[async_trait]
impl CheckStore for PostgresStore {
    async fn check(&self) -> Result<CheckReport, StoreError> {
        let client = self.work.session().await?;
        let report = check(&client).await.map_err(|error| store_error(&error))?;
        client.give_back();
        Ok(report)
    }
}

const COUNTED: &[(&str, &str)] = &[
    ("jobs", "SELECT count(*) FROM jobs"),
    ("live jobs", "SELECT count(*) FROM jobs WHERE state <= 2"),
    ("dead letters", "SELECT count(*) FROM jobs WHERE state = 4"),
    ("leases", "SELECT count(*) FROM leases"),
    ("entries", "SELECT count(*) FROM entries"),
    ("events", "SELECT count(*) FROM events"),
    ("partitions", "SELECT count(*) FROM partition_progress"),
    ("records", "SELECT count(*) FROM records"),
];

/// A rule, and a query for (subject, message) of whatever breaks it.
const RULES: &[(&str, &str)] = &[
    (
        "one live job per key",
        "SELECT queue || ' ' || key, count(*) || ' live jobs'
           FROM jobs WHERE state <= 2 GROUP BY queue, key HAVING count(*) > 1",
    ),
    (
        "columns agree with the state",
        "SELECT id::text, 'state ' || state || ' with columns of another'
           FROM jobs
          WHERE (due_at IS NOT NULL) <> (state <= 1)
             OR (ends_at IS NOT NULL) <> (state >= 2)
             OR (process IS NOT NULL) <> (state = 2)",
    ),
    (
        "no more attempts than allowed",
        "SELECT id::text, attempts || ' attempts of ' || max_attempts FROM jobs WHERE attempts > max_attempts",
    ),
    (
        "a running job has been delivered",
        "SELECT id::text, 'running with fence ' || fence FROM jobs WHERE state = 2 AND fence < 1",
    ),
    (
        "keys of one lease agree",
        "SELECT lease::text, 'keys with different fences or ends'
           FROM leases GROUP BY lease HAVING min(fence) <> max(fence) OR min(expires_at) <> max(expires_at)",
    ),
    (
        "no fence above the counter",
        "SELECT key, 'fence ' || fence FROM leases WHERE fence > (SELECT last_value FROM fences)",
    ),
    (
        "an entry ages in order",
        "SELECT space || ' ' || key, 'ends before it begins to age'
           FROM entries
          WHERE NOT (updated_at <= fresh_until AND fresh_until <= stale_until AND stale_until <= keep_until)",
    ),
    (
        "a partition's counter agrees with its records",
        "SELECT run_id || ' ' || partition_id, records_processed || ' counted, ' || stored || ' stored'
           FROM (SELECT run_id, partition_id, records_processed,
                        (SELECT count(*) FROM records
                          WHERE records.run_id = worker_runs.run_id
                            AND records.partition_id = worker_runs.partition_id) AS stored
                   FROM worker_runs) AS counted
          WHERE records_processed <> stored",
    ),
    (
        "a partition that is not complete has a job or has failed",
        "SELECT run_id || ' ' || partition_id, 'stranded at ' || next_offset
           FROM partition_progress
           JOIN worker_runs USING (run_id, partition_id)
          WHERE NOT completed
            AND status <> 'failed'
            AND NOT EXISTS (SELECT 1 FROM jobs
                             WHERE queue = 'work-items' AND state <= 2
                               AND key = run_id || ':' || partition_id || ':' || next_offset)",
    ),
];

async fn check(client: &Object) -> Result<CheckReport, Error> {
    // One snapshot: what is read later is of the same moment. Whole tables are read here, so the
    // planner may go about it as it likes.
    client
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = 0")
        .await?;
    client
        .batch_execute(&PLANNING_OF_WHOLE_TABLES.map(|way| format!("SET LOCAL {way} = on")).join(";"))
        .await?;
    let mut report = CheckReport::default();
    for (what, sql) in COUNTED {
        let count: i64 = client.query_one(*sql, &[]).await?.get(0);
        report.counted.push(((*what).to_owned(), u64::try_from(count).unwrap_or(0)));
    }
    for (rule, sql) in RULES {
        let rows = client.query(&format!("{sql} LIMIT {}", CheckReport::VIOLATIONS_MAX), &[]).await?;
        report.violations.extend(rows.iter().map(|row| Violation {
            rule: (*rule).to_owned(),
            subject: row.get(0),
            message: row.get(1),
        }));
    }
    client.batch_execute("COMMIT").await?;
    Ok(report)
}

const PLANNING_OF_WHOLE_TABLES: [&str; 5] =
    ["enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_material"];
