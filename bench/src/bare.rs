//! The limit: SQLite alone, in a loop, with one commit for so many row writes.

use std::time::Instant;

use anyhow::Result;
use rusqlite::Connection;

/// Row writes of one transaction.
pub(crate) const GROUP: usize = 64;

/// Writes `operations` rows with an id and a unique key, as anyone would write a table of
/// unique things, and answers with rows per second.
pub(crate) fn group_commit(operations: usize) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let conn = Connection::open(folder.path().join("bare.db"))?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.execute_batch(
        "CREATE TABLE bare (id TEXT PRIMARY KEY, key TEXT NOT NULL UNIQUE, value TEXT NOT NULL)",
    )?;
    let value = "x".repeat(200);
    let started = Instant::now();
    for group in 0..operations / GROUP {
        conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for row in 0..GROUP {
            let (id, key) = (uuid::Uuid::now_v7().to_string(), format!("key-{}", group * GROUP + row));
            conn.prepare_cached("INSERT INTO bare (id, key, value) VALUES (?1, ?2, ?3)")?
                .execute((id, key, &value))?;
        }
        conn.prepare_cached("COMMIT")?.execute([])?;
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of operations")]
    Ok((operations / GROUP * GROUP) as f64 / started.elapsed().as_secs_f64())
}
