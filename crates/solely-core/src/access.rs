//! Who may do what.
//!
//! A **key** is for services: made by `solely keys create`, shown once, stored as a hash, known by
//! its public part, compared in constant time. It carries scopes. A **user token** is a JWT whose
//! `sub` is one user's id. A **ticket** stands for either of them for a minute, once, where a
//! browser cannot send a header.
//!
//! Keys are looked up in the store and remembered for [`limits::KEY_TRUST`], so that a revoked one
//! stops within seconds everywhere.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::limits;
use crate::store::Store;

/// What a scope is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Area {
    /// Provider links.
    Enrich,
    /// Product search.
    Products,
    /// Boxes and reservations.
    Reserve,
    /// Runs and records.
    Feed,
    /// Everything else: leases, jobs, queues, metrics, the dashboard.
    Admin,
}

impl Area {
    /// Every area.
    pub const ALL: [Self; 5] = [Self::Enrich, Self::Products, Self::Reserve, Self::Feed, Self::Admin];

    /// Its name in a scope.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enrich => "enrich",
            Self::Products => "products",
            Self::Reserve => "reserve",
            Self::Feed => "feed",
            Self::Admin => "admin",
        }
    }
}

/// A right: `reserve:read`, `reserve:write` (which includes reading), or `reserve` for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// Of what.
    pub area: Area,
    /// To change it, too.
    pub write: bool,
}

impl Scope {
    /// The right to look.
    pub const fn read(area: Area) -> Self {
        Self { area, write: false }
    }

    /// The right to change.
    pub const fn write(area: Area) -> Self {
        Self { area, write: true }
    }

    /// Whether whoever has this may do what needs that.
    pub fn covers(self, needed: Self) -> bool {
        self.area == needed.area && (self.write || !needed.write)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.area.name(), if self.write { "write" } else { "read" })
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (area, right) = text.split_once(':').unwrap_or((text, "write"));
        let area = Area::ALL.into_iter().find(|known| known.name() == area);
        match (area, right) {
            (Some(area), "read") => Ok(Self::read(area)),
            (Some(area), "write") => Ok(Self::write(area)),
            _ => {
                let known: Vec<&str> = Area::ALL.into_iter().map(Area::name).collect();
                Err(format!("`{text}` is no scope: one of {}, with :read or :write", known.join(", ")))
            }
        }
    }
}

impl Serialize for Scope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Scope {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A key as it is listed: nothing of it is secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// Its public part.
    pub id: String,
    /// A name for people.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was revoked, if it was.
    pub revoked_at: Option<Timestamp>,
}

/// A key to be stored.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// Its public part.
    pub id: String,
    /// A name for people.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// The hash of its secret part.
    pub hash: String,
}

/// A ticket to be stored: whom it stands for, and for how long.
#[derive(Clone, Debug)]
pub struct NewTicket {
    /// The hash of it.
    pub hash: String,
    /// Whom it stands for.
    pub caller: Caller,
    /// How long it can be used.
    pub ttl: Duration,
}

/// What access is stored.
#[async_trait]
pub trait AccessStore: Send + Sync {
    /// Stores a key. Its `created_at` is the store's.
    async fn create_key(&self, key: NewKey) -> Result<(), StoreError>;

    /// Every key, in the order they were made.
    async fn keys(&self) -> Result<Vec<Key>, StoreError>;

    /// A key and the hash of its secret part.
    async fn key(&self, id: String) -> Result<Option<(Key, String)>, StoreError>;

    /// Revokes a key. False if there is none that is not revoked.
    async fn revoke_key(&self, id: String) -> Result<bool, StoreError>;

    /// Stores a ticket; when it ends.
    async fn create_ticket(&self, ticket: NewTicket) -> Result<Timestamp, StoreError>;

    /// Takes a ticket, if there is one that has not ended. A second taking finds none.
    async fn take_ticket(&self, hash: String) -> Result<Option<Caller>, StoreError>;
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Caller {
    /// Whoever reaches the server: there is no access control.
    Anyone,
    /// A service with a key.
    Key {
        /// The key's public part.
        id: String,
        /// What it may do.
        scopes: Vec<Scope>,
    },
    /// One user.
    #[serde(rename_all = "camelCase")]
    User {
        /// Whose `userId` this is.
        user_id: String,
    },
}

impl Caller {
    /// Whether a right is the caller's. A user has none of these: what is a user's own is judged by
    /// the system that it is in.
    pub fn may(&self, needed: Scope) -> bool {
        match self {
            Self::Anyone => true,
            Self::Key { scopes, .. } => scopes.iter().any(|scope| scope.covers(needed)),
            Self::User { .. } => false,
        }
    }

