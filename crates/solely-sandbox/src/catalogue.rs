//! Stones with prices: what the sources of feeds have.

use std::fmt::Write as _;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// One stone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stone {
    /// Its id.
    pub id: String,
    /// In cents.
    pub cents: i64,
    /// Its place in the order in which they were made.
    pub made: u64,
    /// When it last changed, in milliseconds since 1970.
    pub updated_ms: i64,
    /// How often it changed.
    pub version: u32,
}

const HEX: &[u8; 16] = b"0123456789abcdef";

impl Stone {
    /// In whole dollars.
    pub fn dollars(&self) -> i64 {
        self.cents.div_euclid(100)
    }

    /// As the plain source says it: about `size` bytes of JSON.
    pub fn json(&self, size: usize) -> String {
        let mut text = String::with_capacity(size + 160);
        let _ = write!(
            text,
            r#"{{"id":"{}","price":{},"version":{},"carats":{}.{:02},"shape":"{}","note":""#,
            self.id,
            self.dollars(),
            self.version,
            self.made % 5,
            self.made % 97,
            ["ROUND", "OVAL", "PEAR", "CUSHION"][usize::try_from(self.made % 4).unwrap_or(0)],
        );
        let mut number = self.made.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(self.version);
        while text.len() + 18 < size {
            // By hand: a source that takes long to write its records would be measured with what copies them.
            text.extend(
                (0..16)
                    .rev()
                    .map(|nibble| char::from(HEX[usize::try_from(number >> (4 * nibble) & 15).unwrap_or(0)])),
            );
            number = number.rotate_left(23).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ 0x94d0_49bb;
        }
        text.push_str(r#""}"#);
        text
    }
}

/// Stones in the order of their prices, and of one price in the order in which they were made.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    stones: Vec<Stone>,
    made: u64,
    /// Bytes of a record.
    pub record_bytes: usize,
}

impl Catalogue {
    /// So many stones, most of them cheap, all below 250,000 dollars.
    pub fn of(count: usize, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut catalogue = Self { record_bytes: 300, ..Self::default() };
        let mut stones: Vec<Stone> = (0..count)
            .map(|_| {
                // Evenly on a scale of powers: as many between 100 and 1,000 as up to 10,000.
                let dollars = 10_f64.powf(rng.random_range(2.0..5.39));
                #[expect(clippy::cast_possible_truncation, reason = "below 250,000 dollars")]
                catalogue.make((dollars * 100.0) as i64, 0)
            })
            .collect();
        stones.sort_by_key(|stone| (stone.dollars(), stone.made));
        catalogue.stones = stones;
        catalogue
    }

    fn make(&mut self, cents: i64, updated_ms: i64) -> Stone {
        self.made += 1;
        let made = self.made;
        Stone { id: format!("stone-{made:08}"), cents, made, updated_ms, version: 1 }
    }

    /// All of them.
    pub fn stones(&self) -> &[Stone] {
        &self.stones
    }

    /// Adds one.
    pub fn add(&mut self, cents: i64, updated_ms: i64) -> Stone {
        let stone = self.make(cents, updated_ms);
        self.put(stone.clone());
        stone
    }

    fn put(&mut self, stone: Stone) {
        let place = self
            .stones
            .partition_point(|other| (other.dollars(), other.made) < (stone.dollars(), stone.made));
        self.stones.insert(place, stone);
    }

    /// Takes one away by its place.
    pub fn remove(&mut self, place: usize) -> Stone {
        self.stones.remove(place)
    }

    /// Changes one by its place, and its price with it if there is another.
    pub fn change(&mut self, place: usize, cents: Option<i64>, updated_ms: i64) -> Stone {
        let mut stone = self.stones.remove(place);
        stone.version += 1;
        stone.updated_ms = updated_ms;
        stone.cents = cents.unwrap_or(stone.cents);
        self.put(stone.clone());
        stone
    }

    /// Those of these prices in whole dollars, both included.
    pub fn within(&self, min: i64, max: i64) -> &[Stone] {
        let from = self.stones.partition_point(|stone| stone.dollars() < min);
        let to = self.stones.partition_point(|stone| stone.dollars() <= max);
        &self.stones[from..to.max(from)]
    }
}
