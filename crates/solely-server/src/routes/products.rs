//! Product searches.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use solely_core::Timestamp;
use solely_core::products::catalogue::{self, Catalogue};
use solely_core::products::filter::Filter;
use solely_core::products::search::BUSY_RETRY;
use solely_core::products::{Answer, Search, SearchError, State as CacheState};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ApiErrors};
use crate::extract::{Asker, Body, Text, check_key, parse};

/// What is searched for.
#[derive(Deserialize, ToSchema)]
#[schema(as = ProductSearch)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SearchBody {
    /// The plugin.
    app_key: String,
    /// For whom.
    user_id: String,
    /// Which of the user's accounts.
    hint: Option<String>,
    /// Which of the plugin's operations; its first if there is none.
    operation: Option<String>,
    /// Whether the plugin is called in any case.
    #[serde(default)]
    force_refresh: bool,
    /// What the plugin knows the user by. `ttr`, `doNotCallPluginForProducts` and `configuration` are read here.
    #[schema(value_type = Option<Object>)]
    token: Option<Map<String, Value>>,
    /// `searchInput` and `optionId` filter; the rest goes to the plugin.
    #[schema(value_type = Option<Object>)]
    payload: Option<Map<String, Value>>,
}

/// A catalogue that was had elsewhere.
#[derive(Deserialize, ToSchema)]
#[schema(as = ProductCatalogue)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PutBody {
    app_key: String,
    user_id: String,
    hint: Option<String>,
    operation: Option<String>,
    #[schema(value_type = Vec<Object>)]
    products: Box<RawValue>,
}

/// Where an answer comes from.
#[derive(Serialize, ToSchema)]
#[schema(as = ProductCache)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CacheBody {
    /// `fresh`, `stale`, `cacheOnly`, `empty`, `refreshed` or `filled`.
    #[schema(value_type = String)]
    state: CacheState,
    /// When what is cached was written.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_updated: Option<Timestamp>,
    /// Whether this search had a refresh queued.
    refresh_queued: bool,
    /// Why it is not fresh.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The products that were found.
#[derive(ToSchema)]
#[schema(as = ProductAnswer)]
#[expect(dead_code, reason = "it is only described")]
pub(crate) struct AnswerBody {
    #[schema(value_type = Vec<Object>)]
    products: Vec<Value>,
    cache: CacheBody,
}

/// Searches products
///
/// What is cached is answered at once, fresh or stale; what is not is fetched by one call, whoever else asks for it.
#[utoipa::path(
    post,
    path = "/v1/products/search",
    tag = "products",
    security(("key" = ["products:read"])),
    request_body = SearchBody,
    responses(
        (status = 200, body = AnswerBody),
        (status = 502, description = "PLUGIN_FAILED: see retryAfter"),
        (status = 504, description = "PLUGIN_TIMEOUT: see retryAfter"),
        ApiErrors,
    )
)]
pub(crate) async fn search(
    State(app): State<App>,
    asker: Asker,
    Body(body): Body<SearchBody>,
) -> Result<Response, ApiError> {
    check_key("userId", &body.user_id)?;
    if let Some(hint) = &body.hint {
        check_key("hint", hint)?;
    }
    let (token, mut payload) = (body.token.unwrap_or_default(), body.payload.unwrap_or_default());
    let filter = filter(&mut payload)?;
    check_token(&token)?;
    let plugin = app.products.app(&body.app_key).ok_or_else(|| no_app(&body.app_key))?;
    let configuration = token.get("configuration").and_then(Value::as_object).cloned().unwrap_or_default();
    let search = Search {
        operation: body.operation,
        user_id: body.user_id,
        hint: body.hint,
        force: body.force_refresh,
        token,
        payload,
        request_id: asker.request_id,
        trace: asker.trace,
    };
    let answer = app.products.search(plugin, search).await.map_err(refusal)?;
    Ok(written(answer, &filter, &configuration))
}

