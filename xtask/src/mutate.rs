//! `cargo xtask mutate`: engine lines made wrong one by one, and which named tests notice.
//!
//! A mutation that no test notices is a promise that is only prose. Not part of `ci`: each one
//! is a build and a run of the engine's conformance tests.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// One line made wrong.
struct Mutation {
    engine: &'static str,
    file: &'static str,
    what: &'static str,
    line: &'static str,
    wrong: &'static str,
}

const SPINE: &str = "crates/solely-postgres/src/migrations/0001_spine.sql";

const MUTATIONS: &[Mutation] = &[
    Mutation {
        engine: "postgres",
        file: SPINE,
        what: "a settlement needs no fence",
        line: "AND (fence = claimed_fence AND state = 2 AND ends_at > now_ms OR NOT fence_holds)\n        RETURNING claimed_place::integer, again",
        wrong: "AND (state = 2 AND ends_at > now_ms OR NOT fence_holds)\n        RETURNING claimed_place::integer, again",
    },
    Mutation {
        engine: "postgres",
        file: SPINE,
        what: "a settlement needs no live lock",
        line: "AND (fence = claimed_fence AND state = 2 AND ends_at > now_ms OR NOT fence_holds)\n        RETURNING claimed_place::integer, again",
        wrong: "AND (fence = claimed_fence AND state = 2 OR NOT fence_holds)\n        RETURNING claimed_place::integer, again",
    },
    Mutation {
        engine: "postgres",
        file: SPINE,
        what: "a claim takes jobs before they are due",
        line: "AND priority = urgency AND due_at <= now_ms",
        wrong: "AND priority = urgency AND due_at IS NOT NULL",
    },
    Mutation {
        engine: "postgres",
        file: SPINE,
        what: "a pause does not stop claims",
        line: "PERFORM 1 FROM queues WHERE name = wanted_queue AND paused_until > now_ms;",
        wrong: "PERFORM 1 FROM queues WHERE name = wanted_queue AND false;",
    },
    Mutation {
        engine: "postgres",
        file: SPINE,
        what: "a running job does not keep its key",
        line: "state <= 2",
        wrong: "state <= 1",
    },
    Mutation {
        engine: "postgres",
        file: SPINE,
        what: "a lease that has ended can be released",
        line: "WHERE lease = given.id AND expires_at > now_ms\n            RETURNING 0",
        wrong: "WHERE lease = given.id\n            RETURNING 0",
    },
    Mutation {
        engine: "postgres",
        file: SPINE,
        what: "a key that is held can be taken",
        line: "IF held.expires_at > now_ms THEN",
        wrong: "IF false THEN",
    },
    Mutation {
        engine: "postgres",
        file: SPINE,
        what: "an older version overwrites a newer entry",
        line: "WHERE new.version IS NULL OR new.version > entries.version",
        wrong: "WHERE true",
    },
    Mutation {
        engine: "postgres",
        file: SPINE,
        what: "a slot beyond the caller's patience is taken",
        line: "IF paused_ms = 0 AND after_us <= patience_us THEN",
        wrong: "IF paused_ms = 0 THEN",
    },
    Mutation {
        engine: "postgres",
        file: "crates/solely-postgres/src/migrations/0002_feed.sql",
        what: "a page is written wherever its partition is",
        line: "AND next_offset = at_offset AND NOT completed",
        wrong: "AND NOT completed",
    },
    Mutation {
        engine: "postgres",
        file: "crates/solely-postgres/src/job.rs",
        what: "a rescue frees only jobs of dead processes",
        line: "AND (ends_at <= $1 OR NOT EXISTS",
        wrong: "AND ($1 < 0 OR NOT EXISTS",
    },
    Mutation {
        engine: "postgres",
        file: "crates/solely-postgres/src/liveness.rs",
        what: "everyone is buried, beating or not",
        line: "WHERE beat_at < $1 ORDER BY id",
        wrong: "WHERE beat_at < $1 OR true ORDER BY id",
    },
    Mutation {
        engine: "sqlite",
        file: "crates/solely-sqlite/src/commit.rs",
        what: "a settlement needs no fence",
        line: "AND (fence = ?2 AND state = 2 AND ends_at > ?3 OR NOT ?4)",
        wrong: "AND (?2 IS NOT NULL AND state = 2 AND ends_at > ?3 OR NOT ?4)",
    },
    Mutation {
        engine: "sqlite",
        file: "crates/solely-sqlite/src/lease.rs",
        what: "a lease that has ended can be renewed",
        line: "WHERE lease = ?1 AND expires_at > ?2\n",
        wrong: "WHERE lease = ?1 AND ?2 IS NOT NULL\n",
    },
    Mutation {
        engine: "sqlite",
        file: "crates/solely-sqlite/src/cache.rs",
        what: "an older version overwrites a newer entry",
        line: "WHERE ?4 IS NULL OR ?4 > version",
        wrong: "WHERE true",
    },
];

