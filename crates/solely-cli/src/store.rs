//! From a store URL to an engine.

use std::sync::Arc;

use anyhow::{Result, bail};
use solely_core::fault::Guards;
use solely_core::{Clock, Store};
use solely_sqlite::{Access, Options, SqliteStore};

/// What is wrong with a store URL, if anything is. Says nothing of the URL, which may hold a
/// password.
pub(crate) fn problem(url: &str) -> Option<String> {
    let known = url.strip_prefix("sqlite:").is_some_and(|place| !place.is_empty());
    (!known).then(|| {
        "`store.url` is not one that this build knows; use sqlite:FILE or sqlite::memory:".to_owned()
    })
}

/// Opens a store that must be there already.
pub(crate) fn open_existing(url: &str) -> Result<Arc<dyn Store>> {
    let file = url.strip_prefix("sqlite:").filter(|place| *place != ":memory:");
    if let Some(file) = file.filter(|file| !std::path::Path::new(file).is_file()) {
        bail!("there is no store in `{file}`");
    }
    open(url, Access::Tool)
}

/// Opens the store that a URL names, bringing its schema up to date.
pub(crate) fn open(url: &str, access: Access) -> Result<Arc<dyn Store>> {
    let options =
        Options { access, clock: Clock::system(), guards: Guards::from_env(), ..Options::default() };
    Ok(Arc::new(SqliteStore::open(url, &options)?))
}
