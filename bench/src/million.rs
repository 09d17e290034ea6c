//! A million records copied by the real binary on its embedded store, and streamed while others write.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use solely_core::upstream::http::{Tls, builder};

use crate::feeds::upstream;
use crate::report::{Goal, Report};
use crate::start::Server;

/// Writes of which latencies are measured.
const WRITES: usize = 400;

pub(crate) async fn run(report: &mut Report, quick: bool, solely: Option<&Path>) -> Result<()> {
    let solely = solely.context("`million` needs --solely, the release binary")?.canonicalize()?;
    let records = if quick { 100_000 } else { 1_000_000 };
    let (sandbox, url) = upstream(records).await?;
    let folder = tempfile::tempdir()?;
    let config = format!("[feed.sources.bench]\nurl = \"{url}\"\nrate = \"\"\nconcurrency = 32\n");
    std::fs::write(folder.path().join("solely.toml"), config)?;
    let server = Server::start_in(&solely, folder, 17_600)?;
    server.until_ready().await?;
    let client = builder(Tls::Nobody).build()?;
    let base = server.base();
    let started = Instant::now();
    let answer = client.post(format!("{base}/v1/runs")).json(&json!({"source": "bench"})).send().await?;
    let run: Value = answer.error_for_status()?.json().await?;
    let path = format!("{base}/v1/runs/{}", run["runId"].as_str().context("an id")?);
    loop {
        let state: Value = client.get(&path).send().await?.json().await?;
        match state["status"].as_str() {
            Some("completed") => break,
            Some("failed" | "cancelled") | None => anyhow::bail!("the run failed: {state}"),
            Some(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    let copied = crate::jobs::rate(records, started.elapsed());
    let peak = server.peak_memory_mib()?;
    drop(sandbox);
    let quiet = writes(&client, base).await?;
    let streaming = tokio::spawn(stream(client.clone(), format!("{base}/v1/feeds/bench/records")));
    let busy = writes(&client, base).await?;
    let (lines, took) = streaming.await??;
    ensure!(lines == records, "{lines} records were streamed");
    report.add("a million records copied: rate", "records/s", vec![copied], Goal::None);
    report.add("… memory at most", "MiB", vec![peak], Goal::AtMost { mark: "B10", most: 200.0 });
    report.add("… streamed to one reader", "records/s", vec![crate::jobs::rate(records, took)], Goal::None);
    report.add("a write over HTTP, idle, p50", "ms", vec![quiet.0], Goal::None);
    report.add("a write over HTTP, idle, p99", "ms", vec![quiet.1], Goal::None);
    report.add("… while a million records are streamed, p50", "ms", vec![busy.0], Goal::None);
    report.add("… while a million records are streamed, p99", "ms", vec![busy.1], Goal::None);
    report.add("… memory at most by then", "MiB", vec![server.peak_memory_mib()?], Goal::None);
    Ok(())
}

/// Leases taken one after the other: a durable write each. The middle and the slow end, in ms.
async fn writes(client: &reqwest::Client, base: &str) -> Result<(f64, f64)> {
    let mut took = Vec::with_capacity(WRITES);
    for n in 0..WRITES {
        let body =
            json!({"keys": [format!("key-{n}-{}", uuid::Uuid::now_v7())], "owner": "bench", "ttlMs": 1_000});
        let asked = Instant::now();
        client.post(format!("{base}/v1/leases")).json(&body).send().await?.error_for_status()?;
        took.push(asked.elapsed().as_secs_f64() * 1_000.0);
    }
    took.sort_by(f64::total_cmp);
    Ok((took[WRITES / 2], took[WRITES * 99 / 100]))
}

/// Reads a stream to its end: how many lines, and how long it took.
async fn stream(client: reqwest::Client, url: String) -> Result<(usize, Duration)> {
    let (started, mut lines) = (Instant::now(), 0);
    let mut answer = client.get(url).send().await?.error_for_status()?;
    while let Some(chunk) = answer.chunk().await? {
        lines += chunk.split(|byte| *byte == b'\n').count() - 1;
    }
    Ok((lines, started.elapsed()))
}
