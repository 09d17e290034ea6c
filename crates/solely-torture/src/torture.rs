//! One torture, from its seed to its report.

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;
use solely_core::Store;
use solely_core::fault::SKEW_ENV;
use solely_core::feed::{Feed, StartError};
use solely_testing::RedisServer;

use crate::catalogues;
use crate::checker::{self, Numbers, Standing};
use crate::entries::REPLACED_AFTER;
use crate::feeds::{self, PAGES, PARTITIONS, Run};
use crate::ground::{Engine, Ground};
use crate::places;
use crate::plan::{Harm, Plan, RedisHarm, Step};
use crate::process::Process;
use crate::proxy::Cut;
use crate::subject;
use crate::upstream::CountingUpstream;

/// A guard that can be switched off, to show that the checker notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// A settlement needs the fence and the live lock of its delivery.
    Fence,
    /// A page's effect commits with its completion and the next page's message.
    PageTransaction,
    /// Copies in Redis are trusted only while they follow the store.
    CopiesFollow,
    /// There is one lookup of a place at a time, and none while its result is there.
    Dedupe,
    /// Whoever subscribes late is told what was resolved before.
    Replay,
    /// There is one call of a plugin at a time for a catalogue.
    SingleFlight,
    /// Stock is counted under the merchant's lock, and written only if it is as it was read.
    Decrement,
    /// A user has one open reservation at a merchant.
    OneActive,
}

impl Break {
    /// Every guard.
    pub const ALL: [Self; 8] = [
        Self::Fence,
        Self::PageTransaction,
        Self::CopiesFollow,
        Self::Dedupe,
        Self::Replay,
        Self::SingleFlight,
        Self::Decrement,
        Self::OneActive,
    ];

    /// Whether it is missed where one process works on a file: nobody comes too late there, and no copy is another's.
    pub const fn is_missed_on_a_file(self) -> bool {
        matches!(self, Self::PageTransaction | Self::Dedupe | Self::Replay | Self::Decrement)
    }

    /// Its name, on the command line and in `SOLELY_BREAK`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fence => "fence",
            Self::PageTransaction => "page-transaction",
            Self::CopiesFollow => "copies-follow",
            Self::Dedupe => "dedupe",
            Self::Replay => "replay",
            Self::SingleFlight => "single-flight",
            Self::Decrement => "decrement",
            Self::OneActive => "one-active",
        }
    }
}

/// What only saves work or time, and can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// No Redis.
    Redis,
    /// Processes tell each other nothing: everything is found by polling.
    Push,
    /// Lookups and buyers are not thinned by leases.
    Thinning,
    /// Nobody sweeps holds whose time is over.
    Sweeper,
}

impl Without {
    /// Everything that can be left out.
    pub const ALL: [Self; 4] = [Self::Redis, Self::Push, Self::Thinning, Self::Sweeper];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Push => "push",
            Self::Thinning => "thinning",
            Self::Sweeper => "sweeper",
        }
    }
}

/// What to do, and for how long.
pub struct Options {
    /// How long faults are made.
    pub time: Duration,
    /// What the processes work on.
    pub engine: Engine,
    /// Worker processes; one, where they work on a file.
    pub instances: usize,
    /// Everything is drawn from it.
    pub seed: u64,
    /// The guard that is off.
    pub broken: Option<Break>,
    /// What is left out.
    pub without: Option<Without>,
    /// The program whose `torture-worker URL UPSTREAM` is a worker process.
    pub program: std::path::PathBuf,
    /// Called about once a second.
    pub progress: fn(&Report),
}

