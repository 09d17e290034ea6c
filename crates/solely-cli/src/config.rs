//! Loading the configuration: flags beat the environment, the environment beats the file, the
//! file beats the defaults. Every value knows where it comes from.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;

use figment::providers::{Env, Format as _, Serialized, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use solely_core::config::{AuthMode, Config, PluginConfig, ProviderConfig, SourceConfig};
use solely_core::systems::{self, Own};

use crate::commands::Failed;

/// The file that is read when there is one and none is named.
const DEFAULT_FILE: &str = "solely.toml";
const ENV_PREFIX: &str = "SOLELY__";
/// Names that other tools have made common, and the keys they set.
const COMMON_ENV: [(&str, &str); 2] = [("DATABASE_URL", "store.url"), ("REDIS_URL", "redis.url")];
/// The flag that turns Wolt on: `true`, and nothing else.
const WOLT_ENV: (&str, &str) = ("ENABLE_WOLT_ENRICHMENT", "enrich.providers.wolt.enabled");

/// What is text, whatever it looks like: a password of digits alone is one.
const TEXTS: [&str; 7] =
    [".password", ".username", ".api_key", ".engine_id", ".jwt_secret", ".webhook_secret", ".url"];

/// Values given on the command line.
#[derive(Clone, Copy, Default)]
pub(crate) struct Flags {
    /// `--listen`.
    pub(crate) listen: Option<SocketAddr>,
}

/// The configuration, and how it came about.
pub(crate) struct Loaded {
    pub(crate) config: Config,
    figment: Figment,
}

/// Loads and checks it. The error names the key, and the nearest known one.
pub(crate) fn load(file: Option<&Path>, flags: Flags) -> Result<Loaded, Failed> {
    let figment = figment(file, flags)?;
    let config: Config = figment.extract().map_err(|error| Failed::Config(explain(&figment, error)))?;
    check(&config)?;
    Ok(Loaded { config, figment })
}

fn figment(file: Option<&Path>, flags: Flags) -> Result<Figment, Failed> {
    let mut figment = Figment::from(Serialized::defaults(Config::default()));
    match file {
        Some(path) if !path.is_file() => {
            return Err(Failed::Config(format!("there is no configuration file `{}`", path.display())));
        }
        Some(path) => figment = figment.merge(Toml::file_exact(path)),
        None if Path::new(DEFAULT_FILE).is_file() => figment = figment.merge(Toml::file_exact(DEFAULT_FILE)),
        None => {}
    }
    for (name, key) in COMMON_ENV {
        if let Ok(value) = std::env::var(name) {
            figment = figment.merge(Given {
                origin: format!("environment {name}"),
                key: key.into(),
                value: value.into(),
            });
        }
    }
    let (name, key) = WOLT_ENV;
    if let Ok(value) = std::env::var(name) {
        let value = Value::from(value == "true");
        figment = figment.merge(Given { origin: format!("environment {name}"), key: key.into(), value });
    }
    figment = figment.merge(Env::prefixed(ENV_PREFIX).split("__"));
    for (name, value) in std::env::vars_os() {
        let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) else { continue };
        let key = name.strip_prefix(ENV_PREFIX).map(|key| key.to_lowercase().replace("__", "."));
        if let Some(key) = key.filter(|key| TEXTS.iter().any(|text| key.ends_with(text))) {
            let origin = format!("environment {ENV_PREFIX}…");
            figment = figment.merge(Given { origin, key: key.into(), value: value.into() });
        }
    }
    if let Some(listen) = flags.listen {
        let value = listen.to_string().into();
        let key = "server.listen".into();
        figment = figment.merge(Given { origin: "--listen".to_owned(), key, value });
    }
    Ok(figment)
}

/// What figment cannot know.
fn check(config: &Config) -> Result<(), Failed> {
    if !config.server.listen.ip().is_loopback() && config.auth.mode == AuthMode::None {
        return Err(Failed::Config(format!(
            "`server.listen` is {}, but without access control (`auth.mode = \"keys\"`) only a loopback \
             address is served",
            config.server.listen
        )));
    }
    if let Some(origin) = config.server.cors_origins.iter().find(|origin| !is_origin(origin)) {
        return Err(Failed::Config(format!(
            "`server.cors_origins`: `{origin}` is no origin such as https://example.org"
        )));
    }
    if let Some(problem) = crate::store::problem(&config.store.url) {
        return Err(Failed::Config(problem));
    }
    if let Some(problem) = crate::redis::problem(&config.redis) {
        return Err(Failed::Config(problem));
    }
    if let Some(problem) = systems::problem(config, &Own::default()) {
        return Err(Failed::Config(problem));
    }
    if config.store.max_connections < 3 {
        return Err(Failed::Config("`store.max_connections` is at least 3".to_owned()));
    }
    if config.server.max_in_flight == 0 {
        return Err(Failed::Config("`server.max_in_flight` is at least 1".to_owned()));
    }
    if config.server.max_body.0 == 0 {
        return Err(Failed::Config("`server.max_body` is at least 1B".to_owned()));
    }
    Ok(())
}

/// A scheme, a host and perhaps a port, and nothing behind them.
fn is_origin(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    rest.is_some_and(|rest| {
        !rest.is_empty() && !rest.contains(['/', '?', '#', '@', ' ', '*']) && rest.is_ascii()
    })
}

/// One value under one key.
struct Given {
    origin: String,
    key: Cow<'static, str>,
    value: Value,
}

