//! enrich: places that hit, through HTTP and in Redis; places that miss, on PostgreSQL and Redis; and ten
//! thousand sockets that wait for one of them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::future::{join_all, try_join_all};
use solely_core::bus::Bus;
use solely_core::cache::{Cache, EntryKey, Lifetimes, Overwrite, PutEntry};
use solely_core::companion::{Companion, Copies as _};
use solely_core::config::{EnrichConfig, ProviderConfig};
use solely_core::enrich::{self, Asker, Enrich, EnrichParts, PlaceRef, Provider, Resolved, Status, Wanted};
use solely_core::metrics::Metrics;
use solely_core::queue::Jobs;
use solely_core::upstream::http::{HttpClient, Tls};
use solely_core::{Json, Store};
use solely_redis::Redis;
use solely_testing::{RedisServer, free_port};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_postgres::NoTls;

use crate::Scale;
use crate::engine::Postgres;
use crate::jobs::rate;
use crate::report::{Goal, Report};
use crate::start::Server;
use crate::wire::Wire;

const PLACES: usize = 10;
const CALLERS: usize = 64;
/// Those who ask for what is missing: as many as either way has use for.
const MISSING_CALLERS: usize = 256;
const BARE_HTTP: &str = "axum: the same body parsed and written";
const BARE_REDIS: &str = "Redis: one GET per place, ten places";
const DOCUMENT: &str = "the document's way: per place GET, SET NX, a durable INSERT";

pub(crate) fn binary(solely: Option<&Path>) -> Result<std::path::PathBuf> {
    Ok(solely.context("this needs --solely, the release binary")?.canonicalize()?)
}

/// Parses and writes the same body, in a process of its own.
pub(crate) async fn bare_axum(port: u16) -> Result<()> {
    let echo = |axum::Json(body): axum::Json<serde_json::Value>| async move { axum::Json(body) };
    let app = axum::Router::new().route("/", axum::routing::post(echo));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    Ok(axum::serve(listener, app).await?)
}

pub(crate) struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn body(request: &str) -> String {
    let result = |n| {
        serde_json::json!({
            "placeId": format!("ChIJ{n:020}"), "name": format!("Pizza House {n}"), "rating": 4.5, "userRatingCount": 120,
            "address": "1 Dizengoff St, Tel Aviv", "location": {"lat": 32.07, "lng": 34.77}, "types": ["restaurant", "food"],
        })
    };
    let results: Vec<_> = (0..PLACES).map(result).collect();
    serde_json::json!({"requestId": request, "cityText": "Tel Aviv", "results": results}).to_string()
}

pub(crate) async fn hits_over_http(report: &mut Report, scale: Scale, solely: &Path) -> Result<()> {
    let (bare, bare_address) = bare()?;
    let _bare = bare;
    let (finder, finder_url) = finder(None).await?;
    let _finder = finder;
    let quiet = [("RUST_LOG", "info,solely::decision=warn")];
    let servers = [server(solely, &finder_url, &quiet).await?, server(solely, &finder_url, &[]).await?];
    let (mut of_bare, mut of_quiet, mut of_loud) = (vec![], vec![], vec![]);
    for server in &servers {
        until_known(server).await?;
    }
    let address = |server: &Server| server.base().trim_start_matches("http://").to_owned();
    for _ in 0..scale.rounds {
        of_bare.push(posts(&bare_address, "/", scale.operations).await?);
        of_quiet.push(posts(&address(&servers[0]), "/v1/enrich", scale.operations).await?);
        of_loud.push(posts(&address(&servers[1]), "/v1/enrich", scale.operations).await?);
    }
    report.add(BARE_HTTP, "requests/s", of_bare, Goal::None);
    let goal = || Goal::AtLeast { mark: "B6", limit: BARE_HTTP, times: 0.7 };
    report.add("ten places that hit, through HTTP", "requests/s", of_quiet, goal());
    let beside = Goal::Ratio { mark: "B6", limit: BARE_HTTP };
    report.add("the same, every decision logged", "requests/s", of_loud, beside);
    Ok(())
}

