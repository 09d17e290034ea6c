//! All four systems at once for minutes, at four fifths of what they can do: latency, memory, the age of
//! queues and what PostgreSQL keeps must be at the end what they were at the beginning.
//!
//! Two servers on one PostgreSQL and one Redis share two cores with everyone who asks. First each load goes as
//! fast as it is answered, all of them at once, a few times over: what was answered the time that went worst is the
//! maximum, as it can be kept up. Then requests come at four fifths of it, whether or not those before them were
//! answered, and a latency counts from when a request should have been sent. Whoever asks for new places listens for them
//! at the other server: polling would make whoever waits ask more the longer the wait.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use solely_testing::RedisServer;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_postgres::{Client, NoTls};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use uuid::Uuid;

use crate::engine::Postgres;
use crate::enrich::finder;
use crate::plot::{self, Across, Line, Panel};
use crate::report::{number, write_between};
use crate::scaling::{Urls, World, ten};
use crate::wire::Wire;

/// How much of the maximum.
const SHARE: f64 = 0.8;
/// How long the maximum is looked for, and how often.
const AT_MOST: Duration = Duration::from_secs(20);
/// See [`AT_MOST`].
const TIMES: usize = 3;
/// How long each look takes.
const LOOK: Duration = Duration::from_secs(10);
/// Connections of each load while the maximum is looked for, and afterwards.
const CLOSED: usize = 8;
/// See [`CLOSED`].
const OPEN: usize = 64;
/// Merchants whose boxes are sold.
const MERCHANTS: usize = 32;
/// Records of the feed.
const RECORDS: usize = 20_000;
/// Places that are known from before: more than a server keeps in memory, so that it has as much as it ever will.
const FILLED: usize = 400_000;
/// Places of one request, at the most.
const AT_ONCE: usize = 200;

/// What is asked, again and again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Hits,
    Misses,
    Products,
    Reserve,
}

const LOADS: [(Load, &str); 4] = [
    (Load::Hits, "enrich: ten places that are known"),
    (Load::Misses, "enrich: ten new places, until all are known"),
    (Load::Products, "products: a search"),
    (Load::Reserve, "reserve: a purchase, every other one cancelled"),
];

/// The same in a word or two.
const SHORT: [&str; 4] = ["known places", "new places", "products", "purchases"];

/// What became of the requests of a load.
#[derive(Default)]
struct Answers {
    took_ms: Mutex<Vec<f64>>,
}

impl Answers {
    fn add(&self, took: Duration) {
        self.took_ms.lock().unwrap_or_else(PoisonError::into_inner).push(took.as_secs_f64() * 1_000.0);
    }

    /// All since the last time, in order.
    fn take(&self) -> Vec<f64> {
        let mut took = std::mem::take(&mut *self.took_ms.lock().unwrap_or_else(PoisonError::into_inner));
        took.sort_by(f64::total_cmp);
        took
    }
}

/// What everyone who asks has.
struct Town {
    addresses: Vec<String>,
    sale: String,
    next: AtomicUsize,
    stop: AtomicBool,
}

/// Who asks.
struct Caller {
    wire: Wire,
    /// Where new places are heard of.
    socket: Option<WebSocketStream<MaybeTlsStream<TcpStream>>>,
}

impl Caller {
    async fn say(&mut self, what: Value) -> Result<()> {
        let socket = self.socket.as_mut().context("a socket")?;
        Ok(socket.send(Message::text(what.to_string())).await?)
    }

    /// Waits until so many places of a request were told of.
    async fn hear(&mut self, request: &str, mut places: u64) -> Result<()> {
        let socket = self.socket.as_mut().context("a socket")?;
        while places > 0 {
            let Message::Text(text) = socket.next().await.context("the socket was closed")?? else {
                continue;
            };
            let heard: Value = serde_json::from_str(&text)?;
            places -= u64::from(heard["type"] == "RESULT_PATCH" && heard["requestId"] == request);
        }
        Ok(())
    }
}

