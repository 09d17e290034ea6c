//! Who may call what: every route of the description, with every kind of caller.

use std::time::{Duration, Instant};

use futures::{SinkExt as _, StreamExt as _};
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::server::{Server, solely};

const SECRET: &str = "a secret of more than sixteen bytes";

fn keys(folder: &std::path::Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = solely(folder).arg("keys").args(args).output().expect("runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A new key, alone on a line.
fn key(folder: &std::path::Path, scopes: &[&str]) -> String {
    let scopes = scopes.iter().flat_map(|scope| ["--scope", scope]);
    let args: Vec<&str> = ["create", "--name", "test"].into_iter().chain(scopes).collect();
    let (code, out, said) = keys(folder, &args);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(out.lines().count(), 1, "{out}");
    out.trim().to_owned()
}

fn user_token(user: &str, expires_in: i64) -> String {
    let part = |text: &[u8]| data_encoding::BASE64URL_NOPAD.encode(text);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
    let exp = i64::try_from(now.as_secs()).expect("small") + expires_in;
    let claims = json!({"sub": user, "exp": exp}).to_string();
    let signed = format!("{}.{}", part(br#"{"alg":"HS256","typ":"JWT"}"#), part(claims.as_bytes()));
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).expect("any length");
    mac.update(signed.as_bytes());
    format!("{signed}.{}", part(&mac.finalize().into_bytes()))
}

async fn server() -> Server {
    let env = [("SOLELY__AUTH__MODE", "keys"), ("SOLELY__AUTH__JWT_SECRET", SECRET)];
    Server::start_with(TempDir::new().expect("a folder"), &env).await
}

async fn call(server: &Server, method: &str, path: &str, bearer: Option<&str>) -> (u16, Value) {
    let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
    let mut request = server.client.request(method, format!("{}{path}", server.url));
    if let Some(bearer) = bearer {
        request = request.bearer_auth(bearer);
    }
    let answer = request.send().await.expect("answers");
    (answer.status().as_u16(), answer.json().await.unwrap_or_default())
}

struct Route {
    method: String,
    path: String,
    needs: Needs,
}

enum Needs {
    Nothing,
    SomeCaller,
    Scope(String),
    /// Or a user, for what is its own.
    ScopeOrUser(String),
}

async fn routes(server: &Server) -> Vec<Route> {
    let api = server.get("/openapi.json").await;
    let mut routes = Vec::new();
    for (path, item) in api["paths"].as_object().expect("paths") {
        for method in ["get", "post", "put", "patch", "delete"] {
            let operation = &item[method];
            if operation.is_null() {
                continue;
            }
            let security = operation["security"].as_array().expect("every route says who may call it");
            let needs = match security.first().and_then(|one| one.get("key")) {
                None => Needs::Nothing,
                Some(scopes) => match scopes[0].as_str() {
                    None => Needs::SomeCaller,
                    Some(scope) if security.iter().any(|one| one.get("user").is_some()) => {
                        Needs::ScopeOrUser(scope.to_owned())
                    }
                    Some(scope) => Needs::Scope(scope.to_owned()),
                },
            };
            let some_id = "01900000-0000-7000-8000-000000000000";
            let path = path.replace("{id}", some_id).replace("{name}", "some-queue");
            let path = path.replace("{requestId}", "some-request").replace("{provider}", "some-provider");
            let path = path.replace("{placeId}", "some-place");
            let path = path.replace("/dashboard/{file}", "/dashboard/main.js");
            let path = path.replace("/vendor/{file}", "/vendor/uPlot.min.css");
            let path = path.replace("{pid}", "some-partition").replace("{source}", "some-source");
            assert!(!path.contains('{'), "{path}");
            routes.push(Route { method: method.to_owned(), path, needs });
        }
    }
    assert!(routes.len() >= 20);
    routes
}

/// No key, a wrong key, a key without the scope, a user's token, an expired one: refused, each with
/// its code; with the scope it is let through.
#[tokio::test]
async fn every_route_asks_for_what_it_needs() {
    let server = server().await;
    let all = ["enrich", "products", "reserve", "feed", "admin"];
    let folder = server.folder.path();
    let mut by_scope = std::collections::HashMap::new();
    for area in all {
        for right in ["read", "write"] {
            let scope = format!("{area}:{right}");
            by_scope.insert(scope.clone(), key(folder, &[&scope]));
        }
    }
    let mut wrong = by_scope["admin:write"].clone();
    wrong.pop();
    wrong.push('0');
    let (user, expired) = (user_token("u1", 60), user_token("u1", -60));
    let refused = |code: &str, body: &Value| assert_eq!(body["error"], code, "{body}");
    for route in routes(&server).await {
        let Route { method, path, needs } = &route;
        let what = format!("{method} {path}");
        if matches!(needs, Needs::Nothing) {
            let (status, _) = call(&server, method, path, None).await;
            assert!(status < 300, "{what}: {status}");
            continue;
        }
        for bearer in [None, Some("nonsense"), Some(wrong.as_str()), Some(expired.as_str()), Some("")] {
            let (status, body) = call(&server, method, path, bearer).await;
            assert_eq!(status, 401, "{what} {bearer:?}: {body}");
            refused("UNAUTHENTICATED", &body);
        }
        let (Needs::Scope(needed) | Needs::ScopeOrUser(needed)) = needs else {
            for bearer in [by_scope["feed:read"].as_str(), &user] {
                let (status, body) = call(&server, method, path, Some(bearer)).await;
                assert!(status != 401 && status != 403 && status < 500, "{what}: {status} {body}");
            }
            continue;
        };
        let (status, body) = call(&server, method, path, Some(&user)).await;
        let users_too = matches!(needs, Needs::ScopeOrUser(_));
        assert_eq!(status == 403, !users_too, "{what} by a user: {body}");
        let (area, right) = needed.split_once(':').expect("a scope");
        for (scope, key) in &by_scope {
            let (status, body) = call(&server, method, path, Some(key)).await;
            let may = scope == needed || (right == "read" && *scope == format!("{area}:write"));
            if may {
                assert!(
                    status != 401 && status != 403 && status < 500,
                    "{what} with {scope}: {status} {body}"
                );
            } else {
                assert_eq!(status, 403, "{what} with {scope}: {body}");
                refused("FORBIDDEN", &body);
            }
        }
    }
    let (status, body) = call(&server, "get", "/v1/nothing", None).await;
    assert_eq!((status, &body["error"]), (404, &json!("NOT_FOUND")));
}

/// A revoked key stops within five seconds; until then it worked.
#[tokio::test]
async fn a_revoked_key_stops() {
    let server = server().await;
    let key = key(server.folder.path(), &["admin:read"]);
    assert_eq!(call(&server, "get", "/v1/queues", Some(&key)).await.0, 200);
    let (code, listed, _) = keys(server.folder.path(), &["list", "--json"]);
    assert_eq!(code, Some(0));
    assert!(!listed.contains(key.rsplit_once('_').expect("a secret").1), "the secret is not listed");
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let id = listed[0]["id"].as_str().expect("an id");
    assert_eq!(keys(server.folder.path(), &["revoke", id]).0, Some(0));
    let revoked = Instant::now();
    while call(&server, "get", "/v1/queues", Some(&key)).await.0 == 200 {
        assert!(revoked.elapsed() < Duration::from_secs(5), "it still works");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (code, _, said) = keys(server.folder.path(), &["revoke", id]);
    assert_eq!(code, Some(1));
    assert!(said.contains("revoked already"), "{said}");
}

/// What was opened with a key ends with it, and so do its tickets.
#[tokio::test]
async fn sockets_and_tickets_of_a_revoked_key_end() {
    let server = server().await;
    let key = key(server.folder.path(), &["enrich:read"]);
    let bearer = format!("Bearer {key}");
    let mut open = socket(&server, "", &[("authorization", &bearer)]).await.expect("opens");
    let (_, ticket) = call(&server, "post", "/v1/ws/tickets", Some(&key)).await;
    let id = key.split('_').nth(1).expect("an id");
    assert_eq!(keys(server.folder.path(), &["revoke", id]).0, Some(0));
    let closed = tokio::time::timeout(Duration::from_secs(5), async {
        loop {
            match open.next().await {
                Some(Ok(Message::Close(frame))) => return frame.map(|frame| u16::from(frame.code)),
                Some(Ok(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    });
    assert_eq!(closed.await.expect("within five seconds"), Some(1008));
    let query = format!("?ticket={}", ticket["ticket"].as_str().expect("a ticket"));
    assert_eq!(socket(&server, &query, &[]).await.err(), Some(401), "its ticket is good no more");
}

/// Several scopes may follow one flag, or have one each.
#[test]
fn scopes_are_given_together_or_one_by_one() {
    for scopes in [&["--scope", "feed", "admin:read"][..], &["--scope", "feed", "--scope", "admin:read"]] {
        let folder = TempDir::new().expect("a folder");
        let (code, _, said) = keys(folder.path(), &[&["create", "--name", "a"], scopes].concat());
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("feed:write, admin:read"), "{said}");
    }
}

#[test]
fn a_scope_that_is_not_known_is_refused() {
    let folder = TempDir::new().expect("a folder");
    let (code, _, said) = keys(folder.path(), &["create", "--name", "a", "--scope", "everything"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("reserve"), "{said}");
    let (code, _, said) = keys(folder.path(), &["create", "--name", "", "--scope", "admin"]);
    assert_eq!(code, Some(1), "{said}");
}

pub(crate) async fn socket(
    server: &Server,
    query: &str,
    headers: &[(&'static str, &str)],
) -> Result<tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>, u16>
{
    let url = format!("{}/v1/ws{query}", server.url.replace("http://", "ws://"));
    let mut request = url.into_client_request().expect("a URL");
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().expect("a header"));
    }
    match tokio_tungstenite::connect_async(request).await {
        Ok((socket, _)) => Ok(socket),
        Err(tokio_tungstenite::tungstenite::Error::Http(answer)) => Err(answer.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

/// A socket needs a header or a ticket; a ticket is good once.
#[tokio::test]
async fn a_socket_is_opened_by_header_or_by_ticket_once() {
    let server = server().await;
    let key = key(server.folder.path(), &["enrich:read"]);
    assert_eq!(socket(&server, "", &[]).await.err(), Some(401));
    assert_eq!(socket(&server, "?ticket=nonsense", &[]).await.err(), Some(401));
    let bearer = format!("Bearer {key}");
    let mut open = socket(&server, "", &[("authorization", &bearer)]).await.expect("opens");
    open.send(Message::text(r#"{"type":"ping"}"#)).await.expect("sends");
    let said = loop {
        if let Message::Text(text) = open.next().await.expect("answers").expect("is open") {
            break text.to_string();
        }
    };
    assert_eq!(said, r#"{"type":"pong"}"#);
    let (status, ticket) = call(&server, "post", "/v1/ws/tickets", Some(&key)).await;
    assert_eq!(status, 201, "{ticket}");
    let query = format!("?ticket={}", ticket["ticket"].as_str().expect("a ticket"));
    assert!(socket(&server, &query, &[]).await.is_ok());
    assert_eq!(socket(&server, &query, &[]).await.err(), Some(401), "it was used");
    let (_, ticket) = call(&server, "post", "/v1/ws/tickets", Some(&key)).await;
    let conn = rusqlite::Connection::open(server.file()).expect("opens");
    conn.execute("UPDATE tickets SET expires_at = 1", []).expect("a minute goes by");
    let query = format!("?ticket={}", ticket["ticket"].as_str().expect("a ticket"));
    assert_eq!(socket(&server, &query, &[]).await.err(), Some(401), "it has expired");
    let foreign = [("authorization", bearer.as_str()), ("origin", "https://evil.example")];
    assert_eq!(socket(&server, "", &foreign).await.err(), Some(403));
}

/// A request is listened to by those who may read what enrich knows.
#[tokio::test]
async fn a_subscription_needs_its_scope() {
    let server = server().await;
    let subscribe = r#"{"v":1,"type":"subscribe","channel":"search","requestId":"a"}"#;
    let user = user_token("u1", 60);
    for (bearer, said) in [
        (key(server.folder.path(), &["enrich:read"]), "sub_ack"),
        (key(server.folder.path(), &["feed"]), r#"{"type":"sub_nack","reason":"unauthorized"}"#),
        (user, "unauthorized"),
    ] {
        let bearer = format!("Bearer {bearer}");
        let mut open = socket(&server, "", &[("authorization", &bearer)]).await.expect("opens");
        open.send(Message::text(subscribe)).await.expect("sends");
        let heard = loop {
            if let Message::Text(text) = open.next().await.expect("answers").expect("is open") {
                break text.to_string();
            }
        };
        assert!(heard.contains(said), "{heard}");
    }
}

/// The server stops: sockets are closed with 1001, and it exits with 0.
#[tokio::test]
async fn sockets_are_closed_with_1001_when_the_server_stops() {
    let mut server = Server::start().await;
    let mut open = socket(&server, "", &[]).await.expect("opens");
    server.signal(nix::sys::signal::Signal::SIGTERM);
    let code = loop {
        if let Message::Close(frame) = open.next().await.expect("answers").expect("is open") {
            break frame.map(|frame| u16::from(frame.code));
        }
    };
    assert_eq!(code, Some(1001));
    drop(open);
    assert_eq!(server.ended(), Some(0));
}

/// Without access control a page of another site gets nothing, whatever name it uses.
#[tokio::test]
async fn a_foreign_host_or_origin_is_refused() {
    let env = [("SOLELY__SERVER__CORS_ORIGINS", "[\"https://shop.example\"]")];
    let server = Server::start_with(TempDir::new().expect("a folder"), &env).await;
    let get = async |header: &'static str, value: &str| {
        let request = server.client.get(format!("{}/v1/queues", server.url)).header(header, value);
        request.send().await.expect("answers")
    };
    for (header, value, status) in [
        ("host", "evil.example", 403),
        ("host", "127.0.0.1.evil.example:7420", 403),
        ("host", "localhost", 200),
        ("origin", "https://evil.example", 403),
        ("origin", "null", 403),
        ("origin", server.url.as_str(), 200),
        ("origin", "https://shop.example", 200),
    ] {
        assert_eq!(get(header, value).await.status(), status, "{header}: {value}");
    }
    let allowed = get("origin", "https://shop.example").await;
    assert_eq!(allowed.headers()["access-control-allow-origin"], "https://shop.example");
    let asks = server
        .client
        .request(Method::OPTIONS, format!("{}/v1/leases", server.url))
        .header("origin", "https://shop.example")
        .header("access-control-request-method", "POST")
        .send()
        .await
        .expect("answers");
    assert_eq!(asks.status(), 204);
    assert!(asks.headers()["access-control-allow-methods"].to_str().expect("text").contains("POST"));
}

/// The page and its parts are there, load nothing from elsewhere, and say so.
#[tokio::test]
async fn the_description_and_its_page_are_served() {
    let server = server().await;
    let api = server.get("/openapi.json").await;
    assert_eq!(api["info"]["title"], "solely");
    assert_eq!(api["components"]["securitySchemes"]["key"]["scheme"], "bearer");
    for path in ["/docs", "/docs/docs.js", "/docs/docs.css"] {
        let answer = server.send(Method::GET, path, None).await;
        assert_eq!(answer.status(), 200, "{path}");
        let policy = answer.headers()["content-security-policy"].to_str().expect("text").to_owned();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        let text = answer.text().await.expect("text");
        assert!(!text.contains("://") && !text.contains("innerHTML"), "{path}");
    }
}

/// A user reserves, extends, gives back and reads for itself alone; paying, collecting and stock are the service's.
#[tokio::test]
async fn a_user_has_what_is_its_own() {
    let server = server().await;
    let service = key(server.folder.path(), &["reserve:write"]);
    let ask = async |bearer: &str, method: &str, path: &str, body: Value| {
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        let request = server.client.request(method, format!("{}{path}", server.url)).bearer_auth(bearer);
        let answer = request.json(&body).send().await.expect("answers");
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap_or_default())
    };
    crate::reserve::stock(async |path: &str, body| ask(&service, "POST", path, body).await, "box", 5).await;
    let (u1, u2) = (user_token("u1", 60), user_token("u2", 60));
    let reserve = json!({"userId": "u1", "boxInventoryId": "box"});
    assert_eq!(ask(&u2, "POST", "/v1/reservations", reserve.clone()).await.0, 403, "for another");
    let (status, held) = ask(&u1, "POST", "/v1/reservations", reserve).await;
    assert_eq!(status, 201, "{held}");
    let path = format!("/v1/reservations/{}", held["id"].as_str().expect("an id"));
    let empty = json!({});
    assert_eq!(ask(&u1, "GET", &path, empty.clone()).await.0, 200);
    assert_eq!(ask(&u2, "GET", &path, empty.clone()).await.0, 403);
    assert_eq!(ask(&u2, "POST", &format!("{path}/cancel"), empty.clone()).await.0, 403);
    assert_eq!(ask(&u2, "POST", &format!("{path}/extend"), empty.clone()).await.0, 403);
    assert_eq!(ask(&u1, "POST", &format!("{path}/confirm"), empty.clone()).await.0, 403, "the service's");
    assert_eq!(ask(&u1, "POST", &format!("{path}/extend"), empty.clone()).await.0, 200);
    let (_, own) = ask(&u1, "GET", "/v1/reservations", empty.clone()).await;
    assert_eq!(own["items"].as_array().map(Vec::len), Some(1));
    let (_, others) = ask(&u2, "GET", "/v1/reservations", empty.clone()).await;
    assert_eq!(others["items"], json!([]), "without a userId: one's own");
    assert_eq!(ask(&u2, "GET", "/v1/reservations?userId=u1", empty.clone()).await.0, 403);
    assert_eq!(ask(&u1, "POST", &format!("{path}/cancel"), empty.clone()).await.0, 200);
    assert_eq!(ask(&u1, "PATCH", "/v1/inventory/box", json!({"addQuantity": 1})).await.0, 403);
    let waits = "/v1/inventory/box/waitlist";
    assert_eq!(ask(&u2, "POST", waits, json!({"userId": "u1"})).await.0, 403, "for another");
    let (status, wait) = ask(&u1, "POST", waits, json!({"userId": "u1"})).await;
    assert_eq!((status, &wait["status"]), (201, &json!("OFFERED")), "{wait}");
    let (_, seen) = ask(&u2, "GET", waits, empty.clone()).await;
    assert_eq!(seen["items"], json!([]), "who else waits is the service's to know");
    assert_eq!(ask(&u1, "GET", waits, empty.clone()).await.1["items"][0]["userId"], "u1");
    let offer = format!("/v1/reservations/{}/accept", wait["reservationId"].as_str().expect("an id"));
    assert_eq!(ask(&u2, "POST", &offer, empty.clone()).await.0, 403);
    assert_eq!(ask(&u1, "POST", &offer, empty.clone()).await.0, 200);
    let entry = format!("/v1/waitlist/{}", wait["id"].as_str().expect("an id"));
    assert_eq!(ask(&u2, "DELETE", &entry, empty.clone()).await.0, 403);
    assert_eq!(ask(&u1, "DELETE", &entry, empty).await.0, 409, "it was taken");
}
