//! Backups: a whole, consistent copy of the file while it is written to, and the way back.
//!
//! *What is copied* is one read transaction: it is open from before the first page to after the last, so the copy is
//! what one commit left, everything that was answered before it included. The writer does not wait for it; the log only
//! grows meanwhile.
//!
//! *What a restored store must not do* is pretend that nothing happened since. Fences go on from
//! the microseconds of the clock, which no life of the store has reached by counting, however often it is restored from
//! one backup: whoever remembers the greatest refuses nobody. And the store gets a new identity, so
//! that copies in Redis that are younger than it are not believed.
//!
//! *What a crash does*: a restore copies beside the file, and a rename is the last thing it does. Before it there is the
//! old store, whole; after it the new one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, Error, OpenFlags};
use solely_core::{Clock, StoreError};

use crate::error::store_error;
use crate::migrate;
use crate::open::{self, Place, Role};

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Pages that are copied,
    pub pages: u32,
    /// of so many.
    pub of: u32,
}

/// What becomes of a store that has something in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and the restore is refused.
    Keep,
    /// It is replaced.
    Replace,
}

/// Pages that are copied between two looks at how far it is.
const STEP: i32 = 2_000;
/// How long a copy waits for whoever has the file to itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// Tables that have rows in a store with nothing in it.
const NEVER_EMPTY: [&str; 4] = ["schema_version", "counters", "store_identity", "processes"];

/// Copies a store to a file that has nothing in it, and looks whether the copy is sound.
pub fn back_up(url: &str, to: &Path, progress: impl FnMut(Copied)) -> Result<(), StoreError> {
    let Place::File(path) = open::place(url)? else {
        return Err(StoreError::Unusable("a store in memory ends with its process".to_owned()));
    };
    let from = open::connect(&Place::File(path), Role::Read).map_err(|error| store_error(&error))?;
    let copy = copy(&from, to, progress).map_err(|error| store_error(&error))?;
    sound(&copy, to, "quick_check")?;
    finish(copy, to)
}

/// Puts a backup in the place of a store. No server may have it, and no tool.
pub fn restore(
    from: &Path,
    url: &str,
    existing: Existing,
    progress: impl FnMut(Copied),
) -> Result<(), StoreError> {
    let Place::File(path) = open::place(url)? else {
        return Err(StoreError::Unusable("a store in memory ends with its process".to_owned()));
    };
    let backup = read_backup(from)?;
    let lock = open::lock(&path)?;
    if path.exists() {
        make_way(&path, existing)?;
    }
    let beside = with_suffix(&path, ".restoring");
    let put = || -> Result<(), StoreError> {
        remove(&beside)?;
        let copy = copy(&backup, &beside, progress).map_err(|error| store_error(&error))?;
        go_on(&copy).map_err(|error| store_error(&error))?;
        finish(copy, &beside)?;
        std::fs::rename(&beside, &path).map_err(|error| trouble(&path, &error))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        sync(folder.unwrap_or(Path::new(".")))
    };
    let put = put();
    if put.is_err() {
        let _ = remove(&beside);
    }
    let _ = lock.unlock();
    put
}

