//! Heartbeats.

use async_trait::async_trait;
use rusqlite::{Error, params};
use solely_core::clock::millis;
use solely_core::liveness::{Beat, Beaten, LivenessStore};
use solely_core::{ProcessId, StoreError};

use crate::SqliteStore;
use crate::writer::Tx;

#[async_trait]
impl LivenessStore for SqliteStore {
    async fn beat(&self, beat: Beat) -> Result<Beaten, StoreError> {
        self.writer.run("beat", move |tx| heartbeat(tx, beat)).await
    }

    async fn leave(&self, process: ProcessId) -> Result<(), StoreError> {
        self.writer
            .run("leave", move |tx| {
                let mut leave = tx.conn.prepare_cached("DELETE FROM processes WHERE id = ?1")?;
                leave.execute([process.as_bytes()])?;
                end_leases(tx, process).map(drop)
            })
            .await
    }
}

fn heartbeat(tx: &Tx<'_>, beat: Beat) -> Result<Beaten, Error> {
    // A silence of half the dead time is a gap: whoever had one starts its own count anew.
    let mut touch = tx.conn.prepare_cached(
        "INSERT INTO processes (id, started_at, beat_at, steady_since) VALUES (?1, ?2, ?2, ?2)
         ON CONFLICT (id) DO UPDATE
            SET steady_since = iif(?2 - beat_at > ?3 / 2, ?2, steady_since), beat_at = ?2
         RETURNING ?2 - steady_since >= ?3",
    )?;
    let values = params![beat.process.as_bytes(), tx.now_ms(), millis(beat.dead_after)];
    let steady: bool = touch.query_row(values, |row| row.get(0))?;
    // The clock never goes back, not even across a restart: the heartbeat keeps its mark.
    let mut mark =
        tx.conn.prepare_cached("UPDATE counters SET value = max(value, ?1) WHERE name = 'now_ms'")?;
    mark.execute([tx.now_ms()])?;
    let mut beaten = Beaten::default();
    if steady {
        let mut bury = tx.conn.prepare_cached("DELETE FROM processes WHERE beat_at < ?1 RETURNING id")?;
        let silent_since = tx.now_ms().saturating_sub(millis(beat.dead_after));
        for id in bury.query_map([silent_since], |row| row.get(0))? {
            beaten.buried.push(ProcessId::from_bytes(id?));
        }
        for process in &beaten.buried {
            beaten.freed_keys.extend(end_leases(tx, *process)?);
        }
    }
    Ok(beaten)
}

fn end_leases(tx: &Tx<'_>, process: ProcessId) -> Result<Vec<String>, Error> {
    let mut end = tx.conn.prepare_cached("DELETE FROM leases WHERE process = ?1 RETURNING key")?;
    end.query_map([process.as_bytes()], |row| row.get(0))?.collect()
}
