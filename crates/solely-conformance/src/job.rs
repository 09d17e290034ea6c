//! Enqueue and claim.

use std::collections::HashSet;

use solely_core::job::{ClaimReply, Enqueued, JobState, NewJob, OnRunning, Window};
use solely_core::{Json, ProcessId, Settled};

use crate::World;
use crate::world::{LOCK, QUEUE, secs};

/// What goes in comes out, whole, once.
pub async fn an_enqueued_job_is_delivered_once(world: World) {
    let mut job = NewJob::new(QUEUE, "a");
    "kind".clone_into(&mut job.kind);
    job.payload = Json::of(&serde_json::json!({"n": 1}));
    job.attributes = Json::of(&serde_json::json!({"shown": true}));
    job.trace = Some("00-trace-01".to_owned());
    let sent = job.clone();
    assert_eq!(world.enqueue(job).await, Enqueued::Created);
    let claimed = world.claim_one().await;
    assert_eq!(claimed.claim.job, sent.id);
    assert_eq!(claimed.claim.fence, 1);
    let job = claimed.job;
    assert_eq!((job.queue, job.kind, job.key), (sent.queue, sent.kind, sent.key));
    assert_eq!((job.payload, job.attributes, job.trace), (sent.payload, sent.attributes, sent.trace));
    assert_eq!((job.attempts, job.max_attempts, job.priority), (1, sent.max_attempts, sent.priority));
    assert_eq!(job.state, JobState::Running);
    assert!(world.claim(10).await.is_empty());
}

/// A live key is one job, and the loser is told which.
pub async fn a_second_enqueue_of_a_waiting_key_names_the_first(world: World) {
    let first = world.enqueue_key("a").await;
    let second = world.enqueue(NewJob::new(QUEUE, "a")).await;
    assert_eq!(second, Enqueued::Duplicate { of: first, state: JobState::Ready, until: None });
}

/// … and until when its worker has it.
pub async fn a_duplicate_of_a_running_job_says_until_when(world: World) {
    let first = world.enqueue_key("a").await;
    let claimed = world.claim_one().await;
    let until = claimed.job.locked_until;
    assert!(until.is_some());
    let second = world.enqueue(NewJob::new(QUEUE, "a")).await;
    assert_eq!(second, Enqueued::Duplicate { of: first, state: JobState::Running, until });
}

/// Waiting to retry keeps the key.
pub async fn a_duplicate_of_a_retrying_job_names_it(world: World) {
    let first = world.enqueue_key("a").await;
    let claimed = world.claim_one().await;
    let verdict = solely_core::Verdict::Retry { delay: secs(60), error: "later".to_owned() };
    world.settle(solely_core::Commit::new(claimed.claim, verdict)).await;
    let second = world.enqueue(NewJob::new(QUEUE, "a")).await;
    assert_eq!(second, Enqueued::Duplicate { of: first, state: JobState::Retrying, until: None });
}

/// Done is done: the key is free.
pub async fn a_key_is_free_once_its_job_is_completed(world: World) {
    world.enqueue_key("a").await;
    let claimed = world.claim_one().await;
    assert_eq!(world.complete(claimed.claim).await, Settled::Applied);
    world.enqueue_key("a").await;
}

/// A dead job does not block its key (the locks that outlive their jobs elsewhere).
pub async fn a_key_is_free_once_its_job_is_dead(world: World) {
    world.dead("a", "boom").await;
    world.enqueue_key("a").await;
}

/// Keys are unique in their queue.
pub async fn the_same_key_in_another_queue_is_another_job(world: World) {
    world.enqueue_key("a").await;
    assert_eq!(world.enqueue(NewJob::new("other", "a")).await, Enqueued::Created);
}

/// Uniqueness holds inside one bulk enqueue too.
pub async fn two_of_one_key_in_one_enqueue_are_one_job(world: World) {
    let (first, second) = (NewJob::new(QUEUE, "a"), NewJob::new(QUEUE, "a"));
    let of = first.id;
    let outcomes = world.store().enqueue(vec![first, second]).await.expect("enqueues");
    assert_eq!(
        outcomes,
        [Enqueued::Created, Enqueued::Duplicate { of, state: JobState::Ready, until: None }]
    );
}

/// The loser of a race has the winner's job or makes its own: never no job at all.
pub async fn racing_enqueues_of_one_key_make_one_job(world: World) {
    let racers = (0..50).map(|_| {
        let store = world.store();
        tokio::spawn(async move {
            let job = NewJob::new(QUEUE, "a");
            let id = job.id;
            match store.enqueue(vec![job]).await.expect("enqueues")[0] {
                Enqueued::Created => (id, true),
                Enqueued::Duplicate { of, .. } => (of, false),
                other => panic!("{other:?}"),
            }
        })
    });
    let racers: Vec<_> = racers.collect();
    let mut seen = HashSet::new();
    let mut created = 0;
    for racer in racers {
        let (id, made) = racer.await.expect("ends");
        seen.insert(id);
        created += usize::from(made);
    }
    assert_eq!((seen.len(), created), (1, 1));
    assert!(seen.contains(&world.claim_one().await.claim.job));
}

