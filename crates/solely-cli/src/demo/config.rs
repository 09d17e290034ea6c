//! The configuration that a demo would have in a file: everything short, so that it is seen to happen.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use solely_core::config::{Config, PluginConfig, ProviderConfig, SourceConfig, Span};
use solely_core::upstream::Rate;

use super::{Beside, Upstream};

/// The configuration of a demo at an address, with its store in a folder.
pub(crate) fn of(listen: SocketAddr, folder: &Path, beside: &Beside) -> Config {
    let mut config = Config::default();
    config.server.listen = listen;
    config.store.url = format!("sqlite:{}", folder.join("demo.db").display());
    config.enrich.providers.insert("wolt".to_owned(), provider(beside));
    let plugins = &mut config.products.plugins;
    for (name, upstream) in [("tours", &beside.tours), ("boats", &beside.boats)] {
        plugins.insert(name.to_owned(), plugin(upstream));
    }
    config.feed.sources.insert("diamonds".to_owned(), source(beside));
    // It may run for days: what is over is not kept for long.
    config.retention.jobs = seconds(600);
    config.retention.events = seconds(3_600);
    config.retention.runs = seconds(3_600);
    config.retention.dead_letters = seconds(1_800);
    config.reserve.hold_ttl = seconds(45);
    config.reserve.hold_ttl_min = seconds(15);
    config.reserve.hold_ttl_max = seconds(180);
    config.reserve.offer_ttl = seconds(20);
    config.reserve.sweep_every = seconds(1);
    config
}

const fn seconds(count: u64) -> Span {
    Span(Duration::from_secs(count))
}

fn provider(beside: &Beside) -> ProviderConfig {
    ProviderConfig {
        enabled: true,
        url: format!("http://{}/finder", beside.finder.address),
        hosts: vec!["wolt.com".to_owned()],
        found_ttl: seconds(90),
        not_found_ttl: seconds(45),
        failed_ttl: seconds(15),
        timeout: seconds(4),
        ..ProviderConfig::default()
    }
}

fn plugin(upstream: &Upstream) -> PluginConfig {
    PluginConfig {
        url: format!("http://{}/products", upstream.address),
        operations: vec!["searchProducts".to_owned()],
        ttr: seconds(12),
        ttl: seconds(600),
        job_lock_ttl: seconds(3),
        wait: seconds(5),
        timeout: seconds(4),
        failure_backoff: seconds(2),
        ..PluginConfig::default()
    }
}

fn source(beside: &Beside) -> SourceConfig {
    SourceConfig {
        url: format!("http://{}/feed", beside.stones.address),
        max_partitions: 8,
        min_records_per_partition: 500,
        rate: Rate::new(9, Duration::from_secs(1)),
        stuck_after: seconds(20),
        ..SourceConfig::default()
    }
}
