//! The HTTP surface. It never names an engine.
//!
//! All routes are on one screen in [`router()`]; a handler extracts, calls one thing of
//! `solely-core`, and answers, in about ten lines. Errors are values ([`ApiError`]); the
//! outermost layer (`request_id`) turns them into the one error body of the contract, so that
//! every error, also of an unknown route or a wrong method, has the same shape.

mod access;
mod error;
mod extract;
mod gate;
mod limit;
mod listen;
mod live;
mod openapi;
mod origin;
mod page;
mod request_id;
mod router;
mod routes;
mod serve;
mod session;
mod stream;
mod ws;

use std::sync::Arc;

use solely_core::alert::Alerts;
use solely_core::systems::Systems;
use tokio_util::sync::CancellationToken;

pub use access::{Access, Rule, Rules, rules};
pub use error::ApiError;
pub use live::Remembering;
pub use router::{openapi, router};
pub use serve::{Runtime, serve};

/// What handlers work with. Clones share it, and cost next to nothing: every layer and handler of every request has one.
#[derive(Clone)]
pub struct App(Arc<Shared>);

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// What all clones of an [`App`] share: the systems, and what the surface adds to them.
#[derive(Clone)]
pub struct Shared {
    /// The systems of this process.
    pub systems: Systems,
    /// What an operator should look at.
    pub alerts: Alerts,
    /// How callers are known, and what they may do.
    pub access: Access,
    /// Other origins that browsers may call and connect from.
    pub cors_origins: Vec<String>,
    /// The largest body of a request, in bytes.
    pub max_body: usize,
    /// Cancelled when the server stops: sockets close.
    pub stop: CancellationToken,
    /// Whether this is `solely demo`, which has pages of its own.
    pub demo: bool,
    openapi: Arc<str>,
    load: limit::Load,
    sockets: ws::Sockets,
    live: live::Live,
}

impl std::ops::Deref for Shared {
    type Target = Systems;

    fn deref(&self) -> &Systems {
        &self.systems
    }
}

/// What an app is made of.
pub struct Parts {
    /// The systems.
    pub systems: Systems,
    /// How callers are known.
    pub access: Access,
    /// Other origins that browsers may call and connect from.
    pub cors_origins: Vec<String>,
    /// The largest body of a request, in bytes.
    pub max_body: usize,
    /// Requests under way; one more is refused.
    pub max_in_flight: usize,
    /// A queue with more jobs that wait is deep.
    pub queue_depth: u64,
}

impl App {
    /// An app of these parts.
    pub fn new(parts: Parts) -> Self {
        let Parts { systems, access, cors_origins, max_body, max_in_flight, queue_depth } = parts;
        Self(Arc::new(Shared {
            alerts: Alerts::new(systems.metrics.clone(), queue_depth),
            systems,
            access,
            cors_origins,
            max_body,
            stop: CancellationToken::new(),
            demo: false,
            openapi: "{}".into(),
            load: limit::Load::new(max_in_flight),
            sockets: ws::Sockets::default(),
            live: live::Live::default(),
        }))
    }

    /// The same, but for what this changes. For the start: whoever has a clone already keeps what it has.
    #[must_use]
    pub fn with(self, change: impl FnOnce(&mut Shared)) -> Self {
        let mut shared = Arc::unwrap_or_clone(self.0);
        change(&mut shared);
        Self(Arc::new(shared))
    }

    /// Remembers what is counted for dashboards that are opened later, as long as this is held.
    pub fn remember(&self) -> Remembering {
        self.live.remember(self)
    }
}
