//! What upstreams share: one row each, with its pause and its next slot.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, Error, OptionalExtension};
use solely_core::StoreError;
use solely_core::clock::Timestamp;
use solely_core::upstream::{Admission, SlotRequest, UpstreamStore};

use crate::SqliteStore;
use crate::row::{self, signed};
use crate::writer::Tx;

#[async_trait]
impl UpstreamStore for SqliteStore {
    async fn admit(&self, upstream: String, slot: Option<SlotRequest>) -> Result<Admission, StoreError> {
        let Some(slot) = slot else {
            let now = self.writer.now();
            return self.read(move |conn| Ok(pause_or_go(&shared(conn, &upstream)?, now))).await;
        };
        self.writer.run("admit", move |tx| take_slot(tx, &upstream, slot)).await
    }

    async fn pause_upstream(&self, upstream: String, pause: Duration) -> Result<Timestamp, StoreError> {
        self.writer
            .run("pause_upstream", move |tx| {
                let mut upsert = tx.conn.prepare_cached(
                    "INSERT INTO upstreams (name, paused_until) VALUES (?1, ?2)
                     ON CONFLICT (name) DO UPDATE SET paused_until = max(paused_until, excluded.paused_until)
                     RETURNING paused_until",
                )?;
                let until = tx.now.plus(pause).as_millis();
                upsert.query_row((&upstream, until), |found| row::time(found, 0))
            })
            .await
    }

    async fn paused_upstreams(&self) -> Result<BTreeMap<String, Timestamp>, StoreError> {
        let now_ms = self.writer.now().as_millis();
        self.read(move |conn| {
            let mut select =
                conn.prepare_cached("SELECT name, paused_until FROM upstreams WHERE paused_until > ?1")?;
            select.query_map([now_ms], |found| Ok((found.get(0)?, row::time(found, 1)?)))?.collect()
        })
        .await
    }
}

#[derive(Clone, Copy, Default)]
struct Shared {
    paused_until: Timestamp,
    next_slot_us: i64,
}

fn shared(conn: &Connection, upstream: &str) -> Result<Shared, Error> {
    let mut find = conn.prepare_cached("SELECT paused_until, next_slot_us FROM upstreams WHERE name = ?1")?;
    let found = find.query_row([upstream], |found| {
        Ok(Shared { paused_until: row::time(found, 0)?, next_slot_us: found.get(1)? })
    });
    Ok(found.optional()?.unwrap_or_default())
}

fn pause_or_go(shared: &Shared, now: Timestamp) -> Admission {
    if shared.paused_until > now {
        return Admission::Paused { left: shared.paused_until.since(now) };
    }
    Admission::Go { after: Duration::ZERO }
}

fn take_slot(tx: &Tx<'_>, upstream: &str, slot: SlotRequest) -> Result<Admission, Error> {
    let shared = shared(tx.conn, upstream)?;
    let (now_us, next_us) = (tx.now_ms() * 1_000, shared.next_slot_us);
    if let paused @ Admission::Paused { .. } = pause_or_go(&shared, tx.now) {
        return Ok(paused);
    }
    // Slots that nobody used are forfeited: the next one is never before now.
    let slot_us = next_us.max(now_us);
    let after = Duration::from_micros(u64::try_from(slot_us - now_us).unwrap_or(0));
    if after > slot.patience {
        return Ok(Admission::Later { left: after });
    }
    let spacing_us = signed(u64::try_from(slot.spacing.as_micros()).unwrap_or(u64::MAX));
    let mut keep = tx.conn.prepare_cached(
        "INSERT INTO upstreams (name, next_slot_us) VALUES (?1, ?2)
         ON CONFLICT (name) DO UPDATE SET next_slot_us = excluded.next_slot_us",
    )?;
    keep.execute((upstream, slot_us.saturating_add(spacing_us)))?;
    Ok(Admission::Go { after })
}
