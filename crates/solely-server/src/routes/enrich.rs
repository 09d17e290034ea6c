//! Provider links of places.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use solely_core::enrich::finder::Place;
use solely_core::enrich::place::{self, ResultObject, write_state};
use solely_core::enrich::{self, AskError, Looked, PlaceRef, Provider, Wanted};
use solely_core::json::write_text;
use solely_core::limits;
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ApiErrors};
use crate::extract::{Asker, Body, Path, PathPair, Text, check_key, parse};

/// Results to be enriched, in one shape or the other.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Ask<'a> {
    #[serde(default, borrow)]
    request_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    city_text: Option<Cow<'a, str>>,
    #[serde(default)]
    providers: Option<Vec<String>>,
    #[serde(default, borrow, deserialize_with = "place::results")]
    results: Option<Vec<ResultObject<'a>>>,
    #[serde(default, borrow, deserialize_with = "place::google_places")]
    places: Option<Vec<ResultObject<'a>>>,
}

/// The same, for the description.
#[derive(ToSchema)]
#[schema(as = EnrichRequest, rename_all = "camelCase")]
#[expect(dead_code, reason = "it is only described")]
pub(crate) struct AskBody {
    /// Under this the answers can be subscribed to and asked for; made if there is none.
    request_id: Option<String>,
    /// The city that was searched in.
    city_text: Option<String>,
    /// Only these; without it all that are enabled.
    providers: Option<Vec<String>>,
    /// At most 200. Other fields are kept as they came.
    results: Option<Vec<ResultBody>>,
    /// Instead of `results`, in the shape of Google Places (New).
    #[schema(value_type = Option<Vec<Object>>)]
    places: Option<Vec<serde_json::Value>>,
}

/// A result.
#[derive(ToSchema)]
#[schema(as = EnrichResult, rename_all = "camelCase")]
#[expect(dead_code, reason = "it is only described")]
pub(crate) struct ResultBody {
    place_id: String,
    name: String,
    address: Option<String>,
}

/// The results with what is known of them.
#[derive(ToSchema)]
#[schema(as = EnrichAnswer, rename_all = "camelCase")]
#[expect(dead_code, reason = "it is only described")]
pub(crate) struct AskAnswer {
    request_id: String,
    /// How many states are PENDING.
    pending: usize,
    /// As they came, each with `providers.<name>`: `{"status":"PENDING|FOUND|NOT_FOUND","url",…}`.
    #[schema(value_type = Vec<Object>)]
    results: Vec<serde_json::Value>,
}

