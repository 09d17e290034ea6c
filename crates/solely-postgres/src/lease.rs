//! Leases: one row a key, taken in the order of keys.

use std::time::Duration;

use async_trait::async_trait;
use solely_core::clock::millis;
use solely_core::lease::{
    Acquired, HeldKey, Holder, Lease, LeaseRenewed, LeaseRequest, LeaseStore, Obstacle,
};
use solely_core::{LeaseId, StoreError};
use tokio_postgres::Error;

use crate::row::{self, signed};
use crate::transaction::transact;
use crate::{PostgresStore, Tx};

#[async_trait]
impl LeaseStore for PostgresStore {
    async fn acquire(&self, request: LeaseRequest) -> Result<Acquired, StoreError> {
        transact!(self, |tx| async {
            let part = tx.savepoint().await?;
            match take(&part, &request).await? {
                Taken::All(lease) => {
                    part.keep().await?;
                    Ok(Acquired::Acquired(lease))
                }
                Taken::NotAll(obstacle) => {
                    part.undo().await?;
                    Ok(Acquired::Held(obstacle))
                }
            }
        }
        .await)
    }

    async fn renew_lease(&self, id: LeaseId, ttl: Option<Duration>) -> Result<LeaseRenewed, StoreError> {
        transact!(self, |tx| renew(tx, id, ttl).await)
    }

    async fn release(&self, id: LeaseId) -> Result<Vec<String>, StoreError> {
        transact!(self, |tx| async {
            let id = row::uuid(id.as_bytes());
            tx.query("SELECT 1 FROM leases WHERE lease = $1 ORDER BY key FOR UPDATE", &[&id]).await?;
            let now_ms = tx.now().await?.as_millis();
            let rows = tx
                .query(
                    "DELETE FROM leases WHERE lease = $1 AND expires_at > $2 RETURNING key",
                    &[&id, &now_ms],
                )
                .await?;
            Ok(rows.iter().map(|row| row.get(0)).collect())
        }
        .await)
    }

    async fn held_keys(&self, after: Option<String>, limit: u32) -> Result<Vec<HeldKey>, StoreError> {
        let rows = self
            .read(
                "SELECT key, owner, fence, expires_at
                   FROM leases
                  WHERE key > coalesce($1, '') AND expires_at > solely_now($2)
                  ORDER BY key
                  LIMIT $3",
                &[&after, &self.clock.offset_ms(), &i64::from(limit)],
            )
            .await?;
        let held = |found: &tokio_postgres::Row| HeldKey {
            key: found.get(0),
            owner: found.get(1),
            fence: row::unsigned(found, 2),
            expires_at: row::time(found, 3),
        };
        Ok(rows.iter().map(held).collect())
    }
}

enum Taken {
    All(Lease),
    NotAll(Obstacle),
}

/// Locks every key's row, new or not, in order; then looks at the clock and takes the fence, so
/// that whoever gets a key later gets a greater one.
async fn take(tx: &Tx<'_>, request: &LeaseRequest) -> Result<Taken, Error> {
    let mut keys = request.keys.clone();
    keys.sort_unstable();
    let id = row::uuid(request.id.as_bytes());
    let process = match &request.holder {
        Holder::Client => None,
        Holder::Process(process) => Some(row::uuid(process.as_bytes())),
    };
    tx.execute(
        "INSERT INTO leases (key, lease, owner, fence, ttl_ms, expires_at)
         SELECT key, $2::uuid, '', 0, 0, 0 FROM unnest($1::text[]) AS key ORDER BY key
             ON CONFLICT (key) DO UPDATE SET key = excluded.key",
        &[&keys, &id],
    )
    .await?;
    let now = tx.now().await?;
    let held = tx
        .optional(
            "SELECT key, owner, expires_at FROM leases WHERE key = ANY($1) AND expires_at > $2 ORDER BY key LIMIT 1",
            &[&keys, &now.as_millis()],
        )
        .await?;
    if let Some(held) = held {
        let expires_at = row::time(&held, 2);
        let (key, owner, ends_in) = (held.get(0), held.get(1), expires_at.since(now));
        return Ok(Taken::NotAll(Obstacle { key, owner, expires_at, ends_in }));
    }
    let fence = row::unsigned(&tx.one("SELECT nextval('fences')", &[]).await?, 0);
    let expires_at = now.plus(request.ttl);
    tx.execute(
        "UPDATE leases
            SET lease = $2, owner = $3, process = $4, fence = $5, ttl_ms = $6, expires_at = $7
          WHERE key = ANY($1)",
        &[
            &keys,
            &id,
            &request.owner,
            &process,
            &signed(fence),
            &millis(request.ttl),
            &expires_at.as_millis(),
        ],
    )
    .await?;
    let (keys, owner) = (request.keys.clone(), request.owner.clone());
    Ok(Taken::All(Lease { id: request.id, keys, owner, fence, expires_at }))
}

async fn renew(tx: &Tx<'_>, id: LeaseId, ttl: Option<Duration>) -> Result<LeaseRenewed, Error> {
    let lease = row::uuid(id.as_bytes());
    tx.query("SELECT 1 FROM leases WHERE lease = $1 ORDER BY key FOR UPDATE", &[&lease]).await?;
    let now_ms = tx.now().await?.as_millis();
    let rows = tx
        .query(
            "UPDATE leases
                SET ttl_ms = coalesce($3, ttl_ms), expires_at = $2 + coalesce($3, ttl_ms)
              WHERE lease = $1 AND expires_at > $2
             RETURNING key, owner, fence, expires_at",
            &[&lease, &now_ms, &ttl.map(millis)],
        )
        .await?;
    let Some(first) = rows.first() else { return Ok(LeaseRenewed::Lost) };
    let mut keys: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    keys.sort_unstable();
    let (owner, fence, expires_at) = (first.get(1), row::unsigned(first, 2), row::time(first, 3));
    Ok(LeaseRenewed::Renewed(Lease { id, keys, owner, fence, expires_at }))
}
