//! One effect, one transaction.
//!
//! A handler does not write to the store. It returns what should become true, and the worker
//! hands the engine a [`Commit`]: the claim it holds, the verdict on the job, the effect, the
//! jobs that follow and the events that tell of it. The engine checks the claim **first** and
//! lets everything else depend on it, then applies all of it in one transaction.
//!
//! There is therefore no moment at which a crash leaves an effect without its completion, a
//! completion without its successor, or a dead letter without what it means for its system.

use std::time::Duration;

use crate::cache::PutEntry;
use crate::event::{EventId, NewEvent};
use crate::feed::Step;
use crate::job::{Claim, NewJob};

/// What is to become of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is done.
    Complete,
    /// It failed in a way that may pass; delivered again after the delay. Not for a job without
    /// attempts left: that one is [`Verdict::Dead`], with what its death means.
    Retry {
        /// How long it waits.
        delay: Duration,
        /// What went wrong.
        error: String,
    },
    /// It could not be tried (its upstream is paused); no attempt is spent.
    Postpone {
        /// How long it waits.
        delay: Duration,
        /// What it waits for; empty where nothing is wrong.
        error: String,
    },
    /// Its worker stops; delivered at once to another, no attempt is spent.
    Release,
    /// It is given up.
    Dead {
        /// Why.
        error: String,
    },
}

/// What a job does to the store beside its own row.
///
/// An effect may carry a condition (a compare-and-set, a version). When the condition does not
/// hold the job is still settled, but the effect, the successors and the events of the commit
/// are dropped and [`Commit::otherwise`] is written instead: [`Settled::Skipped`].
#[derive(Clone, Debug, Default)]
pub enum Effect {
    /// Nothing.
    #[default]
    None,
    /// Writes cache entries, unconditionally or by version; skipped if none of them was newer.
    PutEntries(Vec<PutEntry>),
    /// Moves a feed, if it is where the step begins.
    Feed(Step),
    /// Takes delivered events out of the outbox.
    Delivered(Vec<EventId>),
}

/// A settlement, whole.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Who asks. Checked before anything else.
    pub claim: Claim,
    /// What becomes of the job.
    pub verdict: Verdict,
    /// What it does.
    pub effect: Effect,
    /// The jobs that follow.
    pub next_jobs: Vec<NewJob>,
    /// What is told of it.
    pub events: Vec<NewEvent>,
    /// What is told instead when the effect's condition does not hold.
    pub otherwise: Vec<NewEvent>,
}

impl Commit {
    /// A settlement without effect.
    pub fn new(claim: Claim, verdict: Verdict) -> Self {
        Self {
            claim,
            verdict,
            effect: Effect::None,
            next_jobs: Vec::new(),
            events: Vec::new(),
            otherwise: Vec::new(),
        }
    }
}

/// What became of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// All of it is in the store.
    Applied,
    /// The job is settled; the effect's condition did not hold, so nothing else was written
    /// but [`Commit::otherwise`].
    Skipped,
    /// The claim is not the job's any more. Nothing was written.
    Stale,
}