    /// What separates one caller's things (idempotency keys, rates) from another's.
    pub fn name(&self) -> String {
        match self {
            Self::Anyone => "anyone".to_owned(),
            Self::Key { id, .. } => format!("key:{id}"),
            Self::User { user_id } => format!("user:{user_id}"),
        }
    }
}

/// A new secret: 32 random bytes as text.
fn secret() -> String {
    let bytes: [u8; 32] = rand::random();
    data_encoding::BASE32_NOPAD.encode(&bytes).to_lowercase()
}

/// What is stored of a secret. It has 256 random bits, so that no slow hash is needed.
pub fn hash(secret: &str) -> String {
    data_encoding::HEXLOWER.encode(&Sha256::digest(secret.as_bytes()))
}

/// Makes a key; the text, which is shown once, and what is stored.
pub fn new_key(name: String, scopes: Vec<Scope>) -> (String, NewKey) {
    let bytes: [u8; 10] = rand::random();
    let (id, secret) = (data_encoding::BASE32_NOPAD.encode(&bytes).to_lowercase(), secret());
    let text = format!("{KEY_PREFIX}{id}_{secret}");
    (text, NewKey { id, name, scopes, hash: hash(&secret) })
}

/// Makes a ticket; the text and what is stored.
pub fn new_ticket(caller: Caller) -> (String, NewTicket) {
    let secret = secret();
    let ticket = NewTicket { hash: hash(&secret), caller, ttl: limits::TICKET_TTL };
    (secret, ticket)
}

/// Tokens of users: JWTs signed with HS256 by whoever knows the secret.
#[derive(Clone)]
pub struct UserTokens {
    secret: Arc<str>,
}

#[derive(Deserialize)]
struct TokenHeader {
    alg: String,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: Option<f64>,
    nbf: Option<f64>,
}

impl UserTokens {
    /// Tokens of this secret.
    pub fn new(secret: &str) -> Self {
        Self { secret: secret.into() }
    }

    /// Whose token this is at an instant; none if it is nobody's, not yet or not any more. A token
    /// that names no end has none.
    pub fn caller(&self, token: &str, now: Timestamp) -> Option<Caller> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let part = |text: &str| data_encoding::BASE64URL_NOPAD.decode(text.as_bytes()).ok();
        let header: TokenHeader = serde_json::from_slice(&part(header)?).ok()?;
        if header.alg != "HS256" {
            return None;
        }
        let mut mac = Hmac::<Sha256>::new_from_slice(self.secret.as_bytes()).ok()?;
        mac.update(signed.as_bytes());
        // In constant time.
        mac.verify_slice(&part(signature)?).ok()?;
        let claims: Claims = serde_json::from_slice(&part(claims)?).ok()?;
        #[expect(clippy::cast_precision_loss, reason = "seconds of this age have room in it")]
        let now = now.as_millis() as f64 / 1_000.0;
        let live = claims.exp.is_none_or(|end| now < end) && claims.nbf.is_none_or(|from| from <= now);
        let named = !claims.sub.is_empty() && claims.sub.len() <= limits::KEY_BYTES_MAX;
        (live && named).then_some(Caller::User { user_id: claims.sub })
    }
}

/// Whether two secrets are the same, in a time that does not tell where they differ.
pub fn same_secret(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

/// What every key begins with.
pub const KEY_PREFIX: &str = "solely_";

/// Keys, looked up and remembered for a while.
#[derive(Clone)]
pub struct Keys {
    store: Arc<dyn Store>,
    known: Arc<Mutex<HashMap<String, Known>>>,
}

#[derive(Clone)]
struct Known {
    asked: Instant,
    found: Option<(Key, String)>,
}

impl Keys {
    /// Keys of a store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, known: Arc::default() }
    }

    /// Whose key this is; none if it is nobody's, or not any more.
    pub async fn caller(&self, text: &str) -> Result<Option<Caller>, StoreError> {
        let parts = text.strip_prefix(KEY_PREFIX).and_then(|rest| rest.split_once('_'));
        let Some((id, secret)) = parts.filter(|(id, _)| id.len() == KEY_ID_LENGTH) else { return Ok(None) };
        let found = self.find(id).await?;
        let given = hash(secret);
        // A key that is not there takes as long as one that is.
        let stored = found.as_ref().map_or_else(|| "0".repeat(given.len()), |(_, hash)| hash.clone());
        let same = same_secret(&stored, &given);
        let key = found.map(|(key, _)| key).filter(|key| same && key.revoked_at.is_none());
        Ok(key.map(|key| Caller::Key { id: key.id, scopes: key.scopes }))
    }

    /// Whether a key that was good still is: for whoever holds on to what it was given.
    pub async fn is_live(&self, id: &str) -> Result<bool, StoreError> {
        let found = self.find(id).await?;
        Ok(found.is_some_and(|(key, _)| key.revoked_at.is_none()))
    }

    async fn find(&self, id: &str) -> Result<Option<(Key, String)>, StoreError> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        if let Some(known) = known.filter(|known| known.asked.elapsed() < limits::KEY_TRUST) {
            return Ok(known.found);
        }
        let asked = Instant::now();
        let found = self.store.key(id.to_owned()).await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= limits::KEYS_KNOWN_MAX {
            known.retain(|_, known| known.asked.elapsed() < limits::KEY_TRUST);
            // Whoever makes up that many does not push out those that are real.
            if known.len() >= limits::KEYS_KNOWN_MAX {
                known.retain(|_, known| known.found.is_some());
            }
        }
        if known.len() < limits::KEYS_KNOWN_MAX {
            known.insert(id.to_owned(), Known { asked, found: found.clone() });
        }
        Ok(found)
    }
}

