//! Every example runs, ends by itself, and prints what it promises.

use std::path::PathBuf;
use std::process::Command;

/// Cargo builds examples with the tests, beside them.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test is a file");
    let built = test.parent().and_then(|deps| deps.parent()).expect("it is in a folder of the target");
    let path = built.join("examples").join(name);
    assert!(path.is_file(), "{} is not there: `cargo build -p solely --examples`", path.display());
    path
}

fn run(name: &str) -> Vec<String> {
    let output = Command::new(example(name)).output().expect("it starts");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

/// How many lines hold this.
fn count(lines: &[String], part: &str) -> usize {
    lines.iter().filter(|line| line.contains(part)).count()
}

/// One job of two, a retry, and effect and next job together.
#[test]
fn jobs() {
    let lines = run("jobs");
    assert_eq!(lines[0], "enqueued: Created");
    assert!(lines[1].starts_with("enqueued: Duplicate"), "{lines:?}");
    let rest =
        ["cat.jpg: the disk is busy", "cat.jpg: a mail says that it is there", "cat.jpg: \"small cat.jpg\""];
    assert_eq!(lines[2..], rest);
}

/// One lookup; both callers hear, and the next is told at once.
#[test]
fn enrich() {
    let lines = run("enrich");
    assert_eq!(count(&lines, "is told Pending"), 2, "{lines:?}");
    assert_eq!(count(&lines, "looking up Pizza House"), 1, "{lines:?}");
    for name in ["alice", "bob"] {
        assert_eq!(count(&lines, &format!("{name} hears {{\"type\":\"RESULT_PATCH\"")), 1, "{lines:?}");
    }
    assert_eq!(count(&lines, "whoever asks now is told Known"), 1, "{lines:?}");
}

/// Five callers, one call.
#[test]
fn products() {
    let lines = run("products");
    assert_eq!(count(&lines, "the plugin is called for u1"), 1, "{lines:?}");
    assert_eq!(count(&lines, "a caller has 2 products"), 5, "{lines:?}");
    let last = lines.last().expect("a line");
    assert!(last.starts_with("Fresh: ") && last.contains("Boat trip") && !last.contains("Morning"), "{last}");
}

/// Every record once.
#[test]
fn feed() {
    let lines = run("feed");
    assert!(lines[0].starts_with("the run is completed with "), "{lines:?}");
    assert_eq!(lines[1], "1000 records are current, the last is stone-1000");
}

/// The last box goes to one of two; only its code collects it.
#[test]
fn reserve() {
    let expected = [
        "alice: Active, payment Pending",
        "bob: Refused(BoxUnavailable)",
        "alice: Active, payment Paid",
        "somebody with another code: Refused(WrongCode)",
        "alice: Completed",
    ];
    assert_eq!(run("reserve"), expected);
}
