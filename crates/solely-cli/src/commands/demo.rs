//! `solely demo`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use solely_server::Runtime;
use tokio::net::TcpListener;

use super::Failed;
use super::serve::{app, stop_on_signal};
use crate::demo::{self, Beside, Town};
use crate::logging;
use crate::output::say;

/// Serves, with upstreams and traffic beside it, until it is told to stop.
pub(crate) fn run(listen: SocketAddr) -> Result<(), Failed> {
    if !listen.ip().is_loopback() {
        let problem =
            format!("`--listen` is {listen}, but the demo knows no keys: only a loopback address is served");
        return Err(Failed::Config(problem));
    }
    // Upstreams fail and a worker dies: that is no news here.
    logging::start_at("error");
    let folder = tempfile::Builder::new().prefix("solely-demo-").tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await.with_context(|| {
            format!("cannot listen on {listen}; `--listen 127.0.0.1:8000` takes another port")
        })?;
        let listen = listener.local_addr()?;
        let beside = Beside::start().await?;
        let config = demo::config::of(listen, folder.path(), &beside);
        let app = app(&config).await?.with(|app| app.demo = true);
        let remembering = app.remember();
        let stop = stop_on_signal()?;
        let town = Town::new(listen, beside, stop.clone())?;
        say!("{}", demo::guide(listen, &town.beside));
        let mortal = demo::mortal::keep_replacing(app.clone(), stop.clone());
        let traffic = town.open();
        let runtime = Runtime { retention: (&config.retention).into(), grace: GRACE };
        solely_server::serve(listener, app, runtime, stop).await;
        traffic.await;
        let _ = mortal.await;
        drop(remembering);
        Ok(())
    })
}

/// Whoever stops a demo does not want to wait.
const GRACE: Duration = Duration::from_secs(3);
