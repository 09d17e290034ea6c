//! Places under torture: every process asks for links and listens to what others asked for.
//!
//! A few places are new every second, and every process asks for them at about the same time. Whoever is
//! told PENDING says so to the upstream, which outlives the process; some process, often another, then
//! listens to that request until it has heard of every place. One that nobody ever hears of is a
//! violation, and so is a place that is looked up more often than crashes and pauses explain.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use solely_core::config::{EnrichConfig, ProviderConfig, Span};
use solely_core::enrich::{
    Asker, Enrich, EnrichParts, Listens, PlaceRef, Provider, State, Subscribed, Wanted,
};
use solely_core::fault::{Guard, Guards};
use solely_core::upstream::http::{HttpClient, Tls};
use tokio::sync::mpsc;

/// Places that are new every second.
const NEW_A_SECOND: i64 = 8;
/// Places of one request.
const OF_A_REQUEST: usize = 3;
/// Lookups of one process at once.
pub const CONCURRENCY: usize = 4;
/// How long a listener waits: longer than a lookup may take, and the worst that is done to it.
const PATIENCE: Duration = Duration::from_secs(90);
/// The same where someone is known to wait in vain.
const LITTLE_PATIENCE: Duration = Duration::from_secs(6);

/// A request that waits, as the upstream knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Waiting {
    /// Its id.
    pub request: String,
    /// What it waits for.
    pub places: BTreeSet<String>,
}

/// How the places of a torture are looked up.
pub fn config(upstream: &str) -> EnrichConfig {
    let seconds = |seconds| Span(Duration::from_secs(seconds));
    let wolt = ProviderConfig {
        enabled: true,
        url: format!("{upstream}/finder"),
        max_attempts: 20,
        deadline: seconds(40),
        lock_ttl: seconds(1),
        timeout: seconds(5),
        concurrency: CONCURRENCY,
        ..ProviderConfig::default()
    };
    EnrichConfig { providers: [("wolt".to_owned(), wolt)].into(), ..EnrichConfig::default() }
}

/// enrich of a process under torture.
pub fn enrich(parts: EnrichParts, upstream: &str) -> Result<Enrich, reqwest::Error> {
    let (config, client) = (config(upstream), HttpClient::new(Tls::Nobody)?);
    let (ttl, store) = (config.request_ttl.0, parts.jobs.store().clone());
    let provider = |(name, provider): (&String, &ProviderConfig)| {
        Provider::configured(name, provider, ttl, &client, &store)
    };
    let providers = config.providers.iter().map(provider).collect();
    Ok(Enrich::new(parts, &config, providers))
}

/// Asks and listens for as long as it is let.
pub async fn traffic(enrich: Enrich, client: reqwest::Client, upstream: String) {
    let listening = (0..8).map(|_| listen(&enrich, &client, &upstream));
    tokio::join!(ask(&enrich, &client, &upstream), futures::future::join_all(listening));
}

async fn ask(enrich: &Enrich, client: &reqwest::Client, upstream: &str) {
    let provider = enrich.provider("wolt").expect("is configured").clone();
    loop {
        let newest = crate::seconds() * NEW_A_SECOND;
        let names: BTreeSet<String> = (0..OF_A_REQUEST)
            .map(|_| format!("place-{}", newest - rand::rng().random_range(0..2 * NEW_A_SECOND)))
            .collect();
        let places: Vec<PlaceRef<'_>> =
            names.iter().map(|id| PlaceRef { place_id: id, name: id, address: None }).collect();
        let from = Asker { request_id: solely_core::JobId::new().to_string(), trace: None };
        let wanted = Wanted { providers: std::slice::from_ref(&provider), places: &places, city: None };
        // A store that is away refuses, clearly; then nobody was promised anything.
        if let Ok(answered) = enrich.ask(&from, &wanted).await {
            let waits = |(name, state): (&String, &State)| (*state == State::Pending).then(|| name.clone());
            let places: BTreeSet<String> = names.iter().zip(&answered.states[0]).filter_map(waits).collect();
            if !places.is_empty() {
                let waiting = Waiting { request: from.request_id, places };
                let _ = client.post(format!("{upstream}/waiting")).json(&waiting).send().await;
            }
        }
        let pause = rand::rng().random_range(10..60);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

/// Takes messages as they come.
struct Ears(mpsc::UnboundedSender<String>);

impl Listens for Ears {
    fn push(&self, message: String) -> bool {
        self.0.send(message).is_ok()
    }

    fn end(&self) {}
}

async fn listen(enrich: &Enrich, client: &reqwest::Client, upstream: &str) {
    let replay = Guards::from_env().hold(Guard::Replay);
    let patience = if replay { PATIENCE } else { LITTLE_PATIENCE };
    loop {
        let pause = rand::rng().random_range(5..200);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let Ok(answer) = client.post(format!("{upstream}/listen")).send().await else { continue };
        let Ok(waiting) = answer.json::<Waiting>().await else { continue };
        let (sender, mut heard) = mpsc::unbounded_channel();
        let acknowledge = |Subscribed { .. }| "{}".to_owned();
        // Should the store be away, another listens to it later.
        let Ok(_subscription) = enrich.subscribe(&waiting.request, Arc::new(Ears(sender)), acknowledge).await
        else {
            continue;
        };
        let mut left = waiting.places.clone();
        let hearing = async {
            while let Some(message) = (!left.is_empty()).then_some(heard.recv()) {
                let Some(message) = message.await else { return };
                let message: serde_json::Value = serde_json::from_str(&message).unwrap_or_default();
                left.remove(message["placeId"].as_str().unwrap_or_default());
            }
        };
        let _ = tokio::time::timeout(patience, hearing).await;
        if left.is_empty() {
            let _ = client.post(format!("{upstream}/heard")).body(waiting.request).send().await;
        } else {
            let wrong = format!("{}: never hears of {left:?}", waiting.request);
            let _ = client.post(format!("{upstream}/violations")).body(wrong).send().await;
        }
    }
}
