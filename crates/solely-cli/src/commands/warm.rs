//! `solely warm`: has places looked up ahead of requests, from a file of one JSON object a line.
//!
//! What was sent is noted in `FILE.resume` after every batch, as the number of lines that are done: told
//! to stop, or refused, it goes on from there the next time.

use std::io::{BufRead as _, BufReader, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::{Failed, block_on};
use crate::client::{Client, Remote};
use crate::output::say;

/// Places that are sent at once.
const BATCH: usize = 100;
/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// What is to be warmed.
#[derive(clap::Args)]
pub(crate) struct WarmOptions {
    /// Places, one JSON object a line: {"placeId":"…","name":"…","cityText":"…"}
    file: PathBuf,
    /// At which provider
    #[arg(long)]
    provider: String,
    /// Places a second, at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Option<u32>,
    /// Begin at the first line, whatever was done before
    #[arg(long)]
    restart: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// What became of the places.
#[derive(Default)]
struct Done {
    lines: usize,
    queued: u64,
    cached: u64,
    duplicate: u64,
}

pub(crate) fn run(remote: Remote, options: &WarmOptions) -> Result<(), Failed> {
    let resume = resume_file(&options.file);
    let done_before = if options.restart { 0 } else { lines_done(&resume)? };
    let lines = read(&options.file)?;
    if done_before > 0 {
        eprintln!("going on after line {done_before} (--restart begins anew)");
    }
    let done = block_on(warm(Client::new(remote)?, options, &lines, done_before, &resume))?;
    // All of it is done: there is nothing to go on with.
    if resume.is_file() {
        std::fs::remove_file(&resume).with_context(|| format!("{} cannot be removed", resume.display()))?;
    }
    if options.json {
        let Done { lines, queued, cached, duplicate } = done;
        say!("{}", json!({"lines": lines, "queued": queued, "cached": cached, "duplicate": duplicate}));
    } else {
        say!("{} queued, {} cached, {} duplicate", done.queued, done.cached, done.duplicate);
    }
    Ok(())
}

async fn warm(
    client: Client,
    options: &WarmOptions,
    lines: &[(usize, Value)],
    done_before: usize,
    resume: &Path,
) -> Result<Done, Failed> {
    let left: Vec<&(usize, Value)> = lines.iter().filter(|(line, _)| *line > done_before).collect();
    let (screen, began) = (Screen::new(left.len() as u64), Instant::now());
    let mut done = Done { lines: lines.len() - left.len(), ..Done::default() };
    let mut sent = 0;
    for batch in left.chunks(options.rate.map_or(BATCH, |rate| BATCH.min(rate as usize))) {
        if let Some(rate) = options.rate {
            // When so many should have been sent.
            let due = began + Duration::from_secs(1).mul_f64(f64::from(sent) / f64::from(rate));
            tokio::time::sleep_until(due.into()).await;
        }
        let places: Vec<&Value> = batch.iter().map(|(_, place)| place).collect();
        let body = json!({"provider": options.provider, "places": places});
        let warmed = client.post("/v1/enrich/warm", &body).await.with_context(|| {
            format!("after line {}; the same command goes on from there", lines_done(resume).unwrap_or(0))
        })?;
        let number = |field: &str| warmed[field].as_u64().unwrap_or(0);
        done.queued += number("queued");
        done.cached += number("cached");
        done.duplicate += number("duplicate");
        done.lines += batch.len();
        sent += u32::try_from(batch.len()).unwrap_or(u32::MAX);
        let last = batch.last().map_or(0, |(line, _)| *line);
        std::fs::write(resume, format!("{last}\n"))
            .with_context(|| format!("{} cannot be written", resume.display()))?;
        screen.show(&done, sent, began);
    }
    screen.end();
    Ok(done)
}

/// The places, with the numbers of their lines. Blank lines are passed over.
fn read(file: &Path) -> Result<Vec<(usize, Value)>, Failed> {
    let opened = std::fs::File::open(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let mut places = Vec::new();
    for (line, text) in (1..).zip(BufReader::new(opened).lines()) {
        let text = text.with_context(|| format!("{} cannot be read", file.display()))?;
        if text.trim().is_empty() {
            continue;
        }
        let place: Value = serde_json::from_str(&text)
            .map_err(|error| anyhow!("{}, line {line}: {error}", file.display()))?;
        for field in ["placeId", "name"] {
            if !place[field].is_string() {
                return Err(anyhow!("{}, line {line}: `{field}` is missing", file.display()).into());
            }
        }
        places.push((line, place));
    }
    Ok(places)
}

fn resume_file(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".resume");
    PathBuf::from(name)
}

/// How many lines were done before.
fn lines_done(resume: &Path) -> Result<usize, Failed> {
    match std::fs::read_to_string(resume) {
        Ok(text) => Ok(text.trim().parse().with_context(|| {
            format!("{} does not say how far it was; --restart begins anew", resume.display())
        })?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Where progress is shown.
enum Screen {
    Bar(ProgressBar),
    Lines { last: std::cell::Cell<Instant>, all: u64 },
}

impl Screen {
    fn new(all: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines { last: std::cell::Cell::new(Instant::now()), all };
        }
        let bar = ProgressBar::new(all);
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len}  {per_sec}  {msg}  {eta}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self::Bar(bar)
    }

    fn show(&self, done: &Done, sent: u32, began: Instant) {
        let told = format!("{} queued, {} cached", done.queued, done.cached);
        match self {
            Self::Bar(bar) => {
                bar.set_message(told);
                bar.set_position(sent.into());
            }
            Self::Lines { last, all } if last.get().elapsed() >= LINE_EVERY => {
                last.set(Instant::now());
                let rate = f64::from(sent) / began.elapsed().as_secs_f64();
                eprintln!("{sent}/{all}  {rate:.0}/s  {told}");
            }
            Self::Lines { .. } => {}
        }
    }

    fn end(&self) {
        if let Self::Bar(bar) = self {
            bar.finish();
        }
    }
}
