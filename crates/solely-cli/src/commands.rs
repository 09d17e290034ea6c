//! One file a command.

pub(crate) mod backup;
pub(crate) mod check;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod matching;
pub(crate) mod migrate;
pub(crate) mod runs;
pub(crate) mod sandbox;
pub(crate) mod serve;
pub(crate) mod torture;
pub(crate) mod warm;

/// Why a command did not succeed.
pub(crate) enum Failed {
    /// The configuration is wrong: exit 2.
    Config(String),
    /// Something went wrong: exit 1.
    Run(anyhow::Error),
    /// A check found something, and has said what: exit 1.
    Violations,
}

impl<E: Into<anyhow::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Run(error.into())
    }
}

/// A runtime for commands that do one thing.
fn block_on<T>(work: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