/// Urgent first, then the one that has been due longest.
pub async fn claims_are_most_urgent_first_then_oldest(world: World) {
    for (key, priority) in [("old", 5), ("new", 5), ("urgent", 0), ("last", 9), ("middle", 3)] {
        let mut job = NewJob::new(QUEUE, key);
        job.priority = priority;
        world.enqueue(job).await;
        world.advance(secs(1));
    }
    let order: Vec<String> = world.claim(10).await.into_iter().map(|claimed| claimed.job.key).collect();
    assert_eq!(order, ["urgent", "middle", "old", "new", "last"]);
}

/// A delayed job waits, holds its key, and the claim says how long to wait.
pub async fn a_delayed_job_waits_and_the_claim_says_how_long(world: World) {
    let mut job = NewJob::new(QUEUE, "a");
    job.delay = secs(60);
    world.enqueue(job).await;
    let ClaimReply::Jobs { jobs, next_due_in } = world.try_claim(world.process, 5).await else {
        panic!("alive")
    };
    assert!(jobs.is_empty());
    let wait = next_due_in.expect("one waits");
    assert!(wait > secs(50) && wait <= secs(60), "{wait:?}");
    assert!(matches!(world.enqueue(NewJob::new(QUEUE, "a")).await, Enqueued::Duplicate { .. }));
    world.advance(secs(60));
    assert_eq!(world.claim_one().await.job.key, "a");
}

/// A delayed urgent job does not hide a due one that is less urgent.
pub async fn jobs_that_wait_do_not_hide_those_that_are_due(world: World) {
    for n in 0..20 {
        let mut job = NewJob::new(QUEUE, format!("later-{n}"));
        (job.priority, job.delay) = (0, secs(60));
        world.enqueue(job).await;
    }
    world.enqueue_key("due").await;
    assert_eq!(world.claim_one().await.job.key, "due");
}

/// No more than asked for.
pub async fn a_claim_takes_no_more_than_asked(world: World) {
    for n in 0..5 {
        world.enqueue_key(&n.to_string()).await;
    }
    assert_eq!(world.claim(3).await.len(), 3);
    assert_eq!(world.claim(3).await.len(), 2);
}

/// A claim is of one queue.
pub async fn a_claim_takes_only_its_queue(world: World) {
    world.enqueue(NewJob::new("other", "a")).await;
    assert!(world.claim(5).await.is_empty());
}

/// Two claims at once never get the same job.
pub async fn racing_claims_never_share_a_job(world: World) {
    for n in 0..60 {
        world.enqueue_key(&n.to_string()).await;
    }
    let other = ProcessId::random();
    world.beat(other).await;
    let claims = (0..20).map(|n| {
        let (store, process) = (world.store(), if n % 2 == 0 { world.process } else { other });
        tokio::spawn(async move {
            let request =
                solely_core::job::ClaimRequest { process, queue: QUEUE.to_owned(), limit: 5, lock: LOCK };
            match store.claim(request).await.expect("claims") {
                ClaimReply::Jobs { jobs, .. } => jobs,
                ClaimReply::NotAlive => panic!("it has beaten"),
            }
        })
    });
    let claims: Vec<_> = claims.collect();
    let mut seen = HashSet::new();
    for claim in claims {
        for claimed in claim.await.expect("ends") {
            assert!(seen.insert(claimed.job.id), "claimed twice");
        }
    }
    assert_eq!(seen.len(), 60);
}

/// Claims belong to a process that is known to be alive, or they would be freed at once.
pub async fn a_claim_needs_a_process_that_has_beaten(world: World) {
    world.enqueue_key("a").await;
    let stranger = ProcessId::random();
    assert!(matches!(world.try_claim(stranger, 1).await, ClaimReply::NotAlive));
    world.beat(stranger).await;
    assert!(matches!(world.try_claim(stranger, 1).await, ClaimReply::Jobs { jobs, .. } if jobs.len() == 1));
}

/// A restart keeps what was answered.
pub async fn jobs_survive_a_restart(mut world: World) {
    let id = world.enqueue_key("a").await;
    world.restart().await;
    assert_eq!(world.claim_one().await.claim.job, id);
}

/// A trigger that arrives while its job runs is not lost: the job runs once more, with the
/// latest payload, however many triggers there were.
pub async fn a_trigger_during_a_run_runs_it_once_more(world: World) {
    let trigger = |n: u32| {
        let mut job = NewJob::new(QUEUE, "a");
        (job.on_running, job.payload) = (OnRunning::RunAgain, Json::of(&n));
        job
    };
    world.enqueue(trigger(1)).await;
    let first = world.claim_one().await;
    assert_eq!(world.enqueue(trigger(2)).await, Enqueued::Again { of: first.job.id });
    assert_eq!(world.enqueue(trigger(3)).await, Enqueued::Again { of: first.job.id });
    assert_eq!(world.complete(first.claim).await, Settled::Applied);
    let second = world.claim_one().await;
    assert_eq!(second.job.id, first.job.id);
    assert_eq!((second.job.payload.clone(), second.job.attempts), (Json::of(&3), 1));
    world.complete(second.claim).await;
    assert!(world.claim(1).await.is_empty(), "once more, not for ever");
    assert_eq!(world.state(first.job.id).await, JobState::Completed);
}

