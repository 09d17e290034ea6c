//! Leases through the library, on each engine beside its bare limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use solely_core::bus::Bus;
use solely_core::lease::{HeldKey, Holder, LeaseRequest, Leases, WaitedLease};
use solely_core::metrics::Metrics;
use solely_core::{LeaseId, Store};

use crate::engine::{Postgres, sqlite};
use crate::jobs::{in_flight, rate};
use crate::report::{Goal, Report};
use crate::{Scale, bare, bare_postgres};

const BARE: &str = "bare group commit at 64 (beside leases)";
const BARE_UPDATE: &str = "bare PostgreSQL: updates, 64 rows under way";

/// What one engine's rounds showed.
#[derive(Default)]
struct Measured {
    operations: Vec<f64>,
    woken: Vec<f64>,
}

impl Measured {
    async fn round(&mut self, store: Arc<dyn Store>, operations: usize) -> Result<()> {
        let leases = Leases::new(store.clone(), Bus::new(), Arc::new(Metrics::default()));
        self.operations.push(take_and_release(&leases, operations / 2).await?);
        self.woken.push(wake_p99(&leases).await?);
        store.close().await;
        Ok(())
    }
}

pub(crate) async fn run(report: &mut Report, scale: Scale) -> Result<()> {
    let (mut bare_rows, mut measured) = (vec![], Measured::default());
    for _ in 0..scale.rounds {
        bare_rows.push(tokio::task::spawn_blocking(move || bare::group_commit(scale.operations)).await??);
        let folder = tempfile::tempdir()?;
        measured.round(sqlite(&folder)?, scale.operations).await?;
    }
    let goal = |limit| Goal::AtLeast { mark: "B9", limit, times: 0.5 };
    let woken = || Goal::AtMost { mark: "B9", most: 5.0 };
    report.add(BARE, "rows/s", bare_rows, Goal::None);
    report.add("leases taken and released, 64 in flight", "operations/s", measured.operations, goal(BARE));
    report.add("a waiter woken, p99", "ms", measured.woken, woken());
    let postgres = Postgres::start();
    let (mut bare_rows, mut measured) = (vec![], Measured::default());
    for _ in 0..scale.rounds {
        bare_rows.push(bare_postgres::update(&postgres.database().await?, scale.operations).await?);
        measured.round(postgres.store().await?, scale.operations).await?;
    }
    report.add(BARE_UPDATE, "rows/s", bare_rows, Goal::None);
    let name = "PostgreSQL: leases taken and released, 64 in flight";
    report.add(name, "operations/s", measured.operations, goal(BARE_UPDATE));
    report.add("PostgreSQL: a waiter woken, p99", "ms", measured.woken, woken());
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
