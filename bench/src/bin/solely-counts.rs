//! What the pure parts and the hits in memory take, counted and not timed: memory asked for here, and
//! instructions by whoever runs this under callgrind. Neither depends on the machine, so `cargo xtask count`
//! compares both with what is written in `bench/counts.txt`.
//!
//! Without arguments it says for each part how often memory is asked for, and how much. With a part and a number
//! it only does that part so many times.

use std::alloc::System;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Map;
use solely_core::access::same_secret;
use solely_core::bus::Bus;
use solely_core::cache::{Cache, Lifetimes, Overwrite, PutEntry};
use solely_core::config::{EnrichConfig, PluginConfig, ProviderConfig};
use solely_core::enrich::finder::{Candidate, Place};
use solely_core::enrich::{
    Asker, Enrich, EnrichParts, PlaceRef, Provider, Resolved, Status, Told, ToldPlace, Wanted, entry_key,
    matcher,
};
use solely_core::feed::PriceRange;
use solely_core::feed::partition::Planner;
use solely_core::lease::Leases;
use solely_core::metrics::Metrics;
use solely_core::products::{App, Products, ProductsParts, Search, State};
use solely_core::queue::Jobs;
use solely_core::reserve::{
    Books, HoldTimes, IdempotencyKey, Inventory, Merchant, NewReservation, Operation, Request, Rules,
    pickup_code,
};
use solely_core::upstream::http::{HttpClient, Tls};
use solely_core::{Json, ProcessId, ReservationId, Store, Timestamp};
use solely_sandbox::Sandbox;
use solely_sandbox::catalogue::Catalogue;
use solely_sqlite::SqliteStore;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tempfile::TempDir;

/// Counts what is asked of the allocator.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A part that is counted.
trait Part {
    async fn once(&self);
}

/// How often each part is done to be counted.
const DONE: u32 = 200;

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    runtime.block_on(async {
        match args.as_slice() {
            [] => {
                counted("decide", &Decide::new()).await;
                counted("match", &Match::new()).await;
                counted("told", &Remember::new()).await;
                counted("plan", &Plan).await;
                counted("enrich-hit", &EnrichHit::new().await?).await;
                counted("products-hit", &ProductsHit::new().await?).await;
            }
            [part, times] => {
                let times: u32 = times.parse()?;
                match part.as_str() {
                    "decide" => done(&Decide::new(), times).await,
                    "match" => done(&Match::new(), times).await,
                    "told" => done(&Remember::new(), times).await,
                    "plan" => done(&Plan, times).await,
                    "secret-first" => done(&Guess { same: same_secret, wrong_at: 0 }, times).await,
                    "secret-last" => done(&Guess { same: same_secret, wrong_at: LONG - 1 }, times).await,
                    "plain-first" => done(&Guess { same: plainly, wrong_at: 0 }, times).await,
                    "plain-last" => done(&Guess { same: plainly, wrong_at: LONG - 1 }, times).await,
                    other => bail!("there is no pure part {other}"),
                }
            }
            _ => bail!("a part and how often, or nothing"),
        }
        Ok(())
    })
}

async fn done(part: &impl Part, times: u32) {
    for _ in 0..times {
        part.once().await;
    }
}

/// Says how often memory is asked for, and how much, in the middle of many times.
async fn counted(name: &str, part: &impl Part) {
    done(part, 10).await;
    let mut seen = Vec::new();
    for _ in 0..DONE {
        let region = Region::new(ALLOCATOR);
        part.once().await;
        let asked = region.change();
        seen.push((asked.allocations + asked.reallocations, asked.bytes_allocated));
    }
    seen.sort_unstable();
    let (times, bytes) = seen[seen.len() / 2];
    println!("{name} {times} {bytes}");
}

/// The rules of reserve on a batch of 64 purchases of one box, each with a key.
struct Decide {
    requests: Vec<Request>,
    rules: Rules,
}

impl Decide {
    fn new() -> Self {
        let purchase = |nth: u32| {
            let id = ReservationId::new();
            let new = NewReservation {
                id,
                pickup_code: pickup_code(),
                user_id: format!("user-{nth:08}"),
                inventory_id: "box".to_owned(),
                ttl: None,
                quantity: 1,
                max_price: None,
            };
            let key = IdempotencyKey { scope: "counts".to_owned(), key: id.to_string() };
            Request {
                idempotency: Some((key, "digest".to_owned())),
                request_id: Some(id.to_string()),
                ..Request::new(Operation::Reserve(new))
            }
        };
        let minutes = |count: u64| Duration::from_secs(count * 60);
        let (usual, least, most, offer) = (minutes(20), minutes(15), minutes(30), minutes(5));
        let rules = Rules::new(HoldTimes { usual, least, most, offer });
        Self { requests: (0..64).map(purchase).collect(), rules }
    }
}

