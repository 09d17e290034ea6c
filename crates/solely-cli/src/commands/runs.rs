//! `solely runs`: feeds, over HTTP.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use console::Term;
use serde_json::{Value, json};

use super::{Failed, block_on};
use crate::client::{Client, Remote};
use crate::output::say;

/// Between two looks at a run.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// A run to be started.
#[derive(clap::Args)]
pub(crate) struct RunOptions {
    /// The source
    source: String,
    /// Everything, or what changed since the last run: full or incremental
    #[arg(long, default_value = "full", value_parser = ["full", "incremental"])]
    mode: String,
    /// Records of a page
    #[arg(long)]
    limit: Option<u32>,
    /// Consolidate if at least 70 % of the partitions succeed
    #[arg(long)]
    force: bool,
    /// Watch it until it ends
    #[arg(long)]
    watch: bool,
}

pub(crate) fn start(remote: Remote, start: &RunOptions) -> Result<(), Failed> {
    let mut body = json!({"source": start.source, "mode": start.mode, "force": start.force});
    if let Some(limit) = start.limit {
        body["limit"] = limit.into();
    }
    block_on(async {
        let client = Client::new(remote)?;
        let started = client.post("/v1/runs", &body).await?;
        let id = word(&started, "runId").to_owned();
        say!("{id}");
        if start.watch { watched(&client, &id, false).await } else { Ok(()) }
    })
}

pub(crate) fn watch(remote: Remote, id: Option<String>, as_json: bool) -> Result<(), Failed> {
    block_on(async {
        let client = Client::new(remote)?;
        let id = match id {
            Some(id) => id,
            None => latest(&client).await?,
        };
        watched(&client, &id, as_json).await
    })
}

async fn latest(client: &Client) -> anyhow::Result<String> {
    let runs = client.get("/v1/runs", &[("limit", "1".to_owned())]).await?;
    let id = runs["items"][0]["runId"].as_str().context("there are no runs")?;
    Ok(id.to_owned())
}

pub(crate) fn list(remote: Remote, source: Option<String>, limit: u32, as_json: bool) -> Result<(), Failed> {
    let mut query = vec![("limit", limit.to_string())];
    query.extend(source.map(|source| ("source", source)));
    let runs = block_on(async { Ok(Client::new(remote)?.get("/v1/runs", &query).await?) })?;
    if as_json {
        say!("{}", serde_json::to_string_pretty(&runs)?);
        return Ok(());
    }
    let items = runs["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    for run in items {
        say!("{}  {}  {}", word(run, "runId"), word(run, "startedAt"), summary(run));
    }
    if items.is_empty() {
        say!("there are no runs");
    }
    Ok(())
}

/// Cancels or resumes.
pub(crate) fn change(remote: Remote, id: &str, verb: &str) -> Result<(), Failed> {
    let path = format!("/v1/runs/{id}/{verb}");
    let run = block_on(async { Ok(Client::new(remote)?.post(&path, &json!({})).await?) })?;
    say!("{}  {}", word(&run, "runId"), summary(&run));
    Ok(())
}

