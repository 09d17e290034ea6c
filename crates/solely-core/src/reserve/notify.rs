//! Notifications: what becomes of reservations, delivered by webhook, signed, in order per reservation.
//!
//! The event that tells of a change is written in the transaction of the change, and is the notification: it is due
//! for delivery until it is taken out of the outbox, and stays in the timeline. In the same transaction a job is made
//! for its reservation, a trigger: one that comes while the job runs makes it run once more. The job delivers what is
//! due for its reservation, oldest first, and stops at the first that is not taken. Jobs of other reservations do not
//! wait for it.
//!
//! **If it dies**: after the receiver took a message and before that is written, it is delivered once more, under the
//! same `webhook-id`. A receiver that fails for long makes its jobs dead letters; what is due stays due, and the next
//! change of the reservation, or a redrive, delivers it in its order.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use data_encoding::BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::ReservationFilter;
use super::decide::subject_of;
use super::model::{PaymentStatus, Reservation, ReservationStatus};
use crate::clock::{Clock, Timestamp};
use crate::commit::Effect;
use crate::config::ReserveConfig;
use crate::event::Event;
use crate::id::ReservationId;
use crate::job::{NewJob, OnRunning};
use crate::json::Json;
use crate::metrics::Metrics;
use crate::store::Store;
use crate::upstream::http::{Ask, HttpClient};
use crate::upstream::{CallFailed, UpstreamError};
use crate::worker::{Backoff, Delivery, Done, Failure, Handler, QueueSpec};

/// The queue of deliveries.
pub const QUEUE: &str = "notifications";

/// Events of one reservation that one delivery takes.
const AT_ONCE: u32 = 32;
/// Deliveries before a job is a dead letter: for some ten minutes.
const ATTEMPTS: u32 = 24;
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), longest: Duration::from_secs(30) };
/// How long a receiver may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Deliveries under way at once in this process.
const CONCURRENCY: usize = 16;
/// How long a delivery waits whose predecessor was not taken, or while the store is away.
const NEXT: Duration = Duration::from_secs(1);
/// The longest that a receiver's `Retry-After` is believed.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// What an event keeps of a reservation: what changes, and what the timeline shows. The rest is in its row.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Snapshot<'a> {
    #[serde(borrow)]
    user_id: Cow<'a, str>,
    quantity: u32,
    status: ReservationStatus,
    payment_status: PaymentStatus,
    #[serde(default)]
    reserved_at: Option<Timestamp>,
    expires_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    completed_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancelled_at: Option<Timestamp>,
}

impl<'a> Snapshot<'a> {
    pub(super) fn of(reservation: &'a Reservation) -> Self {
        Self {
            user_id: Cow::Borrowed(&reservation.user_id),
            quantity: reservation.quantity,
            status: reservation.status,
            payment_status: reservation.payment_status,
            reserved_at: Some(reservation.reserved_at),
            expires_at: reservation.expires_at,
            completed_at: reservation.completed_at,
            cancelled_at: reservation.cancelled_at,
        }
    }
}

/// What is told of a change.
#[derive(Serialize)]
struct Notice<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    timestamp: Timestamp,
    data: Reservation,
}

/// What an event says of a reservation, as it was then; none if it tells of no change.
pub(super) fn notice(event: &Event, row: &Reservation) -> Option<String> {
    let kind = kind(&event.told.event).filter(|_| event.told.outcome.as_deref() == Some("done"))?;
    let then: Snapshot<'_> = serde_json::from_str(event.told.details.as_str()).ok()?;
    let data = Reservation {
        status: then.status,
        payment_status: then.payment_status,
        reserved_at: then.reserved_at.unwrap_or(row.reserved_at),
        expires_at: then.expires_at,
        completed_at: then.completed_at,
        cancelled_at: then.cancelled_at,
        ..row.clone()
    };
    serde_json::to_string(&Notice { kind, timestamp: event.at, data }).ok()
}

fn kind(event: &str) -> Option<&'static str> {
    Some(match event {
        "reserve" => "reservation.reserved",
        "confirm" => "reservation.confirmed",
        "extend" => "reservation.extended",
        "cancel" => "reservation.cancelled",
        "collect" => "reservation.collected",
        "expire" => "reservation.expired",
        "offer" => "reservation.offered",
        "accept" => "reservation.accepted",
        _ => return None,
    })
}

/// The job that delivers what is due for a reservation.
pub(super) fn job(id: ReservationId) -> NewJob {
    NewJob {
        kind: "notification".to_owned(),
        attributes: Json::of(&serde_json::json!({"reservationId": id})),
        max_attempts: ATTEMPTS,
        on_running: OnRunning::RunAgain,
        ..NewJob::new(QUEUE, id.to_string())
    }
}

/// Signs by the rules of Standard Webhooks.
#[derive(Clone)]
pub struct Signer(Vec<u8>);

impl Signer {
    /// With a secret: `whsec_` and base64, or base64 alone, or what is neither, as it is.
    pub fn new(secret: &str) -> Option<Self> {
        match secret.strip_prefix("whsec_") {
            Some(encoded) => BASE64.decode(encoded.as_bytes()).ok().map(Self),
            None => {
                Some(Self(BASE64.decode(secret.as_bytes()).unwrap_or_else(|_| secret.as_bytes().to_vec())))
            }
        }
    }

