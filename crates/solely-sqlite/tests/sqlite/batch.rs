//! The writer's batches: a failure is its own command's, and nothing is half acknowledged.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use solely_core::job::{Enqueued, JobStore as _};
use solely_core::queue::QueueStore as _;
use solely_core::{JobId, StoreError};
use solely_sqlite::{Options, SqliteStore};

use crate::{Home, job};

/// Enqueues concurrently, so that commands share batches; answers per job.
async fn enqueue_all(
    store: &Arc<SqliteStore>,
    jobs: Vec<solely_core::job::NewJob>,
) -> Vec<(JobId, Result<Vec<Enqueued>, StoreError>)> {
    let tasks: Vec<_> = jobs
        .into_iter()
        .map(|job| {
            let store = store.clone();
            tokio::spawn(async move { (job.id, store.enqueue(vec![job]).await) })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.expect("ends"));
    }
    answers
}

/// A command that breaks a rule is undone alone; its neighbours in the batch are committed.
#[tokio::test]
async fn a_command_that_fails_is_undone_alone() {
    let home = Home::new(&Options::default());
    let jobs = (0..200).map(|n| {
        let mut job = job(n.to_string(), 10);
        if n % 5 == 0 {
            job.priority = 77; // The table's CHECK refuses it.
        }
        job
    });
    let answers = enqueue_all(&home.store, jobs.collect()).await;
    let (mut made, mut refused) = (0, 0);
    for (id, answer) in answers {
        let there = home.store.job(id).await.expect("reads").is_some();
        assert_eq!(there, answer.is_ok());
        match answer {
            Ok(_) => made += 1,
            Err(StoreError::Refused(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((made, refused), (160, 40));
}

/// A disk that fills up in the middle of a batch: SQLite throws the whole transaction away.
/// What was acknowledged is there, what was refused is not, and the store lives on.
#[tokio::test]
async fn a_full_disk_never_half_acknowledges_a_batch() {
    let home = Home::new(&Options { max_pages: Some(400), ..Options::default() });
    let mut acknowledged = Vec::new();
    let mut refused = Vec::new();
    for round in 0..12 {
        let jobs = (0..100).map(|n| job(format!("{round}-{n}"), 2_000));
        for (id, answer) in enqueue_all(&home.store, jobs.collect()).await {
            match answer {
                Ok(_) => acknowledged.push(id),
                Err(StoreError::Unavailable(_)) => refused.push(id),
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(acknowledged.len() > 100 && refused.len() > 100, "{} and {}", acknowledged.len(), refused.len());
    let home = home.reopen(&Options::default());
    for id in acknowledged {
        assert!(home.store.job(id).await.expect("reads").is_some(), "acknowledged and gone");
    }
    for id in refused {
        assert!(home.store.job(id).await.expect("reads").is_none(), "refused and there");
    }
    let answers = enqueue_all(&home.store, vec![job("after", 10)]).await;
    assert!(answers[0].1.is_ok(), "with room again it goes on");
}

/// More commands than the lane holds are refused at once, not queued without end; what was
/// accepted is done.
#[tokio::test]
async fn an_overloaded_writer_refuses_at_once() {
    let home = Home::new(&Options::default());
    let jobs = (0..30_000).map(|n| job(n.to_string(), 10));
    let mut calls: Vec<_> = jobs.map(|job| home.store.enqueue(vec![job])).collect();
    let (mut refused, mut expected, mut accepted) = (0, 0, Vec::new());
    for mut call in calls.drain(..) {
        // Polled once each, so that all of them knock before the writer has done much.
        match poll_once(call.as_mut()) {
            Poll::Ready(Err(StoreError::Overloaded)) => refused += 1,
            Poll::Ready(answer) => {
                answer.expect("done at once");
                expected += 1;
            }
            Poll::Pending => accepted.push(call),
        }
    }
    assert!(refused > 0, "the lane is bounded");
    expected += accepted.len() as u64;
    for call in accepted {
        call.await.expect("what was accepted is done");
    }
    assert_eq!(home.store.queues().await.expect("lists")[0].ready, expected);
}

fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
