//! The repository's own commands: `cargo xtask setup | fmt | test | ci | web | api | bench | count | mutate | fuzz | guided | beside`.
//!
//! `ci` is exactly what runs before a change lands, and includes `test`; both install what they
//! need if it is missing.

mod count;
mod fuzz;
mod guided;
mod mutate;
mod web;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};

/// Tasks of the solely repository
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what tests need and this machine lacks (Debian packages)
    Setup,
    /// Format the code, or check that it is
    Fmt {
        /// Change nothing, fail if something would change
        #[arg(long)]
        check: bool,
    },
    /// Run every test
    Test {
        /// Only tests whose name contains this
        filter: Option<String>,
    },
    /// Everything that must hold before a change lands
    Ci,
    /// Make engine lines wrong one by one, and list the tests that notice
    Mutate {
        /// Only those whose name contains this
        filter: Option<String>,
    },
    /// Run the tests of the dashboard in a real browser
    Web,
    /// Write docs/API.md from what the server says of itself
    Api,
    /// Make thousands of requests from the description of the routes
    Fuzz {
        /// Cases for each route
        #[arg(long, default_value_t = 400)]
        cases: u32,
    },
    /// Fuzz whatever comes from outside, guided by what it reaches (libFuzzer)
    Guided {
        /// One target; every one if none is named
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(guided::TARGETS))]
        target: Option<String>,
        /// How long each target is fuzzed
        #[arg(long, default_value_t = 60)]
        seconds: u32,
        /// Keep what reaches something new in fuzz/corpus
        #[arg(long)]
        keep: bool,
    },
    /// Replace three servers of an earlier revision by this one, one after the other, under load
    Beside {
        /// A commit, as git names it
        revision: String,
    },
    /// Count what does not depend on the machine, and compare it with bench/counts.txt
    Count {
        /// Write what was counted instead
        #[arg(long)]
        write: bool,
    },
    /// Measure, and write docs/BENCHMARKS.md unless it is a quick look or a part
    Bench {
        /// What to measure, such as jobs, leases or reserve. Everything if none is named; `scaling` by itself
        /// writes the figures of docs/SCALING.md, `peers` those of others, `soak` those of ten minutes at once, `growth` draws its picture
        names: Vec<String>,
        /// Beside what others use, installed from their registries into a temporary folder
        #[arg(long)]
        peers: bool,
        /// A look, not a measurement
        #[arg(long)]
        quick: bool,
    },
}

fn main() -> Result<()> {
    match Cli::parse().task {
        Task::Setup => setup(),
        Task::Fmt { check } => fmt(check),
        Task::Test { filter } => test(filter.as_deref()),
        Task::Ci => ci(),
        Task::Web => setup().and_then(|()| web::test(root())),
        Task::Api => api(),
        Task::Mutate { filter } => mutate::mutate(root(), filter.as_deref().unwrap_or_default()),
        Task::Fuzz { cases } => fuzz::fuzz(root(), cases),
        Task::Guided { target, seconds, keep } => {
            guided::guided(root(), &guided::Asked { target: target.as_deref(), seconds, keep })
        }
        Task::Beside { revision } => beside(&revision),
        Task::Count { write } => setup().and_then(|()| count::count(root(), write)),
        Task::Bench { names, peers, quick } => bench(&names, peers, quick),
    }
}

