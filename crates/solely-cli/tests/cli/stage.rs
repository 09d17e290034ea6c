//! Blocks of documents, run as they are written: ports and a folder of their own, and nothing else is changed.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use solely_testing::free_port;
use tempfile::TempDir;

use crate::server::client;
use crate::walk::is_as_shown;

/// Waits until somebody answers, or at least listens, on a port; and how the script ends.
const REACHED: &str = "trap 'wait; exit 0' TERM\n\
    reached() { for _ in $(seq 600); do $2 2>/dev/null && return; sleep 0.05; done; echo \"nobody on $1\" >&2; exit 1; }\n\
    listens() { reached $1 \"bash -c :</dev/tcp/127.0.0.1/$1\"; }\n\
    answers() { reached $1 \"curl -sf -o /dev/null 127.0.0.1:$1/readyz\"; }\n";

/// A place where blocks are run: ports of its own, a folder of its own.
pub(crate) struct Stage {
    folder: TempDir,
    ports: [u16; 3],
}

impl Stage {
    pub(crate) fn new() -> Self {
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

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), self.here(text)).expect("is written");
    }

    /// Runs a block, and then something while what it left running is there. Each command's output, with what is
    /// shown of it.
    pub(crate) async fn run(&self, block: &str, then: impl AsyncFnOnce(&Self)) -> Vec<Ran> {
        let (steps, mut script) = (steps(&self.here(block)), String::new());
        script.push_str(REACHED);
        if !steps
            .iter()
            .any(|step| step.command.starts_with("solely serve") || step.command.starts_with("solely demo"))
        {
            let _ = writeln!(script, "solely serve >/dev/null 2>serve.log &\nanswers {}", self.ports[0]);
        }
        for step in &steps {
            let command = &step.command;
            let _ = writeln!(script, "printf '\\036'");
            let beside = command.split(" #").next().expect("a command").trim_end().ends_with('&');
            if beside || command == "solely serve" || command == "solely demo" {
                let (there, port) = match command {
                    c if c.starts_with("solely sandbox") => ("listens", self.ports[1]),
                    c if c.starts_with("python3") => ("listens", self.ports[2]),
                    _ => ("answers", self.ports[0]),
                };
                let command = command.split('&').next().expect("a command");
                let _ = writeln!(script, "{command} >/dev/null 2>>beside.log &\n{there} {port}");
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

    pub(crate) fn told(&self) -> String {
        let told = ["stdout", "stderr", "beside.log", "serve.log"]
            .map(|name| std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default());
        told.join("\n")
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let url = format!("http://127.0.0.1:{}{path}", self.ports[0]);
        client().get(url).send().await.expect("answers").json().await.expect("JSON")
    }
}

/// The processes of a script, told to stop with it, so that each takes away what it made; then killed.
struct Group(std::process::Child);

impl Drop for Group {
    fn drop(&mut self) {
        let group = Pid::from_raw(i32::try_from(self.0.id()).expect("a pid"));
        let _ = killpg(group, Signal::SIGTERM);
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.0.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// A command and what is shown of its output.
pub(crate) struct Step {
    pub(crate) command: String,
    shown: Option<String>,
}

/// A command that was run.
pub(crate) struct Ran {
    step: Step,
    output: String,
}

/// The commands of a block; a comment on a line of its own after a `curl` is what it answers.
pub(crate) fn steps(block: &str) -> Vec<Step> {
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

/// What commands said is what is shown; where nothing is shown, it is no error.
pub(crate) fn assert_as_shown(ran: &[Ran]) {
    for Ran { step, output } in ran {
        match &step.shown {
            Some(shown) => assert!(is_as_shown(output, shown), "{}\n{output}\nis not\n{shown}", step.command),
            None => assert!(!output.starts_with("{\"error\""), "{}\n{output}", step.command),
        }
    }
}
