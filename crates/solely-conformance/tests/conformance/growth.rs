//! What an operation on PostgreSQL reads does not grow with what lies beside it: counted in
//! blocks and rows by the database itself, on tables that were never analysed.

use std::sync::Arc;
use std::time::Duration;

use solely_core::cache::{CacheStore as _, EntryKey, Lifetimes, Overwrite, PutEntry};
use solely_core::commit::{Commit, Settled, Verdict};
use solely_core::event::EventStore as _;
use solely_core::job::{
    Claim, ClaimReply, ClaimRequest, Enqueued, JobStore as _, NewJob, Renewed, RescueRequest,
};
use solely_core::lease::{Acquired, Holder, LeaseRenewed, LeaseRequest, LeaseStore as _};
use solely_core::liveness::{Beat, LivenessStore as _};
use solely_core::reserve::window::Window;
use solely_core::reserve::{
    Batch, BoxType, HoldTimes, IdempotencyKey, Merchant, NewInventory, NewReservation, Operation, Request,
    ReserveStore as _, Rules, Verdict as Decision,
};
use solely_core::{Json, LeaseId, ProcessId, ReservationId, Store as _, Timestamp};
use solely_postgres::{Options, PostgresStore};
use solely_testing::PostgresServer;
use tokio_postgres::{Client, NoTls};

/// What was read.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    /// Rows read by scans of whole tables.
    scanned: i64,
    /// Blocks of tables and indexes.
    blocks: i64,
}

impl std::ops::Sub for Reads {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { scanned: self.scanned - before.scanned, blocks: self.blocks - before.blocks }
    }
}

/// A database with a store and a connection that looks at its counters.
struct Site {
    store: PostgresStore,
    client: Client,
    process: ProcessId,
}

/// Operations of each kind whose reads are added up.
const TIMES: u32 = 100;
/// Jobs of a batch, and batches.
const BATCH: usize = 64;
/// See [`BATCH`].
const BATCHES: usize = 40;

impl Site {
    async fn new(server: &PostgresServer) -> Self {
        let url = server.fresh_database();
        let store = PostgresStore::open(&url, &Options { max_connections: 3, ..Options::default() }).await;
        let store = store.expect("opens");
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connects");
        tokio::spawn(connection);
        for table in TABLES {
            // Without a log, to be filled faster.
            client.batch_execute(&format!("ALTER TABLE {table} SET UNLOGGED")).await.expect("is altered");
        }
        stock(&store).await;
        let process = ProcessId::random();
        store.beat(Beat { process, dead_after: Duration::from_secs(600) }).await.expect("beats");
        Self { store, client, process }
    }

    async fn reads(&self) -> Reads {
        // A session tells its counts at the end of a transaction, but not twice in a second. The
        // store has one session for its work.
        tokio::time::sleep(Duration::from_millis(1_050)).await;
        self.store.health().await.expect("is there");
        let row = self
            .client
            .query_one(
                "SELECT sum(seq_tup_read)::bigint,
                        sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::bigint
                   FROM pg_stat_user_tables JOIN pg_statio_user_tables USING (relid, relname)
                  WHERE relname = ANY ($1)",
                &[&TABLES],
            )
            .await
            .expect("reads");
        Reads { scanned: row.get(0), blocks: row.get(1) }
    }

    /// What batches of 64 jobs read, from enqueue to completion, as a busy worker has them.
    async fn cost_of_batches(&self, name: &str) -> Reads {
        let before = self.reads().await;
        for batch in 0..BATCHES {
            let jobs = (0..BATCH).map(|n| NewJob::new("hot", format!("{name}-batch-{batch}-{n}"))).collect();
            self.store.enqueue(jobs).await.expect("enqueues");
            let (process, lock) = (self.process, Duration::from_secs(600));
            let request = ClaimRequest { process, queue: "hot".to_owned(), limit: BATCH, lock };
            let ClaimReply::Jobs { jobs, .. } = self.store.claim(request).await.expect("claims") else {
                panic!("alive")
            };
            assert_eq!(jobs.len(), BATCH);
            let commits = jobs.iter().map(|job| Commit::new(job.claim, Verdict::Complete)).collect();
            self.store.settle(commits).await.expect("settles");
        }
        self.reads().await - before
    }

    /// What each hot operation reads, [`TIMES`] times.
    async fn cost(&self, name: &str) -> Vec<(&'static str, Reads)> {
        let mut costs = Vec::new();
        let mut before = self.reads().await;
        let mut claims = Vec::new();
        for operation in OPERATIONS {
            for n in 0..TIMES {
                self.run(operation, name, n, &mut claims).await;
            }
            let after = self.reads().await;
            costs.push((*operation, after - before));
            before = after;
        }
        costs
    }

