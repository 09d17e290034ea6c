//! One caller does the work; everyone gets the answer. The library.
//!
//! [`Solely::open`] opens a store, SQLite or PostgreSQL; what stands on it are durable unique jobs, leases and cache
//! entries, and the four systems: [`enrich`], [`products`], [`reserve`] and [`feed`]. A program brings its own
//! [`Handler`]s, [`Finder`]s, [`Plugin`]s and [`Source`]s; [`Solely::start`] sets everything to work in the background
//! of its Tokio runtime, and [`Running::shutdown`] ends it in order.
//!
//! ```
//! use solely::{Delivery, Done, Enqueued, Failure, Handler, NewJob, Solely, async_trait};
//! use tokio::sync::mpsc;
//!
//! struct Greet(mpsc::UnboundedSender<String>);
//!
//! #[async_trait]
//! impl Handler for Greet {
//!     async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
//!         let _ = self.0.send(format!("hello, {}", delivery.job.key));
//!         Ok(Done::default())
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (greeted, mut greetings) = mpsc::unbounded_channel();
//! let solely = Solely::builder("sqlite::memory:").handler("greetings", Greet(greeted)).open().await?;
//!
//! // Two callers want the same thing done. There is one job.
//! let first = solely.jobs().enqueue(vec![NewJob::new("greetings", "world")]).await?;
//! let second = solely.jobs().enqueue(vec![NewJob::new("greetings", "world")]).await?;
//! assert_eq!(first, [Enqueued::Created]);
//! assert!(matches!(second[..], [Enqueued::Duplicate { .. }]));
//!
//! let running = solely.start();
//! assert_eq!(greetings.recv().await.as_deref(), Some("hello, world"));
//! running.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! | feature | what it adds |
//! |---|---|
//! | `sqlite` (default) | `sqlite:FILE` and `sqlite::memory:`; one process per file |
//! | `postgres` | `postgres://user:password@host/database`; as many processes as there are |
//! | `redis` | [`Builder::redis`]: copies, hints and wake-ups beside the store |

/// What the documents show of Rust is compiled and run with the tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../docs/LIBRARY.md")]
    struct Library;

    #[doc = include_str!("../../../README.md")]
    struct Readme;
}

mod builder;
mod engine;
mod error;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use solely_core::systems::{Systems, Work, Working};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use async_trait::async_trait;
pub use builder::Builder;
pub use error::OpenError;

pub use solely_core::cache::{self, Cache, EntryKey, Lifetimes, Overwrite, PutEntry};
pub use solely_core::config::{self, Config, PluginConfig, ProviderConfig, SourceConfig, Span};
pub use solely_core::enrich::finder::{Candidate, Finder, Findings, Place};
pub use solely_core::enrich::{self, Enrich};
pub use solely_core::event;
pub use solely_core::feed::source::{Found, Scope, Source, Window};
pub use solely_core::feed::{self, Feed};
pub use solely_core::job::{self, Enqueued, Job, JobState, NewJob};
pub use solely_core::lease::{self, LeaseRequest, Leases};
pub use solely_core::products::catalogue::Catalogue;
pub use solely_core::products::plugin::{Brought, Plugin, PluginCall};
pub use solely_core::products::{self, Products};
pub use solely_core::queue::{self, Jobs};
pub use solely_core::reserve::{self, Reserve};
pub use solely_core::upstream::{self, CallFailed, UpstreamError};
pub use solely_core::worker::{Backoff, Delivery, Done, Failure, Handler, QueueSpec};
pub use solely_core::{
    Clock, Commit, Effect, JobId, Json, LeaseId, ProcessId, ReservationId, RunId, Settled, Store, StoreError,
    Timestamp, WaitId,
};

/// A store that is open, and all that stands on it. Clones share everything.
#[derive(Clone)]
pub struct Solely {
    systems: Systems,
    config: Arc<Config>,
    queues: Arc<[QueueSpec]>,
    started: Arc<AtomicBool>,
}

impl Solely {
    /// Opens `sqlite:FILE`, `sqlite::memory:` or `postgres://…`, and nothing else is said.
    pub async fn open(url: &str) -> Result<Self, OpenError> {
        Self::builder(url).open().await
    }

    /// A store to be opened, with handlers, finders, plugins and sources of the program's own.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// Durable unique jobs.
    pub fn jobs(&self) -> &Jobs {
        &self.systems.jobs
    }

    /// Named rights with an end and a growing fence.
    pub fn leases(&self) -> &Leases {
        &self.systems.leases
    }

    /// Entries with three ages.
    pub fn cache(&self) -> &Cache {
        &self.systems.cache
    }

    /// Provider links of places.
    pub fn enrich(&self) -> &Enrich {
        &self.systems.enrich
    }

    /// Product searches.
    pub fn products(&self) -> &Products {
        &self.systems.products
    }

    /// Boxes that are reserved.
    pub fn reserve(&self) -> &Reserve {
        &self.systems.reserve
    }

    /// Sources that are copied.
    pub fn feed(&self) -> &Feed {
        &self.systems.feed
    }

    /// The store itself: listings, timelines, checks.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.systems.store
    }

    /// This process, as the store knows it: the owner of leases that end with it.
    pub fn process(&self) -> ProcessId {
        self.systems.process
    }

    /// Everything together.
    pub fn systems(&self) -> &Systems {
        &self.systems
    }

    /// Works the queues, and does all that goes on by itself (heartbeats, rescue, pruning, sweeping of holds, runs that are
    /// due), in tasks of the Tokio runtime that it is called in.
    ///
    /// # Panics
    ///
    /// The second time, also on a clone: a process has one heartbeat, and work that ends would end that of the other.
    pub fn start(&self) -> Running {
        assert!(!self.started.swap(true, Ordering::Relaxed), "`start` is called once for what was opened");
        let stop = CancellationToken::new();
        let working = self.systems.work(Work {
            more: self.queues.to_vec(),
            retention: (&self.config.retention).into(),
            grace: self.config.server.shutdown_grace.0,
            stop: stop.clone(),
        });
        Running { stop: stop.drop_guard(), working, systems: self.systems.clone() }
    }

    /// Finishes what is under way in the store, and closes it: for programs that never start. Later calls are refused.
    pub async fn close(&self) {
        self.systems.close().await;
    }
}

/// Work that goes on in the background. Dropped, it is told to stop, and nobody waits for it.
#[must_use = "dropped, it stops"]
pub struct Running {
    stop: DropGuard,
    working: Working,
    systems: Systems,
}

impl Running {
    /// Takes no new job, lets deliveries finish for the grace period (`server.shutdown_grace`, 30 s unless it is configured),
    /// releases the rest, so that others have them at once, and closes the store. Later calls to it are refused.
    pub async fn shutdown(self) {
        drop(self.stop);
        self.working.ended().await;
        self.systems.close().await;
    }
}
