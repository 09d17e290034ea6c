//! Opening a store: its connections, its lock, its schema.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::{Connection, Error, OpenFlags};
use solely_core::{StoreError, limits};

use crate::counts::Counts;
use crate::error::store_error;
use crate::reader::Readers;
use crate::writer::Writer;
use crate::{Options, SqliteStore, migrate};

/// How a store is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The one server of this file. Claims and process leases found in it are nobody's.
    Serve,
    /// A tool beside a server, or alone.
    Tool,
}

/// Where the database is.
pub(crate) enum Place {
    Memory,
    File(PathBuf),
}

pub(crate) fn place(url: &str) -> Result<Place, StoreError> {
    match url.strip_prefix("sqlite:") {
        Some(":memory:") => Ok(Place::Memory),
        Some(path) if !path.is_empty() => Ok(Place::File(PathBuf::from(path))),
        _ => Err(StoreError::Unusable(format!("`{url}` is not a store URL such as sqlite:solely.db"))),
    }
}

impl SqliteStore {
    /// Opens `sqlite:FILE` or `sqlite::memory:`, and brings its schema up to date.
    pub fn open(url: &str, options: &Options) -> Result<Self, StoreError> {
        let place = place(url)?;
        let lock = match &place {
            Place::File(path) if options.access == Access::Serve => Some(lock(path)?),
            _ => None,
        };
        let counts = Arc::new(Counts::default());
        let opened = || -> Result<(Writer, Readers), StoreError> {
            let sql = |error: Error| store_error(&error);
            let mut conn = connect(&place, Role::Write).map_err(sql)?;
            migrate::migrate(&mut conn)?;
            prepare_to_write(&conn, options).map_err(sql)?;
            let readers = match &place {
                Place::Memory => Readers::none(),
                Place::File(_) => {
                    let connections: Result<Vec<_>, _> =
                        (0..limits::READERS).map(|_| connect(&place, Role::Read)).collect();
                    Readers::start(connections.map_err(sql)?, &counts)
                }
            };
            let writer = Writer::start(conn, options.clock.clone(), counts.clone(), options.count_statements);
            Ok((writer.map_err(sql)?, readers))
        };
        let (writer, readers) = opened()?;
        let (guards, clock) = (options.guards, options.clock.clone());
        Ok(Self { writer, readers, guards, clock, counts, prune_marks: Mutex::default(), lock })
    }
}

/// Takes the lock that says that this process serves the file. It ends with the process.
pub(crate) fn lock(path: &Path) -> Result<File, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let unusable = |why: String| StoreError::Unusable(format!("`{}` {why}", path.display()));
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&name)
        .map_err(|error| unusable(format!("cannot be locked: {error}")))?;
    file.try_lock().map_err(|_| {
        unusable(
            "is served by another process. One server per file: stop it, or use another store".to_owned(),
        )
    })?;
    Ok(file)
}

/// How long a connection waits for a tool beside it to finish its transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Write,
    Read,
}

pub(crate) fn connect(place: &Place, role: Role) -> Result<Connection, Error> {
    let flags = match role {
        Role::Write => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        Role::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
    };
    let conn = match place {
        Place::Memory => Connection::open_in_memory()?,
        Place::File(path) => Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?,
    };
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(128);
    if role == Role::Write {
        // Of several that open a new file at once, SQLite refuses some without waiting.
        patiently(|| conn.pragma_update(None, "journal_mode", "WAL"))?;
        conn.pragma_update(None, "synchronous", "FULL")?;
        // Fewer, larger checkpoints; the log is cut back to this after each.
        conn.pragma_update(None, "wal_autocheckpoint", 4_000)?;
        conn.pragma_update(None, "journal_size_limit", 64 * 1024 * 1024)?;
    }
    conn.pragma_update(None, "cache_size", if role == Role::Write { -16_000 } else { -4_000 })?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(conn)
}

fn prepare_to_write(conn: &Connection, options: &Options) -> Result<(), Error> {
    if let Some(pages) = options.max_pages {
        conn.pragma_update(None, "max_page_count", pages)?;
    }
    if options.access == Access::Serve {
        // Whoever else had the file is gone: the lock is ours.
        conn.execute_batch("DELETE FROM processes; DELETE FROM leases WHERE process IS NOT NULL;")?;
    }
    Ok(())
}

/// Tries again while another connection is in the way, for as long as any statement would wait.
fn patiently<T>(mut attempt: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            outcome => return outcome,
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
}
