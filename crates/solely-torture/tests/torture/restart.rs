//! PostgreSQL restarted under load, or followed by its standby: work resumes by itself, nothing is lost or doubled, and
//! callers are told at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use solely_core::bus::Bus;
use solely_core::event::{EventStore as _, NewEvent};
use solely_core::job::{Enqueued, JobState, NewJob};
use solely_core::metrics::Metrics;
use solely_core::queue::{Jobs, QueueStore as _};
use solely_core::reserve::{
    Batch, HoldTimes, NewReservation, Operation, Request, ReserveStore as _, Rules, pickup_code,
};
use solely_core::store::Retention;
use solely_core::upkeep::Upkeep;
use solely_core::worker::{Delivery, Done, Failure, Handler, QueueSpec, Worker};
use solely_core::{JobId, ProcessId, ReservationId, Store as _, StoreError};
use solely_postgres::{Options, PostgresStore};
use solely_testing::PostgresServer;
use solely_torture::proxy::Proxy;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Tells of every delivery that is settled.
struct Tells;

#[async_trait]
impl Handler for Tells {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let told = NewEvent::new(format!("load:{}", delivery.job.id), "worked");
        Ok(Done { events: vec![told], ..Done::default() })
    }
}

/// What one caller was told of its jobs.
#[derive(Default)]
struct Told {
    made: Vec<JobId>,
    refused: Vec<JobId>,
    slowest: Duration,
}

