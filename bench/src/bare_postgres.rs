//! The limit: PostgreSQL alone, in a loop, with 64 rows under way: 32 a statement, on two
//! connections.

use std::time::Instant;

use anyhow::Result;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::jobs::rate;

const CONNECTIONS: usize = 2;
/// Rows of one statement.
const GROUP: usize = 32;

/// A table as anyone would make it for a queue by hand: the same row, its id and its unique key,
/// and what it is claimed by.
const TABLE: &str = "CREATE TABLE bare (
    id uuid PRIMARY KEY, queue text NOT NULL, kind text NOT NULL, key text NOT NULL, state smallint NOT NULL,
    priority smallint NOT NULL, run_at bigint NOT NULL, attempts integer NOT NULL, max_attempts integer NOT NULL,
    payload text NOT NULL, attributes text NOT NULL, created_at bigint NOT NULL, updated_at bigint NOT NULL,
    UNIQUE (queue, key)
);
CREATE INDEX bare_ready ON bare (run_at) WHERE state = 0;
CREATE TABLE bare_leases (key text PRIMARY KEY, owner text NOT NULL, expires_at bigint NOT NULL)";

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Runs `work` on each connection, with its groups and its number, and answers with rows per second.
async fn on_all<F>(url: &str, rows: usize, work: impl Fn(Client, usize, usize) -> F) -> Result<f64>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(connect(url).await?);
    }
    let started = Instant::now();
    let groups = rows / GROUP / CONNECTIONS;
    let numbered = clients.into_iter().enumerate();
    let tasks: Vec<_> = numbered.map(|(n, client)| tokio::spawn(work(client, groups, n))).collect();
    for task in tasks {
        task.await??;
    }
    Ok(rate(groups * GROUP * CONNECTIONS, started.elapsed()))
}

/// Inserts rows.
pub(crate) async fn insert(url: &str, rows: usize) -> Result<f64> {
    connect(url).await?.batch_execute(TABLE).await?;
    on_all(url, rows, |client, groups, _| async move {
        let insert = client
            .prepare(
                "INSERT INTO bare
                 SELECT id, 'bench', 'bench', key, 0, 5, 1700000000000, 0, 5, payload, '{}', 1700000000000,
                        1700000000000
                   FROM unnest($1::uuid[], $2::text[], $3::text[]) AS new (id, key, payload)",
            )
            .await?;
        let payloads = vec!["x".repeat(100); GROUP];
        for _ in 0..groups {
            let ids: Vec<Uuid> = (0..GROUP).map(|_| Uuid::now_v7()).collect();
            let keys: Vec<String> = ids.iter().map(|id| format!("key-{id}")).collect();
            client.execute(&insert, &[&ids, &keys, &payloads]).await?;
        }
        Ok(())
    })
    .await
}

/// Claims and completes the rows that [`insert`] made.
pub(crate) async fn drain(url: &str, rows: usize) -> Result<f64> {
    on_all(url, rows, |client, groups, _| async move {
        let claim = client
            .prepare(
                "UPDATE bare SET state = 2, attempts = attempts + 1
                  WHERE id = ANY (ARRAY(SELECT id FROM bare WHERE state = 0 ORDER BY run_at LIMIT 32
                                           FOR UPDATE SKIP LOCKED))
                 RETURNING id, payload",
            )
            .await?;
        let complete = client.prepare("UPDATE bare SET state = 3 WHERE id = ANY ($1)").await?;
        for _ in 0..groups {
            let claimed = client.query(&claim, &[]).await?;
            let ids: Vec<Uuid> = claimed.iter().map(|row| row.get(0)).collect();
            client.execute(&complete, &[&ids]).await?;
        }
        Ok(())
    })
    .await
}

/// Updates rows of leases, each connection its own.
pub(crate) async fn update(url: &str, rows: usize) -> Result<f64> {
    let client = connect(url).await?;
    client.batch_execute(TABLE).await?;
    client
        .batch_execute("INSERT INTO bare_leases SELECT 'key-' || n, '', 0 FROM generate_series(0, 9999) AS n")
        .await?;
    on_all(url, rows, |client, groups, half| async move {
        let update = client
            .prepare(
                "UPDATE bare_leases SET owner = 'bench', expires_at = $2
                   FROM unnest($1::text[]) AS wanted (name)
                  WHERE key = name",
            )
            .await?;
        for group in 0..groups {
            let keys: Vec<String> = (0..GROUP)
                .map(|n| format!("key-{}", ((group * GROUP + n) * CONNECTIONS + half) % 10_000))
                .collect();
            let until = i64::try_from(group).unwrap_or(0);
            client.execute(&update, &[&keys, &until]).await?;
        }
        Ok(())
    })
    .await
}
