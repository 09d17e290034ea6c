//! The venue search of Wolt's own pages: `POST /v1/pages/search` with `{"q","target":"venues","lat","lon"}` answers
//! sections of items, of which those with a `venue` count. It wants to know where, so the city's coordinates come from
//! `GET /v1/cities`, which is asked once in a while and not for every place. Nobody promises that either stays: what
//! is missing in an answer is done without.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{Candidate, Finder, Findings, Place, or_empty};
use crate::enrich::matcher;
use crate::upstream::http::{Ask, HttpClient, unreadable};
use crate::upstream::{CallFailed, UpstreamError};

/// How long the list of cities is good for.
const CITIES_LIFE: Duration = Duration::from_secs(24 * 3_600);

/// A finder that asks Wolt itself.
pub struct WoltFinder {
    client: HttpClient,
    search: String,
    cities: String,
    /// The cities, and since when they are known.
    known: Mutex<Option<(Instant, Arc<Vec<City>>)>>,
}

impl WoltFinder {
    /// A finder at a base URL.
    pub fn new(client: HttpClient, url: &str) -> Self {
        let base = url.trim_end_matches('/');
        let (search, cities) = (format!("{base}/v1/pages/search"), format!("{base}/v1/cities"));
        Self { client, search, cities, known: Mutex::new(None) }
    }

    /// The cities. Lookups that come together wait for one answer.
    async fn cities(&self, trace: Option<&str>) -> Result<Arc<Vec<City>>, CallFailed<UpstreamError>> {
        let mut known = self.known.lock().await;
        if let Some((_, cities)) = known.as_ref().filter(|(since, _)| since.elapsed() < CITIES_LIFE) {
            return Ok(cities.clone());
        }
        let answer = self.client.get(&self.cities, &Ask { trace, ..Ask::default() }).await?;
        let answer: Cities = serde_json::from_slice(&answer).map_err(unreadable)?;
        let cities = Arc::new(readable(answer.results));
        *known = Some((Instant::now(), cities.clone()));
        Ok(cities)
    }
}

#[derive(Deserialize)]
struct Cities {
    results: Vec<Value>,
}

#[derive(Deserialize)]
struct City {
    #[serde(default, deserialize_with = "or_empty")]
    name: String,
    #[serde(default, deserialize_with = "or_empty")]
    slug: String,
    #[serde(default, deserialize_with = "or_empty")]
    country_code_alpha3: String,
    location: Option<Point>,
}

#[derive(Deserialize)]
struct Point {
    /// Longitude and latitude.
    coordinates: [f64; 2],
}

#[derive(Deserialize)]
struct Answer {
    sections: Vec<Section>,
}

#[derive(Deserialize)]
struct Section {
    items: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct Item {
    venue: Venue,
}

/// Those that are what they should be.
fn readable<T: serde::de::DeserializeOwned>(values: Vec<Value>) -> Vec<T> {
    values.into_iter().filter_map(|value| serde_json::from_value(value).ok()).collect()
}

#[derive(Deserialize)]
struct Venue {
    name: Value,
    slug: String,
    #[serde(default, deserialize_with = "or_empty")]
    address: String,
    #[serde(default, deserialize_with = "or_empty")]
    city: String,
    #[serde(default, deserialize_with = "or_empty")]
    country: String,
    #[serde(default, deserialize_with = "or_empty")]
    product_line: String,
}

impl Venue {
    /// A name, or one for each language.
    fn names(&self) -> Vec<&str> {
        match &self.name {
            Value::String(name) => vec![name],
            Value::Array(names) => names.iter().filter_map(|name| name["value"].as_str()).collect(),
            _ => Vec::new(),
        }
    }

    /// Its page. Where it is comes first from itself, then from where it was searched.
    fn candidate(self, searched: &City, cities: &[City]) -> Candidate {
        let own = cities.iter().find(|city| !self.city.is_empty() && matcher::is_in(&self.city, &city.slug));
        let city = own.unwrap_or(searched);
        let country = if self.country.is_empty() { &city.country_code_alpha3 } else { &self.country };
        let page =
            if matches!(self.product_line.as_str(), "" | "restaurant") { "restaurant" } else { "venue" };
        Candidate {
            title: self.names().join(" | "),
            url: format!("https://wolt.com/en/{}/{}/{page}/{}", country.to_lowercase(), city.slug, self.slug),
            snippet: format!(
                "{}, {}",
                self.address,
                if self.city.is_empty() { &city.name } else { &self.city }
            ),
        }
    }
}

/// The city that a place is in: by what was searched for, or by its address.
fn city_of<'a>(place: &Place, cities: &'a [City]) -> Option<&'a City> {
    let texts = place.city_text.iter().chain(&place.address_text);
    let mut parts = texts.flat_map(|text| text.split(','));
    parts.find_map(|part| {
        cities.iter().find(|city| matcher::is_in(part, &city.name) || matcher::is_in(part, &city.slug))
    })
}

#[async_trait]
impl Finder for WoltFinder {
    /// A name in two languages is asked for in both.
    fn queries(&self, place: &Place) -> usize {
        names(place).len()
    }

    async fn ask(
        &self,
        place: &Place,
        query: usize,
        trace: Option<&str>,
    ) -> Result<Findings, CallFailed<UpstreamError>> {
        let cities = self.cities(trace).await?;
        let here = city_of(place, &cities).and_then(|city| Some((city, city.location.as_ref()?)));
        let Some((city, Point { coordinates: [lon, lat] })) = here else { return Ok(Findings::NotFound) };
        let name = names(place).into_iter().nth(query).unwrap_or(&place.name);
        let body = json!({"q": name, "target": "venues", "lat": lat, "lon": lon});
        let answer = self.client.post(&self.search, &Ask { trace, ..Ask::default() }, &body).await?;
        let answer: Answer = serde_json::from_slice(&answer).map_err(unreadable)?;
        let items = answer.sections.into_iter().filter_map(|section| section.items).flatten();
        let items: Vec<Item> = readable(items.collect());
        Ok(Findings::Candidates(items.into_iter().map(|item| item.venue.candidate(city, &cities)).collect()))
    }
}

/// The names of a place, at most two.
fn names(place: &Place) -> Vec<&str> {
    let names: Vec<&str> =
        place.name.split('|').map(str::trim).filter(|name| !name.is_empty()).take(2).collect();
    if names.is_empty() { vec![&place.name] } else { names }
}
