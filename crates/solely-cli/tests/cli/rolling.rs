//! A rolling restart: three servers are replaced one after the other while everything goes on.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::join_all;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use solely_sandbox::Sandbox;
use solely_sandbox::catalogue::Catalogue;
use solely_testing::{RedisServer, free_port, fresh_database};
use tempfile::TempDir;

use crate::reserve::stock;
use crate::server::{Server, client, solely};

/// Callers at once.
const CALLERS: usize = 12;
/// What each server answers at least before the next one is replaced.
const BETWEEN: usize = 150;

struct World {
    upstreams: Sandbox,
    config: String,
    database: String,
    redis: RedisServer,
}

impl World {
    async fn new() -> Self {
        let upstreams = Sandbox::new(Catalogue::of(1, 1));
        upstreams.set_products(json!([{"productId": "p1", "options": [{"optionId": "o1"}]}]), false);
        let address = upstreams.start(free_port()).await.expect("listens");
        let config = format!(
            "[enrich.providers.wolt]\nenabled = true\nurl = \"http://{address}/finder\"\n\
             [products.plugins.tours]\nurl = \"http://{address}/products\"\n"
        );
        Self { upstreams, config, database: fresh_database(), redis: RedisServer::start() }
    }

    /// A server of this version; or of the program that `SOLELY_OLDER` names, where there is to be an older one.
    async fn server(&self, version: Version) -> Server {
        let older = std::env::var_os(OLDER_ENV).filter(|_| version == Version::Older);
        let program = older.unwrap_or_else(|| env!("CARGO_BIN_EXE_solely").into());
        let folder = TempDir::new().expect("a folder");
        std::fs::write(folder.path().join("solely.toml"), &self.config).expect("is written");
        let redis = self.redis.url();
        let env = [
            ("DATABASE_URL", self.database.as_str()),
            ("REDIS_URL", redis.as_str()),
            ("SOLELY__STORE__MAX_CONNECTIONS", "6"),
        ];
        Server::start_program(&program, folder, &env).await
    }

    async fn reservations(&self) -> BTreeSet<String> {
        let (client, connection) =
            tokio_postgres::connect(&self.database, tokio_postgres::NoTls).await.expect("connects");
        let connection = tokio::spawn(connection);
        let rows = client.query("SELECT id::text FROM reservations", &[]).await.expect("reads");
        connection.abort();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

/// The program that is replaced, where it is not this one: `cargo xtask beside REVISION` builds and names one.
const OLDER_ENV: &str = "SOLELY_OLDER";

/// Which program a server is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Older,
    This,
}

/// Where servers are, what is asked of them, and what came of it.
#[derive(Default)]
struct Load {
    urls: Mutex<Vec<String>>,
    over: AtomicBool,
    next: AtomicUsize,
    answered: AtomicUsize,
    retried: AtomicUsize,
    reserved: Mutex<BTreeSet<String>>,
}

impl Load {
    fn url(&self, nth: usize) -> String {
        let urls = self.urls.lock().expect("nobody panics with it");
        urls[nth % urls.len()].clone()
    }

    /// Asks a server, and if that fails another one; which must answer.
    async fn ask(&self, http: &reqwest::Client, nth: usize, path: &str, body: &Value) -> Value {
        let mut failed = String::new();
        for attempt in 0..2 {
            let url = format!("{}{path}", self.url(nth + attempt));
            let asked =
                http.post(&url).header("Idempotency-Key", format!("key-{nth}")).json(body).send().await;
            let failure = match asked {
                Ok(answer) if answer.status().is_success() => match answer.json().await {
                    Ok(answer) => {
                        self.answered.fetch_add(1, Ordering::SeqCst);
                        self.retried.fetch_add(attempt, Ordering::SeqCst);
                        return answer;
                    }
                    Err(error) => error.to_string(),
                },
                Ok(answer) => format!("{}: {}", answer.status(), answer.text().await.unwrap_or_default()),
                Err(error) => format!("{error:?}"),
            };
            failed = format!("{failed}\n{url}: {failure}");
        }
        panic!("one retry does not mend it: {failed}");
    }

