//! Prices that fall. Pure: a price is a function of the instant.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

/// How a price falls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Pricing {
    /// Evenly, from the price at `startsAt` to the floor at the end of the window, rounded down.
    Linear {
        /// The least.
        floor: i64,
        /// From when.
        starts_at: Timestamp,
    },
    /// In steps.
    Steps {
        /// From when what is asked, in the order of their times.
        steps: Vec<Step>,
    },
}

/// From an instant on, a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Step {
    /// From when.
    pub at: Timestamp,
    /// What one costs.
    pub price: i64,
}

/// Steps of one price.
pub const STEPS_MAX: usize = 100;

impl Pricing {
    /// What one costs at an instant: at the very instant of a step it is the step's.
    pub fn price_at(&self, price: i64, pickup_end: Timestamp, now: Timestamp) -> i64 {
        match self {
            Self::Linear { floor, starts_at } => {
                if now <= *starts_at {
                    return price;
                }
                if now >= pickup_end {
                    return *floor;
                }
                let span = i128::from(pickup_end.as_millis() - starts_at.as_millis());
                let left = i128::from(pickup_end.as_millis() - now.as_millis());
                let above = i128::from(price - floor);
                floor.saturating_add(i64::try_from(above * left / span).unwrap_or(0))
            }
            Self::Steps { steps } => {
                steps.iter().take_while(|step| step.at <= now).last().map_or(price, |step| step.price)
            }
        }
    }

    /// What is wrong with it, if anything is: the field, and why.
    pub fn problem(&self, price: i64, pickup_end: Timestamp) -> Option<String> {
        match self {
            Self::Linear { floor, starts_at } => {
                if !(0..=price).contains(floor) {
                    return Some("`pricing.floor` is between 0 and the price".to_owned());
                }
                (*starts_at >= pickup_end)
                    .then(|| "`pricing.startsAt` is before the end of the window".to_owned())
            }
            Self::Steps { steps } => {
                if steps.is_empty() || steps.len() > STEPS_MAX {
                    return Some(format!("`pricing.steps` has 1 to {STEPS_MAX} steps"));
                }
                let falls =
                    steps.windows(2).all(|pair| pair[0].at < pair[1].at && pair[0].price >= pair[1].price);
                let within = steps.iter().all(|step| (0..=price).contains(&step.price));
                (!falls || !within).then(|| {
                    "`pricing.steps` are in the order of their times, and the price only falls".to_owned()
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_linear_price_falls_evenly_and_is_rounded_down() {
        let pricing = Pricing::Linear { floor: 200, starts_at: at(1_000) };
        let price = |now| pricing.price_at(500, at(4_000), at(now));
        assert_eq!(
            [0, 1_000, 1_001, 2_500, 3_999, 4_000, 9_000].map(price),
            [500, 500, 499, 350, 200, 200, 200]
        );
    }

    #[test]
    fn a_step_holds_from_its_very_instant() {
        let steps = vec![Step { at: at(1_000), price: 300 }, Step { at: at(2_000), price: 100 }];
        let pricing = Pricing::Steps { steps };
        let price = |now| pricing.price_at(500, at(4_000), at(now));
        assert_eq!([999, 1_000, 1_999, 2_000, 5_000].map(price), [500, 300, 300, 100, 100]);
    }

    #[test]
    fn prices_that_rise_are_refused() {
        let rising =
            Pricing::Steps { steps: vec![Step { at: at(1), price: 1 }, Step { at: at(2), price: 2 }] };
        assert!(rising.problem(500, at(9)).is_some());
        assert!(Pricing::Linear { floor: 501, starts_at: at(1) }.problem(500, at(9)).is_some());
        assert!(Pricing::Linear { floor: 1, starts_at: at(9) }.problem(500, at(9)).is_some());
        assert!(Pricing::Linear { floor: 1, starts_at: at(1) }.problem(500, at(9)).is_none());
    }
}
