//! Leases through the library on the embedded store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use solely_core::bus::Bus;
use solely_core::lease::{HeldKey, Holder, LeaseRequest, Leases, WaitedLease};
use solely_core::metrics::Metrics;
use solely_core::{LeaseId, Store};
use solely_sqlite::{Options, SqliteStore};

use crate::jobs::{in_flight, rate};
use crate::report::{Goal, Report};
use crate::{Scale, bare};

const BARE: &str = "bare group commit at 64 (beside leases)";

pub(crate) async fn run(report: &mut Report, scale: Scale) -> Result<()> {
    let (mut bare_rows, mut operations, mut woken) = (vec![], vec![], vec![]);
    for _ in 0..scale.rounds {
        bare_rows.push(tokio::task::spawn_blocking(move || bare::group_commit(scale.operations)).await??);
        let folder = tempfile::tempdir()?;
        let url = format!("sqlite:{}", folder.path().join("leases.db").display());
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&url, &Options::default())?);
        let leases = Leases::new(store.clone(), Bus::new(), Arc::new(Metrics::default()));
        operations.push(take_and_release(&leases, scale.operations / 2).await?);
        woken.push(wake_p99(&leases).await?);
        store.close().await;
    }
    report.add(BARE, "rows/s", bare_rows, Goal::None);
    let goal = Goal::AtLeast { mark: "B9", limit: BARE, times: 0.5 };
    report.add("leases taken and released, 64 in flight", "operations/s", operations, goal);
    report.add("a waiter woken, p99", "ms", woken, Goal::AtMost { mark: "B9", most: 5.0 });
    Ok(())
}

fn request(key: String) -> LeaseRequest {
    LeaseRequest {
        id: LeaseId::random(),
        keys: vec![key],
        owner: "bench".to_owned(),
        ttl: Duration::from_mins(1),
        holder: Holder::Client,
    }
}

async fn take_and_release(leases: &Leases, count: usize) -> Result<f64> {
    let started = Instant::now();
    let clients = leases.clone();
    in_flight(count, move |n| {
        let leases = clients.clone();
        async move {
            let WaitedLease::Acquired(lease) =
                leases.acquire(request(format!("key-{n}")), Duration::ZERO).await?
            else {
                bail!("the key is free")
            };
            leases.release(lease.id).await?;
            Ok(())
        }
    })
    .await?;
    Ok(rate(2 * count, started.elapsed()))
}

/// From the release of a key to its waiter having it.
async fn wake_p99(leases: &Leases) -> Result<f64> {
    let mut times = Vec::new();
    for n in 0..200 {
        let key = format!("wake-{n}");
        let WaitedLease::Acquired(held) = leases.acquire(request(key.clone()), Duration::ZERO).await? else {
            bail!("the key is free")
        };
        let waiter = tokio::spawn({
            let (leases, request) = (leases.clone(), request(key.clone()));
            async move { (leases.acquire(request, Duration::from_secs(5)).await, Instant::now()) }
        });
        let is_awaited =
            |held: &[(HeldKey, usize)]| held.iter().any(|(held, waiting)| held.key == key && *waiting > 0);
        while !is_awaited(&leases.held(Some("wake-".to_owned()), 200).await?) {
            tokio::task::yield_now().await;
        }
        let released = Instant::now();
        leases.release(held.id).await?;
        let (outcome, had) = waiter.await?;
        let WaitedLease::Acquired(lease) = outcome? else { bail!("the waiter gets it") };
        times.push(had.duration_since(released).as_secs_f64() * 1_000.0);
        leases.release(lease.id).await?;
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() * 99 / 100])
}
