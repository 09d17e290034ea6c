//! A hot item: the document's way, one statement, a bare merged write, and solely with everything on.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rusqlite::Connection;
use serde_json::json;
use solely_core::bus::Bus;
use solely_core::config::ReserveConfig;
use solely_core::metrics::Metrics;
use solely_core::queue::Jobs;
use solely_core::reserve::{
    BoxType, IdempotencyKey, Merchant, NewInventory, NewReservation, Operation, Request, Reserve,
    ReserveParts, UNITS_MAX, Verdict, pickup_code, window::Window,
};
use solely_core::{Clock, ReservationId, Store, Timestamp};
use solely_testing::RedisServer;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::Scale;
use crate::engine::{Postgres, sqlite, store_at};
use crate::jobs::rate;
use crate::report::{Goal, Report};
use crate::start::Server;

const DOCUMENT: &str = "hot item on PostgreSQL: the document's two locks and cached quantity, 64 buyers";
const STATEMENT: &str = "hot item on PostgreSQL: one statement, the best of 8 and 32 connections";
const BARE_HTTP: &str = "axum alone: a body parsed and written back, beside reservations";
const BARE: &str = "hot item, bare SQLite: the requests of 64 buyers merged";

/// What some buyers did: how many a second, and the slow end in ms.
pub(crate) struct Bought {
    rate: f64,
    p99: f64,
}

fn bought(mut took: Vec<f64>, elapsed: Duration) -> Bought {
    took.sort_by(f64::total_cmp);
    Bought { rate: rate(took.len(), elapsed), p99: took[took.len() * 99 / 100] }
}

/// Runs so many purchases by so many buyers at once, each with its own state.
async fn buyers<S, F>(
    states: Vec<S>,
    purchases: usize,
    buy: impl Fn(S, usize) -> F + Clone + Send + 'static,
) -> Result<Bought>
where
    S: Send + 'static,
    F: Future<Output = Result<S>> + Send,
{
    let (next, began) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let tasks: Vec<_> = states
        .into_iter()
        .map(|mut state| {
            let (next, buy) = (next.clone(), buy.clone());
            tokio::spawn(async move {
                let mut took = Vec::new();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= purchases {
                        return anyhow::Ok(took);
                    }
                    let asked = Instant::now();
                    state = buy(state, n).await?;
                    took.push(asked.elapsed().as_secs_f64() * 1_000.0);
                }
            })
        })
        .collect();
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await??);
    }
    Ok(bought(took, began.elapsed()))
}

const TABLES: &str = "CREATE TABLE bare_inventory (id text PRIMARY KEY, remaining integer NOT NULL CHECK (remaining >= 0),
                          price bigint NOT NULL, status text NOT NULL);
    CREATE TABLE bare_reservations (id uuid PRIMARY KEY, user_id text NOT NULL, inventory_id text NOT NULL,
                          status text NOT NULL, code text NOT NULL, amount bigint NOT NULL, reserved_at bigint NOT NULL,
                          expires_at bigint NOT NULL);
    CREATE UNIQUE INDEX bare_open ON bare_reservations (user_id, inventory_id) WHERE status = 'ACTIVE';
    INSERT INTO bare_inventory VALUES ('box', 1000000, 450, 'ACTIVE')";

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