/// Tries every mutation whose name contains a text and prints a table; fails if one goes
/// unnoticed.
pub(crate) fn mutate(root: &Path, filter: &str) -> Result<()> {
    let postgres = solely_testing::PostgresServer::start();
    let (mut table, mut unnoticed) =
        (String::from("| engine | what is wrong | noticed by |\n|---|---|---|\n"), 0);
    for mutation in MUTATIONS.iter().filter(|mutation| mutation.what.contains(filter)) {
        let failed = {
            let _wrong = Wrong::make(root, mutation)?;
            failing_tests(root, mutation.engine, &postgres.url())?
        };
        unnoticed += usize::from(failed.is_empty());
        let named: Vec<String> = failed.iter().take(3).map(|name| format!("`{name}`")).collect();
        let more = failed.len().saturating_sub(3);
        let and_more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let row = format!("| {} | {} | {}{and_more} |\n", mutation.engine, mutation.what, named.join(", "));
        print!("{row}");
        table.push_str(&row);
    }
    println!("\n{table}");
    if unnoticed > 0 {
        bail!("{unnoticed} mutations went unnoticed");
    }
    Ok(())
}

/// A file that is wrong until this is dropped.
struct Wrong {
    file: std::path::PathBuf,
    right: String,
}

impl Wrong {
    fn make(root: &Path, mutation: &Mutation) -> Result<Self> {
        let file = root.join(mutation.file);
        let right = std::fs::read_to_string(&file)?;
        if !right.contains(mutation.line) {
            bail!("{} does not contain {:?} any more", mutation.file, mutation.line);
        }
        std::fs::write(&file, right.replace(mutation.line, mutation.wrong))?;
        Ok(Self { file, right })
    }
}

impl Drop for Wrong {
    fn drop(&mut self) {
        if std::fs::write(&self.file, &self.right).is_err() {
            eprintln!("{} is still wrong: restore it with git", self.file.display());
        }
    }
}

/// The conformance tests of an engine that fail.
fn failing_tests(root: &Path, engine: &str, postgres: &str) -> Result<Vec<String>> {
    let tests = format!("test(/^{engine}::/) - test(model)");
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "nextest",
            "run",
            "--workspace",
            "--test",
            "conformance",
            "--no-fail-fast",
            "--color",
            "never",
        ])
        .args(["-E", &tests])
        .env(solely_testing::POSTGRES_ENV, postgres)
        .current_dir(root)
        .output()
        .context("cargo nextest is needed")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !said.contains("tests run:") {
        bail!("the tests could not be run:\n{said}");
    }
    let mut failed: Vec<String> = said
        .lines()
        .filter(|line| ["FAIL", "TIMEOUT", "SIG"].iter().any(|word| line.trim_start().starts_with(word)))
        .filter_map(|line| line.rsplit(' ').next())
        .map(|name| name.trim_start_matches(engine).trim_start_matches("::").to_owned())
        .collect();
    failed.sort();
    failed.dedup();
    Ok(failed)
}