    async fn run(&self, operation: &str, name: &str, n: u32, claims: &mut Vec<Claim>) {
        let key = format!("{name}-{n}");
        let (space, lock) = ("space".to_owned(), Duration::from_secs(600));
        match operation {
            "enqueue" => {
                let made = self.store.enqueue(vec![NewJob::new("hot", key)]).await.expect("enqueues");
                assert_eq!(made, [Enqueued::Created]);
            }
            "enqueue a duplicate" => {
                let made = self.store.enqueue(vec![NewJob::new("hot", key)]).await.expect("enqueues");
                assert!(matches!(made[..], [Enqueued::Duplicate { .. }]));
            }
            "claim" => {
                let request = ClaimRequest { process: self.process, queue: "hot".to_owned(), limit: 1, lock };
                let reply = self.store.claim(request).await.expect("claims");
                let ClaimReply::Jobs { jobs, .. } = reply else { panic!("alive") };
                claims.push(jobs[0].claim);
            }
            "claim nothing" => {
                let request = ClaimRequest { process: self.process, queue: "hot".to_owned(), limit: 4, lock };
                let reply = self.store.claim(request).await.expect("claims");
                assert!(matches!(reply, ClaimReply::Jobs { jobs, next_due_in: Some(_) } if jobs.is_empty()));
            }
            "renew" => {
                let renewed = self.store.renew(vec![claims[n as usize]], lock).await.expect("renews");
                assert!(matches!(renewed[..], [Renewed::Until(_)]));
            }
            "rescue" => {
                let queues = vec!["hot".to_owned()];
                let request = RescueRequest { process: self.process, queues, limit: 10 };
                assert!(self.store.rescue(request).await.expect("rescues").freed.is_empty());
            }
            "settle" => {
                let commit = Commit::new(claims[n as usize], Verdict::Complete);
                assert_eq!(self.store.settle(vec![commit]).await.expect("settles"), [Ok(Settled::Applied)]);
            }
            "acquire" => {
                let holder = Holder::Process(self.process);
                let (id, keys, owner) = (lease_id(n), vec![key], "owner".to_owned());
                let request = LeaseRequest { id, keys, owner, ttl: lock, holder };
                let acquired = self.store.acquire(request).await.expect("acquires");
                assert!(matches!(acquired, Acquired::Acquired(_)));
            }
            "renew a lease" => {
                let renewed = self.store.renew_lease(lease_id(n), None).await.expect("renews");
                assert!(matches!(renewed, LeaseRenewed::Renewed(_)));
            }
            "release" => {
                assert_eq!(self.store.release(lease_id(n)).await.expect("releases"), [key]);
            }
            "put an entry" => {
                let lifetimes = Lifetimes { fresh: lock, stale: lock, keep: lock };
                let (key, value, overwrite) = (EntryKey { space, key }, Json::empty(), Overwrite::Always);
                let entry = PutEntry { key, value, lifetimes, overwrite, told: None };
                self.store.put_entries(vec![entry]).await.expect("puts");
            }
            "read an entry" => {
                let read = self.store.entries(vec![EntryKey { space, key }]).await.expect("reads");
                assert!(read[0].is_some());
            }
            "read a timeline" => {
                let told = self.store.timeline("nothing:1".to_owned(), None, 10).await.expect("reads");
                assert!(told.is_empty());
            }
            "read an audit" => {
                let told = self.store.timeline("inventory:box".to_owned(), None, 10).await.expect("reads");
                assert_eq!(told.len(), 10);
            }
            "reserve" => {
                let new = NewReservation {
                    id: reservation_id(name, n),
                    pickup_code: "7KQ2-M9XD".to_owned(),
                    user_id: key.clone(),
                    inventory_id: "box".to_owned(),
                    ttl: None,
                    quantity: 1,
                    max_price: None,
                };
                let idempotency = Some((IdempotencyKey { scope: space, key }, "digest".to_owned()));
                decide(&self.store, Request { idempotency, ..Request::new(Operation::Reserve(new)) }).await;
            }
            "confirm" => {
                decide(&self.store, Request::new(Operation::Confirm(reservation_id(name, n)))).await;
            }
            "give back" => {
                decide(&self.store, Request::new(Operation::Cancel(reservation_id(name, n)))).await;
            }
            other => panic!("no operation {other}"),
        }
    }
}

fn lease_id(n: u32) -> LeaseId {
    let mut bytes = [0; 16];
    bytes[12..].copy_from_slice(&n.to_be_bytes());
    LeaseId::from_bytes(bytes)
}

/// Those that refer to another come before it.
const TABLES: &[&str] = &[
    "jobs",
    "leases",
    "entries",
    "events",
    "sent_keys",
    "reservations",
    "idempotency_keys",
    "inventory",
    "box_types",
    "merchants",
];

/// A merchant with boxes enough.
async fn stock(store: &PostgresStore) {
    let text = str::to_owned;
    let (start, end) = (Timestamp::from_millis(0), Timestamp::FAR_FUTURE);
    let made = [
        Operation::CreateMerchant(Merchant { id: text("m"), name: text("Bakery"), timezone: text("UTC") }),
        Operation::CreateBoxType(BoxType { id: text("t"), merchant_id: text("m"), name: text("Box") }),
        Operation::CreateInventory(NewInventory {
            id: text("box"),
            box_type_id: text("t"),
            quantity: 1_000_000,
            price: 450,
            currency: text("EUR"),
            window: Window::Instants { start, end },
            pricing: None,
        }),
    ];
    for operation in made {
        decide(store, Request::new(operation)).await;
    }
}

