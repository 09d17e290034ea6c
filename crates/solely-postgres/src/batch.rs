//! Callers that wait together are served together.
//!
//! Each lane takes what is there, runs it as one transaction and answers everyone; there is no
//! timer, so that a caller who is alone is served at once. Lanes are tasks of their own: a caller
//! who leaves withdraws its request only while no lane has taken it, and what was taken is run to
//! its end and its outcome known, whoever still listens. Those who were not taken when the database is found away are
//! refused at once, and so are those who come before it is back: a batch that was cut off at its COMMIT may take that
//! long to hear what became of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use solely_core::StoreError;
use solely_core::away::Away;
use tokio::sync::oneshot;

/// What runs many requests as one transaction.
#[async_trait]
pub(crate) trait Together: Send + Sync + 'static {
    type Request: Send + Sync;
    type Answer: Send;

    /// What it counts against [`BATCH`].
    fn weight(request: &Self::Request) -> usize;

    /// Answers in the order of the requests. An error is everyone's, and nothing was changed,
    /// unless it is [`StoreError::Unknown`].
    async fn run(&self, requests: &[Self::Request]) -> Result<Vec<Self::Answer>, StoreError>;

    /// What becomes of an answer whose caller has left after its request was taken.
    async fn unheard(&self, _answer: Self::Answer) {}
}

/// Requests on their way to one [`Together`].
pub(crate) struct Batcher<T: Together>(Arc<Shared<T>>);

struct Shared<T: Together> {
    together: T,
    lanes_max: usize,
    away: Away,
    line: Mutex<Line<T>>,
}

struct Line<T: Together> {
    waiting: VecDeque<Waiting<T>>,
    lanes: usize,
}

struct Waiting<T: Together> {
    request: T::Request,
    caller: oneshot::Sender<Result<T::Answer, StoreError>>,
}

/// The weight that one transaction carries, unless a single request has more.
const BATCH: usize = 512;
/// How often a lane lets others run before it takes the next batch.
const TURNS: usize = 3;
/// Requests that may wait; one more is refused.
const WAITING_MAX: usize = 8_192;

impl<T: Together> Batcher<T> {
    pub(crate) fn new(together: T, lanes_max: usize, away: Away) -> Self {
        let line = Mutex::new(Line { waiting: VecDeque::new(), lanes: 0 });
        Self(Arc::new(Shared { together, lanes_max, away, line }))
    }

    pub(crate) async fn submit(&self, request: T::Request) -> Result<T::Answer, StoreError> {
        let (caller, answer) = oneshot::channel();
        {
            let mut line = self.0.line();
            // Under the lock: who is let in before the database is away is there when those who wait are refused.
            if let Some(why) = self.0.away.now() {
                return Err(why);
            }
            if line.waiting.len() >= WAITING_MAX {
                return Err(StoreError::Overloaded);
            }
            line.waiting.push_back(Waiting { request, caller });
            if line.lanes < self.0.lanes_max {
                line.lanes += 1;
                tokio::spawn(self.0.clone().lane());
            }
        }
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the write was abandoned".to_owned())))
    }
}

impl<T: Together> Shared<T> {
    fn line(&self) -> MutexGuard<'_, Line<T>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn lane(self: Arc<Self>) {
        let _place = Lane(&self);
        while let Some((requests, callers)) = self.take() {
            self.away.refusing(self.serve(requests, callers), |why| self.refuse(&why)).await;
            // Those who were just answered may ask again, and share the next batch.
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Tells whoever waits that nothing has happened, and nothing will.
    fn refuse(&self, why: &StoreError) {
        let waiting = std::mem::take(&mut self.line().waiting);
        for Waiting { caller, .. } in waiting {
            let _ = caller.send(Err(why.clone()));
        }
    }

    /// What waits and is still wanted, sealed. None, and the lane ends, if there is nothing.
    #[expect(clippy::type_complexity, reason = "two lists of the same length")]
    fn take(&self) -> Option<(Vec<T::Request>, Vec<oneshot::Sender<Result<T::Answer, StoreError>>>)> {
        let mut line = self.line();
        let (mut requests, mut callers, mut weight) = (Vec::new(), Vec::new(), 0);
        while let Some(next) = line.waiting.front() {
            if !next.caller.is_closed() {
                weight += T::weight(&next.request);
                if weight > BATCH && !requests.is_empty() {
                    break;
                }
            }
            let next = line.waiting.pop_front().expect("it was there");
            if !next.caller.is_closed() {
                requests.push(next.request);
                callers.push(next.caller);
            }
        }
        if requests.is_empty() {
            // In the same breath: whoever comes from now on finds the lane closed.
            line.lanes -= 1;
            return None;
        }
        Some((requests, callers))
    }

    async fn serve(
        &self,
        mut requests: Vec<T::Request>,
        mut callers: Vec<oneshot::Sender<Result<T::Answer, StoreError>>>,
    ) {
        match self.together.run(&requests).await {
            Ok(answers) => {
                for (caller, answer) in callers.into_iter().zip(answers) {
                    if let Err(Ok(answer)) = caller.send(Ok(answer)) {
                        self.together.unheard(answer).await;
                    }
                }
            }
            // One of them is at fault: each is judged by itself.
            Err(StoreError::Refused(_)) if requests.len() > 1 => {
                for (request, caller) in requests.drain(..).zip(callers.drain(..)) {
                    let outcome = self.together.run(std::slice::from_ref(&request)).await;
                    if let Err(Ok(answer)) = caller.send(outcome.and_then(only)) {
                        self.together.unheard(answer).await;
                    }
                }
            }
            Err(error) => {
                for caller in callers {
                    let _ = caller.send(Err(error.clone()));
                }
            }
        }
    }
}

/// A lane that ends by a panic is replaced: those who wait behind it must not wait for ever.
struct Lane<'a, T: Together>(&'a Arc<Shared<T>>);

