//! A breaker: after a row of failures calls are refused at once; when the time is over one
//! call is let through to see, and its end decides.

use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row that open one that does not say.
pub const FAILURES: u32 = 5;
/// How long it stays open the first time; doubled each time the trial fails.
pub const OPEN_FOR: Duration = Duration::from_secs(5);
/// The longest it stays open.
pub const OPEN_MAX: Duration = Duration::from_secs(60);

/// What a breaker lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// Everything.
    Closed,
    /// Nothing.
    Open,
    /// One call, or it is under way.
    HalfOpen,
}

/// A call that was let through.
#[derive(Debug)]
pub struct Ticket {
    trial: bool,
}

/// The breaker of one upstream in one process.
#[derive(Debug)]
pub struct Breaker {
    opens_after: u32,
    failures: u32,
    open_until: Option<Instant>,
    open_for: Duration,
    on_trial: bool,
}

impl Breaker {
    /// A breaker that opens after so many failures in a row.
    pub fn new(opens_after: u32) -> Self {
        Self {
            opens_after: opens_after.max(1),
            failures: 0,
            open_until: None,
            open_for: Duration::ZERO,
            on_trial: false,
        }
    }

    /// What it lets through now.
    pub fn circuit(&self, now: Instant) -> Circuit {
        match self.open_until {
            None => Circuit::Closed,
            Some(until) if now < until => Circuit::Open,
            Some(_) => Circuit::HalfOpen,
        }
    }

    /// How long it would refuse a call, if it would.
    pub fn refuses(&self, now: Instant) -> Option<Duration> {
        match self.open_until {
            Some(until) if now < until => Some(until - now),
            Some(_) if self.on_trial => Some(OPEN_FOR),
            _ => None,
        }
    }

    /// Lets a call through, or says how long it will not.
    pub fn admit(&mut self, now: Instant) -> Result<Ticket, Duration> {
        if let Some(left) = self.refuses(now) {
            return Err(left);
        }
        self.on_trial = self.open_until.is_some();
        Ok(Ticket { trial: self.on_trial })
    }

    /// The end of a call that was let through.
    pub fn judge(&mut self, ticket: &Ticket, failed: bool, now: Instant) {
        if ticket.trial {
            self.on_trial = false;
        } else if self.open_until.is_some() {
            return; // It began before the breaker opened; the trial decides.
        }
        if !failed {
            *self = Self::new(self.opens_after);
            return;
        }
        self.failures += 1;
        if ticket.trial || self.failures >= self.opens_after {
            self.open_for = (self.open_for * 2).clamp(OPEN_FOR, OPEN_MAX);
            self.open_until = Some(now + self.open_for);
        }
    }

    /// A call that was let through ended without a verdict.
    pub fn withdraw(&mut self, ticket: &Ticket) {
        if ticket.trial {
            self.on_trial = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breaker: &mut Breaker, now: Instant) {
        let ticket = breaker.admit(now).expect("let through");
        breaker.judge(&ticket, true, now);
    }

    #[tokio::test(start_paused = true)]
    async fn opens_after_a_row_of_failures_and_lets_one_trial_through() {
        let (mut breaker, now) = (Breaker::new(FAILURES), Instant::now());
        (0..FAILURES).for_each(|_| fail(&mut breaker, now));
        assert_eq!(breaker.admit(now).unwrap_err(), OPEN_FOR);
        let later = now + OPEN_FOR;
        let trial = breaker.admit(later).expect("the trial");
        assert!(breaker.admit(later).is_err(), "one trial at a time");
        breaker.judge(&trial, false, later);
        assert_eq!(breaker.circuit(later), Circuit::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_trial_doubles_the_time_up_to_the_longest() {
        let (mut breaker, mut now) = (Breaker::new(FAILURES), Instant::now());
        (0..FAILURES).for_each(|_| fail(&mut breaker, now));
        let mut last = OPEN_FOR;
        for _ in 0..6 {
            now += last;
            fail(&mut breaker, now);
            let left = breaker.refuses(now).expect("open");
            assert_eq!(left, (last * 2).min(OPEN_MAX));
            last = left;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_withdrawn_trial_leaves_room_for_the_next() {
        let (mut breaker, now) = (Breaker::new(FAILURES), Instant::now());
        (0..FAILURES).for_each(|_| fail(&mut breaker, now));
        let trial = breaker.admit(now + OPEN_FOR).expect("the trial");
        breaker.withdraw(&trial);
        assert!(breaker.admit(now + OPEN_FOR).is_ok());
    }
}
