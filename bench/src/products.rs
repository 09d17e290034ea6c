//! products: a hit in memory, and a crowd of cold callers in three processes.

use std::io::{BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, json};
use solely_core::bus::Bus;
use solely_core::cache::Cache;
use solely_core::companion::Companion;
use solely_core::config::PluginConfig;
use solely_core::lease::Leases;
use solely_core::metrics::Metrics;
use solely_core::products::{App, Products, ProductsParts, Search, State, forms};
use solely_core::queue::Jobs;
use solely_core::upstream::http::{HttpClient, Tls};
use solely_core::{ProcessId, Store};
use solely_postgres::PostgresStore;
use solely_redis::Redis;
use solely_sandbox::Sandbox;
use solely_sandbox::catalogue::Catalogue;
use solely_sandbox::mood::Mood;
use solely_sqlite::SqliteStore;
use solely_testing::{PostgresServer, RedisServer, free_port};

use crate::Scale;
use crate::jobs::rate;
use crate::report::{Goal, Report};

/// Processes of a crowd,
const PROCESSES: usize = 3;
/// and the callers in each.
const CALLERS: usize = 200;
/// Rounds in which connections are made and statements prepared.
const WARM_UP: usize = 12;
/// How long the plugin takes.
const TAKES: Duration = Duration::from_millis(200);

pub(crate) async fn run(report: &mut Report, scale: Scale) -> Result<()> {
    hits(report, scale).await?;
    crowds(report, scale).await
}

async fn sandbox() -> Result<(Sandbox, String)> {
    let sandbox = Sandbox::new(Catalogue::of(1, 1));
    let address = sandbox.start(free_port()).await?;
    Ok((sandbox, format!("http://{address}/products")))
}

/// products of this process.
fn products(store: &Arc<dyn Store>, bus: &Bus, redis: Option<Arc<Redis>>, url: &str) -> Result<Products> {
    let (metrics, companion) = (Arc::new(Metrics::default()), redis.map(|redis| redis as Arc<dyn Companion>));
    let parts = ProductsParts {
        jobs: Jobs::new(store.clone(), bus.clone(), metrics.clone()),
        cache: Cache::new(store.clone(), bus.clone(), metrics.clone(), companion.clone()),
        leases: Leases::new(store.clone(), bus.clone(), metrics.clone()).with_hints(companion.clone()),
        companion,
        process: ProcessId::random(),
    };
    let config = PluginConfig { url: url.to_owned(), ..PluginConfig::default() };
    let app = App::configured("tours", &config, &HttpClient::new(Tls::Nobody)?, store, &metrics);
    Ok(Products::new(parts, vec![app]))
}

fn search(user: &str) -> Search {
    Search {
        operation: None,
        user_id: user.to_owned(),
        hint: Some("acct-1".to_owned()),
        force: false,
        token: Map::new(),
        payload: Map::new(),
        request_id: String::new(),
        trace: None,
    }
}

async fn hits(report: &mut Report, scale: Scale) -> Result<()> {
    let (_sandbox, url) = sandbox().await?;
    let folder = tempfile::tempdir()?;
    let file = format!("sqlite:{}", folder.path().join("bench.db").display());
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&file, &solely_sqlite::Options::default())?);
    let products = products(&store, &Bus::new(), None, &url)?;
    let app = products.app("tours").context("is configured")?.clone();
    products.search(&app, search("u1")).await.map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let mut took = vec![];
    for _ in 0..scale.rounds {
        let (products, app, operations) = (products.clone(), app.clone(), scale.operations * 5);
        let round = tokio::spawn(async move {
            let began = Instant::now();
            for _ in 0..operations {
                let answer = products.search(&app, search("u1")).await.expect("is cached");
                assert_eq!(answer.state, State::Fresh);
            }
            1e6 / rate(operations, began.elapsed())
        });
        took.push(round.await?);
    }
    report.add("products: a hit in memory", "µs", took, Goal::AtMost { mark: "B8", most: 1.0 });
    store.close().await;
    Ok(())
}

