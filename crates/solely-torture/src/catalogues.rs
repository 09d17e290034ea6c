//! Catalogues under torture: every process searches for the products of the same users.
//!
//! A few users are new every second, and several tasks of every process search for them at about the same time:
//! that is one call of the plugin, and one more for each crash or pause that met it. Some users are old and
//! always stale: theirs are refreshed behind their answers. Whoever is answered with the products of another
//! user reports it.

use std::time::Duration;

use rand::RngExt as _;
use solely_core::config::{PluginConfig, Span};
use solely_core::metrics::Metrics;
use solely_core::products::{App, Products, ProductsParts, Search};
use solely_core::upstream::http::{HttpClient, Tls};

/// Users that are new every second.
const NEW_A_SECOND: i64 = 2;
/// Users whose products are always stale.
const STALE: i64 = 4;
/// Searches of one process at once.
pub const SEARCHES: usize = 4;

/// products of a process under torture.
pub fn products(parts: ProductsParts, metrics: &Metrics, upstream: &str) -> Result<Products, reqwest::Error> {
    let seconds = |seconds| Span(Duration::from_secs(seconds));
    let config = PluginConfig {
        url: format!("{upstream}/plugin"),
        lock_ttl: seconds(1),
        job_lock_ttl: seconds(1),
        timeout: seconds(5),
        failure_backoff: seconds(1),
        ..PluginConfig::default()
    };
    let client = HttpClient::new(Tls::Nobody)?;
    let app = App::configured("tours", &config, &client, parts.jobs.store(), metrics);
    Ok(Products::new(parts, vec![app]))
}

/// Searches for as long as it is let.
pub async fn traffic(products: Products, client: reqwest::Client, upstream: String) {
    futures::future::join_all((0..SEARCHES).map(|_| search(&products, &client, &upstream))).await;
}

async fn search(products: &Products, client: &reqwest::Client, upstream: &str) {
    let app = products.app("tours").expect("is configured").clone();
    loop {
        let newest = crate::seconds() * NEW_A_SECOND;
        let stale = rand::rng().random_bool(0.2);
        let user_id = if stale {
            format!("stale-{}", rand::rng().random_range(0..STALE))
        } else {
            format!("user-{}", newest - rand::rng().random_range(0..NEW_A_SECOND))
        };
        let token = if stale { serde_json::json!({"ttr": 1}) } else { serde_json::json!({}) };
        let search = Search {
            operation: None,
            user_id: user_id.clone(),
            hint: None,
            force: false,
            token: token.as_object().cloned().unwrap_or_default(),
            payload: serde_json::Map::new(),
            request_id: solely_core::JobId::new().to_string(),
            trace: None,
        };
        // It may be refused while the plugin fails, is slow, or the store is away.
        if let Ok(answer) = products.search(&app, search).await {
            let told = answer.catalogue.text();
            if !told.contains(&format!("\"{user_id}\"")) {
                let wrong = format!("{user_id}: was answered with {told}");
                let _ = client.post(format!("{upstream}/violations")).body(wrong).send().await;
            }
        }
        let pause = rand::rng().random_range(20..120);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}