const KEY_ID_LENGTH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read_written_and_compared() {
        for (text, shown) in
            [("reserve:read", "reserve:read"), ("feed:write", "feed:write"), ("admin", "admin:write")]
        {
            assert_eq!(text.parse::<Scope>().expect(text).to_string(), shown);
        }
        for text in ["", "reserve:all", "everything", ":read", "admin:"] {
            assert!(text.parse::<Scope>().is_err(), "{text}");
        }
        let (read, write) = (Scope::read(Area::Feed), Scope::write(Area::Feed));
        assert!(write.covers(read) && write.covers(write) && read.covers(read));
        assert!(!read.covers(write) && !Scope::write(Area::Admin).covers(read));
    }

    fn token(header: &str, claims: &str, secret: &str) -> String {
        let part = |text: &[u8]| data_encoding::BASE64URL_NOPAD.encode(text);
        let signed = format!("{}.{}", part(header.as_bytes()), part(claims.as_bytes()));
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any length");
        mac.update(signed.as_bytes());
        format!("{signed}.{}", part(&mac.finalize().into_bytes()))
    }

    #[test]
    fn a_user_token_is_signed_named_and_live() {
        let (tokens, now) = (UserTokens::new("secret"), Timestamp::from_millis(1_000_000));
        let alg = r#"{"alg":"HS256","typ":"JWT"}"#;
        let user =
            |header: &str, claims: &str, secret: &str| tokens.caller(&token(header, claims, secret), now);
        let u1 = Some(Caller::User { user_id: "u1".to_owned() });
        assert_eq!(user(alg, r#"{"sub":"u1","exp":1001}"#, "secret"), u1);
        assert_eq!(user(alg, r#"{"sub":"u1","exp":1000.5,"nbf":999}"#, "secret"), u1);
        assert_eq!(user(alg, r#"{"sub":"u1"}"#, "secret"), u1);
        for (header, claims, secret) in [
            (alg, r#"{"sub":"u1","exp":1001}"#, "other"),
            (alg, r#"{"sub":"u1","exp":1000}"#, "secret"),
            (alg, r#"{"sub":"u1","exp":1001,"nbf":1001}"#, "secret"),
            (alg, r#"{"sub":"u1","exp":"soon"}"#, "secret"),
            (alg, r#"{"sub":"","exp":1001}"#, "secret"),
            (alg, r#"{"exp":1001}"#, "secret"),
            (alg, "nonsense", "secret"),
            (r#"{"alg":"none"}"#, r#"{"sub":"u1","exp":1001}"#, "secret"),
            (r#"{"alg":"HS512"}"#, r#"{"sub":"u1","exp":1001}"#, "secret"),
        ] {
            assert_eq!(user(header, claims, secret), None, "{header} {claims} {secret}");
        }
        let good = token(alg, r#"{"sub":"u1","exp":1001}"#, "secret");
        for text in
            ["", "..", "a.b.c", &good[..good.len() - 2], &good.replacen('.', "", 1), &format!("{good}.")]
        {
            assert_eq!(tokens.caller(text, now), None, "{text}");
        }
    }

    #[test]
    fn keys_are_unlike_each_other_and_their_secret_is_not_stored() {
        let (first, stored) = new_key("one".to_owned(), vec![Scope::read(Area::Feed)]);
        let (second, _) = new_key("one".to_owned(), Vec::new());
        assert_ne!(first, second);
        assert_eq!(stored.id.len(), KEY_ID_LENGTH);
        let secret = first.rsplit_once('_').expect("has parts").1;
        assert_eq!(stored.hash, hash(secret));
        assert!(!stored.hash.contains(secret));
    }
}