/// axum alone in a process of its own, and where it is.
pub(crate) fn bare() -> Result<(Child, String)> {
    let port = free_port();
    let bare = std::process::Command::new(std::env::current_exe()?)
        .args(["bare-axum", &port.to_string()])
        .spawn()?;
    Ok((Child(bare), format!("127.0.0.1:{port}")))
}

async fn server(solely: &Path, finder: &str, env: &[(&str, &str)]) -> Result<Server> {
    let folder = tempfile::tempdir()?;
    let config = format!(
        "[enrich.providers.wolt]\nenabled = true\nurl = \"{finder}\"\nhosts = []\ntimeout = \"5m\"\ndeadline = \"10m\"\n"
    );
    std::fs::write(folder.path().join("solely.toml"), config)?;
    let server = Server::start_with(solely, folder, free_port(), env)?;
    server.until_ready().await?;
    Ok(server)
}

/// Asks until all of it is known.
async fn until_known(server: &Server) -> Result<()> {
    let client = solely_core::upstream::http::builder(Tls::Nobody).build()?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        let answer = client.post(format!("{}/v1/enrich", server.base())).body(body("warm")).send().await?;
        let answer: serde_json::Value = answer.json().await?;
        if answer["pending"] == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("the places are not found")
}

/// Requests a second, over connections that are kept.
async fn posts(address: &str, path: &'static str, requests: usize) -> Result<f64> {
    let body = body("req-1");
    posts_of(address, path, requests, move || body.clone()).await
}

/// The same, each with a body of its own.
pub(crate) async fn posts_of(
    address: &str,
    path: &'static str,
    requests: usize,
    body: impl Fn() -> String + Clone + Send + 'static,
) -> Result<f64> {
    let connections = try_join_all((0..CALLERS).map(|_| Wire::connect(address))).await?;
    let left = Arc::new(AtomicUsize::new(requests));
    let began = Instant::now();
    let callers =
        connections.into_iter().map(|wire| tokio::spawn(caller(wire, path, body.clone(), left.clone())));
    for caller in join_all(callers).await {
        caller??;
    }
    Ok(rate(requests, began.elapsed()))
}

async fn caller(
    mut wire: Wire,
    path: &'static str,
    body: impl Fn() -> String,
    left: Arc<AtomicUsize>,
) -> Result<()> {
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        match wire.post(path, &body()).await? {
            (200 | 201, _) => {}
            (status, body) => bail!("{status}: {}", String::from_utf8_lossy(body)),
        }
    }
    Ok(())
}

/// Requests a second of so many callers at once.
async fn calls<F>(callers: usize, requests: usize, one: impl Fn(usize) -> F) -> Result<f64>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let began = Instant::now();
    let caller = |first: usize| {
        let mine: Vec<F> = (first..requests).step_by(callers).map(&one).collect();
        tokio::spawn(async move {
            for call in mine {
                call.await?;
            }
            anyhow::Ok(())
        })
    };
    let callers: Vec<_> = (0..callers).map(caller).collect();
    for caller in callers {
        caller.await??;
    }
    Ok(rate(requests, began.elapsed()))
}

fn keys() -> Vec<EntryKey> {
    (0..PLACES).map(|n| enrich::entry_key("wolt", &format!("p{n}"))).collect()
}

async fn companion(redis: &RedisServer, store: &Arc<dyn Store>) -> Result<(Arc<Redis>, Arc<Metrics>)> {
    let metrics = Arc::new(Metrics::default());
    let forms = enrich::forms(&EnrichConfig::default());
    let options = solely_redis::Options { forms, ..Default::default() };
    let companion = Arc::new(Redis::open(&redis.url(), options, store.clone(), metrics.clone()).await?);
    while !companion.ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok((companion, metrics))
}

