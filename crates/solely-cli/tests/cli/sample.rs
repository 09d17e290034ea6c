//! The sample configuration is the truth.

use std::collections::BTreeMap;

use serde_json::Value;
use tempfile::TempDir;

use crate::server::solely;

const SAMPLE: &str = include_str!("../../../../solely.sample.toml");

fn settings(folder: &TempDir) -> BTreeMap<String, (Value, Value)> {
    let output = solely(folder.path()).args(["config", "--json"]).output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let settings: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let entry = |one: &Value| {
        (one["key"].as_str().expect("a key").to_owned(), (one["value"].clone(), one["origin"].clone()))
    };
    settings.iter().map(entry).collect()
}

/// Every key is there, with the default that the code has, and no other is.
#[test]
fn every_key_is_there_with_its_default() {
    let (bare, sampled) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    // Sections that are there for each source have defaults once there is one.
    let named = "[feed.sources.diamonds]\nurl = \"http://127.0.0.1:7421/feed\"\n\
                 [products.plugins.tours]\nurl = \"http://127.0.0.1:7421/products\"\n";
    std::fs::write(bare.path().join("solely.toml"), named).expect("is written");
    std::fs::write(sampled.path().join("solely.toml"), SAMPLE).expect("is written");
    let (defaults, sample) = (settings(&bare), settings(&sampled));
    for (key, (value, origin)) in &sample {
        assert_eq!(origin, "solely.toml", "{key} is missing in the sample");
        assert_eq!(*value, defaults[key].0, "{key}");
    }
}

/// Every key has a line of explanation before it.
#[test]
fn every_key_is_explained() {
    let lines: Vec<&str> = SAMPLE.lines().collect();
    for (number, line) in
        lines.iter().enumerate().filter(|(_, line)| line.contains(" = ") && !line.starts_with('#'))
    {
        assert!(lines[number - 1].starts_with("# "), "{line}");
    }
}
