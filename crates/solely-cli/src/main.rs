//! `solely`, the one binary; the only crate that names every engine.

mod client;
mod commands;
mod config;
mod demo;
mod logging;
mod output;
mod postgres_tools;
mod redis;
mod store;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use solely_core::access::Scope;
use solely_core::config::Span;
use solely_sqlite::backup::Existing;
use solely_torture::ground::Engine;
use solely_torture::torture::{Break, Without};

use client::Remote;
use commands::Failed;

/// Many small things are made by one thread and dropped by another; the usual allocator has them wait for each other.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One caller does the work; everyone gets the answer.
///
/// A server for work on slow upstreams and scarce stock: leases, durable unique jobs, caches
/// and a timeline on one embedded store.
#[derive(Parser)]
#[command(version, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  solely demo                                see it at work, in a browser
  solely serve                               serve on 127.0.0.1:7420, store in ./solely.db
  solely serve --listen 127.0.0.1:8000       … on another port
  SOLELY__STORE__URL=sqlite:/var/lib/solely/solely.db solely check";

#[derive(Subcommand)]
enum Command {
    /// Serve HTTP and work the queues
    #[command(after_help = "Example: solely serve --config solely.toml --listen 127.0.0.1:7420")]
    Serve {
        #[command(flatten)]
        common: Common,
        /// The address to listen on
        #[arg(long, value_name = "ADDR")]
        listen: Option<SocketAddr>,
    },
    /// Try it: a server, upstreams beside it, and traffic on all four systems
    ///
    /// Needs no configuration, no network and no other server; its store is a folder that goes with it.
    #[command(after_help = "Example: solely demo
         solely demo --listen 127.0.0.1:8000")]
    Demo {
        /// The address to listen on, of this machine
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7420")]
        listen: SocketAddr,
    },
    /// Bring the store's schema up to date
    #[command(after_help = "Example: solely migrate --config solely.toml")]
    Migrate {
        #[command(flatten)]
        common: Common,
    },
    /// Verify what is promised of the store's rows; exits 1 if something is broken
    #[command(after_help = "Example: solely check --json | jq .violations")]
    Check {
        #[command(flatten)]
        common: Common,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write a consistent backup of the store to a file, while servers write
    ///
    /// On SQLite the file is a store itself. On PostgreSQL it is what `pg_dump --format=custom` writes, which has to be
    /// installed. A file that is there is not replaced.
    #[command(after_help = "Example: solely backup solely-$(date +%F).backup
         DATABASE_URL=postgres://user:password@host/database solely backup /var/backups/solely.dump")]
    Backup {
        #[command(flatten)]
        common: Common,
        /// Where to
        file: PathBuf,
    },
    /// Put a backup in the place of the store; no server may be at work on it
    ///
    /// The backup is verified first; the store is then the old one or the restored one, whatever happens. Fences go on
    /// far above those of the backup, and copies in Redis are dropped.
    #[command(after_help = "Example: solely restore solely-2026-11-17.backup && solely check")]
    Restore {
        #[command(flatten)]
        common: Common,
        /// Where from
        file: PathBuf,
        /// Replace a store that is not empty
        #[arg(long)]
        force: bool,
    },
    /// Print the effective configuration and where each value comes from
    #[command(after_help = "Example: solely config --config solely.toml")]
    Config {
        #[command(flatten)]
        common: Common,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Look at jobs and dead letters, and bring them back
    #[command(after_help = "Example: solely jobs list --state dead
         solely jobs redrive --queue enrich:wolt --dry-run")]
    Jobs {
        #[command(subcommand)]
        verb: JobsVerb,
    },
    /// Start, watch and steer runs of feeds
    #[command(after_help = "Example: solely runs start diamonds --watch
         solely runs resume 0190…")]
    Runs {
        #[command(subcommand)]
        verb: RunsVerb,
    },
    /// Have places looked up ahead of requests
    #[command(after_help = "Example: solely warm places.jsonl --provider wolt --rate 50
         The same command goes on from where it was; --restart begins anew.")]
    Warm {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        warm: commands::warm::WarmOptions,
    },
    /// Say which of some candidates is a place's own link, and why
    #[command(after_help = "Example: solely match --name 'Pizza House' --city 'Tel Aviv' < candidates.json
         candidates.json: [{\"title\":\"Pizza House | Wolt\",\"url\":\"https://wolt.com/…\",\"snippet\":\"…\"}]")]
    Match(commands::matching::MatchOptions),
    /// Serve upstreams to try solely against, and nothing else
    #[command(after_help = "Example: solely sandbox --listen 127.0.0.1:7421 --records 100000")]
    Sandbox {
        /// The address to listen on
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7421")]
        listen: SocketAddr,
        /// Records that its sources have
        #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
        records: u32,
        /// Bytes of a record, about
        #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        record_bytes: u32,
    },
    /// Print a script that completes commands in a shell
    #[command(after_help = "Example: solely completions bash > /etc/bash_completion.d/solely")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(after_help = "Example: solely man > /usr/share/man/man1/solely.1")]
    Man,
    /// Make, list and revoke API keys
    #[command(after_help = "Example: solely keys create --name shop --scope reserve:write --scope enrich")]
    Keys {
        #[command(subcommand)]
        verb: KeysVerb,
    },
    /// Kill, pause and cut off real processes on a real database, and check what is left
    ///
    /// Starts a private PostgreSQL and Redis, an upstream that counts its calls, and worker processes
    /// that copy pages and read entries through every tier. Exits 1 if anything is found wrong.
    #[command(after_help = "Example: solely torture --for 60s --instances 3
         solely torture --for 60s --break fence    must report a violation
         solely torture --for 60s --without redis  must not
         solely torture --for 60s --store sqlite   one process on a file")]
    Torture(TortureArgs),
    /// A worker process of `torture`
    #[command(hide = true)]
    TortureWorker {
        /// The store
        store: String,
        /// The upstream
        upstream: String,
        /// Redis
        #[arg(long)]
        redis: Option<String>,
        /// Tell other processes nothing
        #[arg(long)]
        without_push: bool,
    },
}

/// What to do with jobs.
#[derive(Subcommand)]
enum JobsVerb {
    /// List jobs, newest first
    #[command(after_help = "Example: solely jobs list --queue work-items --state dead --json")]
    List {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        filter: commands::jobs::Filter,
        /// Print the answer as it came
        #[arg(long)]
        json: bool,
    },
    /// Show one job
    #[command(after_help = "Example: solely jobs show 0190…")]
    Show {
        #[command(flatten)]
        remote: Remote,
        /// Its id
        id: String,
    },
    /// Bring one dead job back
    #[command(after_help = "Example: solely jobs retry 0190…")]
    Retry {
        #[command(flatten)]
        remote: Remote,
        /// Its id
        id: String,
    },
    /// Bring dead jobs back
    #[command(
        after_help = "Example: solely jobs redrive --queue enrich:wolt --error timeout --rate-per-second 10"
    )]
    Redrive {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        redrive: commands::jobs::DeadOnes,
    },
    /// Stop a queue from being worked, until a time or until it is resumed
    #[command(after_help = "Example: solely jobs pause enrich:wolt --until 2026-01-31T12:00:00Z")]
    Pause {
        #[command(flatten)]
        remote: Remote,
        /// The queue
        queue: String,
        /// Until when (RFC 3339)
        #[arg(long)]
        until: Option<String>,
    },
    /// Let a queue be worked again
    #[command(after_help = "Example: solely jobs resume enrich:wolt")]
    Resume {
        #[command(flatten)]
        remote: Remote,
        /// The queue
        queue: String,
    },
}

