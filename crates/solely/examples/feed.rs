//! A source of one's own, copied one page per message: `cargo run -p solely --example feed`.

use std::time::Duration;

use solely::feed::{Asked, PinWhat};
use solely::{
    CallFailed, Found, Json, Scope, Solely, Source, SourceConfig, UpstreamError, Window, async_trait,
};

/// A thousand stones. The price of a stone is its number.
struct Stones;

impl Stones {
    fn within(scope: &Scope) -> impl Iterator<Item = i64> {
        (1..=1_000).filter(move |price| (scope.range.min..=scope.range.max).contains(price))
    }
}

#[async_trait]
impl Source for Stones {
    async fn count(&self, scope: &Scope) -> Result<u64, CallFailed<UpstreamError>> {
        Ok(Self::within(scope).count() as u64)
    }

    async fn page(&self, scope: &Scope, window: &Window) -> Result<Vec<Found>, CallFailed<UpstreamError>> {
        let from = usize::try_from(window.offset).map_err(|_| CallFailed::permanent("too far"))?;
        let page = Self::within(scope).skip(from).take(window.limit as usize);
        let found = |price| Found {
            id: format!("stone-{price:04}"),
            payload: Json::of(&format!("a stone for {price}")),
            price: Some(price),
        };
        Ok(page.map(found).collect())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = SourceConfig {
        page_limit: 50,
        max_price: 1_000,
        min_records_per_partition: 200,
        rate: None,
        ..SourceConfig::default()
    };
    let solely = Solely::builder("sqlite::memory:").source_with("stones", config, Stones).open().await?;
    let running = solely.start();
    let run = solely.feed().start(Asked { source: "stones".to_owned(), ..Asked::default() }).await?;
    let ended = loop {
        let state = solely.store().run(run).await?.ok_or("no run")?;
        if !state.run.status.is_active() {
            break state;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    println!("the run is {} with {} partitions", ended.run.status.word(), ended.partitions.len());

    let current = PinWhat::Current("stones".to_owned());
    let mut stream = solely.feed().stream(current).await?.ok_or("nothing is current")?;
    let (mut records, mut last) = (0, String::new());
    loop {
        let some = stream.next().await?;
        let Some(record) = some.last() else { break };
        (records, last) = (records + some.len(), record.id.clone());
    }
    println!("{records} records are current, the last is {last}");
    running.shutdown().await;
    Ok(())
}
