//! Cache entries.

use async_trait::async_trait;
use solely_core::cache::{Age, CacheStore, Entry, EntryKey, Overwrite, Put, PutEntry};
use solely_core::clock::Timestamp;
use solely_core::{Json, StoreError};
use tokio_postgres::Error;

use crate::row::{self, signed};
use crate::transaction::transact;
use crate::{PostgresStore, Tx};

#[async_trait]
impl CacheStore for PostgresStore {
    async fn entries(&self, keys: Vec<EntryKey>) -> Result<Vec<Option<Entry>>, StoreError> {
        let (spaces, names): (Vec<&str>, Vec<&str>) =
            keys.iter().map(|key| (key.space.as_str(), key.key.as_str())).unzip();
        // Each key is looked up by itself: on tables never analysed, ANY may ignore the index.
        let rows = self
            .read(
                "SELECT place, now_ms, value, version, updated_at, fresh_until, stale_until
                   FROM (SELECT solely_now($3) AS now_ms) AS clock,
                        unnest($1::text[], $2::text[]) WITH ORDINALITY AS wanted (space, key, place)
                  CROSS JOIN LATERAL (SELECT * FROM entries
                                       WHERE entries.space = wanted.space AND entries.key = wanted.key
                                       LIMIT 1) AS found
                  WHERE keep_until > now_ms",
                &[&spaces, &names, &self.clock.offset_ms()],
            )
            .await?;
        let mut entries: Vec<Option<Entry>> = vec![None; keys.len()];
        for found in &rows {
            let place = usize::try_from(found.get::<_, i64>(0) - 1).unwrap_or(0);
            entries[place] = Some(entry(keys[place].clone(), found));
        }
        Ok(entries)
    }

    async fn put_entries(&self, entries: Vec<PutEntry>) -> Result<Vec<Put>, StoreError> {
        transact!(self, |tx| async {
            let now = tx.now().await?;
            put_all(tx, &entries, now).await
        }
        .await)
    }

    async fn forget_entry(&self, key: EntryKey) -> Result<bool, StoreError> {
        transact!(self, |tx| async {
            let forgotten = tx
                .execute("DELETE FROM entries WHERE space = $1 AND key = $2", &[&key.space, &key.key])
                .await?;
            Ok(forgotten == 1)
        }
        .await)
    }
}

fn entry(key: EntryKey, found: &tokio_postgres::Row) -> Entry {
    let now = row::time(found, 1);
    let (fresh_until, stale_until) = (row::time(found, 5), row::time(found, 6));
    let age = if now < fresh_until {
        Age::Fresh
    } else if now < stale_until {
        Age::Stale
    } else {
        Age::Gone
    };
    Entry {
        key,
        value: Json::from_stored(found.get(2)),
        version: row::unsigned(found, 3),
        updated_at: row::time(found, 4),
        fresh_until,
        stale_until,
        age,
    }
}

/// Writes entries in the order of their keys; answers in the order given.
pub(crate) async fn put_all(tx: &Tx<'_>, entries: &[PutEntry], now: Timestamp) -> Result<Vec<Put>, Error> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by(|&a, &b| (&entries[a].key, a).cmp(&(&entries[b].key, b)));
    let mut outcomes = vec![Put::Outdated { version: 0 }; entries.len()];
    for place in order {
        outcomes[place] = put(tx, &entries[place], now).await?;
    }
    Ok(outcomes)
}

/// Writes one entry, if its version allows.
async fn put(tx: &Tx<'_>, entry: &PutEntry, now: Timestamp) -> Result<Put, Error> {
    let version = match entry.overwrite {
        Overwrite::Always => None,
        Overwrite::Above(version) => Some(signed(version)),
    };
    let ends = |life| now.plus(life).as_millis();
    let stored = tx
        .optional(
            "INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
             VALUES ($1, $2, $3, coalesce($4::bigint, 1), $5, $6, $7, $8)
             ON CONFLICT (space, key) DO UPDATE
                SET value = excluded.value, version = coalesce($4::bigint, entries.version + 1),
                    updated_at = excluded.updated_at, fresh_until = excluded.fresh_until,
                    stale_until = excluded.stale_until, keep_until = excluded.keep_until
              WHERE $4::bigint IS NULL OR $4::bigint > entries.version
             RETURNING version",
            &[
                &entry.key.space,
                &entry.key.key,
                &entry.value.as_str(),
                &version,
                &now.as_millis(),
                &ends(entry.lifetimes.fresh),
                &ends(entry.lifetimes.stale),
                &ends(entry.lifetimes.keep),
            ],
        )
        .await?;
    if let Some(stored) = stored {
        return Ok(Put::Stored { version: row::unsigned(&stored, 0) });
    }
    let newer = tx
        .one("SELECT version FROM entries WHERE space = $1 AND key = $2", &[&entry.key.space, &entry.key.key])
        .await?;
    Ok(Put::Outdated { version: row::unsigned(&newer, 0) })
}
