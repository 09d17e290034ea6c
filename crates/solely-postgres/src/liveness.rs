//! Heartbeats.

use async_trait::async_trait;
use solely_core::liveness::{Beat, Beaten, LivenessStore};
use solely_core::{ProcessId, StoreError};
use tokio_postgres::Error;
use uuid::Uuid;

use crate::connection::ANSWER_TIMEOUT;
use crate::row::{self, millis};
use crate::transaction::transact;
use crate::{PostgresStore, Tx};

#[async_trait]
impl LivenessStore for PostgresStore {
    /// A beat that is not answered in time says for everyone that the database is away. Burying
    /// others is a transaction of its own: what is in its way is not in the way of beating.
    async fn beat(&self, beat: Beat) -> Result<Beaten, StoreError> {
        let beating = async { transact!(self.beats, |tx| heartbeat(tx, &beat).await) };
        let steady = tokio::time::timeout(ANSWER_TIMEOUT, beating).await.unwrap_or_else(|_| {
            let away = StoreError::Unavailable("the database does not answer".to_owned());
            self.work.open_breaker(&away);
            Err(away)
        })?;
        if !steady {
            return Ok(Beaten::default());
        }
        transact!(self.work, |tx| bury(tx, &beat).await)
    }

    async fn leave(&self, process: ProcessId) -> Result<(), StoreError> {
        transact!(self.beats, |tx| async {
            let process = row::uuid(process.as_bytes());
            tx.execute("DELETE FROM processes WHERE id = $1", &[&process]).await?;
            end_leases(tx, &[process]).await.map(drop)
        }
        .await)
    }
}

/// Beats. True if this process has beaten without a gap for the whole dead time.
async fn heartbeat(tx: &Tx<'_>, beat: &Beat) -> Result<bool, Error> {
    let (now_ms, dead_after_ms) = (tx.now().await?.as_millis(), millis(beat.dead_after));
    // A silence of half the dead time is a gap: whoever had one starts its own count anew.
    let row = tx
        .one(
            "INSERT INTO processes (id, started_at, beat_at, steady_since) VALUES ($1, $2::bigint, $2, $2)
             ON CONFLICT (id) DO UPDATE
                SET steady_since = CASE WHEN $2 - processes.beat_at > $3::bigint / 2 THEN $2
                                        ELSE processes.steady_since END,
                    beat_at = $2
             RETURNING $2 - steady_since >= $3::bigint",
            &[&row::uuid(beat.process.as_bytes()), &now_ms, &dead_after_ms],
        )
        .await?;
    Ok(row.get(0))
}

/// Buries those that have been silent for the dead time, if this process is still steady.
async fn bury(tx: &Tx<'_>, beat: &Beat) -> Result<Beaten, Error> {
    let (now_ms, dead_after_ms) = (tx.now().await?.as_millis(), millis(beat.dead_after));
    let own = tx
        .optional(
            "SELECT 1 FROM processes
              WHERE id = $1 AND $2::bigint - beat_at <= $3::bigint / 2 AND $2 - steady_since >= $3",
            &[&row::uuid(beat.process.as_bytes()), &now_ms, &dead_after_ms],
        )
        .await?;
    if own.is_none() {
        return Ok(Beaten::default());
    }
    let silent = tx
        .query(
            "DELETE FROM processes
              WHERE id IN (SELECT id FROM processes WHERE beat_at < $1 ORDER BY id FOR UPDATE SKIP LOCKED)
             RETURNING id",
            &[&(now_ms - dead_after_ms)],
        )
        .await?;
    let buried: Vec<Uuid> = silent.iter().map(|row| row.get(0)).collect();
    let freed_keys = end_leases(tx, &buried).await?;
    let buried = buried.into_iter().map(|id| ProcessId::from_bytes(id.into_bytes())).collect();
    Ok(Beaten { buried, freed_keys })
}

async fn end_leases(tx: &Tx<'_>, processes: &[Uuid]) -> Result<Vec<String>, Error> {
    if processes.is_empty() {
        return Ok(Vec::new());
    }
    let rows = tx.query("DELETE FROM leases WHERE process = ANY($1) RETURNING key", &[&processes]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
