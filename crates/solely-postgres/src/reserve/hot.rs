//! Selling what is hot: one round trip, and nothing is read.
//!
//! A process remembers an inventory as its last batch left it. The next buyers are decided on that before anything is
//! asked, and written by one function, which takes the merchant's lock, looks at the clock, and does nothing unless the
//! inventory still has the version that was decided on: the row decides, what is remembered only saves the reading. Nothing
//! is remembered beyond a life of the database: one that takes over from another may have missed the last of it, and gives
//! the same versions to something else.
//!
//! ```text
//!   remembered ─▶ decide: everyone gets a box? ─▶ solely_sell ─▶ sold
//!                       │ no                          │ not as remembered · not in time · someone waits there
//!                       ▼                             ▼ who buys has something there · the key was used (unique indexes)
//!                 as always: lock, read, decide, write
//! ```
//!
//! *One behind the other*: once a batch is sent the next one of its line is decided on what that one will leave, and is sent
//! after it on the same connection, so the database goes from one to the next without a pause. It is sold only if the
//! reservations of the one before are there, in that version: what someone else made of the inventory instead has the same
//! number. How many are left is then said by the row: the one before may have been decided by reading, in between, and have
//! sold to fewer. A batch that cannot be sent behind the one before it waits until that one is over, however it ends: nobody
//! overtakes.
//!
//! *The time* of such a batch is the store's, counted on from what it said last, so never ahead of it. What is decided holds
//! for [`GOOD_FOR`] from then on (the window does not close, the price does not change), and the function refuses what
//! comes later: a wait for the lock, or a hold-up on the way, never makes an old decision true.
//!
//! *A lost answer* is read back: when that time has passed, whoever has the merchant's lock sees either the reservations,
//! whose ids were given beforehand, or that they will never be there.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use solely_core::StoreError;
use solely_core::clock::Timestamp;
use solely_core::event::NewEvent;
use solely_core::fault::Guards;
use solely_core::job::NewJob;
use solely_core::reserve::{
    Batch, Books, Decided, Inventory, Making, Operation, Request, Reservation, Rules, Touched, Verdict,
    Wanted,
};
use tokio::time::Instant;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{count, uuid};
use crate::PostgresStore;
use crate::connection::Session;
use crate::error::{is_lost, store_error};
use crate::row::{self, signed};
use crate::transaction::{Write, transact};

/// How long what was decided may be on its way.
const GOOD_FOR: Duration = Duration::from_millis(250);
/// Inventories that a process remembers.
const REMEMBERED_MAX: usize = 1_024;
/// Batches that are read for, at the most, before it is tried again with what is remembered.
const PASSED_MAX: u32 = 64;
/// How long a lost answer is looked for.
const LOST_FOR: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Inventories as their last batch left them, and what time it is.
#[derive(Default)]
pub(crate) struct Hot {
    items: Mutex<Items>,
    clock: Mutex<Option<Heard>>,
}

/// What is remembered in one life of the database.
#[derive(Default)]
struct Items {
    life: String,
    known: HashMap<String, Remembered>,
}

struct Remembered {
    item: Inventory,
    /// What will be left by those that are under way.
    ahead: Option<Ahead>,
    /// Tries in a row that were in vain, and batches to come that are read for because of that.
    in_vain: u32,
    passes: u32,
    /// Before this instant none of its holds ends. Not known, nothing is excluded.
    lapses: Option<Timestamp>,
}

/// A batch that was sent and not answered yet, the last of those.
#[derive(Clone)]
struct Ahead {
    /// The inventory as it leaves it.
    item: Inventory,
    /// One of its reservations, which is there if it was sold.
    made: Uuid,
    shared: Arc<Shared>,
}

/// A connection on which sales follow each other. The last one gives it back, if nothing is left open on it.
struct Shared {
    session: Session,
    /// Sales that were sent on it and not answered.
    open: AtomicUsize,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if *self.open.get_mut() == 0 {
            self.session.keep();
        }
    }
}

/// An inventory to be decided on.
struct Recalled {
    item: Inventory,
    /// Before this instant none of its holds ends, as far as is known.
    lapses: Option<Timestamp>,
    /// What time it is, or was a moment ago.
    now: Timestamp,
    /// The batch that it will be left by.
    ahead: Option<Ahead>,
}

/// A time that the store said, and when that was heard: it is that time, or a little later, at that instant.
#[derive(Clone, Copy)]
struct Heard {
    now: Timestamp,
    at: Instant,
}

impl Heard {
    /// The store's time by now, or a little before it.
    fn now(self) -> Timestamp {
        self.now.plus(self.at.elapsed())
    }
}

