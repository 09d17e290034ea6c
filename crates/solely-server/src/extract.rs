//! Extractors that refuse what they do not know, and say which field.

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::App;
use crate::error::ApiError;

/// A JSON body. None at all is an empty object.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let Text(bytes) = Text::from_request(request, app).await?;
        parse(&bytes).map(Self)
    }
}

/// A body as it came, for those who read it without copying.
pub(crate) struct Text(pub(crate) Bytes);

impl FromRequest<App> for Text {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        to_bytes(request.into_body(), app.max_body).await.map(Self).map_err(|error| too_large(&error, app))
    }
}

/// What a JSON body holds. None at all is an empty object.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ApiError> {
    let text: &[u8] = if bytes.is_empty() { b"{}" } else { bytes };
    // Serde would take an array for a struct, field by field.
    if text.trim_ascii_start().first() == Some(&b'[') {
        return Err(ApiError::invalid("the body is a JSON object, not an array"));
    }
    // Where the path is followed each name is copied; only what is wrong is read a second time for it.
    if let Ok(value) = serde_json::from_slice(text) {
        return Ok(value);
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        ApiError::invalid(sentence(&path, &error.into_inner().to_string()))
    })?;
    json.end().map_err(|_| ApiError::invalid("the body has something behind its JSON"))?;
    Ok(value)
}

fn too_large(error: &axum::Error, app: &App) -> ApiError {
    // The limit's own error says so; anything else is a client that left.
    let text = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    if text.contains("limit") {
        let message = format!("The body is larger than {} bytes.", app.max_body);
        return ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", message);
    }
    ApiError::invalid("the body could not be read")
}

/// The query string. Values are text; each handler's type reads them.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        let form = serde_urlencoded::Deserializer::new(form_pairs(query));
        let value = serde_path_to_error::deserialize(form).map_err(|error| {
            let path = error.path().to_string();
            ApiError::invalid(sentence(&path, &error.into_inner().to_string()))
        })?;
        Ok(Self(value))
    }
}

fn form_pairs(query: &str) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(query.as_bytes())
}

/// A segment of the path. One that cannot be what it stands for names nothing.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: std::str::FromStr + Send> FromRequestParts<App> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let axum::extract::Path(text) = axum::extract::Path::<String>::from_request_parts(parts, app)
            .await
            .map_err(|_| ApiError::not_found("There is no such thing."))?;
        text.parse().map(Self).map_err(|_| ApiError::not_found(format!("There is no `{text}`.")))
    }
}

/// Two segments of the path, of which the second is any text.
pub(crate) struct PathPair<T>(pub(crate) T, pub(crate) String);

impl<T: std::str::FromStr + Send> FromRequestParts<App> for PathPair<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let axum::extract::Path((first, second)) =
            axum::extract::Path::<(String, String)>::from_request_parts(parts, app)
                .await
                .map_err(|_| ApiError::not_found("There is no such thing."))?;
        let first = first.parse().map_err(|_| ApiError::not_found(format!("There is no `{first}`.")))?;
        Ok(Self(first, second))
    }
}

/// Whose request it is, for what it causes.
#[derive(Clone, Default)]
pub(crate) struct Asker {
    /// Its id.
    pub(crate) request_id: String,
    /// Its W3C `traceparent`.
    pub(crate) trace: Option<String>,
}

impl FromRequestParts<App> for Asker {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, ApiError> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

/// What serde says, with the field in front and the column left out.
fn sentence(path: &str, what: &str) -> String {
    let what = what.split(" at line ").next().unwrap_or(what);
    // What ends before a name is read is said of what it is in.
    match path.trim_end_matches(".?") {
        "." | "?" => what.to_owned(),
        // Serde names the field itself where it is missing or unknown.
        path if what.contains(&format!("`{path}`")) => what.to_owned(),
        path => format!("`{path}`: {what}"),
    }
}

/// Refuses text that cannot be a key: empty, too long, or with control characters.
pub(crate) fn check_key(field: &str, text: &str) -> Result<(), ApiError> {
    let max = solely_core::limits::KEY_BYTES_MAX;
    if text.is_empty() || text.len() > max {
        return Err(ApiError::invalid(format!("`{field}` has 1 to {max} bytes")));
    }
    if text.chars().any(char::is_control) {
        return Err(ApiError::invalid(format!("`{field}` has no control characters")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_where_it_is() {
        for (path, what, said) in [
            (".", "expected value at line 1 column 1", "expected value"),
            ("results", "missing field `results` at line 1 column 2", "missing field `results`"),
            ("results[1]", "missing field `name`", "`results[1]`: missing field `name`"),
            (
                "results[0].?",
                "EOF while parsing an object at line 1 column 9",
                "`results[0]`: EOF while parsing an object",
            ),
        ] {
            assert_eq!(sentence(path, what), said);
        }
    }
}
