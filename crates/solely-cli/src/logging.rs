//! Logs: pretty on a terminal, one JSON object a line elsewhere. `RUST_LOG` turns them up or
//! down.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Sets logging up for a long-running command.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        logs.with_target(false).init();
    } else {
        logs.json().flatten_event(true).init();
    }
}
