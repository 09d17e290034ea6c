//! The commands that do one thing.

use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

use crate::server::solely;

fn run(folder: &TempDir, args: &[&str], env: &[(&str, &str)]) -> Output {
    solely(folder.path()).args(args).envs(env.iter().copied()).output().expect("runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn folder() -> TempDir {
    TempDir::new().expect("a folder")
}

fn setting(folder: &TempDir, env: &[(&str, &str)], key: &str) -> (Value, Value) {
    let output = run(folder, &["config", "--json"], env);
    assert!(output.status.success(), "{}", stderr(&output));
    let settings: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let found = settings.into_iter().find(|setting| setting["key"] == key).expect("is listed");
    (found["value"].clone(), found["origin"].clone())
}

/// Defaults, file, environment: each beats the one before, and each value says where it is from.
#[test]
fn each_value_knows_its_origin() {
    let folder = folder();
    let key = "server.shutdown_grace";
    assert_eq!(setting(&folder, &[], key), ("30s".into(), "default".into()));
    std::fs::write(folder.path().join("solely.toml"), "[server]\nshutdown_grace = \"10s\"\n")
        .expect("writes");
    assert_eq!(setting(&folder, &[], key), ("10s".into(), "solely.toml".into()));
    let name = "SOLELY__SERVER__SHUTDOWN_GRACE";
    assert_eq!(setting(&folder, &[(name, "5s")], key), ("5s".into(), format!("environment {name}").into()));
    let url = setting(&folder, &[("DATABASE_URL", "postgres://u:hunter2@h/db")], "store.url");
    assert_eq!(url, ("postgres://u:***@h/db".into(), "environment DATABASE_URL".into()));
    let url = setting(&folder, &[("REDIS_URL", "redis://:hunter2@h:6379/1")], "redis.url");
    assert_eq!(url, ("redis://:***@h:6379/1".into(), "environment REDIS_URL".into()));
}

/// An unknown key or a bad value: exit 2, the key, its origin, and the nearest known one.
#[test]
fn a_wrong_configuration_is_refused_by_every_command() {
    let folder = folder();
    let cases = [
        (("SOLELY__SERVER__LISEN", "127.0.0.1:1"), "`server.lisen`", "did you mean `server.listen`"),
        (("SOLELY__RETENTION__JOBS", "5y"), "`retention.jobs`", "duration"),
        (("SOLELY__SERVER__MAX_BODY", "big"), "`server.max_body`", "size"),
        (("SOLELY__SERVER__LISTEN", "nowhere"), "`server.listen`", "socket address"),
        (("SOLELY__SERVER__LISTEN", "0.0.0.0:7420"), "`server.listen`", "loopback"),
        (("SOLELY__STORE__MAX_CONNECTIONS", "2"), "`store.max_connections`", "at least 3"),
        (("SOLELY__SERVER__MAX_IN_FLIGHT", "0"), "`server.max_in_flight`", "at least 1"),
        (("SOLELY__SERVER__CORS_ORIGINS", "[\"example.org\"]"), "`server.cors_origins`", "https://"),
        (("SOLELY__AUTH__MODE", "everyone"), "`auth.mode`", "keys"),
        (("SOLELY__REDIS__URL", "http://a"), "`redis.url`", "redis+sentinel://"),
        (("REDIS_URL", "redis://a,b"), "`redis.url`", "redis+cluster://"),
    ];
    for (env, key, says) in cases {
        for command in ["config", "check", "migrate", "serve"] {
            let output = run(&folder, &[command], &[env]);
            assert_eq!(output.status.code(), Some(2), "{command} {env:?}");
            assert!(stderr(&output).contains(key) && stderr(&output).contains(says), "{}", stderr(&output));
        }
    }
    assert!(!folder.path().join("solely.db").exists(), "nothing was made");
    let missing = run(&folder, &["config", "--config", "absent.toml"], &[]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("absent.toml"));
}

/// Whoever reads what a command prints may stop at any line.
#[test]
fn nobody_has_to_read_all_of_it() {
    let folder = TempDir::new().expect("a folder");
    let mut child = solely(folder.path())
        .arg("config")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(141), ""));
}