impl Town {
    /// Someone who asks one server, and hears of new places from the next.
    async fn caller(&self, load: Load, nth: usize) -> Result<Caller> {
        let at = |nth: usize| &self.addresses[nth % self.addresses.len()];
        let wire = Wire::connect(at(nth)).await?;
        let socket = match load {
            Load::Misses => {
                let url = format!("ws://{}/v1/ws", at(nth + 1));
                Some(tokio_tungstenite::connect_async(url).await?.0)
            }
            Load::Hits | Load::Products | Load::Reserve => None,
        };
        Ok(Caller { wire, socket })
    }

    /// One request, or what belongs together.
    async fn ask(&self, caller: &mut Caller, load: Load) -> Result<()> {
        let nth = self.next.fetch_add(1, Ordering::Relaxed);
        let wire = &mut caller.wire;
        match load {
            Load::Hits => good(wire.post("/v1/enrich", &ten("known", "hit")).await?).map(drop),
            Load::Products => {
                let asked = json!({"appKey": "tours", "userId": "u1"}).to_string();
                good(wire.post("/v1/products/search", &asked).await?).map(drop)
            }
            Load::Misses => {
                let name = format!("new-{nth}");
                let topic =
                    |what: &str| json!({"v": 1, "type": what, "channel": "search", "requestId": name});
                caller.say(topic("subscribe")).await?;
                let told = good(caller.wire.post("/v1/enrich", &ten(&name, &name)).await?)?;
                caller.hear(&name, told["pending"].as_u64().context("a count")?).await?;
                caller.say(topic("unsubscribe")).await
            }
            Load::Reserve => {
                let item = format!("b-{}-{}", self.sale, nth % MERCHANTS);
                let asked = json!({"userId": Uuid::now_v7().to_string(), "boxInventoryId": item}).to_string();
                let made = good(wire.post("/v1/reservations", &asked).await?)?;
                if nth.is_multiple_of(2) {
                    let id = made["id"].as_str().context("an id")?;
                    good(wire.post(&format!("/v1/reservations/{id}/cancel"), "{}").await?)?;
                }
                Ok(())
            }
        }
    }

    /// As fast as it is answered, by so many at once; each answer is counted.
    async fn as_fast_as_answered(self: Arc<Self>, load: Load, done: Arc<AtomicUsize>) -> Result<()> {
        let asking = |nth: usize| {
            let (town, done) = (self.clone(), done.clone());
            tokio::spawn(async move {
                let mut caller = town.caller(load, nth).await?;
                while !town.stop.load(Ordering::Relaxed) {
                    town.ask(&mut caller, load).await?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            })
        };
        for asking in (0..CLOSED).map(asking).collect::<Vec<_>>() {
            asking.await??;
        }
        Ok(())
    }

    /// So many a second, whatever becomes of them.
    async fn as_often(self: Arc<Self>, load: Load, rate: f64, answers: Arc<Answers>) -> Result<()> {
        let (began, next) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        let asking = |nth: usize| {
            let (town, next, answers) = (self.clone(), next.clone(), answers.clone());
            tokio::spawn(async move {
                let mut caller = town.caller(load, nth).await?;
                loop {
                    let turn = u32::try_from(next.fetch_add(1, Ordering::Relaxed))?;
                    let due = began + Duration::from_secs_f64(f64::from(turn) / rate);
                    tokio::time::sleep_until(due).await;
                    if town.stop.load(Ordering::Relaxed) {
                        return anyhow::Ok(());
                    }
                    town.ask(&mut caller, load).await?;
                    answers.add(due.elapsed());
                }
            })
        };
        for asking in (0..OPEN).map(asking).collect::<Vec<_>>() {
            asking.await??;
        }
        Ok(())
    }
}

fn good((status, body): (u16, &[u8])) -> Result<Value> {
    ensure!(matches!(status, 200 | 201), "{status}: {}", String::from_utf8_lossy(body));
    Ok(serde_json::from_slice(body)?)
}

/// Copies the feed again and again, and rests for as much of the time as the share leaves.
async fn copies(world: &World, town: &Town, share: f64, answers: &Answers) -> Result<()> {
    while !town.stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        world.feed(RECORDS).await?;
        answers.add(began.elapsed());
        tokio::time::sleep(began.elapsed().mul_f64(1.0 / share - 1.0)).await;
    }
    Ok(())
}

