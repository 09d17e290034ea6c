//! reserve of one process: lines, the sweeper, and what it counts.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use rand::RngExt as _;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::batch::Batch;
use super::combiner::{Combiner, NotDecided};
use super::copy::ReserveCopies;
use super::decide::{Rules, told_of};
use super::model::{HoldTimes, InventoryView, Reservation};
use super::notify::{self, Webhook};
use super::operation::{Decided, IdempotencyKey, Operation, Refusal, Request, Verdict};
use super::waitlist::WaitView;
use super::watch::Watch;
use super::{InventoryFilter, Lapsed, ReservationFilter, WaitFilter};
use crate::bus::{Bus, Topic};
use crate::companion::Companion;
use crate::config::ReserveConfig;
use crate::error::StoreError;
use crate::fault::{Guard, Guards};
use crate::id::ReservationId;
use crate::metrics::Metrics;
use crate::queue::Jobs;
use crate::store::Store;
use crate::upstream::http::HttpClient;
use crate::worker::QueueSpec;

/// What reserve stands on.
pub struct ReserveParts {
    /// Jobs, with their store and wake-ups.
    pub jobs: Jobs,
    /// Where copies are kept for others, if there is such a place.
    pub companion: Option<Arc<dyn Companion>>,
    /// What notifications are delivered by; without it they are not.
    pub client: Option<HttpClient>,
}

/// Why there is no verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReserveError {
    /// The item could not be got hold of in time. Nothing has happened, and nothing will.
    NotInTime,
    /// Whether it happened cannot be said: the store is away since.
    Unknown,
    /// The store could not be asked. Nothing has happened.
    Store(StoreError),
}

impl From<StoreError> for ReserveError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// reserve of one process. Clones share everything.
#[derive(Clone)]
pub struct Reserve(Arc<Inner>);

struct Inner {
    desk: Desk,
    combiner: Combiner,
    config: ReserveConfig,
    /// The line that a reservation of this process stands in: its inventory's.
    lines: moka::sync::Cache<ReservationId, Arc<str>>,
    webhook: Option<Arc<Webhook>>,
    /// Keys of requests that are under way here; whoever waits for one hears when it is over.
    under_way: Mutex<HashMap<IdempotencyKey, watch::Receiver<()>>>,
}

/// A key's first request, while it is under way.
struct UnderWay<'a> {
    inner: &'a Inner,
    key: IdempotencyKey,
    _over: watch::Sender<()>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.inner.under_way().remove(&self.key);
    }
}

/// Where batches are decided. Clones share everything.
#[derive(Clone)]
struct Desk {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    copies: Option<ReserveCopies>,
    rules: Arc<Rules>,
    turns: Arc<Semaphore>,
    watch: Watch,
    bus: Bus,
}

/// Batches of one process at once: however many lines wait for one merchant, there are connections left for the
/// others' work.
const TURNS: usize = 4;

/// Reservations whose line is remembered: a few seconds of a hot sale. Others stand in a line of their own.
const LINES_MAX: u64 = 20_000;
/// Reservations that one round of the sweeper ends at once.
const SWEEP_BATCH: u32 = 256;
/// How long the first request with a key is waited for.
const TWIN_PATIENCE: Duration = Duration::from_secs(2);
/// How often it is looked for meanwhile.
const TWIN_LOOK: Duration = Duration::from_millis(50);
/// How often, and for how long, a reservation is looked for whose commit was not answered.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const LOOKS: u32 = 80;
/// How long the copy of a change may be on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(200);
/// What a request waits at least for its turn.
const LEAST_PATIENCE: Duration = Duration::from_millis(100);

