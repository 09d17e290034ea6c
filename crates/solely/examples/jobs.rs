//! A durable unique job with a handler of one's own: `cargo run -p solely --example jobs`.
//!
//! The first delivery fails and is tried again. The second returns what should become true; that, the job's completion
//! and the next job are one transaction.

use std::sync::Arc;
use std::time::Duration;

use solely::{
    Backoff, Delivery, Done, Effect, EntryKey, Failure, Handler, Json, Lifetimes, NewJob, Overwrite,
    PutEntry, QueueSpec, Solely, async_trait,
};
use tokio::sync::mpsc;

/// Makes a small picture of a large one, which fails the first time.
struct Thumbnails;

#[async_trait]
impl Handler for Thumbnails {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let picture = &delivery.job.key;
        if delivery.job.attempts == 1 {
            println!("{picture}: the disk is busy");
            return Err(Failure::transient("the disk is busy"));
        }
        let day = Duration::from_secs(86_400);
        let small = PutEntry {
            key: EntryKey::new("thumbnails", picture),
            value: Json::of(&format!("small {picture}")),
            lifetimes: Lifetimes { fresh: day, stale: day, keep: day },
            overwrite: Overwrite::Always,
            told: None,
        };
        let next_jobs = vec![NewJob::new("mail", picture)];
        Ok(Done { effect: Effect::PutEntries(vec![small]), next_jobs, ..Done::default() })
    }
}

/// Tells somebody.
struct Mail(mpsc::UnboundedSender<String>);

#[async_trait]
impl Handler for Mail {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let _ = self.0.send(delivery.job.key.clone());
        Ok(Done::default())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (sent, mut mails) = mpsc::unbounded_channel();
    let backoff = Backoff { first: Duration::from_millis(20), longest: Duration::from_secs(1) };
    let thumbnails = QueueSpec { backoff, ..QueueSpec::new("thumbnails", Arc::new(Thumbnails)) };
    let solely =
        Solely::builder("sqlite::memory:").queue(thumbnails).handler("mail", Mail(sent)).open().await?;

    for _ in 0..2 {
        let outcome = solely.jobs().enqueue(vec![NewJob::new("thumbnails", "cat.jpg")]).await?;
        println!("enqueued: {:?}", outcome[0]);
    }
    let running = solely.start();
    let picture = mails.recv().await.ok_or("no mail")?;
    println!("{picture}: a mail says that it is there");

    let entry = solely.cache().read(vec![EntryKey::new("thumbnails", &picture)]).await?.remove(0);
    println!("{picture}: {}", entry.ok_or("no entry")?.value.as_str());
    running.shutdown().await;
    Ok(())
}
