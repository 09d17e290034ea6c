//! Requests that wait for lookups: any number of them as one statement.

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

    fn weight(ask: &Ask) -> usize {
        ask.waits.len()
    }

    /// One statement is its own transaction: there is no COMMIT to be cut off. Should its answer be lost
    /// it is run again, and finds what it has made.
    async fn run(&self, asks: &[Ask]) -> Result<Vec<Asked>, StoreError> {
        let mut waits: Vec<Wanted<'_>> = asks.iter().enumerate().flat_map(of_ask).collect();
        waits.sort_by(|a, b| order(a).cmp(&order(b)));
        let rows = self.ask(asks, &waits).await?;
        let mut answers: Vec<Vec<Option<Waits>>> =
            asks.iter().map(|ask| vec![None; ask.waits.len()]).collect();
        let mut refused = vec![false; asks.len()];
        for found in &rows {
            let wanted = &waits[row::place(found, 0)];
            match waits_of(found, wanted.wait) {
                Some(answer) => answers[wanted.ask][wanted.nth] = Some(answer),
                None => refused[wanted.ask] = true,
            }
        }
        let asked = |(answers, refused): (Vec<Option<Waits>>, bool)| {
            if refused {
                return Ok(Asked::TooMany);
            }
            let all: Option<Vec<Waits>> = answers.into_iter().collect();
            all.map(Asked::Answered)
                .ok_or_else(|| StoreError::Refused("a place was not answered for".to_owned()))
        };
        answers.into_iter().zip(refused).map(asked).collect()
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

fn order<'a>(wanted: &Wanted<'a>) -> (&'a str, &'a str, usize) {
    (&wanted.wait.job.queue, &wanted.wait.job.key, wanted.ask)
}

impl WaitCalls {
    async fn ask(&self, asks: &[Ask], waits: &[Wanted<'_>]) -> Result<Vec<Row>, StoreError> {
        let requests = asks.iter().filter_map(|ask| ask.request.as_ref());
        // Requests are numbered from one, without those of nobody.
        let mut last = 0;
        let numbers: Vec<i32> = asks
            .iter()
            .map(|ask| {
                last += i32::from(ask.request.is_some());
                if ask.request.is_some() { last } else { 0 }
            })
            .collect();
        let text =
            |of: fn(&NewWait) -> &str| waits.iter().map(|wanted| of(wanted.wait)).collect::<Vec<&str>>();
        let number = |of: fn(&NewWait) -> u32| {
            waits.iter().map(|wanted| signed(of(wanted.wait))).collect::<Vec<i32>>()
        };
        let copied =
            asks.iter().zip(&numbers).filter_map(|(ask, number)| Some((ask.request.as_ref()?, *number)));
        let copied: Vec<(i32, &String, &ToldPlace)> = copied
            .flat_map(|(request, of)| request.told.0.iter().map(move |(key, told)| (of, key, told)))
            .collect();
        self.0
            .read(
                "SELECT * FROM solely_wait($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
                                           $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26)",
                &[
                    &requests.clone().map(|request| request.id.as_str()).collect::<Vec<&str>>(),
                    &requests.map(|request| millis(request.ttl)).collect::<Vec<i64>>(),
                    &i32::try_from(TOLD_BYTES_MAX).unwrap_or(i32::MAX),
                    &copied.iter().map(|(of, ..)| *of).collect::<Vec<i32>>(),
                    &copied.iter().map(|(_, key, _)| key.as_str()).collect::<Vec<&str>>(),
                    &copied.iter().map(|(.., told)| told.name.as_str()).collect::<Vec<&str>>(),
                    &copied.iter().map(|(.., told)| signed(told.place)).collect::<Vec<i32>>(),
                    &waits.iter().map(|wanted| numbers[wanted.ask]).collect::<Vec<i32>>(),
                    &text(|wait| &wait.key.space),
                    &text(|wait| &wait.key.key),
                    &waits.iter().map(|wanted| Told::name(&wanted.wait.key)).collect::<Vec<String>>(),
                    &text(|wait| &wait.name),
                    &number(|wait| wait.place),
                    &waits
                        .iter()
                        .map(|wanted| row::uuid(wanted.wait.job.id.as_bytes()))
                        .collect::<Vec<Uuid>>(),
                    &text(|wait| &wait.job.queue),
                    &text(|wait| &wait.job.kind),
                    &text(|wait| &wait.job.key),
                    &waits.iter().map(|wanted| i16::from(wanted.wait.job.priority)).collect::<Vec<i16>>(),
                    &number(|wait| wait.job.max_attempts),
                    &text(|wait| wait.job.payload.as_str()),
                    &text(|wait| wait.job.attributes.as_str()),
                    &waits
                        .iter()
                        .map(|wanted| wanted.wait.job.trace.as_deref())
                        .collect::<Vec<Option<&str>>>(),
                    &text(|wait| &wait.event.event),
                    &text(|wait| wait.event.details.as_str()),
                    &text(|wait| &wait.event.subject),
                    &self.0.clock.offset_ms(),
                ],
            )
            .await
    }
}

fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// What a row says of a place; none if its request was refused.
fn waits_of(found: &Row, wanted: &NewWait) -> Option<Waits> {
    match found.get::<_, i16>(1) {
        0 => Some(Waits::Made),
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
