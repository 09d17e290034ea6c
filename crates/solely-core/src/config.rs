//! The configuration: every key, with its default.
//!
//! Unknown keys are refused wherever they stand. Loading (files, environment, flags, origins)
//! is the command line's part; here is what the keys mean.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::feed::End;
use crate::limits;
use crate::reserve::HoldTimes;
use crate::reserve::notify::Signer;
use crate::store::Retention;
use crate::upstream::Rate;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The HTTP server.
    pub server: ServerConfig,
    /// Where everything is kept.
    pub store: StoreConfig,
    /// Copies, hints and wake-ups beside the store.
    pub redis: RedisConfig,
    /// Who may do what.
    pub auth: AuthConfig,
    /// What an operator should look at.
    pub alerts: AlertsConfig,
    /// How long finished things are kept.
    pub retention: RetentionConfig,
    /// Provider links of places.
    pub enrich: EnrichConfig,
    /// Product searches.
    pub products: ProductsConfig,
    /// Boxes that are reserved.
    pub reserve: ReserveConfig,
    /// Sources that are copied.
    pub feed: FeedConfig,
}

/// The HTTP server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// The address to listen on; one that is not loopback needs access control.
    pub listen: SocketAddr,
    /// The largest body of a request.
    pub max_body: Bytes,
    /// How long requests and jobs may go on once the server is told to stop.
    pub shutdown_grace: Span,
    /// Other origins that browsers may call and connect from.
    pub cors_origins: Vec<String>,
    /// Requests under way; one more is refused.
    pub max_in_flight: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7420)),
            max_body: Bytes(1024 * 1024),
            shutdown_grace: Span(Duration::from_secs(30)),
            cors_origins: Vec::new(),
            max_in_flight: limits::REQUESTS_MAX,
        }
    }
}

/// Where everything is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// `sqlite:FILE`, `sqlite::memory:` or `postgres://user:password@host/database`.
    pub url: String,
    /// Connections of one process to PostgreSQL.
    pub max_connections: usize,
    /// The schema of PostgreSQL that holds the tables.
    pub schema: String,
    /// How long one statement on PostgreSQL may take.
    pub statement_timeout: Span,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            url: "sqlite:solely.db".to_owned(),
            max_connections: 16,
            schema: "public".to_owned(),
            statement_timeout: Span(Duration::from_secs(30)),
        }
    }
}

/// What an operator should look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlertsConfig {
    /// A queue with more jobs that wait is deep.
    pub queue_depth: u64,
}

impl Default for AlertsConfig {
    fn default() -> Self {
        Self { queue_depth: 100 }
    }
}

/// Who may do what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthConfig {
    /// Whether callers need a key.
    pub mode: AuthMode,
    /// The secret of user tokens (HS256); empty: there are none.
    pub jwt_secret: String,
}

/// Whether callers need a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// No: whoever reaches the server may do everything.
    #[default]
    None,
    /// Yes.
    Keys,
}

/// Copies, hints and wake-ups beside the store. Nothing in it decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedisConfig {
    /// `redis://`, `rediss://`, `redis+sentinel://` or `redis+cluster://`; empty: none.
    pub url: String,
    /// How long it may take to connect.
    pub connect_timeout: Span,
    /// How long one round trip may take.
    pub command_timeout: Span,
    /// How often a call is tried again on another connection.
    pub retries: u32,
}

impl Default for RedisConfig {
    fn default() -> Self {
        let two_seconds = Span(Duration::from_secs(2));
        Self { url: String::new(), connect_timeout: two_seconds, command_timeout: two_seconds, retries: 2 }
    }
}

/// Boxes that are reserved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReserveConfig {
    /// How long a hold lasts that does not say.
    pub hold_ttl: Span,
    /// The shortest that a request may ask for,
    pub hold_ttl_min: Span,
    /// and the longest, also with extensions.
    pub hold_ttl_max: Span,
    /// How long an offer to someone who waits lasts.
    pub offer_ttl: Span,
    /// How long a lease in Redis outlives its holder.
    pub lock_ttl: Span,
    /// How often a request waits for its turn before it is refused.
    pub lock_retries: u32,
    /// How long it waits the first time; doubles.
    pub lock_retry_wait: Span,
    /// How often holds whose time is over are swept.
    pub sweep_every: Span,
    /// Where notifications go; empty: nowhere.
    pub webhook_url: String,
    /// What they are signed with; empty: they are not.
    pub webhook_secret: String,
}