/// Those that speak to a server look for the local one where the configuration says; it has to be right.
#[test]
fn commands_that_ask_a_server_find_it_by_the_configuration() {
    let folder = folder();
    let listen = ("SOLELY__SERVER__LISTEN", "127.0.0.1:9");
    for command in [&["jobs", "list"][..], &["runs", "list"]] {
        let output = run(&folder, command, &[listen]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("http://127.0.0.1:9"), "{}", stderr(&output));
        let output = run(&folder, command, &[("SOLELY__SERVER__LISEN", "127.0.0.1:9")]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
}

/// A secret of digits alone is one.
#[test]
fn text_is_text_whatever_it_looks_like() {
    let folder = folder();
    let env = [("SOLELY__AUTH__JWT_SECRET", "0123456789")];
    assert_eq!(setting(&folder, &env, "auth.jwt_secret").0, Value::from("***"));
}

/// A store that this build does not know is said so.
#[test]
fn an_unknown_store_is_refused() {
    for command in ["config", "check", "migrate", "serve"] {
        let output = run(&folder(), &[command], &[("DATABASE_URL", "mysql://u:hunter2@h/db")]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        assert!(stderr(&output).contains("store.url") && !stderr(&output).contains("hunter2"));
    }
}

/// Migrating twice is migrating once.
#[test]
fn migrate_can_be_repeated() {
    let folder = folder();
    for _ in 0..2 {
        let output = run(&folder, &["migrate"], &[]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).contains("up to date"));
    }
}

/// A sound store: exit 0 and counts. A broken one: exit 1 and each violation.
#[test]
fn check_finds_what_is_broken() {
    let folder = folder();
    let output = run(&folder, &["check"], &[]);
    assert_eq!(output.status.code(), Some(1), "there is nothing to check");
    assert!(stderr(&output).contains("no store") && !folder.path().join("solely.db").exists());
    run(&folder, &["migrate"], &[]);
    let output = run(&folder, &["check"], &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("no violations"));
    let conn = rusqlite::Connection::open(folder.path().join("solely.db")).expect("opens");
    conn.execute_batch(
        "INSERT INTO leases (key, lease, owner, fence, ttl_ms, expires_at) VALUES ('a', x'01', 'o', 99, 1, 1);
         INSERT INTO feeds (feed, source, last_number) VALUES (1, 's', 1);
         INSERT INTO run_metadata (run_id, feed, source, number, mode, status, force, page_limit,
                                   watermark_after, expected_workers, started_at)
         VALUES ('r', 1, 's', 1, 'full', 'running', 0, 30, 0, 1, 0);
         INSERT INTO partition_progress (run_id, partition_id, place, min_price, max_price, next_offset,
                                         created_at, updated_at)
         VALUES ('r', 'p', 1, 0, 9, 30, 0, 0);
         INSERT INTO worker_runs (run_id, partition_id, status, records_processed) VALUES ('r', 'p', 'running', 30);",
    )
    .expect("breaks it");
    let output = run(&folder, &["check", "--json"], &[]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rules: Vec<&str> = report["violations"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["rule"].as_str())
        .collect();
    assert_eq!(
        rules,
        [
            "no fence above the counter",
            "a run's records are those that its partitions counted",
            "a partition of a running run is complete, has failed or has a job"
        ]
    );
}

/// The same commands on PostgreSQL.
#[test]
fn migrate_and_check_work_on_postgres() {
    let url = solely_testing::postgres_url();
    for command in ["migrate", "check"] {
        let output = run(&folder(), &[command], &[("DATABASE_URL", &url)]);
        assert!(output.status.success(), "{command}: {}", stderr(&output));
    }
}

/// Every command explains itself, with an example.
#[test]
fn every_command_has_help_with_an_example() {
    for args in [
        vec!["--help"],
        vec!["serve", "--help"],
        vec!["migrate", "--help"],
        vec!["check", "--help"],
        vec!["config", "--help"],
    ] {
        let output = run(&folder(), &args, &[]);
        assert!(output.status.success());
        assert!(stdout(&output).contains("Example"), "{args:?}");
    }
}
