//! Events: timeline, audit and outbox.

use async_trait::async_trait;
use rusqlite::{Connection, Error, Row, params};
use solely_core::event::{Event, EventId, EventStore, NewEvent};
use solely_core::reserve::page;
use solely_core::{Json, StoreError};

use crate::writer::Tx;
use crate::{SqliteStore, reserve, row};

#[async_trait]
impl EventStore for SqliteStore {
    async fn append(&self, events: Vec<NewEvent>) -> Result<(), StoreError> {
        self.writer.run("append", move |tx| events.iter().try_for_each(|told| insert(tx, told))).await
    }

    async fn timeline(
        &self,
        subject: String,
        after: Option<EventId>,
        limit: u32,
    ) -> Result<Vec<Event>, StoreError> {
        let after = after.map_or(0, |id| id.0);
        self.read(move |conn| {
            let written = select(conn, &["subject", "also"], &subject, after, limit)?;
            Ok(page(written, reserve::told_by_rows(conn, &subject, after, limit)?, limit))
        })
        .await
    }

    async fn outbox(&self, topic: String, limit: u32) -> Result<Vec<Event>, StoreError> {
        self.read(move |conn| select(conn, &["topic"], &topic, 0, limit)).await
    }
}

/// Events of which one of these columns has a value, in order: each column by its own index.
fn select(
    conn: &Connection,
    columns: &[&str],
    value: &str,
    after: i64,
    limit: u32,
) -> Result<Vec<Event>, Error> {
    let mut events: Vec<Event> = Vec::new();
    for column in columns {
        let mut select = conn.prepare_cached(&format!(
            "SELECT id, at, subject, event, outcome, reason, request_id, details, topic, also
               FROM events
              WHERE {column} = ?1 AND id > ?2
              ORDER BY id
              LIMIT ?3"
        ))?;
        for found in select.query_map((value, after, limit), event)? {
            events.push(found?);
        }
    }
    events.sort_by_key(|event| event.id);
    events.truncate(limit as usize);
    Ok(events)
}

/// The latest events of a subject, in order.
pub(crate) fn latest(conn: &Connection, subject: &str) -> Result<Vec<Event>, Error> {
    let mut select = conn.prepare_cached(
        "SELECT id, at, subject, event, outcome, reason, request_id, details, topic, also
           FROM events WHERE subject = ?1 ORDER BY id DESC LIMIT 1",
    )?;
    select.query_map([subject], event)?.collect()
}

/// What was told of a subject after an event, in order.
pub(crate) fn after(
    conn: &Connection,
    subject: &str,
    after: EventId,
    limit: u32,
) -> Result<Vec<Event>, Error> {
    let mut select = conn.prepare_cached(
        "SELECT id, at, subject, event, outcome, reason, request_id, details, topic, also
           FROM events WHERE subject = ?1 AND id > ?2 ORDER BY id LIMIT ?3",
    )?;
    select.query_map((subject, after.0, limit), event)?.collect()
}

fn event(found: &Row<'_>) -> Result<Event, Error> {
    Ok(Event {
        id: EventId(found.get(0)?),
        at: row::time(found, 1)?,
        told: NewEvent {
            subject: found.get(2)?,
            event: found.get(3)?,
            outcome: found.get(4)?,
            reason: found.get(5)?,
            request_id: found.get(6)?,
            details: Json::from_stored(found.get(7)?),
            topic: found.get(8)?,
            also: found.get(9)?,
        },
    })
}

/// Writes one event in the transaction of what it tells of.
pub(crate) fn insert(tx: &Tx<'_>, told: &NewEvent) -> Result<(), Error> {
    insert_all(tx, std::slice::from_ref(told))
}

/// Writes events in the transaction of what they tell of, in their order.
pub(crate) fn insert_all(tx: &Tx<'_>, events: &[NewEvent]) -> Result<(), Error> {
    if events.is_empty() {
        return Ok(());
    }
    let mut insert = tx.conn.prepare_cached(
        "INSERT INTO events (at, subject, event, outcome, reason, request_id, details, topic, also)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?;
    for told in events {
        insert.execute(params![
            tx.now_ms(),
            told.subject,
            told.event,
            told.outcome,
            told.reason,
            told.request_id,
            told.details.as_str(),
            told.topic,
            told.also,
        ])?;
    }
    Ok(())
}

/// Takes so many numbers of events for what is told by other rows; the one before the first of them.
pub(crate) fn numbers(tx: &Tx<'_>, count: usize) -> Result<i64, Error> {
    if count == 0 {
        return Ok(0);
    }
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let mut take =
        tx.conn.prepare_cached("UPDATE sqlite_sequence SET seq = seq + ?1 WHERE name = 'events'")?;
    if take.execute([count])? == 0 {
        // Nothing was ever told.
        let sql = "INSERT INTO sqlite_sequence (name, seq) VALUES ('events', ?1)";
        tx.conn.prepare_cached(sql)?.execute([count])?;
    }
    let mut last = tx.conn.prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = 'events'")?;
    Ok(last.query_row([], |found| found.get::<_, i64>(0))? - count)
}

/// Takes a delivered event out of the outbox; it stays in the timeline.
pub(crate) fn mark_delivered(tx: &Tx<'_>, id: EventId) -> Result<(), Error> {
    tx.conn.prepare_cached("UPDATE events SET topic = NULL WHERE id = ?1")?.execute([id.0]).map(drop)
}