/// A process of the crowd: searches when it is told for whom, and says how long each caller waited, in µs.
pub(crate) async fn caller(store: &str, redis: &str, url: &str) -> Result<()> {
    let options = solely_postgres::Options { max_connections: 4, ..Default::default() };
    let store: Arc<dyn Store> = Arc::new(PostgresStore::open(store, &options).await?);
    let (bus, metrics) = (Bus::new(), Arc::new(Metrics::default()));
    let options = solely_redis::Options { forms: forms(), ..Default::default() };
    let redis = Arc::new(Redis::open(redis, options, store.clone(), metrics).await?);
    redis.connect_bus(&bus);
    store.connect_bus(&bus);
    while !redis.ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let products = products(&store, &bus, Some(redis), url)?;
    let app = products.app("tours").context("is configured")?.clone();
    println!("ready");
    let (sender, mut users) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    while let Some(user) = users.recv().await {
        let callers = (0..CALLERS).map(|_| {
            let (products, app, search) = (products.clone(), app.clone(), search(&user));
            tokio::spawn(async move {
                let began = Instant::now();
                let found =
                    products.search(&app, search).await.map_err(|error| anyhow::anyhow!("{error:?}"))?;
                ensure!(found.state == State::Filled, "{:?}", found.state);
                Ok(began.elapsed())
            })
        });
        let callers: Vec<_> = callers.collect();
        let mut took = vec![];
        for caller in callers {
            took.push(caller.await??.as_micros().to_string());
        }
        println!("{}", took.join(" "));
    }
    store.close().await;
    Ok(())
}

/// A process of the crowd, ended with its handle.
struct Process {
    child: Child,
    said: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Process {
    fn start(store: &str, redis: &str, url: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["products-caller", store, redis, url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(child.stdout.take().context("is piped")?);
        let mut process = Self { child, said: std::io::BufRead::lines(said) };
        process.hear()?;
        Ok(process)
    }

    fn hear(&mut self) -> Result<String> {
        self.said.next().context("a process of the crowd has ended")?.map_err(Into::into)
    }

    fn tell(&mut self, user: &str) -> Result<()> {
        Ok(writeln!(self.child.stdin.as_mut().context("is piped")?, "{user}")?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn crowds(report: &mut Report, scale: Scale) -> Result<()> {
    let (sandbox, url) = sandbox().await?;
    sandbox.set_mood(Mood { latency_ms: u64::try_from(TAKES.as_millis())?, ..Mood::default() });
    sandbox.set_products(json!([{"productId": "p1", "options": [{"optionId": "o1"}]}]), false);
    let (redis, postgres) = (RedisServer::start(), PostgresServer::start());
    let start = || Process::start(&postgres.url(), &redis.url(), &url);
    let mut processes = (0..PROCESSES).map(|_| start()).collect::<Result<Vec<_>>>()?;
    let client = solely_core::upstream::http::builder(Tls::Nobody).build()?;
    let (mut direct, mut middle, mut last) = (vec![], vec![], vec![]);
    for round in 0..WARM_UP + scale.rounds {
        // The plugin's time, as a caller without anything in between sees it.
        let asked = Instant::now();
        let call = client.post(format!("{url}/searchProducts")).json(
            &json!({"token": {}, "payload": {}, "userId": "direct", "hint": null, "requestId": "direct"}),
        );
        call.send().await?.error_for_status()?.bytes().await?;
        let takes = asked.elapsed().as_secs_f64() * 1_000.0;
        let before = sandbox.count_of("products");
        for process in &mut processes {
            process.tell(&format!("user-{round}"))?;
        }
        let mut took = vec![];
        for process in &mut processes {
            let said = tokio::task::block_in_place(|| process.hear())?;
            took.extend(said.split(' ').filter_map(|micros| micros.parse::<f64>().ok()));
        }
        ensure!(took.len() == PROCESSES * CALLERS, "everyone is answered");
        ensure!(sandbox.count_of("products") == before + 1, "one call");
        took.sort_by(f64::total_cmp);
        let over = |micros: f64| micros / 1_000.0 - takes;
        if round >= WARM_UP {
            direct.push(takes);
            middle.push(over(took[took.len() / 2]));
            last.push(over(took[took.len() - 1]));
        }
    }
    report.add("a plugin, called directly", "ms", direct, Goal::None);
    let most = |most| Goal::AtMost { mark: "B8", most };
    report.add(
        "products: 600 cold callers in 3 processes, over the plugin's time, p50",
        "ms",
        middle,
        most(5.0),
    );
    report.add("… the last", "ms", last, most(30.0));
    Ok(())
}