/// A backup that is sound, of a version that this program knows.
fn read_backup(from: &Path) -> Result<Connection, StoreError> {
    if !from.is_file() {
        return Err(StoreError::Unusable(format!("there is no backup in `{}`", from.display())));
    }
    let no_backup = |error: Error| {
        StoreError::Unusable(format!("`{}` is no backup of a SQLite store: {error}", from.display()))
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(from, flags).map_err(no_backup)?;
    conn.query_row("SELECT count(*) FROM schema_version", [], |_| Ok(())).map_err(no_backup)?;
    migrate::version(&conn)?;
    sound(&conn, from, "integrity_check")?;
    Ok(conn)
}

/// Sees to it that the file that is there can be replaced: nothing in it is wanted, nobody has it open, and it has no
/// log, which would be taken for that of the file that takes its place.
fn make_way(path: &Path, existing: Existing) -> Result<(), StoreError> {
    let unusable = |why: &str| StoreError::Unusable(format!("`{}` {why}", path.display()));
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let sql = |error: Error| store_error(&error);
    let conn = Connection::open_with_flags(path, flags).map_err(sql)?;
    let has_rows = match has_rows(&conn) {
        Ok(has_rows) => has_rows,
        // A file that cannot be read is no reason to keep it, if it may be replaced.
        Err(_) if existing == Existing::Replace => return Ok(()),
        Err(error) => return Err(sql(error)),
    };
    if has_rows && existing == Existing::Keep {
        return Err(unusable("is not empty; --force replaces what is in it"));
    }
    let mode: String = conn
        .query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0))
        .map_err(|_| unusable("is open in another process"))?;
    if mode == "delete" { Ok(()) } else { Err(unusable("is open in another process")) }
}

/// Whether anything was ever put into a store.
fn has_rows(conn: &Connection) -> Result<bool, Error> {
    let mut tables =
        conn.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")?;
    let tables: Vec<String> = tables.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for table in tables.iter().filter(|table| !NEVER_EMPTY.contains(&table.as_str())) {
        let any = format!("SELECT EXISTS (SELECT 1 FROM \"{}\")", table.replace('"', "\"\""));
        if conn.query_row(&any, [], |row| row.get(0))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Another life of the same store.
fn go_on(conn: &Connection) -> Result<(), Error> {
    let fence = Clock::system().now().as_millis().saturating_mul(1_000);
    conn.execute("UPDATE counters SET value = max(value, ?1) WHERE name = 'fence'", [fence])?;
    let named = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'store_identity')";
    if conn.query_row(named, [], |row| row.get(0))? {
        conn.execute("UPDATE store_identity SET id = lower(hex(randomblob(16)))", [])?;
    }
    Ok(())
}

/// Copies all pages within one read transaction. Nobody's writes begin it anew.
fn copy(from: &Connection, to: &Path, mut progress: impl FnMut(Copied)) -> Result<Connection, Error> {
    let mut copy = Connection::open(to)?;
    from.execute_batch("BEGIN")?;
    from.query_row("SELECT count(*) FROM schema_version", [], |_| Ok(()))?;
    let backup = Backup::new(from, &mut copy)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let step = backup.step(STEP)?;
        let at = backup.progress();
        let of = u32::try_from(at.pagecount).unwrap_or_default();
        progress(Copied { pages: of.saturating_sub(u32::try_from(at.remaining).unwrap_or_default()), of });
        match step {
            StepResult::Done => break,
            StepResult::More => {}
            _ if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
                return Err(Error::SqliteFailure(busy, Some("the file is busy".to_owned())));
            }
        }
    }
    drop(backup);
    from.execute_batch("COMMIT")?;
    // One file, without a log beside it.
    copy.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
    Ok(copy)
}

fn sound(conn: &Connection, path: &Path, check: &str) -> Result<(), StoreError> {
    let said: Result<String, Error> = conn.query_row(&format!("PRAGMA {check}(1)"), [], |row| row.get(0));
    match said {
        Ok(said) if said == "ok" => Ok(()),
        Ok(said) => Err(StoreError::Unusable(format!("`{}` is damaged: {said}", path.display()))),
        Err(error) => Err(StoreError::Unusable(format!("`{}` is damaged: {error}", path.display()))),
    }
}

/// Closes a copy, and has it on the disk.
fn finish(copy: Connection, path: &Path) -> Result<(), StoreError> {
    copy.close().map_err(|(_, error)| store_error(&error))?;
    sync(path)
}

fn sync(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|error| trouble(path, &error))
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(trouble(path, &error)),
        _ => Ok(()),
    }
}

fn trouble(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Unavailable(format!("`{}`: {error}", path.display()))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
