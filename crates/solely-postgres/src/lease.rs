//! Leases: one row a key. What many callers ask for at once is one transaction.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use solely_core::clock::Timestamp;
use solely_core::lease::{
    Acquired, HeldKey, Holder, Lease, LeaseRenewed, LeaseRequest, LeaseStore, Obstacle,
};
use solely_core::{LeaseId, StoreError};
use tokio_postgres::{Error, Row};
use uuid::Uuid;

use crate::batch::Together;
use crate::connection::Connections;
use crate::row::{self, millis};
use crate::transaction::transact;
use crate::{PostgresStore, Tx};

#[async_trait]
impl LeaseStore for PostgresStore {
    async fn acquire(&self, request: LeaseRequest) -> Result<Acquired, StoreError> {
        if request.keys.is_empty() {
            return Err(StoreError::Refused("a lease has at least one key".to_owned()));
        }
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

    /// Every key that is wanted is locked, and a database has only so many locks.
    fn weight(call: &Call) -> usize {
        match call {
            Call::Acquire(request) => 2 * request.keys.len(),
            Call::Renew(..) | Call::Release(_) => 1,
        }
    }

    async fn run(&self, calls: &[Call]) -> Result<Vec<Answer>, StoreError> {
        transact!(self.0, |tx| serve(tx, calls).await)
    }

    /// A lease that nobody knows of is given back.
    async fn unheard(&self, answer: Answer) {
        if let Answer::Acquired(Acquired::Acquired(lease)) = answer
            && let Err(error) = self.run(&[Call::Release(lease.id)]).await
        {
            tracing::warn!(%error, keys = ?lease.keys, "a lease whose caller left lasts until it ends");
        }
    }
}

/// Serves calls in rounds: in one round no lease is named twice and no key is wanted twice.
/// Whoever wants a key that this transaction found held, or gave away, comes after it and is
/// told so.
async fn serve(tx: &Tx<'_>, calls: &[Call]) -> Result<Vec<Answer>, Error> {
    let mut answers: Vec<Option<Answer>> = calls.iter().map(|_| None).collect();
    let mut in_the_way: HashMap<&str, Obstacle> = HashMap::new();
    let mut numbers = numbers(calls);
    loop {
        let mut round = Round { numbers: std::mem::take(&mut numbers), ..Round::default() };
        for (place, call) in calls.iter().enumerate() {
            if answers[place].is_some() {
                continue;
            }
            match call {
                Call::Release(id) if !round.renewed.contains_key(id) => {
                    round.released.entry(*id).or_insert(place);
                }
                Call::Renew(id, _) if !round.released.contains_key(id) => {
                    round.renewed.entry(*id).or_insert(place);
                }
                Call::Release(_) | Call::Renew(..) => {}
                Call::Acquire(request) => {
                    let mut keys = request.keys.iter().map(String::as_str);
                    let held = keys.clone().filter_map(|key| in_the_way.get(key));
                    if let Some(first) = held.min_by_key(|held| &held.key) {
                        answers[place] = Some(Answer::Acquired(Acquired::Held(first.clone())));
                    } else if keys.all(|key| !round.wanted.contains_key(key)) {
                        round.wanted.extend(request.keys.iter().map(|key| (key.as_str(), place)));
                    }
                }
            }
        }
        if round.is_empty() {
            return Ok(answers.into_iter().flatten().collect());
        }
        round.run(tx, calls, &mut answers, &mut in_the_way).await?;
    }
}

/// One statement's worth of calls, in the order in which it locks, each with its place.
#[derive(Default)]
struct Round<'a> {
    /// What to lock: in the first round everything that any round wants, so that it is locked in
    /// one order; nothing later.
    numbers: Vec<i64>,
    released: BTreeMap<LeaseId, usize>,
    renewed: BTreeMap<LeaseId, usize>,
    wanted: BTreeMap<&'a str, usize>,
}

impl<'a> Round<'a> {
    fn is_empty(&self) -> bool {
        self.released.is_empty() && self.renewed.is_empty() && self.wanted.is_empty()
    }

    async fn run(
        &self,
        tx: &Tx<'_>,
        calls: &'a [Call],
        answers: &mut [Option<Answer>],
        in_the_way: &mut HashMap<&'a str, Obstacle>,
    ) -> Result<(), Error> {
        let rows = self.ask(tx, calls).await?;
        for &place in self.released.values() {
            answers[place] = Some(Answer::Released(Vec::new()));
        }
        for &place in self.renewed.values() {
            answers[place] = Some(Answer::Renewed(LeaseRenewed::Lost));
        }
        let released: Vec<usize> = self.released.values().copied().collect();
        let renewed: Vec<usize> = self.renewed.values().copied().collect();
        for found in &rows {
            match found.get::<_, i32>(0) {
                0 => add_released(&mut answers[released[row::place(found, 1)]], found.get(2)),
                1 => {
                    let place = renewed[row::place(found, 1)];
                    if let Call::Renew(id, _) = &calls[place] {
                        add_renewed(&mut answers[place], *id, found);
                    }
                }
                2 => {
                    let (place, obstacle) = (row::place(found, 1), obstacle(found));
                    if let Call::Acquire(request) = &calls[place]
                        && let Some(key) = request.keys.iter().find(|key| **key == obstacle.key)
                    {
                        in_the_way.insert(key, obstacle.clone());
                    }
                    add_held(&mut answers[place], obstacle);
                }
                _ => self.grant(calls, answers, in_the_way, found),
            }
        }
        Ok(())
    }

