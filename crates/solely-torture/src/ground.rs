//! Where a torture takes place: a store, the way processes reach it, and what can be done to it.
//!
//! PostgreSQL is a server of its own with a proxy before it, so it can be restarted and cut off. An embedded store is a
//! file that one process works on: it cannot be cut off from it, and what is left is to kill that process, to pause it, and
//! to fill the disk below it. The torture itself has the file open beside it, as a tool would.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use solely_core::Store;
use solely_testing::{Disk, PostgresServer};
use tempfile::TempDir;

use crate::checker::{Numbers, Postgres, Sqlite};
use crate::proxy::{Cut, Proxy};
use crate::subject;

/// A kind of store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Several processes on a server.
    #[default]
    Postgres,
    /// One process on a file.
    Sqlite,
}

impl Engine {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Postgres, Self::Sqlite];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
        }
    }
}

/// The disk below a store: room for hours.
const DISK_MIB: u32 = 8_192;

/// See the module.
pub(crate) enum Ground {
    Postgres { server: PostgresServer, proxy: Proxy },
    Sqlite { file: PathBuf, disk: Option<Disk>, _folder: TempDir },
}

impl Ground {
    pub(crate) async fn prepare(engine: Engine) -> Result<Self> {
        match engine {
            Engine::Postgres if solely_testing::installed_postgres().is_none() => {
                bail!(
                    "a torture starts a private PostgreSQL, and none is installed (the package `postgresql`)"
                )
            }
            Engine::Postgres => {
                let server = PostgresServer::start_on_a_disk(DISK_MIB);
                let proxy = Proxy::before(&server.url()).await?;
                Ok(Self::Postgres { server, proxy })
            }
            Engine::Sqlite => {
                let folder = TempDir::new()?;
                let below = folder.path().join("data");
                let disk = Disk::mount(below.clone(), DISK_MIB);
                if disk.is_none() {
                    std::fs::create_dir(&below)?;
                }
                Ok(Self::Sqlite { file: below.join("solely.db"), disk, _folder: folder })
            }
        }
    }

    /// What the processes open.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Postgres { proxy, .. } => proxy.url.clone(),
            Self::Sqlite { file, .. } => format!("sqlite:{}", file.display()),
        }
    }

    /// The store, for the torture itself: beside the processes, and never cut off.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Store>> {
        match self {
            Self::Postgres { server, .. } => subject::open_beside_others(&server.url()).await,
            Self::Sqlite { .. } => subject::open_beside_others(&self.url()).await,
        }
    }

    /// The tables, for the checker.
    pub(crate) fn numbers(&self) -> Box<dyn Numbers> {
        match self {
            Self::Postgres { server, .. } => Box::new(Postgres(server.url())),
            Self::Sqlite { file, .. } => Box::new(Sqlite(file.clone())),
        }
    }

    /// What becomes of the next COMMIT. False where it cannot be cut off.
    pub(crate) fn cut(&self, cut: Cut) -> bool {
        let Self::Postgres { proxy, .. } = self else { return false };
        proxy.cut(cut);
        true
    }

    /// Cuts every connection. False where there is none.
    pub(crate) fn cut_all(&self) -> bool {
        let Self::Postgres { proxy, .. } = self else { return false };
        proxy.cut_all();
        true
    }

    /// Restarts it, in peace or as after a power cut. False where there is nothing to restart.
    pub(crate) fn restart(&mut self, at_once: bool) -> bool {
        let Self::Postgres { server, .. } = self else { return false };
        if at_once {
            server.crash();
        } else {
            server.stop();
        }
        server.start_again();
        true
    }

    /// Fills its disk. False where it has none of its own.
    pub(crate) fn fill_disk(&self) -> bool {
        match self {
            Self::Postgres { server, .. } => server.fill_disk(),
            Self::Sqlite { disk, .. } => disk.as_ref().is_some_and(Disk::fill),
        }
    }

    /// Makes room again.
    pub(crate) fn free_disk(&mut self) {
        match self {
            Self::Postgres { server, .. } => server.free_disk(),
            Self::Sqlite { disk, .. } => disk.iter().for_each(Disk::free),
        }
    }
}
