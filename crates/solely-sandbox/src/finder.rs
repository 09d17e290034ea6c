//! The plain finder. Every place has a page at Wolt, among others that are not its own, but for those
//! whose id begins with `nowhere`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Sandbox;

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
    let other = json!({
        "title": "Somewhere Else | Wolt", "url": page_of("somewhere-else", None), "snippet": "Another place.",
    });
    if asked.place_id.starts_with("nowhere") {
        return vec![other];
    }
    let city = asked.city_text.as_deref();
    let own = json!({
        "title": format!("{} | Wolt", asked.name), "url": page_of(&asked.name, city),
        "snippet": format!("Order from {}.", asked.name),
    });
    let elsewhere = json!({"title": asked.name, "url": "https://example.org/menu", "snippet": ""});
    vec![other, elsewhere, own]
}

fn slug(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join("-")
}