impl Part for Decide {
    async fn once(&self) {
        let wanted = solely_core::reserve::Wanted::of(&self.requests);
        let at = Timestamp::from_millis;
        let mut books = Books::at(at(1_000_000), &wanted);
        let text = str::to_owned;
        books.merchant(Merchant { id: text("m1"), name: text("Bakery"), timezone: text("UTC") });
        books.item(Inventory {
            id: text("box"),
            merchant_id: text("m1"),
            box_type_id: text("t1"),
            original: 1_000,
            remaining: 1_000,
            held: 0,
            paid: 0,
            collected: 0,
            withdrawn: 0,
            price: 450,
            currency: text("EUR"),
            pricing: None,
            pickup_start: at(0),
            pickup_end: at(100_000_000),
            closed: false,
            version: 1,
            lapsed: 0,
            waiting: 0,
            waited: false,
        });
        black_box(books.decide(&self.requests, &self.rules));
        black_box(&books);
    }
}

/// The matcher on ten candidates.
struct Match {
    place: Place,
    candidates: Vec<Candidate>,
    hosts: Vec<String>,
}

impl Match {
    fn new() -> Self {
        let place = Place {
            place_id: "p1".to_owned(),
            name: "Pizza House".to_owned(),
            city_text: Some("Tel Aviv".to_owned()),
            address_text: Some("1 Dizengoff St, Tel Aviv".to_owned()),
        };
        let names = ["pizza-house", "pizza-palace", "burger-house", "pizza-house-haifa", "sushi-bar"];
        let candidate = |nth: usize| {
            let name = names[nth % names.len()];
            Candidate {
                title: format!(
                    "{} | Wolt | {}",
                    name.replace('-', " "),
                    if nth < 5 { "Tel Aviv" } else { "Haifa" }
                ),
                url: format!("https://wolt.com/en/isr/tel-aviv/restaurant/{name}-{nth}"),
                snippet: format!("Order from {name} with delivery to you in Tel Aviv, {nth} Dizengoff St"),
            }
        };
        Self { place, candidates: (0..10).map(candidate).collect(), hosts: vec!["wolt.com".to_owned()] }
    }
}

impl Part for Match {
    async fn once(&self) {
        black_box(matcher::decide(black_box(&self.place), &self.hosts, &self.candidates));
    }
}

/// What a request of ten places was told, written and read.
struct Remember(Told);

impl Remember {
    fn new() -> Self {
        let place = |nth: u32| {
            let name = format!("Pizza House {nth}");
            (format!("wolt/place-{nth}"), ToldPlace { name, place: nth, since: Some(-1_763_000_000_000) })
        };
        Self(Told((0..10).map(place).collect()))
    }
}

impl Part for Remember {
    async fn once(&self) {
        let text = Json::of(black_box(&self.0));
        black_box(text.parse::<Told>()).expect("is readable");
    }
}

/// The plan of a run: thirty pieces of a million records, most of them cheap.
struct Plan;

impl Part for Plan {
    async fn once(&self) {
        let mut planner = Planner::new(PriceRange { min: 0, max: 5_000_000 }, 30, 1_000);
        let up_to = |price: i64| u64::try_from(price.max(0)).unwrap_or_default().isqrt() * 447;
        loop {
            let probes = planner.probes();
            if probes.is_empty() {
                break;
            }
            let counts: Vec<u64> =
                probes.iter().map(|range| up_to(range.max) - up_to(range.min - 1)).collect();
            planner.learn(&counts);
        }
        black_box(planner.partitions());
    }
}

/// A long secret beside one that is wrong at one place.
struct Guess {
    same: fn(&str, &str) -> bool,
    wrong_at: usize,
}

const LONG: usize = 4_096;

/// How a secret is not compared: whoever measures this learns how much of a guess is right.
fn plainly(one: &str, other: &str) -> bool {
    one == other
}

impl Part for Guess {
    async fn once(&self) {
        let letter = |nth| if nth == self.wrong_at { 'b' } else { 'a' };
        let guess: String = (0..LONG).map(letter).collect();
        assert!(!(self.same)(black_box(&"a".repeat(LONG)), black_box(&guess)));
    }
}