/// Programs that tests start, and the Debian packages that bring them.
const NEEDED: [(&str, &str); 10] = [
    ("strace", "strace"),
    ("valgrind", "valgrind"),
    ("postgres", "postgresql"),
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("setpriv", "util-linux"),
    ("chromium", "chromium"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("python3", "python3"),
];

fn setup() -> Result<()> {
    let missing: Vec<&str> =
        NEEDED.into_iter().filter(|(program, _)| !installed(program)).map(|(_, package)| package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("installing {}", missing.join(", "));
    // Without a list of packages, or with an old one, the first attempt may find nothing.
    let install = || apt(&["install", "--yes", "--no-install-recommends"], &missing);
    install()
        .or_else(|_| apt(&["update"], &[]).and_then(|()| install()))
        .with_context(|| format!("please install by hand: {}", missing.join(", ")))
}

fn apt(verb: &[&str], packages: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(verb).args(packages).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
    run(&mut command)
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let beside = versions.map(|version| version.path().join("bin"));
    std::env::split_paths(&path).chain(beside).any(|folder| folder.join(program).is_file())
}

fn fmt(check: bool) -> Result<()> {
    for workspace in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let mut command = cargo(&["fmt", "--all", "--manifest-path", workspace]);
        if check {
            command.args(["--", "--check"]);
        }
        run(&mut command)?;
    }
    Ok(())
}

/// Cases for each route among the tests; `cargo xtask fuzz` has more time.
const FUZZ_CASES: u32 = 150;

/// How long each target is fuzzed in CI; hours are for by hand.
const GUIDED_SECONDS: u32 = 25;

/// Every test, by nextest where it is installed: it runs each in a process of its own.
fn test(filter: Option<&str>) -> Result<()> {
    setup()?;
    let nextest = installed("cargo-nextest") || cargo(&["nextest", "--version"]).output()?.status.success();
    let postgres = solely_testing::PostgresServer::start();
    let mut command = if nextest {
        cargo(&["nextest", "run", "--workspace", "--no-fail-fast"])
    } else {
        cargo(&["test", "--workspace", "--all-targets", "--no-fail-fast"])
    };
    run(command.args(filter).env(solely_testing::POSTGRES_ENV, postgres.url()))?;
    if filter.is_none() {
        run(&mut cargo(&["test", "--workspace", "--doc", "--quiet"]))?;
        web::test(root())?;
        fuzz::fuzz_if_possible(root(), FUZZ_CASES)?;
    }
    Ok(())
}

/// Builds an earlier revision in a folder of its own, and has the test of a rolling restart begin with it.
fn beside(revision: &str) -> Result<()> {
    setup()?;
    let (folder, made) = (root().join("target/beside/source"), root().join("target/beside/target"));
    if folder.is_dir() {
        run(Command::new("git").args(["worktree", "remove", "--force"]).arg(&folder))?;
    }
    run(Command::new("git").args(["worktree", "add", "--detach"]).arg(&folder).arg(revision))?;
    let mut building = cargo(&["build", "--package", "solely-cli"]);
    if !building.current_dir(&folder).env("CARGO_TARGET_DIR", &made).status()?.success() {
        bail!("{revision} cannot be built");
    }
    let postgres = solely_testing::PostgresServer::start();
    run(cargo(&["test", "--package", "solely-cli", "--test", "cli", "--", "rolling::", "--nocapture"])
        .env(solely_testing::POSTGRES_ENV, postgres.url())
        .env("SOLELY_OLDER", made.join("debug/solely")))
}

/// The test that compares the page with the server writes it when it is told to.
fn api() -> Result<()> {
    let name = "api::the_page_is_what_the_server_describes";
    run(cargo(&["test", "--quiet", "--package", "solely-cli", "--test", "cli", "--", "--exact", name])
        .env("SOLELY_UPDATE", "1"))
}

fn ci() -> Result<()> {
    step("setup", setup)?;
    step("fmt", || fmt(true))?;
    step("clippy", || run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])))?;
    step("docs", || {
        run(cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"])
            .env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"))
    })?;
    step("deny", deny)?;
    step("tidy", tidy)?;
    step("types", || web::types(root()))?;
    step("test", || test(None))?;
    step("count", || count::count(root(), false))?;
    step("guided", || {
        guided::guided(root(), &guided::Asked { target: None, seconds: GUIDED_SECONDS, keep: false })
    })?;
    step("torture", torture)
}

