//! The documents say what is so: links lead somewhere, commands do what is shown, configurations are valid.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use solely_testing::free_port;
use tempfile::TempDir;

use crate::ops::{read, root};
use crate::server::{client, solely};
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

/// A trait that a document quotes is the one that there is.
#[test]
fn quoted_traits_are_as_they_are() {
    for (document, source) in [
        ("docs/ADDING-A-PLUGIN.md", "crates/solely-core/src/products/plugin.rs"),
        ("docs/ADDING-A-SOURCE.md", "crates/solely-core/src/feed/source.rs"),
    ] {
        let (blocks, source) = (parts(&read(document)).1, read(source));
        let quoted = blocks.iter().find(|block| block.language == "rust").expect("a trait");
        assert!(source.contains(&quoted.text), "{document} quotes what is not there:\n{}", quoted.text);
    }
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

/// A place where blocks are run: ports of its own, a folder of its own.
struct Stage {
    folder: TempDir,
    ports: [u16; 3],
}

impl Stage {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let stage = Self { folder, ports: [free_port(), free_port(), free_port()] };
        // These two have a port of their own that is not in the environment.
        let [server, sandbox, _] = stage.ports;
        let wrapper = format!(
            "#!/bin/sh\ncase \"$1\" in\n  sandbox) shift; exec {0} sandbox --listen 127.0.0.1:{sandbox} \"$@\";;\n  \
             demo) shift; exec {0} demo --listen 127.0.0.1:{server} \"$@\";;\nesac\nexec {0} \"$@\"\n",
            env!("CARGO_BIN_EXE_solely"),
        );
        let bin = stage.folder.path().join("bin");
        std::fs::create_dir(&bin).expect("is made");
        std::fs::write(bin.join("solely"), wrapper).expect("is written");
        std::fs::set_permissions(bin.join("solely"), std::fs::Permissions::from_mode(0o755))
            .expect("may run");
        stage
    }

    /// As it is written, but for the ports, and `cargo run` which would build.
    fn here(&self, text: &str) -> String {
        let text = text.replace("cargo run --release -- ", "solely ");
        let ports = [("7420", self.ports[0]), ("7421", self.ports[1]), ("7422", self.ports[2])];
        ports.iter().fold(text, |text, (shown, port)| text.replace(shown, &port.to_string()))
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), self.here(text)).expect("is written");
    }

    /// Runs a block, and then something while what it left running is there. Each command's output, with what is
    /// shown of it.
    async fn run(&self, block: &str, then: impl AsyncFnOnce(&Self)) -> Vec<Ran> {
        let (steps, mut script) = (steps(&self.here(block)), String::new());
        script.push_str("reached() { for _ in $(seq 600); do (: </dev/tcp/127.0.0.1/$1) 2>/dev/null && return; sleep 0.05; done; echo \"nobody listens on $1\" >&2; exit 1; }\n");
        if !steps
            .iter()
            .any(|step| step.command.starts_with("solely serve") || step.command.starts_with("solely demo"))
        {
            let _ = writeln!(script, "solely serve >/dev/null 2>serve.log &\nreached {}", self.ports[0]);
        }
        for step in &steps {
            let command = &step.command;
            let _ = writeln!(script, "printf '\\036'");
            let beside = command.split(" #").next().expect("a command").trim_end().ends_with('&');
            if beside || command == "solely serve" || command == "solely demo" {
                let port = match command {
                    c if c.starts_with("solely sandbox") => self.ports[1],
                    c if c.starts_with("python3") => self.ports[2],
                    _ => self.ports[0],
                };
                let command = command.split('&').next().expect("a command");
                let _ = writeln!(script, "{command} >/dev/null 2>>beside.log &\nreached {port}");
            } else {
                let _ = writeln!(script, "{command}\n[ $? = 0 ] || exit 1");
            }
        }
        script.push_str("echo; touch done; wait\n");
        std::fs::write(self.folder.path().join("script"), script).expect("is written");
        let path = self.folder.path();
        let log = |name: &str| std::fs::File::create(path.join(name)).expect("a file");
        let bin = format!("{}:{}", path.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("bash");
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.arg("script").current_dir(path).stdin(Stdio::null());
        let child = child.env("PATH", bin).env_remove("DATABASE_URL").env_remove("REDIS_URL");
        let child = child.env("SOLELY_URL", format!("http://127.0.0.1:{}", self.ports[0]));
        let child = child.env("SOLELY__SERVER__LISTEN", format!("127.0.0.1:{}", self.ports[0]));
        let mut group = Group(child.stdout(log("stdout")).stderr(log("stderr")).spawn().expect("starts"));
        let deadline = Instant::now() + Duration::from_secs(90);
        while !path.join("done").exists() {
            let ended = group.0.try_wait().expect("waits");
            assert!(ended.is_none() && Instant::now() < deadline, "{block}\n{}", self.told());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        then(self).await;
        let output = std::fs::read_to_string(path.join("stdout")).expect("text");
        let outputs = output.split('\u{1e}').skip(1);
        steps
            .into_iter()
            .zip(outputs)
            .map(|(step, output)| Ran { step, output: output.trim().to_owned() })
            .collect()
    }

    fn told(&self) -> String {
        let told = ["stdout", "stderr", "beside.log", "serve.log"]
            .map(|name| std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default());
        told.join("\n")
    }

    async fn get(&self, path: &str) -> Value {
        let url = format!("http://127.0.0.1:{}{path}", self.ports[0]);
        client().get(url).send().await.expect("answers").json().await.expect("JSON")
    }
}

/// The processes of a script, ended with it.
struct Group(std::process::Child);

impl Drop for Group {
    fn drop(&mut self) {
        let group = Pid::from_raw(i32::try_from(self.0.id()).expect("a pid"));
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// A command and what is shown of its output.
struct Step {
    command: String,
    shown: Option<String>,
}

struct Ran {
    step: Step,
    output: String,
}

/// The commands of a block; a comment on a line of its own after a `curl` is what it answers.
fn steps(block: &str) -> Vec<Step> {
    let (mut steps, mut lines): (Vec<Step>, _) = (Vec::new(), block.lines());
    while let Some(line) = lines.next() {
        if let Some(shown) = line.strip_prefix("# ") {
            let shown = shown.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
            steps.last_mut().expect("a command comes first").shown = Some(shown.to_owned());
        } else if !line.is_empty() {
            let mut command = line.to_owned();
            if line.contains("<<") {
                let end = line.rsplit("<<").next().expect("a mark").trim_matches('\'');
                for line in lines.by_ref() {
                    let _ = write!(command, "\n{line}");
                    if line == end {
                        break;
                    }
                }
            }
            steps.push(Step { command, shown: None });
        }
    }
    steps
}

fn assert_as_shown(ran: &[Ran]) {
    for Ran { step, output } in ran {
        match &step.shown {
            Some(shown) => assert!(is_as_shown(output, shown), "{}\n{output}\nis not\n{shown}", step.command),
            None => assert!(!output.starts_with("{\"error\""), "{}\n{output}", step.command),
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
    for document in
        ["README.md", "docs/RESERVE.md", "docs/PRODUCTS.md", "docs/DASHBOARD.md", "docs/OPERATING.md"]
    {
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
