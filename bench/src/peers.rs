//! What others use, beside solely in the same rounds: job queues at equal durability, and caches.
//!
//! Their programs are in `bench/peers`, and say there with which settings each is fastest. What they need is installed
//! by name into a temporary folder. Redis syncs every write (`appendfsync always`), PostgreSQL has its defaults.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use solely_testing::{RedisServer, free_port};
use tempfile::TempDir;

use crate::Scale;
use crate::engine::Postgres;
use crate::jobs::Measured;
use crate::report::{Goal, Report};

/// The programs, and what they need, in a folder of their own.
struct Peers {
    folder: TempDir,
}

/// A queue that others use: its name, and whether it is a program of its own.
const QUEUES: [&str; 4] = ["bullmq", "graphile-worker", "pg-boss", "apalis"];

fn done(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {shown}"))?;
    ensure!(output.status.success(), "{shown}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn copied(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copied(&path, &target)?;
        } else {
            std::fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

impl Peers {
    fn installed() -> Result<Self> {
        let folder = TempDir::new()?;
        let path = folder.path();
        println!("installing peers");
        copied(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("peers"), path)?;
        done(Command::new("npm").args(["install", "--no-package-lock", "--silent"]).current_dir(path))?;
        done(Command::new("python3").args(["-m", "venv", "venv"]).current_dir(path))?;
        let pip = ["install", "--quiet", "-r", "requirements.txt"];
        done(Command::new(path.join("venv/bin/pip")).args(pip).current_dir(path))?;
        let build = ["build", "--release", "--quiet", "--manifest-path", "apalis/Cargo.toml"];
        done(
            Command::new("cargo").args(build).current_dir(path).env("CARGO_TARGET_DIR", path.join("target")),
        )?;
        Ok(Self { folder })
    }

    fn queue(&self, peer: &str, servers: &Servers, mode: &str, count: usize) -> Result<Value> {
        let mut command = if peer == "apalis" {
            Command::new(self.folder.path().join("target/release/apalis-peer"))
        } else {
            let mut node = Command::new("node");
            node.args(["jobs.mjs", peer]);
            node
        };
        command.args([mode, &count.to_string()]);
        self.said(servers, &mut command)
    }

    /// What a program says in the one line that it prints.
    fn said(&self, servers: &Servers, command: &mut Command) -> Result<Value> {
        let command = servers.known_to(command).current_dir(self.folder.path()).stdin(Stdio::null());
        let output = command.output()?;
        let wrong = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?}: {wrong}");
        Ok(serde_json::from_slice(output.stdout.trim_ascii())?)
    }

    /// A crowd in each of two processes, for one key that nobody has: calls of the upstream, and the middle's wait in ms.
    fn crowd(
        &self,
        servers: &Servers,
        program: &[&str],
        more: &[&str],
        url: &str,
        key: &str,
    ) -> Result<(u64, f64)> {
        let mut crowd = Vec::new();
        for _ in 0..2 {
            let mut command = Command::new(program[0]);
            command.args(&program[1..]).args(["cold", url, key, "200"]).args(more);
            let command = servers.known_to(&mut command).current_dir(self.folder.path());
            let child =
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
            crowd.push(child);
        }
        for child in &mut crowd {
            let said = BufReader::new(child.stderr.take().context("is piped")?);
            ensure!(
                said.lines().map_while(Result::ok).any(|line| line == "ready"),
                "{program:?} is not ready"
            );
        }
        for child in &mut crowd {
            writeln!(child.stdin.take().context("is piped")?, "go")?;
        }
        let (mut calls, mut middle) = (0, 0.0_f64);
        for child in crowd {
            let output = child.wait_with_output()?;
            ensure!(output.status.success(), "{program:?}: {}", output.status);
            let said: Value = serde_json::from_slice(output.stdout.trim_ascii())?;
            calls += said["calls"].as_u64().context("calls")?;
            middle = middle.max(figure(&said, "p50")?);
        }
        Ok((calls, middle))
    }
}

fn figure(said: &Value, name: &str) -> Result<f64> {
    said[name].as_f64().with_context(|| format!("no {name} in {said}"))
}

struct Servers {
    redis: RedisServer,
    database: String,
}

impl Servers {
    fn known_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("REDIS_URL", self.redis.url()).env("DATABASE_URL", &self.database)
    }
}

/// What was seen of one queue.
#[derive(Default)]
struct Seen {
    enqueued: Vec<f64>,
    drained: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    unique: Vec<f64>,
}

pub(crate) async fn run(report: &mut Report, scale: Scale) -> Result<()> {
    let peers = Peers::installed()?;
    queues(report, scale, &peers).await?;
    caches(report, scale, &peers).await
}

