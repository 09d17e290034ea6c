//! Random sequences of job transitions against a plain model.
//!
//! Time moves in whole steps of ten seconds, far more than a case takes, so that the model can
//! count in steps and the store in milliseconds.

use std::time::Duration;

use proptest::prelude::*;
use solely_core::commit::{Commit, Settled, Verdict};
use solely_core::job::{Claim, Enqueued, JobState, NewJob, OnRunning, Renewed, ReviveRequest, Revived};
use solely_core::{JobId, Json};

use crate::world::QUEUE;
use crate::{Engine, World, rescue, seed};

const STEP: Duration = Duration::from_secs(10);
/// The lock of [`World::claim`], in steps.
const LOCK_STEPS: u64 = 6;

#[derive(Clone, Debug)]
enum Op {
    Enqueue {
        key: u8,
        delay: u64,
        again: bool,
        max_attempts: u32,
    },
    Claim {
        limit: usize,
    },
    /// Settles, with one of the claims ever given out, stale ones too.
    Settle {
        claim: usize,
        verdict: u8,
        delay: u64,
    },
    Renew {
        claim: usize,
    },
    Advance {
        steps: u64,
    },
    Rescue,
    Revive {
        limit: u32,
    },
    Cancel {
        key: u8,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (0..4_u8, 0..3_u64, any::<bool>(), 1..3_u32)
            .prop_map(|(key, delay, again, max_attempts)| Op::Enqueue { key, delay, again, max_attempts }),
        5 => (1..4_usize).prop_map(|limit| Op::Claim { limit }),
        6 => (0..64_usize, 0..5_u8, 0..3_u64)
            .prop_map(|(claim, verdict, delay)| Op::Settle { claim, verdict, delay }),
        2 => (0..64_usize).prop_map(|claim| Op::Renew { claim }),
        4 => (1..8_u64).prop_map(|steps| Op::Advance { steps }),
        2 => Just(Op::Rescue),
        2 => (1..4_u32).prop_map(|limit| Op::Revive { limit }),
        1 => (0..4_u8).prop_map(|key| Op::Cancel { key }),
    ]
}

#[derive(Clone, Debug)]
struct ModelJob {
    id: JobId,
    key: String,
    state: JobState,
    /// When it is due, in steps; its place in the queue.
    due: u64,
    fence: u64,
    attempts: u32,
    max_attempts: u32,
    locked_until: u64,
    again: bool,
}

#[derive(Default)]
struct Model {
    now: u64,
    jobs: Vec<ModelJob>,
    claims: Vec<Claim>,
}

impl Model {
    fn live(&self, key: &str) -> Option<usize> {
        self.jobs.iter().position(|job| job.key == key && job.state.is_live())
    }

    fn claimable(&self) -> Vec<usize> {
        let waits = |state| matches!(state, JobState::Ready | JobState::Retrying);
        let mut due: Vec<usize> = (0..self.jobs.len())
            .filter(|&n| waits(self.jobs[n].state) && self.jobs[n].due <= self.now)
            .collect();
        due.sort_by_key(|&n| self.jobs[n].due);
        due
    }

    fn holder(&self, claim: Claim) -> Option<usize> {
        let holds = |job: &ModelJob| {
            job.id == claim.job
                && job.state == JobState::Running
                && job.fence == claim.fence
                && job.locked_until > self.now
        };
        self.jobs.iter().position(holds)
    }
}

/// A case: a world and its model.
struct Case {
    world: World,
    model: Model,
}

impl Case {
    async fn run(&mut self, op: Op) {
        match op {
            Op::Enqueue { key, delay, again, max_attempts } => {
                self.enqueue(key, delay, again, max_attempts).await;
            }
            Op::Claim { limit } => self.claim(limit).await,
            Op::Settle { claim, verdict, delay } => self.settle(claim, verdict, delay).await,
            Op::Renew { claim } => self.renew(claim).await,
            Op::Advance { steps } => {
                // The process beats, so that only locks end.
                self.world.advance(STEP * u32::try_from(steps).expect("small"));
                self.world.beat(self.world.process).await;
                self.model.now += steps;
            }
            Op::Rescue => self.rescue().await,
            Op::Revive { limit } => self.revive(limit).await,
            Op::Cancel { key } => self.cancel(key).await,
        }
    }

