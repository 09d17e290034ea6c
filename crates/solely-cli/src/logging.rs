//! Logs: pretty on a terminal, one JSON object a line elsewhere. `RUST_LOG` turns them up or down;
//! decisions have the target `solely::decision`, so that they can be turned down by themselves.
//!
//! An object begins with its `event`: what happened, by its stable name where it has one, else in
//! words. The request that it belongs to is in it (`requestId`, and `traceId` where the client sent a
//! `traceparent`).

use std::fmt::{self, Write as _};
use std::io::{IsTerminal as _, Write as _};

use solely_core::Clock;
use solely_core::json::write_text;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};

/// Sets logging up for a long-running command.
pub(crate) fn start() {
    start_at("info");
}

/// The same, where less is said unless `RUST_LOG` wants more.
pub(crate) fn start_at(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    if std::io::stderr().is_terminal() {
        let pretty = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
        tracing_subscriber::registry().with(filter).with(pretty).init();
    } else {
        tracing_subscriber::registry().with(filter).with(Lines).init();
    }
}

/// One JSON object a line, on standard error.
struct Lines;

/// Fields, written as they come: `,"name":value` each.
#[derive(Default)]
struct Fields {
    event: Option<String>,
    message: Option<String>,
    rest: String,
    /// The names in it, and where each ends.
    names: Vec<(&'static str, usize)>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: &str, quoted: bool) {
        match field.name() {
            "event" => self.event = Some(value.to_owned()),
            "message" => self.message = Some(value.to_owned()),
            name => {
                self.rest.push_str(",\"");
                self.rest.push_str(name);
                self.rest.push_str("\":");
                if quoted {
                    write_text(&mut self.rest, value);
                } else {
                    self.rest.push_str(value);
                }
                self.names.push((name, self.rest.len()));
            }
        }
    }

    /// Adds the fields of a span. What an event says itself is not said again.
    fn add(&mut self, of_span: &Self) {
        let mut from = 0;
        for &(name, to) in &of_span.names {
            if !self.names.iter().any(|(own, _)| *own == name) {
                self.rest.push_str(&of_span.rest[from..to]);
                self.names.push((name, self.rest.len()));
            }
            from = to;
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value, true);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, &value.to_string(), false);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, &value.to_string(), false);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, &value.to_string(), false);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, &format!("{value:?}"), true);
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                fields.add(of_span);
            }
        }
        let line = line(&fields, event.metadata().level().as_str(), event.metadata().target());
        // One write, so that lines of several threads stay apart.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

fn line(fields: &Fields, level: &str, target: &str) -> String {
    let (event, message) = match (&fields.event, &fields.message) {
        (Some(event), message) => (event.as_str(), message.as_deref()),
        (None, message) => (message.as_deref().unwrap_or_default(), None),
    };
    let mut line = String::with_capacity(fields.rest.len() + 160);
    line.push_str("{\"event\":");
    write_text(&mut line, event);
    if let Some(message) = message {
        line.push_str(",\"message\":");
        write_text(&mut line, message);
    }
    let (now, level) = (Clock::system().now(), level.to_lowercase());
    let _ = write!(line, ",\"time\":\"{now}\",\"level\":\"{level}\",\"target\":\"{target}\"");
    line.push_str(&fields.rest);
    line.push_str("}\n");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_object_that_begins_with_its_event() {
        let fields = Fields {
            event: Some("wolt_cache_hit".to_owned()),
            message: None,
            rest: ",\"placeId\":\"a\\nb\"".to_owned(),
            names: Vec::new(),
        };
        let text = line(&fields, "INFO", "solely::decision");
        assert!(
            text.starts_with("{\"event\":\"wolt_cache_hit\",\"time\":\"") && text.ends_with("}\n"),
            "{text}"
        );
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&value["placeId"], &value["level"]), (&"a\nb".into(), &"info".into()));
        let words = Fields { message: Some("solely is ready".to_owned()), ..Fields::default() };
        assert!(line(&words, "INFO", "solely").starts_with("{\"event\":\"solely is ready\","));
    }
}
