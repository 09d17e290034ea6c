//! The heatmap: where to cut a range of prices so that the pieces hold about as many records each.
//!
//! Pure. The planner asks for counts of ranges ([`Planner::probes`]), is told them
//! ([`Planner::learn`]), and knows the cumulated count at more and more prices. It looks for a
//! price near each of the wanted cuts (a fraction of all records), by interpolation and halving in
//! turn, all cuts at once, until each is within a quarter of a piece, falls on a single price that
//! cannot be cut, or there have been as many counts as there may be.
//!
//! Then it cuts at prices it knows, by the best way there is: the least largest piece. The pieces
//! are disjoint and cover the range whatever the counts said, so a count that is wrong or that
//! changes meanwhile costs balance and never a record.

use std::collections::BTreeMap;

use super::{NewPartition, PriceRange};

/// Plans the partitions of one run.
#[derive(Clone, Debug)]
pub struct Planner {
    range: PriceRange,
    max_partitions: u64,
    min_records: u64,
    /// Records up to a price, the price included.
    known: BTreeMap<i64, u64>,
    asked: Vec<PriceRange>,
    calls: usize,
    halve: bool,
}

impl Planner {
    /// Plans for a range of prices.
    pub fn new(range: PriceRange, max_partitions: usize, min_records: u64) -> Self {
        Self {
            range,
            max_partitions: (max_partitions as u64).max(1),
            min_records: min_records.max(1),
            known: BTreeMap::from([(range.min - 1, 0)]),
            asked: Vec::new(),
            calls: 0,
            halve: false,
        }
    }

    /// Ranges whose records are to be counted next, disjoint and in order. None: it is planned.
    pub fn probes(&mut self) -> Vec<PriceRange> {
        self.asked = match self.known.get(&self.range.max) {
            None => vec![self.range],
            Some(&total) => self.cuts_to_look_for(total),
        };
        self.calls += self.asked.len();
        self.asked.clone()
    }

    /// The counts of what was asked for, in the same order.
    pub fn learn(&mut self, counts: &[u64]) {
        for (range, count) in std::mem::take(&mut self.asked).into_iter().zip(counts) {
            let below = self.known.range(..range.min).next_back().map_or(0, |(_, &records)| records);
            let above = self.known.range(range.max + 1..).next().map_or(u64::MAX, |(_, &records)| records);
            // Records that come and go meanwhile must not make a sum shrink.
            self.known.insert(range.max, below.saturating_add(*count).min(above));
        }
        self.halve = !self.halve;
    }

    /// How many counts it may ask for in all.
    pub fn calls_max(&self) -> usize {
        32 + 24 * usize::try_from(self.max_partitions).unwrap_or(usize::MAX / 32)
    }

    fn pieces(&self, total: u64) -> u64 {
        total.div_ceil(self.min_records).clamp(1, self.max_partitions)
    }

    /// One probe for each cut that is not found yet, each between two known prices.
    fn cuts_to_look_for(&self, total: u64) -> Vec<PriceRange> {
        let pieces = self.pieces(total);
        let mut prices: Vec<i64> =
            (1..pieces).filter_map(|cut| self.look_for(wanted(total, cut, pieces), total, pieces)).collect();
        prices.dedup();
        prices.truncate(self.calls_max().saturating_sub(self.calls));
        let mut ranges: Vec<PriceRange> = Vec::with_capacity(prices.len());
        for price in prices {
            let known = self.known.range(..price).next_back().map_or(self.range.min - 1, |(&known, _)| known);
            let below = ranges.last().map_or(known, |last| last.max.max(known));
            ranges.push(PriceRange { min: below + 1, max: price });
        }
        ranges
    }

    /// A price to look at for this many records below it. None if a known one is near enough, or
    /// there is none in between.
    fn look_for(&self, records: u64, total: u64, pieces: u64) -> Option<i64> {
        let near = total / pieces / 4;
        // The last price with no more records than wanted, and the first with more.
        let (&below, &fewer) = self.known.iter().rev().find(|(_, known)| **known <= records)?;
        let (&above, &more) = self.known.range(below + 1..).next()?;
        if records - fewer <= near || more - records <= near || above - below <= 1 {
            return None;
        }
        let (width, share) = (i128::from(above) - i128::from(below), i128::from(records - fewer));
        let guess = if self.halve { width / 2 } else { width * share / i128::from((more - fewer).max(1)) };
        Some(below + i64::try_from(guess.clamp(1, width - 1)).unwrap_or(1))
    }

