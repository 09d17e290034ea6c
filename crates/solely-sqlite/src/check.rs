//! What `solely check` verifies, as queries that find what must not be.

use async_trait::async_trait;
use rusqlite::{Connection, Error};
use solely_core::StoreError;
use solely_core::check::{CheckReport, CheckStore, Violation};

use crate::SqliteStore;

#[async_trait]
impl CheckStore for SqliteStore {
    async fn check(&self) -> Result<CheckReport, StoreError> {
        self.read(check).await
    }
}

const COUNTED: &[(&str, &str)] = &[
    ("jobs", "SELECT count(*) FROM jobs"),
    ("live jobs", "SELECT count(*) FROM jobs WHERE live = 1"),
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
        "SELECT lower(hex(id)), 'state ' || state || ' with columns of another'
           FROM jobs
          WHERE (live IS 1) <> (state <= 2)
             OR (due_at IS NOT NULL) <> (state <= 1)
             OR (ends_at IS NOT NULL) <> (state >= 2)
             OR (process IS NOT NULL) <> (state = 2)",
    ),
    (
        "no more attempts than allowed",
        "SELECT lower(hex(id)), attempts || ' attempts of ' || max_attempts
           FROM jobs WHERE attempts > max_attempts",
    ),
    (
        "a running job has been delivered",
        "SELECT lower(hex(id)), 'running with fence ' || fence FROM jobs WHERE state = 2 AND fence < 1",
    ),
    (
        "keys of one lease agree",
        "SELECT lower(hex(lease)), 'keys with different fences or ends'
           FROM leases GROUP BY lease HAVING min(fence) <> max(fence) OR min(expires_at) <> max(expires_at)",
    ),
    (
        "no fence above the counter",
        "SELECT key, 'fence ' || fence FROM leases WHERE fence > (SELECT value FROM counters WHERE name = 'fence')",
    ),
    (
        "an entry ages in order",
        "SELECT space || ' ' || key, 'ends before it begins to age'
           FROM entries WHERE NOT (updated_at <= fresh_until AND fresh_until <= stale_until AND stale_until <= keep_until)",
    ),
    (
        "a partition's counter agrees with its records",
        "SELECT run_id || ' ' || partition_id,
                records_processed || ' counted, ' || stored || ' stored'
           FROM (SELECT run_id, partition_id, records_processed,
                        (SELECT count(*) FROM records
                          WHERE records.run_id = worker_runs.run_id
                            AND records.partition_id = worker_runs.partition_id) AS stored
                   FROM worker_runs)
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
                             WHERE queue = 'work-items' AND live = 1
                               AND key = run_id || ':' || partition_id || ':' || next_offset)",
    ),
];

fn check(conn: &Connection) -> Result<CheckReport, Error> {
    // One snapshot: what is read later is of the same moment. (A store in memory is read by its
    // writer, inside a transaction already.)
    let own = if conn.is_autocommit() { Some(conn.unchecked_transaction()?) } else { None };
    let snapshot: &Connection = own.as_deref().unwrap_or(conn);
    let mut report = CheckReport::default();
    for (what, sql) in COUNTED {
        let count: i64 = snapshot.query_row(sql, [], |row| row.get(0))?;
        report.counted.push(((*what).to_owned(), u64::try_from(count).unwrap_or(0)));
    }
    for (rule, sql) in RULES {
        let mut find = snapshot.prepare(&format!("{sql} LIMIT {}", CheckReport::VIOLATIONS_MAX))?;
        let found = find.query_map([], |row| {
            Ok(Violation { rule: (*rule).to_owned(), subject: row.get(0)?, message: row.get(1)? })
        })?;
        for violation in found {
            report.violations.push(violation?);
        }
    }
    Ok(report)
}
