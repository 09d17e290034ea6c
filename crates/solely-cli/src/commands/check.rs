//! `solely check`.

use std::path::Path;

use solely_core::check::CheckReport;

use super::{Failed, block_on};
use crate::config::{self, Flags};
use crate::output::say;
use crate::store;

pub(crate) fn run(file: Option<&Path>, json: bool) -> Result<(), Failed> {
    let loaded = config::load(file, Flags::default())?;
    let report = block_on(async {
        let store = store::open_existing(&loaded.config.store).await?;
        Ok(store.check().await?)
    })?;
    if json {
        say!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    if report.violations.is_empty() { Ok(()) } else { Err(Failed::Violations) }
}

fn print(report: &CheckReport) {
    for (what, count) in &report.counted {
        say!("{count:>12}  {what}");
    }
    for violation in &report.violations {
        say!("VIOLATION  {}: {} ({})", violation.rule, violation.message, violation.subject);
    }
    match report.violations.len() {
        0 => say!("no violations"),
        1 => say!("1 violation"),
        count => say!("{count} violations"),
    }
}
