//! The writer: one thread, one connection, one commit for all that waits.
//!
//! ```text
//!   callers ──▶ lane ──▶ BEGIN IMMEDIATE
//!                        now := max(clock, last now)      one time for the whole batch
//!                        run each command
//!                        COMMIT                            one fdatasync for all
//!                        answer each
//! ```
//!
//! No timer: it takes what is there, so an idle store commits at once and a busy one in
//! batches. What arrives while a batch is run joins it; and while it is smaller than the one
//! before, whose callers are about to come back, it waits for them, at most a quarter of what
//! that one took.
//!
//! Commands refuse by returning an outcome; an *error* is rare: a full disk, a broken rule.
//! So a batch first runs bare. If a command errs, the transaction is rolled back and the batch
//! is run again **carefully**, each command inside a savepoint, so that the one that errs is
//! undone alone. And because SQLite may roll back *everything* on its own (disk full, I/O
//! error), autocommit is looked at after every error: if the transaction is gone, nothing of
//! the batch is true and nothing of it is answered as done; its commands are run once more,
//! each in a transaction of its own, and answered with what came of that.
//!
//! *What a crash does*: before COMMIT returns, nobody was answered and nothing of the batch is
//! in the file; after, all of it is. Commands can be run again, so they are `FnMut` and keep
//! no memory of an earlier run.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::{Connection, Error};
use solely_core::bus::{Bus, WeakBus};
use solely_core::clock::Timestamp;
use solely_core::{Clock, StoreError, fault, limits};
use tokio::sync::oneshot;

use crate::counts::{self, Counts};
use crate::error::store_error;
use crate::lane::{Lane, Priority};
use crate::others::Others;

/// What a command sees: the connection inside the batch's transaction, and its time.
pub(crate) struct Tx<'a> {
    pub(crate) conn: &'a Connection,
    /// The store's time, read once for the batch.
    pub(crate) now: Timestamp,
    last_fence: &'a Cell<u64>,
}

impl Tx<'_> {
    /// The store's time in milliseconds, as it is bound to statements.
    pub(crate) fn now_ms(&self) -> i64 {
        self.now.as_millis()
    }

    /// A fence greater than any given before.
    pub(crate) fn next_fence(&self) -> u64 {
        let fence = self.last_fence.get() + 1;
        self.last_fence.set(fence);
        fence
    }
}

/// Something for the writer to do, and someone to tell.
trait Command: Send {
    /// Runs inside the batch's transaction. May run again if the transaction was lost.
    fn run(&mut self, tx: &Tx<'_>) -> Result<(), Error>;
    /// Marks it as failed, whatever it returned.
    fn fail(&mut self, error: StoreError);
    /// Tells the caller. Only after the commit.
    fn answer(self: Box<Self>);
    /// Names it for crash points.
    fn label(&self) -> &'static str;
}

struct Op<F, T> {
    label: &'static str,
    work: F,
    result: Result<T, StoreError>,
    caller: oneshot::Sender<Result<T, StoreError>>,
}

impl<F, T> Command for Op<F, T>
where
    F: FnMut(&Tx<'_>) -> Result<T, Error> + Send,
    T: Send,
{
    fn run(&mut self, tx: &Tx<'_>) -> Result<(), Error> {
        self.result = Ok((self.work)(tx)?);
        Ok(())
    }

    fn fail(&mut self, error: StoreError) {
        self.result = Err(error);
    }

    fn answer(self: Box<Self>) {
        // A caller that left does not undo what it asked for.
        let _ = self.caller.send(self.result);
    }

    fn label(&self) -> &'static str {
        self.label
    }
}

/// What the callers' side and the thread's side share.
struct Shared {
    lane: Lane<Box<dyn Command>>,
    time: StoreTime,
    /// Until when callers are refused at once, because no transaction could be begun.
    blocked_until: Mutex<Option<Instant>>,
    /// Whom to tell that another process has written to the file.
    bus: OnceLock<WeakBus>,
}

impl Shared {
    fn block(&self) {
        *self.blocked_until.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Instant::now() + BLOCKED_FOR);
    }