impl Reserve {
    /// reserve on a store.
    pub fn new(parts: ReserveParts, config: &ReserveConfig) -> Self {
        let ReserveParts { jobs, companion, client } = parts;
        let (store, metrics) = (jobs.store().clone(), jobs.metrics().clone());
        let away = store.away();
        let webhook = Webhook::configured(&store, &metrics, client.as_ref(), config);
        let copies = companion.map(|companion| ReserveCopies::new(companion, config.lock_ttl.0));
        let (guards, notify) = (Guards::from_env(), webhook.is_some());
        let rules = Rules { guards, notify, ..Rules::new(config.times()) };
        let rules = Arc::new(rules.patient_for(patience(config)));
        let turns = Arc::new(Semaphore::new(TURNS));
        let desk = Desk {
            store,
            metrics,
            copies,
            rules,
            turns: turns.clone(),
            watch: Watch::new(&jobs),
            bus: jobs.bus().clone(),
        };
        let at_desk = desk.clone();
        let run = move |_line: Arc<str>, batch: Batch| {
            let desk = at_desk.clone();
            let run = async move { desk.decide(batch).await };
            Box::pin(run) as std::pin::Pin<Box<dyn Future<Output = _> + Send>>
        };
        Self(Arc::new(Inner {
            desk,
            combiner: Combiner::new(Box::new(run), turns, away),
            config: config.clone(),
            lines: moka::sync::Cache::builder().max_capacity(LINES_MAX).build(),
            webhook,
            under_way: Mutex::default(),
        }))
    }

    /// How long holds last.
    pub fn times(&self) -> HoldTimes {
        self.0.desk.rules.times
    }

    /// The queues of its jobs.
    pub fn queues(&self) -> Vec<QueueSpec> {
        self.0.webhook.iter().map(Webhook::queue).collect()
    }

    /// What sockets follow.
    pub fn watch(&self) -> &Watch {
        &self.0.desk.watch
    }

    /// A page of a waiting list, each with its ordinal.
    pub async fn waitlist(&self, filter: WaitFilter) -> Result<Vec<(u64, WaitView)>, StoreError> {
        self.0.desk.store.waitlist(filter).await
    }

    /// Has a request decided, together with whoever waits for the same. While another with its key is under way it waits
    /// for that one, and is answered as that one was.
    pub async fn decide(&self, request: Request) -> Result<Decided, ReserveError> {
        let began = Instant::now();
        let Some((key, _)) = &request.idempotency else { return self.decide_alone(request, began).await };
        let Some(first) = self.0.first_of(key, began + TWIN_PATIENCE).await else {
            let verdict = Verdict::Refused(Refusal::IdempotencyInProgress);
            return Ok(Decided { verdict, replayed: false });
        };
        let decided = self.decide_alone(request, began).await;
        drop(first);
        decided
    }

    async fn decide_alone(&self, request: Request, began: Instant) -> Result<Decided, ReserveError> {
        let inner = &*self.0;
        let (line, deadline) = (inner.line(&request.operation), began + TWIN_PATIENCE);
        let operation = request.operation.name();
        let decided = loop {
            let made = match &request.operation {
                Operation::Reserve(new) => Some(new.id),
                _ => None,
            };
            let decided = inner.combiner.submit(&line, request.clone(), inner.patience()).await;
            let decided = match decided {
                Ok(decided) => decided,
                Err(error) => {
                    let error = inner.not_decided(error, made).await;
                    if let Err(error) = &error {
                        inner
                            .desk
                            .metrics
                            .reserve
                            .failed(operation, !matches!(error, ReserveError::NotInTime));
                    }
                    break error?;
                }
            };
            let twin = decided.verdict == Verdict::Refused(Refusal::IdempotencyInProgress);
            if !twin || Instant::now() >= deadline {
                break decided;
            }
            tokio::time::sleep(TWIN_LOOK).await;
        };
        inner.desk.metrics.reserve.waited(began.elapsed());
        if let Verdict::Reservation(reservation) = &decided.verdict {
            inner.lines.insert(reservation.id, reservation.box_inventory_id.as_str().into());
        }
        Ok(decided)
    }

    /// Inventories as they are now.
    pub async fn inventories(&self, filter: InventoryFilter) -> Result<Vec<InventoryView>, StoreError> {
        self.0.desk.store.inventories(filter).await
    }

    /// Reservations as they are now.
    pub async fn reservations(&self, filter: ReservationFilter) -> Result<Vec<Reservation>, StoreError> {
        self.0.desk.store.reservations(filter).await
    }

