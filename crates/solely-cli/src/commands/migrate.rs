//! `solely migrate`.

use std::path::Path;

use solely_sqlite::Access;

use super::{Failed, block_on};
use crate::config::{self, Flags};
use crate::output::say;
use crate::store;

pub(crate) fn run(file: Option<&Path>) -> Result<(), Failed> {
    let loaded = config::load(file, Flags::default())?;
    block_on(async {
        let store = store::open(&loaded.config.store, Access::Tool).await?;
        store.health().await?;
        say!("the store's schema is up to date (version {})", solely_sqlite::LATEST_VERSION);
        Ok(())
    })
}