/// Attaches what is known, and has the rest looked up
///
/// It answers at once and never waits for an upstream. What is PENDING is pushed to whoever subscribes to
/// the request (`/v1/ws`), and can be asked for (`GET /v1/enrich/{requestId}`).
#[utoipa::path(
    post,
    path = "/v1/enrich",
    tag = "enrich",
    security(("key" = ["enrich:write"])),
    request_body = AskBody,
    responses((status = 200, body = AskAnswer), ApiErrors)
)]
pub(crate) async fn ask(
    State(app): State<App>,
    asker: Asker,
    Text(body): Text,
) -> Result<Response, ApiError> {
    let body: Ask<'_> = parse(&body)?;
    let (city, request_id) = (body.city_text.as_deref(), body.request_id.as_deref());
    check_text("cityText", city)?;
    if let Some(id) = request_id {
        check_key("requestId", id)?;
    }
    let results = match (&body.results, &body.places) {
        (Some(results), None) => results,
        (None, Some(places)) => places,
        (None, None) => return Err(ApiError::invalid("missing field `results`")),
        (Some(_), Some(_)) => return Err(ApiError::invalid("there is either `results` or `places`")),
    };
    let providers = providers(&app, body.providers.as_deref())?;
    let (places, which) = each_once(results);
    if places.len() * providers.len() > limits::STATES_MAX {
        let most = limits::STATES_MAX;
        return Err(ApiError::invalid(format!("there are at most {most} places times providers")));
    }
    let asker = enrich::Asker {
        request_id: request_id.map_or_else(|| uuid::Uuid::now_v7().to_string(), str::to_owned),
        trace: asker.trace,
    };
    let (on, off): (Vec<_>, Vec<_>) = providers.into_iter().partition(|provider| provider.settings.enabled);
    for provider in &off {
        app.enrich.not_asked(&asker, provider);
    }
    let off: Vec<&str> = off.iter().map(|provider| provider.name.as_str()).collect();
    let answered = app.enrich.ask(&asker, &Wanted { providers: &on, places: &places, city }).await?;
    let mut out = String::with_capacity(256 + results.len() * 512);
    out.push_str("{\"requestId\":");
    write_text(&mut out, &asker.request_id);
    let _ = write!(out, ",\"pending\":{},\"results\":[", answered.pending);
    for (nth, result) in results.iter().enumerate() {
        if nth > 0 {
            out.push(',');
        }
        let states: Vec<(&str, &enrich::State)> = on
            .iter()
            .zip(&answered.states)
            .map(|(provider, states)| (provider.name.as_str(), &states[which[nth]]))
            .collect();
        result.write(&mut out, &states, &off, app.enrich.has_legacy_wolt_field());
    }
    out.push_str("]}");
    Ok(json(out))
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// Text that may be missing or empty.
fn check_text(field: &str, text: Option<&str>) -> Result<(), ApiError> {
    match text {
        Some(text) if !text.is_empty() => check_key(field, text),
        _ => Ok(()),
    }
}

/// The providers that are asked for, each once: all there are, if none is named.
fn providers(app: &App, named: Option<&[String]>) -> Result<Vec<Arc<Provider>>, ApiError> {
    let Some(named) = named else { return Ok(app.enrich.providers().cloned().collect()) };
    let mut asked: Vec<Arc<Provider>> = Vec::new();
    for name in named {
        let known = app.enrich.provider(name).cloned();
        let provider =
            known.ok_or_else(|| ApiError::invalid(format!("`providers`: there is no provider `{name}`")))?;
        if !asked.iter().any(|known| known.name == provider.name) {
            asked.push(provider);
        }
    }
    Ok(asked)
}

/// The places of results, each once, and which of them each result is.
fn each_once<'a>(results: &'a [ResultObject<'_>]) -> (Vec<PlaceRef<'a>>, Vec<usize>) {
    let mut seen: HashMap<&str, usize> = HashMap::with_capacity(results.len());
    let mut places = Vec::with_capacity(results.len());
    let which = results.iter().map(|result| {
        *seen.entry(&result.place_id).or_insert_with(|| {
            places.push(result.place());
            places.len() - 1
        })
    });
    let which = which.collect();
    (places, which)
}

impl From<AskError> for ApiError {
    fn from(error: AskError) -> Self {
        match error {
            AskError::TooMany => {
                Self::invalid("`requestId`: this request has as many places as one can have")
            }
            AskError::Store(error) => error.into(),
        }
    }
}

/// What a request was told, as it is now
///
/// For clients that poll. A request of which nothing was pending, or that is too long ago, is not known.
#[utoipa::path(
    get,
    path = "/v1/enrich/{requestId}",
    tag = "enrich",
    security(("key" = ["enrich:read"])),
    params(("requestId" = String, Path)),
    responses((status = 200, body = AskAnswer), ApiErrors)
)]
pub(crate) async fn recall(
    State(app): State<App>,
    Path(request): Path<String>,
) -> Result<Response, ApiError> {
    let missing =
        || ApiError::not_found("There is no request of this id that waits for anything, or not any more.");
    check_key("requestId", &request).map_err(|_| missing())?;
    let places = app.enrich.recall(&request).await?.ok_or_else(missing)?;
    let states = places.iter().flat_map(|place| &place.states);
    let pending = states.filter(|(_, state)| matches!(state, enrich::State::Pending)).count();
    let mut out = String::from("{\"requestId\":");
    write_text(&mut out, &request);
    let _ = write!(out, ",\"pending\":{pending},\"results\":[");
    for (nth, place) in places.iter().enumerate() {
        out.push_str(if nth > 0 { ",{\"placeId\":" } else { "{\"placeId\":" });
        write_text(&mut out, &place.place_id);
        out.push_str(",\"name\":");
        write_text(&mut out, &place.name);
        out.push_str(",\"providers\":{");
        for (nth, (provider, state)) in place.states.iter().enumerate() {
            if nth > 0 {
                out.push(',');
            }
            write_text(&mut out, provider);
            out.push(':');
            write_state(&mut out, state, true);
        }
        out.push('}');
        let wolt = place.states.iter().find(|(provider, _)| provider == "wolt");
        if let (Some((_, state)), true) = (wolt, app.enrich.has_legacy_wolt_field()) {
            out.push_str(",\"wolt\":");
            write_state(&mut out, state, false);
        }
        out.push('}');
    }
    out.push_str("]}");
    Ok(json(out))
}

/// Places to be warmed.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct WarmBody {
    provider: String,
    /// At most 500. Other fields are not looked at.
    places: Vec<WarmPlace>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WarmPlace {
    place_id: String,
    name: String,
    city_text: Option<String>,
    address: Option<String>,
}

