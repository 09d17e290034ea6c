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
                    &[&upstream, &self.work.clock.offset_ms()],
                )
                .await?;
            return Ok(pause_or_go(rows.first().map_or(0, |row| row.get(0))));
        };
        transact!(self.work, |tx| take_slot(tx, &upstream, slot).await)
    }

    async fn pause_upstream(&self, upstream: String, pause: Duration) -> Result<Timestamp, StoreError> {
        transact!(self.work, |tx| async {
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
                &[&self.work.clock.offset_ms()],
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

async fn take_slot(tx: &Tx<'_>, upstream: &str, slot: SlotRequest) -> Result<Admission, Error> {
    let micros = |time: Duration| signed(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    let row = tx
        .one(
            "SELECT paused_ms, after_us FROM solely_take_slot($1, $2, $3, $4)",
            &[&upstream, &micros(slot.spacing), &micros(slot.patience), &tx.offset_ms()],
        )
        .await?;
    if let paused @ Admission::Paused { .. } = pause_or_go(row.get(0)) {
        return Ok(paused);
    }
    let after = Duration::from_micros(row::unsigned(&row, 1));
    Ok(if after > slot.patience { Admission::Later { left: after } } else { Admission::Go { after } })
}
