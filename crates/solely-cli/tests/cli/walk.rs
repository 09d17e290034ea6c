//! The walk through enrich in the documentation, as it is written there.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use solely_testing::free_port;
use tempfile::TempDir;

use crate::socket::Socket;

/// A command and what follows it.
struct Step {
    command: String,
    lines: Vec<String>,
}

/// The commands of a document's `console` blocks.
fn steps(document: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            line if inside => match line.strip_prefix("$ ") {
                Some(command) => {
                    let mut command = command.to_owned();
                    if command.contains("<<'END'") {
                        for line in lines.by_ref() {
                            command.push('\n');
                            command.push_str(line);
                            if line == "END" {
                                break;
                            }
                        }
                    }
                    steps.push(Step { command, lines: Vec::new() });
                }
                None => steps.last_mut().expect("a command comes first").lines.push(line.to_owned()),
            },
            _ => {}
        }
    }
    steps
}

/// Whether a text is what is shown, where `…` stands for anything.
pub(crate) fn is_as_shown(text: &str, shown: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.len() >= part.len() && rest.ends_with(part);
        }
        let Some(found) = rest.find(part) else { return false };
        rest = &rest[found + part.len()..];
    }
    rest.is_empty()
}

/// What is running beside, ended with the test.
struct Beside(Child);

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Says and hears what is written.
async fn websocat(url: &str, lines: &[String]) {
    let mut socket = Socket::open_at(&url.replace("ws://", "http://").replace("/v1/ws", "")).await;
    for line in lines {
        if let Some(said) = line.strip_prefix("> ") {
            socket.say(serde_json::from_str(said).expect("JSON")).await;
        } else if let Some(shown) = line.strip_prefix("< ") {
            let heard = socket.next_text().await;
            assert!(is_as_shown(&heard, shown), "{heard}\nis not\n{shown}");
        }
    }
}

#[tokio::test]
async fn the_walk_goes_as_it_is_written() {
    let document = include_str!("../../../../docs/ENRICH.md");
    let (server, sandbox) = (free_port().to_string(), free_port().to_string());
    let document = document.replace("7420", &server).replace("7421", &sandbox);
    let folder = TempDir::new().expect("a folder");
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_solely")).parent().expect("a folder");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let (mut running, mut done) = (Vec::new(), 0);
    for Step { command, lines } in steps(&document) {
        println!("$ {command}");
        done += 1;
        let mut bash = Command::new("bash");
        bash.current_dir(folder.path()).env("PATH", &path).env_remove("DATABASE_URL").env_remove("REDIS_URL");
        if let Some(command) = command.strip_suffix(" &") {
            let child =
                bash.args(["-c", &format!("exec {command}")]).stdout(Stdio::null()).stderr(Stdio::null());
            running.push(Beside(child.spawn().expect("starts")));
            let port = command.rsplit(':').next().expect("a port").to_owned();
            let deadline = Instant::now() + Duration::from_secs(20);
            while std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
                assert!(Instant::now() < deadline, "{command}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        } else if let Some(url) = command.strip_prefix("websocat ") {
            websocat(url, &lines).await;
        } else {
            let output = bash.args(["-c", &command]).output().expect("runs");
            let text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
            assert!(output.status.success(), "{command}: {text}");
            let shown = lines.join("\n");
            assert!(is_as_shown(&text, &shown), "{text}\nis not\n{shown}");
        }
    }
    assert!(done >= 12, "{done} steps");
}

#[test]
fn what_is_shown_is_compared() {
    assert!(is_as_shown("abc", "abc") && is_as_shown("abc", "a…c") && is_as_shown("abc", "…"));
    assert!(!is_as_shown("abc", "ab") && !is_as_shown("abc", "a…d") && !is_as_shown("abd", "b…"));
    assert!(is_as_shown("a-x-b-y-c", "a…b…c") && !is_as_shown("a-c", "a…b…c"));
}

/// Places from a file: looked up, counted, and gone on with where it was.
#[tokio::test]
async fn places_are_warmed_from_a_file() {
    let sandbox = solely_sandbox::Sandbox::default();
    let address = sandbox.start(free_port()).await.expect("listens");
    let folder = TempDir::new().expect("a folder");
    let config = format!("[enrich.providers.wolt]\nenabled = true\nurl = \"http://{address}/finder\"\n");
    std::fs::write(folder.path().join("solely.toml"), config).expect("is written");
    let file = |lines: std::ops::Range<usize>| -> String {
        let line = |n: usize| format!("{{\"placeId\":\"w{n}\",\"name\":\"Pizza {n}\"}}\n");
        lines.map(line).collect::<Vec<_>>().concat()
    };
    std::fs::write(folder.path().join("places.jsonl"), file(0..250)).expect("is written");
    let server = crate::server::Server::start_in(folder).await;
    let warm = async |args: &[&str], rest: &[&str]| {
        let mut command = crate::server::solely(server.folder.path());
        command.arg("warm").args(args).args(["--provider", "wolt", "--url", &server.url]).args(rest);
        let output =
            tokio::task::spawn_blocking(move || command.output().expect("runs")).await.expect("ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, said, _) = warm(&["places.jsonl", "--json"], &[]).await;
    let report: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((code, &report["queued"], &report["lines"]), (Some(0), &250.into(), &250.into()), "{said}");
    assert!(!server.folder.path().join("places.jsonl.resume").exists(), "all of it is done");
    // It was stopped after two hundred lines: it goes on from there.
    std::fs::write(server.folder.path().join("places.jsonl.resume"), "200\n").expect("is written");
    let (code, said, told) = warm(&["places.jsonl"], &["--rate", "1000"]).await;
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("after line 200") && !said.contains("250"), "{said} {told}");
    // What is wrong is said with its line; what the server refuses leaves the point to go on from.
    std::fs::write(
        server.folder.path().join("bad.jsonl"),
        "{\"placeId\":\"a\",\"name\":\"b\"}\n\n{\"placeId\":1}\n",
    )
    .expect("is written");
    let (code, _, told) = warm(&["bad.jsonl"], &[]).await;
    assert_eq!(code, Some(1));
    assert!(told.contains("line 3") && told.contains("placeId"), "{told}");
    let (code, _, told) = warm(&["nowhere.jsonl"], &[]).await;
    assert!(code == Some(1) && told.contains("nowhere.jsonl"), "{told}");
    let deadline = Instant::now() + Duration::from_secs(30);
    while sandbox.places().len() < 250 {
        assert!(Instant::now() < deadline, "{}", sandbox.places().len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(sandbox.places().values().all(|calls| *calls == 1));
}
