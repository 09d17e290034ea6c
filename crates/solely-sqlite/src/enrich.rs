//! Requests that wait for lookups.

use async_trait::async_trait;
use rusqlite::{Error, OptionalExtension};
use solely_core::StoreError;
use solely_core::cache::{Age, EntryKey, Lifetimes, Overwrite, PutEntry};
use solely_core::enrich::{
    Ask, Asked, AskingRequest, EnrichStore, NewWait, TOLD_BYTES_MAX, Told, ToldPlace, Waits, request_key,
};
use solely_core::job::Enqueued;
use solely_core::{JobId, Json};

use crate::writer::Tx;
use crate::{SqliteStore, cache, job};

#[async_trait]
impl EnrichStore for SqliteStore {
    async fn wait(&self, ask: Ask) -> Result<Asked, StoreError> {
        self.writer.run("wait", move |tx| wait(tx, &ask)).await
    }
}

fn wait(tx: &Tx<'_>, ask: &Ask) -> Result<Asked, Error> {
    let before = match &ask.request {
        Some(request) => told_before(tx, &request_key(&request.id))?,
        None => None,
    };
    if before.as_ref().is_some_and(|told| told.as_str().len() > TOLD_BYTES_MAX) {
        // One that asks for nothing more is told what it asks for, and no more is remembered.
        return Ok(if ask.waits.is_empty() { Asked::Answered(Vec::new()) } else { Asked::TooMany });
    }
    let (mut answers, mut sinces) =
        (Vec::with_capacity(ask.waits.len()), Vec::with_capacity(ask.waits.len()));
    for wanted in &ask.waits {
        let (answer, since) = wait_for(tx, wanted)?;
        answers.push(answer);
        sinces.push(since);
    }
    // A request of which nothing was ever pending is not remembered; one that is has all its places.
    if let (Some(request), true) = (&ask.request, sinces.iter().any(Option::is_some) || before.is_some()) {
        remember(tx, request, before, ask.waits.iter().zip(sinces))?;
    }
    Ok(Asked::Answered(answers))
}

fn told_before(tx: &Tx<'_>, key: &EntryKey) -> Result<Option<Json>, Error> {
    Ok(cache::entry(tx.conn, key, tx.now, false)?.map(|entry| entry.value))
}

/// What there is, and since when it is waited for. With one writer, a look followed by an insert is one step.
fn wait_for(tx: &Tx<'_>, wanted: &NewWait) -> Result<(Waits, Option<i64>), Error> {
    let seen = cache::entry(tx.conn, &wanted.key, tx.now, true)?;
    let since = seen.as_ref().map_or(-tx.now_ms(), |entry| entry.updated_at.as_millis());
    if let Some(entry) = seen.filter(|entry| entry.age != Age::Gone) {
        return Ok((Waits::Resolved(entry), None));
    }
    let answer = match job::enqueue_one(tx, &wanted.job)? {
        Enqueued::Created => Waits::Made,
        Enqueued::Duplicate { of, .. } if of == wanted.job.id => Waits::Made,
        Enqueued::Duplicate { of, state, .. } => Waits::Known { of, state, by: asker_of(tx, of)? },
        Enqueued::Again { .. } | Enqueued::InWindow { .. } => {
            unreachable!("a lookup is no trigger and has no window")
        }
    };
    Ok((answer, Some(since)))
}

fn asker_of(tx: &Tx<'_>, job: JobId) -> Result<Option<String>, Error> {
    let mut find =
        tx.conn.prepare_cached("SELECT json_extract(attributes, '$.requestId') FROM jobs WHERE id = ?1")?;
    Ok(find.query_row([job.as_bytes()], |found| found.get(0)).optional()?.flatten())
}

fn remember<'a>(
    tx: &Tx<'_>,
    request: &AskingRequest,
    before: Option<Json>,
    waits: impl Iterator<Item = (&'a NewWait, Option<i64>)>,
) -> Result<(), Error> {
    let mut told = before.and_then(|before| before.parse::<Told>().ok()).unwrap_or_default();
    // What it was told earlier can be asked about for as long as the request can.
    for key in told.0.keys().filter_map(|name| Told::key(name)) {
        cache::keep_for(tx, &key, request.ttl)?;
    }
    told.add(request.told.clone());
    told.add(Told(
        waits
            .map(|(wanted, since)| {
                let (name, place) = (wanted.name.clone(), wanted.place);
                (Told::name(&wanted.key), ToldPlace { name, place, since })
            })
            .collect(),
    ));
    let lifetimes = Lifetimes { fresh: request.ttl, stale: request.ttl, keep: request.ttl };
    let entry = PutEntry {
        key: request_key(&request.id),
        value: Json::of(&told),
        lifetimes,
        overwrite: Overwrite::Always,
        told: None,
    };
    cache::put(tx, &entry).map(drop)
}
