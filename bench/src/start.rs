//! Start-up and idling of the real binary.

use std::path::Path;

use anyhow::Result;

use crate::Scale;
use crate::report::Report;

pub(crate) async fn run(_report: &mut Report, _scale: Scale, _solely: Option<&Path>) -> Result<()> {
    Ok(())
}
