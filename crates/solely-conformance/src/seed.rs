//! Random tests that can be repeated: the seed is printed, and taken from `SOLELY_SEED`.

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// The seed of this run.
pub fn seed() -> u64 {
    let seed = std::env::var("SOLELY_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("seed {seed} (SOLELY_SEED={seed} repeats it)");
    seed
}

/// A runner of so many cases from this run's seed.
pub fn runner(cases: u32) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed().to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}