    /// Sweeps until told to stop.
    pub async fn sweep_until(&self, stop: CancellationToken) {
        if !self.0.desk.rules.guards.hold(Guard::Sweeper) {
            return;
        }
        let mut ticks = tokio::time::interval(self.0.config.sweep_every.0);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let round = async {
                self.sweep().await?;
                self.0.desk.store.close_waits(SWEEP_BATCH).await?;
                self.compare().await
            };
            if let Some(Err(error)) = stop.run_until_cancelled(round).await {
                tracing::warn!(%error, "a round of the sweeper failed");
            }
        }
    }

    /// Compares copies of quantities with the store, where there are any.
    pub async fn compare(&self) -> Result<(), StoreError> {
        match &self.0.desk.copies {
            Some(copies) => {
                let differ = copies.differing(&*self.0.desk.store, copies.next()).await?;
                if differ.is_empty() {
                    self.0.desk.metrics.reserve.drifted(0);
                    return Ok(());
                }
                // A change may be on its way, or time has ended a hold since: looked at once more.
                tokio::time::sleep(ON_ITS_WAY).await;
                self.sweep().await?;
                copies.repair(&*self.0.desk.store, &self.0.desk.metrics, differ).await
            }
            None => Ok(()),
        }
    }

    /// One round of the sweeper: writes that time has ended what it has ended, oldest first, in small batches. How many.
    pub async fn sweep(&self) -> Result<usize, StoreError> {
        let (inner, began, mut swept) = (&*self.0, Instant::now(), 0);
        loop {
            let Lapsed { ids, since, now } = inner.desk.store.lapsed(SWEEP_BATCH).await?;
            inner.desk.metrics.reserve.sweep_lag(since.map_or(Duration::ZERO, |since| now.since(since)));
            if ids.is_empty() {
                inner.desk.metrics.reserve.swept(began.elapsed());
                return Ok(swept);
            }
            let whole = ids.len() == SWEEP_BATCH as usize;
            let (ended, failed) = inner.desk.expire(ids).await;
            swept += ended;
            if let Some(error) = failed {
                tracing::warn!(%error, "some holds whose time is over could not be ended");
                // What is left of them keeps its lag.
                return if ended == 0 { Err(error) } else { Ok(swept) };
            }
            // Someone else is faster, or there is nothing left.
            if !whole || ended == 0 {
                inner.desk.metrics.reserve.sweep_lag(Duration::ZERO);
                inner.desk.metrics.reserve.swept(began.elapsed());
                return Ok(swept);
            }
        }
    }
}