    /// The value of `webhook-signature`.
    fn sign(&self, id: &str, timestamp: i64, body: &str) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key may have any length");
        mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
        format!("v1,{}", BASE64.encode(&mac.finalize().into_bytes()))
    }
}

/// Where notifications go.
pub(super) struct Webhook {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    client: HttpClient,
    url: String,
    signer: Option<Signer>,
}

impl Webhook {
    /// As it is configured; none if notifications go nowhere.
    pub(super) fn configured(
        store: &Arc<dyn Store>,
        metrics: &Arc<Metrics>,
        client: Option<&HttpClient>,
        config: &ReserveConfig,
    ) -> Option<Arc<Self>> {
        if config.webhook_url.is_empty() {
            return None;
        }
        let signer = Some(&config.webhook_secret).filter(|secret| !secret.is_empty());
        Some(Arc::new(Self {
            store: store.clone(),
            metrics: metrics.clone(),
            client: client?.clone(),
            url: config.webhook_url.clone(),
            signer: signer.and_then(|secret| Signer::new(secret)),
        }))
    }

    /// Its queue.
    pub(super) fn queue(self: &Arc<Self>) -> QueueSpec {
        QueueSpec {
            concurrency: CONCURRENCY,
            // As many as one delivery takes, each as slow as it may be.
            deadline: TIMEOUT * (AT_ONCE + 1),
            backoff: BACKOFF,
            ..QueueSpec::new(QUEUE, Arc::new(Deliveries(self.clone())))
        }
    }

    async fn post(&self, event: &Event, body: String) -> Result<(), CallFailed<UpstreamError>> {
        let id = format!("msg_{}", event.id.0);
        let now = Clock::system().now().as_millis() / 1_000;
        let mut headers = vec![("webhook-id", id.clone()), ("webhook-timestamp", now.to_string())];
        if let Some(signer) = &self.signer {
            headers.push(("webhook-signature", signer.sign(&id, now, &body)));
        }
        let ask = Ask { headers: &headers, ..Ask::default() };
        let sent = tokio::time::timeout(TIMEOUT, self.client.post_text(&self.url, &ask, body)).await;
        let outcome = match sent {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(failed)) => Err(failed),
            Err(_) => {
                let error = UpstreamError::Transient("the receiver did not answer in time".to_owned());
                Err(CallFailed { error, blame: true, retry_after: None })
            }
        };
        self.metrics.reserve.notified(if outcome.is_ok() { "delivered" } else { "failed" });
        outcome
    }
}

struct Deliveries(Arc<Webhook>);

#[async_trait]
impl Handler for Deliveries {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let key = &delivery.job.key;
        let id: ReservationId =
            key.parse().map_err(|_| Failure::permanent("the key is no reservation's id"))?;
        let away =
            |error: crate::error::StoreError| Failure::Postponed { delay: NEXT, error: error.to_string() };
        let due = self.0.store.outbox(subject_of(id), AT_ONCE).await.map_err(away)?;
        if due.is_empty() {
            return Ok(Done::default());
        }
        let filter = ReservationFilter { id: Some(id), limit: 1, ..ReservationFilter::default() };
        let row = self.0.store.reservations(filter).await.map_err(away)?.into_iter().next();
        let (mut delivered, mut failed) = (Vec::new(), None);
        for event in &due {
            // What tells of no change is nothing to deliver.
            if let Some(body) = row.as_ref().and_then(|row| notice(event, row))
                && let Err(error) = self.0.post(event, body).await
            {
                failed = Some(error);
                break;
            }
            delivered.push(event.id);
            if delivery.stopping.is_cancelled() {
                break;
            }
        }
        match failed {
            Some(failed) if delivered.is_empty() => Err(failure(failed)),
            failed => {
                // The rest in its turn; what was taken is not sent again.
                let whole = delivered.len() == due.len() && due.len() < AT_ONCE as usize;
                let delay = if failed.is_some() { NEXT } else { Duration::ZERO };
                let next_jobs = if whole { Vec::new() } else { vec![NewJob { delay, ..job(id) }] };
                Ok(Done { effect: Effect::Delivered(delivered), next_jobs, ..Done::default() })
            }
        }
    }
}

/// Whatever a receiver answers may be otherwise later; how long it asks to be left alone is heeded.
fn failure(failed: CallFailed<UpstreamError>) -> Failure {
    match (failed.error, failed.retry_after) {
        (UpstreamError::Throttled(error), Some(pause)) => {
            Failure::Postponed { delay: pause.clamp(NEXT, PAUSE_MAX), error }
        }
        (error, _) => Failure::transient(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification.
    #[test]
    fn a_signature_is_the_one_of_the_specification() {
        let signer = Signer::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a secret");
        let signature = signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_that_is_no_base64_behind_its_prefix_is_none() {
        assert!(Signer::new("whsec_***").is_none());
        assert!(Signer::new("plain words").is_some());
    }
}
