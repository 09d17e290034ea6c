//! Private servers for tests: on a free port below the system's own range, in a temporary
//! folder, stopped when their owner is dropped or dies.

mod redis;

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::RngExt as _;
use tempfile::TempDir;

pub use redis::{RedisCluster, RedisSentinel, RedisServer, installed_redis};

/// Names the environment variable that says where a PostgreSQL server for tests is.
pub const POSTGRES_ENV: &str = "SOLELY_TEST_POSTGRES";

/// A port below the range that the system hands out by itself, so that nobody else gets it.
pub fn free_port() -> u16 {
    let mut rng = rand::rng();
    loop {
        let port = rng.random_range(20_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The server that was started for all tests, or one for this process.
pub fn postgres_url() -> String {
    static OWN: OnceLock<String> = OnceLock::new();
    std::env::var(POSTGRES_ENV).unwrap_or_else(|_| OWN.get_or_init(start_for_this_process).clone())
}

/// The server is told to end when the thread that started it does, so that one lives on.
fn start_for_this_process() -> String {
    let (told, url) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let server = PostgresServer::start();
        let _ = told.send(server.url());
        loop {
            std::thread::park();
        }
    });
    url.recv().expect("the server has started")
}

/// A database of its own on that server.
pub fn fresh_database() -> String {
    fresh_database_on(&postgres_url())
}

/// A database of its own on another server.
fn fresh_database_on(server: &str) -> String {
    let name = format!("test_{:032x}", rand::random::<u128>());
    let sql = format!("CREATE DATABASE {name}");
    let made = Command::new(postgres_bin().join("psql")).args(["-q", "-X", "-c", &sql, server]).status();
    assert!(made.is_ok_and(|status| status.success()), "a database is made");
    let (place, _) = server.rsplit_once('/').expect("ends with a database");
    format!("{place}/{name}")
}

/// The seed of this run: printed, and taken from `SOLELY_SEED`.
pub fn seed() -> u64 {
    let seed = std::env::var("SOLELY_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("seed {seed} (SOLELY_SEED={seed} repeats it)");
    seed
}

/// A PostgreSQL server of our own.
pub struct PostgresServer {
    child: Option<Child>,
    port: u16,
    bin: PathBuf,
    disk: Option<Disk>,
    folder: TempDir,
    settings: Vec<String>,
}

/// A disk of its own, in memory, for what may find it full.
pub struct Disk {
    at: PathBuf,
    mib: u32,
}

impl Disk {
    /// None where none can be mounted: that takes root, and more than some containers let it have.
    pub fn mount(at: PathBuf, mib: u32) -> Option<Self> {
        std::fs::create_dir(&at).ok()?;
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=0700"), "tmpfs"]).arg(&at);
        if command.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            return Some(Self { at, mib });
        }
        let _ = std::fs::remove_dir(&at);
        None
    }

    /// Makes it as small as what is on it. False if more came meanwhile, again and again.
    pub fn fill(&self) -> bool {
        let used = || {
            let df =
                Command::new("df").args(["--block-size=1K", "--output=used"]).arg(&self.at).output().ok()?;
            String::from_utf8(df.stdout).ok()?.lines().nth(1)?.trim().parse::<u64>().ok()
        };
        (0..5).any(|_| used().is_some_and(|kib| self.resize(&format!("{kib}k"))))
    }

    /// Gives it its size again.
    pub fn free(&self) {
        assert!(self.resize(&format!("{}m", self.mib)), "the disk has room again");
    }

    fn resize(&self, size: &str) -> bool {
        let mut command = Command::new("mount");
        command.args(["-o", &format!("remount,size={size}")]).arg(&self.at);
        command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).stderr(Stdio::null()).status();
    }
}

impl PostgresServer {
    /// Makes a cluster in a temporary folder and serves it.
    pub fn start() -> Self {
        Self::start_with(Vec::new(), None, None)
    }

    /// The same, on a disk of so many MiB that can be filled, where one can be made.
    pub fn start_on_a_disk(mib: u32) -> Self {
        Self::start_with(Vec::new(), None, Some(mib))
    }

    /// The same, where nothing is cleared away or counted but by who works with it: housekeeping
    /// looks at a database now and then, and while it does so nothing of it can be cleared away.
    pub fn start_without_housekeeping() -> Self {
        Self::start_with(vec!["-c".to_owned(), "autovacuum=off".to_owned()], None, None)
    }

    /// The same, encrypted, with a certificate and its key as PEM.
    pub fn start_encrypted(certificate: &str, key: &str) -> Self {
        let settings = vec!["-c".to_owned(), "ssl=on".to_owned()];
        Self::start_with(settings, Some([("server.crt", certificate), ("server.key", key)]), None)
    }

    fn start_with(settings: Vec<String>, secrets: Option<[(&str, &str); 2]>, disk_mib: Option<u32>) -> Self {
        let folder = TempDir::new().expect("a folder");
        let bin = postgres_bin();
        own(folder.path());
        let disk = disk_mib.and_then(|mib| Disk::mount(folder.path().join("data"), mib));
        if let Some(disk) = &disk {
            own(&disk.at);
        }
        let made = as_postgres(&bin.join("initdb"))
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync", "--pgdata"])
            .arg(folder.path().join("data"))
            .stdout(Stdio::null())
            .status();
        assert!(made.is_ok_and(|status| status.success()), "initdb failed");
        for (name, pem) in secrets.into_iter().flatten() {
            let file = folder.path().join("data").join(name);
            std::fs::write(&file, pem).expect("is written");
            std::fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("is kept secret");
            own(&file);
        }
        let mut server = Self { child: None, port: free_port(), bin, disk, folder, settings };
        server.start_again();
        server
    }