pub(crate) async fn hits_in_redis(report: &mut Report, scale: Scale) -> Result<()> {
    let (redis, postgres) = (RedisServer::start(), Postgres::start());
    let store = postgres.store().await?;
    let (companion, metrics) = companion(&redis, &store).await?;
    let bus = Bus::new();
    let cache = Cache::new(store.clone(), bus, metrics, Some(companion.clone() as Arc<dyn Companion>));
    let (resolved, long) = (known(), Duration::from_hours(24));
    let entry = |key: EntryKey| PutEntry {
        key,
        value: Json::of(&resolved),
        lifetimes: Lifetimes { fresh: long, stale: long, keep: long },
        overwrite: Overwrite::Always,
        told: None,
    };
    cache.put(keys().into_iter().map(entry).collect()).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // One by one, as a client does that asks for a place at a time: each caller with a connection of its own.
    let client = redis::Client::open(redis.url())?;
    let bare = try_join_all((0..CALLERS).map(|_| client.get_multiplexed_async_connection())).await?;
    let (mut of_bare, mut of_solely) = (vec![], vec![]);
    let requests = scale.operations / 2;
    for _ in 0..scale.rounds {
        let one = |n: usize| {
            let mut bare = bare[n % CALLERS].clone();
            async move {
                for n in 0..PLACES {
                    let _: Option<String> =
                        redis::cmd("GET").arg(format!("ext:wolt:place:p{n}")).query_async(&mut bare).await?;
                }
                Ok(())
            }
        };
        of_bare.push(calls(CALLERS, requests / 4, one).await?);
        let one = |_| {
            let (companion, keys) = (companion.clone(), keys());
            async move {
                let read = companion.read(&keys).await;
                let found = |copy: &solely_core::companion::Copied| {
                    matches!(copy, solely_core::companion::Copied::Entry(_))
                };
                if read.copies.iter().all(found) { Ok(()) } else { bail!("they are not all there") }
            }
        };
        of_solely.push(calls(CALLERS, requests, one).await?);
    }
    report.add(BARE_REDIS, "requests/s", of_bare, Goal::None);
    let goal = Goal::AtLeast { mark: "B6", limit: BARE_REDIS, times: 8.0 };
    report.add("ten places that hit in Redis", "requests/s", of_solely, goal);
    store.close().await;
    Ok(())
}

fn known() -> Resolved {
    Resolved {
        status: Status::Found,
        url: Some("https://wolt.com/en/isr/tel-aviv/restaurant/a".into()),
        meta: None,
    }
}

pub(crate) async fn misses(report: &mut Report, scale: Scale) -> Result<()> {
    let (redis, postgres) = (RedisServer::start(), Postgres::start());
    let requests = scale.operations / 5;
    let (mut of_document, mut of_solely) = (vec![], vec![]);
    for round in 0..scale.rounds {
        of_document.push(the_documents_way(&redis, &postgres.database().await?, requests / 16, round).await?);
        let store = postgres.store().await?;
        redis.ask("FLUSHALL").context("Redis answers")?;
        let (companion, metrics) = companion(&redis, &store).await?;
        let (enrich, provider) = asking(&store, companion.clone(), metrics)?;
        let one = |n: usize| {
            let (enrich, provider) = (enrich.clone(), provider.clone());
            async move {
                let ids: Vec<String> = (0..PLACES).map(|place| format!("r{round}-{n}-{place}")).collect();
                let places: Vec<PlaceRef<'_>> = ids
                    .iter()
                    .map(|id| PlaceRef { place_id: id, name: "Pizza House", address: None })
                    .collect();
                let from = Asker { request_id: format!("r{round}-{n}"), trace: None };
                let wanted =
                    Wanted { providers: std::slice::from_ref(&provider), places: &places, city: None };
                let answered = enrich.ask(&from, &wanted).await?;
                if answered.pending == PLACES { Ok(()) } else { bail!("not all of them are missing") }
            }
        };
        of_solely.push(calls(MISSING_CALLERS, requests, one).await?);
        companion.close().await;
        store.close().await;
    }
    report.add(DOCUMENT, "requests/s", of_document, Goal::None);
    let goal = Goal::AtLeast { mark: "B7", limit: DOCUMENT, times: 5.0 };
    report.add("PostgreSQL and Redis: ten places that miss", "requests/s", of_solely, goal);
    Ok(())
}

