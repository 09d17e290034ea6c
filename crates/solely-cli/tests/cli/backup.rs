//! Backups while a server is written to, and what is restored from them.

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::reserve::stock;
use crate::server::{Server, solely};

type Env<'a> = &'a [(&'a str, &'a str)];

fn run(folder: &Path, args: &[&str], env: Env<'_>) -> Output {
    solely(folder).args(args).envs(env.iter().copied()).output().expect("runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn succeeds(folder: &Path, args: &[&str], env: Env<'_>) -> String {
    let output = run(folder, args, env);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refuses(folder: &Path, args: &[&str], env: Env<'_>, says: &str) {
    let output = run(folder, args, env);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
}

fn folder() -> TempDir {
    TempDir::new().expect("a folder")
}

/// Four callers reserve until they are told to stop; each has the ids that it was told, in order.
struct Buyers {
    stop: Arc<AtomicBool>,
    told: Arc<std::sync::Mutex<Vec<String>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Buyers {
    fn start(server: &Server) -> Self {
        let (stop, told) = (Arc::new(AtomicBool::new(false)), Arc::new(std::sync::Mutex::default()));
        let buy = |who: usize| {
            let (stop, told) = (stop.clone(), told.clone());
            let (client, url) = (server.client.clone(), format!("{}/v1/reservations", server.url));
            tokio::spawn(async move {
                for n in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let body = json!({"userId": format!("u{who}-{n}"), "boxInventoryId": "box"});
                    let answer = client.post(&url).body(body.to_string()).send().await.expect("answers");
                    assert_eq!(answer.status(), 201);
                    let made: Value = answer.json().await.expect("JSON");
                    let told: &std::sync::Mutex<Vec<String>> = &told;
                    told.lock().expect("unbroken").push(made["id"].as_str().expect("an id").to_owned());
                }
            })
        };
        let tasks = (0..4).map(buy).collect();
        Self { stop, told, tasks }
    }

    fn told(&self) -> Vec<String> {
        self.told.lock().expect("unbroken").clone()
    }

    /// Waits until they have been told of so many more.
    async fn more(&self, more: usize) -> Vec<String> {
        let least = self.told().len() + more;
        while self.told().len() < least {
            tokio::task::yield_now().await;
        }
        self.told()
    }

    async fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.expect("each was answered");
        }
        self.told.lock().expect("unbroken").clone()
    }
}

/// How many of these reservations a server knows, and what is left of the boxes.
async fn known(server: &Server, ids: &[String]) -> usize {
    let mut known = 0;
    for id in ids {
        let path = format!("/v1/reservations/{id}");
        let answer = server.send(reqwest::Method::GET, &path, None).await;
        known += usize::from(answer.status() == 200);
    }
    known
}

