//! The documents say what is so: links lead somewhere, commands do what is shown, configurations are valid.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use solely_testing::free_port;
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;

use crate::ops::{read, root};
use crate::server::solely;
use crate::stage::{Stage, assert_as_shown, steps};
use crate::walk::is_as_shown;

/// Every document that a reader is led to.
pub(crate) fn documents() -> Vec<String> {
    let folder = std::fs::read_dir(root().join("docs")).expect("docs");
    let pages = folder.flatten().map(|file| file.path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let name = |path: PathBuf| format!("docs/{}", path.file_name().expect("a name").to_string_lossy());
    let mut all: Vec<String> = pages.map(name).collect();
    all.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned));
    all.sort();
    all
}

/// A fenced block: its language and what is in it.
pub(crate) struct Block {
    language: String,
    text: String,
}

/// A document without its blocks, and the blocks.
fn parts(document: &str) -> (String, Vec<Block>) {
    let (mut prose, mut blocks, mut open): (String, Vec<Block>, Option<Block>) = Default::default();
    for line in document.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => {
                open = Some(Block { language: language.to_owned(), text: String::new() });
            }
            (Some(_), Some("")) => blocks.extend(open.take()),
            (Some(block), _) => block.text.extend([line, "\n"]),
            (None, None) => prose.extend([line, "\n"]),
        }
    }
    assert!(open.is_none(), "a block has no end");
    (prose, blocks)
}

/// Text in backticks is not looked at for links.
fn without_code(prose: &str) -> String {
    prose.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// The anchors of a document's headings, as they are made where it is shown.
fn anchors(document: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let (prose, _) = parts(document);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let text = line.trim_start_matches('#').trim().to_lowercase();
            let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
            let count = counts.entry(anchor.clone()).or_default();
            *count += 1;
            if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
        })
        .collect()
}