pub(crate) async fn on_postgres(report: &mut Report, scale: Scale) -> Result<()> {
    let (postgres, redis) = (Postgres::start(), RedisServer::start());
    let (mut document, mut statement, mut best) = (vec![], vec![], vec![]);
    let (mut document_p99, mut solely_p99, mut alone, mut alone_statement) = (vec![], vec![], vec![], vec![]);
    for round in 0..scale.rounds {
        let url = postgres.database().await?;
        connect(&url).await?.batch_execute(TABLES).await?;
        let way = the_documents_way(&url, &redis, scale.operations / 20, round).await?;
        document.push(way.rate);
        document_p99.push(way.p99);
        let mut of_statement = 0.0_f64;
        for connections in [8, 32] {
            of_statement =
                of_statement.max(one_statement(&url, connections, scale.operations / 8).await?.rate);
        }
        statement.push(of_statement);
        alone_statement.push(one_statement(&url, 1, scale.operations / 10).await?.rate);
        let mut of_solely = 0.0_f64;
        for buyers in [64, 256, 512] {
            let store = postgres.store().await?;
            let sold = sell(&store, buyers, scale.operations).await?;
            of_solely = of_solely.max(sold.rate);
            if buyers == 64 {
                solely_p99.push(sold.p99);
                alone.push(sell(&store, 1, scale.operations / 10).await?.rate);
            }
            store.close().await;
        }
        best.push(of_solely);
    }
    report.add(DOCUMENT, "reservations/s", document, Goal::None);
    report.add(STATEMENT, "reservations/s", statement, Goal::None);
    let times = |limit, times| Goal::AtLeast { mark: "B1", limit, times };
    let name = "hot item on PostgreSQL, all on: the best of 64, 256 and 512 buyers";
    report.add(name, "reservations/s", best.clone(), times(STATEMENT, 8.0));
    report.add("… the same beside the document's way", "reservations/s", best, times(DOCUMENT, 25.0));
    report.add("the document's way, 64 buyers: p99", "ms", document_p99.clone(), Goal::None);
    let most = document_p99.iter().sum::<f64>() / f64::from(u32::try_from(document_p99.len())?) / 100.0;
    report.add("… solely, 64 buyers: p99", "ms", solely_p99, Goal::AtMost { mark: "B1", most });
    report.add(ALONE_STATEMENT, "reservations/s", alone_statement, Goal::None);
    let goal = Goal::AtLeast { mark: "B1", limit: ALONE_STATEMENT, times: 0.5 };
    report.add("… solely, one buyer alone", "reservations/s", alone, goal);
    Ok(())
}

/// One buyer alone beside one statement, and nothing else: for a look at that.
pub(crate) async fn alone_on_postgres(report: &mut Report, scale: Scale) -> Result<()> {
    let postgres = Postgres::start();
    let url = postgres.database().await?;
    connect(&url).await?.batch_execute(TABLES).await?;
    let store = store_at(&url).await?;
    let shop = shop(&store).await?;
    let (mut alone, mut alone_statement) = (vec![], vec![]);
    for _ in 0..scale.rounds {
        alone_statement.push(one_statement(&url, 1, scale.operations / 10).await?.rate);
        alone.push(buy(&shop, 1, scale.operations / 10).await?.rate);
    }
    store.close().await;
    report.add(ALONE_STATEMENT, "reservations/s", alone_statement, Goal::None);
    let goal = Goal::AtLeast { mark: "B1", limit: ALONE_STATEMENT, times: 0.5 };
    report.add("… solely, one buyer alone", "reservations/s", alone, goal);
    Ok(())
}

const ALONE_STATEMENT: &str = "one statement, one buyer alone";

