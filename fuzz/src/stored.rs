//! What is read back: copies as Redis has them, and jobs as another version may have stored them.

use std::time::Duration;

use solely_core::cache::EntryKey;
use solely_core::companion::{Form, PlainForm};
use solely_core::job::{ClaimReply, ClaimRequest, NewJob};
use solely_core::store::Retention;
use solely_core::upkeep::Upkeep;
use solely_core::worker::Delivery;
use solely_core::{Clock, Json};

use crate::stage::{CONFIG, Stage, on_stage};

pub(crate) fn fuzz(data: &[u8]) {
    let Some((which, rest)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    if which % 2 == 0 {
        read_copy(text);
    } else {
        on_stage(|stage| stage.runtime.block_on(work(stage, *which, text)));
    }
}

/// A copy is what it says, or is none; what is one can be written again.
fn read_copy(text: &str) {
    let config: solely_core::config::Config = toml::from_str(CONFIG).expect("a configuration");
    let mut forms = solely_core::enrich::forms(&config.enrich);
    forms.extend(solely_core::products::forms());
    let now = Clock::system().now();
    for (form, space) in forms.iter().zip(["enrich:wolt", "products:tours"]) {
        if let Some(entry) = form.read(&EntryKey::new(space, "k"), text, now) {
            let _ = form.write(&entry);
        }
    }
    if let Some(entry) = PlainForm.read(&EntryKey::new("x", "k"), text, now) {
        let _ = PlainForm.write(&entry);
    }
}

/// A job is done, or fails with a reason, and its death means something.
async fn work(stage: &Stage, which: u8, payload: &str) {
    let (store, process) = (&stage.systems.store, stage.systems.process);
    let queues = stage.systems.queues();
    let queue = &queues[usize::from(which / 2) % queues.len()];
    let upkeep = Upkeep::new(stage.systems.jobs.clone(), process, &queues, Retention::default());
    upkeep.beat().await.expect("beats");
    let mut job = NewJob::new(queue.name.clone(), uuid_like());
    job.payload = Json::copied(payload);
    store.enqueue(vec![job]).await.expect("is stored");
    let request =
        ClaimRequest { process, queue: queue.name.clone(), limit: 1, lock: Duration::from_secs(60) };
    let ClaimReply::Jobs { jobs, .. } = store.claim(request).await.expect("claims") else { return };
    for claimed in jobs {
        let _ = queue.handler.died(&claimed.job, "it died");
        let delivery = Delivery { claim: claimed.claim, job: claimed.job, stopping: Default::default() };
        let handled = tokio::time::timeout(Duration::from_secs(10), queue.handler.handle(&delivery)).await;
        assert!(handled.is_ok(), "{} has no end", queue.name);
    }
}

/// A key that nobody has had.
fn uuid_like() -> String {
    solely_core::RunId::new().to_string()
}
