//! Entries under torture: written by every process, read through every tier, compared with the
//! store.
//!
//! Each process writes now and then and reads all the time. What a read through the tiers answers is
//! compared with what the store has: it may be older only if it was replaced a moment ago. Whatever
//! is wrong is told to the upstream, which outlives the process.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use solely_core::cache::{Cache, Entry, EntryKey, Lifetimes, Overwrite, PutEntry};
use solely_core::fault::{Guard, Guards};
use solely_core::{Json, Store, Timestamp, limits};

/// Entries that there are.
const KEYS: u32 = 12;
/// Reads between two reports of how many there were.
const REPORT_EVERY: u64 = 20;
/// What is granted beyond the trust: the two reads are not made at the same instant, and processes
/// are held up.
const GRACE: Duration = Duration::from_secs(2);
/// How often an entry that is read is replaced.
const REPLACED: f64 = 0.004;
/// Where copies follow nothing, each entry is replaced once, at this age, and then left alone: an old copy is wrong only of
/// one that has been new for long. Redis is made to keep the first ones until then ([`crate::torture`]).
pub(crate) const REPLACED_AFTER: Duration = Duration::from_secs(9);
/// The number of the first value of an entry.
const FIRST: u64 = 0;

#[derive(Debug, Serialize, Deserialize)]
struct Value {
    key: String,
    n: u64,
}

/// Writes and reads entries for as long as it is let.
pub async fn traffic(store: Arc<dyn Store>, cache: Cache, client: reqwest::Client, upstream: String) {
    let follow = Guards::from_env().hold(Guard::CopiesFollow);
    let mut reads = 0;
    loop {
        let number = rand::rng().random_range(0..KEYS);
        let key = EntryKey::new("torture", format!("entry-{number}"));
        if follow && rand::rng().random_bool(REPLACED) {
            change(&cache, &key, rand::random()).await;
        }
        // A store that is away refuses, clearly; that is no wrong answer.
        if let Ok(answer) = cache.read(vec![key.clone()]).await
            && let Ok(truth) = store.entries(vec![key.clone()]).await
        {
            reads += 1;
            match &truth[0] {
                None => change(&cache, &key, FIRST).await,
                Some(truth) if !follow && is_old(truth) => change(&cache, &key, rand::random()).await,
                Some(_) => {}
            }
            if let Some(wrong) = wrong(&key, answer[0].as_ref(), truth[0].as_ref()) {
                let _ = client.post(format!("{upstream}/violations")).body(wrong).send().await;
            }
        }
        if reads == REPORT_EVERY {
            let told = client.post(format!("{upstream}/reads")).body(reads.to_string()).send().await;
            reads = if told.is_ok() { 0 } else { REPORT_EVERY - 1 };
        }
        let pause = rand::rng().random_range(1..10);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

/// Whether it is an entry's first value, and has been for a while.
fn is_old(entry: &Entry) -> bool {
    let first = entry.value.parse().is_ok_and(|value: Value| value.n == FIRST);
    first && entry.as_of.since(entry.updated_at) >= REPLACED_AFTER
}

async fn change(cache: &Cache, key: &EntryKey, n: u64) {
    let long = Duration::from_secs(3_600);
    let value = Json::of(&Value { key: key.key.clone(), n });
    let entry = PutEntry {
        key: key.clone(),
        value,
        lifetimes: Lifetimes { fresh: long, stale: long, keep: long },
        overwrite: Overwrite::Always,
        told: None,
    };
    // Refused while the store is away.
    let _ = cache.put(vec![entry]).await;
}

/// What is wrong with an answer, seen against what the store had right after it.
fn wrong(key: &EntryKey, answer: Option<&Entry>, truth: Option<&Entry>) -> Option<String> {
    if let Some(answer) = answer {
        let value: Option<Value> = answer.value.parse().ok();
        if value.is_none_or(|value| value.key != key.key) {
            return Some(format!("{}: answered with {:?}", key.key, answer.value));
        }
    }
    let truth = truth?;
    let answered: Timestamp = answer.map_or(Timestamp::from_millis(0), |answer| answer.updated_at);
    let replaced_for = truth.as_of.since(truth.updated_at);
    (answered < truth.updated_at && replaced_for > limits::MEMORY_TRUST + GRACE)
        .then(|| format!("{}: answered as of {answered}, replaced {replaced_for:?} ago", key.key))
}
