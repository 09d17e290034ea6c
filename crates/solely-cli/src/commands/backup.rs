//! `solely backup` and `solely restore`.
//!
//! A backup is one snapshot, taken while servers write. It is made beside its place and gets its name when it is whole
//! and on the disk: a file of that name is never half a backup, and never replaces another.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use solely_core::config::StoreConfig;
use solely_sqlite::backup::{self as sqlite, Copied, Existing};
use tempfile::{Builder, NamedTempFile};

use super::{Failed, block_on};
use crate::config::{self, Flags};
use crate::output::say;
use crate::postgres_tools as postgres;
use crate::store::{self, Engine};

/// Writes a backup of the store to a file.
pub(crate) fn run(config: Option<&Path>, to: &Path) -> Result<(), Failed> {
    let config = config::load(config, Flags::default())?.config.store;
    if to.exists() {
        return Err(anyhow!("`{}` is there already; a backup replaces nothing", to.display()).into());
    }
    let beside = beside(to)?;
    if let Some(Engine::Postgres) = store::engine(&config.url) {
        let screen = waiting("pg_dump");
        postgres::dump(&config, beside.path())?;
        screen.finish_and_clear();
    } else {
        there(&config)?;
        let screen = Pages::new();
        sqlite::back_up(&config.url, beside.path(), |copied| screen.show(copied))?;
        screen.end();
    }
    let bytes = beside.as_file().metadata()?.len();
    let kept = keep(beside, to)?;
    say!("the store is backed up in {} ({})", kept.display(), HumanBytes(bytes));
    Ok(())
}

/// Puts a backup in the place of the store.
pub(crate) fn restore(config: Option<&Path>, from: &Path, existing: Existing) -> Result<(), Failed> {
    let config = config::load(config, Flags::default())?.config.store;
    if !from.is_file() {
        return Err(anyhow!("there is no backup in `{}`", from.display()).into());
    }
    if let Some(Engine::Postgres) = store::engine(&config.url) {
        let screen = waiting("pg_restore");
        block_on(async { Ok(postgres::restore(&config, from, existing).await?) })?;
        screen.finish_and_clear();
    } else {
        let screen = Pages::new();
        sqlite::restore(from, &config.url, existing, |copied| screen.show(copied))?;
        screen.end();
    }
    say!("the store is as it was in {}; `solely check` verifies it", from.display());
    Ok(())
}

/// A store in a file that is there: a backup makes none.
fn there(config: &StoreConfig) -> anyhow::Result<()> {
    let file = config.url.strip_prefix("sqlite:").filter(|place| *place != ":memory:");
    match file.filter(|file| !Path::new(file).is_file()) {
        Some(file) => bail!("there is no store in `{file}`"),
        None => Ok(()),
    }
}

/// A file in the folder of another, of which nobody else can read.
fn beside(to: &Path) -> anyhow::Result<NamedTempFile> {
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let made = Builder::new().prefix(".solely-backup-").tempfile_in(folder);
    made.with_context(|| format!("cannot write in `{}`", folder.display()))
}

/// Gives a file that is whole its name, for good.
fn keep(beside: NamedTempFile, to: &Path) -> anyhow::Result<PathBuf> {
    beside.as_file().sync_all()?;
    let folder = beside.path().parent().map(Path::to_owned);
    beside.persist_noclobber(to).map_err(|error| anyhow!("`{}`: {}", to.display(), error.error))?;
    if let Some(folder) = folder {
        std::fs::File::open(folder)?.sync_all()?;
    }
    Ok(to.to_owned())
}

/// A bar on a terminal; nothing elsewhere.
struct Pages(ProgressBar);

impl Pages {
    fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("{bar:40} {percent}%  {pos}/{len} pages  {eta}");
        let bar = ProgressBar::new(0);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(bar)
    }

    fn show(&self, copied: Copied) {
        self.0.set_length(copied.of.into());
        self.0.set_position(copied.pages.into());
    }

    fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// Another program is at work.
fn waiting(program: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner().with_message(program);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}
