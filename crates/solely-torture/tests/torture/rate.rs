//! One rate, shared by three processes, measured where it matters: at the upstream.

use std::process::Command;
use std::time::{Duration, Instant};

use solely_testing::fresh_database;
use solely_torture::process::Process;
use solely_torture::upstream::CountingUpstream;

const LIMIT: usize = 40;
const WINDOW: Duration = Duration::from_secs(1);
/// How long there is demand.
const TIME: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread")]
async fn three_processes_share_one_rate_on_sqlite() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("solely.db").display());
    share_one_rate(&url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_processes_share_one_rate_on_postgres() {
    share_one_rate(&fresh_database()).await;
}

/// Never above the limit in any window, and at least nine tenths of it under demand.
async fn share_one_rate(store: &str) {
    let upstream = CountingUpstream::start().await.expect("starts");
    let processes: Vec<Process> = (0..3)
        .map(|_| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_subject"));
            let address = format!("http://{}", upstream.address);
            command.args(["call", store, &address, &format!("{LIMIT}/s")]);
            Process::start(command, "", None).expect("starts")
        })
        .collect();
    while upstream.pings().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Until all of them are there, demand may be less.
    tokio::time::sleep(WINDOW).await;
    let from = Instant::now();
    tokio::time::sleep(TIME).await;
    let until = Instant::now();
    drop(processes);
    let pings = upstream.pings();
    let busiest = pings.iter().enumerate().map(|(nth, &first)| {
        pings[nth..].iter().take_while(|&&ping| ping.duration_since(first) < WINDOW).count()
    });
    let busiest = busiest.max().unwrap_or(0);
    let under_demand = pings.iter().filter(|&&ping| ping >= from && ping < until).count();
    let time_ms = usize::try_from(until.duration_since(from).as_millis()).expect("seconds");
    println!("{under_demand} calls in {time_ms} ms, {busiest} in the busiest second, of {LIMIT}/s");
    assert!(busiest <= LIMIT, "{busiest} calls in one second");
    assert!(under_demand * 1_000 * 10 >= time_ms * LIMIT * 9, "{under_demand} calls in {time_ms} ms");
}