async fn queues(report: &mut Report, scale: Scale, peers: &Peers) -> Result<()> {
    let postgres = Postgres::start();
    let mut seen: Vec<Seen> = QUEUES.iter().map(|_| Seen::default()).collect();
    let mut ours = Measured::default();
    for _ in 0..scale.rounds {
        for (peer, seen) in QUEUES.iter().zip(&mut seen) {
            let servers =
                Servers { redis: RedisServer::start_durable(), database: postgres.database().await? };
            // Those that are slow to enqueue are asked for less: a rate is a rate.
            let ask = |mode, count| tokio::task::block_in_place(|| peers.queue(peer, &servers, mode, count));
            seen.enqueued.push(figure(&ask("enqueue", scale.operations / 8)?, "perSecond")?);
            seen.drained.push(figure(&ask("drain", scale.operations)?, "perSecond")?);
            let idle = ask("idle", 200)?;
            seen.p50.push(figure(&idle, "p50")?);
            seen.p99.push(figure(&idle, "p99")?);
            if *peer != "apalis" {
                seen.unique.push(figure(&ask("unique", 50)?, "runs")?);
            }
        }
        ours.round(postgres.store().await?, scale.operations, AT_ONCE).await?;
    }
    let named = |peer: &str, what: &str| format!("{peer}: {what}");
    for (peer, seen) in QUEUES.iter().zip(seen) {
        report.add(&named(peer, ENQUEUED), "jobs/s", seen.enqueued, Goal::None);
        report.add(&named(peer, DRAINED), "jobs/s", seen.drained, Goal::None);
        report.add(&named(peer, "idle, p50"), "ms", seen.p50, Goal::None);
        report.add(&named(peer, "idle, p99"), "ms", seen.p99, Goal::None);
        if !seen.unique.is_empty() {
            report.add(&named(peer, "50 adds of one unique key"), "runs", seen.unique, Goal::None);
        }
    }
    let at_least = |limit, times| Goal::AtLeast { mark: "B4", limit, times };
    let (graphile, bullmq) = ("graphile-worker: enqueued one by one", "bullmq: enqueued one by one");
    report.add(
        "solely on PostgreSQL: enqueued one by one",
        "jobs/s",
        ours.enqueued.clone(),
        at_least(graphile, 20.0),
    );
    report.add("… the same beside BullMQ", "jobs/s", ours.enqueued, at_least(bullmq, 2.0));
    report.add(
        "solely on PostgreSQL: drained",
        "jobs/s",
        ours.drained,
        at_least("graphile-worker: drained", 1.5),
    );
    let at_most = |limit| Goal::AtMostOf { mark: "B4", limit };
    report.add("solely on PostgreSQL: idle, p50", "ms", ours.idle_p50, at_most("bullmq: idle, p50"));
    report.add("solely on PostgreSQL: idle, p99", "ms", ours.idle_p99, at_most("bullmq: idle, p99"));
    Ok(())
}

/// Jobs that solely has under way at once in a drain: what makes it fastest, as every peer has.
const AT_ONCE: usize = 512;
const ENQUEUED: &str = "enqueued one by one";
const DRAINED: &str = "drained";

/// An upstream that takes a while and counts its calls.
async fn slow_upstream() -> Result<(String, Arc<AtomicUsize>)> {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let answer = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            "the answer"
        }
    };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", free_port())).await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    Ok((url, calls))
}

async fn caches(report: &mut Report, scale: Scale, peers: &Peers) -> Result<()> {
    let servers = Servers { redis: RedisServer::start(), database: String::new() };
    let (url, counted) = slow_upstream().await?;
    let python = peers.folder.path().join("venv/bin/python").display().to_string();
    let bento = ["node", "cache.mjs", "bentocache"];
    let cashews = [python.as_str(), "cache.py", "cashews"];
    let crowds: [(&str, &[&str], &[&str]); 3] = [
        ("bentocache", &bento, &[]),
        ("cashews", &cashews, &[]),
        ("cashews with its lock", &cashews, &["--lock"]),
    ];
    let (mut memory, mut redis) = (vec![], vec![]);
    let mut seen: Vec<(Vec<f64>, Vec<f64>)> = crowds.iter().map(|_| Default::default()).collect();
    for round in 0..scale.rounds {
        let hits = |mode: &str| {
            let mut command = Command::new("node");
            command.args(["cache.mjs", "bentocache", mode, &(scale.operations * 2).to_string()]);
            tokio::task::block_in_place(|| peers.said(&servers, &mut command))
        };
        memory.push(figure(&hits("hits-memory")?, "perSecond")?);
        redis.push(figure(&hits("hits-redis")?, "perSecond")?);
        for (nth, (name, program, more)) in crowds.iter().enumerate() {
            let (before, key) = (counted.load(Ordering::SeqCst), format!("cold-{round}-{nth}"));
            let crowd = || peers.crowd(&servers, program, more, &url, &key);
            let (calls, middle) = tokio::task::block_in_place(crowd)?;
            let at_the_upstream = counted.load(Ordering::SeqCst) - before;
            if u64::try_from(at_the_upstream)? != calls {
                bail!("{name} says that it made {calls} calls, and made {at_the_upstream}");
            }
            #[expect(clippy::cast_precision_loss, reason = "there are few")]
            seen[nth].0.push(calls as f64);
            seen[nth].1.push(middle - 200.0);
        }
    }
    report.add("bentocache: hits in memory", "hits/s", memory, Goal::None);
    report.add("bentocache: hits in Redis", "hits/s", redis, Goal::None);
    for ((name, ..), (calls, middle)) in crowds.iter().zip(seen) {
        report.add(&format!("{name}: 200 cold callers in each of 2 processes"), "calls", calls, Goal::None);
        report.add(&format!("… {name}, over the upstream's time, p50"), "ms", middle, Goal::None);
    }
    Ok(())
}