impl Default for ReserveConfig {
    fn default() -> Self {
        let seconds = |seconds: u64| Span(Duration::from_secs(seconds));
        Self {
            hold_ttl: seconds(20 * 60),
            hold_ttl_min: seconds(15 * 60),
            hold_ttl_max: seconds(30 * 60),
            offer_ttl: seconds(10 * 60),
            lock_ttl: seconds(30),
            lock_retries: 3,
            lock_retry_wait: seconds(1),
            sweep_every: seconds(5),
            webhook_url: String::new(),
            webhook_secret: String::new(),
        }
    }
}

impl ReserveConfig {
    /// How long holds last.
    pub fn times(&self) -> HoldTimes {
        HoldTimes {
            usual: self.hold_ttl.0,
            least: self.hold_ttl_min.0,
            most: self.hold_ttl_max.0,
            offer: self.offer_ttl.0,
        }
    }

    /// What is wrong with it, if anything is: the key, and why.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let day = 24 * 3_600;
        span_within("hold_ttl_min", self.hold_ttl_min, day)
            .or_else(|| span_within("hold_ttl_max", self.hold_ttl_max, 30 * day))
            .or_else(|| span_within("offer_ttl", self.offer_ttl, day))
            .or_else(|| lock_within("lock_ttl", self.lock_ttl, 3_600))
            .or_else(|| span_within("lock_retry_wait", self.lock_retry_wait, 60))
            .or_else(|| span_within("sweep_every", self.sweep_every, 3_600))
            .or_else(|| {
                let within = (self.hold_ttl_min.0..=self.hold_ttl_max.0).contains(&self.hold_ttl.0);
                (!within).then(|| ("hold_ttl", "is between hold_ttl_min and hold_ttl_max".to_owned()))
            })
            .or_else(|| (self.lock_retries > 10).then(|| ("lock_retries", "is at most 10".to_owned())))
            .or_else(|| {
                let known =
                    self.webhook_url.starts_with("http://") || self.webhook_url.starts_with("https://");
                (!self.webhook_url.is_empty() && !known)
                    .then(|| ("webhook_url", "is a URL that begins with http:// or https://".to_owned()))
            })
            .or_else(|| {
                let problem = || ("webhook_secret", "is base64 behind `whsec_`".to_owned());
                Signer::new(&self.webhook_secret).is_none().then(problem)
            })
    }
}

/// How long finished things are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionConfig {
    /// Completed and cancelled jobs.
    pub jobs: Span,
    /// Events: timeline and audit.
    pub events: Span,
    /// Dead letters.
    pub dead_letters: Span,
    /// Runs of feeds that have ended.
    pub runs: Span,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        let Retention { jobs, events, dead_letters, runs } = Retention::default();
        Self { jobs: Span(jobs), events: Span(events), dead_letters: Span(dead_letters), runs: Span(runs) }
    }
}

impl From<&RetentionConfig> for Retention {
    fn from(config: &RetentionConfig) -> Self {
        Self {
            jobs: config.jobs.0,
            events: config.events.0,
            dead_letters: config.dead_letters.0,
            runs: config.runs.0,
        }
    }
}

/// Provider links of places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnrichConfig {
    /// How long a request can still be subscribed to.
    pub request_ttl: Span,
    /// Writes the deprecated flat `wolt` beside `providers.wolt`.
    pub legacy_wolt_field: bool,
    /// By name.
    pub providers: BTreeMap<String, ProviderConfig>,
}

impl Default for EnrichConfig {
    fn default() -> Self {
        let wolt = ProviderConfig { hosts: vec!["wolt.com".to_owned()], ..ProviderConfig::default() };
        Self {
            request_ttl: Span(Duration::from_secs(600)),
            legacy_wolt_field: true,
            providers: BTreeMap::from([("wolt".to_owned(), wolt)]),
        }
    }
}

