//! Combining: those who wait for one inventory are decided together.
//!
//! Each line (an inventory) has a drainer while someone is in it: it takes what is there, runs it, answers everyone,
//! and takes what has come meanwhile. No timer: who is alone is decided at once. A request can be withdrawn until its
//! batch is sealed; from then on its outcome is waited for, because it may have happened.
//!
//! In a crowd the store would rest while one batch is answered and the next is made ready. So there a second drainer takes
//! the half that waits while the other half is under way: as soon as that many wait as are under way, and not before, or
//! batches would become ever smaller. Each batch knows those sealed before it, and is not decided before them
//! ([`super::batch`]): whoever came first has the last box. Nothing is sealed behind a batch that is not sent yet, as it
//! could only wait, and nobody in it could leave or be refused any more.
//!
//! Whoever finds nobody in the line drains it itself, so that who is alone wakes nobody else. When it has its answer, or
//! leaves, what is left goes on in a task of its own ([`Drains`]): a batch belongs to nobody's connection.
//!
//! Whoever is not sealed when the store is found away is refused at once, and so is whoever comes before it is back: a
//! batch that was cut off at its COMMIT may take that long to hear what became of it.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::{Semaphore, oneshot};

use super::batch::{Ahead, Batch};
use super::operation::{Decided, Request};
use crate::away::Away;
use crate::error::StoreError;

/// Requests of one batch.
pub const BATCH_MAX: usize = 256;
/// Requests that wait in one process; one more is refused.
pub const WAITING_MAX: usize = 16_384;
/// Batches of one line that are under way at once.
const UNDER_WAY_MAX: usize = 2;
/// As many are worth a batch of their own while another is under way.
const CROWD: usize = 32;

/// What runs a batch of a line.
pub type Run = Box<dyn Fn(Arc<str>, Batch) -> Running + Send + Sync>;
type Running = Pin<Box<dyn Future<Output = Result<Vec<Decided>, StoreError>> + Send>>;

/// Why a request has no verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDecided {
    /// Its turn did not come in time. Nothing has happened, and nothing will.
    NotInTime,
    /// The store could not say.
    Store(StoreError),
}

const WAITS: u8 = 0;
const SEALED: u8 = 1;
const WITHDRAWN: u8 = 2;

struct Waiting {
    request: Request,
    stage: Arc<AtomicU8>,
    caller: Caller,
}

/// Whoever waits for a verdict.
type Caller = oneshot::Sender<Result<Decided, StoreError>>;

/// Those who wait for the same.
#[derive(Default)]
struct Line {
    waiting: VecDeque<Waiting>,
    /// Those at work on it, and the requests of the batches that they have under way.
    drainers: usize,
    under_way: usize,
    /// The batches that are under way, in their order.
    ahead: Vec<Ahead>,
}

impl Line {
    /// Whether those who wait are a batch of their own although another is under way.
    fn is_crowded(&self) -> bool {
        self.waiting.len() >= self.under_way.max(CROWD)
    }

    /// Whether another drainer is worth it, which then counts as one.
    fn calls_for_help(&mut self) -> bool {
        let calls = self.under_way > 0 && self.drainers < UNDER_WAY_MAX && self.is_crowded();
        self.drainers += usize::from(calls);
        calls
    }

