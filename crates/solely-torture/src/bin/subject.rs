//! A process for fault tests to kill: it works feeds, enqueues and says what was acknowledged, or
//! calls an upstream as often as it may. Which guards hold and where it dies is in its environment.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use solely_core::Store;
use solely_core::job::{JobStore as _, NewJob};
use solely_core::upstream::http::{self, Tls};
use solely_core::upstream::{CallFailed, Rate, Upstream, UpstreamKind, UpstreamLimits};
use solely_core::worker::{Delivery, Done, Failure, Handler};
use solely_sqlite::{Options, SqliteStore};
use solely_torture::feeds;
use solely_torture::subject::{jobs, open, open_beside_others, work_all};

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [mode, url, rest @ ..] = args.as_slice() else { bail!("subject MODE URL …") };
    match mode.as_str() {
        "work" => {
            let jobs = jobs(open(url).await?);
            let feed = feeds::computed(&jobs, Duration::from_secs(120));
            work_all(jobs, feeds::witnessed(&feed, |handler| handler)).await
        }
        "stall" => {
            let jobs = jobs(open(url).await?);
            let feed = feeds::computed(&jobs, Duration::from_secs(4));
            work_all(jobs, feeds::witnessed(&feed, |handler| Arc::new(Stalls(handler)))).await
        }
        "enqueue" => {
            let count = rest.first().context("how many")?.parse()?;
            enqueue(&Arc::new(SqliteStore::open(url, &Options::default())?), count).await
        }
        "call" => {
            let (upstream, rate) = (rest.first().context("whom")?, rest.get(1).context("how often")?);
            let rate = Rate::try_from(rate.clone()).map_err(anyhow::Error::msg)?;
            call(open_beside_others(url).await?, upstream, rate).await
        }
        other => bail!("no mode {other}"),
    }
}

/// Says that it begins, and goes on with its first delivery when it is told to: the test stops
/// the process in the middle of it.
struct Stalls(Arc<dyn Handler>);

#[async_trait]
impl Handler for Stalls {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        say(&format!("begun {}", delivery.job.attempts));
        if delivery.job.attempts == 1 {
            let told = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await;
            told.expect("waits").expect("is told");
        }
        say(&format!("ended {}", delivery.job.attempts));
        self.0.handle(delivery).await
    }
}

/// Calls an upstream, four at once, for as long as it lives.
async fn call(store: Arc<dyn Store>, address: &str, rate: Rate) -> Result<()> {
    let limits = UpstreamLimits {
        name: "upstream".to_owned(),
        kind: UpstreamKind::Source,
        timeout: Duration::from_secs(10),
        concurrency: 4,
        rate: Some(rate),
        failures: 40,
    };
    let (upstream, client) = (Upstream::new(limits, store), http::builder(Tls::Nobody).build()?);
    let caller = || async {
        loop {
            let ping = async {
                let failed = |error| CallFailed { error, blame: true, retry_after: None };
                client.get(format!("{address}/ping")).send().await.map_err(failed)
            };
            // One that finds no slot in time tries again.
            let _ = upstream.call(Duration::from_secs(5), ping).await;
        }
    };
    tokio::join!(caller(), caller(), caller(), caller());
    Ok(())
}

/// Enqueues with 64 in flight, and says which jobs were acknowledged and how many commits that
/// took.
async fn enqueue(store: &Arc<SqliteStore>, count: usize) -> Result<()> {
    say("begin");
    let before = store.counts().now();
    let per_task = count.div_ceil(64);
    let tasks = (0..64).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in (task * per_task)..((task + 1) * per_task).min(count) {
                let job = NewJob::new("acknowledged", format!("{}-{n}", std::process::id()));
                let id = job.id;
                store.enqueue(vec![job]).await?;
                say(&id.to_string());
            }
            anyhow::Ok(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    say(&format!("commits {}", (store.counts().now() - before).commits));
    Ok(())
}

/// One whole line, in one write, so that a kill leaves no half of it.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("{line}\n").as_bytes());
    let _ = out.flush();
}
