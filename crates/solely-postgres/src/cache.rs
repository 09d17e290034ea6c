//! Cache entries.

use std::time::Duration;

use async_trait::async_trait;
use solely_core::cache::{
    Age, CacheStore, Change, ChangeCursor, Changes, Entry, EntryKey, Overwrite, Put, PutEntry,
};
use solely_core::clock::Timestamp;
use solely_core::event::NewEvent;
use solely_core::{Json, StoreError, limits};
use tokio_postgres::{Error, Row};

use crate::row::{self, millis, signed};
use crate::transaction::transact;
use crate::{PostgresStore, Tx, event};

#[async_trait]
impl CacheStore for PostgresStore {
    async fn entries(&self, keys: Vec<EntryKey>) -> Result<Vec<Option<Entry>>, StoreError> {
        self.kept(keys, false).await
    }

    async fn kept_entries(&self, keys: Vec<EntryKey>) -> Result<Vec<Option<Entry>>, StoreError> {
        self.kept(keys, true).await
    }

    async fn put_entries(&self, entries: Vec<PutEntry>) -> Result<Vec<Put>, StoreError> {
        transact!(self.work, |tx| async { put_all(tx, &entries, None).await }.await)
    }

    async fn forget_entry(
        &self,
        key: EntryKey,
        keep: Duration,
        told: Option<NewEvent>,
    ) -> Result<Option<Timestamp>, StoreError> {
        transact!(self.work, |tx| async {
            let now = tx.now().await?;
            let rows = tx
                .query(
                    "UPDATE entries
                        SET forgotten = true, updated_at = greatest($3, updated_at + 1),
                            fresh_until = $3, stale_until = $3, keep_until = $4
                      WHERE space = $1 AND key = $2 AND NOT forgotten AND stale_until > $3
                     RETURNING updated_at",
                    &[
                        &key.space,
                        &key.key,
                        &now.as_millis(),
                        &now.plus(keep.max(limits::FORGOTTEN_FOR)).as_millis(),
                    ],
                )
                .await?;
            let at = rows.first().map(|found| row::time(found, 0));
            if let (Some(_), Some(told)) = (at, &told) {
                event::insert(tx, std::slice::from_ref(told), now).await?;
            }
            Ok(at)
        }
        .await)
    }

    /// First who still writes, then what is there: whoever is not among the first has committed,
    /// and is seen, or has yet to look at the clock. Every transaction that writes has its id from
    /// the start.
    async fn changes(&self, after: ChangeCursor, limit: u32) -> Result<Changes, StoreError> {
        let offset_ms = self.work.clock.offset_ms();
        let rows = self
            .read(
                "SELECT id, $1 + floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint,
                        $1 + begun, hidden
                   FROM store_identity,
                        (SELECT floor(extract(epoch FROM min(xact_start)) * 1000)::bigint AS begun,
                                coalesce(bool_or(xact_start IS NULL), false) AS hidden
                           FROM pg_stat_activity
                          WHERE datname = current_database() AND backend_xid IS NOT NULL) AS writing",
                &[&offset_ms],
            )
            .await?;
        let Some(clock) = rows.first() else {
            return Err(StoreError::Unusable("the store has no identity".to_owned()));
        };
        let (store, now) = (clock.get(0), row::time(clock, 1));
        let begun = clock.get::<_, Option<i64>>(2).map_or(now, Timestamp::from_millis);
        // Of another role's transaction it is seen that it writes, and not since when.
        let begun = if clock.get(3) { Timestamp::from_millis(1) } else { begun };
        let complete_until = Timestamp::from_millis(now.min(begun).as_millis() - 1);
        // Without a key: after all keys of that instant.
        let at = after.at.as_millis();
        let (at, space, key) = match &after.key {
            Some(key) => (at, key.space.as_str(), key.key.as_str()),
            None => (at.saturating_add(1), "", ""),
        };
        let rows = self
            .read(
                "SELECT value, version, updated_at, fresh_until, stale_until, space, key,
                        forgotten OR keep_until <= $4
                   FROM entries
                  WHERE (updated_at, space, key) > ($1, $2, $3)
                  ORDER BY updated_at, space, key
                  LIMIT $5",
                &[&at, &space, &key, &now.as_millis(), &i64::from(limit)],
            )
            .await?;
        let change = |found: &Row| {
            let key = EntryKey::new(found.get::<_, String>(5), found.get::<_, String>(6));
            let entry = (!found.get::<_, bool>(7)).then(|| entry_of(found, key.clone(), now));
            Change { key, updated_at: row::time(found, 2), entry }
        };
        let changes: Vec<Change> = rows.iter().map(change).collect();
        let next = changes.last().filter(|_| changes.len() >= limit as usize);
        let next = next.map(|last| ChangeCursor { at: last.updated_at, key: Some(last.key.clone()) });
        Ok(Changes { store, now, complete_until, changes, next })
    }
}

