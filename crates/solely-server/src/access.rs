//! Who may call which route.
//!
//! The rule of a route is in its description ([`mod@crate::openapi`]): open, or a scope. A caller proves
//! itself by `Authorization: Bearer`, with a key or a user token; a browser that cannot send a header
//! uses a ticket, once, or is logged in ([`crate::session`]). What a user may do with what is its own is judged by the routes that are
//! users' too.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, Method, StatusCode, header};
use solely_core::access::{Caller, KEY_PREFIX, Keys, Scope, UserTokens};
use solely_core::{Clock, Store};
use utoipa::openapi::{OpenApi, path::Operation};

use crate::App;
use crate::error::ApiError;
use crate::session;

/// What a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Nothing.
    Open,
    /// A caller that is known, whatever it may do.
    Known,
    /// A scope.
    Needs(Scope),
    /// A scope, or a user, whose route judges what is its own.
    NeedsOrUser(Scope),
}

/// The rules of all routes, by method and path.
pub type Rules = HashMap<(Method, String), Rule>;

/// Reads the rules from the description of the routes. The error names a route that has none.
pub fn rules(api: &OpenApi) -> Result<Rules, String> {
    let mut rules = Rules::new();
    for (path, item) in &api.paths.paths {
        let operations: [(Method, &Option<Operation>); 5] = [
            (Method::GET, &item.get),
            (Method::POST, &item.post),
            (Method::PUT, &item.put),
            (Method::PATCH, &item.patch),
            (Method::DELETE, &item.delete),
        ];
        for (method, operation) in operations {
            let Some(operation) = operation else { continue };
            let rule =
                rule(operation).ok_or_else(|| format!("{method} {path} says nothing of who may call it"))?;
            rules.insert((method, path.clone()), rule);
        }
    }
    Ok(rules)
}

fn rule(operation: &Operation) -> Option<Rule> {
    let said = serde_json::to_value(operation.security.as_ref()?).ok()?;
    let scopes = said.as_array()?.first().and_then(|one| one.get("key")).map(|scopes| scopes.as_array());
    match scopes {
        None => Some(Rule::Open),
        Some(scopes) => match scopes?.first() {
            None => Some(Rule::Known),
            Some(scope) => {
                let scope = scope.as_str()?.parse().ok()?;
                let users_too = said.as_array()?.iter().any(|one| one.get("user").is_some());
                Some(if users_too { Rule::NeedsOrUser(scope) } else { Rule::Needs(scope) })
            }
        },
    }
}

/// How callers are known.
#[derive(Clone)]
pub struct Access {
    /// None: whoever reaches the server may do everything.
    known: Option<Known>,
    rules: Arc<Rules>,
}

#[derive(Clone)]
struct Known {
    keys: Keys,
    users: Option<UserTokens>,
    store: Arc<dyn Store>,
}

impl Access {
    /// Everyone may do everything.
    pub fn open() -> Self {
        Self { known: None, rules: Arc::default() }
    }

    /// Callers need a key, or a token signed with this secret.
    pub fn by_keys(store: Arc<dyn Store>, jwt_secret: Option<&str>) -> Self {
        let known = Known { keys: Keys::new(store.clone()), users: jwt_secret.map(UserTokens::new), store };
        Self { known: Some(known), rules: Arc::default() }
    }

    pub(crate) fn with_rules(self, rules: Rules) -> Self {
        Self { rules: Arc::new(rules), ..self }
    }

    /// Whether callers have to prove themselves.
    pub(crate) fn is_open(&self) -> bool {
        self.known.is_none()
    }

    /// Who a browser is logged in as, if it is.
    pub(crate) async fn of_browser(&self, headers: &HeaderMap) -> Result<Option<Caller>, ApiError> {
        match (&self.known, session::key(headers)) {
            (Some(known), Some(key)) => Ok(known.keys.caller(key).await?),
            _ => Ok(None),
        }
    }

    /// Whether a key is certainly not good any more.
    pub(crate) async fn is_revoked(&self, key: &str) -> bool {
        match &self.known {
            Some(known) => known.keys.is_live(key).await.is_ok_and(|live| !live),
            None => false,
        }
    }

    async fn caller(
        &self,
        method: &Method,
        headers: &HeaderMap,
        ticket: Option<&str>,
    ) -> Result<Caller, ApiError> {
        let Some(known) = &self.known else { return Ok(Caller::Anyone) };
        if let Some(ticket) = ticket {
            let taken = known.store.take_ticket(solely_core::access::hash(ticket)).await?;
            let caller = taken.ok_or_else(|| unauthenticated("The ticket has ended or was used."))?;
            return match &caller {
                Caller::Key { id, .. } if !known.keys.is_live(id).await? => {
                    Err(unauthenticated("The key that the ticket was made with has been revoked."))
                }
                _ => Ok(caller),
            };
        }
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = given.and_then(|given| {
            let (scheme, token) = given.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
        });
        let Some(token) = token else {
            if let Some(key) = session::key(headers) {
                let caller = known.keys.caller(key).await?;
                let caller = caller.ok_or_else(|| unauthenticated("The login has ended: log in again."))?;
                session::check(method, headers, key)?;
                return Ok(caller);
            }
            return Err(unauthenticated("This needs a key: Authorization: Bearer …"));
        };
        let caller = if token.starts_with(KEY_PREFIX) {
            known.keys.caller(token).await?
        } else {
            known.users.as_ref().and_then(|users| users.caller(token, Clock::system().now()))
        };
        caller.ok_or_else(|| unauthenticated("The key or token is nobody's, or not any more."))
    }
}

fn unauthenticated(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", message)
}

/// The path of the socket, the one route that takes a ticket.
const SOCKET: &str = "/v1/ws";

/// What a request asks for, as far as access goes.
pub(crate) struct Asked {
    rule: Option<Rule>,
    /// The ticket of one that opens a socket.
    ticket: Option<String>,
}

impl Asked {
    pub(crate) fn of(app: &App, request: &Request) -> Self {
        let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
        let method = if request.method() == Method::HEAD { Method::GET } else { request.method().clone() };
        let ticket = path.as_deref().filter(|path| *path == SOCKET).and_then(|_| ticket(request));
        let rule = path.and_then(|path| app.access.rules.get(&(method, path)).copied());
        Self { rule, ticket }
    }
}

/// Who asks, if that caller may have what it asks for.
pub(crate) async fn caller(
    app: &App,
    asked: Asked,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Caller, ApiError> {
    let rule = match asked.rule {
        // Nothing is behind it: an unknown route or method says so itself.
        None | Some(Rule::Open) => return Ok(Caller::Anyone),
        Some(rule @ (Rule::Known | Rule::Needs(_) | Rule::NeedsOrUser(_))) => rule,
    };
    let caller = app.access.caller(method, headers, asked.ticket.as_deref()).await?;
    match rule {
        Rule::NeedsOrUser(_) if matches!(caller, Caller::User { .. }) => Ok(caller),
        Rule::Needs(needed) | Rule::NeedsOrUser(needed) if !caller.may(needed) => {
            let message = format!("This needs the scope `{needed}`.");
            Err(ApiError::new(StatusCode::FORBIDDEN, "FORBIDDEN", message))
        }
        _ => Ok(caller),
    }
}

fn ticket(request: &Request) -> Option<String> {
    let query = request.uri().query()?;
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(name, _)| name == "ticket").map(|(_, ticket)| ticket.into_owned())
}