    /// Takes the next batch: half of all in a crowd, so that there are two of a size.
    fn seal(&mut self) -> Next {
        if self.under_way > 0 && !self.is_crowded() {
            return Next::Nobody;
        }
        self.ahead.retain(|ahead| !ahead.is_over());
        if let Some(ahead) = self.ahead.iter().find(|ahead| !ahead.is_sent()) {
            return Next::Behind(ahead.clone());
        }
        let all = self.waiting.len() + self.under_way;
        let most = if all < 2 * CROWD { all } else { self.under_way.max(all.div_ceil(2)) }.min(BATCH_MAX);
        let room = most.min(self.waiting.len());
        let (mut requests, mut callers) = (Vec::with_capacity(room), Vec::with_capacity(room));
        while callers.len() < most
            && let Some(waiting) = self.waiting.pop_front()
        {
            let seal = waiting.stage.compare_exchange(WAITS, SEALED, Ordering::AcqRel, Ordering::Acquire);
            if seal.is_ok() {
                requests.push(waiting.request);
                callers.push(waiting.caller);
            }
        }
        if callers.is_empty() {
            return Next::Nobody;
        }
        self.under_way += callers.len();
        let batch = Batch::behind(self.ahead.clone(), requests);
        self.ahead.push(batch.ahead());
        Next::Batch(batch, callers)
    }
}

/// What a drainer does next.
enum Next {
    /// Runs this.
    Batch(Batch, Vec<Caller>),
    /// Waits until that one is sent: it is ahead.
    Behind(Ahead),
    /// Leaves: nobody waits, or those who do had better wait for the batch that is under way.
    Nobody,
}

/// The lines of one process. Clones share them.
#[derive(Clone)]
pub struct Combiner(Arc<Inner>);

struct Inner {
    lines: Mutex<HashMap<Arc<str>, Line>>,
    waiting: AtomicUsize,
    run: Run,
    /// Batches that may be under way at once.
    turns: Arc<Semaphore>,
    /// Whether the store is.
    away: Away,
}

impl Combiner {
    /// Lines whose batches are run by this, as many at once as there are turns.
    pub fn new(run: Run, turns: Arc<Semaphore>, away: Away) -> Self {
        Self(Arc::new(Inner { lines: Mutex::default(), waiting: AtomicUsize::new(0), run, turns, away }))
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.0.waiting.load(Ordering::Relaxed)
    }

    /// Waits in a line for a verdict; at most so long for its turn.
    pub async fn submit(
        &self,
        line: &str,
        request: Request,
        patience: Duration,
    ) -> Result<Decided, NotDecided> {
        if self.waiting() >= WAITING_MAX {
            return Err(NotDecided::NotInTime);
        }
        let (caller, mut answer) = oneshot::channel();
        let stage = Arc::new(AtomicU8::new(WAITS));
        // Whoever leaves before the batch is sealed has asked for nothing. What was left to drain goes on after that.
        let mut drains = Drains(None);
        let _withdraws = Withdraws(stage.clone());
        let waiting = Waiting { request, stage: stage.clone(), caller };
        drains.0 = self.0.join(line, waiting).map_err(NotDecided::Store)?;
        let answered = async {
            tokio::select! {
                biased;
                () = drains.drain() => (&mut answer).await,
                answered = &mut answer => answered,
            }
        };
        let answered = match tokio::time::timeout(patience, answered).await {
            Ok(answered) => answered,
            Err(_) if withdraw(&stage) => return Err(NotDecided::NotInTime),
            Err(_) => {
                drop(drains);
                answer.await
            }
        };
        let lost = || Err(StoreError::Unknown("the batch was lost".to_owned()));
        answered.unwrap_or_else(|_| lost()).map_err(NotDecided::Store)
    }
}

/// Withdraws a request when its caller leaves.
struct Withdraws(Arc<AtomicU8>);

impl Drop for Withdraws {
    fn drop(&mut self) {
        withdraw(&self.0);
    }
}

type Draining = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A line that this caller drains for as long as it waits itself. Dropped, the rest is drained by a task.
struct Drains(Option<Draining>);

impl Drains {
    /// Drains the line to its end; for ever, if it is another's to drain.
    async fn drain(&mut self) {
        let Some(draining) = &mut self.0 else { return std::future::pending().await };
        draining.await;
        self.0 = None;
    }
}

impl Drop for Drains {
    fn drop(&mut self) {
        if let Some(rest) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(rest);
        }
    }
}

