//! A small town for `solely demo`: people who look for restaurants and tours, a bakery whose boxes sell
//! out, a catalogue of stones that is copied, and the troubles that make it worth watching.
//!
//! Everyone here is a client like any other: they speak HTTP to the server, a few dozen requests a second
//! at most, and the upstreams are the sandbox's. Nothing reaches beyond this machine.
//!
//! | file | who | trouble |
//! |---|---|---|
//! | `places` | guests search, everyone for the same places | the finder throttles now and then |
//! | `tours` | travellers search, one plugin ages quickly | the other plugin fails for a while |
//! | `bakery` | a sale that sells out, holds that lapse | more buyers than boxes |
//! | `stones` | a feed that is copied again and again | a partition fails |
//! | `tills` | leases that are held, and waited for | – |
//! | `mortal` | a second worker | it dies with its work in hand |

mod bakery;
pub(crate) mod config;
pub(crate) mod mortal;
mod places;
mod stones;
mod tills;
mod tours;

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use solely_core::upstream::http::{self, Tls};
use solely_sandbox::Sandbox;
use solely_sandbox::catalogue::Catalogue;
use solely_sandbox::mood::Mood;
use tokio_util::sync::CancellationToken;

/// The upstreams, each with moods of its own.
pub(crate) struct Beside {
    pub(crate) finder: Upstream,
    pub(crate) tours: Upstream,
    pub(crate) boats: Upstream,
    pub(crate) stones: Upstream,
}

/// A sandbox and where it is.
pub(crate) struct Upstream {
    pub(crate) sandbox: Sandbox,
    pub(crate) address: SocketAddr,
}

impl Upstream {
    async fn start(stones: usize, mood: Mood) -> std::io::Result<Self> {
        let sandbox = Sandbox::new(Catalogue::of(stones, 1));
        sandbox.set_mood(mood);
        let address = sandbox.start(0).await?;
        Ok(Self { sandbox, address })
    }
}

impl Beside {
    pub(crate) async fn start() -> std::io::Result<Self> {
        let slow = |latency_ms| Mood { latency_ms, ..Mood::default() };
        Ok(Self {
            finder: Upstream::start(0, places::mood()).await?,
            tours: Upstream::start(0, slow(350)).await?,
            boats: Upstream::start(0, slow(500)).await?,
            stones: Upstream::start(stones::RECORDS, slow(60)).await?,
        })
    }
}

/// What everyone in town shares.
pub(crate) struct Town {
    pub(crate) beside: Beside,
    url: String,
    client: reqwest::Client,
    stop: CancellationToken,
}

impl Town {
    pub(crate) fn new(server: SocketAddr, beside: Beside, stop: CancellationToken) -> anyhow::Result<Self> {
        let client = http::builder(Tls::Nobody).timeout(PATIENCE).build()?;
        Ok(Self { beside, url: format!("http://{server}"), client, stop })
    }

    /// Everyone goes about their day until the town is closed.
    pub(crate) fn open(self) -> impl Future<Output = ()> {
        let stop = self.stop.clone();
        let day = async move {
            self.awake().await;
            tokio::join!(
                places::guests(&self),
                tours::travellers(&self),
                tours::bad_days(&self),
                bakery::day(&self),
                stones::copied_again_and_again(&self),
                tills::shifts(&self),
            );
        };
        let day = tokio::spawn(stop.run_until_cancelled_owned(day));
        async move {
            let _ = day.await;
        }
    }

    /// Waits until the server answers.
    async fn awake(&self) {
        while self.client.get(format!("{}/readyz", self.url)).send().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asks the server; what it answered. A demo that stops meanwhile answers nothing.
    async fn ask(&self, method: reqwest::Method, path: &str, body: Option<Value>) -> Answer {
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let Ok(answer) = request.send().await else { return Answer { status: 0, body: Value::Null } };
        Answer { status: answer.status().as_u16(), body: answer.json().await.unwrap_or_default() }
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask(reqwest::Method::POST, path, Some(body)).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask(reqwest::Method::GET, path, None).await
    }
}

/// How long anyone waits for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the server said.
struct Answer {
    status: u16,
    body: Value,
}

impl Answer {
    fn is_ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    fn text(&self, field: &str) -> Option<String> {
        self.body[field].as_str().map(str::to_owned)
    }
}

/// One of these, by chance; the first ones more often, as it is with people and restaurants.
fn favourite<T: Copy>(of: &[T]) -> T {
    let chance: f64 = rand::random::<f64>().powi(2);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let nth = (chance * of.len() as f64) as usize;
    of[nth.min(of.len() - 1)]
}

/// A time between two, by chance.
fn between(least_ms: u64, most_ms: u64) -> Duration {
    let spread = most_ms.saturating_sub(least_ms).max(1);
    Duration::from_millis(least_ms + rand::random::<u64>() % spread)
}

/// What is printed when everything is up.
pub(crate) fn guide(server: SocketAddr, beside: &Beside) -> String {
    let (finder, tours, boats, stones) =
        (beside.finder.address, beside.tours.address, beside.boats.address, beside.stones.address);
    format!(
        "solely demo: one server, four systems, sample traffic. Nothing leaves this machine.

  dashboard     http://{server}/
  restaurants   http://{server}/demo/restaurants    badges turn as links are found
  box shop      http://{server}/demo/shop           open it in two windows
  API           http://{server}/docs

Look for
  /runs         a partition that has failed: press Retry
  /jobs         its dead letter: press Redrive
  /upstreams    a finder that throttles for a few seconds, a plugin that fails for a while
  /boxes        a sale that sells out, holds that count down and lapse
  /explain      any key from any page: who asked, who won, what failed, what happens next

Upstreams beside it, which can be made slow or ill (see POST /_mood of `solely sandbox`)
  finder  http://{finder}    tours  http://{tours}    boats  http://{boats}    stones  http://{stones}

Ctrl-C stops it and removes its store."
    )
}