    async fn enqueue(&mut self, key: u8, delay: u64, again: bool, max_attempts: u32) {
        let mut job = NewJob::new(QUEUE, format!("key-{key}"));
        job.delay = STEP * u32::try_from(delay).expect("small");
        job.max_attempts = max_attempts;
        job.payload = Json::of(&key);
        if again {
            job.on_running = OnRunning::RunAgain;
        }
        let (id, key) = (job.id, job.key.clone());
        let outcome = self.world.enqueue(job).await;
        match self.model.live(&key) {
            None => {
                assert_eq!(outcome, Enqueued::Created);
                self.model.jobs.push(ModelJob {
                    id,
                    key,
                    state: JobState::Ready,
                    due: self.model.now + delay,
                    fence: 0,
                    attempts: 0,
                    max_attempts,
                    locked_until: 0,
                    again: false,
                });
            }
            Some(n) if again && self.model.jobs[n].state == JobState::Running => {
                assert_eq!(outcome, Enqueued::Again { of: self.model.jobs[n].id });
                self.model.jobs[n].again = true;
            }
            Some(n) => {
                let job = &self.model.jobs[n];
                let expected = (job.id, job.state);
                assert!(matches!(outcome, Enqueued::Duplicate { of, state, .. } if (of, state) == expected));
            }
        }
    }

    async fn claim(&mut self, limit: usize) {
        let claimed = self.world.claim(limit).await;
        let due = self.model.claimable();
        assert_eq!(claimed.len(), due.len().min(limit));
        for delivery in claimed {
            let n = self.model.jobs.iter().position(|job| job.id == delivery.job.id).expect("is known");
            assert!(due.contains(&n), "it was due");
            // Whatever was due earlier was taken too (ties in any order).
            let later = due.iter().filter(|&&m| self.model.jobs[m].due < self.model.jobs[n].due);
            assert!(later.count() < limit.max(1));
            let job = &mut self.model.jobs[n];
            job.fence += 1;
            job.attempts += 1;
            (job.state, job.locked_until, job.again) =
                (JobState::Running, self.model.now + LOCK_STEPS, false);
            assert_eq!((delivery.claim.fence, delivery.job.attempts), (job.fence, job.attempts));
            self.model.claims.push(delivery.claim);
        }
    }

    fn some_claim(&self, n: usize) -> Option<Claim> {
        let claims = &self.model.claims;
        (!claims.is_empty()).then(|| claims[n % claims.len()])
    }

    async fn settle(&mut self, claim: usize, verdict: u8, delay: u64) {
        let Some(claim) = self.some_claim(claim) else { return };
        let wait = STEP * u32::try_from(delay).expect("small");
        let error = "model".to_owned();
        let spent = self.model.holder(claim).is_some_and(|n| {
            let job = &self.model.jobs[n];
            job.attempts >= job.max_attempts
        });
        let verdict = match verdict {
            0 => Verdict::Complete,
            // As a worker does: what has no attempt left is not retried.
            1 if !spent => Verdict::Retry { delay: wait, error },
            2 => Verdict::Postpone { delay: wait, error },
            3 => Verdict::Release,
            _ => Verdict::Dead { error },
        };
        let outcome = self.world.settle(Commit::new(claim, verdict.clone())).await;
        let Some(n) = self.model.holder(claim) else {
            assert_eq!(outcome, Settled::Stale);
            return;
        };
        assert_eq!(outcome, Settled::Applied);
        let now = self.model.now;
        let job = &mut self.model.jobs[n];
        let again = std::mem::take(&mut job.again);
        match verdict {
            Verdict::Complete if again => (job.state, job.due, job.attempts) = (JobState::Ready, now, 0),
            Verdict::Complete => job.state = JobState::Completed,
            Verdict::Retry { .. } => (job.state, job.due) = (JobState::Retrying, now + delay),
            Verdict::Postpone { .. } => {
                (job.state, job.due, job.attempts) = (JobState::Retrying, now + delay, job.attempts - 1);
            }
            Verdict::Release => (job.state, job.attempts) = (JobState::Ready, job.attempts - 1),
            Verdict::Dead { .. } => {
                job.state = JobState::Dead;
                if again {
                    self.adopt_successor(n).await;
                }
            }
        }
    }

    /// The trigger of a job that died is carried by a new job, whose id the engine chose.
    async fn adopt_successor(&mut self, dead: usize) {
        let dead = self.model.jobs[dead].clone();
        let filter =
            solely_core::queue::JobFilter { key: Some(dead.key.clone()), limit: 1, ..Default::default() };
        let newest = self.world.store().jobs(filter).await.expect("lists").remove(0);
        assert!(newest.state == JobState::Ready && newest.id != dead.id, "{newest:?}");
        let (due, fence, attempts) = (self.model.now, 0, 0);
        self.model.jobs.push(ModelJob {
            id: newest.id,
            state: JobState::Ready,
            due,
            fence,
            attempts,
            ..dead
        });
    }