    /// Buys, searches for a place and searches for products, each for somebody or something else every time.
    async fn caller(self: Arc<Self>) {
        let http = client();
        while !self.over.load(Ordering::SeqCst) {
            let nth = self.next.fetch_add(1, Ordering::SeqCst);
            let bought = json!({"userId": format!("u{nth}"), "boxInventoryId": "box"});
            let reservation = self.ask(&http, nth, "/v1/reservations", &bought).await;
            let id = reservation["id"].as_str().expect("an id").to_owned();
            self.reserved.lock().expect("nobody panics with it").insert(id);
            let place =
                json!({"results": [{"placeId": format!("place-{}", nth / 2), "name": "Zohara Hummus"}]});
            self.ask(&http, nth, "/v1/enrich", &place).await;
            let wanted = json!({"appKey": "tours", "userId": format!("u{}", nth / 2)});
            let found = self.ask(&http, nth, "/v1/products/search", &wanted).await;
            assert_eq!(found["products"][0]["productId"], "p1", "{found}");
        }
    }

    async fn until_answered(&self, more: usize) {
        let (wanted, deadline) =
            (self.answered.load(Ordering::SeqCst) + more, Instant::now() + Duration::from_secs(60));
        while self.answered.load(Ordering::SeqCst) < wanted {
            assert!(Instant::now() < deadline, "nothing goes on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Three servers under load are told to stop and replaced one after the other: no request fails that one retry at
/// another server does not mend, nothing that was acknowledged is lost and nothing is done twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_servers_are_replaced_one_by_one_and_nobody_notices() {
    let world = World::new().await;
    let mut servers = join_all((0..3).map(|_| world.server(Version::Older))).await;
    stock(async |path: &str, body| servers[0].post(path, body).await, "box", 100_000).await;
    let load = Arc::new(Load::default());
    *load.urls.lock().expect("nobody panics with it") =
        servers.iter().map(|server| server.url.clone()).collect();
    let callers: Vec<_> = (0..CALLERS).map(|_| tokio::spawn(load.clone().caller())).collect();
    for (nth, server) in servers.iter_mut().enumerate() {
        load.until_answered(BETWEEN).await;
        server.signal(Signal::SIGTERM);
        let code = tokio::task::block_in_place(|| server.ended());
        assert_eq!(code, Some(0), "{}", server.log());
        *server = world.server(Version::This).await;
        load.urls.lock().expect("nobody panics with it")[nth].clone_from(&server.url);
    }
    load.until_answered(BETWEEN).await;
    load.over.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.expect("every request is answered");
    }
    let reserved = load.reserved.lock().expect("nobody panics with it").clone();
    println!(
        "{} answered, {} after a retry, {} reservations",
        load.answered.load(Ordering::SeqCst),
        load.retried.load(Ordering::SeqCst),
        reserved.len()
    );
    assert_eq!(world.reservations().await, reserved, "each that was acknowledged, and no other");
    let places = load.next.load(Ordering::SeqCst).div_ceil(2);
    let deadline = Instant::now() + Duration::from_secs(60);
    while world.upstreams.places().len() < places {
        assert!(Instant::now() < deadline, "{} of {places} places", world.upstreams.places().len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let more_than_once: Vec<_> =
        world.upstreams.places().into_iter().filter(|(_, calls)| *calls > 1).collect();
    assert!(more_than_once.is_empty(), "looked up more than once: {more_than_once:?}");
    let check = solely(servers[0].folder.path()).env("DATABASE_URL", &world.database).arg("check").output();
    let check = check.expect("runs");
    assert_eq!(check.status.code(), Some(0), "{}", String::from_utf8_lossy(&check.stdout));
}