/// What was done, and what was found.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// See [`Options::seed`].
    pub seed: u64,
    /// Processes killed with SIGKILL.
    pub kills: u32,
    /// Processes started to die at a named point.
    pub crashes: u32,
    /// Processes paused beyond their lock.
    pub pauses: u32,
    /// COMMITs cut before they arrived.
    pub cuts_before_commit: u32,
    /// COMMITs cut off from their answer.
    pub cuts_after_commit: u32,
    /// Times that all connections were cut.
    pub cuts_of_all: u32,
    /// Restarts of the database, in peace and as after a power cut.
    pub restarts: u32,
    /// Restarts of Redis: empty, with old data, with data of a moment ago.
    pub redis_restarts: u32,
    /// Times that Redis was paused.
    pub redis_pauses: u32,
    /// Times that the disk of the database was full; never, where it could not be given one of its own.
    pub disks_full: u32,
    /// By how much two clocks differed at the most.
    pub clock_skew_ms: u64,
    /// Reads of entries that were compared with the store.
    pub entries_read: u64,
    /// Runs that ended and were checked.
    pub runs: usize,
    /// Pages of those runs.
    pub pages: u64,
    /// Calls of the upstream.
    pub upstream_calls: u64,
    /// Calls that it failed, throttled, left unanswered or answered with nonsense.
    pub upstream_troubles: u64,
    /// Places that were looked up,
    pub places: usize,
    /// and how often, but for calls that failed.
    pub lookups: u64,
    /// Requests that waited, and heard of everything.
    pub requests_heard: u64,
    /// Users whose products were searched for, but for those whose are always stale,
    pub users: usize,
    /// and how often the plugin was called for them, but for calls that failed.
    pub plugin_calls: u64,
    /// Reservations that somebody was told to have,
    pub reservations: usize,
    /// and those that time has ended.
    pub expired: u64,
    /// What is wrong.
    pub violations: Vec<String>,
}

impl Report {
    /// Says what is wrong, once however often it is seen.
    fn blame(&mut self, wrong: String) {
        if !self.violations.contains(&wrong) {
            self.violations.push(wrong);
        }
    }
}

/// How long a worker's lock lasts. Pauses are longer.
pub const LOCK: Duration = Duration::from_secs(1);

/// By when some entries have been written and copied. They are not replaced yet ([`crate::entries`]).
const ENTRIES_COPIED: Duration = Duration::from_secs(3);
/// What is asked of the upstream more often has been so for no reason, where a third of what is harmed is its process;
/// one that is harmed each time is excused for three times as many.
const CALLS_MAX: u64 = 5;
/// How long a database may take to be itself again.
const RECOVERS: Duration = Duration::from_secs(2);
/// By how much the clock of a process may be wrong.
const SKEW_MS: std::ops::RangeInclusive<i64> = -300_000..=300_000;
/// After how long there is peace, where only that shows what is wrong.
const UNTIL_PEACE: Duration = Duration::from_secs(20);
/// Runs under way at once.
const RUNS: usize = 3;

struct Torture<'a> {
    options: &'a Options,
    /// For what is no part of the plan: by how much clocks are wrong.
    rng: SmallRng,
    ground: Ground,
    redis: Option<RedisServer>,
    redis_paused_until: Option<Instant>,
    /// Whether Redis has kept the copies that are brought back where copies follow nothing.
    copies_kept: bool,
    disk_full_until: Option<Instant>,
    /// When the database is sure to answer, after its disk was full.
    answers_from: Option<Instant>,
    upstream: CountingUpstream,
    store: Arc<dyn Store>,
    feed: Feed,
    numbers: Box<dyn Numbers>,
    processes: Vec<Process>,
    /// How wrong the clocks of all processes were.
    skews: Vec<i64>,
    runs: Vec<Run>,
    begun: usize,
    report: Report,
}

/// Tortures, and reports. Blocks its thread at times, so its runtime needs more than one.
pub async fn torture(options: &Options) -> Result<Report> {
    let embedded = options.engine == Engine::Sqlite;
    ensure!(
        !embedded || options.instances == 1,
        "one process works on a file, and not {}",
        options.instances
    );
    if let Some(guard) = options.broken.filter(|guard| embedded && !guard.is_missed_on_a_file()) {
        bail!("one process on a file does not miss `{}`: torture it with --store postgres", guard.name());
    }
    let with_redis = options.without != Some(Without::Redis) && !embedded;
    if with_redis && !solely_testing::installed_redis() {
        bail!("a torture starts a private Redis, and none is installed (the package `redis-server`)");
    }
    let ground = Ground::prepare(options.engine).await?;
    let (store, numbers) = (ground.open().await?, ground.numbers());
    if options.broken == Some(Break::OneActive) {
        checker::drop_the_index_of_open_reservations(&*numbers).await?;
    }
    let feed = feeds::computed(&subject::jobs(store.clone()), LOCK);
    let mut torture = Torture {
        options,
        rng: SmallRng::seed_from_u64(options.seed),
        numbers,
        ground,
        redis: with_redis.then(RedisServer::start),
        redis_paused_until: None,
        copies_kept: false,
        disk_full_until: None,
        answers_from: None,
        upstream: CountingUpstream::start().await?,
        store,
        feed,
        processes: Vec::new(),
        skews: Vec::new(),
        runs: Vec::new(),
        begun: 0,
        report: Report { seed: options.seed, ..Report::default() },
    };
    torture.run().await?;
    Ok(torture.report)
}

