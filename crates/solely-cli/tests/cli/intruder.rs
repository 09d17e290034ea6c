//! Those who mean harm: upstreams that lead elsewhere, unpack to more than they weigh or say what looks like a log,
//! pages of other sites, guessers, and names that look like commands.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{StatusCode, Uri, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};
use solely_testing::{RedisServer, free_port, fresh_database};
use tempfile::TempDir;

use crate::access::socket;
use crate::reserve::{path, reserve, shop};
use crate::server::Server;
use crate::socket::PATIENCE;

const MIB: usize = 1024 * 1024;

/// Serves one answer to everything; where it is, and what it was asked for.
async fn serves<R: IntoResponse>(
    answer: impl Fn() -> R + Clone + Send + Sync + 'static,
) -> (String, Arc<Mutex<Vec<String>>>) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let counted = calls.clone();
    let app = Router::new().fallback(move |uri: Uri| {
        counted.lock().expect("no panic").push(uri.path().to_owned());
        let answer = answer().into_response();
        async move { answer }
    });
    let address = format!("127.0.0.1:{}", free_port());
    let listener = tokio::net::TcpListener::bind(&address).await.expect("listens");
    tokio::spawn(async move { axum::serve(listener, app).await });
    (format!("http://{address}"), calls)
}

async fn server_with(config: &str, env: &[(&str, &str)]) -> Server {
    let folder = TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("solely.toml"), config).expect("is written");
    Server::start_with(folder, env).await
}

fn provider(url: &str) -> String {
    format!("[enrich.providers.wolt]\nenabled = true\nurl = \"{url}/\"\nmax_attempts = 1\n")
}