/// What to do with runs.
#[derive(Subcommand)]
enum RunsVerb {
    /// Start a run, and print its id
    #[command(after_help = "Example: solely runs start diamonds --mode incremental --watch")]
    Start {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        start: commands::runs::RunOptions,
    },
    /// Follow a run to its end: bars on a terminal, lines elsewhere; exits 1 if it fails
    #[command(after_help = "Example: solely runs watch        the latest run
         solely runs watch 0190… | tee run.log")]
    Watch {
        #[command(flatten)]
        remote: Remote,
        /// Its id; the latest, if it is left out
        id: Option<String>,
        /// Print the run when it has ended, and nothing else
        #[arg(long)]
        json: bool,
    },
    /// List runs, newest first
    #[command(after_help = "Example: solely runs list --source diamonds --json")]
    List {
        #[command(flatten)]
        remote: Remote,
        /// Only of this source
        #[arg(long)]
        source: Option<String>,
        /// At most so many
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
        limit: u32,
        /// Print the answer as it came
        #[arg(long)]
        json: bool,
    },
    /// Go on with the unfinished partitions of a cancelled or failed run
    #[command(after_help = "Example: solely runs resume 0190…")]
    Resume {
        #[command(flatten)]
        remote: Remote,
        /// Its id
        id: String,
    },
    /// Stop a run
    #[command(after_help = "Example: solely runs cancel 0190…")]
    Cancel {
        #[command(flatten)]
        remote: Remote,
        /// Its id
        id: String,
    },
}

fn runs(verb: RunsVerb) -> Result<(), Failed> {
    match verb {
        RunsVerb::Start { remote, start } => commands::runs::start(remote, &start),
        RunsVerb::Watch { remote, id, json } => commands::runs::watch(remote, id, json),
        RunsVerb::List { remote, source, limit, json } => commands::runs::list(remote, source, limit, json),
        RunsVerb::Resume { remote, id } => commands::runs::change(remote, &id, "resume"),
        RunsVerb::Cancel { remote, id } => commands::runs::change(remote, &id, "cancel"),
    }
}

