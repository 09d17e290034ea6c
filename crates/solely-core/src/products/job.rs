//! The refresh: a catalogue that is stale is brought anew, once, by a flight like any other.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::flight::{Outcome, Why};
use super::plugin::PluginCall;
use super::system::Inner;
use crate::cache::EntryKey;
use crate::worker::{Delivery, Done, Failure, Handler};

/// What a refresh needs. It holds the token, and is dropped when it is done.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Refresh {
    pub(super) app: String,
    pub(super) key: String,
    /// The version of what was stale.
    pub(super) version: u64,
    pub(super) operation: String,
    pub(super) token: Map<String, Value>,
    pub(super) payload: Map<String, Value>,
    pub(super) user_id: String,
    pub(super) hint: Option<String>,
    pub(super) request_id: String,
}

/// Works refreshes.
pub(super) struct Refreshes {
    pub(super) inner: Arc<Inner>,
}

#[async_trait]
impl Handler for Refreshes {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let job = &delivery.job;
        let refresh: Refresh = job
            .payload
            .parse()
            .map_err(|error| Failure::permanent(format!("the refresh cannot be read: {error}")))?;
        let Some(app) = self.inner.apps.get(&refresh.app) else {
            return Err(Failure::permanent(format!("there is no plugin {}", refresh.app)));
        };
        let key = EntryKey::new(format!("products:{}", refresh.app), refresh.key);
        let found = self.inner.jobs.store().entries(vec![key.clone()]).await;
        let found = found.map_err(|error| Failure::transient(error.to_string()))?;
        if found.into_iter().flatten().any(|entry| entry.version > refresh.version) {
            return Ok(Done::default());
        }
        let call = PluginCall {
            operation: refresh.operation,
            token: refresh.token,
            payload: refresh.payload,
            user_id: refresh.user_id,
            hint: refresh.hint,
            request_id: refresh.request_id,
            trace: job.trace.clone(),
        };
        let mut landing = self.inner.fly(app, &key, call, Why::Anew);
        let outcome = landing.wait_for(Option::is_some).await.ok().and_then(|landed| landed.clone());
        match outcome {
            // Told by the flight. After a failure the key is left alone for its backoff; then whoever finds it stale
            // queues another.
            Some(Outcome::Cached(_) | Outcome::Kept { .. } | Outcome::Failed(_)) => Ok(Done::default()),
            Some(Outcome::Store(error)) => Err(Failure::transient(error.to_string())),
            Some(Outcome::Lost) | None => Err(Failure::transient("the call was lost")),
        }
    }
}
