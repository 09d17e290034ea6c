//! `cargo xtask count`: what does not depend on the machine. Memory asked for by the pure parts and the hits in
//! memory, and instructions of the pure parts by callgrind, beside what `bench/counts.txt` says.
//!
//! A part that takes more than is written there, and a little, fails. One that takes clearly less is told of, and
//! `--write` writes it down. That secrets are compared in a time that tells nothing is counted too. Instructions are those of the compiler that the file names; with another one the
//! memory alone is compared.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// What a part takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    allocations: u64,
    bytes: u64,
    /// Of parts that are pure.
    instructions: Option<u64>,
}

/// By how much a count may be larger than what is written, in hundredths: of memory, and of instructions.
const MORE: (u64, u64) = (2, 5);
/// How often a part is done, once and once more, so that what is done once does not count.
const TIMES: (u64, u64) = (20, 60);
const PURE: [&str; 4] = ["decide", "match", "told", "plan"];

pub(crate) fn count(root: &Path, write: bool) -> Result<()> {
    super::run(&mut super::cargo(&[
        "build",
        "--quiet",
        "--package",
        "solely-bench",
        "--bin",
        "solely-counts",
    ]))?;
    let (program, page) = (root.join("target/debug/solely-counts"), root.join("bench/counts.txt"));
    let mut counted = BTreeMap::new();
    for (part, allocations, bytes) in allocations(&program)? {
        let instructions =
            PURE.contains(&part.as_str()).then(|| instructions(&program, &part)).transpose()?;
        counted.insert(part, Counts { allocations, bytes, instructions });
    }
    secrets(&program)?;
    let compiler = compiler()?;
    let mut told = format!("# {HEAD}\n# {compiler}\n");
    for (part, Counts { allocations, bytes, instructions }) in &counted {
        let _ = writeln!(told, "{part} {allocations} {bytes} {}", shown(*instructions));
    }
    print!("{told}");
    if write {
        return Ok(std::fs::write(page, told)?);
    }
    let written = std::fs::read_to_string(&page)?;
    compare(&counted, &read(&written)?, written.lines().any(|line| line == format!("# {compiler}")))
}

const HEAD: &str = "part, allocations, bytes, instructions; written by `cargo xtask count --write`";

fn compare(counted: &BTreeMap<String, Counts>, written: &BTreeMap<String, Counts>, same: bool) -> Result<()> {
    ensure!(
        counted.keys().eq(written.keys()),
        "bench/counts.txt has other parts: `cargo xtask count --write`"
    );
    let mut more = Vec::new();
    for (part, now) in counted {
        let before = written[part];
        let mut judge = |what: &str, now: u64, before: u64, allowed: u64| {
            if now * 100 > before * (100 + allowed) {
                more.push(format!("{part}: {now} {what}, and not {before}"));
            } else if now * 100 < before * (100 - allowed) {
                println!(
                    "{part}: {now} {what}, which were {before}: `cargo xtask count --write` writes it down"
                );
            }
        };
        judge("allocations", now.allocations, before.allocations, MORE.0);
        judge("bytes", now.bytes, before.bytes, MORE.0);
        if let (Some(now), Some(before), true) = (now.instructions, before.instructions, same) {
            judge("instructions", now, before, MORE.1);
        }
    }
    if !same {
        println!("another compiler than that of bench/counts.txt: instructions are not compared");
    }
    ensure!(more.is_empty(), "takes more than it did:\n{}", more.join("\n"));
    Ok(())
}

fn read(text: &str) -> Result<BTreeMap<String, Counts>> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [part, allocations, bytes, instructions] = words[..] else { bail!("cannot be read: {line}") };
        let instructions = (instructions != "-").then(|| instructions.parse()).transpose()?;
        let (allocations, bytes) = (allocations.parse()?, bytes.parse()?);
        Ok((part.to_owned(), Counts { allocations, bytes, instructions }))
    };
    text.lines().filter(|line| !line.starts_with('#')).map(line).collect()
}

fn shown(instructions: Option<u64>) -> String {
    instructions.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

fn allocations(program: &Path) -> Result<Vec<(String, u64, u64)>> {
    let output = Command::new(program).output()?;
    ensure!(output.status.success(), "{}: {}", program.display(), String::from_utf8_lossy(&output.stderr));
    let line = |line: &str| {
        let mut words = line.split(' ');
        let mut next = || words.next().with_context(|| format!("cannot be read: {line}"));
        Ok((next()?.to_owned(), next()?.parse()?, next()?.parse()?))
    };
    String::from_utf8(output.stdout)?.lines().map(line).collect()
}

/// A guess that is wrong at the end takes as long as one that is wrong at once. Compared plainly, it does not.
fn secrets(program: &Path) -> Result<()> {
    let takes = |part: &str| instructions(program, part);
    let (first, last) = (takes("secret-first")?, takes("secret-last")?);
    ensure!(first == last, "a secret is compared in {first} instructions, or in {last}");
    ensure!(takes("plain-first")? < takes("plain-last")?, "a comparison that tells is not noticed");
    println!("a secret is compared in {first} instructions, wherever it is wrong");
    Ok(())
}

/// Instructions of a part done once, as the difference between many times and few.
fn instructions(program: &Path, part: &str) -> Result<u64> {
    let all = |times: u64| -> Result<u64> {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(program)
            .args([part, &times.to_string()])
            .output()
            .context("cannot run valgrind")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{part} under callgrind: {said}");
        let collected = said.lines().find_map(|line| line.split("Collected :").nth(1));
        Ok(collected.with_context(|| format!("no count: {said}"))?.trim().parse()?)
    };
    Ok((all(TIMES.1)?.saturating_sub(all(TIMES.0)?)) / (TIMES.1 - TIMES.0))
}

fn compiler() -> Result<String> {
    Ok(String::from_utf8(Command::new("rustc").arg("--version").output()?.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(allocations: u64, instructions: u64) -> BTreeMap<String, Counts> {
        let counts = Counts { allocations, bytes: 1_000, instructions: Some(instructions) };
        [("part".to_owned(), counts)].into()
    }

    #[test]
    fn more_than_was_written_fails_and_less_does_not() {
        let written = counts(100, 10_000);
        for (allocations, instructions, same, good) in [
            (100, 10_000, true, true),
            (102, 10_400, true, true),
            (50, 5_000, true, true),
            (103, 10_000, true, false),
            (100, 10_600, true, false),
            (100, 10_600, false, true),
        ] {
            let judged = compare(&counts(allocations, instructions), &written, same);
            assert_eq!(judged.is_ok(), good, "{allocations} {instructions} {same}: {judged:?}");
        }
    }

    #[test]
    fn parts_that_are_not_written_fail() {
        assert!(compare(&counts(1, 1), &BTreeMap::new(), true).is_err());
    }
}
