//! Benchmarks: a limit, and solely, in alternating rounds of one run.
//!
//! A goal is a ratio between two things measured in the same run, because machines differ and
//! this one is noisy. Every name prints rows of one table and `docs/BENCHMARKS.md` is written
//! from it.

mod bare;
mod bare_postgres;
mod engine;
mod enrich;
mod feeds;
mod growth;
mod jobs;
mod leases;
mod million;
mod peers;
mod plot;
mod products;
mod report;
mod reserve;
mod scaling;
mod soak;
mod start;
mod watchers;
mod wire;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

use report::Report;

/// The same as the product's, so that limits and product differ in nothing but what they do.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures solely beside the limits of what it stands on.
#[derive(Parser)]
struct Args {
    /// What to measure: jobs, leases, feeds, million, enrich-http, enrich-redis, enrich-misses, sockets, products, reserve (reserve-postgres, reserve-sqlite, reserve-http), watchers, start; reserve-alone, soak, growth and scaling, which are not part of everything. Everything if none is named.
    names: Vec<String>,
    /// Fewer, shorter rounds: a look, not a measurement.
    #[arg(long)]
    quick: bool,
    /// Where the table is written; not written if absent.
    #[arg(long)]
    write: Option<PathBuf>,
    /// Between which marks of that page.
    #[arg(long, default_value = "figures")]
    section: String,
    /// What others use, in the same rounds: installed by name from their registries into a temporary folder.
    #[arg(long)]
    peers: bool,
    /// How long `soak` is, in seconds.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// The release binary, for what is measured from outside.
    #[arg(long)]
    solely: Option<PathBuf>,
}

/// How long and how often.
#[derive(Clone, Copy)]
struct Scale {
    rounds: usize,
    operations: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let scale = if args.quick {
        Scale { rounds: 3, operations: 10_000 }
    } else {
        Scale { rounds: 7, operations: 40_000 }
    };
    let wanted = |name: &str| args.names.is_empty() || args.names.iter().any(|n| n == name);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    if let [bare, port] = args.names.as_slice()
        && bare == "bare-axum"
    {
        return runtime.block_on(enrich::bare_axum(port.parse()?));
    }
    if let [caller, store, redis, url] = args.names.as_slice()
        && caller == "products-caller"
    {
        return runtime.block_on(products::caller(store, redis, url));
    }
    if args.names == ["soak"] {
        let (length, solely) = (Duration::from_secs(args.seconds), enrich::binary(args.solely.as_deref())?);
        return runtime.block_on(soak::run(length, &solely, args.write.as_deref()));
    }
    if args.names == ["growth"] {
        let mut report = Report::new(1);
        runtime.block_on(growth::run(&mut report, args.quick, args.write.as_deref()))?;
        print!("{}", report.table());
        return Ok(());
    }
    let mut report = Report::new(scale.rounds);
    if args.names == ["reserve-alone"] {
        runtime.block_on(reserve::alone_on_postgres(&mut report, scale))?;
        print!("{}", report.table());
        return Ok(());
    }
    if wanted("jobs") {
        runtime.block_on(jobs::run(&mut report, scale))?;
    }
    if wanted("leases") {
        runtime.block_on(leases::run(&mut report, scale))?;
    }
    if wanted("feeds") {
        runtime.block_on(feeds::run(&mut report, scale))?;
    }
    if wanted("million") {
        runtime.block_on(million::run(&mut report, args.quick, args.solely.as_deref()))?;
    }
    if wanted("enrich-http") {
        let solely = enrich::binary(args.solely.as_deref())?;
        runtime.block_on(enrich::hits_over_http(&mut report, scale, &solely))?;
    }
    if wanted("enrich-redis") {
        runtime.block_on(enrich::hits_in_redis(&mut report, scale))?;
    }
    if wanted("enrich-misses") {
        runtime.block_on(enrich::misses(&mut report, scale))?;
    }
    if wanted("sockets") {
        runtime.block_on(enrich::sockets(&mut report, &enrich::binary(args.solely.as_deref())?))?;
    }
    if wanted("products") {
        runtime.block_on(products::run(&mut report, scale))?;
    }
    if wanted("reserve") || wanted("reserve-postgres") {
        runtime.block_on(reserve::on_postgres(&mut report, scale))?;
    }
    if wanted("reserve") || wanted("reserve-sqlite") {
        runtime.block_on(reserve::on_sqlite(&mut report, scale))?;
    }
    if wanted("reserve") || wanted("reserve-http") {
        let solely = enrich::binary(args.solely.as_deref())?;
        runtime.block_on(reserve::through_http(&mut report, scale, &solely))?;
    }
    if wanted("watchers") {
        let solely = enrich::binary(args.solely.as_deref())?;
        runtime.block_on(watchers::run(&mut report, scale, &solely))?;
    }
    if wanted("start") {
        runtime.block_on(start::run(&mut report, scale, args.solely.as_deref()))?;
    }
    if args.peers || args.names.iter().any(|name| name == "peers") {
        runtime.block_on(peers::run(&mut report, scale))?;
    }
    if args.names.iter().any(|name| name == "scaling") {
        let solely = enrich::binary(args.solely.as_deref())?;
        runtime.block_on(scaling::run(&mut report, scale, &solely))?;
    }
    print!("{}", report.table());
    if let Some(path) = args.write {
        report.write(&path, &args.section)?;
    }
    Ok(())
}
