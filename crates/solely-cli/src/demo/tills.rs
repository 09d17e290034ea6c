//! Tills that must not be opened by two at once, and a report that only one may write: leases, held for a
//! while, renewed, given back, and waited for.

use std::time::Duration;

use serde_json::json;

use super::{Town, between};

const CLERKS: [&str; 3] = ["clerk-ida", "clerk-jon", "clerk-kim"];

pub(super) async fn shifts(town: &Town) {
    tokio::join!(
        shift(town, CLERKS[0], &["till:1", "drawer:1"]),
        shift(town, CLERKS[1], &["till:2"]),
        shift(town, CLERKS[2], &["report:today"]),
        shift(town, CLERKS[0], &["report:today"]),
    );
}

/// Takes what it needs, waiting for it; works; gives it back.
async fn shift(town: &Town, owner: &str, keys: &[&str]) {
    loop {
        let asked = json!({"keys": keys, "owner": owner, "ttlMs": 20_000, "waitMs": 20_000});
        let lease = town.post("/v1/leases", asked).await;
        if let Some(id) = lease.text("leaseId") {
            tokio::time::sleep(between(6_000, 14_000)).await;
            town.ask(reqwest::Method::PUT, &format!("/v1/leases/{id}"), Some(json!({"ttlMs": 20_000}))).await;
            tokio::time::sleep(between(2_000, 6_000)).await;
            town.ask(reqwest::Method::DELETE, &format!("/v1/leases/{id}"), None).await;
        }
        tokio::time::sleep(between(300, 1_200) + Duration::from_millis(200)).await;
    }
}
