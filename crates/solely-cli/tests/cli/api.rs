//! `docs/API.md` is what the server says of itself: `cargo xtask api` writes it, this fails when they differ.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::ops::{read, root};
use crate::server::Server;

#[tokio::test]
async fn the_page_is_what_the_server_describes() {
    let described = Server::start().await.get("/openapi.json").await;
    let page = page(&described);
    if std::env::var_os("SOLELY_UPDATE").is_some() {
        std::fs::write(root().join("docs/API.md"), &page).expect("is written");
    }
    assert!(read("docs/API.md") == page, "docs/API.md is not what /openapi.json says: run `cargo xtask api`");
    assert!(page.matches("\n### ").count() > 60);
}

fn page(api: &Value) -> String {
    let mut out = format!(
        "# API\n\nWritten by `cargo xtask api` from what a server says at `/openapi.json`; `/docs` shows the same. \
         solely {}.\n\n{}\n\n",
        text(&api["info"]["version"]),
        text(&api["info"]["description"]),
    );
    out.push_str("Any route may answer\n\n| status | |\n|---|---|\n");
    for (status, description) in common(api) {
        let _ = writeln!(out, "| {status} | {description} |");
    }
    for tag in array(&api["tags"]) {
        let _ = write!(out, "\n## {}\n\n{}.\n", text(&tag["name"]), text(&tag["description"]));
        for (path, methods) in object(&api["paths"]) {
            for (method, route) in object(methods) {
                if route["tags"][0] == tag["name"] {
                    write_route(&mut out, &format!("{} {path}", method.to_uppercase()), route, api);
                }
            }
        }
    }
    out.push_str("\n## Shapes\n");
    for (name, schema) in object(&api["components"]["schemas"]) {
        write_shape(&mut out, name, schema);
    }
    out
}

/// What is said of a status by most routes.
fn common(api: &Value) -> Vec<(String, String)> {
    let lease = &api["paths"]["/v1/leases"]["get"]["responses"];
    let refusals = object(lease).iter().filter(|(status, _)| !status.starts_with('2'));
    refusals.map(|(status, answer)| (status.clone(), text(&answer["description"]))).collect()
}

fn write_route(out: &mut String, title: &str, route: &Value, api: &Value) {
    let _ = write!(out, "\n### `{title}`\n\n{}", sentence(&text(&route["summary"])));
    if let Some(more) = route["description"].as_str() {
        let _ = write!(out, " {}", one_line(more));
    }
    let _ = writeln!(out, " {}\n", who(&route["security"]));
    let parameters = array(&route["parameters"]);
    let body = &route["requestBody"]["content"];
    if !parameters.is_empty() || body.is_object() {
        out.push_str("| takes | | |\n|---|---|---|\n");
        for one in parameters {
            let optional = if one["required"] == true { "" } else { ", optional" };
            let _ = writeln!(
                out,
                "| `{}` ({}) | {}{optional} | {} |",
                text(&one["name"]),
                text(&one["in"]),
                kind(&one["schema"]),
                text(&one["description"]),
            );
        }
        for (_, content) in body.as_object().into_iter().flatten() {
            let _ = writeln!(
                out,
                "| body | {} | {} |",
                kind(&content["schema"]),
                text(&route["requestBody"]["description"])
            );
        }
        out.push('\n');
    }
    out.push_str("| answers | | |\n|---|---|---|\n");
    let known = common(api);
    for (status, answer) in object(&route["responses"]) {
        let description = text(&answer["description"]);
        if known.contains(&(status.clone(), description.clone())) {
            continue;
        }
        let shapes = answer["content"].as_object().into_iter().flatten();
        let shapes: Vec<String> = shapes
            .map(|(media, content)| match content["schema"].as_object() {
                Some(_) if media == "application/json" => kind(&content["schema"]),
                _ => format!("`{media}`"),
            })
            .collect();
        let _ = writeln!(out, "| {status} | {} | {description} |", shapes.join(", "));
    }
}

/// Who may call a route.
fn who(security: &Value) -> String {
    let mut callers = Vec::new();
    for one in array(security) {
        let one = object(one);
        if one.is_empty() {
            return "*Open to everyone.*".to_owned();
        }
        for (scheme, scopes) in one {
            let scopes: Vec<String> =
                array(scopes).iter().map(|scope| format!("`{}`", text(scope))).collect();
            callers.push(match (scheme.as_str(), scopes.is_empty()) {
                ("user", _) => "a user token, for its own".to_owned(),
                (_, true) => "any known caller".to_owned(),
                (_, false) => scopes.join(" and "),
            });
        }
    }
    format!("*{}.*", capital(&callers.join(", or ")))
}

fn write_shape(out: &mut String, name: &str, schema: &Value) {
    let _ = write!(out, "\n### {name}\n\n");
    if let Some(description) = schema["description"].as_str() {
        let _ = write!(out, "{}\n\n", sentence(description));
    }
    let Some(fields) = schema["properties"].as_object() else {
        let _ = writeln!(out, "{}", kind(schema));
        return;
    };
    out.push_str("| field | is | |\n|---|---|---|\n");
    let required = array(&schema["required"]);
    for (field, is) in fields {
        let optional = if required.iter().any(|one| one == field) { "" } else { ", optional" };
        let _ =
            writeln!(out, "| `{field}` | {}{optional} | {} |", kind(is), one_line(&text(&is["description"])));
    }
}

/// What a schema is, in a few words; a link where it has a name.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    for several in ["oneOf", "anyOf", "allOf"] {
        if let Some(all) = schema[several].as_array() {
            let all: Vec<String> = all.iter().map(kind).collect();
            return all.join(" or ");
        }
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(|value| format!("`{}`", text(value))).collect::<Vec<_>>().join(", ");
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.iter().map(text).collect(),
        Value::String(one) => vec![one.clone()],
        _ => vec!["anything".to_owned()],
    };
    let named = types.iter().map(|one| match one.as_str() {
        "array" => format!("list of {}", kind(&schema["items"])),
        "string" if schema["format"] == "date-time" => "time".to_owned(),
        other => other.to_owned(),
    });
    named.collect::<Vec<_>>().join(" or ")
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().expect("an object")
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().map(|text| text.replace('|', "\\|")).unwrap_or_default()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn sentence(text: &str) -> String {
    let text = one_line(text);
    if text.ends_with(['.', '?', '!', ':']) { text } else { format!("{text}.") }
}

fn capital(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}
