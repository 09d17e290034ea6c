//! `cargo xtask guided`: coverage-guided fuzzing of everything that faces outside, by libFuzzer (`fuzz/`).
//!
//! What was found to reach something new is kept in `fuzz/corpus`, an input a line (`--keep` adds to it, and takes away
//! what others reach as well), so that CI begins where hours by hand have ended. An input that breaks something is left in
//! `target/fuzz/found` and told of; once mended it belongs in the corpus.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

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
    let targets = TARGETS.into_iter().filter(|target| asked.target.is_none_or(|asked| asked == *target));
    for target in targets {
        let fuzzer = Fuzzer { target, program: &program, words: &home.join("words.dict"), made: &made };
        let page = home.join("corpus").join(format!("{target}.txt"));
        let (kept, new) = (made.join("kept").join(target), made.join("new").join(target));
        unpack(&page, &kept)?;
        std::fs::create_dir_all(&new)?;
        fuzzer.run(asked.seconds, [&new, &kept])?;
        if asked.keep {
            let merged = made.join("merged").join(target);
            let _ = std::fs::remove_dir_all(&merged);
            std::fs::create_dir_all(&merged)?;
            // By what is reached, not by how often.
            run(fuzzer
                .command()
                .args(["-set_cover_merge=1", "-use_counters=0"])
                .args([&merged, &kept, &new]))?;
            pack(&merged, &page)?;
        }
    }
    Ok(())
}

/// One target.
struct Fuzzer<'a> {
    target: &'a str,
    program: &'a Path,
    words: &'a Path,
    made: &'a Path,
}

impl Fuzzer<'_> {
    fn command(&self) -> Command {
        let found = self.made.join("found");
        let mut command = Command::new(self.program);
        command.env("SOLELY_FUZZ", self.target);
        command.args([format!("-max_len={BYTES}"), format!("-dict={}", self.words.display())]);
        command.args(["-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1"]);
        command.arg(format!("-artifact_prefix={}/{}-", found.display(), self.target));
        command
    }

    /// Fuzzes for so long, and says how far it came.
    fn run(&self, seconds: u32, folders: [&Path; 2]) -> Result<()> {
        let (log, found) = (self.made.join(format!("{}.log", self.target)), self.made.join("found"));
        std::fs::create_dir_all(&found)?;
        let mut command = self.command();
        command.arg(format!("-max_total_time={seconds}")).args(folders);
        let status = command.stdout(Stdio::null()).stderr(std::fs::File::create(&log)?).status()?;
        let said = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
        let reached = said.lines().rfind(|line| line.contains("cov:")).unwrap_or("nothing was reached");
        println!("{}: {}", self.target, reached.trim());
        if !status.success() {
            let last: Vec<&str> = said.lines().rev().take(40).collect();
            for line in last.into_iter().rev() {
                println!("{line}");
            }
            bail!("{} broke; the input is in {}", self.target, found.display());
        }
        Ok(())
    }
}

/// Writes each line of a page as a file.
fn unpack(page: &Path, folder: &Path) -> Result<()> {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder)?;
    let text = std::fs::read_to_string(page).with_context(|| format!("there is no {}", page.display()))?;
    for (number, line) in text.lines().enumerate() {
        std::fs::write(folder.join(number.to_string()), unescape(line)?)?;
    }
    Ok(())
}

/// The other way round.
fn pack(folder: &Path, page: &Path) -> Result<()> {
    let mut inputs = BTreeSet::new();
    for file in std::fs::read_dir(folder)? {
        inputs.insert(std::fs::read(file?.path())?);
    }
    let lines =
        inputs.iter().filter(|input| !input.is_empty()).map(|input| format!("{}\n", input.escape_ascii()));
    Ok(std::fs::write(page, lines.collect::<String>())?)
}

/// What `escape_ascii` was given.
fn unescape(line: &str) -> Result<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), line.bytes());
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next() {
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'x') => {
                let digits: Vec<u8> = rest.by_ref().take(2).collect();
                u8::from_str_radix(&String::from_utf8(digits)?, 16)?
            }
            Some(plain) => plain,
            None => bail!("a line ends in the middle of a byte: {line}"),
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescape(&all.escape_ascii().to_string()).expect("is read"), all);
        assert!(unescape("\\").is_err());
    }
}