/// One provider of links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProviderConfig {
    /// Whether places are looked up.
    pub enabled: bool,
    /// Who finds links.
    pub finder: FinderKind,
    /// Where the finder is.
    pub url: String,
    /// What the finder wants to see.
    pub api_key: String,
    /// Which engine of Google's searches.
    pub engine_id: String,
    /// A link must be on one of these hosts or below it; empty: on any.
    pub hosts: Vec<String>,
    /// How long a link is known.
    pub found_ttl: Span,
    /// How long it is known that there is none.
    pub not_found_ttl: Span,
    /// How long a lookup that failed for good is remembered.
    pub failed_ttl: Span,
    /// How long the lease of a lookup outlives its holder.
    pub lock_ttl: Span,
    /// Deliveries of a lookup before it is given up.
    pub max_attempts: u32,
    /// For the whole lookup, retries and waiting included.
    pub deadline: Span,
    /// How long one call may take.
    pub timeout: Span,
    /// Lookups at once by one process.
    pub concurrency: usize,
    /// Calls per time, of all instances together; empty: as many as there are.
    #[serde(with = "optional_text")]
    pub rate: Option<Rate>,
}

/// Who finds links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FinderKind {
    /// Plain JSON over POST.
    #[default]
    Http,
    /// Brave's web search.
    Brave,
    /// Google's Programmable Search.
    GoogleCse,
    /// The venue search of Wolt's own pages.
    Wolt,
}

impl FinderKind {
    /// Where everybody finds it.
    pub fn public_url(self) -> Option<&'static str> {
        match self {
            Self::Http => None,
            Self::Brave => Some("https://api.search.brave.com"),
            Self::GoogleCse => Some("https://www.googleapis.com"),
            Self::Wolt => Some("https://restaurant-api.wolt.com"),
        }
    }
}

impl Default for ProviderConfig {
    fn default() -> Self {
        let seconds = |seconds: u64| Span(Duration::from_secs(seconds));
        Self {
            enabled: false,
            finder: FinderKind::Http,
            url: String::new(),
            api_key: String::new(),
            engine_id: String::new(),
            hosts: Vec::new(),
            found_ttl: seconds(14 * 86_400),
            not_found_ttl: seconds(86_400),
            failed_ttl: seconds(300),
            lock_ttl: seconds(60),
            max_attempts: 3,
            deadline: seconds(300),
            timeout: seconds(10),
            concurrency: 4,
            rate: None,
        }
    }
}

impl ProviderConfig {
    /// Where the finder is: as configured, or where everybody finds it.
    pub fn finder_url(&self) -> &str {
        if self.url.is_empty() { self.finder.public_url().unwrap_or_default() } else { &self.url }
    }

    /// What is wrong with it, if anything is: the key, and why.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let known = self.finder_url().starts_with("http://") || self.finder_url().starts_with("https://");
        let searches = matches!(self.finder, FinderKind::Brave | FinderKind::GoogleCse);
        let wants = |key: &'static str, value: &str| {
            (self.enabled && value.is_empty()).then(|| (key, "is what this finder wants to see".to_owned()))
        };
        let no_hosts = || {
            (self.enabled && self.hosts.is_empty())
                .then(|| ("hosts", "says which site is searched".to_owned()))
        };
        (self.enabled && !known)
            .then(|| ("url", "is a URL that begins with http:// or https://".to_owned()))
            .or_else(|| if searches { wants("api_key", &self.api_key) } else { None })
            .or_else(|| {
                if self.finder == FinderKind::GoogleCse { wants("engine_id", &self.engine_id) } else { None }
            })
            .or_else(|| if searches { no_hosts() } else { None })
            .or_else(|| self.limits_problem())
    }

    /// What is wrong with how it is used, whoever finds the links.
    pub fn limits_problem(&self) -> Option<(&'static str, String)> {
        let day = 24 * 3_600;
        let wrong_host = |host: &String| {
            host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
        };
        let wrong = self.hosts.iter().any(wrong_host);
        wrong
            .then(|| ("hosts", "are names such as wolt.com".to_owned()))
            .or_else(|| span_within("found_ttl", self.found_ttl, 366 * day))
            .or_else(|| span_within("not_found_ttl", self.not_found_ttl, 366 * day))
            .or_else(|| span_within("failed_ttl", self.failed_ttl, 366 * day))
            .or_else(|| lock_within("lock_ttl", self.lock_ttl, day))
            .or_else(|| span_within("deadline", self.deadline, day))
            .or_else(|| span_within("timeout", self.timeout, 3_600))
            .or_else(|| number_within("concurrency", self.concurrency as u64, 1, 256))
            .or_else(|| {
                number_within("max_attempts", self.max_attempts.into(), 1, limits::JOB_ATTEMPTS_MAX.into())
            })
    }
}