fn jobs(verb: JobsVerb) -> Result<(), Failed> {
    match verb {
        JobsVerb::List { remote, filter, json } => commands::jobs::list(remote, filter, json),
        JobsVerb::Show { remote, id } => commands::jobs::show(remote, &id),
        JobsVerb::Retry { remote, id } => commands::jobs::retry(remote, &id),
        JobsVerb::Redrive { remote, redrive } => commands::jobs::redrive(remote, redrive),
        JobsVerb::Pause { remote, queue, until } => commands::jobs::pause(remote, &queue, until),
        JobsVerb::Resume { remote, queue } => commands::jobs::resume(remote, &queue),
    }
}

/// What to do with keys.
#[derive(Subcommand)]
enum KeysVerb {
    /// Make a key, and print it alone on standard output: it is shown once and stored hashed
    #[command(after_help = "Example: SOLELY_KEY=$(solely keys create --name shop --scope reserve:write)")]
    Create {
        #[command(flatten)]
        common: Common,
        /// A name for people
        #[arg(long)]
        name: String,
        /// What it may do: enrich, products, reserve, feed or admin, with :read or :write
        #[arg(long = "scope", value_name = "SCOPE", required = true, num_args = 1.., value_delimiter = ',')]
        scopes: Vec<Scope>,
    },
    /// List every key
    #[command(after_help = "Example: solely keys list --json | jq -r '.[].id'")]
    List {
        #[command(flatten)]
        common: Common,
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key; servers refuse it within seconds
    #[command(after_help = "Example: solely keys revoke abcdefghijklmnop")]
    Revoke {
        #[command(flatten)]
        common: Common,
        /// Its id, as `list` shows it
        id: String,
    },
}

/// How a torture goes.
#[derive(Args)]
struct TortureArgs {
    /// How long faults are made, such as 60s or 10m
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = parse_span)]
    time: Duration,
    /// What they work on: a server, or a file that one process has
    #[arg(long, value_name = "STORE", default_value = Engine::Postgres.name(), value_parser = PossibleValuesParser::new(Engine::ALL.map(Engine::name)))]
    store: String,
    /// Worker processes; 3 on a server, 1 on a file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    instances: Option<u16>,
    /// Repeat the torture of this seed
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Switch a guard off; the checker must then report a violation
    #[arg(long = "break", value_name = "GUARD", value_parser = PossibleValuesParser::new(Break::ALL.map(Break::name)))]
    broken: Option<String>,
    /// Leave out what only saves work; it may cost time and nothing else
    #[arg(long, value_name = "PART", value_parser = PossibleValuesParser::new(Without::ALL.map(Without::name)))]
    without: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_span(text: &str) -> Result<Duration, String> {
    text.parse::<Span>().map(|span| span.0)
}

/// What every command takes.
#[derive(Args)]
struct Common {
    /// The configuration file; ./solely.toml is read when there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve { common, listen } => commands::serve::run(common.config.as_deref(), listen),
        Command::Demo { listen } => commands::demo::run(listen),
        Command::Migrate { common } => commands::migrate::run(common.config.as_deref()),
        Command::Check { common, json } => commands::check::run(common.config.as_deref(), json),
        Command::Backup { common, file } => commands::backup::run(common.config.as_deref(), &file),
        Command::Restore { common, file, force } => {
            let existing = if force { Existing::Replace } else { Existing::Keep };
            commands::backup::restore(common.config.as_deref(), &file, existing)
        }
        Command::Config { common, json } => commands::config::run(common.config.as_deref(), json),
        Command::Jobs { verb } => jobs(verb),
        Command::Runs { verb } => runs(verb),
        Command::Warm { remote, warm } => commands::warm::run(remote, &warm),
        Command::Match(options) => commands::matching::run(options),
        Command::Sandbox { listen, records, record_bytes } => {
            commands::sandbox::run(listen, records as usize, record_bytes as usize)
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "solely", &mut std::io::stdout());
            Ok(())
        }
        Command::Man => {
            clap_mangen::Man::new(Cli::command()).render(&mut std::io::stdout()).map_err(Failed::from)
        }
        Command::Keys { verb } => match verb {
            KeysVerb::Create { common, name, scopes } => {
                commands::keys::create(common.config.as_deref(), &name, &scopes)
            }
            KeysVerb::List { common, json } => commands::keys::list(common.config.as_deref(), json),
            KeysVerb::Revoke { common, id } => commands::keys::revoke(common.config.as_deref(), &id),
        },
        Command::Torture(args) => commands::torture::run(&commands::torture::Asked {
            time: args.time,
            engine: args.store,
            instances: args.instances.map(usize::from),
            seed: args.seed,
            broken: args.broken,
            without: args.without,
            json: args.json,
        }),
        Command::TortureWorker { store, upstream, redis, without_push } => {
            commands::torture::work(&store, &upstream, redis, !without_push)
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed::Config(problem)) => {
            eprintln!("solely: {problem}");
            ExitCode::from(2)
        }
        Err(Failed::Run(error)) => {
            eprintln!("solely: {error:#}");
            ExitCode::FAILURE
        }
        Err(Failed::Violations) => ExitCode::FAILURE,
    }
}
