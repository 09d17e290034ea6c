//! Keys and tickets.

use async_trait::async_trait;
use rusqlite::{Error, OptionalExtension, Row, params};
use solely_core::access::{AccessStore, Caller, Key, NewKey, NewTicket};
use solely_core::clock::Timestamp;
use solely_core::{Json, StoreError};

use crate::SqliteStore;
use crate::row;

#[async_trait]
impl AccessStore for SqliteStore {
    async fn create_key(&self, key: NewKey) -> Result<(), StoreError> {
        self.writer
            .run("create_key", move |tx| {
                let scopes = Json::of(&key.scopes);
                tx.conn
                    .prepare_cached(
                        "INSERT INTO api_keys (id, name, scopes, hash, created_at) VALUES (?1, ?2, ?3, ?4, ?5)",
                    )?
                    .execute(params![key.id, key.name, scopes.as_str(), key.hash, tx.now_ms()])
                    .map(drop)
            })
            .await
    }

    async fn keys(&self) -> Result<Vec<Key>, StoreError> {
        self.read(|conn| {
            let mut list = conn.prepare_cached(
                "SELECT id, name, scopes, created_at, revoked_at FROM api_keys ORDER BY created_at, id",
            )?;
            list.query_map([], key_of)?.collect()
        })
        .await
    }

    async fn key(&self, id: String) -> Result<Option<(Key, String)>, StoreError> {
        self.read(move |conn| {
            let mut find = conn.prepare_cached(
                "SELECT id, name, scopes, created_at, revoked_at, hash FROM api_keys WHERE id = ?1",
            )?;
            find.query_row([&id], |found| Ok((key_of(found)?, found.get(5)?))).optional()
        })
        .await
    }

    async fn revoke_key(&self, id: String) -> Result<bool, StoreError> {
        self.writer
            .run("revoke_key", move |tx| {
                let sql = "UPDATE api_keys SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL";
                Ok(tx.conn.prepare_cached(sql)?.execute((&id, tx.now_ms()))? == 1)
            })
            .await
    }

    async fn create_ticket(&self, ticket: NewTicket) -> Result<Timestamp, StoreError> {
        self.writer
            .run("create_ticket", move |tx| {
                let (ends, caller) = (tx.now.plus(ticket.ttl), Json::of(&ticket.caller));
                tx.conn
                    .prepare_cached("INSERT INTO tickets (hash, caller, expires_at) VALUES (?1, ?2, ?3)")?
                    .execute(params![ticket.hash, caller.as_str(), ends.as_millis()])?;
                Ok(ends)
            })
            .await
    }

    async fn take_ticket(&self, hash: String) -> Result<Option<Caller>, StoreError> {
        self.writer
            .run("take_ticket", move |tx| {
                let sql = "DELETE FROM tickets WHERE hash = ?1 RETURNING caller, expires_at > ?2";
                let taken = tx
                    .conn
                    .prepare_cached(sql)?
                    .query_row((&hash, tx.now_ms()), |found| {
                        Ok((Json::from_stored(found.get(0)?), found.get::<_, bool>(1)?))
                    })
                    .optional()?;
                Ok(taken.filter(|(_, live)| *live).and_then(|(caller, _)| caller.parse().ok()))
            })
            .await
    }
}

fn key_of(found: &Row<'_>) -> Result<Key, Error> {
    Ok(Key {
        id: found.get(0)?,
        name: found.get(1)?,
        scopes: Json::from_stored(found.get(2)?).parse().unwrap_or_default(),
        created_at: row::time(found, 3)?,
        revoked_at: found.get::<_, Option<i64>>(4)?.map(Timestamp::from_millis),
    })
}
