//! `solely config`.

use std::path::Path;

use super::Failed;
use crate::config::{self, Flags};
use crate::output::say;

pub(crate) fn run(file: Option<&Path>, json: bool) -> Result<(), Failed> {
    let settings = config::load(file, Flags::default())?.settings();
    if json {
        say!("{}", serde_json::to_string_pretty(&settings)?);
        return Ok(());
    }
    let lines: Vec<(String, String)> =
        settings.into_iter().map(|one| (format!("{} = {}", one.key, one.value), one.origin)).collect();
    let width = lines.iter().map(|(line, _)| line.len()).max().unwrap_or(0);
    for (line, origin) in lines {
        say!("{line:width$}  # {origin}");
    }
    Ok(())
}