    /// The partitions, named `partition-1` and so on.
    pub fn partitions(&self) -> Vec<NewPartition> {
        let total = self.known.get(&self.range.max).copied().unwrap_or(0);
        let segments = self.segments(total);
        let pieces = usize::try_from(self.pieces(total)).unwrap_or(1);
        // The least size with which so many pieces suffice.
        let heaviest = segments.iter().map(|(_, records)| *records).max().unwrap_or(0);
        let (mut too_small, mut enough) =
            (heaviest.max(total.div_ceil(pieces as u64)).wrapping_sub(1), total);
        if cut(&segments, too_small.wrapping_add(1)).len() <= pieces {
            enough = too_small.wrapping_add(1);
        }
        while enough.saturating_sub(too_small) > 1 && too_small < enough {
            let middle = too_small + (enough - too_small) / 2;
            if cut(&segments, middle).len() <= pieces { enough = middle } else { too_small = middle }
        }
        let mut min = self.range.min;
        let named = (1..).zip(cut(&segments, enough)).map(|(place, (max, records))| {
            let range = PriceRange { min, max };
            min = max + 1;
            NewPartition { id: format!("partition-{place}"), range, total: Some(records) }
        });
        named.collect()
    }

    /// The records between two neighbouring known prices, with the upper of them.
    fn segments(&self, total: u64) -> Vec<(i64, u64)> {
        let mut segments = Vec::with_capacity(self.known.len());
        let mut below = 0;
        for (&price, &records) in self.known.range(self.range.min..=self.range.max) {
            segments.push((price, records.saturating_sub(below)));
            below = records;
        }
        if segments.is_empty() {
            segments.push((self.range.max, total));
        }
        segments
    }
}

fn wanted(total: u64, cut: u64, pieces: u64) -> u64 {
    let records = u128::from(total) * u128::from(cut) / u128::from(pieces);
    u64::try_from(records).unwrap_or(total)
}