impl Hot {
    fn items(&self) -> MutexGuard<'_, Items> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what it knows of another life of the database than the one that began last.
    pub(crate) fn begin(&self, life: &str) {
        let mut items = self.items();
        if items.life != life {
            *items = Items { life: life.to_owned(), known: HashMap::new() };
        }
    }

    /// Keeps the inventories of a batch that was committed in some life of the database.
    pub(crate) fn remember(&self, books: &Books, life: &str) {
        let mut items = self.items();
        if items.life != life {
            return;
        }
        let items = &mut items.known;
        for item in books.items_written() {
            if items.len() >= REMEMBERED_MAX && !items.contains_key(&item.id) {
                items.clear();
            }
            if let Some(found) = items.get_mut(&item.id) {
                // Whoever was decided later may have been heard first. After a try in vain nothing is known.
                if item.version >= found.item.version || found.passes > 0 {
                    (found.item, found.lapses) = (item, None);
                }
                found.passes = found.passes.saturating_sub(1);
            } else {
                let id = item.id.clone();
                items.insert(id, Remembered { item, ahead: None, in_vain: 0, passes: 0, lapses: None });
            }
        }
    }

    /// The store has just said what time it is. Of two that were heard, neither ahead of the store's, the later is the nearer.
    pub(crate) fn hear(&self, now: Timestamp) {
        let (heard, mut clock) = (Heard { now, at: Instant::now() }, self.clock());
        if clock.is_none_or(|clock| clock.now() < heard.now()) {
            *clock = Some(heard);
        }
    }

    fn clock(&self) -> MutexGuard<'_, Option<Heard>> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An inventory as it was, or as it will be left by what is under way.
    fn recall(&self, item: &str) -> Option<Recalled> {
        let now = (*self.clock())?.now();
        let items = self.items();
        let found = items.known.get(item).filter(|found| found.passes == 0)?;
        Some(match &found.ahead {
            Some(ahead) => {
                Recalled { item: ahead.item.clone(), lapses: None, now, ahead: Some(ahead.clone()) }
            }
            None => Recalled { item: found.item.clone(), lapses: found.lapses, now, ahead: None },
        })
    }

    /// A batch was sent; the next is decided on what it leaves.
    fn sent(&self, ahead: Ahead) {
        if let Some(found) = self.items().known.get_mut(&ahead.item.id) {
            found.ahead = Some(ahead);
        }
    }

    /// A batch that would have left this is over. If it was not sold nothing is to be decided on it any more, nor on what
    /// follows it.
    fn over(&self, left: &Inventory, shared: &Arc<Shared>, sold: bool) {
        let mut items = self.items();
        let Some(found) = items.known.get_mut(&left.id) else { return };
        let ends = |ahead: &mut Ahead| {
            Arc::ptr_eq(&ahead.shared, shared) && (!sold || ahead.item.version <= left.version)
        };
        found.ahead.take_if(ends);
    }

    /// It was as it was remembered, and has been sold of, which left this. Whoever extends a hold, which leaves the version as
    /// it is, makes it end later: what was heard stays true.
    fn sold(&self, left: &Inventory, books: &Books, lapses: Option<Timestamp>, life: &str) {
        let first = books.new_reservations().iter().map(|made| made.expires_at).min();
        let mut items = self.items();
        if items.life != life {
            return;
        }
        let Some(found) = items.known.get_mut(&left.id) else { return };
        found.in_vain = 0;
        // Whoever was sold to after it may have been told before it.
        if found.item.version < left.version {
            // Someone may have come in between: of what is there now, this is not known.
            let lapses = lapses.filter(|_| found.item.version + 1 == left.version);
            found.lapses = lapses.map(|lapses| first.map_or(lapses, |first| lapses.min(first)));
            found.item = left.clone();
        }
    }

    /// It was not: others sell of it, too.
    fn in_vain(&self, item: &str) {
        if let Some(found) = self.items().known.get_mut(item) {
            found.in_vain = (found.in_vain + 1).min(PASSED_MAX.ilog2());
            found.passes = 1 << found.in_vain;
        }
    }
}

/// What else is known of an inventory that was sold of.
struct Sold {
    /// Units of holds whose time is over, which can be had, too.
    lapsed: u32,
    /// Before when no other hold ends.
    lapses: Option<Timestamp>,
    /// What is left, and what is held, if that was said.
    left: Option<(u32, u32)>,
}

