//! Cache entries.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, Error, OptionalExtension, Row, params};
use solely_core::cache::{
    Age, CacheStore, Change, ChangeCursor, Changes, Entry, EntryKey, Overwrite, Put, PutEntry,
};
use solely_core::clock::Timestamp;
use solely_core::event::NewEvent;
use solely_core::{Json, StoreError, limits};

use crate::row::{self, signed};
use crate::writer::Tx;
use crate::{SqliteStore, event};

#[async_trait]
impl CacheStore for SqliteStore {
    async fn entries(&self, keys: Vec<EntryKey>) -> Result<Vec<Option<Entry>>, StoreError> {
        let now = self.writer.now();
        self.read(move |conn| keys.iter().map(|key| entry(conn, key, now, false)).collect()).await
    }

    async fn kept_entries(&self, keys: Vec<EntryKey>) -> Result<Vec<Option<Entry>>, StoreError> {
        let now = self.writer.now();
        self.read(move |conn| keys.iter().map(|key| entry(conn, key, now, true)).collect()).await
    }

    async fn put_entries(&self, entries: Vec<PutEntry>) -> Result<Vec<Put>, StoreError> {
        self.writer.run("put_entries", move |tx| entries.iter().map(|entry| put(tx, entry)).collect()).await
    }

    async fn forget_entry(
        &self,
        key: EntryKey,
        keep: Duration,
        told: Option<NewEvent>,
    ) -> Result<Option<Timestamp>, StoreError> {
        self.writer
            .run("forget_entry", move |tx| {
                let mut forget = tx.conn.prepare_cached(
                    "UPDATE entries
                        SET forgotten = 1, updated_at = max(?3, updated_at + 1),
                            fresh_until = ?3, stale_until = ?3, keep_until = ?4
                      WHERE space = ?1 AND key = ?2 AND forgotten = 0 AND stale_until > ?3
                     RETURNING updated_at",
                )?;
                let known_until = tx.now.plus(keep.max(limits::FORGOTTEN_FOR)).as_millis();
                let values = params![key.space, key.key, tx.now_ms(), known_until];
                let at = forget.query_row(values, |found| row::time(found, 0)).optional()?;
                if let (Some(_), Some(told)) = (at, &told) {
                    event::insert(tx, told)?;
                }
                Ok(at)
            })
            .await
    }

    /// Asked of the writer, which has committed everything before it.
    async fn changes(&self, after: ChangeCursor, limit: u32) -> Result<Changes, StoreError> {
        self.writer.run("changes", move |tx| changes(tx, &after, limit)).await
    }
}

fn changes(tx: &Tx<'_>, after: &ChangeCursor, limit: u32) -> Result<Changes, Error> {
    let store = tx
        .conn
        .prepare_cached("SELECT id FROM store_identity")?
        .query_row([], |found| found.get::<_, String>(0))?;
    let mut find = tx.conn.prepare_cached(
        "SELECT value, version, updated_at, fresh_until, stale_until, space, key, forgotten OR keep_until <= ?4
           FROM entries
          WHERE (updated_at, space, key) > (?1, ?2, ?3)
          ORDER BY updated_at, space, key
          LIMIT ?5",
    )?;
    // Without a key: after all keys of that instant.
    let at = after.at.as_millis();
    let (at, space, key) = match &after.key {
        Some(key) => (at, key.space.as_str(), key.key.as_str()),
        None => (at.saturating_add(1), "", ""),
    };
    let rows = find.query_map(params![at, space, key, tx.now_ms(), limit], |found| {
        let key = EntryKey::new(found.get::<_, String>(5)?, found.get::<_, String>(6)?);
        let (updated_at, ended) = (row::time(found, 2)?, found.get(7)?);
        let entry = if ended { None } else { Some(entry_of(found, key.clone(), tx.now)?) };
        Ok(Change { key, updated_at, entry })
    })?;
    let changes = rows.collect::<Result<Vec<_>, _>>()?;
    let next = changes.last().filter(|_| changes.len() >= limit as usize);
    let next = next.map(|last| ChangeCursor { at: last.updated_at, key: Some(last.key.clone()) });
    // Others may yet write at this very instant.
    let complete_until = Timestamp::from_millis(tx.now_ms() - 1);
    Ok(Changes { store, now: tx.now, complete_until, changes, next })
}