fn asking(
    store: &Arc<dyn Store>,
    companion: Arc<Redis>,
    metrics: Arc<Metrics>,
) -> Result<(Enrich, Arc<Provider>)> {
    let mut config = EnrichConfig::default();
    let wolt =
        ProviderConfig { enabled: true, url: "http://127.0.0.1:9/".to_owned(), ..ProviderConfig::default() };
    config.providers.insert("wolt".to_owned(), wolt.clone());
    let bus = Bus::new();
    store.connect_bus(&bus);
    let companion: Arc<dyn Companion> = companion;
    companion.connect_bus(&bus);
    let jobs = Jobs::new(store.clone(), bus.clone(), metrics.clone());
    let cache = Cache::new(store.clone(), bus, metrics, Some(companion.clone()));
    let client = HttpClient::new(Tls::Nobody)?;
    let provider = Provider::configured("wolt", &wolt, config.request_ttl.0, &client, store);
    let enrich =
        Enrich::new(EnrichParts { jobs, cache, companion: Some(companion) }, &config, vec![provider]);
    let provider = enrich.provider("wolt").context("is there")?.clone();
    Ok((enrich, provider))
}

/// What the document does, with a queue that survives: per place one GET, one SET NX, one INSERT, all
/// places of a request at once.
async fn the_documents_way(
    redis: &RedisServer,
    database: &str,
    requests: usize,
    round: usize,
) -> Result<f64> {
    let client = redis::Client::open(redis.url())?;
    let bare = client.get_multiplexed_async_connection().await?;
    let mut pool = Vec::new();
    for _ in 0..16 {
        let (client, connection) = tokio_postgres::connect(database, NoTls).await?;
        tokio::spawn(connection);
        pool.push(Arc::new(client));
    }
    pool[0].batch_execute("CREATE TABLE queue (place text PRIMARY KEY, job text NOT NULL)").await?;
    let insert =
        try_join_all(pool.iter().map(|client| client.prepare("INSERT INTO queue VALUES ($1, $2)"))).await?;
    // One connection has one statement under way at a time.
    let turns: Vec<Arc<tokio::sync::Mutex<()>>> = pool.iter().map(|_| Arc::default()).collect();
    let one = |n: usize| {
        let (bare, pool, insert, turns) = (bare.clone(), pool.clone(), insert.clone(), turns.clone());
        async move {
            let place = |place: usize| {
                let mut bare = bare.clone();
                let nth = (n * PLACES + place) % pool.len();
                let (client, insert, turn) = (pool[nth].clone(), insert[nth].clone(), turns[nth].clone());
                async move {
                    let id = format!("d{round}-{n}-{place}");
                    let cached: Option<String> =
                        redis::cmd("GET").arg(format!("ext:wolt:place:{id}")).query_async(&mut bare).await?;
                    let lock = format!("ext:wolt:lock:{id}");
                    let set: Option<String> = redis::cmd("SET")
                        .arg(lock)
                        .arg(1)
                        .arg("EX")
                        .arg(60)
                        .arg("NX")
                        .query_async(&mut bare)
                        .await?;
                    if cached.is_none() && set.is_some() {
                        let _turn = turn.lock().await;
                        client.execute(&insert, &[&id, &"{\"name\":\"Pizza House\"}"]).await?;
                    }
                    anyhow::Ok(())
                }
            };
            try_join_all((0..PLACES).map(place)).await?;
            Ok(())
        }
    };
    calls(MISSING_CALLERS, requests, one).await
}

