//! Private Redis servers: one, one with a replica and a Sentinel, or a cluster.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::free_port;

/// Whether the programs are installed.
pub fn installed_redis() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    has("redis-server") && has("redis-cli")
}

/// A Redis server of our own. It keeps nothing on disk unless told to.
pub struct RedisServer {
    child: Option<Child>,
    port: u16,
    folder: TempDir,
    settings: Vec<String>,
}

impl RedisServer {
    /// Starts an empty one.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one that has every write on its disk before it answers.
    pub fn start_durable() -> Self {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    /// Starts one that is spoken to with TLS alone, with a certificate and its key as PEM.
    pub fn start_encrypted(certificate: &str, key: &str) -> Self {
        let mut server = Self::new(&[]);
        for (name, pem) in [("server.crt", certificate), ("server.key", key)] {
            std::fs::write(server.folder.path().join(name), pem).expect("is written");
        }
        let folder = server.folder.path().display().to_string();
        let port = server.port.to_string();
        server.settings = [
            ["--tls-port", &port],
            ["--port", "0"],
            ["--tls-auth-clients", "no"],
            ["--tls-cert-file", &format!("{folder}/server.crt")],
            ["--tls-key-file", &format!("{folder}/server.key")],
            ["--tls-ca-cert-file", &format!("{folder}/server.crt")],
        ]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect();
        server.spawn();
        server.until(|server| TcpStream::connect(("127.0.0.1", server.port)).is_ok());
        server
    }

    fn start_with(settings: &[&str]) -> Self {
        let mut server = Self::new(settings);
        server.start_again();
        server
    }

    fn new(settings: &[&str]) -> Self {
        let settings = settings.iter().map(|&word| word.to_owned()).collect();
        Self { child: None, port: free_port(), folder: TempDir::new().expect("a folder"), settings }
    }

    /// Starts it again on the same port: with what was last saved, if anything was.
    pub fn start_again(&mut self) {
        self.spawn();
        self.until(|server| server.ask("PING").is_some_and(|answer| answer.starts_with("+PONG")));
    }

    fn spawn(&mut self) {
        let mut command = mortal("redis-server");
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(self.folder.path())
            .args(&self.settings);
        self.child = Some(started(&mut command));
    }

    /// Ends it at once, as a kill or a power cut does.
    pub fn crash(&mut self) {
        if let Some(mut child) = self.child.take() {
            signal(&child, Signal::SIGKILL);
            let _ = child.wait();
        }
    }

    /// Writes what it holds to disk: the next start begins with that.
    pub fn save(&self) {
        assert!(self.ask("SAVE").is_some_and(|answer| answer.starts_with("+OK")), "Redis saves");
    }

    /// The next start begins with nothing.
    pub fn forget_saved(&self) {
        let _ = std::fs::remove_file(self.folder.path().join("dump.rdb"));
    }

    /// Stops it where it is: connections stay, and nobody answers.
    pub fn freeze(&self) {
        if let Some(child) = &self.child {
            signal(child, Signal::SIGSTOP);
        }
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        if let Some(child) = &self.child {
            signal(child, Signal::SIGCONT);
        }
    }

    /// What it answers to one command, as it is on the wire; none if it cannot be asked.
    pub fn ask(&self, command: &str) -> Option<String> {
        wire(self.port, command)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn until(&self, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !holds(self) {
            assert!(Instant::now() < deadline, "Redis is not ready");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.crash();
    }
}

/// A server, a replica of it, and a Sentinel that watches both.
pub struct RedisSentinel {
    /// The first master, and the first replica.
    pub servers: [RedisServer; 2],
    sentinel: Child,
    port: u16,
    _folder: TempDir,
}

impl RedisSentinel {
    /// Starts all three, the replica in step.
    pub fn start() -> Self {
        let master = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
        let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
        replica.until(|server| {
            server.ask("INFO replication").is_some_and(|info| info.contains("master_link_status:up"))
        });
        let (folder, port) = (TempDir::new().expect("a folder"), free_port());
        let file = folder.path().join("sentinel.conf");
        let settings = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor mymaster 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds mymaster 1000\nsentinel failover-timeout mymaster 5000\n",
            folder.path().display(),
            master.port(),
        );
        std::fs::write(&file, settings).expect("is written");
        let mut command = mortal("redis-server");
        let sentinel = started(command.arg(file).arg("--sentinel"));
        let this = Self { servers: [master, replica], sentinel, port, _folder: folder };
        this.until("it knows the replica", |answer| answer.contains("num-slaves\r\n$1\r\n1"));
        this
    }

    /// Where Sentinel is.
    pub fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/mymaster", self.port)
    }

    /// Ends the master, and waits until the replica has taken its place.
    pub fn fail_over(&mut self) {
        self.servers[0].crash();
        let port = self.servers[1].port();
        self.until("it names the replica", |answer| answer.contains(&format!("port\r\n$5\r\n{port}")));
    }

    fn until(&self, what: &str, holds: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let answer = wire(self.port, "SENTINEL MASTER mymaster");
            if answer.is_some_and(|answer| holds(&answer)) {
                return;
            }
            assert!(Instant::now() < deadline, "Sentinel: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for RedisSentinel {
    fn drop(&mut self) {
        signal(&self.sentinel, Signal::SIGKILL);
        let _ = self.sentinel.wait();
    }
}

/// A cluster of three masters.
pub struct RedisCluster {
    /// Its servers.
    pub servers: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts three, and makes a cluster of them.
    pub fn start() -> Self {
        Self::start_with(0)
    }

    /// The same, each with a replica that follows it.
    pub fn start_with_replicas() -> Self {
        Self::start_with(1)
    }

    /// One of them dies, and its replica takes its place.
    pub fn fail_over(&mut self) {
        self.servers[1].crash();
        let leads = |server: &RedisServer| server.ask("ROLE").is_some_and(|role| role.contains("master"));
        self.servers[0].until(|first| {
            let whole = first.ask("CLUSTER INFO").is_some_and(|info| info.contains("cluster_state:ok"));
            whole && self.servers[MASTERS..].iter().any(leads)
        });
    }

    fn start_with(replicas: usize) -> Self {
        let server = |_| {
            let port = free_port().to_string();
            RedisServer::start_with(&[
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &port,
                "--cluster-node-timeout",
                "2000",
            ])
        };
        let servers: Vec<RedisServer> = (0..MASTERS * (replicas + 1)).map(server).collect();
        let made = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(servers.iter().map(|server| format!("127.0.0.1:{}", server.port())))
            .args(["--cluster-yes", "--cluster-replicas", &replicas.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(made.is_ok_and(|status| status.success()), "a cluster is made");
        for server in &servers {
            server.until(|server| {
                server.ask("CLUSTER INFO").is_some_and(|info| info.contains("cluster_state:ok"))
            });
        }
        for replica in &servers[MASTERS..] {
            replica.until(|replica| {
                replica.ask("INFO replication").is_some_and(|info| info.contains("master_link_status:up"))
            });
        }
        Self { servers }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }
}

/// Servers of a cluster that lead.
const MASTERS: usize = 3;

/// The answer to one command. The server closes the connection at the end of it; a Sentinel, which
/// knows no QUIT, is given up on.
fn wire(port: u16, command: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).ok()?;
    let (mut answer, mut chunk) = (Vec::new(), [0; 4_096]);
    while let Ok(read @ 1..) = stream.read(&mut chunk) {
        answer.extend_from_slice(&chunk[..read]);
    }
    (!answer.is_empty()).then(|| String::from_utf8_lossy(&answer).into_owned())
}

/// Ends with whoever starts it.
fn mortal(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.arg("--pdeathsig=KILL").arg(Path::new(program));
    command
}

fn started(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("Redis starts")
}

fn signal(child: &Child, signal: Signal) {
    let _ = kill(Pid::from_raw(i32::try_from(child.id()).unwrap_or(0)), signal);
}
