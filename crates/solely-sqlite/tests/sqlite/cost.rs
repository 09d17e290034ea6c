//! What things cost, in statements and commits: asserted where time cannot be trusted.

use std::time::Duration;

use solely_core::LeaseId;
use solely_core::commit::{Commit, Verdict};
use solely_core::job::JobStore as _;
use solely_core::lease::{Holder, LeaseRequest, LeaseStore as _};
use solely_core::queue::QueueStore as _;
use solely_sqlite::Options;

use crate::{Home, claim, job, process};

fn counted() -> Home {
    Home::new(&Options { count_statements: true, ..Options::default() })
}

/// BEGIN, INSERT, COMMIT.
#[tokio::test]
async fn one_job_is_three_statements_and_one_commit() {
    let home = counted();
    home.store.enqueue(vec![job("warm", 10)]).await.expect("enqueues");
    let before = home.store.counts().now();
    home.store.enqueue(vec![job("a", 10)]).await.expect("enqueues");
    let cost = home.store.counts().now() - before;
    assert_eq!((cost.commits, cost.statements), (1, 3), "{cost:?}");
}

/// A hundred jobs of one call share a commit, and a statement each.
#[tokio::test]
async fn a_hundred_jobs_of_one_call_are_one_commit() {
    let home = counted();
    let before = home.store.counts().now();
    home.store.enqueue((0..100).map(|n| job(n.to_string(), 10)).collect()).await.expect("enqueues");
    let cost = home.store.counts().now() - before;
    assert_eq!((cost.commits, cost.statements), (1, 102), "{cost:?}");
}

/// A delivery is claimed with one write and settled with one look and one write; batches of
/// them share their commits.
#[tokio::test]
async fn fifty_deliveries_are_two_commits() {
    let home = counted();
    let process = process(&home.store).await;
    home.store.enqueue((0..50).map(|n| job(n.to_string(), 10)).collect()).await.expect("enqueues");
    let before = home.store.counts().now();
    let claimed = claim(&home.store, process, 50).await;
    let claiming = home.store.counts().now() - before;
    // BEGIN, alive?, paused?, priorities, due, later, fifty updates, COMMIT.
    assert_eq!((claiming.commits, claiming.statements), (1, 57), "{claiming:?}");
    let before = home.store.counts().now();
    let commits = claimed.into_iter().map(|claimed| Commit::new(claimed.claim, Verdict::Complete));
    home.store.settle(commits.collect()).await.expect("settles");
    let settling = home.store.counts().now() - before;
    assert_eq!((settling.commits, settling.statements), (1, 102), "{settling:?}");
}

/// A lease: one look, one write, the fence's counter, one commit.
#[tokio::test]
async fn a_lease_is_one_commit() {
    let home = counted();
    let request = LeaseRequest {
        id: LeaseId::random(),
        keys: vec!["a".to_owned()],
        owner: "o".to_owned(),
        ttl: Duration::from_secs(60),
        holder: Holder::Client,
    };
    let before = home.store.counts().now();
    home.store.acquire(request).await.expect("answers");
    let cost = home.store.counts().now() - before;
    assert_eq!((cost.commits, cost.statements), (1, 5), "{cost:?}");
}

/// Reading commits nothing and does not pass through the writer.
#[tokio::test]
async fn a_read_costs_the_writer_nothing() {
    let home = counted();
    let before = home.store.counts().now();
    home.store.queues().await.expect("lists");
    home.store.held_keys(None, 10).await.expect("lists");
    let cost = home.store.counts().now() - before;
    assert_eq!((cost.commands, cost.commits, cost.reads), (0, 0, 2), "{cost:?}");
}

/// A claim does not look at jobs that wait for later or at jobs of the past: its statements and
/// the rows they step over stay the same however many there are.
#[tokio::test]
async fn a_claim_costs_the_same_beside_many_other_jobs() {
    let home = counted();
    let process = process(&home.store).await;
    let mut costs = Vec::new();
    for round in 0..2 {
        home.store.enqueue(vec![job(format!("due-{round}"), 10)]).await.expect("enqueues");
        let before = home.store.counts().now();
        assert_eq!(claim(&home.store, process, 1).await.len(), 1);
        costs.push((home.store.counts().now() - before).statements);
        for batch in 0..10 {
            let later = (0..500).map(|n| {
                let mut job = job(format!("later-{round}-{batch}-{n}"), 10);
                job.delay = Duration::from_secs(3_600);
                job
            });
            home.store.enqueue(later.collect()).await.expect("enqueues");
        }
    }
    assert_eq!(costs[0], costs[1]);
}
