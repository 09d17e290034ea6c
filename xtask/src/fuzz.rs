//! Thousands of requests made from the description of the routes, against a real server.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::run;

/// Checks that every answer is held to.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_schema_conformance,refused_changes_nothing,errors_have_one_shape";

/// Fuzzes every route where the tool for it can be had; it comes from outside.
pub(crate) fn fuzz_if_possible(root: &Path, cases: u32) -> Result<()> {
    match install(root) {
        Ok(_) => fuzz(root, cases),
        Err(error) => {
            println!("schemathesis cannot be installed; `cargo xtask fuzz` needs it: {error:#}");
            Ok(())
        }
    }
}

/// Fuzzes every route, with so many cases each.
pub(crate) fn fuzz(root: &Path, cases: u32) -> Result<()> {
    let schemathesis = install(root)?;
    run(&mut crate::cargo(&["build", "--workspace", "--bin", "solely"]))?;
    let (folder, solely) = (tempfile::TempDir::new()?, root.join("target/debug/solely"));
    let command = |args: &[&str]| {
        let mut command = Command::new(&solely);
        command.args(args).current_dir(folder.path()).env("SOLELY__AUTH__MODE", "keys");
        command.env_remove("DATABASE_URL").env_remove("REDIS_URL");
        // A finder that is not there: requests are answered all the same.
        command.env("SOLELY__ENRICH__PROVIDERS__WOLT__ENABLED", "true");
        command.env("SOLELY__ENRICH__PROVIDERS__WOLT__URL", "http://127.0.0.1:9/");
        command
    };
    let made = command(&[
        "keys", "create", "--name", "fuzz", "--scope", "admin", "--scope", "feed", "--scope", "enrich",
        "--scope", "products", "--scope", "reserve",
    ])
    .output()?;
    let key = String::from_utf8(made.stdout)?.trim().to_owned();
    let address = format!("127.0.0.1:{}", solely_testing::free_port());
    let server = command(&["serve", "--listen", &address]).stderr(Stdio::null()).spawn()?;
    let _server = Server(server);
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::net::TcpStream::connect(&address).is_err() {
        if Instant::now() > deadline {
            bail!("the server does not start");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // In a folder of its own, where it keeps what it finds.
    let passed = Command::new(schemathesis)
        .current_dir(folder.path())
        .arg("run")
        .arg(format!("http://{address}/openapi.json"))
        .args(["--header", &format!("Authorization: Bearer {key}"), "--checks", CHECKS])
        .args(["--max-examples", &cases.to_string(), "--phases", "coverage,fuzzing", "--no-color"])
        // The socket is no request and answer.
        .args(["--exclude-path", "/v1/ws", "--suppress-health-check", "all"])
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env("PYTHONPATH", root.join("xtask/fuzz"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SOLELY_FUZZ_URL", format!("http://{address}"))
        .env("SOLELY_FUZZ_KEY", key)
        .status()?;
    if !passed.success() {
        bail!("fuzzing found something");
    }
    Ok(())
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Schemathesis in an environment of its own, below `target`.
fn install(root: &Path) -> Result<PathBuf> {
    let home = root.join("target/tools/schemathesis");
    let program = home.join("bin/schemathesis");
    if !program.is_file() {
        println!("installing schemathesis");
        run(Command::new("python3").args(["-m", "venv"]).arg(&home))
            .context("the Debian package python3-venv has what this needs")?;
        run(Command::new(home.join("bin/pip")).args(["install", "--quiet", "schemathesis==4.32.5"]))?;
    }
    Ok(program)
}