/// What was seen at one look.
struct Look {
    at: f64,
    /// By load, and of the runs at last: how many a second, the middle and the slow end in ms.
    loads: Vec<(f64, f64, f64)>,
    memory_mib: f64,
    oldest_ms: f64,
    dead_share: f64,
    database_mib: f64,
}

impl Look {
    /// What is told of it while the rest is waited for.
    fn line(&self, length: Duration) -> String {
        let mut out = format!("{:.0} of {:.0} s; p50/p99 in ms:", self.at, length.as_secs_f64());
        for (name, (_, middle, slow)) in SHORT.iter().chain(&["a run"]).zip(&self.loads) {
            let _ = write!(out, " {name} {middle:.1}/{slow:.1}");
        }
        let _ = write!(
            out,
            "; {:.0} MiB, oldest job {:.0} ms, dead rows {:.1} %, database {:.0} MiB",
            self.memory_mib,
            self.oldest_ms,
            self.dead_share * 100.0,
            self.database_mib
        );
        out
    }
}

pub(crate) async fn run(length: Duration, solely: &Path, write: Option<&Path>) -> Result<()> {
    let (postgres, redis) = (Postgres::start(), RedisServer::start());
    let (_finder, finder_url) = finder(None).await?;
    let (sandbox, feed_url) = crate::feeds::upstream(RECORDS).await?;
    sandbox.set_products(json!([{"productId": "p1", "options": [{"optionId": "o1"}]}]), false);
    let database = postgres.database().await?;
    let urls = Urls {
        database: &database,
        redis: &redis.url(),
        finder: &finder_url,
        plugin: &feed_url.replace("/feed", "/products"),
        feed: &feed_url,
    };
    let world = World::start(solely, 2, &urls).await?;
    world.warm().await?;
    let address = |server: &crate::start::Server| server.base().trim_start_matches("http://").to_owned();
    let town = |sale: String| {
        let addresses = world.servers.iter().map(address).collect();
        Arc::new(Town { addresses, sale, next: AtomicUsize::new(0), stop: AtomicBool::new(false) })
    };
    let (client, connection) = tokio_postgres::connect(&database, NoTls).await?;
    tokio::spawn(connection);
    fill(&world, &client).await?;
    let rates = maximum(&world, &town(world.offer(MERCHANTS).await?)).await?;
    until_idle(&world).await?;
    let town = town(world.offer(MERCHANTS).await?);
    // Places are new, also beside those of the maximum.
    town.next.store(1 << 30, Ordering::Relaxed);
    let looks = soak(&world, &town, &rates, length, &client).await?;
    let text = told(&rates, &looks, length);
    println!("{text}");
    if let Some(page) = write {
        write_between(page, "soak", &text)?;
        plot::write(&page.with_file_name("images/soak.svg"), Across::Seconds, &panels(&looks))?;
    }
    Ok(())
}

/// Has every server know as many places as it can.
async fn fill(world: &World, client: &Client) -> Result<()> {
    let known = format!(
        "INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
         SELECT 'enrich:wolt', 'filled-' || n, '{{\"status\":\"FOUND\",\"url\":\"https://wolt.com/filled-' || n || '\"}}',
                1, now_ms, now_ms + 604800000, now_ms + 604800000, now_ms + 604800000
           FROM generate_series(1, {FILLED}) AS n, (SELECT solely_now(0) AS now_ms) AS clock"
    );
    client.batch_execute(&known).await?;
    for server in &world.servers {
        let mut wire = Wire::connect(server.base().trim_start_matches("http://")).await?;
        for first in (1..=FILLED).step_by(AT_ONCE) {
            let result = |n| json!({"placeId": format!("filled-{n}"), "name": "Pizza House"});
            let results: Vec<Value> = (first..first + AT_ONCE).map(result).collect();
            let asked = json!({"requestId": "filled", "results": results}).to_string();
            ensure!(good(wire.post("/v1/enrich", &asked).await?)?["pending"] == 0, "a place is not known");
        }
    }
    Ok(())
}

