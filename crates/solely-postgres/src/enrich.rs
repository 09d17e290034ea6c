//! Requests that wait for lookups: any number of them as one statement.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use solely_core::cache::{Age, Entry};
use solely_core::clock::Timestamp;
use solely_core::enrich::{Ask, Asked, EnrichStore, NewWait, TOLD_BYTES_MAX, Told, ToldPlace, Waits};
use solely_core::{Json, StoreError};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::PostgresStore;
use crate::batch::Together;
use crate::connection::Connections;
use crate::row::{self, millis};

#[async_trait]
impl EnrichStore for PostgresStore {
    async fn wait(&self, ask: Ask) -> Result<Asked, StoreError> {
        self.waits.submit(ask).await
    }
}

/// The requests of many callers.
pub(crate) struct WaitCalls(pub(crate) Connections);

#[async_trait]
impl Together for WaitCalls {
    type Request = Ask;
    type Answer = Asked;

    /// A place takes less than a job of its own would: all of a request are looked at together.
    fn weight(ask: &Ask) -> usize {
        ask.waits.len().div_ceil(2)
    }

    /// One statement is its own transaction: there is no COMMIT to be cut off. Should its answer be lost
    /// it is run again, and finds what it has made.
    async fn run(&self, asks: &[Ask]) -> Result<Vec<Asked>, StoreError> {
        let mut waits: Vec<Wanted<'_>> = asks.iter().enumerate().flat_map(of_ask).collect();
        waits.sort_by_key(|wanted| (wanted.lookup(), wanted.ask));
        let rows = self.ask(asks, &waits).await?;
        // Of those that are not told of, a lookup was made.
        let mut answers: Vec<Asked> =
            asks.iter().map(|ask| Asked::Answered(vec![Waits::Made; ask.waits.len()])).collect();
        for found in &rows {
            let wanted = &waits[row::place(found, 0)];
            match (waits_of(found, wanted.wait), &mut answers[wanted.ask]) {
                (Some(answer), Asked::Answered(answers)) => answers[wanted.nth] = answer,
                (Some(_), Asked::TooMany) => {}
                (None, asked) => *asked = Asked::TooMany,
            }
        }
        Ok(answers)
    }
}

/// A place, with whose it is.
struct Wanted<'a> {
    ask: usize,
    nth: usize,
    wait: &'a NewWait,
}

fn of_ask((ask, asks): (usize, &Ask)) -> impl Iterator<Item = Wanted<'_>> {
    asks.waits.iter().enumerate().map(move |(nth, wait)| Wanted { ask, nth, wait })
}

impl<'a> Wanted<'a> {
    /// The queue and the key of its lookup.
    fn lookup(&self) -> (&'a str, &'a str) {
        (&self.wait.job.queue, &self.wait.job.key)
    }
}

impl WaitCalls {
    async fn ask(&self, asks: &[Ask], waits: &[Wanted<'_>]) -> Result<Vec<Row>, StoreError> {
        // Each request once, in the order of their ids, with all that it is told. They are numbered from one.
        let mut requests: BTreeMap<&str, (i64, Told)> = BTreeMap::new();
        for request in asks.iter().filter_map(|ask| ask.request.as_ref()) {
            let (_, told) =
                requests.entry(&request.id).or_insert_with(|| (millis(request.ttl), Told::default()));
            told.add(request.told.clone());
        }
        let numbers: HashMap<&str, i32> = requests.keys().copied().zip(1..).collect();
        let request_of = |wanted: &Wanted<'_>| asks[wanted.ask].request.as_ref();
        let mut of_requests = Vec::with_capacity(waits.len());
        for wanted in waits {
            let of = request_of(wanted);
            if let Some((_, told)) = of.and_then(|request| requests.get_mut(request.id.as_str())) {
                let (place, since) = (wanted.wait.place, Some(WAITS));
                let name = wanted.wait.name.clone();
                told.0.insert(Told::name(&wanted.wait.key), ToldPlace { name, place, since });
            }
            of_requests.push(of.map_or(0, |request| numbers[request.id.as_str()]));
        }
        let apart = waits.windows(2).all(|two| two[0].lookup() != two[1].lookup());
        let doubtful = (1_i32..).zip(waits).filter(|(_, wanted)| !wanted.wait.leased);
        let doubtful: Vec<i32> = doubtful.map(|(place, _)| place).collect();
        let told: Vec<Json> = requests.values().map(|(_, told)| Json::of(told)).collect();
        let text =
            |of: fn(&NewWait) -> &str| waits.iter().map(|wanted| of(wanted.wait)).collect::<Vec<&str>>();
        let maybe = |of: fn(&NewWait) -> Option<&str>| {
            waits.iter().map(|wanted| of(wanted.wait)).collect::<Vec<Option<&str>>>()
        };
        self.0
            .read(
                "SELECT * FROM solely_wait($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
                &[
                    &requests.keys().copied().collect::<Vec<&str>>(),
                    &requests.values().map(|(ttl, _)| *ttl).collect::<Vec<i64>>(),
                    &told.iter().map(Json::as_str).collect::<Vec<&str>>(),
                    &i32::try_from(TOLD_BYTES_MAX).unwrap_or(i32::MAX),
                    &of_requests,
                    &text(|wait| &wait.key.space),
                    &text(|wait| &wait.key.key),
                    &waits
                        .iter()
                        .map(|wanted| row::uuid(wanted.wait.job.id.as_bytes()))
                        .collect::<Vec<Uuid>>(),
                    &text(|wait| &wait.job.key),
                    &waits.iter().map(|wanted| i16::from(wanted.wait.job.priority)).collect::<Vec<i16>>(),
                    &waits.iter().map(|wanted| signed(wanted.wait.job.max_attempts)).collect::<Vec<i32>>(),
                    &text(|wait| wait.job.payload.as_str()),
                    &text(|wait| wait.job.attributes.as_str()),
                    &maybe(|wait| wait.job.trace.as_deref()),
                    &apart,
                    &doubtful,
                    &self.0.clock.offset_ms(),
                ],
            )
            .await
    }
}

/// Where the store puts in what a wait is for.
const WAITS: i64 = -1;

fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// What a row says of a place; none if its request was refused.
fn waits_of(found: &Row, wanted: &NewWait) -> Option<Waits> {
    match found.get::<_, i16>(1) {
        1 => {
            let (fresh_until, stale_until) = (row::time(found, 5), row::time(found, 6));
            let now: Timestamp = row::time(found, 10);
            Some(Waits::Resolved(Entry {
                key: wanted.key.clone(),
                value: Json::from_stored(found.get(2)),
                version: row::unsigned(found, 3),
                updated_at: row::time(found, 4),
                fresh_until,
                stale_until,
                as_of: now,
                age: Age::of(now, fresh_until, stale_until),
            }))
        }
        2 => Some(Waits::Known { of: row::job_id(found, 7), state: row::state(found, 8), by: found.get(9) }),
        _ => None,
    }
}
