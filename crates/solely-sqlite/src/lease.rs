//! Leases: one row a key.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Error, OptionalExtension, params};
use solely_core::clock::{Timestamp, millis};
use solely_core::lease::{
    Acquired, HeldKey, Holder, Lease, LeaseRenewed, LeaseRequest, LeaseStore, Obstacle,
};
use solely_core::{LeaseId, StoreError};

use crate::SqliteStore;
use crate::row::{self, signed};
use crate::writer::Tx;

#[async_trait]
impl LeaseStore for SqliteStore {
    async fn acquire(&self, request: LeaseRequest) -> Result<Acquired, StoreError> {
        self.writer.run("acquire", move |tx| acquire(tx, &request)).await
    }

    async fn renew_lease(&self, id: LeaseId, ttl: Option<Duration>) -> Result<LeaseRenewed, StoreError> {
        self.writer.run("renew_lease", move |tx| renew(tx, id, ttl)).await
    }

    async fn release(&self, id: LeaseId) -> Result<Vec<String>, StoreError> {
        self.writer.run("release", move |tx| release(tx, id)).await
    }

    async fn held_keys(&self, after: Option<String>, limit: u32) -> Result<Vec<HeldKey>, StoreError> {
        let now_ms = self.writer.now().as_millis();
        self.read(move |conn| {
            let mut list = conn.prepare_cached(
                "SELECT key, owner, fence, expires_at
                   FROM leases
                  WHERE key > coalesce(?1, '') AND expires_at > ?2
                  ORDER BY key
                  LIMIT ?3",
            )?;
            let keys = list.query_map((&after, now_ms, limit), |found| {
                Ok(HeldKey {
                    key: found.get(0)?,
                    owner: found.get(1)?,
                    fence: row::unsigned(found, 2)?,
                    expires_at: row::time(found, 3)?,
                })
            })?;
            keys.collect()
        })
        .await
    }
}

fn acquire(tx: &Tx<'_>, request: &LeaseRequest) -> Result<Acquired, Error> {
    let mut held =
        tx.conn.prepare_cached("SELECT owner, expires_at FROM leases WHERE key = ?1 AND expires_at > ?2")?;
    for key in &request.keys {
        let obstacle = held
            .query_row((key, tx.now_ms()), |found| {
                let expires_at = row::time(found, 1)?;
                let ends_in = expires_at.since(tx.now);
                Ok(Obstacle { key: key.clone(), owner: found.get(0)?, expires_at, ends_in })
            })
            .optional()?;
        if let Some(obstacle) = obstacle {
            return Ok(Acquired::Held(obstacle));
        }
    }
    let mut take = tx.conn.prepare_cached(
        "INSERT INTO leases (key, lease, owner, process, fence, ttl_ms, expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (key) DO UPDATE SET lease = excluded.lease, owner = excluded.owner,
             process = excluded.process, fence = excluded.fence, ttl_ms = excluded.ttl_ms,
             expires_at = excluded.expires_at",
    )?;
    let (fence, expires_at) = (tx.next_fence(), tx.now.plus(request.ttl));
    let process = match &request.holder {
        Holder::Client => None,
        Holder::Process(process) => Some(process.as_bytes()),
    };
    for key in &request.keys {
        take.execute(params![
            key,
            request.id.as_bytes(),
            request.owner,
            process,
            signed(fence),
            millis(request.ttl),
            expires_at.as_millis(),
        ])?;
    }
    let (keys, owner) = (request.keys.clone(), request.owner.clone());
    Ok(Acquired::Acquired(Lease { id: request.id, keys, owner, fence, expires_at }))
}

fn renew(tx: &Tx<'_>, id: LeaseId, ttl: Option<Duration>) -> Result<LeaseRenewed, Error> {
    let mut renew = tx.conn.prepare_cached(
        "UPDATE leases
            SET ttl_ms = coalesce(?3, ttl_ms), expires_at = ?2 + coalesce(?3, ttl_ms)
          WHERE lease = ?1 AND expires_at > ?2
         RETURNING key, owner, fence, expires_at",
    )?;
    let mut rows = renew.query((id.as_bytes(), tx.now_ms(), ttl.map(millis)))?;
    let mut lease: Option<Lease> = None;
    while let Some(found) = rows.next()? {
        let key = found.get(0)?;
        if let Some(lease) = &mut lease {
            lease.keys.push(key);
        } else {
            let (owner, fence): (String, u64) = (found.get(1)?, row::unsigned(found, 2)?);
            let expires_at: Timestamp = row::time(found, 3)?;
            lease = Some(Lease { id, keys: vec![key], owner, fence, expires_at });
        }
    }
    Ok(lease.map_or(LeaseRenewed::Lost, |mut lease| {
        lease.keys.sort_unstable();
        LeaseRenewed::Renewed(lease)
    }))
}

fn release(tx: &Tx<'_>, id: LeaseId) -> Result<Vec<String>, Error> {
    // Not RETURNING: see the claim of jobs.
    let mut find = tx.conn.prepare_cached("SELECT key FROM leases WHERE lease = ?1 AND expires_at > ?2")?;
    let keys: Vec<String> =
        find.query_map((id.as_bytes(), tx.now_ms()), |found| found.get(0))?.collect::<Result<_, _>>()?;
    let mut delete = tx.conn.prepare_cached("DELETE FROM leases WHERE key = ?1")?;
    for key in &keys {
        delete.execute([key])?;
    }
    Ok(keys)
}
