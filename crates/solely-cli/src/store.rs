//! From a store URL to an engine.

use std::sync::Arc;

use anyhow::{Result, bail};
use solely_core::fault::Guards;
use solely_core::{Clock, Store};
use solely_sqlite::{Access, Options, SqliteStore};

/// Opens the store that a URL names, bringing its schema up to date.
pub(crate) fn open(url: &str, access: Access) -> Result<Arc<dyn Store>> {
    if !url.starts_with("sqlite:") {
        bail!("`store.url` is not one that this build knows; use sqlite:FILE or sqlite::memory:");
    }
    let options =
        Options { access, clock: Clock::system(), guards: Guards::from_env(), ..Options::default() };
    Ok(Arc::new(SqliteStore::open(url, &options)?))
}