fn withdraw(stage: &AtomicU8) -> bool {
    stage.compare_exchange(WAITS, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

impl Inner {
    fn lines(&self) -> MutexGuard<'_, HashMap<Arc<str>, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has to be drained now, if nobody does so.
    fn join(self: &Arc<Self>, name: &str, waiting: Waiting) -> Result<Option<Draining>, StoreError> {
        let mut lines = self.lines();
        // Under the lock: who is let in before the store is away is there when the line is refused.
        if let Some(why) = self.away.now() {
            return Err(why);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if let Some(line) = lines.get_mut(name) {
            line.waiting.push_back(waiting);
            if line.calls_for_help() {
                tokio::spawn(self.clone().drain(name.into()));
            }
            return Ok(None);
        }
        let name: Arc<str> = name.into();
        let line = Line { waiting: VecDeque::from([waiting]), drainers: 1, ..Line::default() };
        lines.insert(name.clone(), line);
        drop(lines);
        Ok(Some(Box::pin(self.clone().drain(name))))
    }

    /// Runs batch after batch until nobody is in the line, or another drainer does better without this one.
    async fn drain(self: Arc<Self>, name: Arc<str>) {
        loop {
            // Nothing is sealed before it has its turn: until then whoever waits may give up.
            let turn = self.away.refusing(self.turns.acquire(), |why| self.refuse(&name, &why)).await;
            let (batch, callers) = match self.seal(&name) {
                Next::Batch(batch, callers) => (batch, callers),
                Next::Behind(ahead) => {
                    drop(turn);
                    self.away.refusing(ahead.until_sent(), |why| self.refuse(&name, &why)).await;
                    continue;
                }
                Next::Nobody => return,
            };
            // A batch that panics is its callers' loss, and nobody else's.
            let run = AssertUnwindSafe((self.run)(name.clone(), batch)).catch_unwind();
            let ended = self.away.refusing(run, |why| self.refuse(&name, &why)).await;
            if let Some(line) = self.lines().get_mut(&name) {
                line.under_way -= callers.len();
            }
            match ended {
                Ok(Ok(decided)) => {
                    for (caller, decided) in callers.into_iter().zip(decided) {
                        let _ = caller.send(Ok(decided));
                    }
                }
                Ok(Err(error)) => {
                    for caller in callers {
                        let _ = caller.send(Err(error.clone()));
                    }
                }
                Err(_) => drop(callers),
            }
            drop(turn);
        }
    }

    /// Tells whoever waits in a line that nothing has happened, and nothing will.
    fn refuse(&self, name: &Arc<str>, why: &StoreError) {
        let waiting =
            self.lines().get_mut(name).map(|line| std::mem::take(&mut line.waiting)).unwrap_or_default();
        self.waiting.fetch_sub(waiting.len(), Ordering::Relaxed);
        for waiting in waiting {
            if withdraw(&waiting.stage) {
                let _ = waiting.caller.send(Err(why.clone()));
            }
        }
    }

    /// Takes the next batch of a line. Where there is none the drainer has left, and the last one takes the line with it.
    fn seal(self: &Arc<Self>, name: &Arc<str>) -> Next {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(name) else { return Next::Nobody };
        let before = line.waiting.len();
        let next = line.seal();
        self.waiting.fetch_sub(before - line.waiting.len(), Ordering::Relaxed);
        match &next {
            Next::Batch(..) if line.calls_for_help() => {
                tokio::spawn(self.clone().drain(name.clone()));
            }
            Next::Batch(..) | Next::Behind(_) => {}
            Next::Nobody => {
                line.drainers -= 1;
                if line.drainers == 0 {
                    lines.remove(name);
                }
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::id::ReservationId;
    use crate::reserve::{Operation, Refusal, Verdict};

    /// A combiner whose batches wait to be let, and say how large they are.
    fn held() -> (Combiner, Arc<Semaphore>, mpsc::UnboundedReceiver<usize>) {
        held_on(Away::NEVER)
    }

    fn held_on(away: Away) -> (Combiner, Arc<Semaphore>, mpsc::UnboundedReceiver<usize>) {
        let (gate, (sender, sizes)) = (Arc::new(Semaphore::new(0)), mpsc::unbounded_channel());
        let opened = gate.clone();
        let run = move |_: Arc<str>, batch: Batch| -> Running {
            let (gate, sender) = (gate.clone(), sender.clone());
            Box::pin(async move {
                sender.send(batch.requests.len()).expect("is heard");
                batch.sent();
                gate.acquire().await.expect("is open").forget();
                Ok(refused(&batch))
            })
        };
        (Combiner::new(Box::new(run), Arc::new(Semaphore::new(4)), away), opened, sizes)
    }

    fn refused(batch: &Batch) -> Vec<Decided> {
        let decided = Decided { verdict: Verdict::Refused(Refusal::InvalidState), replayed: false };
        vec![decided; batch.requests.len()]
    }

    fn request() -> Request {
        Request::new(Operation::Cancel(ReservationId::new()))
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_one_batch() {
        let (combiner, gate, mut sizes) = held();
        let ask = || {
            let combiner = combiner.clone();
            tokio::spawn(async move { combiner.submit("line", request(), LONG).await })
        };
        let first = ask();
        assert_eq!(sizes.recv().await, Some(1), "who is alone does not wait");
        let others: Vec<_> = (0..10).map(|_| ask()).collect();
        while combiner.waiting() < 10 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(2);
        assert_eq!(sizes.recv().await, Some(10));
        assert!(first.await.expect("asks").is_ok());
        for other in others {
            assert!(other.await.expect("asks").is_ok());
        }
        assert_eq!(combiner.waiting(), 0);
    }

    fn asking(
        combiner: &Combiner,
        count: usize,
    ) -> Vec<tokio::task::JoinHandle<Result<Decided, NotDecided>>> {
        let one = |_| {
            let combiner = combiner.clone();
            tokio::spawn(async move { combiner.submit("line", request(), LONG).await })
        };
        (0..count).map(one).collect()
    }

    /// A batch that is under way beside another waits for that one if it cannot be sent behind it, and knows when that is.
    #[tokio::test(start_paused = true)]
    async fn each_batch_knows_the_one_before_it() {
        let (gate, (tells, mut told)) = (Arc::new(Semaphore::new(0)), mpsc::unbounded_channel());
        let opened = gate.clone();
        let run = move |_: Arc<str>, batch: Batch| -> Running {
            let (gate, tells) = (gate.clone(), tells.clone());
            Box::pin(async move {
                let size = batch.requests.len();
                batch.ahead_sent().await;
                tells.send(("may be sent", size)).expect("is heard");
                gate.acquire().await.expect("is open").forget();
                batch.sent();
                batch.ahead_over().await;
                tells.send(("may be decided", size)).expect("is heard");
                gate.acquire().await.expect("is open").forget();
                Ok(refused(&batch))
            })
        };
        let combiner = Combiner::new(Box::new(run), Arc::new(Semaphore::new(4)), Away::NEVER);
        let mut crowd = asking(&combiner, 1);
        assert_eq!(told.recv().await, Some(("may be sent", 1)));
        crowd.extend(asking(&combiner, CROWD));
        while combiner.waiting() < CROWD {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!((told.len(), combiner.waiting()), (0, CROWD), "the first is not sent");
        opened.add_permits(1);
        let both = [told.recv().await, told.recv().await];
        assert_eq!(both, [Some(("may be decided", 1)), Some(("may be sent", CROWD))]);
        // The first is before the second at the gate.
        opened.add_permits(2);
        assert_eq!(told.recv().await, Some(("may be decided", CROWD)));
        opened.add_permits(1);
        for one in crowd {
            assert!(one.await.expect("asks").is_ok());
        }
    }

    /// A batch that is over before the one ahead of it, because it failed, lets nobody pass that one.
    #[tokio::test(start_paused = true)]
    async fn who_fails_early_lets_nobody_pass() {
        let request = || vec![request()];
        let first = Batch::of(request());
        let second = Batch::behind(vec![first.ahead()], request());
        let mut line = Line { ahead: vec![first.ahead(), second.ahead()], ..Line::default() };
        drop(second);
        let (caller, _answer) = oneshot::channel();
        let stage = Arc::new(AtomicU8::new(WAITS));
        line.waiting.push_back(Waiting { request: request().remove(0), stage, caller });
        first.sent();
        let Next::Batch(third, _) = line.seal() else { panic!("is sealed") };
        assert_eq!(line.ahead.len(), 2, "those that are not over");
        let mut over = std::pin::pin!(third.ahead_over());
        assert!(futures::poll!(over.as_mut()).is_pending());
        drop(first);
        over.await;
    }

    /// Whoever stands behind a batch that is not sent can still be refused. Once it is sent the crowd behind it is on its way
    /// too, and waits to hear what becomes of that.
    #[tokio::test(start_paused = true)]
    async fn a_crowd_behind_what_is_not_sent_is_refused_when_the_store_is_found_away() {
        for is_sent in [false, true] {
            let (says, hears) = watch::channel(None);
            let (begun, opened) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
            let (tells, gate) = (begun.clone(), opened.clone());
            let run = move |_: Arc<str>, batch: Batch| -> Running {
                let (begun, gate) = (tells.clone(), gate.clone());
                Box::pin(async move {
                    if is_sent {
                        batch.sent();
                    }
                    begun.add_permits(1);
                    gate.acquire().await.expect("is open").forget();
                    Ok(refused(&batch))
                })
            };
            let combiner = Combiner::new(Box::new(run), Arc::new(Semaphore::new(4)), Away::heard(hears));
            let first = asking(&combiner, 1);
            begun.acquire().await.expect("is open").forget();
            let crowd = asking(&combiner, CROWD);
            if is_sent {
                begun.acquire().await.expect("is open").forget();
            } else {
                while combiner.waiting() < CROWD {
                    tokio::task::yield_now().await;
                }
            }
            says.send_replace(Some("gone".to_owned()));
            let away = Err(NotDecided::Store(StoreError::Unavailable("gone".to_owned())));
            opened.add_permits(2 * usize::from(is_sent));
            for one in crowd {
                let told = one.await.expect("asks");
                assert_eq!(told == away, !is_sent, "{told:?}");
            }
            opened.add_permits(2);
            for one in first {
                assert!(one.await.expect("asks").is_ok());
            }
            assert_eq!(combiner.waiting(), 0);
        }
    }

    /// In a crowd the half that waits is a batch while the other half is under way, and no batch is a small one because of
    /// that: those who are few wait for what is under way.
    #[tokio::test(start_paused = true)]
    async fn a_crowd_is_two_batches_at_once() {
        let (combiner, gate, mut sizes) = held();
        let mut crowd = Vec::new();
        for size in [1, CROWD] {
            crowd.extend(asking(&combiner, size));
            assert_eq!(sizes.recv().await, Some(size), "two are under way");
        }
        crowd.extend(asking(&combiner, 100 - CROWD));
        while combiner.waiting() < 100 - CROWD {
            tokio::task::yield_now().await;
        }
        assert!(sizes.is_empty(), "and not three");
        gate.add_permits(1);
        assert_eq!(sizes.recv().await, Some(50), "half of all");
        gate.add_permits(1);
        while gate.available_permits() > 0 || combiner.waiting() > 100 - CROWD - 50 {
            tokio::task::yield_now().await;
        }
        assert!(sizes.is_empty(), "few wait beside many");
        gate.add_permits(1);
        assert_eq!(sizes.recv().await, Some(100 - CROWD - 50));
        gate.add_permits(1);
        for one in crowd {
            assert!(one.await.expect("asks").is_ok());
        }
        assert!(combiner.0.lines().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_sealed_is_waited_for_and_what_is_not_is_withdrawn() {
        let (combiner, gate, mut sizes) = held();
        let ask = |patience| {
            let combiner = combiner.clone();
            tokio::spawn(async move { combiner.submit("line", request(), patience).await })
        };
        let sealed = ask(Duration::from_millis(10));
        assert_eq!(sizes.recv().await, Some(1));
        let late = ask(Duration::from_millis(10));
        assert_eq!(late.await.expect("asks"), Err(NotDecided::NotInTime), "nothing will happen");
        let leaves = ask(LONG);
        while combiner.waiting() < 2 {
            tokio::task::yield_now().await;
        }
        leaves.abort();
        let _ = leaves.await;
        gate.add_permits(1);
        assert!(sealed.await.expect("asks").is_ok(), "its batch was under way, long past its patience");
        let next = ask(LONG);
        gate.add_permits(1);
        assert!(next.await.expect("asks").is_ok());
        assert_eq!(sizes.recv().await, Some(1), "neither who was late nor who left is in it");
    }

    /// A batch that is under way is waited for while the store is away; those behind it are not.
    #[tokio::test(start_paused = true)]
    async fn who_waits_is_refused_when_the_store_is_found_away() {
        let (says, hears) = watch::channel(None);
        let (combiner, gate, mut sizes) = held_on(Away::heard(hears));
        let ask = || {
            let combiner = combiner.clone();
            tokio::spawn(async move { combiner.submit("line", request(), LONG).await })
        };
        let sealed = ask();
        assert_eq!(sizes.recv().await, Some(1));
        let behind = ask();
        while combiner.waiting() < 1 {
            tokio::task::yield_now().await;
        }
        says.send_replace(Some("gone".to_owned()));
        let away = Err(NotDecided::Store(StoreError::Unavailable("gone".to_owned())));
        assert_eq!(behind.await.expect("asks"), away);
        assert_eq!(ask().await.expect("asks"), away, "and so is who comes later");
        assert_eq!(combiner.waiting(), 0);
        // It comes back, and goes away again before that batch has ended.
        for _ in 0..2 {
            says.send_replace(None);
            let again = ask();
            while combiner.waiting() < 1 {
                tokio::task::yield_now().await;
            }
            says.send_replace(Some("gone".to_owned()));
            assert_eq!(again.await.expect("asks"), away);
        }
        says.send_replace(None);
        let after = ask();
        gate.add_permits(2);
        assert!(sealed.await.expect("asks").is_ok());
        assert!(after.await.expect("asks").is_ok());
        assert_eq!(sizes.recv().await, Some(1), "whoever was refused is not in it");
    }

    /// Who drains a line may leave in the middle of its batch: the batch goes on, and so does the line.
    #[tokio::test(start_paused = true)]
    async fn who_drains_may_leave() {
        let (combiner, gate, mut sizes) = held();
        let ask = || {
            let combiner = combiner.clone();
            tokio::spawn(async move { combiner.submit("line", request(), LONG).await })
        };
        let first = ask();
        assert_eq!(sizes.recv().await, Some(1));
        let second = ask();
        while combiner.waiting() < 1 {
            tokio::task::yield_now().await;
        }
        first.abort();
        assert!(first.await.is_err_and(|error| error.is_cancelled()));
        gate.add_permits(2);
        assert_eq!(sizes.recv().await, Some(1), "the next batch is run by someone else");
        assert!(second.await.expect("asks").is_ok());
        assert_eq!(combiner.waiting(), 0);
        let third = ask();
        gate.add_permits(1);
        assert!(third.await.expect("asks").is_ok(), "and the line is free again");
    }
}