/// Why something was not sold.
enum NotSold {
    /// Nothing has happened: it is not as it was remembered.
    Changed,
    /// Nothing has happened: who buys, or a key, is known there, or it could not be asked.
    ReadFirst,
    /// Nobody knows yet.
    Lost,
    /// Nothing has happened, and nothing can now.
    Error(StoreError),
}

impl NotSold {
    fn of(error: &Error) -> Self {
        let code = error.code().map_or("", SqlState::code);
        if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
            Self::Error(store_error(error))
        } else if code.starts_with("25") {
            // It never began: this leads to a standby.
            Self::ReadFirst
        } else if code.starts_with("08") || is_lost(error) {
            Self::Lost
        } else {
            Self::ReadFirst
        }
    }
}

impl PostgresStore {
    /// Sells without reading, if it can be. None: nothing has happened, and it is to be decided as always.
    pub(super) async fn sell(
        &self,
        batch: &Batch,
        rules: &Rules,
    ) -> Result<Option<(Vec<Decided>, Touched)>, StoreError> {
        let requests = batch.requests.as_slice();
        let Some(item) = one_item(requests).filter(|_| rules.guards == Guards::all()) else {
            return Ok(None);
        };
        self.work.unless_away(batch.ahead_sent()).await?;
        let mut life = self.work.life();
        self.hot.begin(&life);
        let recalled = match self.hot.recall(item) {
            Some(behind) if behind.ahead.is_some() => Some(behind),
            _ => {
                self.work.unless_away(batch.ahead_over()).await?;
                life = self.work.life();
                self.hot.begin(&life);
                self.hot.recall(item)
            }
        };
        let Some(Recalled { item: remembered, lapses, now, ahead }) = recalled else { return Ok(None) };
        let until = now.plus(GOOD_FOR);
        let lasts = until < remembered.pickup_end && remembered.price_at(now) == remembered.price_at(until);
        if remembered.waited || !lasts {
            return Ok(None);
        }
        let mut books = Books::at(now, &Wanted::default());
        books.item(Inventory { lapsed: 0, ..remembered.clone() });
        let decided = books.decide(requests, rules);
        if !decided.iter().all(|decided| matches!(decided.verdict, Verdict::Reservation(_))) {
            return Ok(None);
        }
        let (Some(left), Some(made)) =
            (books.items_written().next(), books.new_reservations().first().copied())
        else {
            return Ok(None);
        };
        let made = uuid(made.id);
        let behind = ahead.as_ref().map(|ahead| ahead.made);
        let sale = Sale { item: &remembered, books: &books, lapses, until, behind, rules };
        let shared = match ahead {
            Some(ahead) => ahead.shared,
            None => Arc::new(Shared { session: self.work.session().await?, open: AtomicUsize::new(0) }),
        };
        if self.work.life() != life {
            return Ok(None);
        }
        let sent = Ahead { item: left.clone(), made, shared: shared.clone() };
        let sold = self.sell_at_once(&sale, sent, batch).await;
        self.hot.over(&left, &shared, sold.is_ok());
        drop(shared);
        let Sold { lapsed, lapses, left: said } = match sold {
            Ok(sold) => sold,
            Err(NotSold::Lost) if self.was_sold(&sale).await? => Sold { lapsed: 0, lapses: None, left: None },
            Err(NotSold::Changed) => {
                // Where it is behind another, that one knows better why.
                if behind.is_none() {
                    self.hot.in_vain(item);
                }
                return Ok(None);
            }
            Err(NotSold::Lost | NotSold::ReadFirst) => return Ok(None),
            Err(NotSold::Error(error)) => return Err(error),
        };
        let left = match said {
            Some((remaining, held)) => Inventory { remaining, held, ..left },
            None => left,
        };
        // What was decided behind another and not said may be wrong: that one may have been decided anew.
        if said.is_some() || behind.is_none() {
            self.hot.sold(&left, &books, lapses, &life);
        }
        let mut touched = books.touched();
        for of in &mut touched.items {
            of.free = left.free() + lapsed;
        }
        Ok(Some((decided, touched)))
    }

