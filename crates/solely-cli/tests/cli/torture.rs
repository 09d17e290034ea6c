//! `solely torture`: it passes, and it can fail.

use serde_json::Value;
use tempfile::TempDir;

use crate::server::solely;

fn torture(args: &[&str]) -> (Option<i32>, Value) {
    let folder = TempDir::new().expect("a folder");
    let output = solely(folder.path()).args(["torture", "--json"]).args(args).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("{said}");
    assert!(said.contains("--seed"), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    println!("{report:#}");
    (output.status.code(), report)
}

/// Three processes, killed, paused beyond their locks, cut off at COMMIT, their database and their
/// Redis restarted: every page exactly once, no entry older than it may be.
#[test]
fn every_page_exactly_once_on_postgres() {
    let (code, report) = torture(&["--for", "15s"]);
    assert_eq!((code, &report["violations"]), (Some(0), &serde_json::json!([])));
    let done = ["kills", "crashes", "pauses", "cutsBeforeCommit", "cutsAfterCommit", "runs", "entriesRead"];
    for what in done.into_iter().chain([
        "clockSkewMs",
        "upstreamTroubles",
        "places",
        "requestsHeard",
        "users",
        "pluginCalls",
        "reservations",
        "expired",
    ]) {
        assert!(report[what].as_u64() > Some(0), "{what}");
    }
}

/// One process on a file, killed and paused, on a disk that is full at times: the same promises.
#[test]
fn every_page_exactly_once_on_one_file() {
    let (code, report) = torture(&["--for", "15s", "--store", "sqlite"]);
    assert_eq!((code, &report["violations"]), (Some(0), &serde_json::json!([])));
    for what in [
        "kills",
        "crashes",
        "pauses",
        "runs",
        "entriesRead",
        "places",
        "requestsHeard",
        "users",
        "reservations",
    ] {
        assert!(report[what].as_u64() > Some(0), "{what}");
    }
    for what in ["cutsBeforeCommit", "restarts", "redisRestarts"] {
        assert_eq!(report[what].as_u64(), Some(0), "{what} is not of a file");
    }
    let (code, report) = torture(&["--for", "60s", "--store", "sqlite", "--break", "page-transaction"]);
    assert_eq!(code, Some(1));
    let said = report["violations"].to_string();
    assert!(said.contains("nothing carries it") || said.contains("WORK_DONE"), "{report}");
}

/// What only saves work is only that.
#[test]
fn without_what_saves_work_it_passes_too() {
    for part in ["redis", "push", "thinning", "sweeper"] {
        let (code, report) = torture(&["--for", "10s", "--without", part]);
        assert_eq!((code, &report["violations"]), (Some(0), &serde_json::json!([])), "without {part}");
        let harmed = ["redisRestarts", "redisPauses"].iter().any(|what| report[what].as_u64() > Some(0));
        assert_eq!(harmed, part != "redis", "without {part}");
    }
}

/// With copies that follow nothing, whoever dies before it copies leaves an old answer for long.
#[test]
fn with_copies_that_do_not_follow_it_reports_old_answers() {
    let (code, report) = torture(&["--for", "60s", "--break", "copies-follow"]);
    assert_eq!(code, Some(1));
    assert!(report["violations"].to_string().contains("replaced"), "{report}");
}

/// With the queue's unique key and the last look off, a place is looked up for everyone who asks.
#[test]
fn without_the_queues_unique_key_it_reports_lookups() {
    let (code, report) = torture(&["--for", "120s", "--break", "dedupe"]);
    assert_eq!(code, Some(1));
    let said = report["violations"].to_string();
    assert!(said.contains("looked up") || said.contains("times more"), "{report}");
}

/// With stock read, and written later however it is then, boxes are sold that are not there.
#[test]
fn without_the_guard_of_the_count_it_reports_stock() {
    let (code, report) = torture(&["--for", "60s", "--break", "decrement"]);
    assert_eq!(code, Some(1));
    assert!(report["violations"].to_string().contains("stock"), "{report}");
}

/// Without the rule and its index, a user has two open reservations at a merchant.
#[test]
fn without_one_active_it_reports_users() {
    let (code, report) = torture(&["--for", "60s", "--break", "one-active"]);
    assert_eq!(code, Some(1));
    assert!(report["violations"].to_string().contains("open reservations"), "{report}");
}

/// With calls that nobody joins, a plugin is called for everyone who searches.
#[test]
fn without_single_flight_it_reports_calls() {
    let (code, report) = torture(&["--for", "60s", "--break", "single-flight"]);
    assert_eq!(code, Some(1));
    assert!(report["violations"].to_string().contains("called for"), "{report}");
}

/// Without replay, whoever comes late never hears.
#[test]
fn without_replay_it_reports_who_never_hears() {
    let (code, report) = torture(&["--for", "60s", "--break", "replay"]);
    assert_eq!(code, Some(1));
    assert!(report["violations"].to_string().contains("never hears"), "{report}");
}

/// With the fence off, whoever was paused settles what is another's by then.
#[test]
fn without_the_fence_it_reports_late_settlements() {
    let (code, report) = torture(&["--for", "120s", "--break", "fence"]);
    assert_eq!(code, Some(1));
    assert!(report["violations"].to_string().contains("settlements"), "{report}");
}

/// With the effect outside the transaction, whoever dies between the two strands its partition.
#[test]
fn without_the_page_transaction_it_reports_stranded_partitions() {
    let (code, report) = torture(&["--for", "120s", "--break", "page-transaction"]);
    assert_eq!(code, Some(1));
    // A partition in the middle is stranded; a last one's end may not be told.
    let said = report["violations"].to_string();
    assert!(said.contains("nothing carries it") || said.contains("WORK_DONE"), "{report}");
}

#[test]
fn a_guard_that_is_not_known_is_refused() {
    let folder = TempDir::new().expect("a folder");
    let output = solely(folder.path()).args(["torture", "--break", "nothing"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("fence") && said.contains("page-transaction"), "{said}");
}

/// A guard that nobody misses would be reported as sound.
#[test]
fn a_guard_that_a_file_does_not_need_is_refused_there() {
    let folder = TempDir::new().expect("a folder");
    let args = ["torture", "--store", "sqlite", "--break", "fence"];
    let output = solely(folder.path()).args(args).output().expect("runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("one process on a file does not miss `fence`"), "{said}");
}
