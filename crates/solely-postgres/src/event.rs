//! Events: timeline, audit and outbox.

use async_trait::async_trait;
use solely_core::clock::Timestamp;
use solely_core::event::{Event, EventId, EventStore, NewEvent};
use solely_core::reserve::ToldByRows;
use solely_core::{Json, StoreError};
use tokio_postgres::{Error, Row};

use crate::row;
use crate::transaction::{Write, transact};
use crate::{PostgresStore, Tx, reserve};

#[async_trait]
impl EventStore for PostgresStore {
    async fn append(&self, events: Vec<NewEvent>) -> Result<(), StoreError> {
        transact!(self.work, |tx| async {
            let now = tx.now().await?;
            insert(tx, &events, now).await
        }
        .await)
    }

    async fn timeline(
        &self,
        subject: String,
        after: Option<EventId>,
        limit: u32,
    ) -> Result<Vec<Event>, StoreError> {
        let after = after.map_or(0, |id| id.0);
        if let Some(told) = ToldByRows::about(&subject) {
            return reserve::timeline(self, &subject, told, after, limit).await;
        }
        let sql = format!("{} ORDER BY id LIMIT $3", about(COLUMNS));
        let rows = self.read(&sql, &[&subject, &after, &i64::from(limit)]).await?;
        Ok(rows.iter().map(|found| event(found, 0)).collect())
    }

    async fn outbox(&self, topic: String, limit: u32) -> Result<Vec<Event>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM events WHERE topic = $1 ORDER BY id LIMIT $2");
        let rows = self.read(&sql, &[&topic, &i64::from(limit)]).await?;
        Ok(rows.iter().map(|found| event(found, 0)).collect())
    }
}

/// Columns of what was written of a subject after an event: each by its own index.
pub(crate) fn about(columns: &str) -> String {
    let of = |column| {
        format!("(SELECT {columns} FROM events WHERE {column} = $1 AND id > $2 ORDER BY id LIMIT $3)")
    };
    format!("{} UNION ALL {}", of("subject"), of("also"))
}

const COLUMNS: &str = "id, at, subject, event, outcome, reason, request_id, details, topic, also";

/// The columns of an event, of a table by this name.
pub(crate) fn prefixed(table: &str) -> String {
    COLUMNS.split(", ").map(|column| format!("{table}.{column}")).collect::<Vec<_>>().join(", ")
}

/// An event, whose columns begin at this one.
pub(crate) fn event(found: &Row, first: usize) -> Event {
    Event {
        id: EventId(found.get(first)),
        at: row::time(found, first + 1),
        told: NewEvent {
            subject: found.get(first + 2),
            event: found.get(first + 3),
            outcome: found.get(first + 4),
            reason: found.get(first + 5),
            request_id: found.get(first + 6),
            details: Json::from_stored(found.get(first + 7)),
            topic: found.get(first + 8),
            also: found.get(first + 9),
        },
    }
}

/// Writes events in the transaction of what they tell of: one statement for all.
pub(crate) async fn insert(tx: &Tx<'_>, events: &[NewEvent], now: Timestamp) -> Result<(), Error> {
    match insertion(events, now) {
        Some(write) => tx.write_in_a_row(vec![write]).await,
        None => Ok(()),
    }
}

/// The statement that writes events; none if there are none.
pub(crate) fn insertion(events: &[NewEvent], now: Timestamp) -> Option<Write<'_>> {
    if events.is_empty() {
        return None;
    }
    let column = |of: fn(&NewEvent) -> &str| Box::new(events.iter().map(of).collect::<Vec<&str>>());
    let maybe =
        |of: fn(&NewEvent) -> Option<&str>| Box::new(events.iter().map(of).collect::<Vec<Option<&str>>>());
    let sql = "INSERT INTO events (at, subject, event, outcome, reason, request_id, details, topic, also)
         SELECT $1::bigint, subject, event, outcome, reason, request_id, details, topic, also
           FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[])
                WITH ORDINALITY
                AS told (subject, event, outcome, reason, request_id, details, topic, also, place)
          ORDER BY place";
    Some(Write {
        sql: sql.to_owned(),
        values: vec![
            Box::new(now.as_millis()),
            column(|told| &told.subject),
            column(|told| &told.event),
            maybe(|told| told.outcome.as_deref()),
            maybe(|told| told.reason.as_deref()),
            maybe(|told| told.request_id.as_deref()),
            column(|told| told.details.as_str()),
            maybe(|told| told.topic.as_deref()),
            maybe(|told| told.also.as_deref()),
        ],
    })
}

/// Takes delivered events out of the outbox; they stay in the timeline.
pub(crate) async fn mark_delivered(tx: &Tx<'_>, ids: &[EventId]) -> Result<(), Error> {
    let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
    tx.execute("UPDATE events SET topic = NULL WHERE id = ANY($1)", &[&ids]).await.map(drop)
}
