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
    ("runs", "SELECT count(*) FROM run_metadata"),
    ("partitions", "SELECT count(*) FROM partition_progress"),
    ("records", "SELECT count(*) FROM records"),
    ("inventories", "SELECT count(*) FROM inventory"),
    ("reservations", "SELECT count(*) FROM reservations"),
    ("waiting list entries", "SELECT count(*) FROM waitlist"),
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
        "a run's counters agree with its partitions",
        "SELECT run_id, completed_workers || ' completed and ' || failed_workers || ' failed of '
                || expected_workers || ' counted'
           FROM run_metadata
          WHERE status <> 'scheduling' AND expected_workers > 0
            AND (completed_workers <> (SELECT count(*) FROM worker_runs
                                        WHERE worker_runs.run_id = run_metadata.run_id
                                          AND worker_runs.status = 'completed')
              OR failed_workers <> (SELECT count(*) FROM worker_runs
                                     WHERE worker_runs.run_id = run_metadata.run_id
                                       AND worker_runs.status = 'failed')
              OR expected_workers <> (SELECT count(*) FROM partition_progress
                                       WHERE partition_progress.run_id = run_metadata.run_id))",
    ),
    (
        "a run's records are those that its partitions counted",
        "SELECT run_id, counted || ' counted, ' || stored || ' seen'
           FROM (SELECT run_id,
                        (SELECT coalesce(sum(records_processed), 0) FROM worker_runs
                          WHERE worker_runs.run_id = run_metadata.run_id) AS counted,
                        (SELECT count(*) FROM seen
                          WHERE seen.feed = run_metadata.feed AND seen.number = run_metadata.number
                            AND seen.kind < 3) AS stored
                   FROM run_metadata
                  WHERE status IN ('running', 'consolidating', 'completed')
                    AND NOT swept AND NOT versions_swept) AS run
          WHERE counted <> stored",
    ),
    (
        "a partition is complete where its work is",
        "SELECT run_id || ' ' || partition_id, 'complete in one row and ' || status || ' in the other'
           FROM partition_progress JOIN worker_runs USING (run_id, partition_id)
          WHERE completed <> (status = 'completed')",
    ),
    (
        "a partition of a running run is complete, has failed or has a job",
        "SELECT progress.run_id || ' ' || progress.partition_id, 'stranded at ' || next_offset
           FROM partition_progress AS progress
           JOIN worker_runs AS worker USING (run_id, partition_id)
           JOIN run_metadata AS of_run USING (run_id)
          WHERE of_run.status = 'running' AND worker.status = 'running'
            AND NOT EXISTS (SELECT 1 FROM jobs
                             WHERE queue = 'work-items' AND live = 1
                               AND key = progress.run_id || ':' || progress.partition_id || ':' || next_offset)",
    ),
    (
        "every box is somewhere",
        "SELECT id, original || ' boxes, of which ' || (remaining + held + paid + collected + withdrawn) || ' are somewhere'
           FROM inventory WHERE original <> remaining + held + paid + collected + withdrawn",
    ),
    (
        "stock agrees with its reservations",
        "SELECT id, held || ' held, ' || paid || ' paid and ' || collected || ' collected by the counters; '
                || of_held || ', ' || of_paid || ' and ' || of_collected || ' by the reservations'
           FROM (SELECT inventory.*,
                        (SELECT coalesce(sum(quantity), 0) FROM reservations AS r
                          WHERE r.inventory_id = inventory.id AND r.status <= 1 AND r.payment = 0) AS of_held,
                        (SELECT coalesce(sum(quantity), 0) FROM reservations AS r
                          WHERE r.inventory_id = inventory.id AND r.status IN (0, 4) AND r.payment = 1) AS of_paid,
                        (SELECT coalesce(sum(quantity), 0) FROM reservations AS r
                          WHERE r.inventory_id = inventory.id AND r.status = 2) AS of_collected
                   FROM inventory) AS item
          WHERE held <> of_held OR paid <> of_paid OR collected <> of_collected",
    ),
    (
        "one open reservation for a user and merchant",
        "SELECT merchant_id || ' ' || user_id, count(*) || ' open reservations'
           FROM reservations WHERE status <= 1 GROUP BY merchant_id, user_id HAVING count(*) > 1",
    ),
    (
        "an offer has its entry, and an entry its offer",
        "SELECT lower(hex(w.id)), 'status ' || w.status || ' with a reservation of another'
           FROM waitlist AS w
          WHERE (w.status = 1) <> EXISTS (SELECT 1 FROM reservations AS r
                                           WHERE r.id = w.reservation_id AND r.status = 1
                                             AND r.inventory_id = w.inventory_id AND r.user_id = w.user_id)",
    ),
    (
        "nothing is free while someone waits who may have it",
        "SELECT i.id, i.remaining || ' free while someone waits'
           FROM inventory AS i
          WHERE i.remaining > 0 AND NOT i.closed
            AND i.pickup_end > (SELECT at FROM events ORDER BY id DESC LIMIT 1)
            AND EXISTS (SELECT 1 FROM waitlist AS w
                         WHERE w.inventory_id = i.id AND w.status = 0
                           AND NOT EXISTS (SELECT 1 FROM reservations AS r
                                            WHERE r.merchant_id = w.merchant_id AND r.user_id = w.user_id
                                              AND r.status <= 1))",
    ),
    (
        "a reservation's columns agree with its state",
        "SELECT lower(hex(id)), 'status ' || status || ' and payment ' || payment || ' with times of another'
           FROM reservations
          WHERE (completed_at IS NOT NULL) <> (status = 2) OR (cancelled_at IS NOT NULL) <> (status = 3)
             OR (status = 2 AND payment <> 1) OR (status <> 3 AND payment = 2)
             OR NOT EXISTS (SELECT 1 FROM inventory WHERE inventory.id = inventory_id
                                AND inventory.merchant_id = reservations.merchant_id)",
    ),
    (
        "one run of a source at a time",
        "SELECT source, count(*) || ' active runs'
           FROM run_metadata WHERE status IN ('scheduling', 'running', 'consolidating')
          GROUP BY source HAVING count(*) > 1",
    ),
    (
        "what is current was consolidated",
        "SELECT source, 'run ' || current_number || ' is current and not completed'
           FROM feeds
          WHERE EXISTS (SELECT 1 FROM run_metadata
                         WHERE run_metadata.feed = feeds.feed AND number = current_number
                           AND status <> 'completed')",
    ),
    (
        "as many records are current as are counted",
        "SELECT source, current_records || ' counted, ' || visible || ' current'
           FROM (SELECT source, current_records,
                        (SELECT count(*) FROM records AS version
                   WHERE version.feed = feeds.feed AND version.number <= current_number AND NOT version.removed
                     AND version.number = (SELECT max(number) FROM records AS later
                                            WHERE later.feed = version.feed AND later.id = version.id
                                              AND later.number <= current_number)) AS visible
                   FROM feeds) AS counted
          WHERE current_records <> visible",
    ),
    (
        "no version is later than its source's last run",
        "SELECT source || ' ' || id, 'version ' || number FROM records JOIN feeds USING (feed)
          WHERE number > last_number",
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