/// Writes a catalogue that was had elsewhere
///
/// Calls that began before it are too late to replace it.
#[utoipa::path(
    put,
    path = "/v1/products/cache",
    tag = "products",
    security(("key" = ["products:write"])),
    request_body = PutBody,
    responses((status = 204), ApiErrors)
)]
pub(crate) async fn put(
    State(app): State<App>,
    asker: Asker,
    Text(body): Text,
) -> Result<StatusCode, ApiError> {
    let body: PutBody = parse(&body)?;
    check_key("userId", &body.user_id)?;
    if let Some(hint) = &body.hint {
        check_key("hint", hint)?;
    }
    if let Some(problem) = catalogue::problem(body.products.get()) {
        return Err(ApiError::invalid(problem));
    }
    let products = Catalogue::parse(body.products.get())
        .map_err(|_| ApiError::invalid("`products` is a list of products, each with a list of `options`"))?;
    let plugin = app.products.app(&body.app_key).ok_or_else(|| no_app(&body.app_key))?;
    let search = Search {
        operation: body.operation,
        user_id: body.user_id,
        hint: body.hint,
        force: false,
        token: Map::new(),
        payload: Map::new(),
        request_id: asker.request_id,
        trace: asker.trace,
    };
    app.products.put(plugin, &search, &products).await.map_err(refusal)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Takes the filter out of what is asked of the plugin.
fn filter(payload: &mut Map<String, Value>) -> Result<Filter, ApiError> {
    let input = match payload.remove("searchInput") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(_) => return Err(ApiError::invalid("`payload.searchInput` is a text")),
    };
    let text = |value: Value| match value {
        Value::String(text) => Ok(text),
        _ => Err(ApiError::invalid("`payload.optionId` is a text or a list of texts")),
    };
    let ids = match payload.remove("optionId") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(ids)) => ids.into_iter().map(text).collect::<Result<_, _>>()?,
        Some(one) => vec![text(one)?].into_iter().filter(|id| !id.is_empty()).collect(),
    };
    Ok(Filter::of(input.as_deref(), &ids))
}

/// What is read here of a token must be what it is.
fn check_token(token: &Map<String, Value>) -> Result<(), ApiError> {
    let wrong = |name: &str, right: fn(&Value) -> bool| {
        token.get(name).is_some_and(|value| !value.is_null() && !right(value))
    };
    if wrong("ttr", Value::is_u64) {
        return Err(ApiError::invalid("`token.ttr` is a number of seconds"));
    }
    if wrong("doNotCallPluginForProducts", Value::is_boolean) {
        return Err(ApiError::invalid("`token.doNotCallPluginForProducts` is true or false"));
    }
    if wrong("configuration", Value::is_object) {
        return Err(ApiError::invalid("`token.configuration` is an object"));
    }
    Ok(())
}

/// The products and where they come from, with the configuration laid over all else.
fn written(answer: Answer, filter: &Filter, configuration: &Map<String, Value>) -> Response {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(b"{\"products\":");
    answer.catalogue.write_filtered(filter, &mut out);
    let cache = CacheBody {
        state: answer.state,
        last_updated: answer.last_updated,
        refresh_queued: answer.refresh_queued,
        error: answer.error,
    };
    out.extend_from_slice(b",\"cache\":");
    let _ = serde_json::to_writer(&mut out, &cache);
    for (name, value) in configuration.iter().filter(|(name, _)| *name != "products" && *name != "cache") {
        out.push(b',');
        let _ = serde_json::to_writer(&mut out, name);
        out.push(b':');
        let _ = serde_json::to_writer(&mut out, value);
    }
    out.push(b'}');
    ([(header::CONTENT_TYPE, "application/json")], out).into_response()
}

fn no_app(name: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "APP_NOT_FOUND", format!("There is no app {name:?}."))
}

fn refusal(error: SearchError) -> ApiError {
    match error {
        SearchError::NoOperation(name) => {
            let message = format!("The app has no operation {name:?}.");
            ApiError::new(StatusCode::NOT_FOUND, "OPERATION_NOT_SUPPORTED", message)
        }
        SearchError::Failed { error, timed_out, retry_after } => {
            let (status, code) = if timed_out {
                (StatusCode::GATEWAY_TIMEOUT, "PLUGIN_TIMEOUT")
            } else {
                (StatusCode::BAD_GATEWAY, "PLUGIN_FAILED")
            };
            ApiError::new(status, code, format!("The plugin failed: {error}.")).retry_after(retry_after)
        }
        SearchError::Busy => {
            let message = "The plugin is being called. Please try again in a moment.";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "PLUGIN_BUSY", message).retry_after(BUSY_RETRY)
        }
        SearchError::Store(error) => error.into(),
    }
}
