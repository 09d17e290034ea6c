//! Nivoda's GraphQL API: a token by name and password, counts and pages by `dollar_value`.
//!
//! Ranges are whole dollars, prices in answers are cents. A token lives six hours; it is renewed
//! half an hour before, and at once when it is refused. A record's id is its `diamond.id`.

use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{Found, Scope, Source, Window};
use crate::json::Json;
use crate::upstream::http::{Ask, HttpClient, unreadable};
use crate::upstream::{CallFailed, UpstreamError};

/// Records of one page, at most.
pub const PAGE_MAX: u32 = 50;
/// How long a token is used: half an hour less than it lives.
const TOKEN_USED: Duration = Duration::from_secs(5 * 3_600 + 1_800);

/// Nivoda, or what speaks like it.
pub struct NivodaSource {
    client: HttpClient,
    url: String,
    username: String,
    password: String,
    token: Mutex<Option<(String, Instant)>>,
}

impl NivodaSource {
    /// The API at a URL.
    pub fn new(client: HttpClient, url: &str, username: String, password: String) -> Self {
        Self { client, url: url.to_owned(), username, password, token: Mutex::new(None) }
    }

    /// The token, made if there is none or it is old. One caller makes it for all.
    async fn token(&self, trace: Option<&str>) -> Result<String, CallFailed<UpstreamError>> {
        let mut known = self.token.lock().await;
        if let Some((token, _)) = known.as_ref().filter(|(_, made)| made.elapsed() < TOKEN_USED) {
            return Ok(token.clone());
        }
        let body = json!({
            "query": "query ($username: String!, $password: String!) { authenticate { \
                      username_and_password(username: $username, password: $password) { token } } }",
            "variables": {"username": self.username, "password": self.password},
        });
        let made = Instant::now();
        let ask = Ask { trace, ..Ask::default() };
        let answer: Answer<Authenticated> = parsed(&self.client.post(&self.url, &ask, &body).await?)?;
        let data = answer.data()?;
        let token = data.authenticate.username_and_password.token;
        *known = Some((token.clone(), made));
        Ok(token)
    }

    /// Asks with a token; with a new one if it is refused.
    async fn ask(
        &self,
        query: &str,
        variables: Value,
        scope: &Scope,
    ) -> Result<Vec<u8>, CallFailed<UpstreamError>> {
        let mut body = json!({"query": query, "variables": variables});
        let trace = scope.trace.as_deref();
        for last in [false, true] {
            let token = self.token(trace).await?;
            let ask = Ask { bearer: Some(&token), trace, ..Ask::default() };
            body["variables"]["token"] = token.as_str().into();
            let answer = self.client.post(&self.url, &ask, &body).await;
            if last || !is_refused_token(&answer) {
                return answer;
            }
            let mut known = self.token.lock().await;
            if known.as_ref().is_some_and(|(known, _)| *known == token) {
                *known = None;
            }
        }
        Err(unreadable("no answer"))
    }
}

/// Whether this says that the token is not, or no longer, good.
fn is_refused_token(answer: &Result<Vec<u8>, CallFailed<UpstreamError>>) -> bool {
    match answer {
        Err(failed) => matches!(&failed.error, UpstreamError::Permanent(why) if why.contains(" 401")),
        Ok(body) => {
            let answer: Result<Answer<Value>, _> = serde_json::from_slice(body);
            answer.is_ok_and(|answer| answer.errors.iter().any(Refusal::is_about_the_token))
        }
    }
}

#[derive(Deserialize)]
struct Answer<T> {
    data: Option<T>,
    #[serde(default)]
    errors: Vec<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    message: String,
    #[serde(default)]
    extensions: Extensions,
}

#[derive(Default, Deserialize)]
struct Extensions {
    #[serde(default)]
    code: String,
}

impl Refusal {
    fn is_about_the_token(&self) -> bool {
        let message = self.message.to_ascii_lowercase();
        self.extensions.code == "UNAUTHENTICATED"
            || ["token", "unauthenticated", "not authenticated", "jwt"]
                .iter()
                .any(|word| message.contains(word))
    }