    fn look_at_block(&self) -> Result<(), StoreError> {
        let blocked = *self.blocked_until.lock().unwrap_or_else(PoisonError::into_inner);
        if blocked.is_some_and(|until| Instant::now() < until) {
            return Err(StoreError::Unavailable(
                "another program keeps the store from being written".to_owned(),
            ));
        }
        Ok(())
    }
}

/// How long callers are refused at once after a transaction could not be begun.
const BLOCKED_FOR: Duration = Duration::from_secs(1);

/// The store's time: the clock's, but never behind what was told before. When the clock goes
/// back, time goes on from the last instant at the pace of the machine's monotonic clock.
struct StoreTime {
    clock: Clock,
    last: Mutex<(Timestamp, Instant)>,
}

impl StoreTime {
    fn now(&self) -> Timestamp {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now().max(last.0.plus(last.1.elapsed()));
        *last = (now, Instant::now());
        now
    }
}

/// The callers' side of the writer.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts the writer on its connection.
    pub(crate) fn start(
        mut conn: Connection,
        clock: Clock,
        counts: Arc<Counts>,
        count_statements: bool,
    ) -> Result<Self, Error> {
        let counter = |name: &str| {
            conn.query_row("SELECT value FROM counters WHERE name = ?1", [name], |row| row.get::<_, i64>(0))
        };
        let last_fence = Cell::new(u64::try_from(counter("fence")?).unwrap_or(0));
        let last_now = Timestamp::from_millis(counter("now_ms")?);
        let shared = Arc::new(Shared {
            lane: Lane::new(limits::WRITER_QUEUE, limits::WRITER_HOUSEKEEPING_QUEUE),
            time: StoreTime { clock, last: Mutex::new((last_now, Instant::now())) },
            blocked_until: Mutex::new(None),
            bus: OnceLock::new(),
        });
        let thread_shared = shared.clone();
        let thread = std::thread::Builder::new()
            .name("solely-writer".to_owned())
            .spawn(move || {
                if count_statements {
                    counts::count_statements(&mut conn, counts.clone());
                }
                let others = Others::new(&thread_shared.bus);
                Owner { conn, shared: &thread_shared, counts, last_fence }.run(others);
            })
            .expect("the system can start a thread");
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Tells a bus when another process has written to the file.
    pub(crate) fn tell_of_others(&self, bus: &Bus) {
        let _ = self.shared.bus.set(bus.downgrade());
    }

    /// Runs one command and waits until it is committed.
    pub(crate) async fn run<T, F>(&self, label: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Tx<'_>) -> Result<T, Error> + Send + 'static,
    {
        self.run_in(Priority::Normal, label, work).await
    }

    /// Runs one command when there is little else to do.
    pub(crate) async fn housekeep<T, F>(&self, label: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Tx<'_>) -> Result<T, Error> + Send + 'static,
    {
        self.run_in(Priority::Housekeeping, label, work).await
    }

    async fn run_in<T, F>(&self, priority: Priority, label: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Tx<'_>) -> Result<T, Error> + Send + 'static,
    {
        self.shared.look_at_block()?;
        let (command, answer) = command(label, work);
        self.shared.lane.push(vec![command], priority)?;
        answered(answer).await
    }

    /// Runs commands that are judged one by one but wait together.
    pub(crate) async fn run_each<T, F>(
        &self,
        label: &'static str,
        works: impl IntoIterator<Item = F>,
    ) -> Result<Vec<Result<T, StoreError>>, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Tx<'_>) -> Result<T, Error> + Send + 'static,
    {
        let (commands, answers): (Vec<_>, Vec<_>) =
            works.into_iter().map(|work| command(label, work)).unzip();
        self.shared.lane.push(commands, Priority::Normal)?;
        let mut results = Vec::with_capacity(answers.len());
        for answer in answers {
            results.push(answered(answer).await);
        }
        Ok(results)
    }

    /// The store's time for a read: never before that of a write that was answered.
    pub(crate) fn now(&self) -> Timestamp {
        self.shared.time.now()
    }

    /// Whether transactions can be begun, as far as is known.
    pub(crate) fn health(&self) -> Result<(), StoreError> {
        self.shared.look_at_block()
    }

    /// Finishes what waits, refuses what comes, and ends the thread.
    pub(crate) fn close(&self) {
        self.shared.lane.close();
        let thread = self.thread.lock().ok().and_then(|mut slot| slot.take());
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

fn command<T, F>(label: &'static str, work: F) -> (Box<dyn Command>, oneshot::Receiver<Result<T, StoreError>>)
where
    T: Send + 'static,
    F: FnMut(&Tx<'_>) -> Result<T, Error> + Send + 'static,
{
    let (caller, answer) = oneshot::channel();
    let result = Err(StoreError::Unavailable("the command was not run".to_owned()));
    (Box::new(Op { label, work, result, caller }), answer)
}

async fn answered<T>(answer: oneshot::Receiver<Result<T, StoreError>>) -> Result<T, StoreError> {
    match answer.await {
        Ok(result) => result,
        Err(_) => Err(StoreError::Unavailable("the store's writer has ended".to_owned())),
    }
}

/// The batch before: how many commands shared it, and how long it took.
#[derive(Clone, Copy)]
struct Last {
    commands: usize,
    took: Duration,
}

impl Last {
    /// Nobody is expected.
    const IDLE: Self = Self { commands: 1, took: Duration::ZERO };
}

/// The longest that a batch waits for callers to come back.
const PATIENCE_MAX: Duration = Duration::from_millis(1);

/// What a transaction held.
struct Ran {
    commands: usize,
    settles: bool,
}

impl Ran {
    fn of(batch: &[Box<dyn Command>]) -> Self {
        Self { commands: batch.len(), settles: batch.iter().any(|command| command.label() == "settle") }
    }

    /// Dies here if something was settled and the point is armed.
    fn crash_point(&self, point: &str) {
        if self.settles {
            fault::point(point);
        }
    }
}

/// Runs a batch bare, and lets join it what arrives meanwhile. While it is smaller than the one
/// before, it waits for those callers to come back, in all at most a quarter of what that one
/// took and at most [`PATIENCE_MAX`]. The first error ends it.
fn run_joined(
    tx: &Tx<'_>,
    lane: &Lane<Box<dyn Command>>,
    batch: &mut Vec<Box<dyn Command>>,
    last: Last,
) -> Result<Ran, Error> {
    let mut patience = (last.took / 4).min(PATIENCE_MAX);
    let mut done = 0;
    loop {
        for command in &mut batch[done..] {
            run_caught(&mut **command, tx).map_err(Trouble::into_error)?;
        }
        done = batch.len();
        let room = limits::WRITER_BATCH.saturating_sub(done);
        let missing = last.commands.saturating_sub(done);
        if room == 0 || (!lane.join(room, batch) && (missing == 0 || patience.is_zero())) {
            return Ok(Ran::of(batch));
        }
        if batch.len() == done {
            let waiting = Instant::now();
            lane.gather(missing.div_ceil(2), patience);
            patience = patience.saturating_sub(waiting.elapsed());
        }
    }
}

/// What went wrong inside a command.
enum Trouble {
    Sql(Error),
    Panic,
}

impl Trouble {
    fn into_error(self) -> Error {
        match self {
            Self::Sql(error) => error,
            Self::Panic => Error::UnwindingPanic,
        }
    }

    fn into_store_error(self) -> StoreError {
        match self {
            Self::Sql(error) => store_error(&error),
            Self::Panic => StoreError::Refused("the command panicked".to_owned()),
        }
    }
}

fn run_caught(command: &mut dyn Command, tx: &Tx<'_>) -> Result<(), Trouble> {
    match catch_unwind(AssertUnwindSafe(|| command.run(tx))) {
        Ok(result) => result.map_err(Trouble::Sql),
        Err(_) => Err(Trouble::Panic),
    }
}

/// The thread's side of the writer.
struct Owner<'a> {
    conn: Connection,
    shared: &'a Shared,
    counts: Arc<Counts>,
    last_fence: Cell<u64>,
}

impl Owner<'_> {
    fn run(self, mut others: Others<'_>) {
        let mut batch = Vec::with_capacity(limits::WRITER_BATCH);
        let mut last = Last::IDLE;
        let mut answered = Instant::now();
        while self.shared.lane.take(limits::WRITER_BATCH, &mut batch) {
            let started = Instant::now();
            // Whoever has not come back by now is not about to.
            if started - answered > last.took {
                last = Last::IDLE;
            }
            others.look(&self.conn);
            self.run_batch(&mut batch, last);
            last = Last { commands: batch.len(), took: started.elapsed() };
            batch.drain(..).for_each(Command::answer);
            answered = Instant::now();
        }
    }

    /// Makes every command's result final: committed, or undone and failed.
    fn run_batch(&self, batch: &mut Vec<Box<dyn Command>>, last: Last) {
        if let Err(error) = self.statement("BEGIN IMMEDIATE") {
            // Somebody else has the file. Trying for each command would only add up the waits.
            tracing::warn!(%error, commands = batch.len(), "no transaction could be begun");
            self.shared.block();
            let error = store_error(&error);
            for command in batch {
                command.fail(error.clone());
            }
            return;
        }
        if self.transact_begun(|tx| run_joined(tx, &self.shared.lane, batch, last)).is_ok() {
            return;
        }
        let Err(error) = self.transact(|tx| self.run_carefully(tx, batch)) else { return };
        tracing::warn!(%error, commands = batch.len(), "a transaction was lost");
        for command in batch {
            let alone = std::slice::from_mut(command);
            if let Err(error) = self.transact(|tx| self.run_carefully(tx, alone)) {
                command.fail(store_error(&error));
            }
        }
    }

    /// Runs commands in one transaction. `Err` means that nothing of it is in the file.
    fn transact(&self, run: impl FnOnce(&Tx<'_>) -> Result<Ran, Error>) -> Result<(), Error> {
        self.statement("BEGIN IMMEDIATE")?;
        self.transact_begun(run)
    }

    /// The rest of a transaction that has begun.
    fn transact_begun(&self, run: impl FnOnce(&Tx<'_>) -> Result<Ran, Error>) -> Result<(), Error> {
        let fence_before = self.last_fence.get();
        let tx = Tx { conn: &self.conn, now: self.shared.time.now(), last_fence: &self.last_fence };
        let outcome = run(&tx).and_then(|ran| {
            self.keep_fence(fence_before)?;
            ran.crash_point("settle.commit");
            self.statement("COMMIT")?;
            Ok(ran)
        });
        match outcome {
            Ok(ran) => {
                self.counts.committed(ran.commands);
                ran.crash_point("settle.committed");
                Ok(())
            }
            Err(error) => {
                if !self.conn.is_autocommit() {
                    self.statement("ROLLBACK")?;
                }
                Err(error)
            }
        }
    }

    /// Writes down the last fence that was given out, if one was.
    fn keep_fence(&self, before: u64) -> Result<(), Error> {
        if self.last_fence.get() == before {
            return Ok(());
        }
        let last = i64::try_from(self.last_fence.get()).unwrap_or(i64::MAX);
        self.conn
            .prepare_cached("UPDATE counters SET value = ?1 WHERE name = 'fence'")?
            .execute([last])
            .map(drop)
    }

    /// Runs a batch so that each command can be undone alone.
    fn run_carefully(&self, tx: &Tx<'_>, batch: &mut [Box<dyn Command>]) -> Result<Ran, Error> {
        for command in batch.iter_mut() {
            self.run_in_savepoint(&mut **command, tx)?;
        }
        Ok(Ran::of(batch))
    }

    /// Runs one command so that its failure is its own. `Err` means that the transaction is gone.
    fn run_in_savepoint(&self, command: &mut dyn Command, tx: &Tx<'_>) -> Result<(), Error> {
        self.statement("SAVEPOINT command")?;
        if let Err(trouble) = run_caught(command, tx) {
            if self.conn.is_autocommit() {
                return Err(trouble.into_error());
            }
            self.statement("ROLLBACK TO command")?;
            command.fail(trouble.into_store_error());
        }
        self.statement("RELEASE command")
    }

    fn statement(&self, sql: &str) -> Result<(), Error> {
        self.conn.prepare_cached(sql)?.execute([]).map(drop)
    }
}