/// A finder that answers when it is let.
pub(crate) async fn finder(
    gate: Option<Arc<tokio::sync::Semaphore>>,
) -> Result<(tokio::task::JoinHandle<()>, String)> {
    let find = move |axum::Json(place): axum::Json<serde_json::Value>| {
        let gate = gate.clone();
        async move {
            if let Some(gate) = gate {
                gate.acquire().await.expect("stays open").forget();
            }
            let url = format!("https://wolt.com/{}", place["placeId"].as_str().unwrap_or_default());
            axum::Json(serde_json::json!({"status": "FOUND", "url": url}))
        }
    };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", free_port())).await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let app = axum::Router::new().route("/", axum::routing::post(find));
    Ok((tokio::spawn(async move { drop(axum::serve(listener, app).await) }), url))
}

pub(crate) const SOCKETS: usize = 10_000;

pub(crate) async fn sockets(report: &mut Report, solely: &Path) -> Result<()> {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (_finder, finder_url) = finder(Some(gate.clone())).await?;
    let server = server(solely, &finder_url, &[]).await?;
    let address: SocketAddr = server.base().trim_start_matches("http://").parse()?;
    let client = solely_core::upstream::http::builder(Tls::Nobody).build()?;
    let (mut memory, mut patched) = (vec![], vec![]);
    for round in 0..3 {
        let request = format!("req-{round}");
        let place = serde_json::json!({"requestId": request, "results": [{"placeId": request, "name": "Pizza House"}]});
        client.post(format!("{}/v1/enrich", server.base())).body(place.to_string()).send().await?;
        let before = server.memory_mib()?;
        let mut open = Vec::with_capacity(SOCKETS);
        let topic = format!(r#""channel":"search","requestId":"{request}""#);
        for _ in 0..SOCKETS / 100 {
            open.extend(try_join_all((0..100).map(|_| subscribed(address, round, &topic))).await?);
        }
        memory.push((server.memory_mib()? - before) * 1_024.0 / f64::from(u32::try_from(SOCKETS)?));
        let heard = open.into_iter().map(|socket| tokio::spawn(patch(socket)));
        let heard: Vec<_> = heard.collect();
        // Everyone listens before it is found.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let found = Instant::now();
        gate.add_permits(1);
        let mut last = Duration::ZERO;
        for one in heard {
            last = last.max(one.await??.duration_since(found));
        }
        patched.push(last.as_secs_f64() * 1_000.0);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // The first round makes room; the others show what a socket costs beside what is there.
    report.add("10,000 sockets, each", "KiB", vec![memory[0]], Goal::AtMost { mark: "B11", most: 8.0 });
    report.add("one patch to all of them", "ms", patched, Goal::AtMost { mark: "B11", most: 300.0 });
    Ok(())
}

/// A socket that has subscribed, without more on this side than it takes.
/// Each round has an address of its own: the ports of one that has ended are not free at once.
pub(crate) async fn subscribed(address: SocketAddr, round: u8, topic: &str) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 2 + round], 0)))?;
    let mut stream = socket.connect(address).await?;
    let upgrade = "GET /v1/ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n";
    stream.write_all(upgrade.as_bytes()).await?;
    let mut head = Vec::with_capacity(512);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            bail!("the server has hung up: {}", String::from_utf8_lossy(&head));
        }
    }
    let said = format!(r#"{{"v":1,"type":"subscribe",{topic}}}"#);
    let mut frame = vec![0x81, 0x80 | u8::try_from(said.len())?, 0, 0, 0, 0];
    frame.extend_from_slice(said.as_bytes());
    stream.write_all(&frame).await?;
    let acknowledged = text(&mut stream).await?;
    if acknowledged.contains("sub_ack") { Ok(stream) } else { bail!("{acknowledged}") }
}

/// The next text; pings are passed over. Messages are short, and come one at a time.
pub(crate) async fn text(stream: &mut TcpStream) -> Result<String> {
    let mut buffer = [0; 2_048];
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            bail!("the socket was closed");
        }
        if buffer[0] & 0x0f == 1 {
            return Ok(String::from_utf8_lossy(&buffer[2..length]).into_owned());
        }
    }
}

async fn patch(mut stream: TcpStream) -> Result<Instant> {
    let patch = text(&mut stream).await?;
    if patch.contains("RESULT_PATCH") { Ok(Instant::now()) } else { bail!("{patch}") }
}
