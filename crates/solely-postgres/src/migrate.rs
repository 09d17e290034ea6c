//! The schema's history, brought up to date one step at a time.
//!
//! Every step is one transaction that begins by taking an advisory lock and looking at the
//! version again, so any number of processes may start at once.

use solely_core::StoreError;
use tokio_postgres::Error;

use crate::Tx;
use crate::connection::Connections;
use crate::transaction::transact;

struct Step {
    name: &'static str,
    sql: &'static str,
    /// Programs made for this version or a later one can run after this step.
    oldest_compatible: i32,
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

/// "solely" as a number: whoever migrates holds this lock.
const LOCK: i64 = 0x736f_6c65_6c79;

/// Brings the database up to date, or refuses one that is too new for this program.
pub(crate) async fn migrate(links: &Connections, schema: &str) -> Result<(), StoreError> {
    loop {
        match transact!(links, |tx| step(tx, schema).await)? {
            Stepped::UpToDate => return Ok(()),
            Stepped::Done => {}
            Stepped::TooNew { version, oldest } => {
                return Err(StoreError::Unusable(format!(
                    "the store has schema version {version}, which needs a program for version {oldest} or \
                     later; this one is for version {LATEST_VERSION}. Run a newer solely"
                )));
            }
        }
    }
}

enum Stepped {
    UpToDate,
    Done,
    TooNew { version: i32, oldest: i32 },
}

async fn step(tx: &Tx<'_>, schema: &str) -> Result<Stepped, Error> {
    tx.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    // Looked for first: a role that may only use what is there may not "create if it is not".
    let there = tx
        .one("SELECT to_regnamespace($1) IS NOT NULL, to_regclass('schema_version') IS NOT NULL", &[&schema])
        .await?;
    if !there.get::<_, bool>(0) {
        tx.batch(&format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await?;
    }
    if !there.get::<_, bool>(1) {
        make_version_table(tx).await?;
    }
    let newest = tx
        .optional("SELECT version, oldest_compatible FROM schema_version ORDER BY version DESC LIMIT 1", &[])
        .await?;
    let (version, oldest): (i32, i32) = newest.map_or((0, 0), |row| (row.get(0), row.get(1)));
    if i64::from(oldest) > i64::from(LATEST_VERSION) {
        return Ok(Stepped::TooNew { version, oldest });
    }
    let Some(step) = usize::try_from(version).ok().and_then(|version| STEPS.get(version)) else {
        return Ok(Stepped::UpToDate);
    };
    tx.batch(step.sql).await?;
    tx.execute(
        "INSERT INTO schema_version (version, name, oldest_compatible) VALUES ($1, $2, $3)",
        &[&(version + 1), &step.name, &step.oldest_compatible],
    )
    .await?;
    Ok(Stepped::Done)
}

async fn make_version_table(tx: &Tx<'_>) -> Result<(), Error> {
    tx.batch(
        "CREATE TABLE IF NOT EXISTS schema_version (
             version           integer NOT NULL PRIMARY KEY,
             name              text    NOT NULL,
             oldest_compatible integer NOT NULL,
             applied_at        timestamptz NOT NULL DEFAULT now()
         )",
    )
    .await
}
