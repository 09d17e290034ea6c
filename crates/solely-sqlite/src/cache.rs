//! Cache entries.

use async_trait::async_trait;
use rusqlite::{Connection, Error, OptionalExtension, params};
use solely_core::cache::{Age, CacheStore, Entry, EntryKey, Overwrite, Put, PutEntry};
use solely_core::clock::Timestamp;
use solely_core::{Json, StoreError};

use crate::SqliteStore;
use crate::row::{self, signed};
use crate::writer::Tx;

#[async_trait]
impl CacheStore for SqliteStore {
    async fn entries(&self, keys: Vec<EntryKey>) -> Result<Vec<Option<Entry>>, StoreError> {
        let now = self.writer.now();
        self.read(move |conn| keys.iter().map(|key| entry(conn, key, now)).collect()).await
    }

    async fn put_entries(&self, entries: Vec<PutEntry>) -> Result<Vec<Put>, StoreError> {
        self.writer.run("put_entries", move |tx| entries.iter().map(|entry| put(tx, entry)).collect()).await
    }

    async fn forget_entry(&self, key: EntryKey) -> Result<bool, StoreError> {
        self.writer
            .run("forget_entry", move |tx| {
                let mut forget =
                    tx.conn.prepare_cached("DELETE FROM entries WHERE space = ?1 AND key = ?2")?;
                Ok(forget.execute((&key.space, &key.key))? == 1)
            })
            .await
    }
}

fn entry(conn: &Connection, key: &EntryKey, now: Timestamp) -> Result<Option<Entry>, Error> {
    let mut find = conn.prepare_cached(
        "SELECT value, version, updated_at, fresh_until, stale_until
           FROM entries
          WHERE space = ?1 AND key = ?2 AND keep_until > ?3",
    )?;
    find.query_row((&key.space, &key.key, now.as_millis()), |found| {
        let (fresh_until, stale_until) = (row::time(found, 3)?, row::time(found, 4)?);
        let age = if now < fresh_until {
            Age::Fresh
        } else if now < stale_until {
            Age::Stale
        } else {
            Age::Gone
        };
        Ok(Entry {
            key: key.clone(),
            value: Json::from_stored(found.get(0)?),
            version: row::unsigned(found, 1)?,
            updated_at: row::time(found, 2)?,
            fresh_until,
            stale_until,
            age,
        })
    })
    .optional()
}

/// Writes one entry, if its version allows.
pub(crate) fn put(tx: &Tx<'_>, entry: &PutEntry) -> Result<Put, Error> {
    let mut put = tx.conn.prepare_cached(
        "INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
         VALUES (?1, ?2, ?3, coalesce(?4, 1), ?5, ?6, ?7, ?8)
         ON CONFLICT (space, key) DO UPDATE
            SET value = excluded.value, version = coalesce(?4, version + 1), updated_at = excluded.updated_at,
                fresh_until = excluded.fresh_until, stale_until = excluded.stale_until,
                keep_until = excluded.keep_until
          WHERE ?4 IS NULL OR ?4 > version
         RETURNING version",
    )?;
    let version = match entry.overwrite {
        Overwrite::Always => None,
        Overwrite::Above(version) => Some(signed(version)),
    };
    let ends = |life| tx.now.plus(life).as_millis();
    let values = params![
        entry.key.space,
        entry.key.key,
        entry.value.as_str(),
        version,
        tx.now_ms(),
        ends(entry.lifetimes.fresh),
        ends(entry.lifetimes.stale),
        ends(entry.lifetimes.keep),
    ];
    if let Some(version) = put.query_row(values, |found| row::unsigned(found, 0)).optional()? {
        return Ok(Put::Stored { version });
    }
    let mut stored = tx.conn.prepare_cached("SELECT version FROM entries WHERE space = ?1 AND key = ?2")?;
    let version = stored.query_row((&entry.key.space, &entry.key.key), |found| row::unsigned(found, 0))?;
    Ok(Put::Outdated { version })
}
