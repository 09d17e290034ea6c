//! The page transaction: progress by compare-and-set, then records and counters.

use std::collections::BTreeMap;

use solely_core::clock::Timestamp;
use solely_core::feed::{FailPartition, Page};
use tokio_postgres::Error;

use crate::Tx;
use crate::row::signed;

/// Writes a page if its partition is where the page begins. False, and nothing, otherwise.
pub(crate) async fn write_page(tx: &Tx<'_>, page: &Page, now: Timestamp) -> Result<bool, Error> {
    // In the order of their ids; of one id twice in a page, the last.
    let records: BTreeMap<&str, &str> =
        page.records.iter().map(|record| (record.id.as_str(), record.payload.as_str())).collect();
    let (ids, payloads): (Vec<&str>, Vec<&str>) = records.into_iter().unzip();
    let row = tx
        .one(
            "SELECT solely_write_page($1, $2, $3, $4, $5, $6, $7, $8)",
            &[
                &page.run_id,
                &page.partition_id,
                &signed(page.offset),
                &signed(page.next_offset),
                &page.last,
                &ids,
                &payloads,
                &now.as_millis(),
            ],
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
