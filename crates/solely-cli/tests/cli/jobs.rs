//! `solely jobs`, against a running server.

use serde_json::Value;
use solely_core::job::{ClaimReply, ClaimRequest, JobStore as _, NewJob};
use solely_core::liveness::{Beat, LivenessStore as _};
use solely_core::{Commit, JobId, ProcessId, Verdict};
use std::time::Duration;

use crate::server::{Server, solely};

fn jobs(server: &Server, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = solely(server.folder.path());
    let output = command.arg("jobs").args(args).env("SOLELY_URL", &server.url).output().expect("runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

async fn dead_job(server: &Server, key: &str) -> JobId {
    let (store, process) = (server.tool(), ProcessId::random());
    store.beat(Beat { process, dead_after: Duration::from_secs(5) }).await.expect("beats");
    let job = NewJob::new("queue", key);
    let id = job.id;
    store.enqueue(vec![job]).await.expect("enqueues");
    let request =
        ClaimRequest { process, queue: "queue".to_owned(), limit: 1, lock: Duration::from_secs(60) };
    let ClaimReply::Jobs { jobs, .. } = store.claim(request).await.expect("claims") else { panic!("alive") };
    let verdict = Verdict::Dead { error: "it broke".to_owned() };
    store.settle(vec![Commit::new(jobs[0].claim, verdict)]).await.expect("settles");
    id
}

#[tokio::test]
async fn jobs_are_listed_shown_retried_and_redriven() {
    let server = Server::start().await;
    let (code, out, _) = jobs(&server, &["list"]);
    assert_eq!((code, out.as_str()), (Some(0), "there are no such jobs\n"));
    let (first, second) = (dead_job(&server, "a").await, dead_job(&server, "b").await);
    let (_, out, _) = jobs(&server, &["list", "--state", "dead"]);
    assert_eq!(out.lines().count(), 2, "{out}");
    assert!(out.contains("it broke") && out.contains(&first.to_string()), "{out}");
    let (code, out, _) = jobs(&server, &["show", &first.to_string()]);
    let shown: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &shown["state"]), (Some(0), &"dead".into()));
    let (_, out, _) = jobs(&server, &["retry", &first.to_string()]);
    let shown: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(shown["state"], "ready");
    let (code, _, said) = jobs(&server, &["retry", &first.to_string()]);
    assert_eq!(code, Some(1));
    assert!(said.contains("INVALID_STATE"), "{said}");
    let (_, out, _) = jobs(&server, &["redrive", "--queue", "queue", "--dry-run"]);
    assert!(out.contains("\"redriven\": 1"), "{out}");
    jobs(&server, &["redrive"]);
    let (_, out, _) = jobs(&server, &["list", "--state", "ready", "--json"]);
    assert!(out.contains(&second.to_string()), "{out}");
}

#[tokio::test]
async fn queues_are_paused_and_resumed() {
    let server = Server::start().await;
    let (code, out, _) = jobs(&server, &["pause", "enrich:wolt", "--until", "2999-01-01T00:00:00Z"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("2999-01-01T00:00:00.000Z"), "{out}");
    let (_, out, _) = jobs(&server, &["resume", "enrich:wolt"]);
    assert!(out.contains("\"pausedUntil\": null"), "{out}");
    let (code, _, said) = jobs(&server, &["pause", "enrich:wolf"]);
    assert_eq!(code, Some(1), "a slip is no success");
    assert!(said.contains("There is no queue `enrich:wolf`"), "{said}");
    let (code, _, said) = jobs(&server, &["pause", "a", "--until", "yesterday"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("INVALID_REQUEST"), "{said}");
}

#[test]
fn a_server_that_is_not_there_is_said_so() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let output =
        solely(folder.path()).args(["jobs", "list", "--url", "http://127.0.0.1:1"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no server answers at http://127.0.0.1:1"));
}

/// Every command has an example, and the shell and the manual know them all.
#[test]
fn every_command_explains_itself() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let run = |args: &[&str]| {
        let output = solely(folder.path()).args(args).output().expect("runs");
        assert!(output.status.success(), "{args:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let commands = [
        &["serve"][..],
        &["migrate"],
        &["check"],
        &["config"],
        &["torture"],
        &["keys", "create"],
        &["keys", "list"],
        &["keys", "revoke"],
        &["jobs", "list"],
        &["jobs", "show"],
        &["jobs", "retry"],
        &["jobs", "redrive"],
        &["jobs", "pause"],
        &["jobs", "resume"],
        &["completions"],
        &["man"],
    ];
    for command in commands {
        let help = run(&[command, &["--help"]].concat());
        assert!(help.contains("Example"), "{command:?}: {help}");
    }
    assert!(run(&["completions", "bash"]).contains("redrive"));
    assert!(run(&["man"]).contains("solely"));
}
