//! Processes that are killed: every page exactly once, every acknowledged job there.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use solely_core::JobId;
use solely_core::fault::{BREAK_ENV, CRASH_ENV, CRASH_POINTS};
use solely_core::queue::{JobFilter, QueueStore as _};
use solely_sqlite::{Access, Options, SqliteStore};
use solely_testing::seed;
use solely_torture::checker::{self, Numbers as _};
use solely_torture::feeds::{self, Run};
use solely_torture::subject;
use tempfile::TempDir;

/// A store on disk and the processes that work on it.
struct Site {
    folder: TempDir,
}

impl Site {
    fn new() -> Self {
        Self { folder: TempDir::new().expect("a folder") }
    }

    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("solely.db")
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.file().display())
    }

    fn subject(&self, mode: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_subject"));
        command.arg(mode).arg(self.url()).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// The store as a tool sees it, between two processes.
    fn tool(&self) -> SqliteStore {
        let options = Options { access: Access::Tool, ..Options::default() };
        SqliteStore::open(&self.url(), &options).expect("opens")
    }

    /// Starts a run of the source of this number.
    async fn begin(&self, number: usize) -> Run {
        let jobs = subject::jobs(Arc::new(self.tool()));
        let feed = feeds::computed(&jobs, Duration::from_secs(120));
        feeds::start(&feed, number).await.expect("starts")
    }

    async fn violations(&self, runs: &[Run]) -> Vec<String> {
        checker::violations(&checker::Sqlite(self.file()), runs).await.expect("reads")
    }
}

/// How a process dies.
#[derive(Debug)]
enum Death {
    At { point: &'static str, count: u32 },
    After { millis: u64 },
}

impl Death {
    fn draw(rng: &mut SmallRng) -> Self {
        if rng.random_bool(0.6) {
            let point = CRASH_POINTS[rng.random_range(0..CRASH_POINTS.len())];
            Self::At { point, count: rng.random_range(1..=8) }
        } else {
            Self::After { millis: rng.random_range(5..60) }
        }
    }

    /// Runs a process to its death, or to its end if it has nothing left to do.
    fn befall(&self, mut command: Command) -> bool {
        match self {
            Self::At { point, count } => {
                let mut child = command.env(CRASH_ENV, format!("{point}:{count}")).spawn().expect("starts");
                !finish(&mut child)
            }
            Self::After { millis } => {
                let mut child = command.spawn().expect("starts");
                let deadline = Instant::now() + Duration::from_millis(*millis);
                while Instant::now() < deadline {
                    if child.try_wait().expect("waits").is_some() {
                        return false;
                    }
                    std::thread::yield_now();
                }
                child.kill().expect("is killed");
                !finish(&mut child)
            }
        }
    }
}

/// Waits for a process, but not for ever. True if it ended by itself and well.
fn finish(child: &mut Child) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("waits") {
            return status.success();
        }
        std::thread::yield_now();
    }
    let _ = child.kill();
    panic!("a process hangs");
}

/// Kills workers `kills` times, begins a new run whenever one is finished, then lets the work
/// be finished in peace. Stops early once `enough` says so.
async fn torture(site: &Site, kills: usize, broken: &str, enough: impl AsyncFn(&[Run]) -> bool) -> Vec<Run> {
    let mut rng = SmallRng::seed_from_u64(seed());
    // Every step once for sure, early and late in a process's life; then as chance will have it.
    let every_step = |count| CRASH_POINTS.iter().map(move |point| Death::At { point, count });
    let mut due: Vec<Death> = every_step(1).chain(every_step(5)).collect();
    let mut runs = vec![site.begin(0).await];
    let mut deaths = 0;
    while deaths < kills {
        let death = due.pop().unwrap_or_else(|| Death::draw(&mut rng));
        let mut subject = site.subject("work");
        subject.env(BREAK_ENV, broken).stderr(Stdio::null());
        if death.befall(subject) {
            deaths += 1;
            continue;
        }
        // It had nothing left to do: it dies of the same in the next run.
        due.push(death);
        if enough(&runs).await {
            break;
        }
        runs.push(site.begin(runs.len()).await);
    }
    println!("{deaths} deaths, {} runs", runs.len());
    let mut peace = site.subject("work");
    assert!(
        finish(&mut peace.env(BREAK_ENV, broken).spawn().expect("starts")),
        "the work is finished in peace"
    );
    runs
}

/// Claim, effect, next item and completion are one transaction: whatever dies, and whenever,
/// every page is written exactly once and no partition is left behind.
#[tokio::test]
async fn every_page_exactly_once_though_workers_die_at_every_step() {
    let site = Site::new();
    let runs = torture(&site, 300, "", async |_| false).await;
    assert_eq!(site.violations(&runs).await, Vec::<String>::new());
    let report = solely_core::check::CheckStore::check(&site.tool()).await.expect("checks");
    assert_eq!(report.violations, []);
}