    /// A standby that has everything before it is acknowledged, and can take its place.
    pub fn standby(&self) -> Self {
        let (folder, bin) = (TempDir::new().expect("a folder"), self.bin.clone());
        own(folder.path());
        let copied = as_postgres(&bin.join("pg_basebackup"))
            .args(["--host=127.0.0.1", "--port", &self.port.to_string(), "--username=postgres"])
            .args([
                "--write-recovery-conf",
                "--wal-method=stream",
                "--checkpoint=fast",
                "--no-sync",
                "--pgdata",
            ])
            .arg(folder.path().join("data"))
            .status();
        assert!(copied.is_ok_and(|status| status.success()), "pg_basebackup failed");
        let mut standby =
            Self { child: None, port: free_port(), bin, disk: None, folder, settings: self.settings.clone() };
        standby.start_again();
        for sql in ["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"] {
            let asked = Command::new(self.bin.join("psql"))
                .args(["--quiet", "--host=127.0.0.1", "--port", &self.port.to_string()])
                .args(["--username=postgres", "--command", sql])
                .stdout(Stdio::null())
                .status();
            assert!(asked.is_ok_and(|status| status.success()), "{sql}");
        }
        standby
    }

    /// Takes the place of the server that it followed.
    pub fn promote(&self) {
        let promoted = as_postgres(&self.bin.join("pg_ctl"))
            .args(["promote", "--wait", "--silent", "--pgdata"])
            .arg(self.folder.path().join("data"))
            .status();
        assert!(promoted.is_ok_and(|status| status.success()), "pg_ctl promote failed");
    }

    /// Serves the cluster again after [`PostgresServer::stop`], on the same port.
    pub fn start_again(&mut self) {
        let child = as_postgres(&self.bin.join("postgres"))
            .arg("-D")
            .arg(self.folder.path().join("data"))
            .args(["-p", &self.port.to_string(), "-k"])
            .arg(self.folder.path())
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "max_connections=300"])
            .args(&self.settings)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("postgres starts");
        self.child = Some(child);
        self.until_ready();
    }

    /// Ends it; connections are cut.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0));
            let _ = kill(pid, Signal::SIGINT);
            let _ = child.wait();
        }
    }

    /// Ends it as a power cut would; it recovers when it is started again.
    pub fn crash(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0));
            let _ = kill(pid, Signal::SIGQUIT);
            let _ = child.wait();
        }
    }

    /// Fills its disk. False if that cannot be done.
    pub fn fill_disk(&self) -> bool {
        self.disk.as_ref().is_some_and(Disk::fill)
    }

    /// Makes room again, and starts it again should it have given up.
    pub fn free_disk(&mut self) {
        let Some(disk) = &self.disk else { return };
        disk.free();
        let deadline = Instant::now() + Duration::from_secs(60);
        // It may be about to give up, because of what it met before.
        while !self.is_ready() {
            assert!(Instant::now() < deadline, "postgres is not ready");
            if !self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
                self.start_again();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Stops all its processes where they are: connections stay, and nobody answers. The first process makes the others,
    /// so it is stopped first; a signal takes a moment, and one that was just being made is not in the list until it has
    /// been, so they are looked at until all of them stand still.
    pub fn freeze(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let moving: Vec<u32> = self.processes().into_iter().filter(|pid| !is_stopped(*pid)).collect();
            if moving.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "postgres cannot be frozen");
            for pid in moving {
                signal(pid, Signal::SIGSTOP);
            }
            std::thread::yield_now();
        }
    }

    /// Lets them go on.
    pub fn thaw(&self) {
        for pid in self.processes() {
            signal(pid, Signal::SIGCONT);
        }
    }

    /// The first process, and those that it has made.
    fn processes(&self) -> Vec<u32> {
        let Some(first) = self.child.as_ref().map(Child::id) else { return Vec::new() };
        let others =
            std::fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap_or_default();
        [first].into_iter().chain(others.split_whitespace().filter_map(|pid| pid.parse().ok())).collect()
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where its first database is.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// A database of its own on this server.
    pub fn fresh_database(&self) -> String {
        fresh_database_on(&self.url())
    }

    fn until_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.is_ready() {
            assert!(Instant::now() < deadline, "postgres is not ready");
            std::thread::yield_now();
        }
    }

    fn is_ready(&self) -> bool {
        let mut look = Command::new(self.bin.join("pg_isready"));
        look.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        look.status().is_ok_and(|status| status.success())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.thaw();
        self.stop();
    }
}

fn signal(pid: u32, signal: Signal) {
    let _ = kill(Pid::from_raw(i32::try_from(pid).unwrap_or(0)), signal);
}

/// Whether a process stands still, or is no more.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state comes after the name, which may have anything in it.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_none_or(|state| matches!(state, 'T' | 'Z' | 'X'))
}

fn postgres_bin() -> PathBuf {
    installed_postgres().expect("PostgreSQL is installed: `cargo xtask setup` does it")
}

/// Where the programs of the newest PostgreSQL are: Debian has a folder for each version.
pub fn installed_postgres() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    versions
        .flatten()
        .map(|version| version.path().join("bin"))
        .filter(|bin| bin.join("initdb").is_file())
        .max()
}

/// PostgreSQL refuses to run as root; its own user then does.
fn as_postgres(program: &Path) -> Command {
    if !nix::unistd::Uid::effective().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=INT"]).arg(program);
    command
}

fn own(folder: &Path) {
    if nix::unistd::Uid::effective().is_root() {
        let owned = Command::new("chown").arg("postgres:postgres").arg(folder).status();
        assert!(owned.is_ok_and(|status| status.success()), "the folder is given to postgres");
    }
}