/// … a waiting one serves the trigger anyway.
pub async fn a_trigger_before_a_run_is_a_duplicate(world: World) {
    let mut trigger = NewJob::new(QUEUE, "a");
    trigger.on_running = OnRunning::RunAgain;
    let of = world.enqueue_key("a").await;
    assert!(matches!(world.enqueue(trigger).await, Enqueued::Duplicate { of: first, .. } if first == of));
}

/// … and a retry that comes after the trigger serves it too: no extra run.
pub async fn a_retry_serves_the_trigger_that_came_before_it(world: World) {
    let mut trigger = NewJob::new(QUEUE, "a");
    trigger.on_running = OnRunning::RunAgain;
    world.enqueue(trigger.clone()).await;
    let first = world.claim_one().await;
    trigger.id = solely_core::JobId::new();
    world.enqueue(trigger).await;
    let verdict = solely_core::Verdict::Retry { delay: secs(0), error: "once".to_owned() };
    world.settle(solely_core::Commit::new(first.claim, verdict)).await;
    let second = world.claim_one().await;
    world.complete(second.claim).await;
    assert!(world.claim(1).await.is_empty());
}

/// A trigger that came while its job died is carried by a new job.
pub async fn a_trigger_during_a_run_that_dies_is_carried_on(world: World) {
    let mut trigger = NewJob::new(QUEUE, "a");
    trigger.on_running = OnRunning::RunAgain;
    world.enqueue(trigger.clone()).await;
    let first = world.claim_one().await;
    trigger.id = solely_core::JobId::new();
    world.enqueue(trigger).await;
    world.bury(first.claim, "boom").await;
    let second = world.claim_one().await;
    assert_ne!(second.job.id, first.job.id);
    assert_eq!(world.state(first.job.id).await, JobState::Dead);
}

/// The window remembers a message after its job is done, and says until when.
pub async fn a_message_within_its_window_is_a_duplicate(world: World) {
    let mut message = NewJob::new(QUEUE, "a");
    message.window = Window::Check(secs(600));
    let first = message.id;
    assert_eq!(world.enqueue(message.clone()).await, Enqueued::Created);
    let claimed = world.claim_one().await;
    world.complete(claimed.claim).await;
    message.id = solely_core::JobId::new();
    let Enqueued::InWindow { of, until } = world.enqueue(message).await else { panic!("in the window") };
    assert_eq!(of, first);
    assert_eq!(until, claimed.job.created_at.plus(secs(600)));
    assert!(world.claim(1).await.is_empty());
}

/// A window ends by itself.
pub async fn a_window_ends_by_time(world: World) {
    let mut message = NewJob::new(QUEUE, "a");
    message.window = Window::Check(secs(600));
    world.enqueue(message.clone()).await;
    let claimed = world.claim_one().await;
    world.complete(claimed.claim).await;
    world.advance(secs(601));
    message.id = solely_core::JobId::new();
    assert_eq!(world.enqueue(message).await, Enqueued::Created);
}

/// Repairs, retries and continuations pass the window.
pub async fn a_repair_passes_the_window(world: World) {
    let mut message = NewJob::new(QUEUE, "a");
    message.window = Window::Check(secs(600));
    world.enqueue(message.clone()).await;
    let claimed = world.claim_one().await;
    world.complete(claimed.claim).await;
    (message.id, message.window) = (solely_core::JobId::new(), Window::Pass(secs(600)));
    assert_eq!(world.enqueue(message).await, Enqueued::Created);
}

/// A live duplicate is named as such, window or not.
pub async fn a_live_job_is_named_before_the_window(world: World) {
    let mut message = NewJob::new(QUEUE, "a");
    message.window = Window::Check(secs(600));
    let first = message.id;
    world.enqueue(message.clone()).await;
    message.id = solely_core::JobId::new();
    assert!(matches!(world.enqueue(message).await, Enqueued::Duplicate { of, .. } if of == first));
}

/// Cancelling closes what waits and leaves what runs.
pub async fn cancelling_closes_what_waits_and_leaves_what_runs(world: World) {
    world.enqueue_key("running").await;
    let running = world.claim_one().await;
    let waiting = world.enqueue_key("waiting").await;
    let keys = vec!["running".to_owned(), "waiting".to_owned(), "absent".to_owned()];
    let closed = world.store().cancel(QUEUE.to_owned(), keys).await.expect("cancels");
    assert_eq!(closed, [waiting]);
    assert_eq!(world.state(waiting).await, JobState::Cancelled);
    assert_eq!(world.complete(running.claim).await, Settled::Applied);
    world.enqueue_key("waiting").await;
    world.assert_sound().await;
}