impl Inner {
    fn under_way(&self) -> MutexGuard<'_, HashMap<IdempotencyKey, watch::Receiver<()>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no request with this key is under way here. None if that takes too long.
    async fn first_of(&self, key: &IdempotencyKey, deadline: Instant) -> Option<UnderWay<'_>> {
        loop {
            let mut other = {
                let mut under_way = self.under_way();
                let Some(other) = under_way.get(key) else {
                    let (over, heard) = watch::channel(());
                    under_way.insert(key.clone(), heard);
                    return Some(UnderWay { inner: self, key: key.clone(), _over: over });
                };
                other.clone()
            };
            // It is over when its sender is gone.
            tokio::time::timeout_at(deadline, other.changed()).await.ok()?.err()?;
        }
    }

    /// Those who change the same stock stand in one line, if it is known.
    fn line(&self, operation: &Operation) -> Arc<str> {
        match operation {
            Operation::Reserve(new) => new.inventory_id.as_str().into(),
            Operation::Change(change) => change.inventory_id.as_str().into(),
            Operation::Join(new) => new.inventory_id.as_str().into(),
            Operation::Leave(id) => format!("wait:{id}").into(),
            Operation::CreateInventory(made) => made.id.as_str().into(),
            Operation::CreateMerchant(merchant) => format!("merchant:{}", merchant.id).into(),
            Operation::CreateBoxType(made) => format!("merchant:{}", made.merchant_id).into(),
            operation => {
                let id = operation.reservation().unwrap_or_default();
                self.lines.get(&id).unwrap_or_else(|| format!("reservation:{id}").into())
            }
        }
    }

    /// How long a request waits for its turn: as long as its retries would take.
    fn patience(&self) -> Duration {
        patience(&self.config).mul_f64(rand::rng().random_range(0.75..1.0)).max(LEAST_PATIENCE)
    }

    /// What a request is answered with that has no verdict. One whose commit was not answered is looked for.
    async fn not_decided(
        &self,
        error: NotDecided,
        made: Option<ReservationId>,
    ) -> Result<Decided, ReserveError> {
        let why = match error {
            NotDecided::NotInTime | NotDecided::Store(StoreError::Overloaded) => {
                return Err(ReserveError::NotInTime);
            }
            NotDecided::Store(StoreError::Unknown(why)) => why,
            NotDecided::Store(error) => return Err(ReserveError::Store(error)),
        };
        let Some(id) = made else { return Err(ReserveError::Unknown) };
        tracing::warn!(reservation = %id, why, "the answer to a commit was lost; looking for its reservation");
        for _ in 0..LOOKS {
            let filter = ReservationFilter { id: Some(id), limit: 1, ..ReservationFilter::default() };
            if let Ok(found) = self.desk.store.reservations(filter).await {
                // What is not there may yet come: the commit may still be under way.
                let found = found.into_iter().next().ok_or(ReserveError::Unknown)?;
                return Ok(Decided { verdict: Verdict::Reservation(found), replayed: false });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Err(ReserveError::Unknown)
    }
}

/// What all the retries of a request would take.
fn patience(config: &ReserveConfig) -> Duration {
    let first = config.lock_retry_wait.0;
    let all = (0..config.lock_retries).map(|retry| first.saturating_mul(1 << retry.min(16)));
    all.sum::<Duration>().max(LEAST_PATIENCE)
}

impl Desk {
    /// Ends holds whose time is over, each merchant's by themselves: one that cannot be got hold of keeps none
    /// of the others waiting. How many, and the error of one whose holds could not be ended.
    async fn expire(&self, ids: Vec<(String, ReservationId)>) -> (usize, Option<StoreError>) {
        let mut merchants: BTreeMap<String, Vec<Request>> = BTreeMap::new();
        for (merchant, id) in ids {
            merchants.entry(merchant).or_default().push(Request::new(Operation::Expire(id)));
        }
        let batch = |requests| async {
            let _turn = self.turns.acquire().await;
            self.decide(Batch::of(requests)).await
        };
        // A turn is left for those who buy.
        let batches = futures::stream::iter(merchants.into_values().map(batch)).buffered(TURNS - 1);
        let batches: Vec<Result<Vec<Decided>, StoreError>> = batches.collect().await;
        let is_ended = |one: &&Decided| matches!(one.verdict, Verdict::Reservation(_));
        let ended = batches.iter().flatten().flatten().filter(is_ended).count();
        (ended, batches.into_iter().find_map(Result::err))
    }

    /// Runs a batch that has its turn, counts it, has copies follow it, and remembers what was told.
    async fn decide(&self, batch: Batch) -> Result<Vec<Decided>, StoreError> {
        let requests = batch.requests.clone();
        self.metrics.reserve.batch(requests.len());
        let thinned = match &self.copies {
            Some(copies) if self.rules.guards.hold(Guard::Thinning) => copies.thin(&requests).await,
            _ => None,
        };
        let (decided, touched) = self.store.decide(batch, self.rules.clone()).await?;
        drop(thinned);
        if touched.notified {
            self.bus.wake(Topic::Queue(notify::QUEUE));
        }
        self.watch.touched(&touched);
        if let Some(copies) = &self.copies {
            copies.follow(touched);
        }
        for (request, decided) in requests.iter().zip(&decided) {
            let refusal = match &decided.verdict {
                Verdict::Refused(refusal) => Some(refusal),
                _ => None,
            };
            self.metrics.reserve.decided(request.operation.name(), refusal.map_or("done", Refusal::code));
            if let Some(of) = refusal.and_then(|refusal| told_of(request, refusal)) {
                self.rules.told.remember(of);
            }
        }
        Ok(decided)
    }
}

/// Letters and digits that cannot be taken for each other.
const CODE_LETTERS: &[u8; 32] = b"23456789ABCDEFGHJKLMNPQRSTUVWXYZ";

/// A code that cannot be guessed: eight of 32 letters, written `7KQ2-M9XD`.
pub fn pickup_code() -> String {
    let random: [u8; 8] = rand::random();
    let letter = |byte: u8| char::from(CODE_LETTERS[usize::from(byte) % CODE_LETTERS.len()]);
    let mut code: String = random.into_iter().map(letter).collect();
    code.insert(4, '-');
    code
}
