//! The store as a whole: health, pruning, closing.

use async_trait::async_trait;
use solely_core::StoreError;
use solely_core::away::Away;
use solely_core::bus::Bus;
use solely_core::job::JobState;
use solely_core::limits;
use solely_core::store::{Pruned, Retention, Store};
use tokio_postgres::Error;

use crate::connection::{ANSWER_TIMEOUT, STANDBY};
use crate::row::millis;
use crate::transaction::transact;
use crate::{PostgresStore, Tx, bus, feed, reserve};

#[async_trait]
impl Store for PostgresStore {
    fn kind(&self) -> &'static str {
        "postgres"
    }

    fn connect_bus(&self, bus: &Bus) {
        let (config, tls) = self.wire.clone();
        bus::connect(config, tls, bus, self.closed.clone());
    }

    fn away(&self) -> Away {
        self.work.away()
    }

    async fn health(&self) -> Result<(), StoreError> {
        // Also behind something that keeps connections while it changes what they lead to.
        let look = self.read("SELECT pg_is_in_recovery() FROM schema_version LIMIT 1", &[]);
        match tokio::time::timeout(ANSWER_TIMEOUT, look).await {
            Ok(Ok(rows)) if rows.iter().any(|row| row.get(0)) => {
                Err(StoreError::Unavailable(STANDBY.to_owned()))
            }
            Ok(answer) => answer.map(drop),
            Err(_) => Err(StoreError::Unavailable("the database does not answer".to_owned())),
        }
    }

    async fn prune(&self, retention: Retention) -> Result<Pruned, StoreError> {
        transact!(self.work, |tx| prune(tx, retention).await)
    }

    async fn close(&self) {
        self.closed.cancel();
        self.work.close();
        self.beats.close();
    }
}

async fn prune(tx: &Tx<'_>, retention: Retention) -> Result<Pruned, Error> {
    let now = tx.now().await?;
    let now_ms = now.as_millis();
    let before = |kept| now_ms.saturating_sub(millis(kept));
    let batch = i64::from(limits::PRUNE_BATCH);
    let mut pruned = Pruned::default();
    for (state, kept) in [
        (JobState::Completed, retention.jobs),
        (JobState::Cancelled, retention.jobs),
        (JobState::Dead, retention.dead_letters),
    ] {
        let deleted = tx
            .execute(
                "DELETE FROM jobs WHERE id IN
                    (SELECT id FROM jobs WHERE state = $1 AND ends_at < $2
                      ORDER BY ends_at LIMIT $3 FOR UPDATE SKIP LOCKED)",
                &[&i16::from(state.code()), &before(kept), &batch],
            )
            .await?;
        pruned.add(usize::try_from(deleted).unwrap_or(usize::MAX));
    }
    let by_time = [
        (
            "DELETE FROM queues WHERE name IN
                (SELECT name FROM queues WHERE paused_until <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)",
            now_ms,
        ),
        (
            "DELETE FROM sent_keys WHERE (queue, key) IN
                (SELECT queue, key FROM sent_keys WHERE until <= $1 ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED)",
            now_ms,
        ),
        (
            "DELETE FROM tickets WHERE hash IN
                (SELECT hash FROM tickets WHERE expires_at <= $1
                  ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
            now_ms,
        ),
        (
            "DELETE FROM entries WHERE (space, key) IN
                (SELECT space, key FROM entries WHERE keep_until <= $1
                  ORDER BY keep_until LIMIT $2 FOR UPDATE SKIP LOCKED)",
            now_ms,
        ),
        (
            // The oldest have the smallest ids.
            "DELETE FROM events WHERE id IN
                (SELECT old.id
                   FROM (SELECT id, at FROM events WHERE topic IS NULL ORDER BY id LIMIT $2) AS first
                  CROSS JOIN LATERAL (SELECT id FROM events
                                       WHERE events.id = first.id AND first.at < $1
                                       LIMIT 1 FOR UPDATE SKIP LOCKED) AS old)",
            before(retention.events),
        ),
        (
            "DELETE FROM leases WHERE key IN
                (SELECT key FROM leases WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
            now_ms,
        ),
        (reserve::PRUNE_KEYS, before(limits::IDEMPOTENCY_KEYS_KEPT)),
    ];
    for (sql, cutoff) in by_time {
        let deleted = tx.execute(sql, &[&cutoff, &batch]).await?;
        pruned.add(usize::try_from(deleted).unwrap_or(usize::MAX));
    }
    let (rows, more) = feed::prune(tx, now, retention.runs).await?;
    pruned.rows += rows;
    pruned.more |= more;
    Ok(pruned)
}
