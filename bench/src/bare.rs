//! The limit: SQLite alone, in a loop, with one commit for so many row writes.

use std::time::Instant;

use anyhow::Result;
use rusqlite::Connection;

/// Row writes of one transaction.
const GROUP: usize = 64;

/// A table as anyone would make it for a queue by hand: the same row, its id and its unique key.
/// No index to claim by, no fence, no further guard.
const TABLE: &str = "CREATE TABLE bare (
    id BLOB PRIMARY KEY, queue TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, state INTEGER NOT NULL,
    priority INTEGER NOT NULL, run_at INTEGER NOT NULL, attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL,
    payload TEXT NOT NULL, attributes TEXT NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
    UNIQUE (queue, key)
)";

/// Writes `operations` rows, [`GROUP`] a transaction, and answers with rows per second.
pub(crate) fn group_commit(operations: usize) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let conn = Connection::open(folder.path().join("bare.db"))?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.execute_batch(TABLE)?;
    let payload = "x".repeat(100);
    let started = Instant::now();
    for group in 0..operations / GROUP {
        conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for row in 0..GROUP {
            let (id, key) = (uuid::Uuid::now_v7(), format!("key-{}", group * GROUP + row));
            let now_ms = 1_700_000_000_000_i64;
            conn.prepare_cached(
                "INSERT INTO bare VALUES (?1, ?2, ?2, ?3, 0, 5, ?4, 0, 5, ?5, '{}', ?4, ?4)",
            )?
            .execute((id.as_bytes(), "bench", key, now_ms, &payload))?;
        }
        conn.prepare_cached("COMMIT")?.execute([])?;
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of operations")]
    Ok((operations / GROUP * GROUP) as f64 / started.elapsed().as_secs_f64())
}
