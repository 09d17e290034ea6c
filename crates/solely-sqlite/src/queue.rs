//! Queues as people see them.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rusqlite::types::ToSql;
use rusqlite::{Connection, Error, OptionalExtension};
use solely_core::clock::Timestamp;
use solely_core::job::Job;
use solely_core::queue::{JobFilter, Queue, QueueStore};
use solely_core::{JobId, StoreError};

use crate::SqliteStore;
use crate::row::{self, JOB_COLUMNS, LISTED_COLUMNS};

#[async_trait]
impl QueueStore for SqliteStore {
    async fn job(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        self.read(move |conn| {
            let mut find = conn.prepare_cached(&format!("SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?1"))?;
            find.query_row([id.as_bytes()], row::job).optional()
        })
        .await
    }

    async fn jobs(&self, filter: JobFilter) -> Result<Vec<Job>, StoreError> {
        self.read(move |conn| list(conn, &filter)).await
    }

    async fn queues(&self) -> Result<Vec<Queue>, StoreError> {
        let now = self.writer.now();
        self.read(move |conn| queues(conn, now)).await
    }

    async fn pause(&self, queue: String, until: Option<Timestamp>) -> Result<(), StoreError> {
        self.writer
            .run("pause", move |tx| {
                let Some(until) = until else {
                    let mut resume = tx.conn.prepare_cached("DELETE FROM queues WHERE name = ?1")?;
                    return resume.execute([&queue]).map(drop);
                };
                let mut upsert = tx.conn.prepare_cached(
                    "INSERT INTO queues (name, paused_until) VALUES (?1, ?2)
                     ON CONFLICT (name) DO UPDATE SET paused_until = excluded.paused_until",
                )?;
                upsert.execute((&queue, until.as_millis())).map(drop)
            })
            .await
    }
}

fn list(conn: &Connection, filter: &JobFilter) -> Result<Vec<Job>, Error> {
    let mut conditions = vec![if filter.live { "live = 1" } else { "1" }];
    let mut values: Vec<&dyn ToSql> = Vec::new();
    let state = filter.state.map(solely_core::job::JobState::code);
    let before = filter.before.as_ref().map(|id| id.as_bytes().as_slice());
    if let Some(queue) = &filter.queue {
        conditions.push("queue = ?");
        values.push(queue);
    }
    if let Some(key) = &filter.key {
        conditions.push("key = ?");
        values.push(key);
    }
    if let Some(state) = &state {
        // Said twice, so that the planner sees which partial index has them.
        let with_index = if *state >= 2 {
            "state = ? AND ends_at IS NOT NULL"
        } else {
            "state = ? AND due_at IS NOT NULL"
        };
        conditions.push(with_index);
        values.push(state);
    }
    if let Some(before) = &before {
        conditions.push("id < ?");
        values.push(before);
    }
    values.push(&filter.limit);
    let sql = format!(
        "SELECT {LISTED_COLUMNS} FROM jobs WHERE {} ORDER BY id DESC LIMIT ?",
        conditions.join(" AND ")
    );
    let mut select = conn.prepare_cached(&sql)?;
    select.query_map(values.as_slice(), row::job)?.collect()
}

fn queues(conn: &Connection, now: Timestamp) -> Result<Vec<Queue>, Error> {
    let mut queues: BTreeMap<String, Queue> = BTreeMap::new();
    let mut each = |sql: &str, set: &dyn Fn(&mut Queue, u64, Option<Timestamp>)| -> Result<(), Error> {
        let mut select = conn.prepare_cached(sql)?;
        let mut rows = select.query([])?;
        while let Some(found) = rows.next()? {
            let name: String = found.get(0)?;
            let at = found.get::<_, Option<i64>>(2)?.map(Timestamp::from_millis);
            let queue = queues.entry(name.clone()).or_insert_with(|| Queue::empty(name));
            set(queue, row::unsigned(found, 1)?, at);
        }
        Ok(())
    };
    each(
        "SELECT queue, count(*), min(due_at) FROM jobs WHERE due_at IS NOT NULL GROUP BY queue",
        &|queue, count, oldest| {
            queue.ready = count;
            let age = oldest.map_or(0, |at| now.since(at).as_millis());
            queue.oldest_age_ms = u64::try_from(age).unwrap_or(u64::MAX);
        },
    )?;
    each(
        "SELECT queue, count(*), NULL FROM jobs WHERE state = 2 AND ends_at IS NOT NULL GROUP BY queue",
        &|queue, count, _| queue.running = count,
    )?;
    each(
        "SELECT queue, count(*), NULL FROM jobs WHERE state = 4 AND ends_at IS NOT NULL GROUP BY queue",
        &|queue, count, _| {
            queue.dead = count;
        },
    )?;
    each("SELECT name, 0, paused_until FROM queues", &|queue, _, until| {
        queue.paused_until = until.filter(|until| *until > now);
    })?;
    Ok(queues.into_values().collect())
}