/// Two locks taken together in Redis, rules looked up, the cached quantity trusted, two writes, the locks given back.
async fn the_documents_way(url: &str, redis: &RedisServer, purchases: usize, round: usize) -> Result<Bought> {
    let client = redis::Client::open(redis.url())?;
    redis.ask("FLUSHALL").context("Redis answers")?;
    let take = redis::Script::new(
        "for i = 1, #KEYS do
           if not redis.call('SET', KEYS[i], ARGV[2], 'NX', 'EX', ARGV[1]) then
             for j = 1, i - 1 do redis.call('DEL', KEYS[j]) end
             return 0
           end
         end
         return 1",
    );
    let take = Arc::new(take);
    let mut states = Vec::new();
    for _ in 0..64 {
        states.push((connect(url).await?, client.get_multiplexed_async_connection().await?));
    }
    buyers(states, purchases, move |(postgres, mut redis), n| {
        let take = take.clone();
        async move {
            let user = format!("d{round}-{n}");
            let locks = ["lock:inventory:box".to_owned(), format!("lock:user_merchant:{user}:m1")];
            loop {
                let taken: i64 =
                    take.key(&locks[0]).key(&locks[1]).arg(30).arg("owner").invoke_async(&mut redis).await?;
                if taken == 1 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let found = postgres
                .query_one("SELECT status, remaining, price FROM bare_inventory WHERE id = 'box'", &[]);
            let price: i64 = found.await?.get(2);
            let sql = "SELECT 1 FROM bare_reservations WHERE user_id = $1 AND status = 'ACTIVE'";
            postgres.query_opt(sql, &[&user]).await?;
            let cached: Option<i64> =
                redis::cmd("GET").arg("inventory:quantity:box").query_async(&mut redis).await?;
            let left = i32::try_from(cached.unwrap_or(1_000_000) - 1)?;
            let sql = "UPDATE bare_inventory SET remaining = $1 WHERE id = 'box'";
            postgres.execute(sql, &[&left]).await?;
            let _: () = redis::cmd("SETEX")
                .arg("inventory:quantity:box")
                .arg(3_600)
                .arg(left)
                .query_async(&mut redis)
                .await?;
            let sql = "INSERT INTO bare_reservations VALUES ($1, $2, 'box', 'ACTIVE', 'code', $3, 0, 0)";
            postgres.execute(sql, &[&Uuid::now_v7(), &user, &price]).await?;
            let _: () = redis::cmd("SETEX")
                .arg(format!("reservation:ttl:{user}"))
                .arg(1_200)
                .arg("{}")
                .query_async(&mut redis)
                .await?;
            let _: () = redis::cmd("DEL").arg(&locks[0]).arg(&locks[1]).query_async(&mut redis).await?;
            Ok((postgres, redis))
        }
    })
    .await
}

/// The conditional decrement and the insert in one statement, one commit for each buyer.
async fn one_statement(url: &str, connections: usize, purchases: usize) -> Result<Bought> {
    let mut states = Vec::new();
    for _ in 0..connections {
        let client = connect(url).await?;
        let statement = client
            .prepare(
                "WITH taken AS (UPDATE bare_inventory SET remaining = remaining - 1
                                 WHERE id = 'box' AND remaining > 0 RETURNING price)
                 INSERT INTO bare_reservations SELECT $1, $2, 'box', 'ACTIVE', 'code', price, 0, 0 FROM taken",
            )
            .await?;
        states.push((client, statement));
    }
    buyers(states, purchases, |(client, statement), _| async move {
        let id = Uuid::now_v7();
        client.execute(&statement, &[&id, &id.to_string()]).await?;
        Ok((client, statement))
    })
    .await
}

/// A shop with boxes enough.
pub(crate) async fn shop(store: &Arc<dyn Store>) -> Result<Reserve> {
    let jobs = Jobs::new(store.clone(), Bus::new(), Arc::new(Metrics::default()));
    let parts = ReserveParts { jobs, companion: None, client: None };
    let reserve = Reserve::new(parts, &ReserveConfig::default());
    let (start, end) = (Timestamp::from_millis(0), Clock::system().now().plus(Duration::from_hours(24)));
    let text = str::to_owned;
    let made = [
        Operation::CreateMerchant(Merchant { id: text("m1"), name: text("Bakery"), timezone: text("UTC") }),
        Operation::CreateBoxType(BoxType { id: text("t1"), merchant_id: text("m1"), name: text("Box") }),
        Operation::CreateInventory(NewInventory {
            id: text("box"),
            box_type_id: text("t1"),
            quantity: UNITS_MAX,
            price: 450,
            currency: text("EUR"),
            window: Window::Instants {
                start,
                end: Timestamp::from_millis(end.as_millis() / 86_400_000 * 86_400_000),
            },
            pricing: None,
        }),
    ];
    for operation in made {
        let decided = reserve.decide(Request::new(operation)).await;
        ensure!(
            matches!(decided, Ok(ref decided) if !matches!(decided.verdict, Verdict::Refused(_))),
            "{decided:?}"
        );
    }
    Ok(reserve)
}

/// Sells boxes to so many buyers at once, each purchase by another user with a key of idempotency.
async fn sell(store: &Arc<dyn Store>, buyers_at_once: usize, purchases: usize) -> Result<Bought> {
    buy(&shop(store).await?, buyers_at_once, purchases).await
}