async fn decide(store: &PostgresStore, request: Request) {
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    let times = HoldTimes { usual: minutes(20), least: minutes(15), most: minutes(30), offer: minutes(10) };
    let decided =
        store.decide(Batch::of(vec![request]), Arc::new(Rules::new(times))).await.expect("decides").0;
    assert!(!matches!(decided[0].verdict, Decision::Refused(_)), "{decided:?}");
}

fn reservation_id(name: &str, n: u32) -> ReservationId {
    let mut bytes = [0xff; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes[12..].copy_from_slice(&n.to_be_bytes());
    ReservationId::from_bytes(bytes)
}

const OPERATIONS: &[&str] = &[
    "enqueue",
    "enqueue a duplicate",
    "claim",
    "claim nothing",
    "renew",
    "rescue",
    "settle",
    "acquire",
    "renew a lease",
    "release",
    "put an entry",
    "read an entry",
    "read a timeline",
    "read an audit",
    "reserve",
    "confirm",
    "give back",
];

/// Rows from one number to another. Of jobs: a third of the past, a third that wait for later, a
/// third in other queues.
async fn crowd(client: &Client, first: u32, last: u32) {
    client
        .batch_execute(&format!(
            "INSERT INTO jobs (id, queue, kind, key, state, priority, run_at, due_at, ends_at, max_attempts,
                               payload, attributes, created_at, updated_at)
             SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, CASE WHEN n % 3 = 2 THEN 'cold' ELSE 'hot' END, 'crowd', 'crowd-' || n,
                    CASE WHEN n % 3 = 0 THEN 3 ELSE 0 END, n % 10, later, CASE WHEN n % 3 <> 0 THEN later END,
                    CASE WHEN n % 3 = 0 THEN 1 END, 5, '{{}}', '{{}}', 0, 0
               FROM generate_series({first}, {last}) AS n,
                    (SELECT (extract(epoch FROM now()) * 1000)::bigint + 86400000) AS clock (later);
             INSERT INTO leases (key, lease, owner, fence, ttl_ms, expires_at)
             SELECT 'crowd-' || n, gen_random_uuid(), 'crowd', 0, 1, n FROM generate_series({first}, {last}) AS n;
             INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
             SELECT 'space', 'crowd-' || n, '{{}}', 1, 0, 0, 0, n FROM generate_series({first}, {last}) AS n;
             INSERT INTO events (at, subject, event, details, also)
             SELECT n, 'crowd:' || n, 'was', '{{}}', 'inventory:' || n FROM generate_series({first}, {last}) AS n;
             INSERT INTO reservations
             SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'crowd-' || n, 'm', 'box', 4, 0, 'code', 1,
                    450, 'EUR', 0, 1, NULL, NULL, false, 0, 0, n, NULL, 1
               FROM generate_series({first}, {last}) AS n;
             INSERT INTO idempotency_keys (scope, key, digest, verdict, at)
             SELECT 'space', 'crowd-' || n, 'd', '{{}}', n FROM generate_series({first}, {last}) AS n;"
        ))
        .await
        .expect("inserts");
}

/// What an operation reads is what its keys need: on a fresh database, beside ten thousand rows,
/// and beside a million, with the plans that were made when the tables were empty.
#[tokio::test]
async fn a_million_rows_beside_it_change_nothing() {
    let server = PostgresServer::start_without_housekeeping();
    let site = Site::new(&server).await;
    crowd(&site.client, 1, 10).await;
    let fresh = site.cost("fresh").await;
    crowd(&site.client, 11, 10_000).await;
    let few = site.cost("few").await;
    crowd(&site.client, 10_001, 1_000_000).await;
    let many = site.cost("many").await;
    let many_batches = site.cost_of_batches("many").await;
    let small = Site::new(&server).await;
    crowd(&small.client, 1, 10_000).await;
    let few_batches = small.cost_of_batches("few").await;
    println!("{TIMES} times      fresh      few     many");
    let mut grown = Vec::new();
    for ((operation, fresh), ((_, few), (_, many))) in fresh.iter().zip(few.iter().zip(&many)) {
        println!("{operation:20} {:8} {:8} {:8}", fresh.blocks, few.blocks, many.blocks);
        if fresh.scanned + few.scanned + many.scanned > 0 {
            grown.push(format!("{operation} scans a table: {fresh:?} {few:?} {many:?}"));
        }
        // A tree of a million keys is one level higher than one of ten thousand. A rescue looks at
        // the hundred jobs that run, and at what their renewals left behind, wherever that lies.
        let slack = i64::from(TIMES) * if *operation == "rescue" { 100 } else { 1 };
        if 2 * many.blocks > 3 * few.blocks + slack {
            grown.push(format!("{operation} reads more: {few:?} {many:?}"));
        }
    }
    println!("{} jobs in batches: few {few_batches:?}, many {many_batches:?}", BATCH * BATCHES);
    assert_eq!(grown, Vec::<String>::new());
    assert!(10 * many_batches.blocks <= 11 * few_batches.blocks, "no more than a tenth more");
}
