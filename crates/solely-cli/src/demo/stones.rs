//! A catalogue of stones that is copied again and again: one run after another, each page once. In every
//! run one page is refused for good, so that a partition fails; whoever watches may retry it, and if
//! nobody does, the run is resumed after a while.

use std::time::Duration;

use serde_json::json;

use super::Town;

/// Stones of the catalogue.
pub(super) const RECORDS: usize = 18_000;
/// How far a run is when a page of it is refused.
const BEFORE_TROUBLE: Duration = Duration::from_millis(700);
/// How long a failed run is left to whoever watches.
const LEFT_ALONE: Duration = Duration::from_secs(20);
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);

pub(super) async fn copied_again_and_again(town: &Town) {
    loop {
        let started = town.post("/v1/runs", json!({"source": "diamonds"})).await;
        if let Some(run) = started.text("runId") {
            until_it_runs(town, &run).await;
            tokio::time::sleep(BEFORE_TROUBLE).await;
            town.beside.stones.sandbox.answer_next(&[400]);
            until_it_has_ended(town, &run).await;
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

async fn status_of(town: &Town, run: &str) -> Option<String> {
    town.get(&format!("/v1/runs/{run}")).await.text("status")
}

async fn until_it_runs(town: &Town, run: &str) {
    while status_of(town, run).await.as_deref() == Some("scheduling") {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A run that failed is resumed unless somebody was quicker.
async fn until_it_has_ended(town: &Town, run: &str) {
    let mut failed_for = Duration::ZERO;
    loop {
        tokio::time::sleep(BETWEEN_LOOKS).await;
        match status_of(town, run).await.as_deref() {
            Some("completed" | "cancelled") | None => return,
            Some("failed") if failed_for >= LEFT_ALONE => {
                town.post(&format!("/v1/runs/{run}/resume"), json!({})).await;
                failed_for = Duration::ZERO;
            }
            Some("failed") => failed_for += BETWEEN_LOOKS,
            Some(_) => failed_for = Duration::ZERO,
        }
    }
}
