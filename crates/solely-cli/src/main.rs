//! `solely`, the one binary; the only crate that names every engine.

mod commands;
mod config;
mod logging;
mod store;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use commands::Failed;

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
    /// Print the effective configuration and where each value comes from
    #[command(after_help = "Example: solely config --config solely.toml")]
    Config {
        #[command(flatten)]
        common: Common,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
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
        Command::Migrate { common } => commands::migrate::run(common.config.as_deref()),
        Command::Check { common, json } => commands::check::run(common.config.as_deref(), json),
        Command::Config { common, json } => commands::config::run(common.config.as_deref(), json),
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