/// Neighbouring segments, taken together while they hold no more than this.
fn cut(segments: &[(i64, u64)], most: u64) -> Vec<(i64, u64)> {
    let mut pieces: Vec<(i64, u64)> = Vec::new();
    for &(price, records) in segments {
        match pieces.last_mut() {
            Some(piece) if piece.1.saturating_add(records) <= most => {
                *piece = (price, piece.1 + records);
            }
            _ => pieces.push((price, records)),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Plans for records of these prices, as many of each as it says.
    fn plan(
        range: PriceRange,
        prices: &BTreeMap<i64, u64>,
        most: usize,
        least: u64,
    ) -> (Planner, Vec<NewPartition>) {
        let mut planner = Planner::new(range, most, least);
        loop {
            let probes = planner.probes();
            if probes.is_empty() {
                break;
            }
            for pair in probes.windows(2) {
                assert!(pair[0].max < pair[1].min, "probes are disjoint and in order");
            }
            let counts: Vec<u64> = probes.iter().map(|probe| count(prices, *probe)).collect();
            planner.learn(&counts);
        }
        let partitions = planner.partitions();
        (planner, partitions)
    }

    fn count(prices: &BTreeMap<i64, u64>, range: PriceRange) -> u64 {
        prices.range(range.min..=range.max).map(|(_, records)| records).sum()
    }

    fn assert_whole(range: PriceRange, partitions: &[NewPartition]) {
        let mut next = range.min;
        for partition in partitions {
            assert_eq!(partition.range.min, next, "disjoint, and nothing between them");
            assert!(partition.range.min <= partition.range.max);
            next = partition.range.max + 1;
        }
        assert_eq!(next, range.max + 1, "up to the end");
    }

    fn largest(partitions: &[NewPartition]) -> u64 {
        partitions.iter().filter_map(|partition| partition.total).max().unwrap_or(0)
    }

    const DOLLARS: PriceRange = PriceRange { min: 0, max: 250_000 };

    #[test]
    fn no_records_are_one_partition_of_everything() {
        let (planner, partitions) = plan(DOLLARS, &BTreeMap::new(), 30, 1_000);
        assert_whole(DOLLARS, &partitions);
        assert_eq!((partitions.len(), planner.calls), (1, 1));
    }

    #[test]
    fn one_record_is_one_partition() {
        let (_, partitions) = plan(DOLLARS, &BTreeMap::from([(250_000, 1)]), 30, 1_000);
        assert_whole(DOLLARS, &partitions);
        assert_eq!(partitions.len(), 1);
    }

    #[test]
    fn prices_that_are_all_equal_cannot_be_cut() {
        for price in [0, 777, 250_000] {
            let (planner, partitions) = plan(DOLLARS, &BTreeMap::from([(price, 1_000_000)]), 30, 1_000);
            assert_whole(DOLLARS, &partitions);
            assert_eq!(largest(&partitions), 1_000_000);
            assert!(planner.calls <= 120, "{} counts", planner.calls);
        }
    }

    #[test]
    fn ten_million_records_are_cut_evenly_with_few_counts() {
        // Most of them cheap, as stones are.
        let prices: BTreeMap<i64, u64> = (0..250_000_i64)
            .map(|price| (price, (40_000_000 / (price.cast_unsigned() + 400)).min(20_000)))
            .collect();
        let total: u64 = prices.values().sum();
        assert!(total > 10_000_000, "{total}");
        let (planner, partitions) = plan(DOLLARS, &prices, 30, 1_000);
        assert_whole(DOLLARS, &partitions);
        assert_eq!(partitions.len(), 30);
        assert!(largest(&partitions) * 30 <= total * 3 / 2, "{} of {total}", largest(&partitions));
        assert!(planner.calls <= 200, "{} counts", planner.calls);
    }

    proptest! {
        #[test]
        fn partitions_are_disjoint_cover_all_and_are_even(
            min in -1_000_i64..1_000, width in 0_i64..50_000,
            found in prop::collection::btree_map(0_i64..50_000, 1_u64..3_000, 0..80),
            most in 1_usize..40, least in 1_u64..2_000,
        ) {
            let range = PriceRange { min, max: min + width };
            let prices: BTreeMap<i64, u64> = found.into_iter()
                .map(|(price, records)| (min + price % (width + 1), records)).collect();
            let (planner, partitions) = plan(range, &prices, most, least);
            assert_whole(range, &partitions);
            prop_assert!(partitions.len() <= most);
            prop_assert!(planner.calls <= planner.calls_max());
            let total: u64 = prices.values().sum();
            for partition in &partitions {
                prop_assert_eq!(partition.total, Some(count(&prices, partition.range)));
            }
            prop_assert_eq!(partitions.iter().filter_map(|partition| partition.total).sum::<u64>(), total);
            let pieces = planner.pieces(total);
            let (target, heaviest) = (total.div_ceil(pieces), prices.values().copied().max().unwrap_or(0));
            // A price cannot be cut in two. Where none is too heavy, no piece is either.
            let allowed = if heaviest * 2 <= target { target * 3 / 2 + 2 } else { target + heaviest };
            prop_assert!(largest(&partitions) <= allowed, "{} > {allowed}", largest(&partitions));
        }

        /// Counts that change while it plans cost balance, never a record.
        #[test]
        fn counts_that_lie_leave_nothing_out(counts in prop::collection::vec(0_u64..1_000_000, 1..400)) {
            let mut planner = Planner::new(DOLLARS, 30, 100);
            let mut lies = counts.iter().cycle();
            let mut calls = 0;
            loop {
                let probes = planner.probes();
                if probes.is_empty() {
                    break;
                }
                calls += probes.len();
                let counts: Vec<u64> = probes.iter().filter_map(|_| lies.next().copied()).collect();
                planner.learn(&counts);
            }
            prop_assert!(calls <= planner.calls_max());
            assert_whole(DOLLARS, &planner.partitions());
        }
    }
}
