//! A bounded queue between async callers and the threads that own connections.
//!
//! Pushing never waits: a lane that is full refuses. Taking waits, without a timer, and takes
//! what is there. The writer has a second, lower lane for housekeeping.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use solely_core::StoreError;

/// Which lane a command waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// What callers wait for.
    Normal,
    /// What can wait: one at a time, when there is little else to do.
    Housekeeping,
}

pub(crate) struct Lane<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
    limit: usize,
    housekeeping_limit: usize,
}

struct State<T> {
    normal: VecDeque<T>,
    housekeeping: VecDeque<T>,
    /// Batches since housekeeping was last let in.
    passed_over: u32,
    /// Threads that wait: waking one that does not is a system call for nothing.
    waiting: usize,
    /// How many they wait for.
    awaited: usize,
    closed: bool,
}

impl<T> State<T> {
    fn is_awaited(&self) -> bool {
        self.waiting > 0 && (self.normal.len() >= self.awaited || !self.housekeeping.is_empty())
    }
}

/// However busy the lane, housekeeping gets into every so-manieth batch.
const PASS_OVER_MAX: u32 = 16;

impl<T> Lane<T> {
    pub(crate) fn new(limit: usize, housekeeping_limit: usize) -> Self {
        let state = State {
            normal: VecDeque::new(),
            housekeeping: VecDeque::new(),
            passed_over: 0,
            waiting: 0,
            awaited: 1,
            closed: false,
        };
        Self { state: Mutex::new(state), arrived: Condvar::new(), limit, housekeeping_limit }
    }

    /// Adds commands, all or none.
    pub(crate) fn push(&self, commands: Vec<T>, priority: Priority) -> Result<(), StoreError> {
        let mut state = self.state();
        if state.closed {
            return Err(StoreError::Unavailable("the store is closed".to_owned()));
        }
        let (queue, limit) = match priority {
            Priority::Normal => (&mut state.normal, self.limit),
            Priority::Housekeeping => (&mut state.housekeeping, self.housekeeping_limit),
        };
        if queue.len() + commands.len() > limit {
            return Err(StoreError::Overloaded);
        }
        queue.extend(commands);
        if state.is_awaited() {
            drop(state);
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Waits until `count` are there, but no longer than this. For a lane with one taker.
    pub(crate) fn gather(&self, count: usize, patience: Duration) {
        let mut state = self.state();
        if state.normal.len() < count && !state.closed {
            (state.waiting, state.awaited) = (state.waiting + 1, count);
            let waited = self
                .arrived
                .wait_timeout_while(state, patience, |state| state.normal.len() < count && !state.closed);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            (state.waiting, state.awaited) = (state.waiting - 1, 1);
        }
    }

    /// Takes what is there of the normal lane without waiting. False if nothing is.
    pub(crate) fn join(&self, most: usize, into: &mut Vec<T>) -> bool {
        let mut state = self.state();
        let count = state.normal.len().min(most);
        into.extend(state.normal.drain(..count));
        count > 0
    }

    /// Takes what is there, waiting until there is something; none once the lane is closed
    /// and empty.
    pub(crate) fn take(&self, most: usize, into: &mut Vec<T>) -> bool {
        let mut state = self.state();
        while state.normal.is_empty() && state.housekeeping.is_empty() {
            if state.closed {
                return false;
            }
            state.waiting += 1;
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        let count = state.normal.len().min(most);
        into.extend(state.normal.drain(..count));
        if !state.housekeeping.is_empty() {
            let quiet = count < most / 8;
            if quiet || state.passed_over >= PASS_OVER_MAX {
                into.extend(state.housekeeping.pop_front());
                state.passed_over = 0;
            } else {
                state.passed_over += 1;
            }
        }
        true
    }

    /// Lets what is there be taken, and refuses what comes.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.arrived.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_lane_refuses_all_or_nothing() {
        let lane = Lane::new(2, 1);
        assert_eq!(lane.push(vec![1, 2, 3], Priority::Normal), Err(StoreError::Overloaded));
        lane.push(vec![1, 2], Priority::Normal).expect("room for two");
        assert_eq!(lane.push(vec![3], Priority::Normal), Err(StoreError::Overloaded));
        let mut taken = Vec::new();
        assert!(lane.take(10, &mut taken));
        assert_eq!(taken, [1, 2]);
    }

    #[test]
    fn housekeeping_waits_while_it_is_busy_but_not_for_ever() {
        let lane = Lane::new(1_000, 10);
        lane.push(vec![-1], Priority::Housekeeping).expect("room");
        let mut rounds = 0;
        loop {
            lane.push(vec![1; 8], Priority::Normal).expect("room");
            let mut taken = Vec::new();
            lane.take(8, &mut taken);
            rounds += 1;
            if taken.contains(&-1) {
                break;
            }
        }
        assert_eq!(rounds, PASS_OVER_MAX + 1);
    }

    #[test]
    fn a_closed_lane_is_emptied_and_then_ends() {
        let lane = Lane::new(10, 10);
        lane.push(vec![1], Priority::Normal).expect("room");
        lane.close();
        assert!(lane.push(vec![2], Priority::Normal).is_err());
        let mut taken = Vec::new();
        assert!(lane.take(10, &mut taken));
        assert!(!lane.take(10, &mut taken));
        assert_eq!(taken, [1]);
    }
}
