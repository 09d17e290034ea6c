//! Random tests that can be repeated.

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// A runner of so many cases from this run's seed.
pub(crate) fn runner(cases: u32) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&solely_testing::seed().to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}
