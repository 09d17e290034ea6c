//! What an operation takes beside ten thousand, a hundred thousand and a million rows of its kind: jobs that are due,
//! places that are known, reservations, records. Drawn to `docs/images/growth.svg`.
//!
//! The times are medians and shake with the machine. What does not shake, blocks and rows that are read, is counted
//! by the test `growth::a_million_rows_beside_it_change_nothing`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use solely_core::cache::{EntryKey, Lifetimes, Overwrite, PutEntry};
use solely_core::commit::{Commit, Verdict};
use solely_core::job::{ClaimReply, ClaimRequest, NewJob};
use solely_core::liveness::Beat;
use solely_core::reserve::Reserve;
use solely_core::{Json, ProcessId, Store};

use crate::engine::{Postgres, sqlite};
use crate::plot::{self, Across, Line, Panel};
use crate::report::{Goal, Report};
use crate::reserve;

/// How often an operation is measured at each size.
const TIMES: usize = 400;
/// Rows that are made at once.
const AT_ONCE: usize = 1_000;
const WHAT: [&str; 4] = [
    "a job, from enqueue to its end, beside so many that are due, ms",
    "ten places that are known, of so many, read from the store, ms",
    "a purchase, one buyer alone, beside so many reservations, ms",
    "a record of a first copy of so many, µs",
];

pub(crate) async fn run(report: &mut Report, quick: bool, write: Option<&Path>) -> Result<()> {
    let sizes: &[usize] = if quick { &[1_000, 10_000] } else { &[10_000, 100_000, 1_000_000] };
    let (postgres, folder) = (Postgres::start(), tempfile::tempdir()?);
    let mut panels: Vec<Panel> =
        WHAT.iter().map(|what| Panel { title: (*what).to_owned(), lines: Vec::new() }).collect();
    for (engine, store) in [("SQLite", sqlite(&folder)?), ("PostgreSQL", postgres.store().await?)] {
        let mut site = Site::new(store).await?;
        let mut grown = vec![Vec::new(); WHAT.len()];
        for &size in sizes {
            site.grow_to(size).await?;
            for (nth, took) in site.measure().await?.into_iter().enumerate() {
                grown[nth].push(took);
            }
        }
        site.store.close().await;
        for &size in sizes {
            let folder = tempfile::tempdir()?;
            let store = if engine == "SQLite" { sqlite(&folder)? } else { postgres.store().await? };
            grown[3].push(1e6 / crate::feeds::first_copy(store, size).await?);
        }
        for ((values, panel), what) in grown.into_iter().zip(&mut panels).zip(WHAT) {
            for (size, value) in sizes.iter().zip(&values) {
                report.add(&format!("{engine}, {size} rows: {what}"), "", vec![*value], Goal::None);
            }
            #[expect(clippy::cast_precision_loss, reason = "a count of rows")]
            let points = sizes.iter().map(|size| *size as f64).zip(values).collect();
            panel.lines.push(Line { name: engine.to_owned(), points });
        }
    }
    if let Some(page) = write {
        plot::write(&page.with_file_name("images/growth.svg"), Across::Rows, &panels)?;
    }
    Ok(())
}

/// A store that grows.
struct Site {
    store: Arc<dyn Store>,
    reserve: Reserve,
    process: ProcessId,
    rows: usize,
    done: usize,
}

fn place(nth: usize) -> EntryKey {
    EntryKey::new("enrich:wolt", format!("place-{nth}"))
}

impl Site {
    async fn new(store: Arc<dyn Store>) -> Result<Self> {
        let (reserve, process) = (reserve::shop(&store).await?, ProcessId::random());
        store.beat(Beat { process, dead_after: Duration::from_hours(1) }).await?;
        Ok(Self { store, reserve, process, rows: 0, done: 0 })
    }

    async fn grow_to(&mut self, rows: usize) -> Result<()> {
        let value = Json::of(&serde_json::json!({"status": "FOUND", "url": "https://wolt.com/a"}));
        let long = Duration::from_hours(24);
        for first in (self.rows..rows).step_by(AT_ONCE) {
            let numbers = first..(first + AT_ONCE).min(rows);
            let job = |nth| NewJob { priority: 9, ..NewJob::new("growth", format!("beside-{nth}")) };
            self.store.enqueue(numbers.clone().map(job).collect()).await?;
            let entry = |nth| PutEntry {
                key: place(nth),
                value: value.clone(),
                lifetimes: Lifetimes { fresh: long, stale: long, keep: long },
                overwrite: Overwrite::Always,
                told: None,
            };
            self.store.put_entries(numbers.map(entry).collect()).await?;
        }
        reserve::buy(&self.reserve, 256, rows - self.rows).await?;
        self.rows = rows;
        Ok(())
    }

    /// The medians, in the order of [`WHAT`].
    async fn measure(&mut self) -> Result<[f64; 3]> {
        let (mut jobs, mut places, mut purchases) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TIMES {
            self.done += 1;
            let began = Instant::now();
            self.job().await?;
            jobs.push(began.elapsed());
            let began = Instant::now();
            let keys = (0..10).map(|nth| place((self.done * 7_919 + nth * 104_729) % self.rows)).collect();
            let found = self.store.entries(keys).await?;
            ensure!(found.iter().all(Option::is_some), "a place is not known");
            places.push(began.elapsed());
            let began = Instant::now();
            reserve::buy(&self.reserve, 1, 1).await?;
            purchases.push(began.elapsed());
        }
        Ok([jobs, places, purchases].map(|mut took| {
            took.sort();
            took[took.len() / 2].as_secs_f64() * 1_000.0
        }))
    }

    async fn job(&self) -> Result<()> {
        let job = NewJob { priority: 0, ..NewJob::new("growth", format!("measured-{}", self.done)) };
        self.store.enqueue(vec![job]).await?;
        let lock = Duration::from_mins(1);
        let request = ClaimRequest { process: self.process, queue: "growth".to_owned(), limit: 1, lock };
        let ClaimReply::Jobs { jobs, .. } = self.store.claim(request).await? else { bail!("is alive") };
        ensure!(jobs.len() == 1 && jobs[0].job.key.starts_with("measured"), "another job was first");
        self.store.settle(vec![Commit::new(jobs[0].claim, Verdict::Complete)]).await?;
        Ok(())
    }
}
