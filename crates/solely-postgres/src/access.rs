//! Keys and tickets.

use async_trait::async_trait;
use solely_core::access::{AccessStore, Caller, Key, NewKey, NewTicket};
use solely_core::clock::Timestamp;
use solely_core::{Json, StoreError};
use tokio_postgres::Row;

use crate::PostgresStore;
use crate::row;
use crate::transaction::transact;

#[async_trait]
impl AccessStore for PostgresStore {
    async fn create_key(&self, key: NewKey) -> Result<(), StoreError> {
        let scopes = Json::of(&key.scopes);
        transact!(self.work, |tx| async {
            let now = tx.now().await?.as_millis();
            let sql = "INSERT INTO api_keys (id, name, scopes, hash, created_at) VALUES ($1, $2, $3, $4, $5)";
            tx.execute(sql, &[&key.id, &key.name, &scopes.as_str(), &key.hash, &now]).await.map(drop)
        }
        .await)
    }

    async fn keys(&self) -> Result<Vec<Key>, StoreError> {
        let sql = "SELECT id, name, scopes, created_at, revoked_at FROM api_keys ORDER BY created_at, id";
        Ok(self.read(sql, &[]).await?.iter().map(key_of).collect())
    }

    async fn key(&self, id: String) -> Result<Option<(Key, String)>, StoreError> {
        let sql = "SELECT id, name, scopes, created_at, revoked_at, hash FROM api_keys WHERE id = $1";
        let rows = self.read(sql, &[&id]).await?;
        Ok(rows.first().map(|found| (key_of(found), found.get(5))))
    }

    async fn revoke_key(&self, id: String) -> Result<bool, StoreError> {
        transact!(self.work, |tx| async {
            let now = tx.now().await?.as_millis();
            let sql = "UPDATE api_keys SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL";
            Ok(tx.execute(sql, &[&id, &now]).await? == 1)
        }
        .await)
    }

    async fn create_ticket(&self, ticket: NewTicket) -> Result<Timestamp, StoreError> {
        let caller = Json::of(&ticket.caller);
        transact!(self.work, |tx| async {
            let ends = tx.now().await?.plus(ticket.ttl);
            let sql = "INSERT INTO tickets (hash, caller, expires_at) VALUES ($1, $2, $3)";
            tx.execute(sql, &[&ticket.hash, &caller.as_str(), &ends.as_millis()]).await?;
            Ok(ends)
        }
        .await)
    }

    async fn take_ticket(&self, hash: String) -> Result<Option<Caller>, StoreError> {
        transact!(self.work, |tx| async {
            let now = tx.now().await?.as_millis();
            let sql = "DELETE FROM tickets WHERE hash = $1 RETURNING caller, expires_at > $2";
            let rows = tx.query(sql, &[&hash, &now]).await?;
            let live = rows.first().filter(|found| found.get(1));
            Ok(live.and_then(|found| Json::from_stored(found.get(0)).parse().ok()))
        }
        .await)
    }
}

fn key_of(found: &Row) -> Key {
    Key {
        id: found.get(0),
        name: found.get(1),
        scopes: Json::from_stored(found.get(2)).parse().unwrap_or_default(),
        created_at: row::time(found, 3),
        revoked_at: found.get::<_, Option<i64>>(4).map(Timestamp::from_millis),
    }
}