/// A number outside its bounds is a problem.
fn number_within(name: &'static str, value: u64, least: u64, most: u64) -> Option<(&'static str, String)> {
    (!(least..=most).contains(&value)).then(|| (name, format!("is {least} to {most}")))
}

/// A time shorter than 10 ms, or longer than so many seconds, is a problem.
fn span_within(name: &'static str, span: Span, most: u64) -> Option<(&'static str, String)> {
    between(name, span, Duration::from_millis(10), most)
}

/// The same of a lock, which has to be renewed in time: one shorter than 100 ms is a problem.
fn lock_within(name: &'static str, span: Span, most: u64) -> Option<(&'static str, String)> {
    between(name, span, Duration::from_millis(100), most)
}

fn between(name: &'static str, span: Span, least: Duration, most: u64) -> Option<(&'static str, String)> {
    let most = Duration::from_secs(most);
    (!(least..=most).contains(&span.0)).then(|| (name, format!("is {} to {}", Span(least), Span(most))))
}

/// Product searches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProductsConfig {
    /// By name, which is the `appKey`.
    pub plugins: BTreeMap<String, PluginConfig>,
}

/// One plugin that has products.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PluginConfig {
    /// What it speaks.
    pub kind: PluginKind,
    /// Where it is.
    pub url: String,
    /// What it can be asked for.
    pub operations: Vec<String>,
    /// Older is stale.
    pub ttr: Span,
    /// Older is gone.
    pub ttl: Span,
    /// Whether only what is cached is served.
    pub do_not_call: bool,
    /// How long the lease of a call outlives its holder.
    pub lock_ttl: Span,
    /// For how long no second refresh is queued.
    pub job_lock_ttl: Span,
    /// How long a caller waits for the one call under way.
    pub wait: Span,
    /// How long the call itself may take.
    pub timeout: Span,
    /// How long an empty answer with nothing cached before is kept.
    pub empty_ttl: Span,
    /// How long a key is left alone after a failure; doubles up to five minutes.
    pub failure_backoff: Span,
    /// Calls at once by one process.
    pub concurrency: usize,
    /// Calls per time, of all instances together; empty: as many as there are.
    #[serde(with = "optional_text")]
    pub rate: Option<Rate>,
}

/// What a plugin speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PluginKind {
    /// Plain JSON over POST.
    #[default]
    Http,
    /// The OCTO products API.
    Octo,
}

impl Default for PluginConfig {
    fn default() -> Self {
        let seconds = |seconds: u64| Span(Duration::from_secs(seconds));
        Self {
            kind: PluginKind::Http,
            url: String::new(),
            operations: vec!["searchProducts".to_owned()],
            ttr: seconds(86_400),
            ttl: seconds(30 * 86_400),
            do_not_call: false,
            lock_ttl: seconds(120),
            job_lock_ttl: seconds(60),
            wait: seconds(25),
            timeout: seconds(60),
            empty_ttl: seconds(60),
            failure_backoff: seconds(5),
            concurrency: 16,
            rate: None,
        }
    }
}

