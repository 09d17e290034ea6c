//! A proxy in front of PostgreSQL that cuts connections: all of them at once, or the one that
//! commits next, before its COMMIT arrives or between it and its answer, which may also be that
//! the server ends. A sale, which is one statement and commits by itself, is cut as a COMMIT is.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to the next COMMIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cut {
    /// It passes.
    Not = 0,
    /// It never reaches the server.
    Before = 1,
    /// The server commits; its answer is lost.
    After = 2,
    /// The server commits, and says that it ends: as it does if the log was written and what comes behind it has no room.
    Panic = 3,
}

/// What a server says that has no room for its log and ends.
const PANIC: &[u8] = b"E\x00\x00\x00\x41SPANIC\0VPANIC\0C53100\0Mno space left for the write-ahead log\0\0";

/// A proxy, and the switch for its next COMMIT.
pub struct Proxy {
    /// The server's URL, through the proxy.
    pub url: String,
    next: Arc<AtomicU8>,
    all: watch::Sender<()>,
    refuses: Arc<AtomicBool>,
    server: Arc<Mutex<String>>,
}

/// The host and the port of a URL.
fn address_of(server_url: &str) -> Result<(String, &str)> {
    let (place, database) = server_url.rsplit_once('/').context("the URL names a database")?;
    Ok((place.rsplit_once('@').context("the URL names a user")?.1.to_owned(), database))
}

impl Proxy {
    /// Listens in front of the server of a URL.
    pub async fn before(server_url: &str) -> Result<Self> {
        let (server, database) = address_of(server_url)?;
        let server = Arc::new(Mutex::new(server));
        let behind = server.clone();
        let listener = TcpListener::bind(("127.0.0.1", solely_testing::free_port())).await?;
        let address: SocketAddr = listener.local_addr()?;
        let next = Arc::new(AtomicU8::new(Cut::Not as u8));
        let (all, cut_all) = watch::channel(());
        let (switch, refuses) = (next.clone(), Arc::new(AtomicBool::new(false)));
        let closed = refuses.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if closed.load(Ordering::SeqCst) {
                    continue;
                }
                // While the server is away, connections end as they would without a proxy.
                let server = behind.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                tokio::spawn(pass(client, server, switch.clone(), cut_all.clone()));
            }
        });
        Ok(Self { url: format!("postgres://postgres@{address}/{database}"), next, all, refuses, server })
    }

    /// Leads to another server from now on, as an address that moves does.
    pub fn lead_to(&self, server_url: &str) -> Result<()> {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = address_of(server_url)?.0;
        self.cut_all();
        Ok(())
    }

    /// Says what happens to the next COMMIT.
    pub fn cut(&self, cut: Cut) {
        self.next.store(cut as u8, Ordering::SeqCst);
    }

    /// Whether the next COMMIT is still to be cut.
    pub fn will_cut(&self) -> bool {
        self.next.load(Ordering::SeqCst) != Cut::Not as u8
    }

    /// Takes no new connections, or takes them again.
    pub fn refuse(&self, refuse: bool) {
        self.refuses.store(refuse, Ordering::SeqCst);
    }

    /// Cuts every connection there is.
    pub fn cut_all(&self) {
        self.all.send_replace(());
    }
}

/// Passes bytes both ways until one side ends or a cut comes.
async fn pass(client: TcpStream, server: TcpStream, next: Arc<AtomicU8>, mut cut_all: watch::Receiver<()>) {
    cut_all.mark_unchanged();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let panics = Arc::new(AtomicBool::new(false));
    let mut back = tokio::spawn(copy(from_server, to_client, panics.clone()));
    // When one of these ends, both ways are closed and the client has no answer.
    tokio::select! {
        () = forth(from_client, to_server, &next, &back, &panics) => {
            if panics.load(Ordering::SeqCst) {
                let _ = (&mut back).await;
            }
        }
        _ = cut_all.changed() => {}
    }
    back.abort();
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, panics: Arc<AtomicBool>) {
    let mut buffer = [0; 8192];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if panics.load(Ordering::SeqCst) {
            let _ = to.write_all(PANIC).await;
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn forth(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    next: &AtomicU8,
    back: &tokio::task::JoinHandle<()>,
    panics: &AtomicBool,
) {
    let mut buffer = [0; 8192];
    // How calls begin that sell: they commit by themselves.
    let mut sales = Vec::new();
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let has = |text: &[u8]| buffer[..read].windows(text.len()).position(|bytes| bytes == text);
        // A statement is sent once, with the name that it is called by from then on.
        for sale in [b"SELECT solely_sell(".as_slice(), b"SELECT solely_sell_one("] {
            sales.extend(has(sale).and_then(|at| called(&buffer[..at])));
        }
        let sells = sales.iter().any(|sale| has(sale).is_some());
        let commit = sells || has(b"COMMIT").is_some();
        let cut = if commit { next.swap(Cut::Not as u8, Ordering::SeqCst) } else { Cut::Not as u8 };
        if cut == Cut::Before as u8 {
            return;
        }
        if cut == Cut::After as u8 {
            // The answer is not passed on, but the server gets what it needs to commit.
            back.abort();
        }
        panics.store(cut == Cut::Panic as u8, Ordering::SeqCst);
        if to.write_all(&buffer[..read]).await.is_err() || cut != Cut::Not as u8 {
            let _ = to.flush().await;
            return;
        }
    }
}

/// How the call of a statement begins whose text comes behind this: with its name between zeros.
fn called(before: &[u8]) -> Option<Vec<u8>> {
    let name = before.strip_suffix(&[0])?;
    let letters = name.iter().rev().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    let name = &name[name.len() - letters..];
    Some([&[0], name, &[0]].concat())
}
