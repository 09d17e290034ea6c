//! The dashboard's files and channel, and browsers that log in, as a client without a browser meets them.

use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use reqwest::Method;
use serde_json::{Value, json};
use solely_testing::free_port;
use tempfile::TempDir;

use crate::server::{Server, client, solely};
use crate::socket::Socket;

const PAGES: [&str; 10] =
    ["/", "/enrich", "/products", "/boxes", "/runs", "/jobs", "/leases", "/upstreams", "/alerts", "/explain"];

async fn keyed() -> Server {
    Server::start_with(TempDir::new().expect("a folder"), &[("SOLELY__AUTH__MODE", "keys")]).await
}

fn key(server: &Server, scopes: &[&str]) -> String {
    let scopes = scopes.iter().flat_map(|scope| ["--scope", scope]);
    let args: Vec<&str> = ["keys", "create", "--name", "test"].into_iter().chain(scopes).collect();
    let output = solely(server.folder.path()).args(args).output().expect("runs");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// Every page and what it loads is open, from this server alone, and small.
#[tokio::test]
async fn the_pages_are_open_and_load_nothing_from_elsewhere() {
    let server = keyed().await;
    let mut files: Vec<String> = vec!["/client.js".to_owned()];
    for path in PAGES {
        let answer = server.send(Method::GET, path, None).await;
        assert_eq!(answer.status(), 200, "{path}");
        let policy = answer.headers()["content-security-policy"].to_str().expect("text").to_owned();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        let page = answer.text().await.expect("text");
        for part in page.split(['"']).filter(|part| part.starts_with('/') && part.contains('.')) {
            if !files.iter().any(|known| known == part) {
                files.push(part.to_owned());
            }
        }
        assert!(!page.contains("://") && !page.contains("<style") && !page.contains("onclick"), "{path}");
    }
    // What modules import, too.
    let mut seen = 0;
    let mut bytes = 0;
    while let Some(file) = files.get(seen).cloned() {
        seen += 1;
        let answer = server.send(Method::GET, &file, None).await;
        assert_eq!(answer.status(), 200, "{file}");
        let text = answer.text().await.expect("text");
        bytes += text.len();
        if file.starts_with("/dashboard/") {
            assert!(!text.contains("innerHTML") && !text.contains("insertAdjacentHTML"), "{file}");
        }
        let imported = text.lines().filter_map(|line| line.strip_prefix("import ")?.split('\'').nth(1));
        for name in imported {
            let path = match name.strip_prefix("./") {
                Some(own) => format!("/dashboard/{own}"),
                None => name.replacen("..", "", 1),
            };
            if !files.contains(&path) {
                files.push(path);
            }
        }
    }
    assert!(seen > 20, "{files:?}");
    assert!(bytes <= 300 * 1024, "{bytes} bytes in all");
}

async fn session(server: &Server, cookie: Option<&str>) -> Value {
    let mut request = server.client.get(format!("{}/v1/session", server.url));
    if let Some(cookie) = cookie {
        request = request.header("cookie", cookie);
    }
    request.send().await.expect("answers").json().await.expect("JSON")
}

/// A key goes in, a cookie that no script can read comes out; it is good for reading, and with its token
/// for changes, until its key is revoked.
#[tokio::test]
async fn a_browser_logs_in_acts_and_is_out_when_its_key_is() {
    let server = keyed().await;
    assert_eq!(session(&server, None).await["scopes"], Value::Null);
    let url = |path: &str| format!("{}{path}", server.url);
    let login = async |key: &str| {
        server.client.post(url("/v1/login")).bearer_auth(key).send().await.expect("answers")
    };
    assert_eq!(login("solely_aaaaaaaaaaaaaaaa_x").await.status(), 401);
    assert_eq!(login(&key(&server, &["feed"])).await.status(), 403);
    let key = key(&server, &["admin"]);
    let answer = login(&key).await;
    assert_eq!(answer.status(), 200);
    let set = answer.headers()["set-cookie"].to_str().expect("text").to_owned();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict") && set.contains("Path=/"), "{set}");
    assert!(!set.contains("Secure"), "it came in the clear");
    let cookie = set.split(';').next().expect("a cookie").to_owned();
    let token = session(&server, Some(&cookie)).await["csrfToken"].as_str().expect("a token").to_owned();
    assert!(!key.contains(&token) && !token.contains(&key));
    let ask = async |method: Method, more: &[(&'static str, &str)]| {
        let path = if method == Method::GET { "/v1/queues" } else { "/v1/queues/notifications/pause" };
        let mut request = server.client.request(method, url(path)).header("cookie", &cookie);
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.expect("answers");
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap_or_default())
    };
    assert_eq!(ask(Method::GET, &[]).await.0, 200);
    let (status, refused) = ask(Method::POST, &[]).await;
    assert_eq!((status, &refused["error"]), (403, &json!("FORBIDDEN")));
    assert_eq!(ask(Method::POST, &[("x-csrf-token", "x")]).await.0, 403);
    assert_eq!(ask(Method::POST, &[("x-csrf-token", &token)]).await.0, 200);
    assert_eq!(ask(Method::GET, &[("origin", "http://localhost:1")]).await.0, 403);
    let nobodys = "solely_session=solely_aaaaaaaaaaaaaaaa_x";
    assert_eq!(session(&server, Some(nobodys)).await["scopes"], Value::Null);
    let out = server.client.post(url("/v1/logout")).send().await.expect("answers");
    assert_eq!(out.status(), 204);
    assert!(out.headers()["set-cookie"].to_str().expect("text").contains("Max-Age=0"));
    let id = key.split('_').nth(1).expect("an id");
    assert!(
        solely(server.folder.path()).args(["keys", "revoke", id]).output().expect("runs").status.success()
    );
    let revoked = Instant::now();
    while ask(Method::GET, &[]).await.0 == 200 {
        assert!(revoked.elapsed() < Duration::from_secs(5), "it still works");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Without access control there is nothing to log in to.
#[tokio::test]
async fn without_keys_there_is_no_login() {
    let server = Server::start().await;
    assert_eq!(session(&server, None).await["auth"], "none");
    let answer = server.send(Method::POST, "/v1/login", None).await;
    assert_eq!(answer.status(), 200);
    assert!(!answer.headers().contains_key("set-cookie"));
}

/// The channel says what it will tell, what was, and then what is.
#[tokio::test]
async fn a_dashboard_is_told_what_it_asked_for() {
    let server = Server::start().await;
    let mut socket = Socket::open_at(&server.url).await;
    let said =
        json!({"v": 1, "type": "subscribe", "channel": "dashboard", "topics": ["leases", "runs", "leases"]});
    socket.say(said).await;
    let next = async |socket: &mut Socket| -> Value {
        serde_json::from_str(&socket.next_text().await).expect("JSON")
    };
    let acknowledged = next(&mut socket).await;
    assert_eq!(acknowledged["topics"], json!(["overview", "leases", "runs"]), "{acknowledged}");
    assert_eq!(next(&mut socket).await["topic"], "history");
    let mut heard = Vec::new();
    while heard.len() < 3 {
        heard.push(next(&mut socket).await["topic"].as_str().expect("a topic").to_owned());
    }
    heard.sort();
    assert_eq!(heard, ["leases", "overview", "runs"]);
    server.post("/v1/leases", json!({"keys": ["k"], "owner": "o", "ttlMs": 60000})).await;
    let told = loop {
        let told = next(&mut socket).await;
        if told["topic"] == "leases" {
            break told;
        }
    };
    assert_eq!(told["data"]["items"][0]["key"], "k");
    // What is not asked for, or not known, is refused.
    socket.say(json!({"v": 1, "type": "subscribe", "channel": "dashboard", "topics": ["secrets"]})).await;
    let refused = loop {
        let told = next(&mut socket).await;
        if told["type"] == "sub_nack" {
            break told;
        }
    };
    assert_eq!(refused["reason"], "invalid_request");
}

/// It starts, says where to look, has something on every system, and ends when it is told to.
#[tokio::test]
async fn a_demo_begins_and_ends_by_itself() {
    let folder = TempDir::new().expect("a folder");
    let address = format!("127.0.0.1:{}", free_port());
    let mut demo = solely(folder.path())
        .args(["demo", "--listen", &address])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let (client, began) = (client(), Instant::now());
    let there = async |path: &str| {
        let Ok(answer) = client.get(format!("http://{address}{path}")).send().await else { return false };
        let body: Value = answer.json().await.unwrap_or_default();
        body["items"].as_array().is_some_and(|items| !items.is_empty())
    };
    for path in ["/v1/runs", "/v1/inventory", "/v1/reservations", "/v1/leases", "/v1/jobs?queue=enrich:wolt"]
    {
        while !there(path).await {
            assert!(began.elapsed() < Duration::from_secs(20), "{path}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let pid = Pid::from_raw(i32::try_from(demo.id()).expect("a pid"));
    nix::sys::signal::kill(pid, Signal::SIGTERM).expect("is there");
    assert_eq!(demo.wait().expect("ends").code(), Some(0));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut demo.stdout.take().expect("a pipe"), &mut said).expect("text");
    for part in [&format!("http://{address}/"), "/demo/restaurants", "/demo/shop", "Ctrl-C"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing is left");
}

/// It knows no keys, and so only this machine.
#[test]
fn a_demo_is_for_this_machine() {
    let folder = TempDir::new().expect("a folder");
    let output = solely(folder.path()).args(["demo", "--listen", "0.0.0.0:0"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("loopback"));
}
