//! One to three servers on one PostgreSQL and one Redis: what each system does with more of them.
//!
//! All of it shares two cores with the database and with those who ask, so more servers cannot be faster here.
//! What it shows is what they cost each other: work that is shared (one row, one upstream) stays the same,
//! work that is not stays about the same in all.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::future::try_join_all;
use serde_json::{Value, json};
use solely_core::upstream::http::{self, Tls};
use solely_testing::{RedisServer, free_port};
use uuid::Uuid;

use crate::Scale;
use crate::engine::Postgres;
use crate::enrich::{finder, posts_of};
use crate::jobs::rate;
use crate::report::{Goal, Report};
use crate::start::Server;

/// Servers at the most.
const SERVERS: usize = 3;
/// Merchants of the sale that is not of one box.
const MERCHANTS: usize = 32;

/// What is measured, in the order of the table.
const WHAT: [(&str, &str); 6] = [
    ("enrich: ten places that hit", "requests/s"),
    ("enrich: ten places that miss, looked up meanwhile", "requests/s"),
    ("products: a catalogue that is cached", "requests/s"),
    ("reserve: one hot box", "reservations/s"),
    ("reserve: boxes of 32 merchants", "reservations/s"),
    ("feed: records copied", "records/s"),
];

pub(crate) async fn run(report: &mut Report, scale: Scale, solely: &Path) -> Result<()> {
    let (postgres, redis) = (Postgres::start(), RedisServer::start());
    let (_finder, finder_url) = finder(None).await?;
    let (sandbox, feed_url) = crate::feeds::upstream(scale.operations).await?;
    sandbox.set_products(json!([{"productId": "p1", "options": [{"optionId": "o1"}]}]), false);
    let plugin = feed_url.replace("/feed", "/products");
    let mut figures = vec![vec![vec![]; SERVERS]; WHAT.len()];
    for round in 0..scale.rounds.min(5) {
        for servers in 1..=SERVERS {
            redis.ask("FLUSHALL").context("Redis answers")?;
            let database = postgres.database().await?;
            let urls = Urls {
                database: &database,
                redis: &redis.url(),
                finder: &finder_url,
                plugin: &plugin,
                feed: &feed_url,
            };
            let world = World::start(solely, servers, &urls).await?;
            let measured = world.measure(scale.operations / 2, round).await?;
            for (nth, value) in measured.into_iter().enumerate() {
                figures[nth][servers - 1].push(value);
            }
        }
    }
    for ((what, unit), of_servers) in WHAT.iter().zip(figures) {
        for (nth, values) in of_servers.into_iter().enumerate() {
            let name = match nth {
                0 => (*what).to_owned(),
                _ => format!("… {} servers: {what}", nth + 1),
            };
            let goal = if nth == 0 { Goal::None } else { Goal::Ratio { mark: "beside one", limit: what } };
            report.add(&name, unit, values, goal);
        }
    }
    Ok(())
}

pub(crate) struct Urls<'a> {
    pub(crate) database: &'a str,
    pub(crate) redis: &'a str,
    pub(crate) finder: &'a str,
    pub(crate) plugin: &'a str,
    pub(crate) feed: &'a str,
}

pub(crate) struct World {
    pub(crate) servers: Vec<Server>,
    client: reqwest::Client,
}

impl World {
    pub(crate) async fn start(solely: &Path, count: usize, urls: &Urls<'_>) -> Result<Self> {
        let config = format!(
            "[enrich.providers.wolt]\nenabled = true\nurl = \"{}\"\nhosts = []\nconcurrency = 16\n
             [products.plugins.tours]\nurl = \"{}\"\n
             [feed.sources.stones]\nurl = \"{}\"\nrate = \"\"\nconcurrency = 16\n",
            urls.finder, urls.plugin, urls.feed
        );
        let env = [("DATABASE_URL", urls.database), ("REDIS_URL", urls.redis), ("RUST_LOG", "warn")];
        let mut servers = Vec::new();
        for _ in 0..count {
            let folder = tempfile::tempdir()?;
            std::fs::write(folder.path().join("solely.toml"), &config)?;
            let server = Server::start_with(solely, folder, free_port(), &env)?;
            server.until_ready().await?;
            servers.push(server);
        }
        Ok(Self { servers, client: http::builder(Tls::Nobody).build()? })
    }

    pub(crate) async fn post(&self, server: usize, path: &str, body: Value) -> Result<Value> {
        let url = format!("{}{path}", self.servers[server].base());
        Ok(self.client.post(url).json(&body).send().await?.error_for_status()?.json().await?)
    }

    pub(crate) async fn text(&self, server: usize, path: &str) -> Result<String> {
        let url = format!("{}{path}", self.servers[server].base());
        Ok(self.client.get(url).send().await?.error_for_status()?.text().await?)
    }

