//! Twins: with a guard open, what its test forbids happens. (That of the page transaction is
//! beside its test, in `solely-conformance`.)

use solely_core::Clock;
use solely_core::commit::{Commit, Settled, Verdict};
use solely_core::fault::{Guard, Guards};
use solely_core::job::{JobStore as _, Renewed};
use solely_sqlite::Options;

use crate::{Home, claim, job, process};

/// Lets a claim lapse, and answers how its late settlement and renewal ended.
async fn late(guards: Guards) -> (Settled, Renewed) {
    let clock = Clock::system();
    let home = Home::new(&Options { clock: clock.clone(), guards, ..Options::default() });
    let process = process(&home.store).await;
    home.store.enqueue(vec![job("a", 10)]).await.expect("enqueues");
    let claimed = claim(&home.store, process, 1).await.remove(0);
    clock.shift_ms(61_000);
    let renewed =
        home.store.renew(vec![claimed.claim], std::time::Duration::from_secs(1)).await.expect("answers");
    clock.shift_ms(61_000);
    let commit = Commit::new(claimed.claim, Verdict::Complete);
    let settled = home.store.settle(vec![commit]).await.expect("answers").remove(0).expect("is judged");
    (settled, renewed[0])
}

#[tokio::test]
async fn the_fence_refuses_a_stale_worker() {
    assert_eq!(late(Guards::all()).await, (Settled::Stale, Renewed::Lost));
}

#[tokio::test]
async fn without_the_fence_a_stale_worker_settles() {
    let (settled, renewed) = late(Guards::without(Guard::Fence)).await;
    assert_eq!(settled, Settled::Applied);
    assert!(matches!(renewed, Renewed::Until(_)));
}
