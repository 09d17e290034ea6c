//! What is particular to the embedded engine: the writer, the file, the cost of things. What
//! every engine promises is in `solely-conformance`.

mod batch;
mod blocked;
mod cost;
mod file;
mod guard;
mod others;

use std::sync::Arc;
use std::time::Duration;

use solely_core::job::{ClaimReply, ClaimRequest, Claimed, JobStore as _, NewJob};
use solely_core::liveness::{Beat, LivenessStore as _};
use solely_core::{Json, ProcessId};
use solely_sqlite::{Options, SqliteStore};
use tempfile::TempDir;

/// A store in a folder of its own.
struct Home {
    folder: TempDir,
    store: Arc<SqliteStore>,
}

impl Home {
    fn new(options: &Options) -> Self {
        let folder = TempDir::new().expect("a folder");
        let store = Arc::new(SqliteStore::open(&url(&folder), options).expect("opens"));
        Self { folder, store }
    }

    /// The same file, opened again with other options.
    fn reopen(self, options: &Options) -> Self {
        drop(self.store);
        let store = Arc::new(SqliteStore::open(&url(&self.folder), options).expect("opens"));
        Self { folder: self.folder, store }
    }
}

fn url(folder: &TempDir) -> String {
    format!("sqlite:{}", folder.path().join("solely.db").display())
}

/// A job with a payload of so many bytes.
fn job(key: impl Into<String>, bytes: usize) -> NewJob {
    let mut job = NewJob::new("queue", key);
    job.payload = Json::of(&"x".repeat(bytes));
    job
}

async fn process(store: &SqliteStore) -> ProcessId {
    let process = ProcessId::random();
    store.beat(Beat { process, dead_after: Duration::from_secs(5) }).await.expect("beats");
    process
}

async fn claim(store: &SqliteStore, process: ProcessId, limit: usize) -> Vec<Claimed> {
    let request = ClaimRequest { process, queue: "queue".to_owned(), limit, lock: Duration::from_secs(60) };
    match store.claim(request).await.expect("claims") {
        ClaimReply::Jobs { jobs, .. } => jobs,
        ClaimReply::NotAlive => panic!("it has beaten"),
    }
}
