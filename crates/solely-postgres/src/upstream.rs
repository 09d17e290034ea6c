//! What upstreams share: one row each, with its pause and its next slot.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use solely_core::StoreError;
use solely_core::clock::Timestamp;
use solely_core::upstream::{Admission, SlotRequest, UpstreamStore};
use tokio_postgres::Error;

use crate::row::{self, signed};
use crate::transaction::transact;
use crate::{PostgresStore, Tx};

#[async_trait]
impl UpstreamStore for PostgresStore {
    async fn admit(&self, upstream: String, slot: Option<SlotRequest>) -> Result<Admission, StoreError> {
        let Some(slot) = slot else {
            let rows = self
                .read(
                    "SELECT paused_until - solely_now($2) FROM upstreams WHERE name = $1",
                    &[&upstream, &self.clock.offset_ms()],
                )
                .await?;
            return Ok(pause_or_go(rows.first().map_or(0, |row| row.get(0))));
        };
        transact!(self, |tx| take_slot(tx, &upstream, slot).await)
    }

    async fn pause_upstream(&self, upstream: String, pause: Duration) -> Result<Timestamp, StoreError> {
        transact!(self, |tx| async {
            let until = tx.now().await?.plus(pause).as_millis();
            let row = tx
                .one(
                    "INSERT INTO upstreams (name, paused_until) VALUES ($1, $2)
                     ON CONFLICT (name) DO UPDATE
                        SET paused_until = greatest(upstreams.paused_until, excluded.paused_until)
                     RETURNING paused_until",
                    &[&upstream, &until],
                )
                .await?;
            Ok(row::time(&row, 0))
        }
        .await)
    }

    async fn paused_upstreams(&self) -> Result<BTreeMap<String, Timestamp>, StoreError> {
        let rows = self
            .read(
                "SELECT name, paused_until FROM upstreams WHERE paused_until > solely_now($1)",
                &[&self.clock.offset_ms()],
            )
            .await?;
        Ok(rows.iter().map(|found| (found.get(0), row::time(found, 1))).collect())
    }
}

fn pause_or_go(left_ms: i64) -> Admission {
    match u64::try_from(left_ms) {
        Ok(left_ms) if left_ms > 0 => Admission::Paused { left: Duration::from_millis(left_ms) },
        _ => Admission::Go { after: Duration::ZERO },
    }
}

/// Locks the upstream's row, then looks at the clock: slots are granted one after the other.
async fn take_slot(tx: &Tx<'_>, upstream: &str, slot: SlotRequest) -> Result<Admission, Error> {
    let shared = tx
        .one(
            "INSERT INTO upstreams (name) VALUES ($1)
             ON CONFLICT (name) DO UPDATE SET name = excluded.name
             RETURNING paused_until, next_slot_us",
            &[&upstream],
        )
        .await?;
    let now = tx.now().await?;
    if let paused @ Admission::Paused { .. } = pause_or_go(shared.get::<_, i64>(0) - now.as_millis()) {
        return Ok(paused);
    }
    // Slots that nobody used are forfeited: the next one is never before now.
    let now_us = now.as_millis() * 1_000;
    let slot_us = shared.get::<_, i64>(1).max(now_us);
    let after = Duration::from_micros(u64::try_from(slot_us - now_us).unwrap_or(0));
    if after > slot.patience {
        return Ok(Admission::Paused { left: after });
    }
    let spacing_us = signed(u64::try_from(slot.spacing.as_micros()).unwrap_or(u64::MAX));
    tx.execute(
        "UPDATE upstreams SET next_slot_us = $2 WHERE name = $1",
        &[&upstream, &slot_us.saturating_add(spacing_us)],
    )
    .await?;
    Ok(Admission::Go { after })
}
