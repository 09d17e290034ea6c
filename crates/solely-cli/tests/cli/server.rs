//! A `solely serve` process on a free port, in a folder of its own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::{Client, Method, Response};
use serde_json::Value;
use solely_core::upstream::http::{self, Tls};
use solely_sqlite::{Access, Options, SqliteStore};
use solely_testing::free_port;
use tempfile::TempDir;

/// The binary, in a folder.
pub(crate) fn solely(folder: &Path) -> Command {
    in_folder(OsStr::new(env!("CARGO_BIN_EXE_solely")), folder)
}

fn in_folder(program: &OsStr, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null()).env_remove("DATABASE_URL").env_remove("REDIS_URL");
    command
}

pub(crate) fn client() -> Client {
    http::builder(Tls::Nobody).build().expect("a client")
}

pub(crate) struct Server {
    pub(crate) folder: TempDir,
    pub(crate) child: Child,
    pub(crate) url: String,
    pub(crate) client: Client,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_in(TempDir::new().expect("a folder")).await
    }

    pub(crate) async fn start_in(folder: TempDir) -> Self {
        Self::start_with(folder, &[]).await
    }

    pub(crate) async fn start_with(folder: TempDir, env: &[(&str, &str)]) -> Self {
        Self::start_program(OsStr::new(env!("CARGO_BIN_EXE_solely")), folder, env).await
    }

    /// The same, of any program that is a solely.
    pub(crate) async fn start_program(program: &OsStr, folder: TempDir, env: &[(&str, &str)]) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let log = std::fs::File::create(folder.path().join("serve.log")).expect("a log");
        let child = in_folder(program, folder.path())
            .args(["serve", "--listen", &address])
            .envs(env.iter().copied())
            .stderr(log)
            .spawn()
            .expect("starts");
        let server = Self { folder, child, url: format!("http://{address}"), client: client() };
        server.until_ready().await;
        server
    }

    async fn until_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if self
                .client
                .get(format!("{}/readyz", self.url))
                .send()
                .await
                .is_ok_and(|answer| answer.status() == 200)
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the server is not ready: {}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("serve.log")).unwrap_or_default()
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("solely.db")
    }

    /// The store, as a tool beside the server sees it.
    pub(crate) fn tool(&self) -> SqliteStore {
        let options = Options { access: Access::Tool, ..Options::default() };
        SqliteStore::open(&format!("sqlite:{}", self.file().display()), &options).expect("opens")
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<&str>) -> Response {
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.body(body.to_owned());
        }
        request.send().await.expect("answers")
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let answer = self.send(Method::GET, path, None).await;
        assert_eq!(answer.status(), 200, "{path}");
        answer.json().await.expect("JSON")
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let answer = self.send(Method::POST, path, Some(&body.to_string())).await;
        let status = answer.status().as_u16();
        (status, answer.json().await.expect("JSON"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        kill(pid, signal).expect("is there");
    }

    /// Waits for the process to end; its exit code.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        self.child.wait().expect("waits").code()
    }

    /// Kills it and starts another one on the same folder.
    pub(crate) async fn replaced(mut self) -> Self {
        let _ = self.child.kill();
        self.ended();
        let folder = std::mem::replace(&mut self.folder, TempDir::new().expect("a folder"));
        Self::start_in(folder).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
