//! `solely sandbox`.

use std::net::SocketAddr;

use anyhow::Context as _;
use solely_sandbox::catalogue::Catalogue;
use solely_sandbox::{Sandbox, nivoda};
use tokio::net::TcpListener;

use super::Failed;
use super::serve::stop_on_signal;
use crate::output::say;

/// Serves the sandbox upstreams until it is told to stop.
pub(crate) fn run(listen: SocketAddr, records: usize, record_bytes: usize) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut catalogue = Catalogue::of(records, 1);
        catalogue.record_bytes = record_bytes;
        let sandbox = Sandbox::new(catalogue);
        let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
        let address = listener.local_addr()?;
        say!("a source of {records} records     kind = \"http\"    url = \"http://{address}/feed\"");
        say!(
            "the same as Nivoda has them   kind = \"nivoda\"  url = \"http://{address}/nivoda\"  username = \"{}\"  \
             password = \"{}\"",
            nivoda::USERNAME,
            nivoda::PASSWORD
        );
        say!("a finder of links             finder = \"http\"  url = \"http://{address}/finder\"");
        say!("how it is called              curl http://{address}/_calls");
        say!(
            "how it behaves                curl http://{address}/_mood -H 'content-type: application/json' -d \
             '{{\"latencyMs\": 50, \"errorsPercent\": 2}}'"
        );
        sandbox.serve(listener, stop_on_signal()?.cancelled_owned()).await?;
        Ok(())
    })
}
