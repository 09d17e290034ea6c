//! The venue search of Wolt's pages: cities with their coordinates, and venues around a point.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::finder::slug;
use crate::{Sandbox, web};

/// Cities: name, slug, country, longitude and latitude.
const CITIES: &[(&str, &str, &str, f64, f64)] = &[
    ("Tel Aviv", "tel-aviv", "ISR", 34.78, 32.08),
    ("Haifa", "haifa", "ISR", 34.99, 32.79),
    ("Rishon LeZion & HaShfela area", "rishon-lezion-hashfela-area", "ISR", 34.80, 31.96),
    ("Helsinki", "helsinki", "FIN", 24.94, 60.17),
    ("München", "munich", "DEU", 11.58, 48.14),
];

/// What is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    q: String,
    target: String,
    lat: f64,
    lon: f64,
}

pub(crate) async fn cities(State(sandbox): State<Sandbox>) -> Response {
    if let Some(failure) = sandbox.mood().answer(&sandbox, "wolt.cities", None).await {
        return failure;
    }
    let city = |(name, slug, country, lon, lat): &(&str, &str, &str, f64, f64)| {
        json!({
            "id": slug, "name": name, "slug": slug, "country_code_alpha3": country, "subareas": [],
            "location": {"type": "Point", "coordinates": [lon, lat]}, "timezone": "UTC", "has_frontpage": true,
        })
    };
    let mut cities: Vec<Value> = CITIES.iter().map(city).collect();
    cities.push(json!({"id": "new", "name": null, "slug": "coming-soon"}));
    Json(json!({"results": cities})).into_response()
}

pub(crate) async fn search(State(sandbox): State<Sandbox>, Json(asked): Json<Asked>) -> Response {
    if let Some(failure) = sandbox.mood().answer(&sandbox, "wolt", None).await {
        return failure;
    }
    sandbox.calls().note_query(&asked.q);
    let here = CITIES
        .iter()
        .find(|(_, _, _, lon, lat)| (lon - asked.lon).abs() < 0.01 && (lat - asked.lat).abs() < 0.01);
    let Some((city, _, country, ..)) = here.filter(|_| asked.target == "venues") else {
        return Json(json!({"sections": [{"name": "no-content", "title": "Nothing here"}]})).into_response();
    };
    let known = !asked.q.starts_with("Nowhere");
    // A page's title is a venue's name, but for what stands around it.
    let pages = web::pages(&asked.q, None, known).into_iter().filter(|page| page.url.contains("wolt.com"));
    let venue = |page: web::Page| {
        let name = page.title.replace(" | Wolt", "");
        json!({
            "template": "venue-large", "title": name, "link": {"target": "5f0", "type": "venue-id"},
            "venue": {
                "id": "5f0", "slug": slug(&name), "name": name, "address": "Dizengoff 50", "city": city, "country": country,
                "product_line": "restaurant", "location": [asked.lon, asked.lat],
            },
        })
    };
    let mut items: Vec<Value> = pages.map(venue).collect();
    items.insert(0, json!({"template": "banner", "title": "Free delivery"}));
    Json(json!({"sections": [{"name": "banner"}, {"name": "venues", "items": items}]})).into_response()
}
