//! What an operation on PostgreSQL reads does not grow with what lies beside it: counted in
//! blocks and rows by the database itself, on tables that were never analysed.

use std::time::Duration;

use solely_core::ProcessId;
use solely_core::commit::{Commit, Verdict};
use solely_core::job::{ClaimReply, ClaimRequest, JobStore as _, NewJob, RescueRequest};
use solely_core::liveness::{Beat, LivenessStore as _};
use solely_postgres::{Options, PostgresStore};
use tokio_postgres::{Client, NoTls};

use crate::postgres::fresh_database;

/// What was read of `jobs`.
#[derive(Clone, Copy, Debug)]
struct Reads {
    /// Rows read by scans of the whole table.
    scanned: i64,
    /// Blocks of the table and its indexes.
    blocks: i64,
}

async fn reads(client: &Client) -> Reads {
    // Another session's counts arrive when it says so, or at the latest after a second.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let row = client
        .query_one(
            "SELECT seq_tup_read, heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit
               FROM pg_stat_user_tables JOIN pg_statio_user_tables USING (relid)
              WHERE pg_stat_user_tables.relname = 'jobs'",
            &[],
        )
        .await
        .expect("reads");
    Reads { scanned: row.get(0), blocks: row.get(1) }
}

/// A hundred jobs from enqueue to completion, one by one, with renewals and rescues between.
async fn lives(store: &PostgresStore, process: ProcessId, name: &str) {
    for n in 0..100 {
        store.enqueue(vec![NewJob::new("hot", format!("{name}-{n}"))]).await.expect("enqueues");
        let request =
            ClaimRequest { process, queue: "hot".to_owned(), limit: 4, lock: Duration::from_secs(60) };
        let ClaimReply::Jobs { jobs, .. } = store.claim(request).await.expect("claims") else {
            panic!("alive")
        };
        assert_eq!(jobs.len(), 1);
        store.renew(vec![jobs[0].claim], Duration::from_secs(60)).await.expect("renews");
        let rescue = RescueRequest { process, queues: vec!["hot".to_owned()], limit: 10 };
        store.rescue(rescue).await.expect("rescues");
        store.settle(vec![Commit::new(jobs[0].claim, Verdict::Complete)]).await.expect("settles");
    }
}

async fn cost_of_lives(store: &PostgresStore, client: &Client, process: ProcessId, name: &str) -> Reads {
    let before = reads(client).await;
    lives(store, process, name).await;
    let after = reads(client).await;
    Reads { scanned: after.scanned - before.scanned, blocks: after.blocks - before.blocks }
}

/// Jobs from one number to another: a third of the past, a third that wait for later, a third in other queues.
async fn crowd(client: &Client, first: u32, last: u32) {
    client
        .batch_execute(&format!(
            "INSERT INTO jobs (id, queue, kind, key, state, priority, run_at, due_at, ends_at, max_attempts,
                               payload, attributes, created_at, updated_at)
             SELECT gen_random_uuid(), CASE WHEN n % 3 = 2 THEN 'cold' ELSE 'hot' END, 'crowd', 'crowd-' || n,
                    CASE WHEN n % 3 = 0 THEN 3 ELSE 0 END, n % 10, later, CASE WHEN n % 3 <> 0 THEN later END,
                    CASE WHEN n % 3 = 0 THEN 1 END, 5, '{{}}', '{{}}', 0, 0
               FROM generate_series({first}, {last}) AS n,
                    (SELECT (extract(epoch FROM now()) * 1000)::bigint + 86400000) AS clock (later)"
        ))
        .await
        .expect("inserts");
}

#[tokio::test]
async fn a_million_jobs_beside_it_change_nothing() {
    let url = fresh_database().await;
    let store = PostgresStore::open(&url, &Options::default()).await.expect("opens");
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connects");
    tokio::spawn(connection);
    client.batch_execute("ALTER TABLE jobs SET (autovacuum_enabled = off)").await.expect("never analysed");
    let process = ProcessId::random();
    store.beat(Beat { process, dead_after: Duration::from_secs(600) }).await.expect("beats");
    crowd(&client, 1, 1_000).await;
    lives(&store, process, "warm").await;
    let few = cost_of_lives(&store, &client, process, "few").await;
    crowd(&client, 1_001, 1_000_000).await;
    let many = cost_of_lives(&store, &client, process, "many").await;
    println!("a hundred lives, few {few:?}, many {many:?}");
    assert_eq!(many.scanned, 0, "no scan of the table");
    // Some dozens of blocks for each of five operations. (With a thousand rows, never analysed,
    // walking a whole index still looks cheap to the planner; that is bounded, and passes.)
    assert!(many.blocks <= 25_000, "few {few:?}, many {many:?}");
}
