//! The store as a whole: health, pruning, closing.
//!
//! Pruning deletes a small batch a transaction, in the writer's lower lane. Tables without an
//! index on time are walked in their own order from where the last batch ended, so that rows
//! which must stay are passed once a round and not once a batch.

use async_trait::async_trait;
use rusqlite::{Error, params};
use solely_core::bus::Bus;
use solely_core::clock::millis;
use solely_core::job::JobState;
use solely_core::store::{Pruned, Retention, Store};
use solely_core::{StoreError, limits};

use crate::writer::Tx;
use crate::{SqliteStore, feed, reserve};

/// Where the walks of pruning stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    lease_key: String,
    event_id: i64,
}

#[async_trait]
impl Store for SqliteStore {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    fn connect_bus(&self, bus: &Bus) {
        self.writer.tell_of_others(bus);
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.writer.health()?;
        self.read(|conn| conn.query_row("SELECT 1 FROM schema_version", [], |_| Ok(()))).await
    }

    async fn prune(&self, retention: Retention) -> Result<Pruned, StoreError> {
        let marks = self.prune_marks.lock().map(|marks| marks.clone()).unwrap_or_default();
        let (pruned, marks) =
            self.writer.housekeep("prune", move |tx| prune(tx, retention, marks.clone())).await?;
        if let Ok(mut kept) = self.prune_marks.lock() {
            *kept = marks;
        }
        Ok(pruned)
    }

    async fn close(&self) {
        self.shut();
    }
}

fn prune(tx: &Tx<'_>, retention: Retention, mut marks: Marks) -> Result<(Pruned, Marks), Error> {
    let before = |kept| tx.now_ms().saturating_sub(millis(kept));
    let batch = limits::PRUNE_BATCH;
    let mut pruned = Pruned::default();
    for (state, kept) in [
        (JobState::Completed, retention.jobs),
        (JobState::Cancelled, retention.jobs),
        (JobState::Dead, retention.dead_letters),
    ] {
        let mut delete = tx.conn.prepare_cached(
            "DELETE FROM jobs WHERE id IN
                (SELECT id FROM jobs WHERE state = ?1 AND ends_at < ?2 ORDER BY ends_at LIMIT ?3)",
        )?;
        pruned.add(delete.execute(params![state.code(), before(kept), batch])?);
    }
    let by_time = [
        (
            "DELETE FROM queues WHERE name IN
                (SELECT name FROM queues WHERE paused_until <= ?1 LIMIT ?2)",
            tx.now_ms(),
        ),
        (
            "DELETE FROM sent_keys WHERE (queue, key) IN
                (SELECT queue, key FROM sent_keys WHERE until <= ?1 ORDER BY until LIMIT ?2)",
            tx.now_ms(),
        ),
        (
            "DELETE FROM tickets WHERE hash IN
                (SELECT hash FROM tickets WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
            tx.now_ms(),
        ),
        (
            "DELETE FROM entries WHERE (space, key) IN
                (SELECT space, key FROM entries WHERE keep_until <= ?1 ORDER BY keep_until LIMIT ?2)",
            tx.now_ms(),
        ),
        (reserve::PRUNE_KEYS, before(limits::IDEMPOTENCY_KEYS_KEPT)),
    ];
    for (sql, cutoff) in by_time {
        pruned.add(tx.conn.prepare_cached(sql)?.execute(params![cutoff, batch])?);
    }
    prune_events(tx, before(retention.events), &mut marks, &mut pruned)?;
    prune_leases(tx, &mut marks, &mut pruned)?;
    let (rows, more) = feed::prune(tx, retention.runs)?;
    pruned.rows += rows as u64;
    pruned.more |= more;
    Ok((pruned, marks))
}

fn prune_events(tx: &Tx<'_>, cutoff: i64, marks: &mut Marks, pruned: &mut Pruned) -> Result<(), Error> {
    let mut walk = tx.conn.prepare_cached(
        "SELECT max(id), count(*), min(at) FROM (SELECT id, at FROM events WHERE id > ?1 ORDER BY id LIMIT ?2)",
    )?;
    let (last, seen, oldest): (Option<i64>, u32, Option<i64>) = walk
        .query_row((marks.event_id, limits::PRUNE_BATCH), |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    let mut delete = tx
        .conn
        .prepare_cached("DELETE FROM events WHERE id > ?1 AND id <= ?2 AND at < ?3 AND topic IS NULL")?;
    let Some(last) = last else {
        marks.event_id = 0;
        return Ok(());
    };
    pruned.rows += delete.execute((marks.event_id, last, cutoff))? as u64;
    // Ids follow time: once a batch holds nothing old, there is nothing older behind it.
    let go_on = seen == limits::PRUNE_BATCH && oldest.is_some_and(|at| at < cutoff);
    marks.event_id = if go_on { last } else { 0 };
    pruned.more |= go_on;
    Ok(())
}

fn prune_leases(tx: &Tx<'_>, marks: &mut Marks, pruned: &mut Pruned) -> Result<(), Error> {
    let mut walk = tx.conn.prepare_cached(
        "SELECT max(key), count(*) FROM (SELECT key FROM leases WHERE key > ?1 ORDER BY key LIMIT ?2)",
    )?;
    let (last, seen): (Option<String>, u32) =
        walk.query_row((&marks.lease_key, limits::PRUNE_BATCH), |row| Ok((row.get(0)?, row.get(1)?)))?;
    let Some(last) = last else {
        marks.lease_key.clear();
        return Ok(());
    };
    let mut delete =
        tx.conn.prepare_cached("DELETE FROM leases WHERE key > ?1 AND key <= ?2 AND expires_at <= ?3")?;
    pruned.rows += delete.execute((&marks.lease_key, &last, tx.now_ms()))? as u64;
    let go_on = seen == limits::PRUNE_BATCH;
    marks.lease_key = if go_on { last } else { String::new() };
    pruned.more |= go_on;
    Ok(())
}