impl PluginConfig {
    /// What is wrong with it, if anything is: the key, and why.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let known = self.url.starts_with("http://") || self.url.starts_with("https://");
        (!known)
            .then(|| ("url", "is a URL that begins with http:// or https://".to_owned()))
            .or_else(|| self.limits_problem())
    }

    /// What is wrong with how it is used, whoever has the products.
    pub fn limits_problem(&self) -> Option<(&'static str, String)> {
        let day = 24 * 3_600;
        let wrong = |operation: &String| {
            operation.is_empty()
                || !operation.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        let none = self.operations.is_empty() || self.operations.iter().any(wrong);
        none.then(|| ("operations", "are names such as searchProducts".to_owned()))
            .or_else(|| span_within("ttr", self.ttr, 366 * day))
            .or_else(|| span_within("ttl", self.ttl, 366 * day))
            .or_else(|| lock_within("lock_ttl", self.lock_ttl, day))
            .or_else(|| span_within("job_lock_ttl", self.job_lock_ttl, day))
            .or_else(|| span_within("wait", self.wait, 3_600))
            .or_else(|| span_within("timeout", self.timeout, 3_600))
            .or_else(|| span_within("empty_ttl", self.empty_ttl, day))
            .or_else(|| span_within("failure_backoff", self.failure_backoff, 300))
            .or_else(|| number_within("concurrency", self.concurrency as u64, 1, 256))
    }
}

/// Sources that are copied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeedConfig {
    /// By name.
    pub sources: BTreeMap<String, SourceConfig>,
}

/// One source that is copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SourceConfig {
    /// What it speaks.
    pub kind: SourceKind,
    /// Where it is.
    pub url: String,
    /// The bearer token of an `http` source that wants one.
    pub api_key: String,
    /// The name that Nivoda knows.
    pub username: String,
    /// Its password.
    pub password: String,
    /// Records of a page.
    pub page_limit: u32,
    /// Records of the page before that a page begins with, where records move.
    pub page_overlap: u32,
    /// The lowest price, in the source's own unit.
    pub min_price: i64,
    /// The highest.
    pub max_price: i64,
    /// How far an incremental run reaches back before the watermark.
    pub overlap: Span,
    /// Partitions of a run, at most.
    pub max_partitions: usize,
    /// Fewer are not worth a partition.
    pub min_records_per_partition: u64,
    /// Pages fetched at once by one process.
    pub concurrency: usize,
    /// Calls per time, of all instances together; empty: as many as there are.
    #[serde(with = "optional_text")]
    pub rate: Option<Rate>,
    /// How long one call may take.
    pub timeout: Span,
    /// How long a message is locked.
    pub lock_duration: Span,
    /// Deliveries of a message before it is given up.
    pub max_deliveries: u32,
    /// The window in which a message from outside is a duplicate.
    pub duplicate_window: Span,
    /// A partition that has not gone on for this long is stuck.
    pub stuck_after: Span,
    /// Starts a run by itself; empty: it does not.
    #[serde(with = "optional_text")]
    pub every: Option<Span>,
    /// How the end of a partition is recognised.
    pub end: End,
}

/// What a source speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// Plain JSON over GET.
    #[default]
    Http,
    /// Nivoda's GraphQL.
    Nivoda,
}

impl Default for SourceConfig {
    fn default() -> Self {
        let minutes = |minutes: u64| Span(Duration::from_secs(minutes * 60));
        Self {
            kind: SourceKind::Http,
            url: String::new(),
            api_key: String::new(),
            username: String::new(),
            password: String::new(),
            page_limit: 30,
            page_overlap: 0,
            min_price: 0,
            max_price: 250_000,
            overlap: minutes(15),
            max_partitions: 30,
            min_records_per_partition: 1_000,
            concurrency: 4,
            rate: Rate::new(25, Duration::from_secs(1)),
            timeout: Span(Duration::from_secs(45)),
            lock_duration: minutes(2),
            max_deliveries: 5,
            duplicate_window: minutes(10),
            stuck_after: minutes(10),
            every: None,
            end: End::ShortPage,
        }
    }
}

impl SourceConfig {
    /// Records of a page, at most.
    pub fn page_max(&self) -> u32 {
        match self.kind {
            SourceKind::Http => limits::FEED_PAGE_MAX,
            SourceKind::Nivoda => crate::feed::source::nivoda::PAGE_MAX,
        }
    }

