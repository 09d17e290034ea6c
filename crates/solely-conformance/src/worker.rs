//! The worker on a real store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use solely_core::cache::{EntryKey, Lifetimes, Overwrite, PutEntry};
use solely_core::commit::Effect;
use solely_core::job::{Job, JobState, NewJob};
use solely_core::worker::{Backoff, Delivery, Done, Failure, Handler, QueueSpec, Worker};
use solely_core::{JobId, Json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::World;
use crate::world::{QUEUE, secs};

/// What a scripted handler does with a delivery.
#[derive(Clone, Debug)]
enum Act {
    Done,
    Fail(Failure),
    Panic,
    /// Waits until the test opens the gate.
    Wait,
}

struct Scripted {
    act: Act,
    begun: mpsc::UnboundedSender<Job>,
    dropped: mpsc::UnboundedSender<()>,
    gate: watch::Receiver<bool>,
    running: AtomicUsize,
    most: AtomicUsize,
}

struct Running<'a>(&'a Scripted);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        let _ = self.0.dropped.send(());
    }
}

#[async_trait]
impl Handler for Scripted {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let _running = Running(self);
        let _ = self.begun.send(delivery.job.clone());
        match &self.act {
            Act::Done => Ok(Done::default()),
            Act::Fail(failure) => Err(failure.clone()),
            Act::Panic => panic!("a handler's mistake"),
            Act::Wait => {
                let _ = self.gate.clone().wait_for(|open| *open).await;
                Ok(Done::default())
            }
        }
    }

    fn died(&self, job: &Job, error: &str) -> Done {
        assert!(job.key != "panics in died", "a handler's mistake");
        let lifetimes = Lifetimes { fresh: secs(60), stale: secs(60), keep: secs(60) };
        let failed = PutEntry {
            key: EntryKey::new("failed", job.key.clone()),
            value: Json::of(&error),
            lifetimes,
            overwrite: Overwrite::Always,
            told: None,
        };
        let next = NewJob::new("work-done", job.key.clone());
        Done { effect: Effect::PutEntries(vec![failed]), next_jobs: vec![next], ..Done::default() }
    }
}

/// A worker with a scripted handler, and what a test sees of it.
struct Stage {
    handler: Arc<Scripted>,
    begun: mpsc::UnboundedReceiver<Job>,
    dropped: mpsc::UnboundedReceiver<()>,
    gate: watch::Sender<bool>,
    stop: CancellationToken,
    worker: JoinHandle<()>,
}

impl Stage {
    fn set(world: &World, act: Act, change: impl FnOnce(&mut QueueSpec)) -> Self {
        let (begun_sender, begun) = mpsc::unbounded_channel();
        let (dropped_sender, dropped) = mpsc::unbounded_channel();
        let (gate, opened) = watch::channel(false);
        let handler = Arc::new(Scripted {
            act,
            begun: begun_sender,
            dropped: dropped_sender,
            gate: opened,
            running: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        });
        let mut spec = QueueSpec::new(QUEUE, handler.clone());
        spec.backoff = Backoff { first: Duration::from_millis(1), longest: Duration::from_millis(2) };
        change(&mut spec);
        let worker = Worker {
            jobs: world.jobs(),
            process: world.process,
            queues: vec![spec],
            grace: Duration::from_millis(50),
        };
        let stop = CancellationToken::new();
        let worker = tokio::spawn(worker.run(stop.clone()));
        Self { handler, begun, dropped, gate, stop, worker }
    }

    async fn begins(&mut self) -> Job {
        let begun = tokio::time::timeout(secs(20), self.begun.recv()).await;
        begun.expect("a delivery begins").expect("the handler lives")
    }

    async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(secs(20), self.worker).await.expect("stops").expect("did not panic");
    }
}

