//! Logging a browser in and out.

use axum::Json;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use solely_core::access::Caller;
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ApiErrors, set};
use crate::extract::Body;
use crate::session;

/// What a page should know of who looks at it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Session {
    /// `none`: everyone may do everything. `keys`: a browser logs in.
    auth: &'static str,
    /// Whether this is `solely demo`.
    demo: bool,
    /// The server's version.
    version: &'static str,
    /// What the browser's key may do; none if it is not logged in.
    #[schema(value_type = Option<Vec<String>>)]
    scopes: Option<Vec<String>>,
    /// What every change carries as `X-CSRF-Token`.
    csrf_token: Option<String>,
}

impl Session {
    fn of(app: &App, login: Option<(&Caller, &str)>) -> Self {
        let scopes = login.map(|(caller, _)| match caller {
            Caller::Key { scopes, .. } => scopes.iter().map(ToString::to_string).collect(),
            Caller::Anyone | Caller::User { .. } => Vec::new(),
        });
        Self {
            auth: if app.access.is_open() { "none" } else { "keys" },
            demo: app.demo,
            version: env!("CARGO_PKG_VERSION"),
            scopes,
            csrf_token: login.map(|(_, key)| session::csrf_token(key)),
        }
    }

    fn answer(self, cookie: Option<String>) -> Response {
        let mut response = Json(self).into_response();
        set(&mut response, CACHE_CONTROL, "no-store");
        if let Some(cookie) = cookie {
            set(&mut response, SET_COOKIE, &cookie);
        }
        response
    }
}

/// Who this browser is
#[utoipa::path(get, path = "/v1/session", tag = "access", security(()), responses((status = 200, body = Session), ApiErrors))]
pub(crate) async fn show(State(app): State<App>, headers: HeaderMap) -> Result<Response, ApiError> {
    let caller = app.access.of_browser(&headers).await?;
    let login = caller.as_ref().zip(session::key(&headers));
    Ok(Session::of(&app, login).answer(None))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoginBody {}

/// Logs a browser in
///
/// The key comes as `Authorization: Bearer`, and goes into a cookie that scripts cannot read.
#[utoipa::path(
    post,
    path = "/v1/login",
    tag = "access",
    security(("key" = ["admin:read"])),
    request_body = LoginBody,
    responses((status = 200, body = Session), ApiErrors)
)]
pub(crate) async fn login(
    State(app): State<App>,
    axum::Extension(caller): axum::Extension<Caller>,
    headers: HeaderMap,
    Body(_nothing): Body<LoginBody>,
) -> Response {
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let key = given.and_then(|given| given.split_once(' ')).map(|(_, key)| key.trim());
    // Without access control there is nothing to log in to; by cookie, it is done already.
    let Some(key) = key.filter(|_| !app.access.is_open()) else {
        return Session::of(&app, session::key(&headers).map(|key| (&caller, key))).answer(None);
    };
    Session::of(&app, Some((&caller, key))).answer(Some(session::cookie(&headers, key)))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogoutBody {}

/// Logs a browser out
#[utoipa::path(
    post,
    path = "/v1/logout",
    tag = "access",
    security(()),
    request_body = LogoutBody,
    responses((status = 204, description = "The cookie is gone"), ApiErrors)
)]
pub(crate) async fn logout(headers: HeaderMap, Body(_nothing): Body<LogoutBody>) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    set(&mut response, SET_COOKIE, &session::no_cookie(&headers));
    response
}
