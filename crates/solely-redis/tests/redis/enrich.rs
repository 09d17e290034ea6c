//! What a request for links costs: round trips to Redis, and statements of the store.

use std::sync::Arc;

use async_trait::async_trait;
use solely_core::cache::{Lifetimes, Overwrite, PutEntry};
use solely_core::commit::{Commit, Verdict};
use solely_core::companion::Companion;
use solely_core::config::{EnrichConfig, ProviderConfig};
use solely_core::enrich::{
    Asker, Enrich, EnrichParts, PlaceRef, Provider, Resolved, State, Status, Wanted, entry_key, queue,
};
use solely_core::job::{ClaimReply, ClaimRequest, Claimed, NewJob};
use solely_core::liveness::Beat;
use solely_core::upstream::http::{HttpClient, Tls};
use solely_core::worker::{Delivery, Done, Failure};
use solely_core::{Json, ProcessId, Store};
use solely_postgres::PostgresStore;
use solely_testing::{RedisServer, fresh_database};
use std::time::Duration;
use tokio_postgres::NoTls;
use tokio_util::sync::CancellationToken;

use crate::instance::{Instance, Place, Setup, eventually};

fn enrich(instance: &Instance) -> (Enrich, Arc<Provider>) {
    let client = HttpClient::new(Tls::Nobody).expect("a client");
    let mut config = EnrichConfig::default();
    let wolt =
        ProviderConfig { enabled: true, url: "http://127.0.0.1:9/".to_owned(), ..ProviderConfig::default() };
    config.providers.insert("wolt".to_owned(), wolt.clone());
    let provider = Provider::configured("wolt", &wolt, config.request_ttl.0, &client, &instance.store);
    let parts = EnrichParts {
        jobs: instance.jobs.clone(),
        cache: instance.cache.clone(),
        companion: Some(instance.redis.clone() as Arc<dyn Companion>),
    };
    let enrich = Enrich::new(parts, &config, vec![provider]);
    let provider = enrich.provider("wolt").expect("is there").clone();
    (enrich, provider)
}

/// How often a request asked the store, as the database counts it.
#[async_trait]
trait Counts {
    async fn waits(&self) -> i64;
}

#[async_trait]
impl Counts for tokio_postgres::Client {
    async fn waits(&self) -> i64 {
        let sql = "SELECT coalesce(max(calls), 0) FROM pg_stat_user_functions WHERE funcname = 'solely_wait'";
        self.query_one(sql, &[]).await.expect("counts").get(0)
    }
}