    async fn renew(&mut self, claim: usize) {
        let Some(claim) = self.some_claim(claim) else { return };
        let outcome = self.world.renew(claim, crate::world::LOCK).await;
        match self.model.holder(claim) {
            Some(n) => {
                assert!(matches!(outcome, Renewed::Until(_)));
                self.model.jobs[n].locked_until = self.model.now + LOCK_STEPS;
            }
            None => assert_eq!(outcome, Renewed::Lost),
        }
    }

    async fn rescue(&mut self) {
        let rescued = rescue::rescue(&self.world).await;
        let now = self.model.now;
        let (mut freed, mut exhausted) = (Vec::new(), Vec::new());
        for job in &mut self.model.jobs {
            if job.state == JobState::Running && job.locked_until <= now {
                if job.attempts < job.max_attempts {
                    job.state = JobState::Ready;
                    freed.push(job.id);
                } else {
                    job.fence += 1;
                    job.locked_until = now + solely_core::limits::RESCUE_LOCK.as_secs() / STEP.as_secs();
                    exhausted.push(Claim { job: job.id, fence: job.fence });
                }
            }
        }
        let mut seen: Vec<JobId> = rescued.freed.into_iter().map(|(id, _)| id).collect();
        seen.sort_unstable();
        freed.sort_unstable();
        assert_eq!(seen, freed);
        let mut seen: Vec<Claim> = rescued.exhausted.into_iter().map(|lapsed| lapsed.claim).collect();
        self.model.claims.extend(&seen);
        seen.sort_unstable_by_key(|claim| claim.job);
        exhausted.sort_unstable_by_key(|claim| claim.job);
        assert_eq!(seen, exhausted);
    }

    async fn revive(&mut self, limit: u32) {
        let request = ReviveRequest { limit, ..ReviveRequest::default() };
        let outcomes = self.world.store().revive(request).await.expect("revives");
        let mut dead: Vec<usize> =
            (0..self.model.jobs.len()).filter(|&n| self.model.jobs[n].state == JobState::Dead).collect();
        dead.sort_unstable_by_key(|&n| self.model.jobs[n].id);
        dead.truncate(limit as usize);
        assert_eq!(outcomes.len(), dead.len());
        for (n, outcome) in dead.into_iter().zip(outcomes) {
            let id = self.model.jobs[n].id;
            let newer = self.model.live(&self.model.jobs[n].key);
            if let Some(by) = newer {
                assert_eq!(outcome, Revived::Superseded { id, by: self.model.jobs[by].id });
                self.model.jobs[n].state = JobState::Cancelled;
            } else {
                assert_eq!(outcome, Revived::Ready { id, queue: QUEUE.to_owned() });
                let now = self.model.now;
                let job = &mut self.model.jobs[n];
                (job.state, job.due, job.attempts) = (JobState::Ready, now, 0);
            }
        }
    }

    async fn cancel(&mut self, key: u8) {
        let key = format!("key-{key}");
        let closed = self.world.store().cancel(QUEUE.to_owned(), vec![key.clone()]).await.expect("cancels");
        let waiting = self.model.live(&key).filter(|&n| self.model.jobs[n].state != JobState::Running);
        assert_eq!(closed, waiting.map(|n| self.model.jobs[n].id).into_iter().collect::<Vec<_>>());
        if let Some(n) = waiting {
            self.model.jobs[n].state = JobState::Cancelled;
        }
    }

    async fn assert_same(&self) {
        for expected in &self.model.jobs {
            let job = self.world.job(expected.id).await;
            assert_eq!((job.state, job.attempts), (expected.state, expected.attempts), "{expected:?}");
        }
        self.world.assert_sound().await;
    }
}

/// Whatever is done in whatever order, the store does what the model does.
pub fn jobs_agree_with_a_plain_model<E: Engine>(cases: u32) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let outcome = seed::runner(cases).run(&prop::collection::vec(op(), 1..60), |ops| {
        runtime.block_on(async {
            let mut case = Case { world: World::on(E::fresh().await).await, model: Model::default() };
            for op in ops {
                case.run(op).await;
            }
            case.assert_same().await;
        });
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
