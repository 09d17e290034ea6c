//! Secrets stay secret: planted everywhere, and looked for everywhere.

use reqwest::Method;
use solely_testing::{RedisServer, fresh_database};
use tempfile::TempDir;

use crate::server::{Server, solely};

const CANARY: &str = "c4n4ry-s3cr3t-of-the-configuration";

/// In the database's URL, in that of Redis, as the secret of tokens, as a key and as a wrong one:
/// never in a log, the configuration's output, metrics, an error or a listing.
#[tokio::test]
async fn secrets_are_nowhere_to_be_seen() {
    let redis = RedisServer::start();
    redis.ask(&format!("CONFIG SET requirepass {CANARY}")).expect("is asked for a password");
    // A database that trusts everyone takes any password.
    let database = fresh_database().replace("postgres@", &format!("postgres:{CANARY}@"));
    let redis_url = format!("redis://:{CANARY}@127.0.0.1:{}", redis.port());
    let env = [
        ("DATABASE_URL", database.as_str()),
        ("REDIS_URL", redis_url.as_str()),
        ("SOLELY__AUTH__MODE", "keys"),
        ("SOLELY__AUTH__JWT_SECRET", CANARY),
        ("RUST_LOG", "trace"),
    ];
    let folder = TempDir::new().expect("a folder");
    let run = |args: &[&str], env: &[(&str, &str)]| {
        let output = solely(folder.path()).args(args).envs(env.iter().copied()).output().expect("runs");
        (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (key, _) = run(&["keys", "create", "--name", "canary", "--scope", "admin"], &env);
    let key = key.trim().to_owned();
    let secret = key.rsplit_once('_').expect("has a secret").1.to_owned();
    let mut seen = Vec::new();
    for args in
        [&["config"][..], &["config", "--json"], &["keys", "list"], &["keys", "list", "--json"], &["check"]]
    {
        let (out, err) = run(args, &env);
        seen.push((format!("{args:?}"), out + &err));
    }
    // Wrong ones are not repeated either.
    for wrong in [
        ("REDIS_URL", format!("redis+nonsense://:{CANARY}@h")),
        ("DATABASE_URL", format!("mysql://u:{CANARY}@h/d")),
    ] {
        let (out, err) = run(&["config"], &[(wrong.0, &wrong.1)]);
        seen.push((format!("{wrong:?}").replace(CANARY, ""), out + &err));
    }
    let server = Server::start_with(TempDir::new().expect("a folder"), &env).await;
    let call = async |method: Method, path: &str, bearer: &str| {
        let request = server.client.request(method, format!("{}{path}", server.url)).bearer_auth(bearer);
        request.send().await.expect("answers").text().await.expect("text")
    };
    for path in [
        "/metrics",
        "/readyz",
        "/openapi.json",
        "/v1/leases",
        "/v1/queues",
        "/v1/jobs",
        "/v1/upstreams",
        "/v1/nothing",
        "/v1/session",
        "/dashboard/main.js",
    ] {
        seen.push((path.to_owned(), call(Method::GET, path, &key).await));
        seen.push((path.to_owned(), call(Method::GET, path, CANARY).await));
        seen.push((path.to_owned(), call(Method::GET, path, &format!("{key}x")).await));
    }
    seen.push(("a body".to_owned(), call(Method::POST, "/v1/leases", &key).await));
    let ticket: serde_json::Value =
        serde_json::from_str(&call(Method::POST, "/v1/ws/tickets", &key).await).expect("JSON");
    let ticket = ticket["ticket"].as_str().expect("a ticket").to_owned();
    call(Method::GET, &format!("/v1/ws?ticket={ticket}"), "").await;
    seen.push(("the log".to_owned(), server.log()));
    assert!(server.log().len() > 1_000, "there is a log to look at");
    for (place, text) in &seen {
        for hidden in [CANARY, &secret, &ticket] {
            assert!(!text.contains(hidden), "{hidden} in {place}: {text}");
        }
    }
}