/// Backs up under way, restores elsewhere: everything that was answered before is there, and of what came after a part.
async fn a_backup_is_one_instant(from: Env<'_>, to: Env<'_>) {
    let server = Server::start_with(folder(), from).await;
    stock(async |path: &str, body| server.post(path, body).await, "box", 1_000_000).await;
    let lease = json!({"keys": ["k"], "owner": "o", "ttlMs": 600_000});
    let (_, lease) = server.post("/v1/leases", lease).await;
    let buyers = Buyers::start(&server);
    let before = buyers.more(20).await;
    let said = succeeds(server.folder.path(), &["backup", "b1"], from);
    assert!(said.contains("backed up in b1"), "{said}");
    buyers.more(20).await;
    let all = buyers.end().await;
    refuses(server.folder.path(), &["backup", "b1"], from, "there already");

    let elsewhere = folder();
    let backup = server.folder.path().join("b1").display().to_string();
    succeeds(elsewhere.path(), &["restore", &backup], to);
    let checked = succeeds(elsewhere.path(), &["check"], to);
    assert!(checked.contains("no violations"), "{checked}");
    refuses(elsewhere.path(), &["restore", &backup], to, "not empty; --force");
    succeeds(elsewhere.path(), &["restore", &backup, "--force"], to);
    succeeds(elsewhere.path(), &["check"], to);

    let restored = Server::start_with(elsewhere, to).await;
    refuses(restored.folder.path(), &["restore", &backup, "--force"], to, "server");
    assert_eq!(known(&restored, &before).await, before.len(), "what was answered before is there");
    let there = known(&restored, &all).await;
    assert!(there < all.len(), "what came after the instant is not");
    let item = restored.get("/v1/inventory/box").await;
    let taken = 1_000_000 - item["remainingQuantity"].as_u64().expect("a number");
    // Those that were made and not answered yet when the buyers were asked are none: they have all been answered.
    assert_eq!(taken, there as u64, "boxes and reservations are of one instant");

    let again = json!({"keys": ["other"], "owner": "o", "ttlMs": 60_000});
    let (status, again) = restored.post("/v1/leases", again).await;
    assert_eq!(status, 200, "{again}");
    let fence = |lease: &Value| lease["fence"].as_u64().expect("a fence");
    assert!(fence(&again) > fence(&lease) + (1 << 31), "fences go on far above: {again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_sqlite_is_one_instant() {
    a_backup_is_one_instant(&[], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_postgres_is_one_instant() {
    let (from, to) = (solely_testing::fresh_database(), solely_testing::fresh_database());
    a_backup_is_one_instant(&[("DATABASE_URL", &from)], &[("DATABASE_URL", &to)]).await;
}

/// A schema of its own goes into one of the same name, beside what else is in the database.
#[test]
fn a_schema_of_its_own_is_restored() {
    let (from, to) = (solely_testing::fresh_database(), solely_testing::fresh_database());
    let schema = ("SOLELY__STORE__SCHEMA", "shop");
    let folder = folder();
    succeeds(folder.path(), &["migrate"], &[("DATABASE_URL", &from), schema]);
    succeeds(folder.path(), &["backup", "b"], &[("DATABASE_URL", &from), schema]);
    succeeds(folder.path(), &["migrate"], &[("DATABASE_URL", &to)]);
    refuses(
        folder.path(),
        &["restore", "b"],
        &[("DATABASE_URL", &to)],
        "holds no store of the schema `public`",
    );
    succeeds(folder.path(), &["restore", "b"], &[("DATABASE_URL", &to), schema]);
    for env in [vec![("DATABASE_URL", to.as_str()), schema], vec![("DATABASE_URL", &to)]] {
        succeeds(folder.path(), &["check"], &env);
    }
}

/// What is no backup, or damaged, changes nothing.
#[test]
fn what_is_damaged_is_not_restored() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    refuses(folder.path(), &["backup", "b"], &[], "there is no store");
    assert!(!path("solely.db").exists() && !path("b").exists(), "nothing was made");
    succeeds(folder.path(), &["keys", "create", "--name", "n", "--scope", "admin"], &[]);
    succeeds(folder.path(), &["backup", "b"], &[]);
    let store = std::fs::read(path("solely.db")).expect("is there");

    refuses(folder.path(), &["restore", "absent", "--force"], &[], "there is no backup");
    std::fs::write(path("text"), "not a backup").expect("is written");
    refuses(folder.path(), &["restore", "text", "--force"], &[], "is no backup");
    let mut damaged = std::fs::read(path("b")).expect("is there");
    let middle = damaged.len() / 2;
    damaged[middle..middle + 4096].fill(0xff);
    std::fs::write(path("damaged"), damaged).expect("is written");
    refuses(folder.path(), &["restore", "damaged", "--force"], &[], "damaged");
    refuses(folder.path(), &["restore", "b"], &[], "not empty");
    refuses(folder.path(), &["backup", "nowhere/b"], &[], "cannot write in `nowhere`");
    assert!(std::fs::read(path("solely.db")).expect("is there") == store, "the store is as it was");

    let names = std::fs::read_dir(folder.path()).expect("a folder").flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let left: Vec<String> =
        names.filter(|name| name.contains("restoring") || name.starts_with('.')).collect();
    assert!(left.is_empty(), "nothing is left behind: {left:?}");
    succeeds(folder.path(), &["restore", "b", "--force"], &[]);
    let keys: Value =
        serde_json::from_str(&succeeds(folder.path(), &["keys", "list", "--json"], &[])).expect("JSON");
    assert_eq!(keys.as_array().map(Vec::len), Some(1));
}

/// A tool that has the file open is not pulled away from under it.
#[test]
fn a_file_that_is_open_is_not_replaced() {
    let folder = folder();
    succeeds(folder.path(), &["migrate"], &[]);
    succeeds(folder.path(), &["backup", "b"], &[]);
    let open = rusqlite::Connection::open(folder.path().join("solely.db")).expect("opens");
    open.query_row("SELECT count(*) FROM jobs", [], |_| Ok(())).expect("reads");
    refuses(folder.path(), &["restore", "b"], &[], "open in another process");
    drop(open);
    succeeds(folder.path(), &["restore", "b"], &[]);
}

/// What a store is known by, and how far its fences are.
fn life(folder: &Path) -> (String, i64) {
    let conn = rusqlite::Connection::open(folder.join("solely.db")).expect("opens");
    let identity = "SELECT id, value FROM store_identity, counters WHERE name = 'fence'";
    conn.query_row(identity, [], |row| Ok((row.get(0)?, row.get(1)?))).expect("is known")
}

/// A store that is restored twice from one backup is another one each time, and its fences grow.
#[test]
fn each_restore_is_another_life() {
    let folder = folder();
    succeeds(folder.path(), &["migrate"], &[]);
    succeeds(folder.path(), &["backup", "b"], &[]);
    let mut lives = vec![life(folder.path())];
    for _ in 0..2 {
        succeeds(folder.path(), &["restore", "b"], &[]);
        lives.push(life(folder.path()));
    }
    assert!(lives.windows(2).all(|pair| pair[0].0 != pair[1].0 && pair[0].1 < pair[1].1), "{lives:?}");
}

/// Without PostgreSQL's programs it says what is missing, and leaves nothing.
#[test]
fn a_missing_program_is_named() {
    let (folder, url) = (folder(), solely_testing::fresh_database());
    let nowhere = folder.path().join("bin").display().to_string();
    let env = [("DATABASE_URL", url.as_str()), ("PATH", nowhere.as_str())];
    refuses(folder.path(), &["backup", "b"], &env, "`pg_dump` is not installed");
    assert!(!folder.path().join("b").exists());
}

/// An empty database is not taken for a store.
#[test]
fn a_database_without_a_store_is_not_backed_up() {
    let (folder, url) = (folder(), solely_testing::fresh_database());
    refuses(folder.path(), &["backup", "b"], &[("DATABASE_URL", &url)], "holds no store");
    assert!(!folder.path().join("b").exists());
}

#[test]
fn both_commands_have_help_with_an_example() {
    for command in ["backup", "restore"] {
        assert!(succeeds(folder().path(), &[command, "--help"], &[]).contains("Example"));
    }
}
