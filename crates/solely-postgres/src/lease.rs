//! Leases: one row a key. What many callers ask for at once is one transaction.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use solely_core::clock::{Timestamp, millis};
use solely_core::lease::{
    Acquired, HeldKey, Holder, Lease, LeaseRenewed, LeaseRequest, LeaseStore, Obstacle,
};
use solely_core::{LeaseId, StoreError};
use tokio_postgres::{Error, Row};
use uuid::Uuid;

use crate::batch::Together;
use crate::connection::Connections;
use crate::row;
use crate::transaction::transact;
use crate::{PostgresStore, Tx};

#[async_trait]
impl LeaseStore for PostgresStore {
    async fn acquire(&self, request: LeaseRequest) -> Result<Acquired, StoreError> {
        match self.leases.submit(Call::Acquire(request)).await? {
            Answer::Acquired(acquired) => Ok(acquired),
            _ => Err(mixed_up()),
        }
    }

    async fn renew_lease(&self, id: LeaseId, ttl: Option<Duration>) -> Result<LeaseRenewed, StoreError> {
        match self.leases.submit(Call::Renew(id, ttl)).await? {
            Answer::Renewed(renewed) => Ok(renewed),
            _ => Err(mixed_up()),
        }
    }

    async fn release(&self, id: LeaseId) -> Result<Vec<String>, StoreError> {
        match self.leases.submit(Call::Release(id)).await? {
            Answer::Released(keys) => Ok(keys),
            _ => Err(mixed_up()),
        }
    }

    async fn held_keys(&self, after: Option<String>, limit: u32) -> Result<Vec<HeldKey>, StoreError> {
        let rows = self
            .read(
                "SELECT key, owner, fence, expires_at
                   FROM leases
                  WHERE key > coalesce($1, '') AND expires_at > solely_now($2)
                  ORDER BY key
                  LIMIT $3",
                &[&after, &self.work.clock.offset_ms(), &i64::from(limit)],
            )
            .await?;
        let held = |found: &tokio_postgres::Row| HeldKey {
            key: found.get(0),
            owner: found.get(1),
            fence: row::unsigned(found, 2),
            expires_at: row::time(found, 3),
        };
        Ok(rows.iter().map(held).collect())
    }
}

fn mixed_up() -> StoreError {
    StoreError::Unknown("the answer was another's".to_owned())
}

/// What one caller asks for.
pub(crate) enum Call {
    Acquire(LeaseRequest),
    Renew(LeaseId, Option<Duration>),
    Release(LeaseId),
}

/// What it is told.
#[derive(Clone)]
pub(crate) enum Answer {
    Acquired(Acquired),
    Renewed(LeaseRenewed),
    Released(Vec<String>),
}

/// The calls of many callers, as one transaction.
pub(crate) struct LeaseCalls(pub(crate) Connections);

#[async_trait]
impl Together for LeaseCalls {
    type Request = Call;
    type Answer = Answer;

    /// Every key is locked, and a database has only so many locks.
    fn weight(call: &Call) -> usize {
        match call {
            Call::Acquire(request) => 2 * request.keys.len(),
            Call::Renew(..) | Call::Release(_) => 2,
        }
    }

    async fn run(&self, calls: &[Call]) -> Result<Vec<Answer>, StoreError> {
        transact!(self.0, |tx| serve(tx, calls).await)
    }
}

/// Serves calls in rounds: in one round no lease is named twice and no key is wanted twice.
async fn serve(tx: &Tx<'_>, calls: &[Call]) -> Result<Vec<Answer>, Error> {
    let mut answers: Vec<Option<Answer>> = calls.iter().map(|_| None).collect();
    let mut known = HashMap::new();
    while answers.iter().any(Option::is_none) {
        let mut round = Round::default();
        let (mut leases, mut keys) = (HashSet::new(), HashSet::new());
        for (place, call) in calls.iter().enumerate().filter(|(place, _)| answers[*place].is_none()) {
            match call {
                Call::Renew(id, ttl) if leases.insert(*id) => round.renew(place, *id, *ttl),
                Call::Release(id) if leases.insert(*id) => round.release(place, *id),
                Call::Acquire(request) if request.keys.iter().all(|key| !keys.contains(key.as_str())) => {
                    keys.extend(request.keys.iter().map(String::as_str));
                    round.acquire(place, request);
                }
                Call::Renew(..) | Call::Release(_) | Call::Acquire(_) => {}
            }
        }
        round.run(tx, calls, &mut answers, &mut known).await?;
        // Whoever wanted a key that this transaction found held, or gave away, comes after it.
        for (call, answer) in calls.iter().zip(&mut answers).filter(|(_, answer)| answer.is_none()) {
            if let Call::Acquire(request) = call
                && let Some(obstacle) =
                    request.keys.iter().filter_map(|key| known.get(key)).min_by_key(|o| &o.key)
            {
                *answer = Some(Answer::Acquired(Acquired::Held(obstacle.clone())));
            }
        }
    }
    Ok(answers.into_iter().flatten().collect())
}

