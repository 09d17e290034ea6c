//! Heartbeats.

use async_trait::async_trait;
use solely_core::liveness::{Beat, Beaten, LivenessStore};
use solely_core::{ProcessId, StoreError};
use tokio::time::Instant;
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
        let asked = Instant::now();
        let beating = async { transact!(self.beats, |tx| heartbeat(tx, &beat).await) };
        let may_judge = tokio::time::timeout(ANSWER_TIMEOUT, beating).await.unwrap_or_else(|_| {
            let away = StoreError::Unavailable("the database does not answer".to_owned());
            self.work.open_breaker(asked, &away);
            Err(away)
        })?;
        if !may_judge {
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

/// A process is gone if it has been silent for three tenths of the dead time, a beat and a half, and
/// the connection that it beat on has ended: one that is only slow, or paused, still has it.
fn gone_after_ms(beat: &Beat) -> i64 {
    millis(beat.dead_after) * 3 / 10
}

/// Beats. True if this process may judge others: it has beaten without a gap, on one connection, for
/// as long as the shorter of the silences.
async fn heartbeat(tx: &Tx<'_>, beat: &Beat) -> Result<bool, Error> {
    let (now_ms, dead_after_ms) = (tx.now().await?.as_millis(), millis(beat.dead_after));
    // A silence of half the dead time is a gap: whoever had one starts its own count anew.
    let row = tx
        .one(
            "INSERT INTO processes (id, started_at, beat_at, steady_since, backend, connected_since)
             VALUES ($1, $2::bigint, $2, $2, pg_backend_pid(), $2)
             ON CONFLICT (id) DO UPDATE
                SET steady_since = CASE WHEN $2 - processes.beat_at > $3::bigint / 2 THEN $2
                                        ELSE processes.steady_since END,
                    connected_since = CASE WHEN processes.backend = excluded.backend
                                           THEN processes.connected_since ELSE $2 END,
                    backend = excluded.backend, beat_at = $2
             RETURNING $2 - greatest(steady_since, connected_since) >= $4::bigint",
            &[&row::uuid(beat.process.as_bytes()), &now_ms, &dead_after_ms, &gone_after_ms(beat)],
        )
        .await?;
    Ok(row.get(0))
}

/// Buries those that have been silent for the dead time, and those that are gone, each if this
/// process has still been steady for as long. The connections of others are looked at only when one
/// of them is silent.
async fn bury(tx: &Tx<'_>, beat: &Beat) -> Result<Beaten, Error> {
    let (now_ms, dead_after_ms) = (tx.now().await?.as_millis(), millis(beat.dead_after));
    let gone_after_ms = gone_after_ms(beat);
    let own = tx
        .optional(
            "SELECT $2 - steady_since >= $3, $2 - greatest(steady_since, connected_since) >= $4
               FROM processes
              WHERE id = $1 AND $2::bigint - beat_at <= $3::bigint / 2
                AND EXISTS (SELECT 1 FROM processes AS other WHERE other.beat_at < $2 - $4::bigint)",
            &[&row::uuid(beat.process.as_bytes()), &now_ms, &dead_after_ms, &gone_after_ms],
        )
        .await?;
    let Some(own) = own else { return Ok(Beaten::default()) };
    let (judges_silence, judges_connections): (bool, bool) = (own.get(0), own.get(1));
    let silent = tx
        .query(
            "DELETE FROM processes
              WHERE id IN (SELECT id FROM processes
                            WHERE $3 AND beat_at < $1
                               OR $4 AND beat_at < $2 AND backend IS NOT NULL
                                  AND NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = backend)
                            ORDER BY id FOR UPDATE SKIP LOCKED)
             RETURNING id",
            &[&(now_ms - dead_after_ms), &(now_ms - gone_after_ms), &judges_silence, &judges_connections],
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
