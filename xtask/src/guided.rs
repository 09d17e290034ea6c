//! `cargo xtask guided`: coverage-guided fuzzing of everything that faces outside, by libFuzzer (`fuzz/`).
//!
//! What was found to reach something new is kept in `fuzz/corpus` (`--keep` adds to it, and takes away what others reach
//! as well), so that CI begins where hours by hand have ended. An input that breaks something is left in
//! `target/fuzz/found` and told of; once mended it belongs in the corpus.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::run;

/// What faces outside.
pub(crate) const TARGETS: [&str; 5] = ["http", "socket", "upstream", "config", "stored"];

/// Counters at every branch, comparisons told to the fuzzer: flags of any compiler.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
                     --cfg fuzzing";

/// The largest input.
const BYTES: u32 = 2_048;

/// How long, what, and whether to keep what is new.
pub(crate) struct Asked<'a> {
    pub(crate) target: Option<&'a str>,
    pub(crate) seconds: u32,
    pub(crate) keep: bool,
}

pub(crate) fn guided(root: &Path, asked: &Asked<'_>) -> Result<()> {
    let (home, made) = (root.join("fuzz"), root.join("target/fuzz"));
    // The target is named, so that what builds the build is not counted too.
    let triple = env!("XTASK_TARGET");
    run(crate::cargo(&["build", "--quiet", "--release", "--locked", "--target", triple, "--manifest-path"])
        .arg(home.join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", &made)
        .env("RUSTFLAGS", FLAGS))?;
    let program = made.join(triple).join("release/solely-fuzz");
    for target in TARGETS.into_iter().filter(|target| asked.target.is_none_or(|asked| asked == *target)) {
        let (kept, new, found) =
            (home.join("corpus").join(target), made.join("new").join(target), made.join("found"));
        for folder in [&kept, &new, &found] {
            std::fs::create_dir_all(folder)?;
        }
        println!("guided: {target}, {} s", asked.seconds);
        let fuzzer = || {
            let mut fuzzer = Command::new(&program);
            fuzzer.env("SOLELY_FUZZ", target).current_dir(&made);
            fuzzer
                .args([format!("-max_len={BYTES}"), format!("-dict={}", home.join("words.dict").display())]);
            fuzzer.args(["-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1", "-verbosity=1"]);
            fuzzer.arg(format!("-artifact_prefix={}/{target}-", found.display()));
            fuzzer
        };
        let log = made.join(format!("{target}.log"));
        let status = fuzzer()
            .arg(format!("-max_total_time={}", asked.seconds))
            .args([&new, &kept])
            .stderr(std::fs::File::create(&log)?)
            .stdout(std::process::Stdio::null())
            .status()?;
        let said = std::fs::read_to_string(&log).unwrap_or_else(|_| String::new());
        let last: Vec<&str> = said.lines().filter(|line| line.contains("cov:")).collect();
        println!("{}", last.last().unwrap_or(&"nothing was reached"));
        for line in said.lines().filter(|line| line.contains("number_of_executed_units")) {
            println!("{line}");
        }
        if !status.success() {
            let tail: Vec<&str> = said.lines().rev().take(40).collect();
            for line in tail.into_iter().rev() {
                println!("{line}");
            }
            bail!("{target} broke; the input is in {}", found.display());
        }
        if asked.keep {
            let fresh = made.join("merged").join(target);
            let _ = std::fs::remove_dir_all(&fresh);
            std::fs::create_dir_all(&fresh)?;
            run(fuzzer().arg("-set_cover_merge=1").args([&fresh, &kept, &new]))?;
            std::fs::remove_dir_all(&kept)?;
            std::fs::rename(&fresh, &kept)?;
        }
    }
    Ok(())
}
