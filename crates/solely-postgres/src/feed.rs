//! The page transaction: progress by compare-and-set, then records and counters.

use solely_core::clock::Timestamp;
use solely_core::feed::{FailPartition, Page};
use tokio_postgres::Error;

use crate::Tx;
use crate::row::signed;

/// Writes a page if its partition is where the page begins. False, and nothing, otherwise.
pub(crate) async fn write_page(tx: &Tx<'_>, page: &Page, now: Timestamp) -> Result<bool, Error> {
    if page.offset == 0 {
        begin_partition(tx, page, now).await?;
    }
    let advanced = tx
        .execute(
            "UPDATE partition_progress
                SET next_offset = $4, completed = $5, updated_at = $6
              WHERE run_id = $1 AND partition_id = $2 AND next_offset = $3 AND NOT completed",
            &[
                &page.run_id,
                &page.partition_id,
                &signed(page.offset),
                &signed(page.next_offset),
                &page.last,
                &now.as_millis(),
            ],
        )
        .await?;
    if advanced == 0 {
        return Ok(false);
    }
    let new_records = upsert_records(tx, page, now).await?;
    tx.execute(
        "UPDATE worker_runs
            SET records_processed = records_processed + $3, pages_processed = pages_processed + 1,
                status = CASE WHEN $4 THEN 'completed' ELSE 'running' END, error = NULL
          WHERE run_id = $1 AND partition_id = $2",
        &[&page.run_id, &page.partition_id, &new_records, &page.last],
    )
    .await?;
    Ok(true)
}

async fn begin_partition(tx: &Tx<'_>, page: &Page, now: Timestamp) -> Result<(), Error> {
    tx.execute(
        "INSERT INTO partition_progress (run_id, partition_id, created_at, updated_at) VALUES ($1, $2, $3, $3)
         ON CONFLICT DO NOTHING",
        &[&page.run_id, &page.partition_id, &now.as_millis()],
    )
    .await?;
    tx.execute(
        "INSERT INTO worker_runs (run_id, partition_id, status) VALUES ($1, $2, 'running') ON CONFLICT DO NOTHING",
        &[&page.run_id, &page.partition_id],
    )
    .await
    .map(drop)
}

/// Writes the page's records, sorted by id, and counts those that the run had not seen.
async fn upsert_records(tx: &Tx<'_>, page: &Page, now: Timestamp) -> Result<i64, Error> {
    let mut records: Vec<(&str, &str)> =
        page.records.iter().map(|record| (record.id.as_str(), record.payload.as_str())).collect();
    records.sort_unstable();
    records.dedup_by_key(|(id, _)| *id);
    let (ids, payloads): (Vec<&str>, Vec<&str>) = records.into_iter().unzip();
    let row = tx
        .one(
            "WITH written AS (
                 INSERT INTO records (run_id, id, partition_id, payload, updated_at)
                 SELECT $1::text, page.id, $2::text, page.payload, $5::bigint
                   FROM unnest($3::text[], $4::text[]) AS page (id, payload)
                     ON CONFLICT (run_id, id) DO UPDATE
                    SET payload = excluded.payload, updated_at = excluded.updated_at
                  WHERE records.payload <> excluded.payload
                 RETURNING xmax = 0 AS is_new
             )
             SELECT count(*) FILTER (WHERE is_new) FROM written",
            &[&page.run_id, &page.partition_id, &ids, &payloads, &now.as_millis()],
        )
        .await?;
    Ok(row.get(0))
}

/// Marks a partition as failed, if it is still running.
pub(crate) async fn fail_partition(tx: &Tx<'_>, failed: &FailPartition) -> Result<bool, Error> {
    let changed = tx
        .execute(
            "INSERT INTO worker_runs (run_id, partition_id, status, error) VALUES ($1, $2, 'failed', $3)
             ON CONFLICT (run_id, partition_id) DO UPDATE SET status = 'failed', error = excluded.error
                                                       WHERE worker_runs.status = 'running'",
            &[&failed.run_id, &failed.partition_id, &failed.error],
        )
        .await?;
    Ok(changed == 1)
}