async fn ask(server: &Server, request: &str, place: &str, name: &str) -> Value {
    let body = json!({"requestId": request, "results": [{"placeId": place, "name": name}]});
    let (status, answer) = server.post("/v1/enrich", body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Asks for a place, and waits for what is found.
async fn found(server: &Server, place: &str, name: &str) -> Value {
    ask(server, "req", place, name).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = server.get("/v1/enrich/req").await;
        if seen["pending"] == 0 {
            return seen["results"][0]["providers"]["wolt"].clone();
        }
        assert!(Instant::now() < deadline, "{seen}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An upstream that answers with another address does not choose whom the server calls.
#[tokio::test]
async fn an_upstream_that_redirects_leads_nowhere() {
    let (inside, reached) =
        serves(|| axum::Json(json!({"status": "FOUND", "url": "https://wolt.com/x"}))).await;
    for status in [StatusCode::FOUND, StatusCode::TEMPORARY_REDIRECT, StatusCode::PERMANENT_REDIRECT] {
        let to = format!("{inside}/secret");
        let (url, calls) = serves(move || (status, [(header::LOCATION, to.clone())])).await;
        let config = format!(
            "{}\n[products.plugins.tours]\nurl = \"{url}\"\n
             [reserve]\nwebhook_url = \"{url}/hook\"\nwebhook_secret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"\n
             [feed.sources.stones]\nurl = \"{url}/feed\"\nrate = \"\"\n",
            provider(&url)
        );
        let server = server_with(&config, &[]).await;
        assert_eq!(found(&server, "place", "Pizza House").await["status"], "NOT_FOUND");
        let (status, _) = server.post("/v1/products/search", json!({"appKey": "tours", "userId": "u"})).await;
        assert!(status >= 500, "{status}");
        crate::reserve::stock(async |path: &str, body| server.post(path, body).await, "box", 3).await;
        assert_eq!(reserve(&server, "u1").await.0, 201);
        assert_eq!(server.post("/v1/runs", json!({"source": "stones"})).await.0, 202);
        let deadline = Instant::now() + PATIENCE;
        let asked =
            |path: &str| calls.lock().expect("no panic").iter().any(|called| called.starts_with(path));
        while !asked("/hook") || !asked("/feed") {
            assert!(Instant::now() < deadline, "the receiver and the source are asked");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(*reached.lock().expect("no panic"), Vec::<String>::new(), "nobody was led there");
}

/// `{"status":"FOUND","url":"https://wolt.com/en/isr/tel-aviv/restaurant/x"}`, packed.
const PACKED: [u8; 89] = [
    31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 171, 86, 42, 46, 73, 44, 41, 45, 86, 178, 82, 114, 243, 15, 245, 115,
    81, 210, 81, 42, 45, 202, 1, 242, 50, 74, 74, 10, 138, 173, 244, 245, 203, 243, 115, 74, 244, 146, 243,
    115, 245, 83, 243, 244, 51, 139, 139, 244, 75, 82, 115, 116, 19, 203, 50, 203, 244, 139, 82, 129, 58, 75,
    139, 18, 243, 74, 244, 43, 148, 106, 1, 179, 123, 43, 37, 72, 0, 0, 0,
];

/// A page of a source that is larger than any answer may be is not read to its end, whether it says how large it is or
/// not: its partition fails and says why, and the server has not grown by more than what may be read of it.
#[tokio::test]
async fn a_page_that_is_too_large_fails_its_partition() {
    let page = axum::body::Bytes::from(vec![b' '; 33 * MIB]);
    // Of what says its size nothing is read. What does not is kept in what is doubled, so there may be half of it twice.
    for (says_its_size, most) in [(true, 16 * MIB), (false, 80 * MIB)] {
        let page = page.clone();
        let (url, calls) = serves(move || {
            if says_its_size {
                return page.clone().into_response();
            }
            let pieces =
                (0..33).map(|piece| Ok::<_, std::io::Error>(page.slice(piece * MIB..(piece + 1) * MIB)));
            let pieces: Vec<_> = pieces.collect();
            axum::body::Body::from_stream(futures::stream::iter(pieces)).into_response()
        })
        .await;
        let config = format!("[feed.sources.diamonds]\nurl = \"{url}\"\nrate = \"\"\nmax_deliveries = 2\n");
        let server = server_with(&config, &[]).await;
        let before = memory(&server);
        let partitions = json!([{"partitionId": "all", "minPrice": 0, "maxPrice": 10}]);
        let (status, started) =
            server.post("/v1/runs", json!({"source": "diamonds", "partitions": partitions})).await;
        assert_eq!(status, 202, "{started}");
        let path = format!("/v1/runs/{}", started["runId"].as_str().expect("an id"));
        let deadline = Instant::now() + PATIENCE;
        let run = loop {
            let run = server.get(&path).await;
            if run["status"] == "failed" {
                break run;
            }
            assert!(Instant::now() < deadline, "{run:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let error = run["partitions"][0]["error"].as_str().unwrap_or_default();
        assert!(error.contains("33554432"), "{run:#}");
        assert_eq!(calls.lock().expect("no panic").len(), 2, "as often as it may be delivered");
        let grown = memory(&server) - before;
        eprintln!("grown {grown} of {before}");
        assert!(grown < most, "{} KiB more than {}", grown / 1024, before / 1024);
    }
}

/// The most that a server has had in memory, in bytes.
fn memory(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).expect("it is there");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its memory");
    most.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

/// What says that it is packed is not unpacked: nothing can become larger than it came.
#[tokio::test]
async fn what_is_packed_is_not_unpacked() {
    let (url, calls) = serves(|| ([(header::CONTENT_ENCODING, "gzip")], PACKED.to_vec())).await;
    let server = server_with(&provider(&url), &[]).await;
    let found = found(&server, "place", "Pizza House").await;
    assert_eq!((&found["status"], &found["meta"]["reason"]), (&json!("NOT_FOUND"), &json!("lookup_failed")));
    assert_eq!(calls.lock().expect("no panic").len(), 1);
}

/// An upstream says what looks like lines of the log, and more.
#[tokio::test]
async fn nobody_forges_a_line_of_the_log() {
    const FORGED: &str = "\n{\"event\":\"forged\"}\n\u{1b}[2J\r{\"event\":\"forged\"}";
    let (url, _) = serves(|| (StatusCode::FORBIDDEN, FORGED)).await;
    let server = server_with(&provider(&url), &[("RUST_LOG", "debug")]).await;
    found(&server, "place", &format!("Pizza House{}", FORGED.replace(['\n', '\r', '\u{1b}'], " "))).await;
    let request =
        server.client.get(format!("{}/v1/jobs/x{}", server.url, "%0A%7B%22event%22%3A%22forged%22%7D"));
    request.send().await.expect("answers");
    for line in server.log().lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_ne!(line["event"], "forged", "{line}");
    }
}

/// A page of another site opens no socket, also where nobody has to say who they are, whatever name it uses.
#[tokio::test]
async fn a_page_of_another_site_opens_no_socket() {
    let server = Server::start().await;
    assert!(socket(&server, "", &[]).await.is_ok());
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", "http://127.0.0.1.evil.example"),
        ("host", "evil.example"),
    ] {
        assert_eq!(socket(&server, "", &[(name, value)]).await.err(), Some(403), "{name}: {value}");
    }
}

/// A few wrong codes, and the right one is no use either for some minutes, also at a server that was replaced.
#[tokio::test]
async fn whoever_guesses_codes_is_stopped() {
    let server = shop("", 2).await;
    let (_, held) = reserve(&server, "u1").await;
    assert_eq!(server.post(&path(&held, "/confirm"), json!({})).await.0, 200);
    for _ in 0..5 {
        let (status, refused) =
            server.post(&path(&held, "/collect"), json!({"pickupCode": "0000-0000"})).await;
        assert_eq!((status, &refused["error"]), (403, &json!("WRONG_CODE")), "{refused}");
    }
    let server = server.replaced().await;
    let body = json!({"pickupCode": held["pickupCode"]}).to_string();
    let refused = server.send(reqwest::Method::POST, &path(&held, "/collect"), Some(&body)).await;
    assert_eq!(refused.status(), 429);
    let wait = refused.headers()["retry-after"].to_str().expect("text").parse::<u64>().expect("seconds");
    assert!((1..=300).contains(&wait), "{wait}");
}

/// Names that look like commands are names, on PostgreSQL and in Redis, from the question to the answer.
#[tokio::test]
async fn names_that_look_like_commands_are_names() {
    let (redis, database) = (RedisServer::start(), fresh_database());
    let (url, _) = serves(|| axum::Json(json!({"status": "FOUND", "url": "https://wolt.com/x"}))).await;
    let config = format!("{}\nhosts = []\n", provider(&url));
    let server = server_with(&config, &[("DATABASE_URL", &database), ("REDIS_URL", &redis.url())]).await;
    crate::reserve::stock(async |path: &str, body| server.post(path, body).await, "box", 20).await;
    for (nth, odd) in
        ["a'; DROP TABLE jobs; --", "\\\"}{,[NULL]", "%_*?[a]{x}", "$1 $$ E'\\x00'", "\"since\":-1"]
            .into_iter()
            .enumerate()
    {
        let request = format!("req-{nth}");
        let answer = ask(&server, &request, odd, odd).await;
        assert_eq!(answer["results"][0]["placeId"], *odd, "{answer}");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = server.get(&format!("/v1/enrich/{request}")).await;
            if seen["pending"] == 0 {
                let result = &seen["results"][0];
                assert_eq!((&result["placeId"], &result["name"]), (&json!(odd), &json!(odd)), "{seen}");
                break;
            }
            assert!(Instant::now() < deadline, "{seen}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(ask(&server, "again", odd, odd).await["pending"], 0, "{odd} is known");
        let (status, held) = reserve(&server, odd).await;
        assert_eq!((status, &held["userId"]), (201, &json!(odd)), "{held}");
        let lease = json!({"keys": [odd], "owner": odd, "ttlMs": 10_000});
        let (status, lease) = server.post("/v1/leases", lease).await;
        assert_eq!((status, &lease["keys"][0]), (200, &json!(odd)), "{lease}");
    }
    let checked = server.get("/v1/queues").await;
    assert!(checked["items"].is_array() || checked.is_array() || checked["queues"].is_array(), "{checked}");
}

/// What is no copy of ours, under a name of ours in Redis, is not believed.
#[tokio::test]
async fn what_others_put_into_redis_is_not_served() {
    let (redis, database) = (RedisServer::start(), fresh_database());
    let (url, _) = serves(|| axum::Json(json!({"status": "FOUND", "url": "https://wolt.com/right"}))).await;
    let env = [("DATABASE_URL", database.as_str()), ("REDIS_URL", &redis.url())];
    let server = server_with(&provider(&url), &env).await;
    assert_eq!(found(&server, "place", "Pizza House").await["url"], "https://wolt.com/right");
    drop(server);
    for odd in ["", "garbage", "{", "[]", "{\"status\":\"FOUND\",\"url\":\"javascript:alert(1)\"}"] {
        redis.ask(&format!("SET ext:wolt:place:place '{odd}'")).expect("is set");
        let server = server_with(&provider(&url), &env).await;
        let answer = ask(&server, "req-odd", "place", "Pizza House").await;
        let wolt = &answer["results"][0]["providers"]["wolt"];
        assert_eq!(
            (&wolt["status"], &wolt["url"]),
            (&json!("FOUND"), &json!("https://wolt.com/right")),
            "{odd}"
        );
    }
}