/// An entry that is kept; one that was forgotten only if that is asked for, and then as [`Age::Gone`].
pub(crate) fn entry(
    conn: &Connection,
    key: &EntryKey,
    now: Timestamp,
    forgotten: bool,
) -> Result<Option<Entry>, Error> {
    let mut find = conn.prepare_cached(
        "SELECT value, version, updated_at, iif(forgotten, 0, fresh_until), iif(forgotten, 0, stale_until)
           FROM entries
          WHERE space = ?1 AND key = ?2 AND keep_until > ?3 AND forgotten <= ?4",
    )?;
    let values = (&key.space, &key.key, now.as_millis(), forgotten);
    find.query_row(values, |found| entry_of(found, key.clone(), now)).optional()
}

fn entry_of(found: &Row<'_>, key: EntryKey, now: Timestamp) -> Result<Entry, Error> {
    let (fresh_until, stale_until) = (row::time(found, 3)?, row::time(found, 4)?);
    Ok(Entry {
        key,
        value: Json::from_stored(found.get(0)?),
        version: row::unsigned(found, 1)?,
        updated_at: row::time(found, 2)?,
        fresh_until,
        stale_until,
        as_of: now,
        age: Age::of(now, fresh_until, stale_until),
    })
}

/// Keeps an entry for at least this long from now. One that is not kept any more is not brought back.
pub(crate) fn keep_for(tx: &Tx<'_>, key: &EntryKey, keep: Duration) -> Result<(), Error> {
    let mut keep_longer = tx.conn.prepare_cached(
        "UPDATE entries SET keep_until = ?3 WHERE space = ?1 AND key = ?2 AND keep_until < ?3 AND keep_until > ?4",
    )?;
    let (until, now) = (tx.now.plus(keep).as_millis(), tx.now_ms());
    keep_longer.execute(params![key.space, key.key, until, now]).map(drop)
}

/// Writes one entry, if its version allows.
pub(crate) fn put(tx: &Tx<'_>, entry: &PutEntry) -> Result<Put, Error> {
    let mut put = tx.conn.prepare_cached(
        "INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
         VALUES (?1, ?2, ?3, coalesce(?4, 1), ?5, ?6, ?7, ?8)
         ON CONFLICT (space, key) DO UPDATE
            SET value = excluded.value, version = coalesce(?4, version + 1), forgotten = 0,
                updated_at = max(excluded.updated_at, updated_at + 1), fresh_until = excluded.fresh_until,
                stale_until = excluded.stale_until, keep_until = excluded.keep_until
          WHERE (?4 IS NULL OR ?4 > version) AND (NOT ?9 OR stale_until <= ?5)
         RETURNING version, updated_at",
    )?;
    let version = match entry.overwrite {
        Overwrite::Always | Overwrite::IfGone => None,
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
        entry.overwrite == Overwrite::IfGone,
    ];
    let stored =
        put.query_row(values, |found| Ok((row::unsigned(found, 0)?, row::time(found, 1)?))).optional()?;
    if let Some((version, updated_at)) = stored {
        if let Some(told) = &entry.told {
            event::insert(tx, told)?;
        }
        return Ok(Put::Stored { version, updated_at });
    }
    let mut stored = tx.conn.prepare_cached("SELECT version FROM entries WHERE space = ?1 AND key = ?2")?;
    let version = stored.query_row((&entry.key.space, &entry.key.key), |found| row::unsigned(found, 0))?;
    Ok(Put::Outdated { version })
}
