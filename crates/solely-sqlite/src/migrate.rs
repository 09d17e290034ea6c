//! The schema's history, brought up to date one step at a time.
//!
//! Every step is one transaction that begins by taking the write lock and looking at the
//! version again, so any number of processes may start at once. Each version names the oldest
//! one whose programs can still run on it: a program meets a newer schema either as one it can
//! run on or with a clear refusal.

use rusqlite::{Connection, Error, OptionalExtension};
use solely_core::{Clock, StoreError};

use crate::error::store_error;

struct Step {
    name: &'static str,
    sql: &'static str,
    /// Programs made for this version or a later one can run after this step.
    oldest_compatible: u32,
}

const STEPS: &[Step] = &[
    Step { name: "spine", sql: include_str!("migrations/0001_spine.sql"), oldest_compatible: 1 },
    Step { name: "feed", sql: include_str!("migrations/0002_feed.sql"), oldest_compatible: 1 },
    Step { name: "changes", sql: include_str!("migrations/0003_changes.sql"), oldest_compatible: 1 },
    Step { name: "access", sql: include_str!("migrations/0004_access.sql"), oldest_compatible: 1 },
    Step { name: "runs", sql: include_str!("migrations/0005_runs.sql"), oldest_compatible: 1 },
    Step { name: "waits", sql: include_str!("migrations/0006_waits.sql"), oldest_compatible: 1 },
    Step { name: "told", sql: include_str!("migrations/0007_told.sql"), oldest_compatible: 1 },
    Step { name: "reserve", sql: include_str!("migrations/0008_reserve.sql"), oldest_compatible: 1 },
    Step { name: "waitlist", sql: include_str!("migrations/0009_waitlist.sql"), oldest_compatible: 1 },
    Step { name: "lighter", sql: include_str!("migrations/0010_lighter.sql"), oldest_compatible: 1 },
    Step { name: "faster", sql: include_str!("migrations/0011_faster.sql"), oldest_compatible: 1 },
    Step { name: "swifter", sql: include_str!("migrations/0012_swifter.sql"), oldest_compatible: 1 },
    Step { name: "surer", sql: include_str!("migrations/0013_surer.sql"), oldest_compatible: 1 },
    Step { name: "alone", sql: include_str!("migrations/0014_alone.sql"), oldest_compatible: 1 },
    Step { name: "surmised", sql: include_str!("migrations/0015_surmised.sql"), oldest_compatible: 1 },
];

/// The version that this program was made for.
#[expect(clippy::cast_possible_truncation, reason = "there are fewer steps than that")]
pub const LATEST_VERSION: u32 = STEPS.len() as u32;

/// What a migration found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The version before.
    pub from: u32,
    /// The version after.
    pub to: u32,
}

/// Brings a database up to date, or refuses one that is too new for this program.
pub fn migrate(conn: &mut Connection) -> Result<Migrated, StoreError> {
    prepare(conn).map_err(|error| store_error(&error))?;
    let from = version(conn)?;
    let mut to = from;
    while to < LATEST_VERSION {
        to = step(conn)?;
    }
    Ok(Migrated { from, to })
}

fn prepare(conn: &Connection) -> Result<(), Error> {
    conn.execute_batch(
        "CREATE TABLE IF NOT EXISTS schema_version (
             version           INTEGER NOT NULL PRIMARY KEY,
             name              TEXT    NOT NULL,
             oldest_compatible INTEGER NOT NULL,
             applied_at        INTEGER NOT NULL
         )",
    )
}

/// The database's version, if this program can run on it.
pub(crate) fn version(conn: &Connection) -> Result<u32, StoreError> {
    let newest = conn
        .query_row(
            "SELECT version, oldest_compatible FROM schema_version ORDER BY version DESC LIMIT 1",
            [],
            |row| Ok((row.get::<_, u32>(0)?, row.get::<_, u32>(1)?)),
        )
        .optional()
        .map_err(|error| store_error(&error))?;
    match newest {
        None => Ok(0),
        Some((version, oldest)) if oldest > LATEST_VERSION => Err(StoreError::Unusable(format!(
            "the store has schema version {version}, which needs a program for version {oldest} or later; \
             this one is for version {LATEST_VERSION}. Run a newer solely"
        ))),
        Some((version, _)) => Ok(version),
    }
}

/// Takes the step that is due once the write lock is held, and answers with the version then.
fn step(conn: &mut Connection) -> Result<u32, StoreError> {
    let tx = conn
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .map_err(|error| store_error(&error))?;
    let before = version(&tx)?;
    let Some(step) = STEPS.get(before as usize) else { return Ok(before) };
    let apply = || -> Result<(), Error> {
        tx.execute_batch(step.sql)?;
        tx.execute(
            "INSERT INTO schema_version (version, name, oldest_compatible, applied_at) VALUES (?1, ?2, ?3, ?4)",
            (before + 1, step.name, step.oldest_compatible, Clock::system().now().as_millis()),
        )?;
        Ok(())
    };
    apply().map_err(|error| store_error(&error))?;
    tx.commit().map_err(|error| store_error(&error))?;
    Ok(before + 1)
}
