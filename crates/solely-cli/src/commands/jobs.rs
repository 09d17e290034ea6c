//! `solely jobs`: the queue and its dead letters, over HTTP.

use serde_json::{Value, json};

use super::{Failed, block_on};
use crate::client::{Client, Remote};
use crate::output::say;

/// Which jobs are listed.
#[derive(clap::Args)]
pub(crate) struct Filter {
    /// Only of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only in this state: ready, running, retrying, completed, dead or cancelled
    #[arg(long)]
    state: Option<String>,
    /// Only with this key
    #[arg(long)]
    key_of_job: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
}

/// What is brought back.
#[derive(clap::Args)]
pub(crate) struct DeadOnes {
    /// Only of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only those whose error contains this
    #[arg(long)]
    error: Option<String>,
    /// At most so many
    #[arg(long)]
    limit: Option<u32>,
    /// So many a second
    #[arg(long)]
    rate_per_second: Option<u32>,
    /// Only count them
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn list(remote: Remote, filter: Filter, as_json: bool) -> Result<(), Failed> {
    let given = [("queue", filter.queue), ("state", filter.state), ("key", filter.key_of_job)];
    let mut query: Vec<(&str, String)> =
        given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    query.push(("limit", filter.limit.to_string()));
    let jobs = ask(remote, async |client| client.get("/v1/jobs", &query).await)?;
    if as_json {
        return print(&jobs);
    }
    let empty = Vec::new();
    let jobs = jobs["items"].as_array().unwrap_or(&empty);
    for job in jobs {
        let word = |field: &str| job[field].as_str().unwrap_or_default();
        let error = job["error"].as_str().map_or(String::new(), |error| format!("  {error}"));
        say!(
            "{}  {:<9}  {}  {}  {}/{}{error}",
            word("id"),
            word("state"),
            word("queue"),
            word("key"),
            job["attempts"],
            job["maxAttempts"],
        );
    }
    if jobs.is_empty() {
        say!("there are no such jobs");
    }
    Ok(())
}

pub(crate) fn show(remote: Remote, id: &str) -> Result<(), Failed> {
    print(&ask(remote, async |client| client.get(&format!("/v1/jobs/{id}"), &[]).await)?)
}

pub(crate) fn retry(remote: Remote, id: &str) -> Result<(), Failed> {
    print(&ask(remote, async |client| client.post(&format!("/v1/jobs/{id}/retry"), &json!({})).await)?)
}

pub(crate) fn redrive(remote: Remote, redrive: DeadOnes) -> Result<(), Failed> {
    let mut body = json!({"dryRun": redrive.dry_run});
    let given = [
        ("queue", redrive.queue.map(Value::from)),
        ("error", redrive.error.map(Value::from)),
        ("limit", redrive.limit.map(Value::from)),
        ("ratePerSecond", redrive.rate_per_second.map(Value::from)),
    ];
    for (name, value) in given {
        if let Some(value) = value {
            body[name] = value;
        }
    }
    print(&ask(remote, async |client| client.post("/v1/dead-letters/redrive", &body).await)?)
}

pub(crate) fn pause(remote: Remote, queue: &str, until: Option<String>) -> Result<(), Failed> {
    let body = until.map_or_else(|| json!({}), |until| json!({"until": until}));
    print(&ask(remote, async |client| {
        client.post(&format!("/v1/queues/{}/pause", segment(queue)), &body).await
    })?)
}

pub(crate) fn resume(remote: Remote, queue: &str) -> Result<(), Failed> {
    let path = format!("/v1/queues/{}/resume", segment(queue));
    print(&ask(remote, async |client| client.post(&path, &json!({})).await)?)
}

fn ask(remote: Remote, what: impl AsyncFnOnce(&Client) -> anyhow::Result<Value>) -> Result<Value, Failed> {
    block_on(async { Ok(what(&Client::new(remote)?).await?) })
}

fn print(value: &Value) -> Result<(), Failed> {
    say!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// A name as one segment of a path.
fn segment(name: &str) -> String {
    form_urlencoded::byte_serialize(name.as_bytes()).collect::<String>().replace('+', "%20")
}
