//! `solely keys`.

use std::path::Path;

use anyhow::bail;
use solely_core::access::{Scope, new_key};
use solely_core::limits;
use solely_sqlite::Access;

use super::{Failed, block_on};
use crate::config::{self, Flags};
use crate::output::say;
use crate::store;

/// Prints the key alone on standard output: it is shown once.
pub(crate) fn create(file: Option<&Path>, name: &str, scopes: &[Scope]) -> Result<(), Failed> {
    let loaded = config::load(file, Flags::default())?;
    block_on(async {
        let (bytes, longest) = (name.len(), limits::KEY_NAME_BYTES_MAX);
        if bytes == 0 || bytes > longest || name.chars().any(char::is_control) {
            return Err(
                anyhow::anyhow!("a key's name has 1 to {longest} bytes and no control characters").into()
            );
        }
        let store = store::open(&loaded.config.store, Access::Tool).await?;
        let (text, key) = new_key(name.to_owned(), scopes.to_vec());
        let id = key.id.clone();
        store.create_key(key).await?;
        store.close().await;
        say!("{text}");
        let scopes: Vec<String> = scopes.iter().map(ToString::to_string).collect();
        eprintln!("key `{id}` ({name}) may {}; it is shown this once", scopes.join(", "));
        Ok(())
    })
}

/// Lists every key; nothing of them is secret.
pub(crate) fn list(file: Option<&Path>, json: bool) -> Result<(), Failed> {
    let loaded = config::load(file, Flags::default())?;
    block_on(async {
        let store = store::open_existing(&loaded.config.store).await?;
        let keys = store.keys().await?;
        store.close().await;
        if json {
            say!("{}", serde_json::to_string_pretty(&keys)?);
            return Ok(());
        }
        let width = keys.iter().map(|key| key.name.chars().count()).max().unwrap_or(0);
        for key in &keys {
            let scopes: Vec<String> = key.scopes.iter().map(ToString::to_string).collect();
            let state = key.revoked_at.map_or(String::new(), |at| format!("  revoked {at}"));
            say!("{}  {:width$}  {}  {}{state}", key.id, key.name, key.created_at, scopes.join(" "));
        }
        if keys.is_empty() {
            say!("there are no keys; `solely keys create` makes one");
        }
        Ok(())
    })
}

/// Revokes a key: servers refuse it within seconds.
pub(crate) fn revoke(file: Option<&Path>, id: &str) -> Result<(), Failed> {
    let loaded = config::load(file, Flags::default())?;
    block_on(async {
        let store = store::open_existing(&loaded.config.store).await?;
        let revoked = store.revoke_key(id.to_owned()).await?;
        store.close().await;
        if !revoked {
            return refuse(id);
        }
        say!("key `{id}` is revoked; servers refuse it within {} s", limits::KEY_TRUST.as_secs());
        Ok(())
    })
}

fn refuse(id: &str) -> Result<(), Failed> {
    let missing = || -> anyhow::Result<()> { bail!("there is no key `{id}` that is not revoked already") };
    Ok(missing()?)
}