/// The commands of the README that torture, as they are written there but for the build: with a guard off it must find
/// something wrong, and otherwise nothing.
fn torture() -> Result<()> {
    let readme = std::fs::read_to_string(root().join("README.md"))?;
    let shown: Vec<&str> =
        readme.lines().filter_map(|line| line.strip_prefix("cargo run --release -- torture ")).collect();
    if shown.is_empty() {
        bail!("the README shows nothing to torture with");
    }
    for line in shown {
        let args: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        println!("solely torture {}", args.join(" "));
        let folder = std::env::temp_dir();
        let status = Command::new(root().join("target/debug/solely"))
            .arg("torture")
            .args(&args)
            .current_dir(&folder)
            .status()
            .context("cannot run target/debug/solely")?;
        let wanted = i32::from(args.contains(&"--break"));
        if status.code() != Some(wanted) {
            bail!("solely torture {}: {status}, and not {wanted}", args.join(" "));
        }
    }
    Ok(())
}

/// Licences, duplicate versions and sources, where `cargo deny` is installed. Advisories need a
/// database from outside and are looked at by hand.
fn deny() -> Result<()> {
    if !installed("cargo-deny") && !cargo_bin().join("cargo-deny").is_file() {
        println!("cargo-deny is not installed; `cargo install cargo-deny` for this check");
        return Ok(());
    }
    run(&mut cargo(&["deny", "--all-features", "check", "licenses", "bans", "sources"]))
}

/// What a reader should not meet.
fn tidy() -> Result<()> {
    let rust = ["todo!(", "unimplemented!(", "dbg!(", "#[ignore", "FIXME"];
    // What comes from outside is text on a page, and never markup.
    let pages = ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function("];
    let mut found = Vec::new();
    for file in tracked_files()? {
        let unwanted = match file.extension().and_then(std::ffi::OsStr::to_str) {
            Some("rs") if !file.starts_with("xtask") => rust.as_slice(),
            Some("js" | "html") if file.starts_with("web") && !file.starts_with("web/vendor") => {
                pages.as_slice()
            }
            _ => continue,
        };
        let text = std::fs::read_to_string(&file)?;
        for (number, line) in (1..).zip(text.lines()) {
            if unwanted.iter().any(|word| line.contains(word)) {
                found.push(format!("{}:{number}: {}", file.display(), line.trim()));
            }
        }
    }
    if !found.is_empty() {
        bail!("not to be left in the code:\n{}", found.join("\n"));
    }
    Ok(())
}

fn tracked_files() -> Result<Vec<PathBuf>> {
    let listed = Command::new("git").args(["ls-files"]).output()?;
    Ok(String::from_utf8(listed.stdout)?.lines().map(PathBuf::from).filter(|file| file.is_file()).collect())
}

fn bench(names: &[String], peers: bool, quick: bool) -> Result<()> {
    run(&mut cargo(&["build", "--release", "--package", "solely-cli", "--package", "solely-bench"]))?;
    let mut command = Command::new("target/release/solely-bench");
    command.args(names).args(["--solely", "target/release/solely"]);
    if peers {
        command.arg("--peers");
    }
    if quick {
        command.arg("--quick");
    } else if names.is_empty() {
        command.args(["--write", "docs/BENCHMARKS.md"]);
    } else if names == ["scaling"] {
        command.args(["--write", "docs/SCALING.md"]);
    } else if names == ["soak"] || names == ["growth"] {
        command.args(["--write", "docs/BENCHMARKS.md"]);
    } else if names == ["peers"] {
        command.args(["--write", "docs/BENCHMARKS.md", "--section", "peers"]);
    }
    run(&mut command)
}

fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("── {name}");
    let started = Instant::now();
    work().with_context(|| format!("{name} failed"))?;
    println!("── {name}: {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

fn cargo_bin() -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from).join("bin")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the repository")
}

fn run(command: &mut Command) -> Result<()> {
    command.current_dir(root());
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| format!("cannot run {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}