/// What became of warming.
#[derive(Serialize, ToSchema)]
pub(crate) struct Warmed {
    /// Places for which a lookup was made.
    queued: usize,
    /// Places that are known.
    cached: usize,
    /// Places for which a lookup was there, or that were named twice.
    duplicate: usize,
}

/// Has places looked up ahead of requests
///
/// Lookups that someone waits for come first.
#[utoipa::path(
    post,
    path = "/v1/enrich/warm",
    tag = "enrich",
    security(("key" = ["enrich:write"])),
    request_body = WarmBody,
    responses((status = 202, body = Warmed), ApiErrors)
)]
pub(crate) async fn warm(
    State(app): State<App>,
    asker: Asker,
    Body(body): Body<WarmBody>,
) -> Result<(StatusCode, Json<Warmed>), ApiError> {
    let provider = app.enrich.provider(&body.provider).cloned();
    let provider = provider
        .ok_or_else(|| ApiError::invalid(format!("`provider`: there is none named `{}`", body.provider)))?;
    if !provider.settings.enabled {
        return Err(ApiError::invalid(format!("`provider`: `{}` is not enabled", body.provider)));
    }
    if body.places.len() > limits::WARM_MAX {
        return Err(ApiError::invalid(format!("`places` has at most {} items", limits::WARM_MAX)));
    }
    let named = body.places.len();
    let mut places: Vec<Place> = Vec::with_capacity(named);
    for (nth, place) in body.places.into_iter().enumerate() {
        check_key(&format!("places[{nth}].placeId"), &place.place_id)?;
        check_key(&format!("places[{nth}].name"), &place.name)?;
        check_text(&format!("places[{nth}].cityText"), place.city_text.as_deref())?;
        check_text(&format!("places[{nth}].address"), place.address.as_deref())?;
        let WarmPlace { place_id, name, city_text, address } = place;
        if !places.iter().any(|known| known.place_id == place_id) {
            places.push(Place { place_id, name, city_text, address_text: address });
        }
    }
    let twice = named - places.len();
    let asker = enrich::Asker { request_id: asker.request_id, trace: asker.trace };
    let warmed = app.enrich.warm(&asker, &provider, &places).await?;
    let answer = Warmed { queued: warmed.queued, cached: warmed.cached, duplicate: warmed.duplicate + twice };
    Ok((StatusCode::ACCEPTED, Json(answer)))
}

fn known(app: &App, provider: &str) -> Result<Arc<Provider>, ApiError> {
    let missing = || ApiError::not_found(format!("There is no provider `{provider}`."));
    app.enrich.provider(provider).cloned().ok_or_else(missing)
}

/// The provider of a route, and its place: one that cannot be a place's id is unknown.
fn known_place(app: &App, provider: &str, place: &str) -> Result<Arc<Provider>, ApiError> {
    let provider = known(app, provider)?;
    check_key("placeId", place).map_err(|_| unknown(place))?;
    Ok(provider)
}

fn unknown(place: &str) -> ApiError {
    ApiError::not_found(format!("Nothing is known of the place `{place}`."))
}

/// Looks at one entry
#[utoipa::path(
    get,
    path = "/v1/enrich/{provider}/places/{placeId}",
    tag = "enrich",
    security(("key" = ["enrich:read"])),
    params(("provider" = String, Path), ("placeId" = String, Path)),
    responses((status = 200, body = Looked), ApiErrors)
)]
pub(crate) async fn look(
    State(app): State<App>,
    PathPair(provider, place): PathPair<String>,
) -> Result<Json<Looked>, ApiError> {
    let provider = known_place(&app, &provider, &place)?;
    let looked = app.enrich.look(&provider, &place).await?;
    looked.map(Json).ok_or_else(|| unknown(&place))
}

/// Forgets one entry
///
/// The next request looks the place up again. Those who were told of it still hear what it was.
#[utoipa::path(
    delete,
    path = "/v1/enrich/{provider}/places/{placeId}",
    tag = "enrich",
    security(("key" = ["enrich:write"])),
    params(("provider" = String, Path), ("placeId" = String, Path)),
    responses((status = 204, description = "It is forgotten"), ApiErrors)
)]
pub(crate) async fn forget(
    State(app): State<App>,
    asker: Asker,
    PathPair(provider, place): PathPair<String>,
) -> Result<StatusCode, ApiError> {
    let provider = known_place(&app, &provider, &place)?;
    let forgotten = app.enrich.forget(&provider, &place, Some(asker.request_id)).await?;
    if forgotten { Ok(StatusCode::NO_CONTENT) } else { Err(unknown(&place)) }
}
