//! The plain finder. Every place has a page at Wolt, among others that are not its own, but for those
//! whose id begins with `nowhere`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Sandbox, web};

/// What is asked for.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Asked {
    place_id: String,
    name: String,
    city_text: Option<String>,
    #[serde(rename = "addressText")]
    _address_text: Option<String>,
}

pub(crate) async fn find(State(sandbox): State<Sandbox>, Json(asked): Json<Asked>) -> Response {
    sandbox.calls().note_place(&asked.place_id);
    if let Some(failure) = sandbox.mood().answer(&sandbox, "finder", None).await {
        return failure;
    }
    Json(json!({"candidates": candidates(&asked)})).into_response()
}

/// The page of a place.
pub fn page_of(name: &str, city: Option<&str>) -> String {
    format!("https://wolt.com/en/isr/{}/restaurant/{}", slug(city.unwrap_or("tel-aviv")), slug(name))
}

fn candidates(asked: &Asked) -> Vec<Value> {
    let known = !asked.place_id.starts_with("nowhere");
    let pages = web::pages(&asked.name, asked.city_text.as_deref(), known);
    pages
        .into_iter()
        .map(|page| json!({"title": page.title, "url": page.url, "snippet": page.snippet}))
        .collect()
}

pub(crate) fn slug(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join("-")
}
