//! Start-up and idling of the real binary: time to ready, processor time, memory.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use crate::Scale;
use crate::report::{Goal, Report};

/// How long it idles under observation.
const IDLE: Duration = Duration::from_secs(10);

pub(crate) async fn run(report: &mut Report, scale: Scale, solely: Option<&Path>) -> Result<()> {
    let solely = solely.context("`start` needs --solely, the release binary")?.canonicalize()?;
    let (mut ready, mut idle_cpu, mut idle_memory) = (vec![], vec![], vec![]);
    for round in 0..scale.rounds {
        let server = Server::start(&solely, 17_500 + u16::try_from(round)?)?;
        ready.push(server.until_ready().await?.as_secs_f64() * 1_000.0);
        // Idling takes long, so a few rounds of it must do.
        if round < 3 {
            let before = server.cpu()?;
            tokio::time::sleep(IDLE).await;
            idle_cpu.push(server.cpu()?.saturating_sub(before).as_secs_f64() / IDLE.as_secs_f64() * 100.0);
            idle_memory.push(server.memory_mib()?);
        }
    }
    report.add("start to ready, empty store", "ms", ready, Goal::AtMost { mark: "B13", most: 50.0 });
    report.add("idle processor time, of one core", "%", idle_cpu, Goal::AtMost { mark: "B13", most: 0.5 });
    report.add("idle memory", "MiB", idle_memory, Goal::AtMost { mark: "B13", most: 25.0 });
    Ok(())
}

/// The binary, serving.
pub(crate) struct Server {
    child: Child,
    started: Instant,
    base: String,
    _folder: TempDir,
}

impl Server {
    fn start(solely: &Path, port: u16) -> Result<Self> {
        Self::start_in(solely, tempfile::tempdir()?, port)
    }

    /// Serves in a folder, with the configuration that is there.
    pub(crate) fn start_in(solely: &Path, folder: TempDir, port: u16) -> Result<Self> {
        Self::start_with(solely, folder, port, &[])
    }

    /// The same, with something in its environment.
    pub(crate) fn start_with(
        solely: &Path,
        folder: TempDir,
        port: u16,
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let address = format!("127.0.0.1:{port}");
        let started = Instant::now();
        let child = Command::new(solely)
            .args(["serve", "--listen", &address])
            .current_dir(folder.path())
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child, started, base: format!("http://{address}"), _folder: folder })
    }

    /// Where it is.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// How long from the start of the process to its first good answer.
    pub(crate) async fn until_ready(&self) -> Result<Duration> {
        let client =
            solely_core::upstream::http::builder(solely_core::upstream::http::Tls::Nobody).build()?;
        while self.started.elapsed() < Duration::from_secs(10) {
            if client
                .get(format!("{}/readyz", self.base))
                .send()
                .await
                .is_ok_and(|answer| answer.status() == 200)
            {
                return Ok(self.started.elapsed());
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        bail!("the server is not ready")
    }

    fn proc(&self, file: &str) -> Result<String> {
        let path: PathBuf = ["/proc", &self.child.id().to_string(), file].iter().collect();
        Ok(std::fs::read_to_string(path)?)
    }

    /// Processor time so far: fields 14 and 15 of `stat`, in hundredths of a second.
    fn cpu(&self) -> Result<Duration> {
        let stat = self.proc("stat")?;
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        Ok(Duration::from_millis(ticks * 10))
    }

    /// Resident memory that is the process's own.
    pub(crate) fn memory_mib(&self) -> Result<f64> {
        self.status_mib("VmRSS:")
    }

    /// The most it ever was.
    pub(crate) fn peak_memory_mib(&self) -> Result<f64> {
        self.status_mib("VmHWM:")
    }

    fn status_mib(&self, name: &str) -> Result<f64> {
        let status = self.proc("status")?;
        let line = status.lines().find(|line| line.starts_with(name)).context("the line")?;
        let kib: f64 = line.split_whitespace().nth(1).context("a number")?.parse()?;
        Ok(kib / 1024.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