/// Requests a second of each load, all of them at once, as fast as they are answered: the time that went worst.
async fn maximum(world: &World, town: &Arc<Town>) -> Result<Vec<f64>> {
    let runs = Answers::default();
    let done: [Arc<AtomicUsize>; LOADS.len()] = std::array::from_fn(|_| Arc::default());
    let mut loads = tokio::task::JoinSet::new();
    for ((load, _), done) in LOADS.iter().zip(&done) {
        loads.spawn(town.clone().as_fast_as_answered(*load, done.clone()));
    }
    let looking = async {
        let mut worst = vec![f64::INFINITY; LOADS.len()];
        for nth in 0..TIMES {
            tokio::select! {
                () = tokio::time::sleep(AT_MOST) => {}
                Some(ended) = loads.join_next() => bail!("a load ended: {ended:?}"),
            }
            eprint!("at most, {} of {TIMES}:", nth + 1);
            for ((worst, done), name) in worst.iter_mut().zip(&done).zip(SHORT) {
                let rate = crate::jobs::rate(done.swap(0, Ordering::Relaxed), AT_MOST);
                eprint!(" {name} {rate:.0}/s");
                *worst = worst.min(rate);
            }
            eprintln!();
        }
        town.stop.store(true, Ordering::Relaxed);
        Ok(worst)
    };
    let (worst, ()) = tokio::try_join!(looking, copies(world, town, 1.0, &runs))?;
    while let Some(ended) = loads.join_next().await {
        ended??;
    }
    Ok(worst)
}

/// Waits until the queues are empty.
async fn until_idle(world: &World) -> Result<()> {
    let deadline = Instant::now() + Duration::from_mins(1);
    while oldest_ms(world).await? > 0.0 {
        ensure!(Instant::now() < deadline, "the queues do not become empty");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn soak(
    world: &World,
    town: &Arc<Town>,
    rates: &[f64],
    length: Duration,
    client: &Client,
) -> Result<Vec<Look>> {
    let answers: Vec<Arc<Answers>> = (0..=LOADS.len()).map(|_| Arc::default()).collect();
    let mut loads = tokio::task::JoinSet::new();
    for ((load, _), (rate, answers)) in LOADS.iter().zip(rates.iter().zip(&answers)) {
        loads.spawn(town.clone().as_often(*load, rate * SHARE, answers.clone()));
    }
    let looking = async {
        let (began, mut looks) = (Instant::now(), Vec::new());
        while began.elapsed() < length {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                Some(ended) = loads.join_next() => bail!("a load ended: {ended:?}"),
            }
            let look = look(world, &answers, began.elapsed(), client).await?;
            eprintln!("{}", look.line(length));
            looks.push(look);
        }
        town.stop.store(true, Ordering::Relaxed);
        Ok(looks)
    };
    let (looks, ()) = tokio::try_join!(looking, copies(world, town, SHARE, &answers[LOADS.len()]))?;
    while let Some(ended) = loads.join_next().await {
        ended??;
    }
    Ok(looks)
}

async fn look(world: &World, answers: &[Arc<Answers>], at: Duration, client: &Client) -> Result<Look> {
    let of = |answers: &Arc<Answers>| {
        let took = answers.take();
        let nth = |percent: usize| took.get(took.len() * percent / 100).copied().unwrap_or(f64::NAN);
        (crate::jobs::rate(took.len(), LOOK), nth(50), nth(99))
    };
    let loads = answers.iter().map(of).collect();
    let mut memory_mib = 0.0;
    for server in &world.servers {
        memory_mib += server.memory_mib()?;
    }
    let kept = client
        .query_one(
            "SELECT (sum(n_dead_tup) / greatest(sum(n_live_tup), 1))::float8,
                    pg_database_size(current_database())::float8 / 1048576
               FROM pg_stat_user_tables",
            &[],
        )
        .await?;
    let (dead_share, database_mib) = (kept.get(0), kept.get(1));
    let oldest_ms = oldest_ms(world).await?;
    Ok(Look { at: at.as_secs_f64(), loads, memory_mib, oldest_ms, dead_share, database_mib })
}

/// How long the oldest job that is due has been due.
async fn oldest_ms(world: &World) -> Result<f64> {
    let metrics = world.text(0, "/metrics").await?;
    let ages = metrics.lines().filter(|line| line.starts_with("solely_queue_oldest_age_ms"));
    Ok(ages.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).fold(0.0, f64::max))
}

