//! `pg_dump` and `pg_restore`, PostgreSQL's own programs: one snapshot out, one transaction in.

use std::ffi::OsStr;
use std::io::{ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail};
use solely_core::config::StoreConfig;
use solely_postgres::backup::{self, Whereabouts};
use solely_sqlite::backup::Existing;

/// Writes the store's schema to a file, as it is at one instant.
pub(crate) fn dump(config: &StoreConfig, to: &Path) -> Result<()> {
    let place = Whereabouts::of(&config.url, &config.schema)?;
    let mut dump = program("pg_dump", &place);
    dump.args(["--format=custom", "--no-owner", "--no-privileges", "--schema", &place.schema, "--dbname"]);
    run(dump.arg(&place.url).arg("--file").arg(to))?;
    versions(&place, to).context("the database holds no store")?;
    Ok(())
}

/// Puts what a file holds into the store's schema, all of it or nothing.
pub(crate) async fn restore(config: &StoreConfig, from: &Path, existing: Existing) -> Result<()> {
    let place = Whereabouts::of(&config.url, &config.schema)?;
    let list = contents(&place, from)?;
    let dumped = versions(&place, from)?;
    if dumped.oldest_compatible > solely_postgres::LATEST_VERSION {
        bail!("the backup is of schema version {}; run a newer solely", dumped.version);
    }
    let found = backup::survey(&config.url, &config.schema).await?;
    if found.at_work {
        bail!("a server is at work on the store; stop it first");
    }
    if found.has_rows && existing == Existing::Keep {
        bail!("the store is not empty; --force replaces what is in it");
    }
    if found.version.is_some_and(|version| version > dumped.version) {
        bail!(
            "the store has a newer schema than the backup (version {} and {}): restore into a new database, \
             or drop the schema `{}` first",
            found.version.unwrap_or_default(),
            dumped.version,
            place.schema
        );
    }
    backup::prepare(&config.url, &config.schema).await?;
    let mut chosen = tempfile::NamedTempFile::new()?;
    chosen.write_all(list.as_bytes())?;
    let mut restore = program("pg_restore", &place);
    restore.args(["--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges", "--use-list"]);
    restore.arg(chosen.path());
    if found.version.is_some() {
        restore.args(["--clean", "--if-exists"]);
    }
    run(restore.arg("--dbname").arg(&place.url).arg(from))?;
    backup::go_on(&config.url, &config.schema).await?;
    Ok(())
}

/// What is restored of a backup: all but the schema itself, which is there.
fn contents(place: &Whereabouts, from: &Path) -> Result<String> {
    let list = run(program("pg_restore", place).arg("--list").arg(from))
        .with_context(|| format!("`{}` is no backup of a PostgreSQL store", from.display()))?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    if !list.contains(&format!(" TABLE {} schema_version ", place.schema)) {
        bail!("`{}` holds no store of the schema `{}`", from.display(), place.schema);
    }
    let wanted = |line: &&str| line.starts_with(';') || !line.contains(" SCHEMA - ");
    Ok(list.split_inclusive('\n').filter(wanted).collect())
}

/// Which programs can run on a backup.
struct Versions {
    version: u32,
    oldest_compatible: u32,
}

fn versions(place: &Whereabouts, from: &Path) -> Result<Versions> {
    let mut read = program("pg_restore", place);
    read.args(["--data-only", "--table=schema_version", "--file=-", "--schema", &place.schema]);
    let text = run(read.arg(from))?;
    let text = String::from_utf8_lossy(&text.stdout);
    let rows = text.lines().skip_while(|line| !line.starts_with("COPY ")).skip(1);
    // version, name, oldest_compatible, applied_at
    let of = |row: &str| {
        let mut columns = row.split('\t');
        let version = columns.next()?.parse().ok()?;
        Some(Versions { version, oldest_compatible: columns.nth(1)?.parse().ok()? })
    };
    let rows = rows.take_while(|line| *line != "\\.").filter_map(of);
    rows.max_by_key(|row| row.version).context("the backup says no version")
}

/// A program that finds the store; its password is not for others to read.
fn program(name: &str, place: &Whereabouts) -> Command {
    let mut command = Command::new(name);
    // Nobody is there to be asked for one.
    command.arg("--no-password");
    if let Some(password) = &place.password {
        command.env("PGPASSWORD", OsStr::from_bytes(password));
    }
    command
}

fn run(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(std::process::Stdio::null()).output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!(
                "`{name}` is not installed; it comes with PostgreSQL's client programs (Debian: postgresql-client)"
            )
        }
        output => output.with_context(|| format!("`{name}` cannot be run"))?,
    };
    if !output.status.success() {
        bail!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output)
}