    /// Mistakes of ours are not mended by asking again.
    fn is_for_good(&self) -> bool {
        matches!(
            self.extensions.code.as_str(),
            "GRAPHQL_VALIDATION_FAILED"
                | "GRAPHQL_PARSE_FAILED"
                | "BAD_USER_INPUT"
                | "FORBIDDEN"
                | "UNAUTHENTICATED"
        )
    }
}

impl<T> Answer<T> {
    fn data(self) -> Result<T, CallFailed<UpstreamError>> {
        if let Some(refusal) = self.errors.first() {
            let why = format!("the source refuses: {}", refusal.message);
            let for_good = refusal.is_for_good();
            let error = if for_good { UpstreamError::Permanent(why) } else { UpstreamError::Transient(why) };
            return Err(CallFailed { error, blame: !for_good, retry_after: None });
        }
        self.data.ok_or_else(|| unreadable("there is no `data`"))
    }
}

#[derive(Deserialize)]
struct Authenticated {
    authenticate: Authenticate,
}

#[derive(Deserialize)]
struct Authenticate {
    username_and_password: Token,
}

#[derive(Deserialize)]
struct Token {
    token: String,
}

#[derive(Deserialize)]
struct As<T> {
    r#as: T,
}

#[derive(Deserialize)]
struct Counted {
    diamonds_by_query_count: u64,
}

#[derive(Deserialize)]
struct Paged<'a> {
    #[serde(borrow)]
    diamonds_by_query: Items<'a>,
}

#[derive(Deserialize)]
struct Items<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Item {
    id: String,
    price: Option<i64>,
    diamond: Option<Diamond>,
}

#[derive(Deserialize)]
struct Diamond {
    id: String,
}

fn parsed<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<Answer<T>, CallFailed<UpstreamError>> {
    serde_json::from_slice(body).map_err(unreadable)
}

fn filter(scope: &Scope) -> Value {
    let mut filter = json!({"dollar_value": {"from": scope.range.min, "to": scope.range.max}});
    if let Some(updated) = scope.updated {
        filter["updated"] = json!({"from": updated.from, "to": updated.to});
    }
    filter
}

const COUNT: &str = "query ($token: String!, $query: DiamondQuery) { as(token: $token) { \
                     diamonds_by_query_count(query: $query) } }";

/// Ordered by when they were made, so that a new one comes last.
const PAGE: &str = "query ($token: String!, $query: DiamondQuery, $offset: Int, $limit: Int, \
     $order: DiamondOrder) { as(token: $token) { diamonds_by_query(query: $query, offset: $offset, \
     limit: $limit, order: $order) { items { id price discount diamond { id availability supplierStockId \
     NivodaStockId image video certificate { id lab certNumber shape carats color clarity cut polish \
     symmetry floInt labgrown length width depth table } supplier { id name } } } } } }";

#[async_trait]
impl Source for NivodaSource {
    async fn count(&self, scope: &Scope) -> Result<u64, CallFailed<UpstreamError>> {
        let answer = self.ask(COUNT, json!({"query": filter(scope)}), scope).await?;
        let data = parsed::<As<Counted>>(&answer)?.data()?;
        Ok(data.r#as.diamonds_by_query_count)
    }

    async fn page(&self, scope: &Scope, window: &Window) -> Result<Vec<Found>, CallFailed<UpstreamError>> {
        let variables = json!({
            "query": filter(scope),
            "offset": window.offset,
            "limit": window.limit,
            "order": {"type": "createdAt", "direction": "ASC"},
        });
        let answer = self.ask(PAGE, variables, scope).await?;
        let data = parsed::<As<Paged<'_>>>(&answer)?.data()?;
        data.r#as.diamonds_by_query.items.into_iter().map(found).collect()
    }
}

fn found(raw: &RawValue) -> Result<Found, CallFailed<UpstreamError>> {
    let item: Item = serde_json::from_str(raw.get()).map_err(unreadable)?;
    let id = item.diamond.map_or(item.id, |diamond| diamond.id);
    let price = item.price.map(|cents| cents.div_euclid(100));
    Ok(Found { id, payload: Json::from_stored(raw.get().to_owned()), price })
}