/// Follows a run to its end. Fails if the run does.
async fn watched(client: &Client, id: &str, as_json: bool) -> Result<(), Failed> {
    let screen = Screen::new(as_json);
    let mut shown = Shown::default();
    let path = format!("/v1/runs/{id}");
    loop {
        let run = client.get(&path, &[]).await?;
        let ended = matches!(word(&run, "status"), "completed" | "failed" | "cancelled");
        screen.show(&run, &mut shown, ended)?;
        if ended {
            if as_json {
                say!("{}", serde_json::to_string_pretty(&run)?);
            }
            return match word(&run, "status") {
                "completed" => Ok(()),
                other => Err(anyhow!("the run is {other}").into()),
            };
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Where progress is shown.
enum Screen {
    /// Drawn over and over.
    Terminal(Term),
    /// A line now and then.
    Lines,
    /// Not at all.
    Nowhere,
}

#[derive(Default)]
struct Shown {
    lines: usize,
    last: String,
    at: Option<std::time::Instant>,
}

impl Screen {
    fn new(as_json: bool) -> Self {
        if as_json {
            Self::Nowhere
        } else if std::io::stdout().is_terminal() {
            Self::Terminal(Term::stdout())
        } else {
            Self::Lines
        }
    }

    fn show(&self, run: &Value, shown: &mut Shown, ended: bool) -> std::io::Result<()> {
        match self {
            Self::Nowhere => Ok(()),
            Self::Lines => {
                let line = summary(run);
                let due = shown.at.is_none_or(|at| at.elapsed() >= LINE_EVERY);
                if line != shown.last && (due || ended) {
                    writeln!(std::io::stdout(), "{line}")?;
                    (shown.last, shown.at) = (line, Some(std::time::Instant::now()));
                }
                Ok(())
            }
            Self::Terminal(term) => {
                let (rows, columns) = term.size();
                let frame = frame(run, usize::from(rows), usize::from(columns), ended);
                term.clear_last_lines(shown.lines)?;
                for line in &frame {
                    term.write_line(line)?;
                }
                shown.lines = frame.len();
                Ok(())
            }
        }
    }
}

/// What a terminal of this size shows of a run: a bar for each partition that there is room for,
/// those that need a look first, one for all of them, and a summary.
fn frame(run: &Value, rows: usize, columns: usize, ended: bool) -> Vec<String> {
    let partitions = run["partitions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut lines: Vec<(u8, String)> = partitions.iter().map(|one| partition_line(one, columns)).collect();
    let room = rows.saturating_sub(5).max(1);
    // An end shows all of it: what leaves the screen can be scrolled back to.
    if !ended && lines.len() > room {
        lines.sort_by_key(|(urgency, _)| *urgency);
        let left_out = lines.len() - (room - 1);
        lines.truncate(room - 1);
        lines.push((9, format!("  … and {left_out} more")));
    }
    let mut frame: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
    let (done, total) = (number(run, "recordsProcessed"), number(run, "totalRecords"));
    frame.push(cut(
        &format!("{:<14} {} {:>9} / {}", "", bar(done, total, 24), grouped(done), grouped(total)),
        columns,
    ));
    frame.push(cut(&summary(run), columns));
    frame
}

/// A partition's line, and how much it needs a look: the less, the later.
fn partition_line(one: &Value, columns: usize) -> (u8, String) {
    let (done, total) = (number(one, "nextOffset"), number(one, "totalRecords"));
    let (urgency, mark) = match word(one, "status") {
        "failed" => (0, "✗ failed".to_owned()),
        "completed" => (3, "✓".to_owned()),
        _ if one["stuck"] == true => (1, "! stuck".to_owned()),
        _ => (2, String::new()),
    };
    let total = if word(one, "status") == "completed" { done } else { total.max(done) };
    let error = one["error"].as_str().map_or(String::new(), |error| format!(" {error}"));
    let line = format!(
        "{:<14} {} {:>9} / {:<9} {mark}{error}",
        word(one, "partitionId"),
        bar(done, total, 24),
        grouped(done),
        grouped(total)
    );
    (urgency, cut(&line, columns))
}

fn bar(done: u64, total: u64, width: u64) -> String {
    let full = (done.min(total) * width).checked_div(total).unwrap_or(0);
    let filled = "█".repeat(usize::try_from(full).unwrap_or(0));
    let empty = "░".repeat(usize::try_from(width - full).unwrap_or(0));
    format!("{filled}{empty}")
}

/// A line that fits.
fn cut(line: &str, columns: usize) -> String {
    console::truncate_str(line, columns.saturating_sub(1).max(20), "…").into_owned()
}

/// One line about a run.
fn summary(run: &Value) -> String {
    let (done, total) = (number(run, "recordsProcessed"), number(run, "totalRecords"));
    let of_total = if total > 0 { format!(" of {}", grouped(total)) } else { String::new() };
    let failed = match number(run, "failedWorkers") {
        0 => String::new(),
        failed => format!(" ({failed} failed)"),
    };
    let rate = run["recordsPerSecond"].as_f64().filter(|rate| *rate > 0.0);
    let consolidation = &run["consolidation"];
    let counts = (consolidation["status"] == "completed").then(|| {
        let count = |name| format!("{} {name}", grouped(number(consolidation, name)));
        format!("; {}", ["added", "changed", "unchanged", "removed"].map(count).join(", "))
    });
    let rest = [
        rate.map(|rate| format!(", {rate:.0}/s")),
        run["etaSeconds"].as_u64().map(|left| format!(", {} left", span(left))),
        counts,
        run["error"].as_str().map(|error| format!("; {error}")),
    ];
    format!(
        "{} {} {}: {}/{} partitions{failed}, {}{of_total} records{}",
        word(run, "source"),
        word(run, "mode"),
        word(run, "status"),
        number(run, "completedWorkers"),
        number(run, "expectedWorkers"),
        grouped(done),
        rest.into_iter().flatten().collect::<String>()
    )
}

fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    }
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn word<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(partitions: usize) -> Value {
        let one = |n: usize| {
            json!({"partitionId": format!("partition-{n}"), "status": if n == 7 { "failed" } else { "running" },
                   "nextOffset": n * 10, "totalRecords": 1_000, "stuck": false,
                   "error": (n == 7).then_some("the upstream answered 400")})
        };
        json!({"source": "diamonds", "mode": "full", "status": "running", "expectedWorkers": partitions,
               "completedWorkers": 0, "failedWorkers": 1, "recordsProcessed": 12_345, "totalRecords": 100_000,
               "recordsPerSecond": 1_234.5, "etaSeconds": 71,
               "partitions": (1..=partitions).map(one).collect::<Vec<_>>()})
    }

    #[test]
    fn a_frame_fits_its_terminal_and_shows_what_needs_a_look_first() {
        let frame = frame(&run(60), 24, 80, false);
        assert!(frame.len() <= 22, "{}", frame.len());
        assert!(frame.iter().all(|line| console::measure_text_width(line) < 80), "{frame:#?}");
        assert!(frame[0].contains("partition-7 ") && frame[0].contains("✗ failed"), "{}", frame[0]);
        assert!(frame[frame.len() - 3].contains("more"));
    }

    #[test]
    fn a_summary_says_how_far_how_fast_and_how_long() {
        let line = summary(&run(30));
        let expected =
            "diamonds full running: 0/30 partitions (1 failed), 12,345 of 100,000 records, 1234/s, 71 s left";
        assert_eq!(line.replace("1235/s", "1234/s"), expected);
    }
}