    /// Sends a sale, says so, and waits for what becomes of it.
    async fn sell_at_once(&self, sale: &Sale<'_>, sent: Ahead, batch: &Batch) -> Result<Sold, NotSold> {
        let shared = sent.shared.clone();
        let jobs = sale.books.new_jobs();
        let write = sale.write(&jobs, self.work.clock.offset_ms());
        let Some(Ok(statement)) = self.work.within(shared.session.prepare_cached(&write.sql)).await else {
            shared.open.fetch_add(1, Ordering::AcqRel);
            return Err(NotSold::ReadFirst);
        };
        let values = write.values();
        let mut answer = pin!(shared.session.query_one(&statement, &values));
        shared.open.fetch_add(1, Ordering::AcqRel);
        // It is sent when it is asked about for the first time.
        let at_once = futures::poll!(answer.as_mut());
        self.hot.sent(sent);
        batch.sent();
        let answer = match at_once {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => self.work.within(answer).await,
        };
        match answer {
            Some(Ok(row)) => {
                shared.open.fetch_sub(1, Ordering::AcqRel);
                let said: Vec<Option<i64>> = row.get(0);
                let now =
                    said.first().copied().flatten().map_or(Timestamp::default(), Timestamp::from_millis);
                if now < sale.books.now() {
                    // The store's clock was set back.
                    *self.hot.clock() = None;
                }
                self.hot.hear(now);
                let count = |units: i64| u32::try_from(units).unwrap_or(0);
                match said[..] {
                    [_, Some(over)] => Ok(Sold { lapsed: count(over), lapses: sale.lapses, left: None }),
                    [_, Some(over), ends] => {
                        let lapses = ends.map(Timestamp::from_millis);
                        Ok(Sold { lapsed: count(over), lapses, left: None })
                    }
                    [_, Some(over), Some(left), Some(held)] => {
                        let left = Some((count(left), count(held)));
                        Ok(Sold { lapsed: count(over), lapses: sale.lapses, left })
                    }
                    _ => Err(NotSold::Changed),
                }
            }
            Some(Err(error)) => {
                let not_sold = NotSold::of(&error);
                if !is_lost(&error) && !matches!(not_sold, NotSold::Lost) {
                    shared.open.fetch_sub(1, Ordering::AcqRel);
                }
                Err(not_sold)
            }
            None => Err(NotSold::Lost),
        }
    }

    /// What became of a sale whose answer was lost.
    async fn was_sold(&self, sale: &Sale<'_>) -> Result<bool, StoreError> {
        tracing::warn!(inventory = sale.item.id, "the answer to a sale was lost; reading it back");
        let began = Instant::now();
        while began.elapsed() < LOST_FOR {
            match self.look_for(sale).await {
                Ok((_, true)) => return Ok(true),
                Ok((now, false)) if now >= sale.until => return Ok(false),
                Ok(_) | Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
        Err(StoreError::Unknown("the connection was lost while selling".to_owned()))
    }

    /// The time under the merchant's lock, and whether a sale has happened by then.
    async fn look_for(&self, sale: &Sale<'_>) -> Result<(Timestamp, bool), StoreError> {
        let merchants = [sale.item.merchant_id.as_str()];
        let ids: Vec<Uuid> = sale.books.new_reservations().iter().map(|made| uuid(made.id)).collect();
        let wait_ms = row::millis(sale.rules.lock_wait).max(1);
        transact!(self.work, |tx| async {
            let lock = "SELECT solely_lock_merchants($1, '{}', '{}', '{}', '{}', $2, $3)";
            let locked = tx.one(lock, &[&merchants.as_slice(), &wait_ms, &tx.offset_ms()]).await?;
            let found = tx.query("SELECT 1 FROM reservations WHERE id = ANY ($1)", &[&ids]).await?;
            Ok((row::time(&locked, 0), !found.is_empty()))
        }
        .await)
    }
}

const SELL: &str =
    "SELECT solely_sell($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
                                       $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33)";

const SELL_ONE: &str =
    "SELECT solely_sell_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
                                           $19, $20::bigint)";

/// The one inventory that all of these want to buy of, each another user with another key.
fn one_item(requests: &[Request]) -> Option<&str> {
    let Operation::Reserve(first) = &requests.first()?.operation else { return None };
    let (mut users, mut keys) = (HashSet::new(), HashSet::new());
    let apart = requests.iter().all(|request| {
        matches!(&request.operation, Operation::Reserve(new)
            if new.inventory_id == first.inventory_id && users.insert(&new.user_id))
            && request.idempotency.as_ref().is_none_or(|(key, _)| keys.insert(key))
    });
    apart.then_some(first.inventory_id.as_str())
}

/// What is to be sold.
struct Sale<'a> {
    /// As it is remembered.
    item: &'a Inventory,
    books: &'a Books,
    /// Before this instant none of its holds ends, as far as is known.
    lapses: Option<Timestamp>,
    /// From this instant on it is too late.
    until: Timestamp,
    /// A reservation of the sale that it was decided behind, if that is not known yet.
    behind: Option<Uuid>,
    rules: &'a Rules,
}

type Value<'a> = Box<dyn ToSql + Sync + Send + 'a>;