    /// Those who were not refused have what they wanted.
    fn grant(
        &self,
        calls: &'a [Call],
        answers: &mut [Option<Answer>],
        in_the_way: &mut HashMap<&'a str, Obstacle>,
        found: &Row,
    ) {
        let (now, fences): (Timestamp, Vec<i64>) = (row::time(found, 6), found.get(7));
        for &place in self.wanted.values() {
            let Call::Acquire(request) = &calls[place] else { continue };
            if answers[place].is_some() {
                continue;
            }
            let (keys, owner, expires_at) =
                (request.keys.clone(), request.owner.clone(), now.plus(request.ttl));
            for key in &request.keys {
                let (owner, ends_in) = (owner.clone(), request.ttl);
                in_the_way.insert(key, Obstacle { key: key.clone(), owner, expires_at, ends_in });
            }
            let fence = u64::try_from(fences[place]).unwrap_or(0);
            let lease = Lease { id: request.id, keys, owner, fence, expires_at };
            answers[place] = Some(Answer::Acquired(Acquired::Acquired(lease)));
        }
    }

    async fn ask(&self, tx: &Tx<'_>, calls: &[Call]) -> Result<Vec<Row>, Error> {
        let ids = |of: &BTreeMap<LeaseId, usize>| -> Vec<Uuid> {
            of.keys().map(|id| row::uuid(id.as_bytes())).collect()
        };
        let ttl = |place: &usize| match &calls[*place] {
            Call::Renew(_, ttl) => ttl.map(millis),
            Call::Release(_) | Call::Acquire(_) => None,
        };
        let by = || {
            self.wanted.values().filter_map(|&place| match &calls[place] {
                Call::Acquire(request) => Some(request),
                Call::Renew(..) | Call::Release(_) => None,
            })
        };
        let wanted_by = self.wanted.values().map(|place| i32::try_from(place + 1).expect("a batch is small"));
        let holder = |request: &LeaseRequest| match &request.holder {
            Holder::Client => None,
            Holder::Process(process) => Some(row::uuid(process.as_bytes())),
        };
        let requests = if self.wanted.is_empty() { 0 } else { calls.len() };
        tx.query(
            "SELECT * FROM solely_lease($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
            &[
                &ids(&self.released),
                &ids(&self.renewed),
                &self.renewed.values().map(ttl).collect::<Vec<Option<i64>>>(),
                &self.numbers,
                &self.wanted.keys().copied().collect::<Vec<&str>>(),
                &wanted_by.collect::<Vec<i32>>(),
                &by().map(|request| row::uuid(request.id.as_bytes())).collect::<Vec<Uuid>>(),
                &by().map(|request| request.owner.as_str()).collect::<Vec<&str>>(),
                &by().map(holder).collect::<Vec<Option<Uuid>>>(),
                &by().map(|request| millis(request.ttl)).collect::<Vec<i64>>(),
                &i32::try_from(requests).expect("a batch is small"),
                &tx.offset_ms(),
            ],
        )
        .await
    }
}

/// The numbers of all keys that are wanted, in order.
fn numbers(calls: &[Call]) -> Vec<i64> {
    let wanted = calls.iter().filter_map(|call| match call {
        Call::Acquire(request) => Some(&request.keys),
        Call::Renew(..) | Call::Release(_) => None,
    });
    let mut numbers: Vec<i64> = wanted.flatten().map(|key| number(key)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// The number by which a key is locked: FNV-1a of its bytes. All processes must agree on it, so
/// it never changes; two keys of one number only wait for each other.
fn number(key: &str) -> i64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    key.bytes().fold(0xcbf2_9ce4_8422_2325, step).cast_signed()
}

fn add_released(answer: &mut Option<Answer>, key: String) {
    if let Some(Answer::Released(keys)) = answer {
        keys.push(key);
    }
}

/// The keys of one lease come one by one.
fn add_renewed(answer: &mut Option<Answer>, id: LeaseId, found: &Row) {
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
fn add_held(answer: &mut Option<Answer>, obstacle: Obstacle) {
    match answer {
        Some(Answer::Acquired(Acquired::Held(first))) if first.key <= obstacle.key => {}
        _ => *answer = Some(Answer::Acquired(Acquired::Held(obstacle))),
    }
}