/// The same, in a shop that is there.
pub(crate) async fn buy(reserve: &Reserve, buyers_at_once: usize, purchases: usize) -> Result<Bought> {
    buyers(vec![reserve.clone(); buyers_at_once], purchases, |reserve, _| async move {
        let id = ReservationId::new();
        let new = NewReservation {
            id,
            pickup_code: pickup_code(),
            user_id: id.to_string(),
            inventory_id: "box".to_owned(),
            ttl: None,
            quantity: 1,
            max_price: None,
        };
        let key = IdempotencyKey { scope: "bench".to_owned(), key: id.to_string() };
        let request = Request {
            idempotency: Some((key, "digest".to_owned())),
            request_id: Some(id.to_string()),
            ..Request::new(Operation::Reserve(new))
        };
        match reserve.decide(request).await {
            Ok(decided) if matches!(decided.verdict, Verdict::Reservation(_)) => Ok(reserve),
            other => bail!("{other:?}"),
        }
    })
    .await
}

pub(crate) async fn on_sqlite(report: &mut Report, scale: Scale) -> Result<()> {
    let (mut bare, mut looped, mut of_solely) = (vec![], vec![], vec![]);
    for _ in 0..scale.rounds {
        looped.push(tokio::task::spawn_blocking(move || looped_sqlite(scale.operations)).await??);
        bare.push(merged_sqlite(64, scale.operations).await?);
        let mut best = 0.0_f64;
        for buyers in [64, 512] {
            let folder = tempfile::tempdir()?;
            let store = sqlite(&folder)?;
            best = best.max(sell(&store, buyers, scale.operations).await?.rate);
            store.close().await;
        }
        of_solely.push(best);
    }
    report.add(
        "hot item, bare SQLite: a loop without buyers, 64 a transaction",
        "reservations/s",
        looped,
        Goal::None,
    );
    report.add(BARE, "reservations/s", bare, Goal::None);
    let goal = Goal::AtLeast { mark: "B2", limit: BARE, times: 0.4 };
    report.add(
        "hot item on SQLite, all on: the best of 64 and 512 buyers",
        "reservations/s",
        of_solely,
        goal,
    );
    Ok(())
}

/// The tables of [`TABLES`], as SQLite has them.
const BARE_TABLES: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
    CREATE TABLE inventory (id TEXT PRIMARY KEY, remaining INTEGER NOT NULL CHECK (remaining >= 0)) WITHOUT ROWID;
    CREATE TABLE reservations (id BLOB PRIMARY KEY, user_id TEXT NOT NULL, inventory_id TEXT NOT NULL,
                               status INTEGER NOT NULL, code TEXT NOT NULL, amount INTEGER NOT NULL,
                               reserved_at INTEGER NOT NULL, expires_at INTEGER NOT NULL) WITHOUT ROWID;
    CREATE UNIQUE INDEX bare_open ON reservations (user_id, inventory_id) WHERE status = 0;
    INSERT INTO inventory VALUES ('box', 10000000);";

/// Requests that one bare transaction takes at the most.
const BARE_BATCH: usize = 512;

/// A buyer of the bare shop, and whom to tell.
type BareBuyer = (Uuid, tokio::sync::oneshot::Sender<bool>);

/// So many buyers at once, whose requests one thread merges: what waits is one durable transaction with one decrement.
async fn merged_sqlite(buyers_at_once: usize, purchases: usize) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("bare.db");
    let (line, waiting) = std::sync::mpsc::sync_channel::<BareBuyer>(BARE_BATCH);
    let shop = std::thread::spawn(move || serve_merged(&path, &waiting));
    let bought = buyers(vec![line; buyers_at_once], purchases, |line, _| async move {
        let (caller, answer) = tokio::sync::oneshot::channel();
        line.send((Uuid::now_v7(), caller)).map_err(|_| anyhow::anyhow!("the bare shop is closed"))?;
        ensure!(answer.await?, "there are boxes enough");
        Ok(line)
    })
    .await?;
    shop.join().map_err(|_| anyhow::anyhow!("the bare shop broke down"))??;
    Ok(bought.rate)
}