    /// What is wrong with it, if anything is: the key, and why.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let known = self.url.starts_with("http://") || self.url.starts_with("https://");
        (!known)
            .then(|| ("url", "is a URL that begins with http:// or https://".to_owned()))
            .or_else(|| self.limits_problem())
            .or_else(|| {
                let wrong = self.kind == SourceKind::Nivoda && self.username.is_empty();
                wrong.then(|| ("username", "is needed for Nivoda".to_owned()))
            })
    }

    /// What is wrong with how it is copied, whatever it speaks.
    pub fn limits_problem(&self) -> Option<(&'static str, String)> {
        let (within, time) = (number_within, span_within);
        let day = 24 * 3_600;
        within("page_limit", self.page_limit.into(), 1, self.page_max().into())
            .or_else(|| {
                let wrong = self.page_overlap >= self.page_limit;
                wrong.then(|| ("page_overlap", "is less than `page_limit`".to_owned()))
            })
            .or_else(|| {
                let wrong = self.min_price > self.max_price;
                wrong.then(|| ("min_price", "is not above `max_price`".to_owned()))
            })
            .or_else(|| {
                let most = 1_000_000_000_000_000_i64;
                let wrong = self.min_price < -most || self.max_price > most;
                wrong.then(|| ("max_price", format!("is at most {most}")))
            })
            .or_else(|| {
                within("max_partitions", self.max_partitions as u64, 1, limits::PARTITIONS_MAX as u64)
            })
            .or_else(|| within("min_records_per_partition", self.min_records_per_partition, 1, u64::MAX))
            .or_else(|| within("concurrency", self.concurrency as u64, 1, 256))
            .or_else(|| {
                within("max_deliveries", self.max_deliveries.into(), 1, limits::JOB_ATTEMPTS_MAX.into())
            })
            .or_else(|| time("timeout", self.timeout, 3_600))
            .or_else(|| time("lock_duration", self.lock_duration, day))
            .or_else(|| time("stuck_after", self.stuck_after, 30 * day))
            .or_else(|| self.every.and_then(|every| time("every", every, 366 * day)))
    }
}

/// A value that may be missing, as text: empty says so.
mod optional_text {
    use serde::de::{DeserializeOwned, Error as _, IntoDeserializer as _};
    use serde::{Deserialize as _, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "as serde calls it")]
    pub(super) fn serialize<T: Serialize, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => value.serialize(to),
            None => to.serialize_str(""),
        }
    }

    pub(super) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        let text = String::deserialize(from)?;
        if text.is_empty() {
            return Ok(None);
        }
        let read: Result<T, serde::de::value::Error> = T::deserialize(text.into_deserializer());
        read.map(Some).map_err(D::Error::custom)
    }
}

/// A duration, written `500ms`, `60s`, `10m`, `24h` or `14d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

const SPAN_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let millis = with_unit(text, &SPAN_UNITS)
            .ok_or_else(|| format!("`{text}` is not a duration such as 500ms, 60s, 10m, 24h or 14d"))?;
        Ok(Self(Duration::from_millis(millis)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        write_with_unit(f, millis, &SPAN_UNITS)
    }
}

/// A size, written `512B`, `64KiB`, `1MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub usize);

const BYTES_UNITS: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        with_unit(text, &BYTES_UNITS)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a size such as 512B, 64KiB or 1MiB"))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_unit(f, self.0 as u64, &BYTES_UNITS)
    }
}

/// A whole number followed by one of these units.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// The largest unit that leaves a whole number.
fn write_with_unit(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let fits = |(_, factor): &&(&str, u64)| value > 0 && value.is_multiple_of(*factor);
    let (name, factor) = units.iter().rev().find(fits).unwrap_or(&units[0]);
    write!(f, "{}{name}", value / factor)
}

macro_rules! as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

as_text!(Span);
as_text!(Bytes);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_read_and_written() {
        for text in ["500ms", "60s", "10m", "24h", "14d", "1500ms"] {
            let span: Span = text.parse().expect(text);
            let again: Span = span.to_string().parse().expect("reads back");
            assert_eq!(span, again);
        }
        assert_eq!(Span(Duration::from_secs(86_400)).to_string(), "1d");
        assert_eq!("1MiB".parse::<Bytes>().expect("a size").0, 1_048_576);
        for text in ["", "5", "s", "-1s", "1.5s", "5 s", "5y", "99999999999999999999d", "300000000000d"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