/// Awaits a state without assuming when it comes.
async fn until_state(world: &World, id: JobId, state: JobState) -> Job {
    let reached = async {
        loop {
            let job = world.job(id).await;
            if job.state == state {
                return job;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let Ok(job) = tokio::time::timeout(secs(20), reached).await else {
        panic!("{state:?} is not reached: {:?}", world.job(id).await)
    };
    job
}

async fn enqueue(world: &World, job: NewJob) -> JobId {
    let id = job.id;
    world.jobs().enqueue(vec![job]).await.expect("enqueues");
    id
}

/// What is enqueued is done, whether before or after the worker began.
pub async fn a_worker_does_what_is_enqueued(world: World) {
    let before = enqueue(&world, NewJob::new(QUEUE, "before")).await;
    let mut stage = Stage::set(&world, Act::Done, |_| {});
    assert_eq!(stage.begins().await.id, before);
    let after = enqueue(&world, NewJob::new(QUEUE, "after")).await;
    assert_eq!(stage.begins().await.id, after);
    until_state(&world, before, JobState::Completed).await;
    until_state(&world, after, JobState::Completed).await;
    stage.stop().await;
}

/// A worker of a process that is not registered registers it.
pub async fn a_worker_beats_before_it_claims(world: World) {
    world.store().leave(world.process).await.expect("leaves");
    enqueue(&world, NewJob::new(QUEUE, "a")).await;
    let mut stage = Stage::set(&world, Act::Done, |_| {});
    stage.begins().await;
    stage.stop().await;
}

/// Many jobs, few at once.
pub async fn no_more_run_at_once_than_allowed(world: World) {
    for n in 0..30 {
        enqueue(&world, NewJob::new(QUEUE, n.to_string())).await;
    }
    let mut stage = Stage::set(&world, Act::Done, |spec| spec.concurrency = 3);
    for _ in 0..30 {
        stage.begins().await;
    }
    assert!(stage.handler.most.load(Ordering::SeqCst) <= 3);
    stage.stop().await;
}

/// A failure that may pass is tried again until the attempts are spent; then dead is an effect.
pub async fn a_job_that_keeps_failing_dies_with_its_effect(world: World) {
    let mut job = NewJob::new(QUEUE, "a");
    job.max_attempts = 3;
    let id = enqueue(&world, job).await;
    let mut stage = Stage::set(&world, Act::Fail(Failure::transient("boom")), |_| {});
    for attempt in 1..=3 {
        assert_eq!(stage.begins().await.attempts, attempt);
    }
    let job = until_state(&world, id, JobState::Dead).await;
    assert_eq!((job.attempts, job.error.as_deref()), (3, Some("boom")));
    assert_eq!(
        world.told(&format!("job:{id}")).await,
        ["job_retry_scheduled", "job_retry_scheduled", "job_dead"]
    );
    let filter =
        solely_core::queue::JobFilter { queue: Some("work-done".to_owned()), limit: 5, ..Default::default() };
    assert_eq!(world.store().jobs(filter).await.expect("lists").len(), 1);
    stage.stop().await;
}

/// A failure that will not pass is dead at once.
pub async fn a_permanent_failure_is_dead_at_once(world: World) {
    let id = enqueue(&world, NewJob::new(QUEUE, "a")).await;
    let stage = Stage::set(&world, Act::Fail(Failure::permanent("no such thing")), |_| {});
    let job = until_state(&world, id, JobState::Dead).await;
    assert_eq!(job.attempts, 1);
    stage.stop().await;
}

/// A panic is the job's failure, not the worker's.
pub async fn a_panic_is_a_failure_of_the_job(world: World) {
    let mut job = NewJob::new(QUEUE, "a");
    job.max_attempts = 1;
    let id = enqueue(&world, job).await;
    let stage = Stage::set(&world, Act::Panic, |_| {});
    let job = until_state(&world, id, JobState::Dead).await;
    assert!(job.error.expect("a reason").contains("panicked"));
    stage.stop().await;
}

/// A handler whose `died` panics does not take its job, or the worker, with it.
pub async fn a_panic_in_died_leaves_a_dead_letter(world: World) {
    let mut job = NewJob::new(QUEUE, "panics in died");
    job.max_attempts = 1;
    let id = enqueue(&world, job).await;
    let stage = Stage::set(&world, Act::Fail(Failure::permanent("boom")), |_| {});
    until_state(&world, id, JobState::Dead).await;
    let after = enqueue(&world, NewJob::new(QUEUE, "after")).await;
    until_state(&world, after, JobState::Dead).await;
    stage.stop().await;
}

/// A handler that takes too long is stopped and its job tried again.
pub async fn a_handler_past_its_deadline_is_stopped(world: World) {
    let mut job = NewJob::new(QUEUE, "a");
    job.max_attempts = 1;
    let id = enqueue(&world, job).await;
    let mut stage = Stage::set(&world, Act::Wait, |spec| spec.deadline = Duration::from_millis(50));
    let job = until_state(&world, id, JobState::Dead).await;
    assert!(job.error.expect("a reason").contains("took longer"));
    stage.dropped.recv().await.expect("its future is dropped");
    stage.stop().await;
}

/// A long handler keeps its job: its lock is renewed while it runs.
pub async fn a_long_delivery_keeps_its_lock(world: World) {
    let id = enqueue(&world, NewJob::new(QUEUE, "a")).await;
    let mut stage = Stage::set(&world, Act::Wait, |spec| spec.lock = Duration::from_millis(600));
    let first_end = stage.begins().await.locked_until.expect("locked");
    let renewed = async {
        while world.job(id).await.locked_until.is_some_and(|until| until <= first_end.plus(secs(1))) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(secs(20), renewed).await.expect("is renewed past three ends");
    stage.gate.send_replace(true);
    let job = until_state(&world, id, JobState::Completed).await;
    assert_eq!(job.attempts, 1);
    stage.stop().await;
}

/// A claim that is lost stops the work under it, and nothing of it is written.
pub async fn a_lost_claim_stops_its_work(world: World) {
    let id = enqueue(&world, NewJob::new(QUEUE, "a")).await;
    let mut stage = Stage::set(&world, Act::Wait, |spec| spec.lock = Duration::from_millis(900));
    stage.begins().await;
    // The store's clock passes the lock, as it does for a worker that was paused.
    world.advance(secs(5));
    let dropped = tokio::time::timeout(secs(20), stage.dropped.recv()).await;
    dropped.expect("the handler's future is dropped").expect("the handler lives");
    assert_eq!(world.state(id).await, JobState::Running, "nobody has rescued it yet");
    stage.stop().await;
    assert_eq!(world.state(id).await, JobState::Running, "and the stopped worker could not settle it");
}

/// Stopping lets a delivery finish within the grace.
pub async fn stopping_lets_deliveries_finish(world: World) {
    let id = enqueue(&world, NewJob::new(QUEUE, "a")).await;
    let mut stage = Stage::set(&world, Act::Wait, |_| {});
    stage.begins().await;
    stage.stop.cancel();
    stage.gate.send_replace(true);
    stage.stop().await;
    assert_eq!(world.state(id).await, JobState::Completed);
}

/// What does not finish within the grace is released: due at once, no attempt spent.
pub async fn stopping_releases_what_does_not_finish(world: World) {
    let id = enqueue(&world, NewJob::new(QUEUE, "a")).await;
    let mut stage = Stage::set(&world, Act::Wait, |_| {});
    stage.begins().await;
    stage.stop().await;
    let job = world.job(id).await;
    assert_eq!((job.state, job.attempts), (JobState::Ready, 0));
    assert_eq!(world.claim_one().await.job.id, id);
}

/// A postponed job is not an attempt.
pub async fn a_postponed_delivery_is_tried_again_without_spending_attempts(world: World) {
    let mut job = NewJob::new(QUEUE, "a");
    job.max_attempts = 1;
    enqueue(&world, job).await;
    let paused = Failure::Postponed { delay: Duration::from_millis(1), error: "paused".to_owned() };
    let mut stage = Stage::set(&world, Act::Fail(paused), |_| {});
    for _ in 0..3 {
        assert_eq!(stage.begins().await.attempts, 1);
    }
    stage.stop().await;
}