/// Takes what waits, commits it, answers, until nobody can come any more.
fn serve_merged(path: &Path, waiting: &std::sync::mpsc::Receiver<BareBuyer>) -> Result<()> {
    let mut conn = Connection::open(path)?;
    conn.execute_batch(BARE_TABLES)?;
    while let Ok(first) = waiting.recv() {
        let batch: Vec<BareBuyer> =
            std::iter::once(first).chain(waiting.try_iter().take(BARE_BATCH - 1)).collect();
        let tx = conn.transaction()?;
        let taken = tx
            .prepare_cached(
                "UPDATE inventory SET remaining = remaining - ?1 WHERE id = 'box' AND remaining >= ?1",
            )?
            .execute([i64::try_from(batch.len())?])?;
        for (id, _) in batch.iter().filter(|_| taken == 1) {
            let mut insert =
                tx.prepare_cached("INSERT INTO reservations VALUES (?1, ?2, 'box', 0, 'code', 450, 0, 0)")?;
            insert.execute((id.as_bytes(), id.to_string()))?;
        }
        tx.commit()?;
        for (_, caller) in batch {
            let _ = caller.send(taken == 1);
        }
    }
    Ok(())
}

/// The same without buyers: a loop over 64 decrements and inserts a durable transaction.
fn looped_sqlite(purchases: usize) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let mut conn = Connection::open(folder.path().join("bare.db"))?;
    conn.execute_batch(BARE_TABLES)?;
    let began = Instant::now();
    for _ in 0..purchases / 64 {
        let tx = conn.transaction()?;
        for _ in 0..64 {
            let mut take = tx.prepare_cached(
                "UPDATE inventory SET remaining = remaining - 1 WHERE id = 'box' AND remaining > 0",
            )?;
            take.execute([])?;
            let mut insert =
                tx.prepare_cached("INSERT INTO reservations VALUES (?1, ?2, 'box', 0, 'code', 450, 0, 0)")?;
            let id = Uuid::now_v7();
            insert.execute((id.as_bytes(), id.to_string()))?;
        }
        tx.commit()?;
    }
    Ok(rate(purchases / 64 * 64, began.elapsed()))
}

pub(crate) async fn through_http(report: &mut Report, scale: Scale, solely: &Path) -> Result<()> {
    let (bare, address) = crate::enrich::bare()?;
    let _bare = bare;
    let (mut of_bare, mut of_solely) = (vec![], vec![]);
    for _ in 0..scale.rounds {
        let server = stocked(solely).await?;
        of_bare.push(crate::enrich::posts_of(&address, "/", scale.operations, reservation).await?);
        let address = server.base().trim_start_matches("http://").to_owned();
        of_solely.push(purchases(&address, scale.operations).await?);
    }
    report.add(BARE_HTTP, "requests/s", of_bare, Goal::None);
    let goal = Goal::AtLeast { mark: "B3", limit: BARE_HTTP, times: 0.25 };
    report.add("hot item through HTTP, SQLite", "reservations/s", of_solely, goal);
    Ok(())
}

/// A server with boxes enough.
pub(crate) async fn stocked(solely: &Path) -> Result<Server> {
    let (folder, free) = (tempfile::tempdir()?, solely_testing::free_port());
    let server = Server::start_with(solely, folder, free, &[("RUST_LOG", "warn")])?;
    server.until_ready().await?;
    let client = solely_core::upstream::http::builder(solely_core::upstream::http::Tls::Nobody).build()?;
    let post = async |path: &str, body: serde_json::Value| {
        client.post(format!("{}{path}", server.base())).json(&body).send().await?.error_for_status()
    };
    post("/v1/merchants", json!({"id": "m1", "name": "Bakery"})).await?;
    post("/v1/merchants/m1/box-types", json!({"id": "t1", "name": "Box"})).await?;
    let window = ("2026-01-01T00:00:00Z", "2099-01-01T00:00:00Z");
    post("/v1/inventory", json!({"id": "box", "boxTypeId": "t1", "quantity": UNITS_MAX, "price": 450, "currency": "EUR", "pickupStart": window.0, "pickupEnd": window.1})).await?;
    Ok(server)
}

/// So many purchases through HTTP, each by another user; how many a second.
pub(crate) async fn purchases(address: &str, purchases: usize) -> Result<f64> {
    crate::enrich::posts_of(address, "/v1/reservations", purchases, reservation).await
}

/// The body of a purchase by another user.
fn reservation() -> String {
    json!({"userId": Uuid::now_v7().to_string(), "boxInventoryId": "box"}).to_string()
}
