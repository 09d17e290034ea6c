//! What is done to whom, and when: drawn from the seed alone, before anything has happened. The same seed has the same
//! plan, whatever the machine makes of it; what cannot be done at its time (a process is paused already) is left out.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use solely_core::fault::CRASH_POINTS;

use crate::torture::{Break, LOCK};

/// One bad thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Harm {
    /// To Redis.
    Redis(RedisHarm),
    /// A process is killed, and replaced.
    Kill {
        /// Which.
        victim: usize,
    },
    /// A process is killed, and replaced by one that dies at a point.
    Crash {
        /// Which.
        victim: usize,
        /// Where its successor dies.
        point: &'static str,
        /// The how manieth time it comes there.
        times: u32,
    },
    /// A process is stopped, and goes on later: mostly beyond its lock; at times for so long that the others declare
    /// it dead, and the database ends the transaction that it may be in.
    Pause {
        /// Which.
        victim: usize,
        /// For how long.
        time: Duration,
    },
    /// The next COMMIT does not arrive.
    CutBeforeCommit,
    /// The next COMMIT is not answered.
    CutAfterCommit,
    /// All connections to the database are cut.
    CutAll,
    /// The disk of the database is full.
    FillDisk {
        /// For how long.
        time: Duration,
    },
    /// The database is restarted.
    Restart {
        /// As after a power cut.
        at_once: bool,
    },
}

/// What is done to Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisHarm {
    /// What it holds now is what it begins with some other time.
    Save,
    /// It is restarted empty,
    Empty,
    /// with what it had some time ago,
    Old,
    /// or with what it had just now.
    Restart,
    /// It answers nobody for a while.
    Pause(Duration),
}

/// A rest, and then a bad thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// How long nothing is done.
    pub rest: Duration,
    /// What is done then.
    pub harm: Harm,
}

/// See the module.
pub struct Plan {
    rng: SmallRng,
    instances: usize,
    redis: bool,
    broken: Option<Break>,
}

impl Plan {
    /// The plan of a seed, for so many processes, with Redis or without, and a guard that may be off.
    pub fn new(seed: u64, instances: usize, redis: bool, broken: Option<Break>) -> Self {
        Self { rng: SmallRng::seed_from_u64(seed), instances, redis, broken }
    }

    fn harm_redis(&mut self) -> RedisHarm {
        match self.rng.random_range(0..100) {
            0..25 => RedisHarm::Save,
            25..45 => RedisHarm::Empty,
            45..65 => RedisHarm::Old,
            65..80 => RedisHarm::Restart,
            _ => RedisHarm::Pause(self.millis(100..5_000)),
        }
    }

    fn harm(&mut self) -> Harm {
        if self.redis && self.rng.random_bool(0.15) {
            return Harm::Redis(self.harm_redis());
        }
        let victim = self.rng.random_range(0..self.instances);
        let mut fate = self.rng.random_range(0..100);
        if self.broken == Some(Break::Fence) && self.rng.random_bool(0.7) {
            // Only who was paused can come too late.
            fate = 50;
        }
        if self.broken == Some(Break::PageTransaction) && self.rng.random_bool(0.5) {
            // Only who dies between a page and what follows it strands a partition.
            return Harm::Crash { victim, point: "settle.begin", times: self.rng.random_range(1..40) };
        }
        match fate {
            0..20 => Harm::Kill { victim },
            20..40 => {
                let point = CRASH_POINTS[self.rng.random_range(0..CRASH_POINTS.len())];
                Harm::Crash { victim, point, times: self.rng.random_range(1..40) }
            }
            40..60 => {
                let locks = if self.rng.random_bool(0.15) { 8.0 } else { 1.5 };
                Harm::Pause { victim, time: LOCK.mul_f64(locks) }
            }
            60..75 => Harm::CutBeforeCommit,
            75..90 => Harm::CutAfterCommit,
            // Where a guard is off, nothing is done that only takes time.
            96..97 if self.broken.is_none() => Harm::FillDisk { time: self.millis(200..3_000) },
            90..97 => Harm::CutAll,
            _ => Harm::Restart { at_once: self.rng.random_bool(0.5) },
        }
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.rng.random_range(range))
    }
}

/// It has no end.
impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        Some(Step { rest: self.millis(20..250), harm: self.harm() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(seed: u64) -> Vec<Step> {
        Plan::new(seed, 3, true, None).take(2_000).collect()
    }

    #[test]
    fn the_same_seed_has_the_same_plan_and_another_another() {
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
    }

    #[test]
    fn everything_that_can_be_done_is_done() {
        let mut left = vec![
            "Save",
            "Empty",
            "Old",
            "Restart)",
            "Pause(",
            "Kill",
            "Crash",
            "Pause {",
            "CutBefore",
            "CutAfter",
            "CutAll",
            "FillDisk",
            "at_once: true",
            "at_once: false",
        ];
        for step in steps(7) {
            let said = format!("{:?}", step.harm);
            left.retain(|harm| !said.contains(harm));
        }
        assert_eq!(left, Vec::<&str>::new());
    }
}
