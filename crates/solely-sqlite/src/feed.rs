//! The page transaction: progress by compare-and-set, then records and counters.

use rusqlite::{Error, params};
use solely_core::feed::{FailPartition, Page};

use crate::row::signed;
use crate::writer::Tx;

/// Writes a page if its partition is where the page begins. False, and nothing, otherwise.
pub(crate) fn write_page(tx: &Tx<'_>, page: &Page) -> Result<bool, Error> {
    begin_partition(tx, page)?;
    let mut advance = tx.conn.prepare_cached(
        "UPDATE partition_progress
            SET next_offset = ?4, completed = ?5, updated_at = ?6
          WHERE run_id = ?1 AND partition_id = ?2 AND next_offset = ?3 AND NOT completed",
    )?;
    let advanced = advance.execute(params![
        page.run_id,
        page.partition_id,
        signed(page.offset),
        signed(page.next_offset),
        page.last,
        tx.now_ms(),
    ])?;
    if advanced == 0 {
        return Ok(false);
    }
    let new_records = upsert_records(tx, page)?;
    let mut count = tx.conn.prepare_cached(
        "UPDATE worker_runs
            SET records_processed = records_processed + ?3, pages_processed = pages_processed + 1,
                status = iif(?4, 'completed', 'running'), error = NULL
          WHERE run_id = ?1 AND partition_id = ?2",
    )?;
    count.execute(params![page.run_id, page.partition_id, new_records, page.last])?;
    Ok(true)
}

fn begin_partition(tx: &Tx<'_>, page: &Page) -> Result<(), Error> {
    if page.offset > 0 {
        return Ok(());
    }
    let mut progress = tx.conn.prepare_cached(
        "INSERT INTO partition_progress (run_id, partition_id, created_at, updated_at) VALUES (?1, ?2, ?3, ?3)
         ON CONFLICT DO NOTHING",
    )?;
    progress.execute(params![page.run_id, page.partition_id, tx.now_ms()])?;
    let mut run = tx.conn.prepare_cached(
        "INSERT INTO worker_runs (run_id, partition_id, status) VALUES (?1, ?2, 'running') ON CONFLICT DO NOTHING",
    )?;
    run.execute(params![page.run_id, page.partition_id]).map(drop)
}

/// Writes the page's records, and counts those that the run had not seen.
fn upsert_records(tx: &Tx<'_>, page: &Page) -> Result<i64, Error> {
    let mut insert = tx.conn.prepare_cached(
        "INSERT INTO records (run_id, id, partition_id, payload, updated_at) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT DO NOTHING",
    )?;
    let mut update = tx.conn.prepare_cached(
        "UPDATE records SET payload = ?3, updated_at = ?4 WHERE run_id = ?1 AND id = ?2 AND payload <> ?3",
    )?;
    let mut new_records = 0;
    for record in &page.records {
        let payload = record.payload.as_str();
        let new = insert.execute(params![page.run_id, record.id, page.partition_id, payload, tx.now_ms()])?;
        if new == 0 {
            update.execute(params![page.run_id, record.id, payload, tx.now_ms()])?;
        }
        new_records += signed(new as u64);
    }
    Ok(new_records)
}

/// Marks a partition as failed, if it is still running.
pub(crate) fn fail_partition(tx: &Tx<'_>, failed: &FailPartition) -> Result<bool, Error> {
    let mut fail = tx.conn.prepare_cached(
        "INSERT INTO worker_runs (run_id, partition_id, status, error) VALUES (?1, ?2, 'failed', ?3)
         ON CONFLICT (run_id, partition_id) DO UPDATE SET status = 'failed', error = excluded.error
                                                   WHERE status = 'running'",
    )?;
    Ok(fail.execute(params![failed.run_id, failed.partition_id, failed.error])? == 1)
}
