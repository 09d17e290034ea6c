//! Settlement: the fence first, then the effect, the jobs that follow, the events.
//!
//! The commits of one call share a transaction. Verdicts are passed first, by one statement that
//! locks the jobs' rows and only then looks at the clock: a settlement that waited for a lock is
//! judged by the time after the wait. Nothing else is sent before it is known which claims were
//! the jobs' own. Should any effect be refused, the transaction is rolled back and each commit is
//! run in one of its own, so each is all or nothing and judged by itself.

use futures::future::try_join_all;
use solely_core::cache::Put;
use solely_core::clock::Timestamp;
use solely_core::commit::{Commit, Effect, Settled, Verdict};
use solely_core::event::NewEvent;
use solely_core::fault::{self, Guard};
use solely_core::feed::{Page, Step};
use solely_core::job::{Claim, NewJob, OnRunning, Window};
use solely_core::{JobId, Json, StoreError};
use tokio_postgres::{Error, Row};

use crate::row::{self, millis};
use crate::transaction::transact;
use crate::{PostgresStore, Tx, cache, event, feed, job};

impl PostgresStore {
    pub(crate) async fn settle_each(
        &self,
        mut commits: Vec<Commit>,
    ) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        if !self.guards.hold(Guard::PageTransaction) {
            self.apply_effects_apart(&mut commits).await?;
        }
        match self.settle_together(&commits).await {
            Ok(outcomes) => Ok(outcomes.into_iter().map(Ok).collect()),
            Err(StoreError::Refused(_)) if commits.len() > 1 => {
                let mut outcomes = Vec::with_capacity(commits.len());
                for commit in &commits {
                    outcomes.push(self.settle_alone(commit).await);
                }
                Ok(outcomes)
            }
            Err(refused @ StoreError::Refused(_)) => Ok(vec![Err(refused)]),
            Err(error) => Err(error),
        }
    }

    async fn settle_together(&self, commits: &[Commit]) -> Result<Vec<Settled>, StoreError> {
        let fence_holds = self.guards.hold(Guard::Fence);
        let settled = transact!(self.work, |tx| async {
            let outcomes = settle(tx, commits, fence_holds).await?;
            fault::point("settle.commit");
            Ok(outcomes)
        }
        .await);
        fault::point("settle.committed");
        settled
    }

    async fn settle_alone(&self, commit: &Commit) -> Result<Settled, StoreError> {
        let outcomes = self.settle_together(std::slice::from_ref(commit)).await?;
        Ok(outcomes.into_iter().next().unwrap_or(Settled::Stale))
    }

    /// What solely never does unless a fault test opens the guard: the effect in one
    /// transaction, the completion and the next job in another.
    async fn apply_effects_apart(&self, commits: &mut [Commit]) -> Result<(), StoreError> {
        for commit in commits {
            let effect = std::mem::take(&mut commit.effect);
            let applied: Result<bool, StoreError> = transact!(self.work, |tx| async {
                let now = tx.now().await?;
                apply(tx, &effect, now).await
            }
            .await);
            fault::point("settle.committed");
            if !applied? {
                commit.next_jobs.clear();
                commit.events.clear();
            }
        }
        Ok(())
    }
}

async fn settle(tx: &Tx<'_>, commits: &[Commit], fence_holds: bool) -> Result<Vec<Settled>, Error> {
    fault::point("settle.begin");
    let (owned, now) = pass_verdicts(tx, commits, fence_holds).await?;
    fault::point("settle.fenced");
    let mut outcomes = vec![Settled::Stale; commits.len()];
    for owned in owned.iter().filter(|owned| owned.triggered) {
        succeed_the_dead(tx, commits[owned.place].claim.job, now).await?;
    }
    let effects: Vec<&Effect> = owned.iter().map(|owned| &commits[owned.place].effect).collect();
    let applied = apply_all(tx, &effects, now).await?;
    fault::point("settle.effect");
    let (mut next_jobs, mut events): (Vec<&NewJob>, Vec<NewEvent>) = (Vec::new(), Vec::new());
    for (owned, applied) in owned.iter().zip(applied) {
        let commit = &commits[owned.place];
        if applied {
            next_jobs.extend(&commit.next_jobs);
            events.extend_from_slice(&commit.events);
            outcomes[owned.place] = Settled::Applied;
        } else {
            events.extend_from_slice(&commit.otherwise);
            outcomes[owned.place] = Settled::Skipped;
        }
    }
    if !next_jobs.is_empty() {
        job::enqueue_all(tx, &next_jobs, Some(now)).await?;
        fault::point("settle.next");
    }
    event::insert(tx, &events, now).await?;
    Ok(outcomes)
}

