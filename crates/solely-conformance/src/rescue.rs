//! Rescue: jobs whose worker is gone.

use std::sync::Arc;

use async_trait::async_trait;
use solely_core::cache::{EntryKey, Lifetimes, Overwrite, PutEntry};
use solely_core::commit::Effect;
use solely_core::job::{JobState, NewJob, RescueRequest, Rescued};
use solely_core::store::Retention;
use solely_core::upkeep::Upkeep;
use solely_core::worker::{Delivery, Done, Failure, Handler, QueueSpec};
use solely_core::{Json, ProcessId, Settled};

use crate::World;
use crate::world::{DEAD_AFTER, LOCK, QUEUE, secs};

/// One round of rescue by this process, which knows [`QUEUE`].
pub async fn rescue(world: &World) -> Rescued {
    rescue_of(world, vec![QUEUE.to_owned()]).await
}

async fn rescue_of(world: &World, queues: Vec<String>) -> Rescued {
    let request = RescueRequest { process: world.process, queues, limit: 100 };
    world.store().rescue(request).await.expect("rescues")
}

/// A live worker's job is left alone.
pub async fn a_job_under_a_live_lock_is_left_alone(world: World) {
    world.enqueue_key("a").await;
    let claimed = world.claim_one().await;
    world.live_through(LOCK.checked_sub(secs(1)).unwrap()).await;
    let rescued = rescue(&world).await;
    assert!(rescued.freed.is_empty() && rescued.exhausted.is_empty());
    assert_eq!(world.complete(claimed.claim).await, Settled::Applied);
}

/// A lock that ended frees its job, and the timeline says why.
pub async fn a_job_whose_lock_ended_is_freed(world: World) {
    let id = world.enqueue_key("a").await;
    world.claim_one().await;
    world.live_through(LOCK).await;
    assert_eq!(rescue(&world).await.freed, [(id, QUEUE.to_owned())]);
    assert_eq!(world.told(&format!("job:{id}")).await, ["job_rescued"]);
    assert_eq!(world.claim_one().await.job.attempts, 2);
}

/// Claims of a process that died are free within seconds, though their lock is minutes.
pub async fn claims_of_a_dead_process_are_free_within_ten_seconds(world: World) {
    let other = ProcessId::random();
    world.live_through(DEAD_AFTER).await;
    world.beat(other).await;
    let id = world.enqueue_key("a").await;
    world.try_claim(other, 1).await;
    assert!(rescue(&world).await.freed.is_empty(), "it is alive so far");
    world.live_through(secs(9)).await;
    assert_eq!(rescue(&world).await.freed, [(id, QUEUE.to_owned())]);
}

/// Claims of a process that left are free at once.
pub async fn claims_of_a_process_that_left_are_free_at_once(world: World) {
    let other = ProcessId::random();
    world.beat(other).await;
    let id = world.enqueue_key("a").await;
    world.try_claim(other, 1).await;
    world.store().leave(other).await.expect("leaves");
    assert_eq!(rescue(&world).await.freed, [(id, QUEUE.to_owned())]);
}

/// After a restart nobody waits for the locks of the process that was.
pub async fn claims_from_before_a_restart_are_freed(mut world: World) {
    let id = world.enqueue_key("a").await;
    let stale = world.claim_one().await;
    world.restart().await;
    world.live_through(secs(9)).await;
    assert_eq!(rescue(&world).await.freed, [(id, QUEUE.to_owned())]);
    assert_eq!(world.complete(stale.claim).await, Settled::Stale);
}

async fn exhausted(world: &World) -> solely_core::JobId {
    let mut job = NewJob::new(QUEUE, "a");
    job.max_attempts = 1;
    let id = job.id;
    world.enqueue(job).await;
    world.claim_one().await;
    world.live_through(LOCK).await;
    id
}

/// A job without attempts left goes to the rescuer under a new fence, and is not freed.
pub async fn an_exhausted_job_is_taken_over(world: World) {
    let id = exhausted(&world).await;
    let rescued = rescue(&world).await;
    assert!(rescued.freed.is_empty());
    assert_eq!(rescued.exhausted[0].claim.job, id);
    assert_eq!(rescued.exhausted[0].job.attempts, 1);
    assert_eq!(world.bury(rescued.exhausted[0].claim, "gone").await, Settled::Applied);
    world.assert_sound().await;
}

/// A rescuer dead-letters only what it knows the meaning of.
pub async fn an_exhausted_job_of_an_unknown_queue_is_left(world: World) {
    exhausted(&world).await;
    let rescued = rescue_of(&world, vec!["other".to_owned()]).await;
    assert!(rescued.freed.is_empty() && rescued.exhausted.is_empty());
}

/// A rescuer that dies between taking over and settling leaves the job to the next one.
pub async fn a_rescuer_that_dies_leaves_the_job_to_the_next(world: World) {
    exhausted(&world).await;
    let first = rescue(&world).await.exhausted.remove(0);
    assert!(rescue(&world).await.exhausted.is_empty(), "the first has it");
    world.live_through(solely_core::limits::RESCUE_LOCK).await;
    let second = rescue(&world).await.exhausted.remove(0);
    assert_eq!(world.bury(first.claim, "late").await, Settled::Stale);
    assert_eq!(world.bury(second.claim, "gone").await, Settled::Applied);
}

struct TellsOfItsDeath;

#[async_trait]
impl Handler for TellsOfItsDeath {
    async fn handle(&self, _delivery: &Delivery) -> Result<Done, Failure> {
        Ok(Done::default())
    }

    fn died(&self, job: &solely_core::job::Job, error: &str) -> Done {
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

/// Dead is an effect, whoever dead-letters: what it means commits with it.
pub async fn a_rescuers_dead_letter_carries_its_effect(world: World) {
    let id = exhausted(&world).await;
    let queues = [QueueSpec::new(QUEUE, Arc::new(TellsOfItsDeath))];
    Upkeep::new(world.jobs(), world.process, &queues, Retention::default()).rescue().await.expect("rescues");
    let job = world.job(id).await;
    assert_eq!(job.state, JobState::Dead);
    assert!(job.error.expect("a reason").contains("MaxDeliveryCountExceeded"));
    assert_eq!(world.told(&format!("job:{id}")).await, ["job_dead"]);
    let filter = solely_core::queue::JobFilter {
        queue: Some("work-done".to_owned()),
        limit: 10,
        ..Default::default()
    };
    assert_eq!(world.store().jobs(filter).await.expect("lists").len(), 1, "the next job came with it");
    let effect = world.store().entries(vec![EntryKey::new("failed", job.key)]).await.expect("reads");
    assert!(effect[0].is_some(), "and so did its effect");
}