#[tokio::test]
async fn a_request_costs_two_round_trips_at_most() {
    let (redis, database) = (RedisServer::start(), fresh_database());
    let (client, connection) = tokio_postgres::connect(&database, NoTls).await.expect("connects");
    tokio::spawn(connection);
    let sql = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET track_functions = ''pl''', current_database()); END $$";
    client.batch_execute(sql).await.expect("counts from now on");
    let options = solely_postgres::Options::default();
    let store: Arc<dyn Store> = Arc::new(PostgresStore::open(&database, &options).await.expect("opens"));
    let deaf = Setup { bus: false, ..Setup::default() };
    let here = Instance::with(&store, &redis.url(), deaf).await;
    let there = Instance::with(&store, &redis.url(), deaf).await;
    let ids: Vec<String> = (0..10).map(|n| format!("p{n}")).collect();
    let places: Vec<PlaceRef<'_>> =
        ids.iter().map(|id| PlaceRef { place_id: id, name: "Pizza", address: None }).collect();
    let ask = async |of: &(Enrich, Arc<Provider>), instance: &Instance, request: &str| {
        let from = Asker { request_id: request.to_owned(), trace: None };
        let before = instance.redis.round_trips();
        let wanted = Wanted { providers: std::slice::from_ref(&of.1), places: &places, city: None };
        let answered = of.0.ask(&from, &wanted).await.expect("answers");
        (answered.pending, instance.redis.round_trips() - before)
    };
    let (one, two) = (enrich(&here), enrich(&there));

    // All of them are missing: one to Redis, which takes a lease for each, and one to the store.
    assert_eq!(ask(&one, &here, "a").await, (10, 1));
    eventually("one statement", async || client.waits().await == 1).await;
    // The leases are held: the same.
    assert_eq!(ask(&two, &there, "b").await, (10, 1));
    eventually("one statement", async || client.waits().await == 2).await;

    // All of them are in Redis: one. Then all of them are in memory: none.
    let resolved = Resolved { status: Status::Found, url: Some("https://wolt.com/a".to_owned()), meta: None };
    let long = Duration::from_secs(86_400);
    let entry = |id: &String| PutEntry {
        key: entry_key("wolt", id),
        value: Json::of(&resolved),
        lifetimes: Lifetimes { fresh: long, stale: long, keep: long },
        overwrite: Overwrite::Always,
        told: None,
    };
    here.cache.put(ids.iter().map(entry).collect()).await.expect("writes");
    let last = entry_key("wolt", "p9");
    eventually("Redis has them", async || {
        let copies = solely_core::companion::Copies::read(&*there.redis, std::slice::from_ref(&last)).await;
        matches!(copies.copies[0], solely_core::companion::Copied::Entry(_))
    })
    .await;
    assert_eq!(ask(&two, &there, "c").await, (0, 1));
    assert_eq!(ask(&two, &there, "d").await, (0, 0));
    let from = Asker { request_id: "e".to_owned(), trace: None };
    let wanted = Wanted { providers: std::slice::from_ref(&two.1), places: &places, city: None };
    let answered = two.0.ask(&from, &wanted).await.expect("answers");
    assert!(answered.states[0].iter().all(|state| matches!(state, State::Known { .. })));

    // Redis was emptied: one to Redis, one to the store, which knows them.
    redis.ask("FLUSHALL").expect("is emptied");
    let fresh = Instance::with(&store, &redis.url(), deaf).await;
    redis.ask("FLUSHALL").expect("is emptied");
    assert_eq!(ask(&enrich(&fresh), &fresh, "f").await, (0, 1));
    eventually("one statement", async || client.waits().await == 3).await;
}

/// A lookup finds that the place is known by now, and has nothing to do. It is forgotten before the lookup has ended, and
/// somebody asks and is told to wait for it: they hear of its end.
#[tokio::test]
async fn a_lookup_with_nothing_to_do_leaves_nobody_waiting() {
    let (redis, place) = (RedisServer::start(), entry_key("wolt", "p"));
    for at in [Place::embedded(redis.url()), Place::networked(redis.url())] {
        let instance = Instance::with(&at.store().await, &redis.url(), Setup::default()).await;
        let (enrich, provider) = enrich(&instance);
        let wanted = PlaceRef { place_id: "p", name: "Pizza", address: None };
        let ask = async |request: &str| {
            let from = Asker { request_id: request.to_owned(), trace: None };
            let (providers, places) = (std::slice::from_ref(&provider), std::slice::from_ref(&wanted));
            enrich.ask(&from, &Wanted { providers, places, city: None }).await.expect("answers").pending
        };
        assert_eq!(ask("first").await, 1);
        let resolved =
            Resolved { status: Status::Found, url: Some("https://wolt.com/a".to_owned()), meta: None };
        let long = Duration::from_secs(86_400);
        let entry = PutEntry {
            key: place.clone(),
            value: Json::of(&resolved),
            lifetimes: Lifetimes { fresh: long, stale: long, keep: long },
            overwrite: Overwrite::Always,
            told: None,
        };
        instance.cache.put(vec![entry]).await.expect("writes");
        let delivery = delivery(&instance).await;
        let done = enrich.queues()[0].handler.handle(&delivery).await.expect("nothing to do");
        let ending = ending(&delivery, Verdict::Complete, done);

        assert!(instance.cache.forget(place.clone(), long, None).await.expect("forgets"));
        assert_eq!(ask("second").await, 1, "it waits for the lookup");
        instance.jobs.settle(vec![ending]).await.expect("settles").remove(0).expect("settles");
        let recalled = enrich.recall("second").await.expect("reads").expect("is remembered");
        assert!(matches!(recalled[0].states[0].1, State::Known { .. }), "left waiting: {recalled:?}");
    }
}

/// A lookup that cannot be read, as one of another version may be, is given up, and whoever waits for it hears so.
#[tokio::test]
async fn a_lookup_that_cannot_be_read_leaves_nobody_waiting() {
    let redis = RedisServer::start();
    let instance =
        Instance::with(&Place::embedded(redis.url()).store().await, &redis.url(), Setup::default()).await;
    let (enrich, provider) = enrich(&instance);
    let mut of_old = NewJob { kind: "lookup".to_owned(), ..NewJob::new(queue("wolt"), "p") };
    of_old.payload = Json::of(&std::collections::BTreeMap::from([("spoken", "another language")]));
    instance.store.enqueue(vec![of_old]).await.expect("enqueues");
    let places = [PlaceRef { place_id: "p", name: "Pizza", address: None }];
    let from = Asker { request_id: "asks".to_owned(), trace: None };
    let wanted = Wanted { providers: std::slice::from_ref(&provider), places: &places, city: None };
    assert_eq!(enrich.ask(&from, &wanted).await.expect("answers").pending, 1);
    let (delivery, handler) = (delivery(&instance).await, enrich.queues()[0].handler.clone());
    let failure = handler.handle(&delivery).await.expect_err("cannot be read");
    let Failure::Permanent { error } = failure else { panic!("{failure:?}") };
    let ending =
        ending(&delivery, Verdict::Dead { error: error.clone() }, handler.died(&delivery.job, &error));
    instance.jobs.settle(vec![ending]).await.expect("settles").remove(0).expect("settles");
    let recalled = enrich.recall("asks").await.expect("reads").expect("is remembered");
    assert!(matches!(recalled[0].states[0].1, State::Known { .. }), "left waiting: {recalled:?}");
}

/// The one lookup that there is, claimed.
async fn delivery(instance: &Instance) -> Delivery {
    let (process, store, minute) = (ProcessId::random(), &instance.store, Duration::from_secs(60));
    store.beat(Beat { process, dead_after: minute }).await.expect("beats");
    let request = ClaimRequest { process, queue: queue("wolt"), limit: 1, lock: minute };
    let ClaimReply::Jobs { mut jobs, .. } = store.claim(request).await.expect("claims") else {
        panic!("is alive")
    };
    let Claimed { claim, job } = jobs.remove(0);
    Delivery { claim, job, stopping: CancellationToken::new() }
}

fn ending(delivery: &Delivery, verdict: Verdict, done: Done) -> Commit {
    let Done { effect, next_jobs, events, otherwise } = done;
    Commit { claim: delivery.claim, verdict, effect, next_jobs, events, otherwise }
}