/// A commit whose claim is the job's own.
struct Owned {
    /// Which of the commits.
    place: usize,
    /// The job is dead, and a trigger came while it ran.
    triggered: bool,
}

async fn pass_verdicts(
    tx: &Tx<'_>,
    commits: &[Commit],
    fence_holds: bool,
) -> Result<(Vec<Owned>, Timestamp), Error> {
    let claims: Vec<Claim> = commits.iter().map(|commit| commit.claim).collect();
    let (order, ids, fences) = job::in_order(&claims);
    let mut verdicts: Vec<i16> = Vec::with_capacity(order.len());
    let mut delays: Vec<Option<i64>> = Vec::with_capacity(order.len());
    let mut errors: Vec<Option<&str>> = Vec::with_capacity(order.len());
    for &place in &order {
        let (verdict, delay, error) = match &commits[place].verdict {
            Verdict::Complete => (0, None, None),
            Verdict::Retry { delay, error } => (1, Some(millis(*delay)), Some(error.as_str())),
            Verdict::Postpone { delay, error } => {
                (2, Some(millis(*delay)), Some(error.as_str()).filter(|error| !error.is_empty()))
            }
            Verdict::Release => (3, None, None),
            Verdict::Dead { error } => (4, None, Some(error.as_str())),
        };
        verdicts.push(verdict);
        delays.push(delay);
        errors.push(error);
    }
    let rows = tx
        .query(
            "SELECT * FROM solely_settle($1, $2, $3, $4, $5, $6, $7)",
            &[&ids, &fences, &verdicts, &delays, &errors, &tx.offset_ms(), &fence_holds],
        )
        .await?;
    let now = rows.first().map_or(Timestamp::from_millis(0), |row| row::time(row, 2));
    let owned = |row: &Row| Owned { place: order[row::place(row, 0)], triggered: row.get(1) };
    let mut owned: Vec<Owned> = rows.iter().map(owned).collect();
    owned.sort_unstable_by_key(|owned| owned.place);
    Ok((owned, now))
}

/// A trigger that came while the job died is not lost with it: a new job carries it.
async fn succeed_the_dead(tx: &Tx<'_>, dead: JobId, now: Timestamp) -> Result<(), Error> {
    let found = tx
        .one(
            "SELECT queue, key, kind, payload, attributes, priority, max_attempts, trace FROM jobs WHERE id = $1",
            &[&row::uuid(dead.as_bytes())],
        )
        .await?;
    let successor = NewJob {
        id: JobId::new(),
        queue: found.get(0),
        key: found.get(1),
        kind: found.get(2),
        payload: Json::from_stored(found.get(3)),
        attributes: Json::from_stored(found.get(4)),
        priority: u8::try_from(found.get::<_, i16>(5)).unwrap_or(0),
        delay: std::time::Duration::ZERO,
        max_attempts: u32::try_from(found.get::<_, i32>(6)).unwrap_or(1),
        window: Window::Off,
        on_running: OnRunning::RunAgain,
        trace: found.get(7),
    };
    job::enqueue_all(tx, &[&successor], Some(now)).await.map(drop)
}

/// Applies effects. Pages are written together; the others one after the other, in the order given,
/// but without waiting for each answer.
async fn apply_all(tx: &Tx<'_>, effects: &[&Effect], now: Timestamp) -> Result<Vec<bool>, Error> {
    let (mut places, mut pages): (Vec<usize>, Vec<&Page>) = (Vec::new(), Vec::new());
    for (place, effect) in effects.iter().enumerate() {
        if let Effect::Feed(Step::Page(page)) = effect {
            places.push(place);
            pages.push(page);
        }
    }
    let others = (0..).zip(effects).filter(|(place, _)| !places.contains(place));
    let others =
        try_join_all(others.map(|(place, effect)| async move {
            apply(tx, effect, now).await.map(|applied| (place, applied))
        }));
    let mut applied = vec![false; effects.len()];
    for (place, held) in others.await? {
        applied[place] = held;
    }
    if !pages.is_empty() {
        for nth in feed::write_pages(tx, &pages, now).await? {
            applied[places[nth]] = true;
        }
    }
    Ok(applied)
}

/// Applies an effect. False if its condition does not hold; nothing of it was then written.
async fn apply(tx: &Tx<'_>, effect: &Effect, now: Timestamp) -> Result<bool, Error> {
    match effect {
        Effect::None => Ok(true),
        Effect::PutEntries(entries) => {
            let outcomes = cache::put_all(tx, entries, Some(now)).await?;
            Ok(outcomes.is_empty() || outcomes.iter().any(|put| matches!(put, Put::Stored { .. })))
        }
        Effect::Feed(step) => feed::take(tx, step, now).await,
        Effect::Delivered(events) => event::mark_delivered(tx, events).await.map(|()| true),
    }
}