fn store() -> Result<(Arc<dyn Store>, TempDir)> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("counts.db").display());
    Ok((Arc::new(SqliteStore::open(&url, &solely_sqlite::Options::default())?), folder))
}

/// A request for ten places that are in memory.
struct EnrichHit {
    enrich: Enrich,
    provider: Arc<Provider>,
    ids: Vec<String>,
    _folder: TempDir,
}

impl EnrichHit {
    async fn new() -> Result<Self> {
        let (store, folder) = store()?;
        let (bus, metrics) = (Bus::new(), Arc::new(Metrics::default()));
        let cache = Cache::new(store.clone(), bus.clone(), metrics.clone(), None);
        let mut config = EnrichConfig::default();
        let url = "http://127.0.0.1:9/".to_owned();
        let wolt = ProviderConfig { enabled: true, url, ..ProviderConfig::default() };
        config.providers.insert("wolt".to_owned(), wolt.clone());
        let client = HttpClient::new(Tls::Nobody)?;
        let provider = Provider::configured("wolt", &wolt, config.request_ttl.0, &client, &store);
        let parts =
            EnrichParts { jobs: Jobs::new(store, bus, metrics), cache: cache.clone(), companion: None };
        let enrich = Enrich::new(parts, &config, vec![provider]);
        let provider = enrich.provider("wolt").context("is configured")?.clone();
        let ids: Vec<String> = (0..10).map(|nth| format!("place-{nth}")).collect();
        let resolved =
            Resolved { status: Status::Found, url: Some("https://wolt.com/a".to_owned()), meta: None };
        let long = Duration::from_hours(24);
        let entry = |id: &String| PutEntry {
            key: entry_key("wolt", id),
            value: Json::of(&resolved),
            lifetimes: Lifetimes { fresh: long, stale: long, keep: long },
            overwrite: Overwrite::Always,
            told: None,
        };
        cache.put(ids.iter().map(entry).collect()).await?;
        Ok(Self { enrich, provider, ids, _folder: folder })
    }
}

impl Part for EnrichHit {
    async fn once(&self) {
        let place = |id| PlaceRef { place_id: id, name: "Pizza", address: None };
        let places: Vec<PlaceRef<'_>> = self.ids.iter().map(|id| place(id)).collect();
        let from = Asker { request_id: "request".to_owned(), trace: None };
        let wanted = Wanted { providers: std::slice::from_ref(&self.provider), places: &places, city: None };
        let answered = self.enrich.ask(&from, &wanted).await.expect("answers");
        assert_eq!(answered.pending, 0);
    }
}

/// A search that is in memory.
struct ProductsHit {
    products: Products,
    app: Arc<App>,
    _sandbox: Sandbox,
    _folder: TempDir,
}

impl ProductsHit {
    async fn new() -> Result<Self> {
        let (store, folder) = store()?;
        let sandbox = Sandbox::new(Catalogue::of(1, 1));
        let address = sandbox.start(solely_testing::free_port()).await?;
        let (bus, metrics) = (Bus::new(), Arc::new(Metrics::default()));
        let parts = ProductsParts {
            jobs: Jobs::new(store.clone(), bus.clone(), metrics.clone()),
            cache: Cache::new(store.clone(), bus.clone(), metrics.clone(), None),
            leases: Leases::new(store.clone(), bus, metrics.clone()),
            companion: None,
            process: ProcessId::random(),
        };
        let config = PluginConfig { url: format!("http://{address}/products"), ..PluginConfig::default() };
        let app = App::configured("tours", &config, &HttpClient::new(Tls::Nobody)?, &store, &metrics);
        let products = Products::new(parts, vec![app]);
        let app = products.app("tours").context("is configured")?.clone();
        let found = products.search(&app, search()).await;
        found.map_err(|error| anyhow::anyhow!("{error:?}"))?;
        Ok(Self { products, app, _sandbox: sandbox, _folder: folder })
    }
}

fn search() -> Search {
    Search {
        operation: None,
        user_id: "u1".to_owned(),
        hint: Some("acct-1".to_owned()),
        force: false,
        token: Map::new(),
        payload: Map::new(),
        request_id: String::new(),
        trace: None,
    }
}

impl Part for ProductsHit {
    async fn once(&self) {
        let answer = self.products.search(&self.app, search()).await.expect("is cached");
        assert_eq!(answer.state, State::Fresh);
    }
}