impl Provider for Given {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.origin.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let nested = figment::util::nest(&self.key, self.value.clone());
        let dict = nested.into_dict().unwrap_or_default();
        Ok(Profile::Default.collect(dict))
    }
}

fn explain(figment: &Figment, error: figment::Error) -> String {
    let Some(error) = error.into_iter().next() else { return "the configuration is wrong".to_owned() };
    let key = error.path.join(".");
    let origin = error.metadata.as_ref().map(origin).unwrap_or_default();
    match &error.kind {
        figment::error::Kind::UnknownField(name, _) => {
            let parent = if key.ends_with(name.as_str()) { key.clone() } else { join(&key, name) };
            let nearest =
                nearest(&parent).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            format!("unknown key `{parent}`{}{nearest}", from(&origin))
        }
        kind => {
            let found = figment.find_metadata(&key).map(self::origin).unwrap_or(origin);
            let key = if key.is_empty() { "the configuration".to_owned() } else { format!("`{key}`") };
            format!("{key}{}: {kind}", from(&found))
        }
    }
}

fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

fn from(origin: &str) -> String {
    if origin.is_empty() { String::new() } else { format!(" (from {origin})") }
}

/// The known key that looks most like this one, if one does.
fn nearest(key: &str) -> Option<String> {
    let mut example = Config::default();
    let name = |section| key.strip_prefix(section).and_then(|rest| rest.split('.').next()).unwrap_or("name");
    example.feed.sources.insert(name("feed.sources.").to_owned(), SourceConfig::default());
    example.products.plugins.insert(name("products.plugins.").to_owned(), PluginConfig::default());
    example.enrich.providers.insert(name("enrich.providers.").to_owned(), ProviderConfig::default());
    let keys = flat(&example).into_keys();
    // A section has a name like a key.
    let sections = |key: &String| -> Vec<String> {
        key.match_indices('.').map(|(end, _)| key[..end].to_owned()).collect()
    };
    let known: BTreeSet<String> = keys.flat_map(|key| sections(&key).into_iter().chain([key])).collect();
    let known = known.into_iter();
    let scored = known.map(|known| (strsim::jaro_winkler(key, &known), known));
    scored.filter(|(score, _)| *score > 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

fn origin(metadata: &Metadata) -> String {
    match &metadata.source {
        Some(figment::Source::File(path)) => path.display().to_string(),
        _ if metadata.name.starts_with('`') => format!("environment {ENV_PREFIX}…"),
        _ => metadata.name.to_string(),
    }
}

/// Every key with its value, in order.
fn flat(config: &Config) -> BTreeMap<String, serde_json::Value> {
    let mut keys = BTreeMap::new();
    let value = serde_json::to_value(config).unwrap_or_default();
    flatten(String::new(), value, &mut keys);
    keys
}

fn flatten(prefix: String, value: serde_json::Value, into: &mut BTreeMap<String, serde_json::Value>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                flatten(join(&prefix, &name), value, into);
            }
        }
        value => drop(into.insert(prefix, value)),
    }
}

/// One key of the effective configuration, fit to be shown.
#[derive(serde::Serialize)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: serde_json::Value,
    pub(crate) origin: String,
}

impl Loaded {
    /// Every key with its value and origin; secrets are hidden.
    pub(crate) fn settings(&self) -> Vec<Setting> {
        let setting = |(key, value): (String, serde_json::Value)| {
            let found = self.figment.find_metadata(&key).map(|metadata| match metadata.name.as_ref() {
                name if name.contains("Config") => "default".to_owned(),
                _ if metadata.name.starts_with('`') => format!("environment {}", env_name(&key)),
                _ => origin(metadata),
            });
            let value = match key.as_str() {
                "store.url" | "redis.url" => without_password(value),
                "auth.jwt_secret" | "reserve.webhook_secret" if value != "" => "***".into(),
                key => match key.rsplit('.').next() {
                    Some("password" | "api_key") if value != "" => "***".into(),
                    Some("url") => without_password(value),
                    _ => value,
                },
            };
            Setting { key, value, origin: found.unwrap_or_else(|| "default".to_owned()) }
        };
        flat(&self.config).into_iter().map(setting).collect()
    }
}

fn env_name(key: &str) -> String {
    format!("{ENV_PREFIX}{}", key.to_uppercase().replace('.', "__"))
}

/// Hides the password of a URL such as `postgres://user:password@host/db`.
fn without_password(url: serde_json::Value) -> serde_json::Value {
    let Some(text) = url.as_str() else { return url };
    let Some((scheme, rest)) = text.split_once("://") else { return url };
    let Some((user, place)) = rest.rsplit_once('@') else { return url };
    let user = user.split(':').next().unwrap_or_default();
    serde_json::Value::String(format!("{scheme}://{user}:***@{place}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_hidden() {
        let shown = without_password("postgres://u:p@ss@host/db".into());
        assert_eq!(shown, "postgres://u:***@host/db");
        assert_eq!(without_password("sqlite:solely.db".into()), "sqlite:solely.db");
        let cluster = without_password("redis+cluster://:secret@a:1,b:2".into());
        assert_eq!(cluster, "redis+cluster://:***@a:1,b:2");
    }

    #[test]
    fn a_misspelt_key_finds_its_neighbour() {
        assert_eq!(nearest("server.lisen").as_deref(), Some("server.listen"));
        assert_eq!(nearest("sever").as_deref(), Some("server"));
        assert_eq!(nearest("enrich.providres").as_deref(), Some("enrich.providers"));
        assert_eq!(nearest("zzz"), None);
    }
}
