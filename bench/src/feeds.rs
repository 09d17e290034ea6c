//! Feeds: pages of thirty records of one kilobyte, fetched, parsed, stored and consolidated, beside
//! PostgreSQL's fastest way to take the same records by their key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::SinkExt as _;
use solely_core::bus::Bus;
use solely_core::config::SourceConfig;
use solely_core::feed::{Asked, Feed, FeedSource, RunStatus};
use solely_core::liveness::Beat;
use solely_core::metrics::Metrics;
use solely_core::queue::Jobs;
use solely_core::upstream::http::{HttpClient, Tls};
use solely_core::worker::Worker;
use solely_core::{ProcessId, Store, limits};
use solely_sandbox::Sandbox;
use solely_sandbox::catalogue::Catalogue;
use tokio_postgres::NoTls;
use tokio_util::bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::Scale;
use crate::engine::{Postgres, sqlite};
use crate::jobs::rate;
use crate::report::{Goal, Report};

const BARE: &str = "bare PostgreSQL: COPY to a stage and upsert by key, 1,000 records at once";
const FIRST: &str = "PostgreSQL: records copied, the first time";
const FIRST_SQLITE: &str = "records copied, the first time";

/// The source. It shares the machine with what is measured, as client and server do.
pub(crate) async fn upstream(records: usize) -> Result<(Sandbox, String)> {
    let mut catalogue = Catalogue::of(records, 5);
    catalogue.record_bytes = 1_024;
    let sandbox = Sandbox::new(catalogue);
    let address = sandbox.start(solely_testing::free_port()).await?;
    Ok((sandbox, format!("http://{address}/feed")))
}

pub(crate) async fn run(report: &mut Report, scale: Scale) -> Result<()> {
    let (_sandbox, url) = upstream(scale.operations).await?;
    let postgres = Postgres::start();
    let (mut bare, mut on_postgres, mut on_sqlite) = (Vec::new(), Rounds::default(), Rounds::default());
    for _ in 0..scale.rounds {
        bare.push(copy_and_upsert(&postgres.database().await?, scale.operations).await?);
        on_postgres.round(postgres.store().await?, &url, scale.operations).await?;
        let folder = tempfile::tempdir()?;
        on_sqlite.round(sqlite(&folder)?, &url, scale.operations).await?;
    }
    let again = |limit| Goal::AtLeast { mark: "B10", limit, times: 1.3 };
    report.add(BARE, "records/s", bare, Goal::None);
    report.add(FIRST, "records/s", on_postgres.first, Goal::AtLeast { mark: "B10", limit: BARE, times: 0.5 });
    report.add("PostgreSQL: records that are unchanged", "records/s", on_postgres.again, again(FIRST));
    report.add(FIRST_SQLITE, "records/s", on_sqlite.first, Goal::None);
    let beside = Goal::Ratio { mark: "B10", limit: FIRST_SQLITE };
    report.add("records that are unchanged", "records/s", on_sqlite.again, beside);
    Ok(())
}

#[derive(Default)]
struct Rounds {
    first: Vec<f64>,
    again: Vec<f64>,
}

impl Rounds {
    async fn round(&mut self, store: Arc<dyn Store>, url: &str, records: usize) -> Result<()> {
        let site = Site::open(store, url).await?;
        self.first.push(copied(&site.feed, &site.store, records).await?);
        self.again.push(copied(&site.feed, &site.store, records).await?);
        site.close().await
    }
}

/// Records a second of a first copy of so many.
pub(crate) async fn first_copy(store: Arc<dyn Store>, records: usize) -> Result<f64> {
    let (_sandbox, url) = upstream(records).await?;
    let site = Site::open(store, &url).await?;
    let rate = copied(&site.feed, &site.store, records).await?;
    site.close().await?;
    Ok(rate)
}

/// A store with a worker that copies.
struct Site {
    store: Arc<dyn Store>,
    feed: Feed,
    stop: CancellationToken,
    worker: tokio::task::JoinHandle<()>,
}

impl Site {
    async fn open(store: Arc<dyn Store>, url: &str) -> Result<Self> {
        let bus = Bus::new();
        store.connect_bus(&bus);
        let jobs = Jobs::new(store.clone(), bus, Arc::new(Metrics::default()));
        let config =
            SourceConfig { url: url.to_owned(), rate: None, concurrency: 32, ..SourceConfig::default() };
        let source = FeedSource::configured("bench", &config, &HttpClient::new(Tls::Nobody)?, &store);
        let feed = Feed::new(jobs.clone(), [source]);
        let (process, stop) = (ProcessId::random(), CancellationToken::new());
        store.beat(Beat { process, dead_after: limits::DEAD_AFTER }).await?;
        let worker = Worker { jobs, process, queues: feed.queues(), grace: Duration::from_secs(5) };
        let worker = tokio::spawn(worker.run(stop.clone()));
        Ok(Self { store, feed, stop, worker })
    }

    async fn close(self) -> Result<()> {
        self.stop.cancel();
        self.worker.await?;
        self.store.close().await;
        Ok(())
    }
}

/// One run, from its start to its end.
async fn copied(feed: &Feed, store: &Arc<dyn Store>, records: usize) -> Result<f64> {
    let started = Instant::now();
    let run = feed.start(Asked { source: "bench".to_owned(), ..Asked::default() }).await?;
    loop {
        let state = store.run(run).await?.context("the run is there")?;
        match state.run.status {
            RunStatus::Completed => break,
            RunStatus::Failed | RunStatus::Cancelled => bail!("the run failed: {state:?}"),
            _ => tokio::time::sleep(Duration::from_millis(25)).await,
        }
    }
    Ok(rate(records, started.elapsed()))
}

/// What PostgreSQL does with the same records where nothing else is asked of it: they are there
/// already, nothing is fetched, parsed, compared, counted or remembered.
async fn copy_and_upsert(url: &str, records: usize) -> Result<f64> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    client
        .batch_execute(
            "CREATE TABLE bare_records (id text PRIMARY KEY, payload jsonb NOT NULL);
             CREATE TEMP TABLE stage (id text NOT NULL, payload jsonb NOT NULL)",
        )
        .await?;
    let catalogue = Catalogue::of(records, 5);
    let groups: Vec<Bytes> = catalogue
        .stones()
        .chunks(1_000)
        .map(|stones| {
            let lines = stones.iter().map(|stone| format!("{}\t{}\n", stone.id, stone.json(1_024)));
            Bytes::from(lines.collect::<String>())
        })
        .collect();
    let upsert = client
        .prepare(
            "INSERT INTO bare_records SELECT id, payload FROM stage
                 ON CONFLICT (id) DO UPDATE SET payload = excluded.payload",
        )
        .await?;
    let started = Instant::now();
    for group in groups {
        client.batch_execute("BEGIN").await?;
        let copy = client.copy_in("COPY stage FROM STDIN").await?;
        let mut copy = std::pin::pin!(copy);
        copy.send(group).await?;
        copy.close().await?;
        client.execute(&upsert, &[]).await?;
        client.batch_execute("TRUNCATE stage; COMMIT").await?;
    }
    Ok(rate(records, started.elapsed()))
}