fn column<'a, R, V: ToSql + Sync + Send + 'a>(
    rows: impl IntoIterator<Item = R>,
    of: impl Fn(R) -> V,
) -> Value<'a> {
    Box::new(rows.into_iter().map(of).collect::<Vec<V>>())
}

impl<'a> Sale<'a> {
    /// The call of `solely_sell`.
    fn write(&self, jobs: &'a [NewJob], offset_ms: i64) -> Write<'a> {
        let (books, item) = (self.books, self.item);
        let made: Vec<&'a Reservation> = books.new_reservations();
        let makings: &'a [Making] = books.makings();
        if let ([sold], [making], None) = (made.as_slice(), makings, self.behind) {
            return self.write_one(sold, making, offset_ms);
        }
        // In the order of their keys, as everywhere: sales that have the same wait for each other, and not in a circle.
        let mut keys: Vec<_> = books.new_keys().iter().collect();
        keys.sort_by_key(|(key, _, _)| key);
        let events: &'a [NewEvent] = books.events();
        let job = jobs.first();
        let values: Vec<Value<'a>> = vec![
            Box::new(item.merchant_id.clone()),
            Box::new(item.id.clone()),
            Box::new(signed(item.version)),
            Box::new(books.now().as_millis()),
            Box::new(self.until.as_millis()),
            Box::new(row::millis(self.rules.lock_wait).max(1)),
            Box::new(offset_ms),
            Box::new(made.iter().map(|row| count(row.quantity)).sum::<i32>()),
            Box::new(item.currency.clone()),
            column(&made, |row| uuid(row.id)),
            column(&made, |row| row.user_id.as_str()),
            column(&made, |row| row.pickup_code.as_str()),
            column(&made, |row| count(row.quantity)),
            column(&made, |row| row.total_amount),
            column(&made, |row| row.expires_at.as_millis()),
            column(&keys, |(key, _, _)| key.scope.as_str()),
            column(&keys, |(key, _, _)| key.key.as_str()),
            column(&keys, |(_, digest, _)| digest.as_str()),
            column(&keys, |(_, _, verdict)| serde_json::to_string(verdict).unwrap_or_default()),
            Box::new(events.is_empty()),
            column(events, |told| told.subject.as_str()),
            column(
                events.iter().map(|told| &told.request_id).chain(makings.iter().map(|made| &made.request_id)),
                Option::as_deref,
            ),
            column(events, |told| told.details.as_str()),
            column(events, |told| told.topic.as_deref()),
            Box::new(job.map(|job| job.queue.as_str())),
            Box::new(job.map(|job| job.kind.as_str())),
            Box::new(job.map(|job| i16::from(job.priority))),
            Box::new(job.map(|job| i32::try_from(job.max_attempts).unwrap_or(i32::MAX))),
            Box::new(job.map(|job| job.payload.as_str())),
            column(jobs, |job| row::uuid(job.id.as_bytes())),
            column(jobs, |job| job.key.as_str()),
            column(jobs, |job| job.attributes.as_str()),
            Box::new(self.behind),
        ];
        Write { sql: SELL.to_owned(), values }
    }

    /// The call of `solely_sell_one`.
    fn write_one(&self, sold: &'a Reservation, making: &'a Making, offset_ms: i64) -> Write<'a> {
        let item = self.item;
        let key = self.books.new_keys().first();
        let verdict = key.map(|(_, _, verdict)| serde_json::to_string(verdict).unwrap_or_default());
        let values: Vec<Value<'a>> = vec![
            Box::new(item.merchant_id.clone()),
            Box::new(item.id.clone()),
            Box::new(signed(item.version)),
            Box::new(self.books.now().as_millis()),
            Box::new(self.until.as_millis()),
            Box::new(row::millis(self.rules.lock_wait).max(1)),
            Box::new(offset_ms),
            Box::new(count(sold.quantity)),
            Box::new(item.currency.clone()),
            Box::new(uuid(sold.id)),
            Box::new(sold.user_id.as_str()),
            Box::new(sold.pickup_code.as_str()),
            Box::new(sold.total_amount),
            Box::new(sold.expires_at.as_millis()),
            Box::new(key.map(|(key, _, _)| key.scope.as_str())),
            Box::new(key.map(|(key, _, _)| key.key.as_str())),
            Box::new(key.map(|(_, digest, _)| digest.as_str())),
            Box::new(verdict),
            Box::new(making.request_id.as_deref()),
            Box::new(self.lapses.map_or(0, Timestamp::as_millis)),
        ];
        Write { sql: SELL_ONE.to_owned(), values }
    }
}