/// Enqueues one by one until told to stop.
async fn enqueue(jobs: Jobs, stop: Arc<AtomicBool>) -> Told {
    let mut told = Told::default();
    while !stop.load(Ordering::Relaxed) {
        let job = NewJob::new("load", JobId::new().to_string());
        let (id, asked) = (job.id, Instant::now());
        let answer = jobs.enqueue(vec![job]).await;
        told.slowest = told.slowest.max(asked.elapsed());
        match answer {
            Ok(outcome) => {
                assert_eq!(outcome, [Enqueued::Created]);
                told.made.push(id);
            }
            Err(StoreError::Unavailable(_)) => {
                told.refused.push(id);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // Also true: nobody can say.
            Err(StoreError::Unknown(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    told
}

async fn until_healthy(store: &PostgresStore) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.health().await.is_err() {
        assert!(Instant::now() < deadline, "it comes back by itself");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until_worked(store: &PostgresStore, id: JobId) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let job = store.job(id).await.expect("reads").expect("what was acknowledged is there");
        if job.state == JobState::Completed {
            return;
        }
        assert!(Instant::now() < deadline, "work resumes by itself: {job:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A store with a worker and callers who enqueue as fast as they are answered.
struct Load {
    jobs: Jobs,
    /// What was refused to whoever asked while it was away.
    refused: Vec<JobId>,
    store: Arc<PostgresStore>,
    enough: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Told>>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    async fn begin(url: &str) -> Self {
        let store = Arc::new(PostgresStore::open(url, &Options::default()).await.expect("opens"));
        let jobs = Jobs::new(store.clone(), Bus::new(), Arc::new(Metrics::default()));
        let (process, stop) = (ProcessId::random(), CancellationToken::new());
        let mut spec = QueueSpec::new("load", Arc::new(Tells));
        // A claim whose COMMIT was lost in a crash is nobody's until its lock ends.
        spec.lock = Duration::from_secs(3);
        let upkeep = Upkeep::new(jobs.clone(), process, std::slice::from_ref(&spec), Retention::default());
        upkeep.beat().await.expect("beats");
        let worker =
            Worker { jobs: jobs.clone(), process, queues: vec![spec], grace: Duration::from_secs(5) };
        let tasks = vec![tokio::spawn(upkeep.run(stop.clone())), tokio::spawn(worker.run(stop.clone()))];
        let enough = Arc::new(AtomicBool::new(false));
        let callers = (0..16).map(|_| tokio::spawn(enqueue(jobs.clone(), enough.clone()))).collect();
        Self { jobs, refused: Vec::new(), store, enough, callers, stop, tasks }
    }

    /// Health tells the truth, and whoever asks now is refused at once: also while all that was under way waits to hear
    /// what became of its COMMIT.
    async fn is_away(&mut self) {
        let asked = Instant::now();
        assert!(self.store.health().await.is_err());
        let job = NewJob::new("load", JobId::new().to_string());
        self.refused.push(job.id);
        let refused = self.jobs.enqueue(vec![job]).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
        assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    }

    /// What was acknowledged is worked exactly once, what was refused is not there.
    async fn end(self, longest_outage: Duration) {
        self.enough.store(true, Ordering::Relaxed);
        let (store, mut made, mut refused) = (self.store, 0, self.refused.len());
        for id in &self.refused {
            assert!(store.job(*id).await.expect("reads").is_none(), "refused, and yet there");
        }
        for caller in self.callers {
            let told = caller.await.expect("ends");
            // Only whoever was cut off at COMMIT waits, to be told what became of it.
            let patience = longest_outage + Duration::from_secs(5);
            assert!(told.slowest < patience, "{:?}, away for {longest_outage:?}", told.slowest);
            for id in &told.made {
                until_worked(&store, *id).await;
                let told_of = store.timeline(format!("load:{id}"), None, 10).await.expect("reads");
                assert_eq!(told_of.len(), 1, "worked exactly once");
            }
            for id in &told.refused {
                assert!(store.job(*id).await.expect("reads").is_none(), "refused, and yet there");
            }
            made += told.made.len();
            refused += told.refused.len();
        }
        println!("{made} made and worked once, {refused} refused");
        assert!(made > 100 && refused > 0);
        self.stop.cancel();
        for task in self.tasks {
            task.await.expect("ends");
        }
    }
}

/// Callers and workers have threads of their own: this one waits for the server to stop and start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_restarted_under_load_loses_and_doubles_nothing() {
    let mut server = PostgresServer::start();
    let mut load = Load::begin(&server.url()).await;
    let mut longest_outage = Duration::ZERO;
    for round in 0..4 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let outage = Instant::now();
        if round % 2 == 0 {
            server.stop();
        } else {
            server.crash();
        }
        load.is_away().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.start_again();
        until_healthy(&load.store).await;
        longest_outage = longest_outage.max(outage.elapsed());
    }
    load.end(longest_outage).await;
}

/// Whoever stands behind a batch that waits to hear of its COMMIT is refused while the server is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_behind_another_is_refused_while_postgres_is_away() {
    let mut server = PostgresServer::start();
    let store = PostgresStore::open(&server.url(), &Options::default()).await.expect("opens");
    let ahead = Batch::of(Vec::new());
    let ask = |operation| Batch::behind(vec![ahead.ahead()], vec![Request::new(operation)]);
    let new = NewReservation {
        id: ReservationId::new(),
        pickup_code: pickup_code(),
        user_id: "user".to_owned(),
        inventory_id: "box".to_owned(),
        ttl: None,
        quantity: 1,
        max_price: None,
    };
    let minutes = Duration::from_mins;
    let times = HoldTimes { usual: minutes(20), least: minutes(15), most: minutes(30), offer: minutes(10) };
    server.crash();
    assert!(store.health().await.is_err());
    for operation in [Operation::Reserve(new), Operation::Cancel(ReservationId::new())] {
        let deciding = store.decide(ask(operation), Arc::new(Rules::new(times)));
        let told = tokio::time::timeout(Duration::from_secs(5), deciding).await.expect("is told at once");
        assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
    }
}

/// The server dies, and its standby, which has all that was acknowledged, takes its place at its address. As long as the
/// address leads to a standby that is none yet, everyone is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_followed_by_its_standby_loses_and_doubles_nothing() {
    let mut first = PostgresServer::start();
    let proxy = Proxy::before(&first.url()).await.expect("listens");
    // Its tables are there before it has a standby.
    drop(PostgresStore::open(&first.url(), &Options::default()).await.expect("opens"));
    let standby = first.standby();
    let mut load = Load::begin(&proxy.url).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let outage = Instant::now();
    first.crash();
    proxy.lead_to(&standby.url()).expect("leads there");
    // What only reads is no store.
    load.is_away().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    standby.promote();
    until_healthy(&load.store).await;
    let outage = outage.elapsed();
    tokio::time::sleep(Duration::from_millis(500)).await;
    load.end(outage).await;
}