impl<T: Together> Drop for Lane<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tokio::spawn(self.0.clone().lane());
        }
    }
}

fn only<A>(answers: Vec<A>) -> Result<A, StoreError> {
    let missing = || StoreError::Unknown("the write was not answered".to_owned());
    answers.into_iter().next().ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// Doubles numbers, refuses any batch with a zero, and counts batches. Each takes a permit.
    struct Doubles {
        batches: AtomicUsize,
        unheard: AtomicUsize,
        permits: Semaphore,
    }

    #[async_trait]
    impl Together for Arc<Doubles> {
        type Request = usize;
        type Answer = usize;

        fn weight(_: &usize) -> usize {
            1
        }

        async fn run(&self, requests: &[usize]) -> Result<Vec<usize>, StoreError> {
            self.permits.acquire().await.expect("open").forget();
            self.batches.fetch_add(1, Ordering::SeqCst);
            if requests.contains(&0) {
                return Err(StoreError::Refused("zero".to_owned()));
            }
            assert!(!requests.contains(&13), "a request that panics");
            Ok(requests.iter().map(|n| n * 2).collect())
        }

        async fn unheard(&self, answer: usize) {
            self.unheard.fetch_add(answer, Ordering::SeqCst);
        }
    }

    fn doubles(permits: usize) -> (Arc<Doubles>, Arc<Batcher<Arc<Doubles>>>) {
        doubles_on(permits, Away::NEVER)
    }

    fn doubles_on(permits: usize, away: Away) -> (Arc<Doubles>, Arc<Batcher<Arc<Doubles>>>) {
        let (batches, unheard) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let doubles = Arc::new(Doubles { batches, unheard, permits: Semaphore::new(permits) });
        (doubles.clone(), Arc::new(Batcher::new(doubles, 1, away)))
    }

    /// The first is under way; `numbers` wait behind it.
    async fn behind_the_first(
        batcher: &Arc<Batcher<Arc<Doubles>>>,
        numbers: &[usize],
    ) -> Vec<tokio::task::JoinHandle<Result<usize, StoreError>>> {
        let submit = |n| {
            let batcher = batcher.clone();
            tokio::spawn(async move { batcher.submit(n).await })
        };
        let mut callers = vec![submit(1)];
        while batcher.0.line().lanes == 0 || !batcher.0.line().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        callers.extend(numbers.iter().copied().map(submit));
        while batcher.0.line().waiting.len() < numbers.len() {
            tokio::task::yield_now().await;
        }
        callers
    }

    #[tokio::test]
    async fn those_that_wait_together_are_served_together() {
        let (doubles, batcher) = doubles(0);
        let callers = behind_the_first(&batcher, &[2, 3, 4]).await;
        doubles.permits.add_permits(2);
        let mut answers = Vec::new();
        for caller in callers {
            answers.push(caller.await.expect("ends").expect("answers"));
        }
        assert_eq!(answers, [2, 4, 6, 8]);
        assert_eq!(doubles.batches.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn one_that_is_refused_does_not_spoil_the_others() {
        let (doubles, batcher) = doubles(0);
        let mut callers = behind_the_first(&batcher, &[2, 0, 4]).await;
        doubles.permits.add_permits(5);
        assert_eq!(callers.pop().expect("four").await.expect("ends"), Ok(8));
        assert!(matches!(callers.pop().expect("three").await.expect("ends"), Err(StoreError::Refused(_))));
        assert_eq!(callers.pop().expect("two").await.expect("ends"), Ok(4));
    }

    /// A caller may withdraw while its request waits, and not after it was taken.
    #[tokio::test]
    async fn a_request_is_withdrawn_only_before_its_batch_is_sealed() {
        let (doubles, batcher) = doubles(0);
        let callers = behind_the_first(&batcher, &[0]).await;
        for caller in callers {
            caller.abort();
            let _ = caller.await;
        }
        doubles.permits.add_permits(9);
        while batcher.0.line().lanes > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(doubles.batches.load(Ordering::SeqCst), 1, "the first was run, the second withdrawn");
        assert_eq!(doubles.unheard.load(Ordering::SeqCst), 2, "what the first got is not forgotten");
    }

    /// What was taken is run to its end while the database is away; those behind it are refused.
    #[tokio::test]
    async fn who_waits_is_refused_when_the_database_is_found_away() {
        let (says, hears) = tokio::sync::watch::channel(None);
        let (doubles, batcher) = doubles_on(0, Away::heard(hears));
        let mut callers = behind_the_first(&batcher, &[2, 3]).await;
        says.send_replace(Some("gone".to_owned()));
        let away = Err(StoreError::Unavailable("gone".to_owned()));
        for caller in callers.split_off(1) {
            assert_eq!(caller.await.expect("ends"), away);
        }
        assert_eq!(batcher.submit(4).await, away, "and so is who comes later");
        says.send_replace(None);
        doubles.permits.add_permits(2);
        assert_eq!(callers.pop().expect("the first").await.expect("ends"), Ok(2));
        assert_eq!(batcher.submit(5).await, Ok(10));
    }

    /// A lane that ends by a panic is replaced.
    #[tokio::test]
    async fn a_panic_does_not_close_the_lane() {
        let (_, batcher) = doubles(9);
        assert!(matches!(batcher.submit(13).await, Err(StoreError::Unknown(_))));
        assert_eq!(batcher.submit(4).await, Ok(8));
    }
}