/// One statement's worth of calls, as columns, each with its place among the calls.
#[derive(Default)]
struct Round<'a> {
    released: Vec<Uuid>,
    released_places: Vec<usize>,
    renewed: Vec<Uuid>,
    renewed_ttls: Vec<Option<i64>>,
    renewed_places: Vec<usize>,
    wanted_keys: Vec<&'a str>,
    wanted_by: Vec<i32>,
    ids: Vec<Uuid>,
    owners: Vec<&'a str>,
    holders: Vec<Option<Uuid>>,
    ttls: Vec<i64>,
    acquired_places: Vec<usize>,
}

impl<'a> Round<'a> {
    fn release(&mut self, place: usize, id: LeaseId) {
        self.released.push(row::uuid(id.as_bytes()));
        self.released_places.push(place);
    }

    fn renew(&mut self, place: usize, id: LeaseId, ttl: Option<Duration>) {
        self.renewed.push(row::uuid(id.as_bytes()));
        self.renewed_ttls.push(ttl.map(millis));
        self.renewed_places.push(place);
    }

    fn acquire(&mut self, place: usize, request: &'a LeaseRequest) {
        self.acquired_places.push(place);
        let number = i32::try_from(self.acquired_places.len()).expect("a batch is small");
        for key in &request.keys {
            self.wanted_keys.push(key);
            self.wanted_by.push(number);
        }
        self.ids.push(row::uuid(request.id.as_bytes()));
        self.owners.push(&request.owner);
        self.holders.push(match &request.holder {
            Holder::Client => None,
            Holder::Process(process) => Some(row::uuid(process.as_bytes())),
        });
        self.ttls.push(millis(request.ttl));
    }

    /// Runs the round, and notes what stands in whose way from now on.
    async fn run(
        &self,
        tx: &Tx<'_>,
        calls: &[Call],
        answers: &mut [Option<Answer>],
        known: &mut HashMap<String, Obstacle>,
    ) -> Result<(), Error> {
        let rows = tx
            .query(
                "SELECT * FROM solely_lease($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
                &[
                    &self.released,
                    &self.renewed,
                    &self.renewed_ttls,
                    &self.wanted_keys,
                    &self.wanted_by,
                    &self.ids,
                    &self.owners,
                    &self.holders,
                    &self.ttls,
                    &tx.offset_ms(),
                ],
            )
            .await?;
        for place in &self.released_places {
            answers[*place] = Some(Answer::Released(Vec::new()));
        }
        for place in &self.renewed_places {
            answers[*place] = Some(Answer::Renewed(LeaseRenewed::Lost));
        }
        for found in &rows {
            let number = row::place(found, 1);
            match found.get::<_, i16>(0) {
                0 => released(&mut answers[self.released_places[number]], found.get(2)),
                1 => {
                    let place = self.renewed_places[number];
                    let Call::Renew(id, _) = &calls[place] else { continue };
                    renewed(&mut answers[place], *id, found);
                }
                2 => {
                    let obstacle = obstacle(found);
                    held(&mut answers[self.acquired_places[number]], &obstacle);
                    known.insert(obstacle.key.clone(), obstacle);
                }
                _ => {
                    let place = self.acquired_places[number];
                    let Call::Acquire(request) = &calls[place] else { continue };
                    let lease = taken(request, found);
                    for key in &lease.keys {
                        let (owner, expires_at, ends_in) =
                            (lease.owner.clone(), lease.expires_at, request.ttl);
                        let obstacle = Obstacle { key: key.clone(), owner, expires_at, ends_in };
                        known.insert(key.clone(), obstacle);
                    }
                    answers[place] = Some(Answer::Acquired(Acquired::Acquired(lease)));
                }
            }
        }
        Ok(())
    }
}

fn released(answer: &mut Option<Answer>, key: String) {
    if let Some(Answer::Released(keys)) = answer {
        keys.push(key);
    }
}

/// The keys of one lease come one by one.
fn renewed(answer: &mut Option<Answer>, id: LeaseId, found: &Row) {
    let key: String = found.get(2);
    if let Some(Answer::Renewed(LeaseRenewed::Renewed(lease))) = answer {
        let place = lease.keys.partition_point(|other| *other < key);
        lease.keys.insert(place, key);
        return;
    }
    let (owner, fence, expires_at) = (found.get(3), row::unsigned(found, 4), row::time(found, 5));
    let lease = Lease { id, keys: vec![key], owner, fence, expires_at };
    *answer = Some(Answer::Renewed(LeaseRenewed::Renewed(lease)));
}

fn obstacle(found: &Row) -> Obstacle {
    let (expires_at, now): (Timestamp, Timestamp) = (row::time(found, 5), row::time(found, 6));
    Obstacle { key: found.get(2), owner: found.get(3), expires_at, ends_in: expires_at.since(now) }
}

/// Of several keys that are held, the first is named.
fn held(answer: &mut Option<Answer>, obstacle: &Obstacle) {
    match answer {
        Some(Answer::Acquired(Acquired::Held(first))) if first.key < obstacle.key => {}
        _ => *answer = Some(Answer::Acquired(Acquired::Held(obstacle.clone()))),
    }
}

fn taken(request: &LeaseRequest, found: &Row) -> Lease {
    let (keys, owner) = (request.keys.clone(), request.owner.clone());
    Lease { id: request.id, keys, owner, fence: row::unsigned(found, 4), expires_at: row::time(found, 5) }
}
