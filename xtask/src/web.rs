//! The dashboard, `client.js` and the demo's pages: their types, and their tests in a real Chromium.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::run;

/// Runs them against the binary that the other tests use.
pub(crate) fn test(root: &Path) -> Result<()> {
    run(&mut crate::cargo(&["build", "--workspace", "--bin", "solely"]))?;
    npm(root, &["test"])
}

/// What the comments of the modules say of types holds.
pub(crate) fn types(root: &Path) -> Result<()> {
    npm(root, &["run", "types"])
}

/// A script of the tests' own package, with what it needs.
fn npm(root: &Path, args: &[&str]) -> Result<()> {
    let folder = root.join("web/tests");
    let command = |args: &[&str]| {
        let mut command = Command::new("npm");
        command.arg("--prefix").arg(&folder).args(["--silent"]).args(args);
        command
    };
    run(&mut command(&["ci"])).context("the browser tests need packages of web/tests/package.json")?;
    run(&mut command(args))
}
