//! What `pg_dump` and `pg_restore` cannot know of a store.
//!
//! They copy: one snapshot out, one transaction in. Whether a store may be replaced, and what must be different in its
//! next life (see `solely-sqlite`'s file of this name), is said here.

use solely_core::StoreError;
use tokio_postgres::tls::TlsStream;
use tokio_postgres::{Client, Connection, NoTls, Socket};

use crate::error::store_error;
use crate::known_schema;
use crate::tls::Tls;

/// Where a store is, for PostgreSQL's own programs.
#[derive(Clone, PartialEq, Eq)]
pub struct Whereabouts {
    /// The URL, without a password: command lines can be read by others.
    pub url: String,
    /// For `PGPASSWORD`.
    pub password: Option<Vec<u8>>,
    /// The schema that holds the tables.
    pub schema: String,
}

impl Whereabouts {
    /// Those of a store's URL.
    pub fn of(url: &str, schema: &str) -> Result<Self, StoreError> {
        let (config, _) = Tls::read(url)?;
        let schema = known_schema(schema)?.to_owned();
        let password = config.get_password().map(<[u8]>::to_vec);
        Ok(Self { url: without_password(url), password, schema })
    }
}

/// The userinfo ends at the last `@` before the path.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (place, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let Some((user, host)) = place.rsplit_once('@') else { return url.to_owned() };
    let user = user.split(':').next().unwrap_or_default();
    format!("{scheme}://{user}@{host}{path}")
}

/// What there is before a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The schema's version, if there is a store.
    pub version: Option<u32>,
    /// Whether anything was ever put into it.
    pub has_rows: bool,
    /// Whether a process has beaten a moment ago.
    pub at_work: bool,
}

/// A process that has beaten within this time is at work.
const AT_WORK_MS: i64 = 10_000;

/// Looks at what there is, and changes nothing.
pub async fn survey(url: &str, schema: &str) -> Result<Survey, StoreError> {
    let schema = known_schema(schema)?;
    let client = connect(url).await?;
    let sql = |error: tokio_postgres::Error| store_error(&error);
    let there = client
        .query_one(
            "SELECT to_regclass($1 || '.schema_version') IS NOT NULL, to_regclass($1 || '.processes') IS NOT NULL",
            &[&schema],
        )
        .await
        .map_err(sql)?;
    if !there.get::<_, bool>(0) {
        return Ok(Survey { version: None, has_rows: false, at_work: false });
    }
    let version = format!("SELECT coalesce(max(version), 0) FROM {schema}.schema_version");
    let version: i32 = client.query_one(&version, &[]).await.map_err(sql)?.get(0);
    let tables = client
        .query(
            "SELECT quote_ident(relname)
               FROM pg_class
              WHERE relnamespace = to_regnamespace($1) AND relkind IN ('r', 'p')
                AND relname NOT IN ('schema_version', 'store_identity', 'processes')",
            &[&schema],
        )
        .await
        .map_err(sql)?;
    let mut has_rows = false;
    for table in tables {
        let any = format!("SELECT EXISTS (SELECT FROM {schema}.{})", table.get::<_, String>(0));
        has_rows |= client.query_one(&any, &[]).await.map_err(sql)?.get::<_, bool>(0);
    }
    let mut at_work = false;
    if there.get::<_, bool>(1) {
        let beats = format!(
            "SELECT EXISTS (SELECT FROM {schema}.processes
                             WHERE beat_at > extract(epoch FROM clock_timestamp()) * 1000 - {AT_WORK_MS})"
        );
        at_work = client.query_one(&beats, &[]).await.map_err(sql)?.get(0);
    }
    Ok(Survey { version: u32::try_from(version).ok(), has_rows, at_work })
}

/// Makes the schema that a store is restored into.
pub async fn prepare(url: &str, schema: &str) -> Result<(), StoreError> {
    let schema = known_schema(schema)?;
    let client = connect(url).await?;
    let there = client.query_one("SELECT to_regnamespace($1) IS NOT NULL", &[&schema]).await;
    if there.map_err(|error| store_error(&error))?.get(0) {
        return Ok(());
    }
    let made = client.batch_execute(&format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await;
    made.map_err(|error| store_error(&error))
}

/// A restored store goes on: another life of the same one, whose fences are above all that were given.
pub async fn go_on(url: &str, schema: &str) -> Result<(), StoreError> {
    let schema = known_schema(schema)?;
    let client = connect(url).await?;
    let steps = format!(
        "BEGIN;
         SELECT setval('{schema}.fences', greatest(last_value, (extract(epoch FROM clock_timestamp()) * 1e6)::bigint))
           FROM {schema}.fences;
         DELETE FROM {schema}.processes;
         DO $$ BEGIN
             IF to_regclass('{schema}.store_identity') IS NOT NULL THEN
                 UPDATE {schema}.store_identity SET id = replace(gen_random_uuid()::text, '-', '');
             END IF;
         END $$;
         COMMIT;"
    );
    client.batch_execute(&steps).await.map_err(|error| store_error(&error))
}

async fn connect(url: &str) -> Result<Client, StoreError> {
    let (config, tls) = Tls::read(url)?;
    let connected = match tls {
        Tls::Never => config.connect(NoTls).await.map(|(client, connection)| driven(client, connection)),
        Tls::With(tls) => config.connect(tls).await.map(|(client, connection)| driven(client, connection)),
    };
    connected.map_err(|error| store_error(&error))
}

fn driven<T>(client: Client, connection: Connection<Socket, T>) -> Client
where
    T: TlsStream + Unpin + Send + 'static,
{
    tokio::spawn(connection);
    client
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_on_a_command_line() {
        let of = |url: &str| Whereabouts::of(url, "public").expect("is known");
        let known = of("postgres://u:p%40ss@host:5433/db?sslmode=disable&application_name=a@b");
        assert_eq!(known.url, "postgres://u@host:5433/db?sslmode=disable&application_name=a@b");
        assert_eq!(known.password.as_deref(), Some(b"p@ss".as_slice()));
        assert_eq!(of("postgres://u@host/db").url, "postgres://u@host/db");
        assert_eq!(of("postgres://host/db").password, None);
        assert!(Whereabouts::of("postgres://host/db", "a b").is_err());
    }
}
