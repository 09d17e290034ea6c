//! What `solely check` reads and says.

use async_trait::async_trait;
use serde::Serialize;

use crate::error::StoreError;

/// One broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Violation {
    /// Which rule.
    pub rule: String,
    /// Which row breaks it.
    pub subject: String,
    /// How.
    pub message: String,
}

/// What a check counted and found.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    /// Rows looked at, by kind.
    pub counted: Vec<(String, u64)>,
    /// Broken promises; at most [`CheckReport::VIOLATIONS_MAX`] of each rule.
    pub violations: Vec<Violation>,
}

impl CheckReport {
    /// Violations listed per rule.
    pub const VIOLATIONS_MAX: u32 = 100;
}

/// Verification of a store's rows.
#[async_trait]
pub trait CheckStore: Send + Sync {
    /// Reads the store in one snapshot and verifies what is promised of its rows.
    async fn check(&self) -> Result<CheckReport, StoreError>;
}