/// The middle of what some looks saw.
fn middle(looks: &[Look], of: impl Fn(&Look) -> f64) -> f64 {
    let mut values: Vec<f64> = looks.iter().map(of).filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn names() -> impl Iterator<Item = &'static str> {
    LOADS.iter().map(|(_, name)| *name).chain(["feed: a run of 20,000 records"])
}

/// The first look is of what starts; then the first third beside the last.
fn thirds(looks: &[Look]) -> (&[Look], &[Look]) {
    let looks = &looks[1.min(looks.len())..];
    let third = looks.len().div_ceil(3);
    (&looks[..third], &looks[looks.len() - third..])
}

fn told(rates: &[f64], looks: &[Look], length: Duration) -> String {
    let (first, last) = thirds(looks);
    let mut out = format!(
        "{:.0} minutes, two servers. Medians of looks of ten seconds: the first third, then the last.\n\n\
         | what | at most, all at once | asked for | p50, ms | p99, ms |\n|---|---|---|---|---|\n",
        length.as_secs_f64() / 60.0
    );
    for (nth, name) in names().enumerate() {
        let both = |of: fn(&(f64, f64, f64)) -> f64| {
            let middle = |looks| number(middle(looks, |look| of(&look.loads[nth])));
            format!("{} → {}", middle(first), middle(last))
        };
        let (most, asked) = rates.get(nth).map_or_else(
            || ("one after the other".to_owned(), "four fifths of the time".to_owned()),
            |rate| {
                let asked = middle(looks, |look| look.loads[nth].0);
                (format!("{}/s", number(*rate)), format!("{}/s", number(asked)))
            },
        );
        let _ = writeln!(
            out,
            "| {name} | {most} | {asked} | {} | {} |",
            both(|load| load.1),
            both(|load| load.2)
        );
    }
    out.push_str("\n| what | the first third | the last | at most |\n|---|---|---|---|\n");
    let mut row = |name: &str, unit: &str, of: fn(&Look) -> f64| {
        let most = looks.iter().map(of).fold(0.0, f64::max);
        let (first, last) = (number(middle(first, of)), number(middle(last, of)));
        let _ = writeln!(out, "| {name} | {first} {unit} | {last} {unit} | {} {unit} |", number(most));
    };
    row("memory of both servers", "MiB", |look| look.memory_mib);
    row("the oldest job that is due has waited", "ms", |look| look.oldest_ms);
    row("dead rows beside live ones", "%", |look| look.dead_share * 100.0);
    row("the database, which keeps every reservation and its events", "MiB", |look| look.database_mib);
    out
}

fn panels(looks: &[Look]) -> Vec<Panel> {
    let line = |name: &str, of: &dyn Fn(&Look) -> f64| {
        let points = looks.iter().map(|look| (look.at, of(look))).filter(|(_, y)| y.is_finite());
        Line { name: name.to_owned(), points: points.collect() }
    };
    let loads = |of: fn(&(f64, f64, f64)) -> f64| {
        let lines = SHORT.iter().enumerate();
        lines.map(|(nth, name)| line(name, &move |look: &Look| of(&look.loads[nth]))).collect::<Vec<_>>()
    };
    let run_s = line("a run", &|look: &Look| look.loads[LOADS.len()].1 / 1_000.0);
    let panel = |title: &str, lines| Panel { title: title.to_owned(), lines };
    vec![
        panel("requests a second", loads(|load| load.0)),
        panel("latency, the middle, ms", loads(|load| load.1)),
        panel("latency, 99 of 100, ms", loads(|load| load.2)),
        panel("feed: a run of 20,000 records, s", vec![run_s]),
        panel("memory of both servers, MiB", vec![line("memory", &|look: &Look| look.memory_mib)]),
        panel(
            "the oldest job that is due has waited, ms",
            vec![line("oldest", &|look: &Look| look.oldest_ms)],
        ),
        panel("dead rows beside live ones, %", vec![line("dead", &|look: &Look| look.dead_share * 100.0)]),
    ]
}
