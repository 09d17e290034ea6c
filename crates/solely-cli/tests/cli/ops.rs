//! The operations kit names what there is: metrics, flags, keys, and nothing else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use reqwest::Method;
use serde_json::Value;
use tempfile::TempDir;

use crate::server::{Server, solely};

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/solely-cli")
}

pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Names that begin with a prefix, wherever they are in a text.
fn names(text: &str, prefix: &str, belongs: impl Fn(char) -> bool) -> BTreeSet<String> {
    let found = text.match_indices(prefix).filter(|(at, _)| {
        !text[..*at].ends_with(|before: char| belongs(before) || before == '.' || before == '/')
    });
    found.map(|(at, _)| text[at..].chars().take_while(|c| belongs(*c)).collect()).collect()
}

fn metric_names(text: &str) -> BTreeSet<String> {
    let all = names(text, "solely_", |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    all.into_iter().map(|name| name.strip_suffix("_bucket").map(str::to_owned).unwrap_or(name)).collect()
}

/// Every expression of a dashboard, and the queries of its variables.
fn expressions(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    let variables = dashboard["templating"]["list"].as_array().expect("variables").iter();
    let of_variables = variables.filter_map(|one| one["definition"].as_str().map(str::to_owned));
    targets
        .map(|target| target["expr"].as_str().expect("an expression").to_owned())
        .chain(of_variables)
        .collect()
}

/// A value of a label in an expression, such as `outcome=~"error|too_many"`.
fn label_values(expression: &str, metric: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (at, _) in expression.match_indices(&format!("{metric}{{")) {
        let inside = &expression[at + metric.len() + 1..];
        let inside = &inside[..inside.find('}').expect("an end")];
        for pair in inside.split(',') {
            let Some((label, value)) = pair.split_once('=') else { continue };
            let value = value.trim_start_matches('~').trim_matches('"');
            if !label.ends_with('!') && !value.contains('$') && !value.contains(".*") {
                found.extend(value.split('|').map(|value| (label.trim().to_owned(), value.to_owned())));
            }
        }
    }
    found
}

/// A server with one of everything, so that nothing is left out for want of a label.
async fn whole_server() -> Server {
    let folder = TempDir::new().expect("a folder");
    std::fs::write(
        folder.path().join("solely.toml"),
        "[enrich.providers.wolt]\nenabled = true\nurl = \"http://127.0.0.1:9/finder\"\n\
         [feed.sources.diamonds]\nurl = \"http://127.0.0.1:9/feed\"\n\
         [products.plugins.tours]\nurl = \"http://127.0.0.1:9/products\"\n\
         [reserve]\nwebhook_url = \"http://127.0.0.1:9/hook\"\n",
    )
    .expect("is written");
    Server::start_in(folder).await
}

#[tokio::test]
async fn the_dashboard_and_the_rules_use_metrics_that_there_are() {
    let server = whole_server().await;
    let metrics = server.send(Method::GET, "/metrics", None).await.text().await.expect("text");
    let there: BTreeSet<String> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned))
        .collect();
    let dashboard: Value = serde_json::from_str(&read("ops/grafana/solely.json")).expect("JSON");
    let shown = expressions(&dashboard);
    assert!(shown.len() >= 50, "{} expressions", shown.len());
    let rules = rules();
    assert!(rules.len() >= 12, "{} rules", rules.len());
    let judged: Vec<String> = rules.into_iter().map(|(_, expression)| expression).collect();
    for expression in shown.iter().chain(&judged) {
        for metric in metric_names(expression) {
            assert!(there.contains(&metric), "there is no {metric}: {expression}");
            for (label, value) in label_values(expression, &metric) {
                let has = |line: &&str| {
                    line.starts_with(&format!("{metric}{{")) && line.contains(&format!("{label}=\"{value}\""))
                };
                assert!(
                    metrics.lines().any(|line| has(&line)),
                    "{metric} has no {label}={value}: {expression}"
                );
            }
        }
    }
    let used = metric_names(&shown.join(" "));
    let unseen: Vec<&String> = there.difference(&used).collect();
    assert!(unseen.is_empty(), "not on the dashboard: {unseen:?}");
}

/// Names and expressions of the rules.
fn rules() -> Vec<(String, String)> {
    let file: serde_yaml_ng::Value =
        serde_yaml_ng::from_str(&read("ops/prometheus/solely.rules.yml")).expect("YAML");
    let groups = file["groups"].as_sequence().expect("groups").iter();
    let rules = groups.flat_map(|group| group["rules"].as_sequence().expect("rules"));
    let text = |rule: &serde_yaml_ng::Value, key: &str| rule[key].as_str().expect(key).to_owned();
    rules
        .map(|rule| {
            assert!(rule["annotations"]["summary"].is_string() && rule["labels"]["severity"].is_string());
            (text(rule, "alert"), text(rule, "expr"))
        })
        .collect()
}

/// Every alert of the server has a rule, and every rule and alert has its lines in the documentation.
#[tokio::test]
async fn every_alert_has_a_rule_and_is_explained() {
    let server = Server::start().await;
    let alerts = server.get("/v1/alerts").await;
    let (rules_text, explained) = (read("ops/prometheus/solely.rules.yml"), read("docs/OPERATING.md"));
    let alerts = alerts["items"].as_array().expect("a list");
    assert!(alerts.len() >= 7);
    for alert in alerts.iter().map(|alert| alert["name"].as_str().expect("a name")) {
        assert!(rules_text.contains(&format!("alert: {alert}}}")), "no rule has the label alert: {alert}");
        assert!(explained.contains(&format!("`{alert}`")), "{alert} is not explained");
    }
    for (name, _) in rules() {
        assert!(explained.contains(&format!("`{name}`")), "{name} is not explained");
    }
}

fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Runs a program where it is installed, and says so where it is not.
fn check_with(program: &str, args: &[&str], folder: &Path) {
    if installed(program).is_none() {
        println!("skipped: {program} is not installed");
        return;
    }
    let output = Command::new(program).args(args).current_dir(folder).output().expect("runs");
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {said}");
    println!("{said}");
}

#[test]
fn promtool_agrees_with_the_rules() {
    let folder = root().join("ops/prometheus");
    check_with("promtool", &["check", "rules", "solely.rules.yml"], &folder);
    check_with("promtool", &["test", "rules", "solely.rules.test.yml"], &folder);
    check_with("promtool", &["check", "config", "--syntax-only", "prometheus.yml"], &folder);
}

/// Expressions of the dashboard are ones that Prometheus can read.
#[test]
fn promtool_agrees_with_the_dashboard() {
    let dashboard: Value = serde_json::from_str(&read("ops/grafana/solely.json")).expect("JSON");
    let expressions = expressions(&dashboard).into_iter().filter(|one| !one.starts_with("label_values"));
    let rules: Vec<Value> = (1..)
        .zip(expressions)
        .map(|(n, expression)| {
            let expression = expression.replace("$__rate_interval", "5m").replace("$job", ".*");
            serde_json::json!({"record": format!("panel:{n}"), "expr": expression.replace("$instance", ".*")})
        })
        .collect();
    let folder = TempDir::new().expect("a folder");
    let groups = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]});
    std::fs::write(folder.path().join("rules.yml"), groups.to_string()).expect("is written");
    check_with("promtool", &["check", "rules", "rules.yml"], folder.path());
}

#[test]
fn systemd_agrees_with_the_unit() {
    let folder = TempDir::new().expect("a folder");
    let unit = read("ops/systemd/solely.service");
    let unit = unit.replace("/usr/local/bin/solely", env!("CARGO_BIN_EXE_solely"));
    std::fs::write(folder.path().join("solely.service"), unit).expect("is written");
    check_with("systemd-analyze", &["verify", "./solely.service"], folder.path());
}

/// Keys of the configuration, as `solely config` lists them with one of everything.
fn keys() -> BTreeSet<String> {
    let folder = TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("solely.toml"), read("solely.sample.toml")).expect("is written");
    let output = solely(folder.path()).args(["config", "--json"]).output().expect("runs");
    let settings: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    settings.iter().map(|one| one["key"].as_str().expect("a key").to_owned()).collect()
}

/// Whatever files of the kit, and the documentation, say of settings in the environment is so.
#[test]
fn settings_in_the_environment_exist() {
    let (keys, mut seen) = (keys(), 0);
    let documents = crate::docs::documents();
    let kit = ["ops/systemd/solely.service", "ops/Dockerfile", "ops/compose.yaml"].map(str::to_owned);
    for file in documents.iter().chain(&kit) {
        let text = read(file);
        for name in names(&text, "SOLELY__", |c| c.is_ascii_uppercase() || c == '_') {
            let key = name["SOLELY__".len()..].replace("__", ".").to_ascii_lowercase();
            // The general form, and where a list goes on.
            if key != "section.key" {
                assert!(keys.contains(&key), "{file}: there is no {key}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 5);
}

/// Commands of the kit are commands of the binary, with flags that it has.
#[test]
fn commands_of_the_kit_exist() {
    let unit = read("ops/systemd/solely.service");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    assert_command(line);
    let dockerfile = read("ops/Dockerfile");
    let list = |instruction: &str| -> Vec<String> {
        let line = dockerfile.lines().find_map(|line| line.strip_prefix(instruction)).expect("is there");
        serde_json::from_str(line.trim()).expect("a list")
    };
    assert_command(&[list("ENTRYPOINT"), list("CMD")].concat().join(" "));
    assert!(dockerfile.contains("\nUSER "), "it does not run as root");
    let compose: serde_yaml_ng::Value = serde_yaml_ng::from_str(&read("ops/compose.yaml")).expect("YAML");
    let mut compose = compose;
    compose.apply_merge().expect("merges");
    let mut servers = 0;
    for (name, service) in compose["services"].as_mapping().expect("services") {
        assert!(service["image"].is_string(), "{name:?}");
        if name.as_str().is_some_and(|name| name.starts_with("solely-")) {
            let words = service["command"].as_sequence().expect("a command").iter();
            assert_command(&format!(
                "solely {}",
                words.filter_map(|w| w.as_str()).collect::<Vec<_>>().join(" ")
            ));
            assert!(service["environment"]["DATABASE_URL"].is_string());
            servers += 1;
        }
    }
    assert_eq!(servers, 3);
    let text = format!("{dockerfile}{}", read("ops/compose.yaml"));
    for line in
        text.lines().filter_map(|l| l.trim().strip_prefix("image: ").or_else(|| l.strip_prefix("FROM ")))
    {
        assert!(!line.contains('/'), "plain names of images: {line}");
    }
}

/// `solely COMMAND --flag …`: the command is there, and its help has the flags.
pub(crate) fn assert_command(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let folder = TempDir::new().expect("a folder");
    let help = solely(folder.path()).args([words[1], "--help"]).output().expect("runs");
    assert!(help.status.success(), "{line}");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    for flag in words.iter().filter(|word| word.starts_with("--")) {
        assert!(help.contains(flag.split('=').next().expect("a flag")), "{line}: no {flag}");
    }
}