#[test]
fn every_link_leads_somewhere() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for document in documents() {
        let (prose, _) = parts(&read(&document));
        let prose = without_code(&prose);
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            seen += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let beside = root().join(&document);
            let path = if file.is_empty() { beside } else { beside.parent().expect("a folder").join(file) };
            let there = path.exists()
                && (anchor.is_empty()
                    || anchors(&std::fs::read_to_string(&path).expect("text")).contains(anchor));
            if !there {
                wrong.push(format!("{document}: {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "lead nowhere:\n{}", wrong.join("\n"));
    assert!(seen >= 20, "{seen} links");
}

#[test]
fn every_configuration_is_valid() {
    let (folder, mut seen) = (TempDir::new().expect("a folder"), 0);
    for document in documents() {
        let ours = |block: &&Block| block.language == "toml" && !block.text.starts_with("[dependencies]");
        for block in parts(&read(&document)).1.iter().filter(ours) {
            std::fs::write(folder.path().join("shown.toml"), &block.text).expect("is written");
            let output =
                solely(folder.path()).args(["config", "--config", "shown.toml"]).output().expect("runs");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{document}: {said}\n{}", block.text);
            seen += 1;
        }
    }
    assert!(seen >= 4, "{seen} configurations");
}

/// What is shown as JSON is JSON: a value, or one a line.
#[test]
fn every_json_is_json() {
    let mut seen = 0;
    for document in documents() {
        for block in parts(&read(&document)).1.iter().filter(|block| block.language == "json") {
            let parses = |text: &str| serde_json::from_str::<Value>(text).is_ok();
            assert!(parses(&block.text) || block.text.lines().all(parses), "{document}:\n{}", block.text);
            seen += 1;
        }
    }
    assert!(seen >= 5, "{seen} blocks");
}

/// `cargo xtask …` in the documents is a task that there is.
#[test]
fn tasks_of_the_repository_exist() {
    let (source, mut seen) = (read("xtask/src/main.rs"), 0);
    let tasks = source.split_once("enum Task {").expect("tasks").1.to_lowercase();
    for document in documents() {
        for rest in read(&document).split("cargo xtask ").skip(1) {
            let task: String = rest.chars().take_while(char::is_ascii_lowercase).collect();
            let is_named = |end: &str| tasks.contains(&format!("\n    {task}{end}"));
            assert!(is_named(",") || is_named(" {"), "{document}: cargo xtask {task}");
            seen += 1;
        }
    }
    assert!(seen >= 10, "{seen} tasks");
}

/// What a document quotes of the code is what there is, and so it compiles. Names that are the reader's to choose are
/// those of a file that has chosen.
const QUOTED: [(&str, &str, (&str, &str)); 4] = [
    ("docs/ADDING-A-PLUGIN.md", "crates/solely-core/src/products/plugin.rs", ("", "")),
    ("docs/ADDING-A-SOURCE.md", "crates/solely-core/src/feed/source.rs", ("", "")),
    ("docs/ADDING-A-PROVIDER.md", "crates/solely-core/src/enrich/finder/yellow_pages.rs", ("", "")),
    (
        "docs/ADDING-AN-ENGINE.md",
        "crates/solely-conformance/tests/conformance/sqlite.rs",
        ("my_engine::MyEngine", "sqlite::Sqlite"),
    ),
];

#[test]
fn quoted_code_is_as_it_is() {
    for (document, source, (shown, chosen)) in QUOTED {
        let (blocks, source) = (parts(&read(document)).1, read(source));
        for quoted in blocks.iter().filter(|block| block.language == "rust") {
            let text =
                if shown.is_empty() { quoted.text.clone() } else { quoted.text.replace(shown, chosen) };
            assert!(source.contains(&text), "{document} quotes what is not there:\n{text}");
        }
    }
}

/// Documents whose `sh` blocks are run here.
const RUN: [&str; 5] =
    ["README.md", "docs/RESERVE.md", "docs/PRODUCTS.md", "docs/DASHBOARD.md", "docs/OPERATING.md"];

/// Blocks that something of its own runs: documentation tests of the crate `solely`, `walk`, tests below, and
/// `web/tests/client.test.js`. Torture, in the README, is run by `cargo xtask ci`.
const ELSEWHERE: [(&str, &str); 8] = [
    ("rust", "README.md"),
    ("rust", "docs/LIBRARY.md"),
    ("console", "docs/ENRICH.md"),
    ("sh", "docs/ADDING-A-PROVIDER.md"),
    ("python", "docs/ADDING-A-PROVIDER.md"),
    ("sql", "docs/OPERATING.md"),
    ("http", "docs/ADDING-A-PLUGIN.md"),
    ("js", "docs/DASHBOARD.md"),
];

/// No block escapes: each is of a kind that something runs, compiles or compares.
#[test]
fn every_block_is_seen_to() {
    let quoted = |document: &str| QUOTED.iter().any(|(quoted, ..)| *quoted == document);
    for document in documents() {
        let doc = document.as_str();
        for Block { language, text } in parts(&read(doc)).1 {
            let seen_to = match language.as_str() {
                // Pictures, and what a command prints; and what every document is looked at for.
                "text" | "toml" | "json" => true,
                "rust" => quoted(doc) || ELSEWHERE.contains(&("rust", doc)),
                // Tasks of the repository: `ci` is what runs this.
                "sh" if doc == "CONTRIBUTING.md" => text.lines().all(|line| line.starts_with("cargo xtask ")),
                "sh" if RUN.contains(&doc) => true,
                language => ELSEWHERE.contains(&(language, doc)),
            };
            assert!(seen_to, "{doc}: nothing runs this {language}:\n{text}");
        }
    }
}

fn block(document: &str, language: &str) -> String {
    let found = parts(&read(document)).1.into_iter().find(|block| block.language == language);
    found.unwrap_or_else(|| panic!("no {language} in {document}")).text
}

/// What a server asks for when it connects, as the database hears it.
async fn asked_of_a_database() -> String {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", free_port())).await.expect("listens");
    let url =
        format!("postgres://solely@{}/solely?sslmode=disable", listener.local_addr().expect("an address"));
    let opening = tokio::spawn(async move {
        let options = solely_postgres::Options::default();
        drop(solely_postgres::PostgresStore::open(&url, &options).await);
    });
    let mut hello = Vec::new();
    while !hello.ends_with(b"\0\0") {
        let (mut stream, _) = listener.accept().await.expect("is called");
        // Its length comes first, then pairs of names and values, each with its end.
        let length = usize::try_from(stream.read_u32().await.expect("a length")).expect("fits") - 4;
        hello = vec![0; length];
        stream.read_exact(&mut hello).await.expect("is whole");
    }
    opening.abort();
    let said = String::from_utf8_lossy(&hello[4..]).into_owned();
    let mut parts = said.split('\0').skip_while(|part| *part != "options");
    parts.nth(1).expect("options").to_owned()
}

/// A role with the settings that are shown has, without asking for them, what solely asks for when it connects.
#[tokio::test]
async fn a_role_is_given_what_solely_asks_for() {
    let (shown, url) = (block("docs/OPERATING.md", "sql"), solely_testing::fresh_database());
    let connect = async |config: tokio_postgres::Config| {
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("connects");
        tokio::spawn(connection);
        client
    };
    let mut config: tokio_postgres::Config = url.parse().expect("a URL");
    let owner = connect(config.clone()).await;
    let role = format!("solely_{}", uuid::Uuid::new_v4().simple());
    let made = shown.replace("ROLE solely ", &format!("ROLE {role} "));
    owner.batch_execute(&format!("CREATE ROLE {role} LOGIN; {made}")).await.expect("runs");
    let given = connect(config.clone().user(&role).clone()).await;
    let asked = connect(config.options(asked_of_a_database().await).clone()).await;
    let settings: Vec<&str> = shown.lines().filter_map(|line| line.split_whitespace().nth(4)).collect();
    assert!(settings.len() >= 10, "{settings:?}");
    for setting in settings {
        let value = async |client: &tokio_postgres::Client| -> String {
            client.query_one(&format!("SHOW {setting}"), &[]).await.expect("is a setting").get(0)
        };
        assert_eq!(value(&given).await, value(&asked).await, "{setting}");
    }
    drop(given);
    owner.batch_execute(&format!("DROP ROLE {role}")).await.expect("runs");
}

/// An `http` plugin is asked as it is shown, and its answer, as it is shown, is what a search has.
#[tokio::test]
async fn a_plugin_is_asked_as_it_is_shown() {
    let (document, asked) = ("docs/ADDING-A-PLUGIN.md", block("docs/ADDING-A-PLUGIN.md", "http"));
    let answer = block(document, "json");
    let (told, mut calls) = tokio::sync::mpsc::unbounded_channel();
    let answered = answer.clone();
    let plugin = axum::Router::new().fallback(move |request: axum::extract::Request| async move {
        let line = format!("{} {}", request.method(), request.uri().path());
        let kind = request.headers()["content-type"].to_str().expect("text").to_owned();
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.expect("a body");
        told.send((line, kind, String::from_utf8(body.to_vec()).expect("text"))).expect("is heard");
        ([("content-type", "application/json")], answered)
    });
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", free_port())).await.expect("listens");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, plugin).await });
    let folder = TempDir::new().expect("a folder");
    let config = format!("[products.plugins.boats]\nkind = \"http\"\nurl = \"{url}\"\n");
    std::fs::write(folder.path().join("solely.toml"), config).expect("is written");
    let server = crate::server::Server::start_in(folder).await;
    let search = serde_json::json!({"appKey": "boats", "userId": "u1", "token": {"key": "k"}, "payload": {"area": "north"}});
    let (_, found) = server.post("/v1/products/search", search).await;
    let products = &serde_json::from_str::<Value>(&answer).expect("JSON")["products"];
    assert_eq!(&found["products"], products);
    let (line, kind, body) = calls.recv().await.expect("is asked");
    let (head, shown) = asked.split_once("\n\n").expect("a head and a body");
    let mut head = head.lines();
    let request = head.next().expect("a line").replace("{url}", "").replace("{operation}", "searchProducts");
    assert_eq!((line, head.next()), (request, Some(&*format!("Content-Type: {kind}"))));
    assert!(is_as_shown(&body, shown.trim()), "{body}\nis not\n{shown}");
}

/// Promises name tests that there are. `…` stands for any ending, or for the module that was named before.
#[test]
fn every_test_that_is_named_exists() {
    let mut sources = String::new();
    for krate in std::fs::read_dir(root().join("crates")).expect("crates").flatten() {
        gather(&krate.path(), &mut sources);
    }
    let functions: BTreeSet<&str> = sources
        .split("fn ")
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next())
        .collect();
    let mut missing = Vec::new();
    // What `cargo xtask mutate` found is the record of a run, and names what there was then.
    let promises = read("docs/GUARANTEES.md");
    let promises = promises.split("## Whether the tests would notice").next().expect("promises");
    for line in promises.lines().filter(|line| line.starts_with("| ")) {
        let Some(tests) = line.trim_end_matches(" |").rsplit(" | ").next() else { continue };
        for named in tests.split('`').skip(1).step_by(2) {
            let is_a_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '…');
            if !named.chars().all(is_a_name) || !(named.contains("::") || named.starts_with('…')) {
                continue;
            }
            let name = named.rsplit("::").next().unwrap_or(named);
            if !functions.iter().any(|function| is_as_shown(function, name)) {
                missing.push(named.to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "docs/GUARANTEES.md names tests that there are not: {missing:?}");
}

fn gather(folder: &Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            gather(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&std::fs::read_to_string(&path).expect("text"));
        }
    }
}

/// Blocks whose commands are ours, or lead to them. Torture takes its time and has tests of its own: of its commands
/// only the flags are looked at.
fn is_run(block: &Block) -> bool {
    let begins = ["solely ", "curl ", "cat ", "export ", "cargo run --release -- ", "python3 ", "sleep "];
    let ours = |line: &str| line.is_empty() || begins.iter().any(|word| line.starts_with(word));
    let commands = steps(&block.text);
    block.language == "sh"
        && commands.iter().all(|step| step.command.lines().next().is_some_and(ours))
        && !block.text.contains("-- torture")
}

#[tokio::test]
async fn commands_of_the_documents_do_what_is_shown() {
    let mut seen = 0;
    for document in RUN {
        let mut config = String::new();
        for block in parts(&read(document)).1 {
            match block.language.as_str() {
                "toml" => config = block.text,
                _ if is_run(&block) => {
                    println!("{document}:\n{}", block.text);
                    let stage = Stage::new();
                    stage.write("solely.toml", &config);
                    assert_as_shown(&stage.run(&block.text, async |_| {}).await);
                    seen += 1;
                }
                "sh" => {
                    let commands = block.text.replace("cargo run --release --", "solely");
                    assert!(commands.lines().all(|line| line.starts_with("solely torture ")), "{commands}");
                    for line in commands.lines() {
                        crate::ops::assert_command(line.split('#').next().expect("a command"));
                    }
                }
                _ => {}
            }
        }
    }
    assert!(seen >= 12, "{seen} blocks");
}

/// A finder in another language: the document's own code, configuration and commands, and a link that is found.
#[tokio::test]
async fn the_finder_of_the_document_finds() {
    let document = read("docs/ADDING-A-PROVIDER.md");
    let section =
        document.split("\n## ").find(|part| part.starts_with("A finder in Python")).expect("a section");
    let blocks = parts(section).1;
    let of = |language: &str| {
        let found = blocks.iter().find(|block| block.language == language);
        &found.unwrap_or_else(|| panic!("no {language}")).text
    };
    let stage = Stage::new();
    stage.write("finder.py", of("python"));
    stage.write("solely.toml", of("toml"));
    let lines = of("python").lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= 40, "{lines} lines");
    let found = async |stage: &Stage| {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let answer = stage.get("/v1/enrich/req-1").await;
            let first = &answer["results"][0]["providers"]["menus"];
            if first["status"] == "FOUND" {
                assert!(first["url"].as_str().is_some_and(|url| url.contains("pizza-house")), "{first}");
                let other = &answer["results"][1]["providers"]["menus"];
                if other["status"] == "NOT_FOUND" {
                    return;
                }
            }
            assert!(Instant::now() < deadline, "{answer}\n{}", stage.told());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert_as_shown(&stage.run(of("sh"), found).await);
}
