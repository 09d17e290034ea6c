//! Which requests this process has told PENDING, in a few bytes each.
//!
//! A request is remembered for at least its life and at most twice that: what is older than a life is one generation, and is
//! forgotten as a whole. Of an id only a keyed hash is kept. Two that are the same cost one look at the store, and one that
//! was forgotten early, because there were too many, adds nothing to what it has.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Requests of one generation.
const GENERATION_MAX: usize = 100_000;

/// See the module.
pub(super) struct Waiting {
    life: Duration,
    hashes: RandomState,
    generations: Mutex<Generations>,
}

struct Generations {
    young: HashSet<u64>,
    old: HashSet<u64>,
    since: Instant,
}

impl Waiting {
    /// Of requests that live so long.
    pub(super) fn new(life: Duration) -> Self {
        let generations = Generations { young: HashSet::new(), old: HashSet::new(), since: Instant::now() };
        Self { life, hashes: RandomState::new(), generations: Mutex::new(generations) }
    }

    /// Whether a request was told PENDING within its life.
    pub(super) fn contains(&self, request_id: &str) -> bool {
        let (hash, generations) = (self.hashes.hash_one(request_id), self.generations());
        generations.young.contains(&hash) || generations.old.contains(&hash)
    }

    /// A request was told PENDING just now.
    pub(super) fn insert(&self, request_id: &str) {
        let (hash, mut generations) = (self.hashes.hash_one(request_id), self.generations());
        if generations.young.len() >= GENERATION_MAX {
            generations.turn();
        }
        generations.young.insert(hash);
    }

    /// As they are by now.
    fn generations(&self) -> MutexGuard<'_, Generations> {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let age = generations.since.elapsed();
        if age >= self.life {
            generations.turn();
        }
        if age >= self.life * 2 {
            generations.turn();
        }
        generations
    }
}

impl Generations {
    /// Forgets the old. Their room is kept for those to come.
    fn turn(&mut self) {
        std::mem::swap(&mut self.young, &mut self.old);
        self.young.clear();
        self.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_mins(10);

    #[tokio::test(start_paused = true)]
    async fn a_request_is_remembered_for_its_life_and_not_for_ever() {
        let waiting = Waiting::new(LIFE);
        waiting.insert("first");
        tokio::time::advance(LIFE / 2).await;
        waiting.insert("second");
        tokio::time::advance(LIFE / 2).await;
        assert!(waiting.contains("first") && waiting.contains("second") && !waiting.contains("third"));
        tokio::time::advance(LIFE / 2).await;
        assert!(waiting.contains("second"));
        tokio::time::advance(LIFE / 2).await;
        assert!(!waiting.contains("first") && !waiting.contains("second"));
        waiting.insert("fourth");
        tokio::time::advance(LIFE * 2).await;
        assert!(!waiting.contains("fourth"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_told_again_is_remembered_anew() {
        let waiting = Waiting::new(LIFE);
        waiting.insert("again");
        tokio::time::advance(LIFE).await;
        waiting.insert("again");
        tokio::time::advance(LIFE).await;
        assert!(waiting.contains("again"));
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_never_more_than_two_generations() {
        let waiting = Waiting::new(LIFE);
        for n in 0..GENERATION_MAX * 3 {
            waiting.insert(&n.to_string());
        }
        let generations = waiting.generations();
        assert_eq!(generations.young.len() + generations.old.len(), GENERATION_MAX * 2);
    }
}