    async fn measure(&self, operations: usize, round: usize) -> Result<[f64; WHAT.len()]> {
        Ok([
            self.hits(operations).await?,
            self.misses(operations / 20, round).await?,
            self.products(operations).await?,
            self.sale(operations, 1).await?,
            self.sale(operations, MERCHANTS).await?,
            self.feed(operations * 2).await?,
        ])
    }

    /// So many requests at all servers together; how many a second.
    async fn spread(
        &self,
        path: &'static str,
        requests: usize,
        body: impl Fn() -> String + Clone + Send + 'static,
    ) -> Result<f64> {
        let share = requests / self.servers.len();
        let began = Instant::now();
        let addresses: Vec<String> = self
            .servers
            .iter()
            .map(|server| server.base().trim_start_matches("http://").to_owned())
            .collect();
        try_join_all(addresses.iter().map(|address| posts_of(address, path, share, body.clone()))).await?;
        Ok(rate(share * self.servers.len(), began.elapsed()))
    }

    /// Has all servers know ten places.
    pub(crate) async fn warm(&self) -> Result<()> {
        for server in 0..self.servers.len() {
            let deadline = Instant::now() + Duration::from_secs(20);
            while self.post(server, "/v1/enrich", serde_json::from_str(&ten("known", "warm"))?).await?["pending"]
                != 0
            {
                if Instant::now() > deadline {
                    bail!("the places are not found");
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    async fn hits(&self, requests: usize) -> Result<f64> {
        self.warm().await?;
        let body = ten("known", "req-1");
        self.spread("/v1/enrich", requests, move || body.clone()).await
    }

    async fn misses(&self, requests: usize, round: usize) -> Result<f64> {
        let next = Arc::new(AtomicUsize::new(0));
        let body = move || {
            let name = format!("new-{round}-{}", next.fetch_add(1, Ordering::Relaxed));
            ten(&name, &name)
        };
        self.spread("/v1/enrich", requests, body).await
    }

    async fn products(&self, requests: usize) -> Result<f64> {
        let asked = json!({"appKey": "tours", "userId": "u1"});
        for server in 0..self.servers.len() {
            self.post(server, "/v1/products/search", asked.clone()).await?;
        }
        let body = asked.to_string();
        self.spread("/v1/products/search", requests, move || body.clone()).await
    }

    /// Puts boxes of so many merchants on offer, one box each, and says what the sale is called.
    pub(crate) async fn offer(&self, merchants: usize) -> Result<String> {
        let sale = Uuid::now_v7().simple().to_string();
        for nth in 0..merchants {
            let (merchant, kind, item) =
                (format!("m-{sale}-{nth}"), format!("t-{sale}-{nth}"), format!("b-{sale}-{nth}"));
            self.post(0, "/v1/merchants", json!({"id": merchant, "name": "Bakery"})).await?;
            self.post(0, &format!("/v1/merchants/{merchant}/box-types"), json!({"id": kind, "name": "Box"}))
                .await?;
            let window = ("2026-01-01T00:00:00Z", "2099-01-01T00:00:00Z");
            let made = json!({"id": item, "boxTypeId": kind, "quantity": 1_000_000, "price": 450, "currency": "EUR", "pickupStart": window.0, "pickupEnd": window.1});
            self.post(0, "/v1/inventory", made).await?;
        }
        Ok(sale)
    }

    /// Sells boxes of so many merchants.
    async fn sale(&self, purchases: usize, merchants: usize) -> Result<f64> {
        let sale = self.offer(merchants).await?;
        let next = Arc::new(AtomicUsize::new(0));
        let body = move || {
            let nth = next.fetch_add(1, Ordering::Relaxed) % merchants;
            json!({"userId": Uuid::now_v7().to_string(), "boxInventoryId": format!("b-{sale}-{nth}")})
                .to_string()
        };
        self.spread("/v1/reservations", purchases, body).await
    }

    /// One run, from its start to its end.
    pub(crate) async fn feed(&self, records: usize) -> Result<f64> {
        let began = Instant::now();
        let run = self.post(0, "/v1/runs", json!({"source": "stones"})).await?;
        let url = format!("{}/v1/runs/{}", self.servers[0].base(), run["runId"].as_str().context("an id")?);
        loop {
            let state: Value = self.client.get(&url).send().await?.json().await?;
            match state["status"].as_str() {
                Some("completed") => break,
                Some("failed" | "cancelled") | None => bail!("{state}"),
                Some(_) => tokio::time::sleep(Duration::from_millis(25)).await,
            }
        }
        Ok(rate(records, began.elapsed()))
    }
}

/// Ten places, of which these are the names.
pub(crate) fn ten(name: &str, request: &str) -> String {
    let result = |n| json!({"placeId": format!("{name}-{n}"), "name": format!("Pizza House {n}"), "address": "1 Dizengoff St"});
    let results: Vec<Value> = (0..10).map(result).collect();
    json!({"requestId": request, "cityText": "Tel Aviv", "results": results}).to_string()
}
