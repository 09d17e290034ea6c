//! A configuration: it is refused with a reason, or describes systems that can be put together.

use solely_core::config::Config;
use solely_core::systems::{self, Own};

pub(crate) fn fuzz(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(config) = toml::from_str::<Config>(text) else { return };
    if let Some(problem) = systems::problem(&config, &Own::default()) {
        assert!(!problem.is_empty(), "there is a reason");
    }
}
