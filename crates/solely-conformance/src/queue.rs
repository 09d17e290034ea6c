//! Queues as people see them.

use solely_core::commit::{Commit, Settled, Verdict};
use solely_core::job::{ClaimReply, JobState, NewJob};
use solely_core::queue::{JobFilter, Queue};
use solely_core::{JobId, Timestamp};

use crate::World;
use crate::world::{QUEUE, secs};

async fn list(world: &World, filter: JobFilter) -> Vec<JobId> {
    world.store().jobs(filter).await.expect("lists").into_iter().map(|job| job.id).collect()
}

async fn queue(world: &World) -> Queue {
    let queues = world.store().queues().await.expect("lists");
    queues.into_iter().find(|queue| queue.name == QUEUE).expect("is listed")
}

/// Newest first, by queue, state and key, page by page.
pub async fn jobs_are_listed_by_queue_state_and_key(world: World) {
    let dead = world.dead("dead", "boom").await;
    let ready = world.enqueue_key("ready").await;
    let mut other = NewJob::new("other", "ready");
    other.delay = secs(5);
    let elsewhere = other.id;
    world.enqueue(other).await;
    let base = || JobFilter { limit: 10, ..JobFilter::default() };
    assert_eq!(list(&world, base()).await, [elsewhere, ready, dead]);
    let by_queue = JobFilter { queue: Some(QUEUE.to_owned()), ..base() };
    assert_eq!(list(&world, by_queue.clone()).await, [ready, dead]);
    assert_eq!(list(&world, JobFilter { state: Some(JobState::Dead), ..by_queue }).await, [dead]);
    assert_eq!(list(&world, JobFilter { key: Some("ready".to_owned()), ..base() }).await, [elsewhere, ready]);
    assert_eq!(list(&world, JobFilter { limit: 1, ..base() }).await, [elsewhere]);
    assert_eq!(list(&world, JobFilter { before: Some(ready), ..base() }).await, [dead]);
}

/// A job that is not there is not there.
pub async fn an_unknown_job_is_none(world: World) {
    assert_eq!(world.store().job(JobId::new()).await.expect("reads"), None);
}

/// Counts and age of a queue.
pub async fn a_queue_counts_its_jobs(world: World) {
    world.dead("dead", "boom").await;
    world.enqueue_key("running").await;
    world.claim_one().await;
    world.enqueue_key("ready").await;
    world.advance(secs(3));
    let queue = queue(&world).await;
    assert_eq!((queue.ready, queue.running, queue.dead), (1, 1, 1));
    assert!((3_000..4_000).contains(&queue.oldest_age_ms), "{}", queue.oldest_age_ms);
    assert_eq!(queue.paused_until, None);
}

/// Jobs that follow one another, each made by the end of the one before: there is always one.
pub async fn counts_are_of_one_moment(world: World) {
    world.enqueue_key("0").await;
    let working = async {
        for n in 1..300 {
            let mut commit = Commit::new(world.claim_one().await.claim, Verdict::Complete);
            commit.next_jobs.push(NewJob::new(QUEUE, n.to_string()));
            let settled = world.store().settle(vec![commit]).await.expect("settles");
            assert_eq!(settled, [Ok(Settled::Applied)]);
        }
    };
    let counting = async {
        loop {
            let Queue { ready, running, .. } = queue(&world).await;
            assert_eq!(ready + running, 1);
        }
    };
    tokio::select! {
        () = working => {}
        () = counting => {}
    }
}

async fn pause_for(world: &World, seconds: u64) -> Timestamp {
    let job = world.enqueue_key("clock").await;
    let now = world.job(job).await.created_at;
    let until = now.plus(secs(seconds));
    world.store().pause(QUEUE.to_owned(), Some(until)).await.expect("pauses");
    until
}

/// Nothing of a paused queue is claimed; the claim says when to look again.
pub async fn a_paused_queue_gives_nothing(world: World) {
    let until = pause_for(&world, 60).await;
    let ClaimReply::Jobs { jobs, next_due_in } = world.try_claim(world.process, 5).await else {
        panic!("alive")
    };
    assert!(jobs.is_empty());
    assert!(next_due_in.expect("a time") > secs(50));
    assert_eq!(queue(&world).await.paused_until, Some(until));
}

/// A pause ends by itself: there is no resume to be lost.
pub async fn a_pause_ends_by_time(world: World) {
    pause_for(&world, 60).await;
    world.advance(secs(61));
    world.beat(world.process).await;
    assert_eq!(world.claim(5).await.len(), 1);
    assert_eq!(queue(&world).await.paused_until, None);
}

/// A pause survives a restart.
pub async fn a_pause_survives_a_restart(mut world: World) {
    pause_for(&world, 3_600).await;
    world.restart().await;
    assert!(world.claim(5).await.is_empty());
}

/// Resumed at once.
pub async fn a_pause_can_be_ended(world: World) {
    pause_for(&world, 3_600).await;
    world.store().pause(QUEUE.to_owned(), None).await.expect("resumes");
    assert_eq!(world.claim(5).await.len(), 1);
}

/// Other queues go on.
pub async fn a_pause_is_of_one_queue(world: World) {
    world.store().pause("other".to_owned(), Some(Timestamp::FAR_FUTURE)).await.expect("pauses");
    world.enqueue_key("a").await;
    assert_eq!(world.claim(5).await.len(), 1);
}
