//! A hot sale that ten thousand watch, beside one that nobody does.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::future::try_join_all;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::Scale;
use crate::enrich::{SOCKETS, subscribed, text};
use crate::report::{Goal, Report};
use crate::reserve::{purchases, stocked};

const ALONE: &str = "hot item through HTTP, nobody watches";

pub(crate) async fn run(report: &mut Report, scale: Scale, solely: &Path) -> Result<()> {
    let (alone, watched) = (stocked(solely).await?, stocked(solely).await?);
    let address = |base: &str| base.trim_start_matches("http://").to_owned();
    let (alone, shop) = (address(alone.base()), address(watched.base()));
    let at: SocketAddr = shop.parse()?;
    let mut open = Vec::with_capacity(SOCKETS);
    for _ in 0..SOCKETS / 100 {
        let topic = r#""channel":"inventory","inventoryId":"box""#;
        open.extend(try_join_all((0..100).map(|_| subscribed(at, 9, topic))).await?);
    }
    let (left, heard) = (watch::Sender::new(u64::MAX), Arc::new(AtomicUsize::new(0)));
    let watchers = open.into_iter().map(|socket| {
        let (left, heard) = (left.clone(), heard.clone());
        tokio::spawn(async move { listen(socket, &left, &heard).await })
    });
    let watchers: Vec<_> = watchers.collect();
    let (mut of_alone, mut of_watched, mut patches) = (vec![], vec![], vec![]);
    for _ in 0..scale.rounds {
        of_alone.push(purchases(&alone, scale.operations).await?);
        let (before, began) = (heard.load(Ordering::Relaxed), Instant::now());
        of_watched.push(purchases(&shop, scale.operations).await?);
        let count = heard.load(Ordering::Relaxed) - before;
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        patches.push(count as f64 / SOCKETS as f64 / began.elapsed().as_secs_f64());
    }
    until_true(&shop, &left).await?;
    drop(watchers);
    report.add(ALONE, "reservations/s", of_alone, Goal::None);
    let goal = Goal::AtLeast { mark: "watchers", limit: ALONE, times: 0.9 };
    report.add("… ten thousand watch", "reservations/s", of_watched, goal);
    report.add(
        "… patches to each of them",
        "a second",
        patches,
        Goal::AtMost { mark: "watchers", most: 10.0 },
    );
    Ok(())
}

/// Hears patches until it is dropped: each says what is left, and it never grows here.
async fn listen(mut socket: TcpStream, left: &watch::Sender<u64>, heard: &AtomicUsize) -> Result<()> {
    loop {
        let patch = text(&mut socket).await?;
        // Several may come in one read; the last one counts.
        let last = patch.rsplit(r#""remainingQuantity":"#).next().unwrap_or_default();
        let digits: String = last.chars().take_while(char::is_ascii_digit).collect();
        let Ok(says) = digits.parse() else { bail!("{patch}") };
        heard.fetch_add(1, Ordering::Relaxed);
        left.send_if_modified(|left| {
            says < *left && {
                *left = says;
                true
            }
        });
    }
}

/// The last patch is the truth.
async fn until_true(shop: &str, left: &watch::Sender<u64>) -> Result<()> {
    let client = solely_core::upstream::http::builder(solely_core::upstream::http::Tls::Nobody).build()?;
    let shown: serde_json::Value =
        client.get(format!("http://{shop}/v1/inventory/box")).send().await?.json().await?;
    let truth = shown["remainingQuantity"].as_u64().context("a quantity")?;
    let mut heard = left.subscribe();
    let told = heard.wait_for(|told| *told == truth);
    tokio::time::timeout(Duration::from_secs(10), told).await.context("the last patch is the truth")??;
    Ok(())
}
