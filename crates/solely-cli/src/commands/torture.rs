//! `solely torture`.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use solely_core::feed::Feed;
use solely_core::feed::source::http::HttpSource;
use solely_core::queue::Jobs;
use solely_core::upstream::http::{self, HttpClient, Tls};
use solely_torture::feeds;
use solely_torture::ground::Engine;
use solely_torture::subject::{self, Beside};
use solely_torture::torture::{self, Break, LOCK, Options, Report, Without};

use super::Failed;
use super::serve::stop_on_signal;
use crate::output::say;

/// Processes on a server, if the command line does not say.
const INSTANCES: usize = 3;

/// What the command line says.
pub(crate) struct Asked {
    pub(crate) time: Duration,
    pub(crate) engine: String,
    /// As many as such a store can have, if it does not say.
    pub(crate) instances: Option<usize>,
    pub(crate) seed: Option<u64>,
    pub(crate) broken: Option<String>,
    pub(crate) without: Option<String>,
    pub(crate) json: bool,
}

pub(crate) fn run(asked: &Asked) -> Result<(), Failed> {
    let engine = Engine::ALL.into_iter().find(|engine| asked.engine == engine.name()).unwrap_or_default();
    let usual = if engine == Engine::Sqlite { 1 } else { INSTANCES };
    let options = Options {
        time: asked.time,
        engine,
        instances: asked.instances.unwrap_or(usual),
        seed: asked.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0),
        broken: Break::ALL.into_iter().find(|guard| asked.broken.as_deref() == Some(guard.name())),
        without: Without::ALL.into_iter().find(|part| asked.without.as_deref() == Some(part.name())),
        program: std::env::current_exe().context("this program's own file")?,
        progress,
    };
    eprintln!("seed {} (--seed {} repeats it)", options.seed, options.seed);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let stop = stop_on_signal()?;
        // Whoever is told to stop takes its servers and their disk with it.
        stop.run_until_cancelled(torture::torture(&options)).await.context("stopped before its end")?
    })?;
    if asked.json {
        say!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    if report.violations.is_empty() { Ok(()) } else { Err(Failed::Violations) }
}

fn progress(report: &Report) {
    if std::io::stderr().is_terminal() {
        let harms = report.kills + report.crashes + report.pauses + report.restarts;
        eprint!(
            "\r{harms} processes harmed, {} runs checked, {} violations ",
            report.runs,
            report.violations.len()
        );
    }
}

fn print(report: &Report) {
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
    say!(
        "{} killed, {} made to die at a point, {} paused beyond their lock, {} restarts of the database",
        report.kills,
        report.crashes,
        report.pauses,
        report.restarts
    );
    say!(
        "{} COMMITs cut before they arrived, {} cut off from their answer, {} times all connections cut",
        report.cuts_before_commit,
        report.cuts_after_commit,
        report.cuts_of_all
    );
    say!("{} restarts and {} pauses of Redis", report.redis_restarts, report.redis_pauses);
    say!(
        "clocks up to {} s apart, {} times a full disk of the database",
        report.clock_skew_ms / 1_000,
        report.disks_full
    );
    say!("{} reads of entries compared with the store", report.entries_read);
    say!(
        "{} runs of {} pages checked, {} upstream calls; {} that upstreams failed, throttled or left unanswered",
        report.runs,
        report.pages,
        report.upstream_calls,
        report.upstream_troubles
    );
    say!(
        "{} places looked up {} times, {} requests heard of everything",
        report.places,
        report.lookups,
        report.requests_heard
    );
    say!("{} reservations, of which time ended {}", report.reservations, report.expired);
    say!("products of {} users searched for by {} calls", report.users, report.plugin_calls);
    for violation in &report.violations {
        say!("violation: {violation}");
    }
    say!("{} violations", report.violations.len());
}

/// A worker process of the torture: it works until it is told to stop, or worse.
pub(crate) fn work(store: &str, upstream: &str, redis: Option<String>, push: bool) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let stop = stop_on_signal()?;
        let client = http::builder(Tls::Nobody).timeout(Duration::from_secs(10)).build()?;
        let beside = Beside { redis, push, upstream: (client, upstream.to_owned()) };
        let asking = HttpClient::new(Tls::Nobody)?;
        let feed = |jobs: &Jobs| {
            let sources = (0..feeds::SOURCES).map(|number| {
                let name = feeds::source_name(number);
                let source = HttpSource::new(asking.clone(), &format!("{upstream}/feed/{name}"), None);
                feeds::source(name, jobs.store(), feeds::settings(LOCK), None, Arc::new(source))
            });
            Feed::new(jobs.clone(), sources)
        };
        subject::work_with(subject::open(store).await?, beside, feed, stop).await?;
        Ok(())
    })
}
