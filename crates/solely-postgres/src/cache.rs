//! Cache entries.

use async_trait::async_trait;
use solely_core::cache::{Age, CacheStore, Entry, EntryKey, Overwrite, Put, PutEntry};
use solely_core::clock::Timestamp;
use solely_core::{Json, StoreError};
use tokio_postgres::Error;

use crate::row::{self, millis, signed};
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
                &[&spaces, &names, &self.work.clock.offset_ms()],
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
        transact!(self.work, |tx| async {
            let now = tx.now().await?;
            put_all(tx, &entries, now).await
        }
        .await)
    }

    async fn forget_entry(&self, key: EntryKey) -> Result<bool, StoreError> {
        transact!(self.work, |tx| async {
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
    let column = |of: fn(&PutEntry) -> &str| order.iter().map(|&n| of(&entries[n])).collect::<Vec<&str>>();
    let number = |of: fn(&PutEntry) -> i64| order.iter().map(|&n| of(&entries[n])).collect::<Vec<i64>>();
    let version = |entry: &PutEntry| match entry.overwrite {
        Overwrite::Always => None,
        Overwrite::Above(version) => Some(signed(version)),
    };
    let rows = tx
        .query(
            "SELECT * FROM solely_put_entries($1, $2, $3, $4, $5, $6, $7, $8)",
            &[
                &column(|entry| &entry.key.space),
                &column(|entry| &entry.key.key),
                &column(|entry| entry.value.as_str()),
                &order.iter().map(|&n| version(&entries[n])).collect::<Vec<Option<i64>>>(),
                &number(|entry| millis(entry.lifetimes.fresh)),
                &number(|entry| millis(entry.lifetimes.stale)),
                &number(|entry| millis(entry.lifetimes.keep)),
                &now.as_millis(),
            ],
        )
        .await?;
    let mut outcomes = vec![Put::Outdated { version: 0 }; entries.len()];
    for row in &rows {
        let version = row::unsigned(row, 2);
        let outcome = if row.get(1) { Put::Stored { version } } else { Put::Outdated { version } };
        outcomes[order[row::place(row, 0)]] = outcome;
    }
    Ok(outcomes)
}