impl PostgresStore {
    /// Entries that are kept; those that were forgotten only if that is asked for, and then as gone.
    async fn kept(&self, keys: Vec<EntryKey>, forgotten: bool) -> Result<Vec<Option<Entry>>, StoreError> {
        let (spaces, names): (Vec<&str>, Vec<&str>) =
            keys.iter().map(|key| (key.space.as_str(), key.key.as_str())).unzip();
        // Each key is looked up by itself: on tables never analysed, ANY may ignore the index.
        let rows = self
            .read(
                "SELECT value, version, updated_at, CASE WHEN forgotten THEN 0 ELSE fresh_until END,
                        CASE WHEN forgotten THEN 0 ELSE stale_until END, now_ms, place
                   FROM (SELECT solely_now($3) AS now_ms) AS clock,
                        unnest($1::text[], $2::text[]) WITH ORDINALITY AS wanted (space, key, place)
                  CROSS JOIN LATERAL (SELECT * FROM entries
                                       WHERE entries.space = wanted.space AND entries.key = wanted.key
                                       LIMIT 1) AS found
                  WHERE keep_until > now_ms AND (NOT forgotten OR $4)",
                &[&spaces, &names, &self.work.clock.offset_ms(), &forgotten],
            )
            .await?;
        let mut entries: Vec<Option<Entry>> = vec![None; keys.len()];
        for found in &rows {
            let place = usize::try_from(found.get::<_, i64>(6) - 1).unwrap_or(0);
            entries[place] = Some(entry_of(found, keys[place].clone(), row::time(found, 5)));
        }
        Ok(entries)
    }
}

fn entry_of(found: &Row, key: EntryKey, now: Timestamp) -> Entry {
    let (fresh_until, stale_until) = (row::time(found, 3), row::time(found, 4));
    Entry {
        key,
        value: Json::from_stored(found.get(0)),
        version: row::unsigned(found, 1),
        updated_at: row::time(found, 2),
        fresh_until,
        stale_until,
        as_of: now,
        age: Age::of(now, fresh_until, stale_until),
    }
}

/// Writes entries in the order of their keys, now or at an instant that was looked at before; answers in the
/// order given.
pub(crate) async fn put_all(
    tx: &Tx<'_>,
    entries: &[PutEntry],
    now: Option<Timestamp>,
) -> Result<Vec<Put>, Error> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by(|&a, &b| (&entries[a].key, a).cmp(&(&entries[b].key, b)));
    let column = |of: fn(&PutEntry) -> &str| order.iter().map(|&n| of(&entries[n])).collect::<Vec<&str>>();
    let number = |of: fn(&PutEntry) -> i64| order.iter().map(|&n| of(&entries[n])).collect::<Vec<i64>>();
    let version = |entry: &PutEntry| match entry.overwrite {
        Overwrite::Always => None,
        Overwrite::Above(version) => Some(signed(version)),
        Overwrite::IfGone => Some(-1),
    };
    let told = |of: fn(&NewEvent) -> Option<&str>| {
        order.iter().map(|&n| entries[n].told.as_ref().and_then(of)).collect::<Vec<Option<&str>>>()
    };
    let rows = tx
        .query(
            "SELECT * FROM solely_put_told($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)",
            &[
                &column(|entry| &entry.key.space),
                &column(|entry| &entry.key.key),
                &column(|entry| entry.value.as_str()),
                &order.iter().map(|&n| version(&entries[n])).collect::<Vec<Option<i64>>>(),
                &number(|entry| millis(entry.lifetimes.fresh)),
                &number(|entry| millis(entry.lifetimes.stale)),
                &number(|entry| millis(entry.lifetimes.keep)),
                &now.map(Timestamp::as_millis),
                &tx.offset_ms(),
                &told(|told| Some(&told.subject)),
                &told(|told| Some(&told.event)),
                &told(|told| told.outcome.as_deref()),
                &told(|told| told.reason.as_deref()),
                &told(|told| told.request_id.as_deref()),
                &told(|told| Some(told.details.as_str())),
                &told(|told| told.topic.as_deref()),
            ],
        )
        .await?;
    let mut outcomes = vec![Put::Outdated { version: 0 }; entries.len()];
    for row in &rows {
        let version = row::unsigned(row, 2);
        let updated_at = row::time(row, 3);
        let outcome =
            if row.get(1) { Put::Stored { version, updated_at } } else { Put::Outdated { version } };
        outcomes[order[row::place(row, 0)]] = outcome;
    }
    Ok(outcomes)
}
