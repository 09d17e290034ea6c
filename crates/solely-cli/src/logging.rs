//! Logs: pretty on a terminal, one JSON object a line elsewhere. `RUST_LOG` turns them up or down;
//! decisions have the target `solely::decision`, so that they can be turned down by themselves.
//!
//! An object begins with its `event`: what happened, by its stable name where it has one, else in
//! words. The request that it belongs to is in it (`requestId`, and `traceId` where the client sent a
//! `traceparent`).

use std::fmt::{self, Write as _};
use std::io::{IsTerminal as _, Write as _};

use solely_core::Clock;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};

/// Sets logging up for a long-running command.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
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
}

impl Fields {
    fn put(&mut self, field: &Field, value: &str, quoted: bool) {
        match field.name() {
            "event" => self.event = Some(value.to_owned()),
            "message" => self.message = Some(value.to_owned()),
            name => {
                let value = if quoted { json(value) } else { value.to_owned() };
                let _ = write!(self.rest, ",{}:{value}", json(name));
            }
        }
    }
}

fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
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
                fields.rest.push_str(&of_span.rest);
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
    let message = message.map_or(String::new(), |message| format!(",\"message\":{}", json(message)));
    format!(
        "{{\"event\":{}{message},\"time\":\"{}\",\"level\":\"{}\",\"target\":{}{}}}\n",
        json(event),
        Clock::system().now(),
        level.to_lowercase(),
        json(target),
        fields.rest,
    )
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