/// The twin: with the effect outside the transaction of the completion, the same deaths leave runs
/// behind that nothing carries, and the checker says so. A partition in the middle is found by the
/// message that comes again; it takes a death on a last page, which may need a while.
#[tokio::test]
async fn without_the_page_transaction_pages_are_stranded() {
    let site = Site::new();
    let runs =
        torture(&site, 1_500, "page-transaction", async |runs| !site.violations(runs).await.is_empty()).await;
    let wrong = site.violations(&runs).await;
    println!("{wrong:#?}");
    assert!(!wrong.is_empty(), "the checker can fail");
}

/// A process paused (SIGSTOP) beyond its lock settles nothing when it goes on: the page it had
/// in hand is delivered again and written once.
#[tokio::test]
async fn a_process_paused_beyond_its_lock_settles_nothing() {
    let site = Site::new();
    let run = site.begin(0).await;
    let mut stall = site.subject("stall");
    let mut child = stall.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let mut said = BufReader::new(child.stdout.take().expect("piped")).lines();
    let begun = said.next().expect("a line").expect("readable");
    assert_eq!(begun, "begun 1");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    kill(pid, Signal::SIGSTOP).expect("stops");
    let locked_until = until_past_the_lock(&site).await;
    kill(pid, Signal::SIGCONT).expect("goes on");
    child.stdin.take().expect("piped").write_all(b"go on\n").expect("is told");
    assert!(finish(&mut child));
    let rest: Vec<String> = said.map(|line| line.expect("readable")).collect();
    assert!(rest.contains(&"begun 2".to_owned()), "delivered again: {rest:?}");
    assert_eq!(site.violations(&[run]).await, Vec::<String>::new());
    let filter = JobFilter { queue: Some("work-items".to_owned()), limit: 200, ..JobFilter::default() };
    let jobs = site.tool().jobs(filter).await.expect("lists");
    let item = jobs.into_iter().find(|job| job.attempts >= 2).expect("one was delivered again");
    assert!(item.updated_at > locked_until, "{item:?}");
}

/// Waits until the clock has passed the lock of the one running job, and also the lock of a
/// renewal that the process had in hand when it was stopped. Only reads: the process may have
/// been stopped while it held the store's write lock.
async fn until_past_the_lock(site: &Site) -> solely_core::Timestamp {
    let running = "SELECT ends_at FROM jobs WHERE state = 2";
    let until = checker::Sqlite(site.file()).number(running).await.expect("one job runs");
    let until = solely_core::Timestamp::from_millis(until);
    while solely_core::Clock::system().now() <= until.plus(Duration::from_millis(4_200)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until
}

/// An answer is a promise: whatever was acknowledged before a kill -9 is there after it.
#[tokio::test]
async fn acknowledged_jobs_survive_a_kill() {
    let site = Site::new();
    let mut rng = SmallRng::seed_from_u64(seed());
    let mut acknowledged: HashSet<JobId> = HashSet::new();
    let mut kills = 0;
    while acknowledged.len() < 5_000 {
        let mut child = site.subject("enqueue").arg("20000").stdout(Stdio::piped()).spawn().expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
        let after: usize = rng.random_range(1..1_200);
        for (n, line) in lines.enumerate() {
            if let Ok(id) = line.expect("readable").parse() {
                acknowledged.insert(id);
            }
            if n == after {
                kill(pid, Signal::SIGKILL).expect("is killed");
            }
        }
        finish(&mut child);
        kills += 1;
    }
    let tool = site.tool();
    for id in &acknowledged {
        assert!(tool.job(*id).await.expect("reads").is_some(), "{id} was acknowledged and is gone");
    }
    println!("{} acknowledged, {kills} kills", acknowledged.len());
}

/// Every commit is synced, and one sync serves all that waited: counted by the kernel's calls.
#[tokio::test]
async fn one_fdatasync_for_each_commit_and_one_commit_for_many() {
    let count = 2_000;
    let (syncs, commits) = traced(&Site::new(), count);
    println!("{count} acknowledged, {commits} commits, {syncs} fdatasync of the log");
    assert_eq!(syncs, commits);
    assert!(commits * 4 <= count, "{commits} commits for {count} jobs");
}

/// Enqueues under `strace`, and answers with syncs of the log and commits, both counted between
/// the process's own words "begin" and "commits".
fn traced(site: &Site, count: u64) -> (u64, u64) {
    let log = site.folder.path().join("strace.log");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "trace=fdatasync,write", "-y", "-o"]).arg(&log);
    strace.arg(env!("CARGO_BIN_EXE_subject")).arg("enqueue").arg(site.url()).arg(count.to_string());
    let output = strace.output().expect("strace is installed: `cargo xtask setup` does it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).expect("text");
    let commits = said.lines().find_map(|line| line.strip_prefix("commits ")).expect("says how many");
    let trace = std::fs::read_to_string(&log).expect("a log");
    let while_enqueueing = trace
        .lines()
        .skip_while(|line| !line.contains("\"begin\\n\""))
        .take_while(|line| !line.contains("\"commits "));
    let syncs = while_enqueueing.filter(|line| line.contains("fdatasync(") && line.contains("-wal>")).count();
    (syncs as u64, commits.parse().expect("a number"))
}
