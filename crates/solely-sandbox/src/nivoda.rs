//! Nivoda's GraphQL, as far as a feed asks: `authenticate`, `diamonds_by_query_count`,
//! `diamonds_by_query` within `as(token)`.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Sandbox;
use crate::catalogue::Stone;

/// The name and password that it knows.
pub const USERNAME: &str = "sandbox";
/// See [`USERNAME`].
pub const PASSWORD: &str = "let me in";
/// Records of one page, at most.
const PAGE_MAX: u64 = 50;

/// Tokens that are good.
#[derive(Default)]
pub(crate) struct Tokens(BTreeSet<String>);

impl Tokens {
    pub(crate) fn expire(&mut self) {
        self.0.clear();
    }
}

#[derive(Deserialize)]
pub(crate) struct Request {
    query: String,
    #[serde(default)]
    variables: Variables,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Variables {
    username: String,
    password: String,
    token: String,
    query: Filter,
    offset: u64,
    limit: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Filter {
    dollar_value: Option<Between<i64>>,
    updated: Option<Between<jiff::Timestamp>>,
}

#[derive(Deserialize)]
struct Between<T> {
    from: T,
    to: T,
}

impl Filter {
    fn wants(&self, stone: &Stone) -> bool {
        let price = self.dollar_value.as_ref();
        let updated = self.updated.as_ref();
        price.is_none_or(|price| (price.from..=price.to).contains(&stone.dollars()))
            && updated.is_none_or(|updated| {
                (updated.from.as_millisecond()..=updated.to.as_millisecond()).contains(&stone.updated_ms)
            })
    }
}

pub(crate) async fn graphql(
    State(sandbox): State<Sandbox>,
    axum::Json(request): axum::Json<Request>,
) -> Response {
    let asked = &request.variables;
    let what = if request.query.contains("username_and_password") {
        "nivoda.authenticate"
    } else if request.query.contains("diamonds_by_query_count") {
        "nivoda.count"
    } else {
        "nivoda.page"
    };
    if let Some(failure) = sandbox.mood().answer(&sandbox, what, Some(asked.offset)).await {
        return failure;
    }
    let answer = match what {
        "nivoda.authenticate" => authenticate(&sandbox, asked),
        _ if !knows(&sandbox, &asked.token) => refuse("The token has expired.", "UNAUTHENTICATED"),
        "nivoda.count" => {
            let count =
                sandbox.look(|all| all.stones().iter().filter(|stone| asked.query.wants(stone)).count());
            json!({"data": {"as": {"diamonds_by_query_count": count}}})
        }
        _ if asked.limit > PAGE_MAX => refuse("limit is at most 50", "BAD_USER_INPUT"),
        _ => page(&sandbox, asked),
    };
    axum::Json(answer).into_response()
}

fn refuse(message: &str, code: &str) -> Value {
    json!({"errors": [{"message": message, "extensions": {"code": code}}], "data": null})
}

fn knows(sandbox: &Sandbox, token: &str) -> bool {
    sandbox.0.tokens.lock().unwrap_or_else(PoisonError::into_inner).0.contains(token)
}

fn authenticate(sandbox: &Sandbox, asked: &Variables) -> Value {
    if (asked.username.as_str(), asked.password.as_str()) != (USERNAME, PASSWORD) {
        return refuse("Invalid username or password", "FORBIDDEN");
    }
    let token = uuid::Uuid::new_v4().simple().to_string();
    sandbox.0.tokens.lock().unwrap_or_else(PoisonError::into_inner).0.insert(token.clone());
    json!({"data": {"authenticate": {"username_and_password": {"token": token}}}})
}

/// In the order in which they were made.
fn page(sandbox: &Sandbox, asked: &Variables) -> Value {
    let mut found: Vec<Stone> =
        sandbox.look(|all| all.stones().iter().filter(|stone| asked.query.wants(stone)).cloned().collect());
    found.sort_by_key(|stone| stone.made);
    let total = found.len();
    let skip = usize::try_from(asked.offset).unwrap_or(usize::MAX);
    let limit = usize::try_from(asked.limit).unwrap_or(0);
    let items: Vec<Value> = found.iter().skip(skip).take(limit).map(item).collect();
    json!({"data": {"as": {"diamonds_by_query": {"items": items, "total_count": total}}}})
}

fn item(stone: &Stone) -> Value {
    json!({
        "id": format!("DIAMOND/{}", stone.id),
        "price": stone.cents,
        "discount": 10,
        "diamond": {
            "id": stone.id,
            "availability": "AVAILABLE",
            "supplierStockId": format!("S{}", stone.made),
            "certificate": {"id": format!("C{}", stone.made), "lab": "GIA", "shape": "ROUND",
                            "carats": 1.01, "color": "F", "clarity": "VS1", "version": stone.version},
            "supplier": {"id": "sandbox", "name": "Sandbox Stones"},
        },
    })
}