impl Torture<'_> {
    async fn run(&mut self) -> Result<()> {
        let redis = self.redis.is_some();
        let mut plan = Plan::new(self.options.seed, self.options.instances, redis, self.options.broken);
        for _ in 0..self.options.instances {
            let process = self.start(None)?;
            self.processes.push(process);
        }
        let time = match self.options.broken {
            // Who never hears says so when it has listened in peace for long enough.
            Some(Break::Replay) => self.options.time.min(UNTIL_PEACE),
            _ => self.options.time,
        };
        let (began, mut told) = (Instant::now(), Instant::now());
        while began.elapsed() < time {
            if (ENTRIES_COPIED..REPLACED_AFTER).contains(&began.elapsed()) {
                self.keep_copies();
            }
            if self.answers() {
                self.begin_runs().await?;
            }
            let Some(Step { rest, harm }) = plan.next() else { break };
            tokio::time::sleep(rest).await;
            self.harm(&harm)?;
            self.care_for_processes()?;
            if self.answers() {
                self.check_ended_runs().await?;
            }
            if self.options.broken.is_some() && !self.report.violations.is_empty() {
                return Ok(());
            }
            if told.elapsed() > Duration::from_secs(1) {
                told = Instant::now();
                (self.options.progress)(&self.report);
            }
        }
        self.finish().await
    }

    /// Starts a process, and may have it die at a point.
    fn start(&mut self, crash: Option<&str>) -> Result<Process> {
        let mut command = Command::new(&self.options.program);
        command.arg("torture-worker").arg(self.ground.url()).arg(format!("http://{}", self.upstream.address));
        if let Some(redis) = &self.redis {
            command.args(["--redis", &redis.url()]);
        }
        if self.options.without == Some(Without::Push) {
            command.arg("--without-push");
        }
        // One process on a file has the clock of the store: nobody's differs from it.
        if self.options.engine != Engine::Sqlite {
            let skew = self.rng.random_range(SKEW_MS);
            command.env(SKEW_ENV, skew.to_string());
            self.skews.push(skew);
        }
        let without =
            self.options.without.filter(|without| matches!(without, Without::Thinning | Without::Sweeper));
        let broken = self.options.broken.map(Break::name).or(without.map(Without::name));
        Process::start(command, broken.unwrap_or_default(), crash).context("a worker process starts")
    }

    async fn begin_runs(&mut self) -> Result<()> {
        while self.runs.len() < RUNS {
            let run = self.begin().await?;
            self.begun += 1;
            self.runs.push(run);
        }
        Ok(())
    }

    /// A database that was just restarted may need a moment, and a process that is paused may have a file to itself;
    /// a start whose outcome is not known is a run like any other.
    async fn begin(&mut self) -> Result<Run> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match feeds::start(&self.feed, self.begun).await {
                Ok(run) => return Ok(run),
                Err(StartError::Active(id)) => {
                    return Ok(Run { id, source: feeds::source_name(self.begun) });
                }
                Err(StartError::Store(error)) if error.retryable() && Instant::now() < deadline => {
                    self.care_for_processes()?;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Has Redis keep what it has, where only what is old can be taken for new: again and again, as there is more of it, until
    /// it is replaced.
    fn keep_copies(&mut self) {
        if self.options.broken == Some(Break::CopiesFollow) {
            self.redis.iter().for_each(RedisServer::save);
            self.copies_kept = true;
        }
    }

    /// Does one bad thing to Redis.
    fn harm_redis(&mut self, harm: RedisHarm) {
        let Some(redis) = self.redis.as_mut().filter(|_| self.redis_paused_until.is_none()) else { return };
        let harm = match self.options.broken {
            Some(Break::CopiesFollow) if self.copies_kept => RedisHarm::Old,
            Some(Break::CopiesFollow) => return,
            _ => harm,
        };
        match harm {
            RedisHarm::Save => return redis.save(),
            RedisHarm::Pause(time) => {
                redis.freeze();
                self.redis_paused_until = Some(Instant::now() + time);
                self.report.redis_pauses += 1;
                return;
            }
            RedisHarm::Restart => redis.save(),
            RedisHarm::Empty | RedisHarm::Old => {}
        }
        redis.crash();
        if harm == RedisHarm::Empty {
            redis.forget_saved();
        }
        redis.start_again();
        self.report.redis_restarts += 1;
    }

    /// Does one bad thing.
    fn harm(&mut self, harm: &Harm) -> Result<()> {
        let report = &mut self.report;
        match *harm {
            Harm::Redis(harm) => self.harm_redis(harm),
            Harm::Kill { victim } => {
                report.kills += 1;
                self.processes[victim].kill();
                self.processes[victim] = self.start(None)?;
            }
            Harm::Crash { victim, point, times } => {
                report.crashes += 1;
                self.processes[victim].kill();
                self.processes[victim] = self.start(Some(&format!("{point}:{times}")))?;
            }
            Harm::Pause { victim, time } if self.processes[victim].paused_until.is_none() => {
                report.pauses += 1;
                self.processes[victim].pause(Instant::now() + time);
            }
            Harm::CutBeforeCommit => report.cuts_before_commit += u32::from(self.ground.cut(Cut::Before)),
            Harm::CutAfterCommit => report.cuts_after_commit += u32::from(self.ground.cut(Cut::After)),
            Harm::CutAll => report.cuts_of_all += u32::from(self.ground.cut_all()),
            Harm::FillDisk { time } if self.disk_full_until.is_none() && self.ground.fill_disk() => {
                report.disks_full += 1;
                self.upstream.set_forgetful(true);
                self.disk_full_until = Some(Instant::now() + time);
            }
            // It may be down already.
            Harm::Restart { at_once } if self.disk_full_until.is_none() => {
                report.restarts += u32::from(self.ground.restart(at_once));
            }
            Harm::Pause { .. } | Harm::FillDisk { .. } | Harm::Restart { .. } => {}
        }
        Ok(())
    }

    /// Lets the paused go on when their time is over, and replaces the dead.
    fn care_for_processes(&mut self) -> Result<()> {
        if self.redis_paused_until.is_some_and(|until| until <= Instant::now()) {
            self.thaw_redis();
        }
        if self.disk_full_until.is_some_and(|until| until <= Instant::now()) {
            self.free_disk();
        }
        for place in 0..self.processes.len() {
            let process = &mut self.processes[place];
            if process.paused_until.is_some_and(|until| until <= Instant::now()) {
                process.go_on();
            }
            if process.has_ended() {
                self.processes[place] = self.start(None)?;
            }
        }
        Ok(())
    }

    fn free_disk(&mut self) {
        if self.disk_full_until.take().is_some() {
            self.ground.free_disk();
            self.upstream.set_forgetful(false);
            self.answers_from = Some(Instant::now() + RECOVERS);
        }
    }

    /// A database that has given up with its disk answers nobody for a while.
    fn answers(&self) -> bool {
        self.disk_full_until.is_none() && self.answers_from.is_none_or(|from| from <= Instant::now())
    }

    fn thaw_redis(&mut self) {
        self.redis_paused_until = None;
        if let Some(redis) = &self.redis {
            redis.thaw();
        }
    }

    /// Checks the runs of which nothing is left.
    async fn check_ended_runs(&mut self) -> Result<()> {
        for run in std::mem::take(&mut self.runs) {
            let standing = checker::standing(&*self.numbers, &run).await?;
            if standing == Standing::Stranded {
                self.report.violations.push(format!("{}: active, and nothing carries it", run.id));
            }
            if standing != Standing::Ended {
                self.runs.push(run);
                continue;
            }
            self.report
                .violations
                .extend(checker::violations(&*self.numbers, std::slice::from_ref(&run)).await?);
            self.report.runs += 1;
            self.report.pages += PARTITIONS * PAGES;
        }
        let (least, most) = (self.skews.iter().min(), self.skews.iter().max());
        self.report.clock_skew_ms = least.zip(most).map_or(0, |(least, most)| most.abs_diff(*least));
        self.report.upstream_calls = self.upstream.calls().1;
        self.report.upstream_troubles = self.upstream.troubles();
        let (reads, wrong) = self.upstream.entries();
        self.report.entries_read = reads;
        self.report.violations.extend(wrong);
        self.report.requests_heard = self.upstream.waiting().1;
        if matches!(self.options.broken, Some(Break::Decrement | Break::OneActive)) {
            self.report.violations.extend(checker::boxes(&*self.numbers).await?);
        }
        let places = self.upstream.places();
        (self.report.places, self.report.lookups) =
            self.check_calls("looked up", &places, places::CONCURRENCY);
        let mut users = self.upstream.users();
        users.retain(|user, _| !user.starts_with("stale"));
        (self.report.users, self.report.plugin_calls) =
            self.check_calls("called for", &users, catalogues::SEARCHES);
        Ok(())
    }

    /// A thing is asked for once, and once more for each crash or pause that met one of so many calls at once. How many
    /// things there are, and calls.
    fn check_calls(&mut self, asked: &str, calls: &HashMap<String, u64>, at_once: usize) -> (usize, u64) {
        let report = &mut self.report;
        let most = CALLS_MAX * 3_u64.div_ceil(self.options.instances as u64);
        for (thing, calls) in calls.iter().filter(|(_, calls)| **calls > most) {
            report.blame(format!("{thing}: {asked} {calls} times"));
        }
        let of_one = report.kills + report.crashes + report.pauses;
        let of_one = of_one + report.cuts_before_commit + report.cuts_after_commit;
        let of_all = report.restarts + report.cuts_of_all + report.disks_full;
        let of_all = u64::from(of_all) * self.options.instances as u64;
        let explained = (u64::from(of_one) + of_all + 1) * at_once as u64;
        let (things, calls) = (calls.len(), calls.values().sum::<u64>());
        let more = calls.saturating_sub(things as u64);
        if more > explained {
            report.blame(format!(
                "{asked} {more} times more than there were things, where {explained} are explained"
            ));
        }
        (things, calls)
    }

    /// Whoever was told to have a box has, or had, one.
    async fn check_boxes(&mut self) -> Result<()> {
        let told = self.upstream.held();
        let (rows, expired) = checker::reservations(&*self.numbers).await?;
        (self.report.reservations, self.report.expired) = (told.len(), expired);
        let lost = told.iter().filter(|id| !rows.contains(&id.replace('-', "")));
        let lost = lost.map(|id| format!("{id}: was told to be held, and is not there"));
        self.report.violations.extend(lost.take(20));
        Ok(())
    }

    /// Everyone who was told PENDING hears the end of it.
    async fn hear_everything(&mut self) -> Result<()> {
        let before: Vec<String> =
            self.upstream.waiting().0.into_iter().map(|waiting| waiting.request).collect();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let (waiting, _) = self.upstream.waiting();
            let still = waiting.into_iter().filter(|waiting| before.contains(&waiting.request));
            let still: Vec<String> = still
                .map(|waiting| format!("{}: still waits for {:?}", waiting.request, waiting.places))
                .collect();
            if still.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                self.report.violations.extend(still.into_iter().take(20));
                return Ok(());
            }
            // Whoever listens in vain says so when its patience ends, which it has only in peace.
            self.report.violations.extend(self.upstream.entries().1);
            if self.options.broken.is_some() && !self.report.violations.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            self.care_for_processes()?;
        }
    }

    /// Lets the work be finished in peace, and looks at everything once more.
    async fn finish(&mut self) -> Result<()> {
        self.ground.cut(Cut::Not);
        self.thaw_redis();
        self.free_disk();
        while !self.answers() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for process in &mut self.processes {
            process.go_on();
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.runs.is_empty() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(100)).await;
            self.care_for_processes()?;
            self.check_ended_runs().await?;
        }
        for run in &self.runs {
            self.report.violations.push(format!("{}: never ends", run.id));
        }
        self.hear_everything().await?;
        for process in &mut self.processes {
            if !process.end(Duration::from_secs(15)).await {
                self.report.violations.push("a worker process did not end when asked to".to_owned());
            }
        }
        let mut tries = 0;
        let found = loop {
            match self.store.check().await {
                Ok(report) => break report.violations,
                Err(error) if error.retryable() && tries < 100 => tries += 1,
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let found =
            found.iter().map(|broken| format!("{}: {}: {}", broken.rule, broken.subject, broken.message));
        self.report.violations.extend(found);
        self.check_boxes().await
    }
}
