//! Queues as people see them.

use std::collections::BTreeMap;

use async_trait::async_trait;
use solely_core::clock::Timestamp;
use solely_core::job::Job;
use solely_core::queue::{JobFilter, Queue, QueueStore};
use solely_core::{JobId, StoreError};
use tokio_postgres::types::ToSql;

use crate::PostgresStore;
use crate::row::{self, JOB_COLUMNS, LISTED_COLUMNS};
use crate::transaction::transact;

#[async_trait]
impl QueueStore for PostgresStore {
    async fn job(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        let sql = format!("SELECT {JOB_COLUMNS} FROM jobs WHERE id = $1");
        Ok(self.read(&sql, &[&row::uuid(id.as_bytes())]).await?.first().map(row::job))
    }

    async fn jobs(&self, filter: JobFilter) -> Result<Vec<Job>, StoreError> {
        let state = filter.state.map(|state| i16::from(state.code()));
        let before = filter.before.map(|id| row::uuid(id.as_bytes()));
        let limit = i64::from(filter.limit);
        // Only what is asked for is a condition, so that the plan can use it.
        let given: [(&str, Option<&(dyn ToSql + Sync)>); 4] = [
            ("queue =", filter.queue.as_ref().map(|queue| queue as _)),
            ("key =", filter.key.as_ref().map(|key| key as _)),
            ("state =", state.as_ref().map(|state| state as _)),
            ("id <", before.as_ref().map(|id| id as _)),
        ];
        let (mut values, mut conditions): (Vec<&(dyn ToSql + Sync)>, _) =
            (vec![&limit], if filter.live { "state <= 2" } else { "true" }.to_owned());
        for (condition, value) in given.into_iter().filter_map(|(condition, value)| Some((condition, value?)))
        {
            values.push(value);
            conditions = format!("{conditions} AND {condition} ${}", values.len());
        }
        let sql = format!("SELECT {LISTED_COLUMNS} FROM jobs WHERE {conditions} ORDER BY id DESC LIMIT $1");
        let rows = self.read(&sql, &values).await?;
        Ok(rows.iter().map(row::job).collect())
    }

    async fn queues(&self) -> Result<Vec<Queue>, StoreError> {
        let rows = self
            .read(
                "SELECT queue, 'ready', count(*), min(due_at), solely_now($1)
                   FROM jobs WHERE due_at IS NOT NULL GROUP BY queue
                 UNION ALL
                 SELECT queue, 'running', count(*), NULL, 0
                   FROM jobs WHERE state = 2 AND ends_at IS NOT NULL GROUP BY queue
                 UNION ALL
                 SELECT queue, 'dead', count(*), NULL, 0
                   FROM jobs WHERE state = 4 AND ends_at IS NOT NULL GROUP BY queue
                 UNION ALL
                 SELECT name, 'paused', 0, paused_until, 0 FROM queues WHERE paused_until > solely_now($1)",
                &[&self.work.clock.offset_ms()],
            )
            .await?;
        let mut queues: BTreeMap<String, Queue> = BTreeMap::new();
        for found in &rows {
            let name: String = found.get(0);
            let queue = queues.entry(name.clone()).or_insert_with(|| Queue::empty(name));
            let (count, at) =
                (row::unsigned(found, 2), found.get::<_, Option<i64>>(3).map(Timestamp::from_millis));
            match found.get(1) {
                "ready" => {
                    queue.ready = count;
                    let age = at.map_or(0, |at| row::time(found, 4).since(at).as_millis());
                    queue.oldest_age_ms = u64::try_from(age).unwrap_or(u64::MAX);
                }
                "running" => queue.running = count,
                "dead" => queue.dead = count,
                _ => queue.paused_until = at,
            }
        }
        Ok(queues.into_values().collect())
    }

    async fn pause(&self, queue: String, until: Option<Timestamp>) -> Result<(), StoreError> {
        transact!(self.work, |tx| async {
            let Some(until) = until else {
                return tx.execute("DELETE FROM queues WHERE name = $1", &[&queue]).await.map(drop);
            };
            tx.execute(
                "INSERT INTO queues (name, paused_until) VALUES ($1, $2)
                 ON CONFLICT (name) DO UPDATE SET paused_until = excluded.paused_until",
                &[&queue, &until.as_millis()],
            )
            .await
            .map(drop)
        }
        .await)
    }
}
