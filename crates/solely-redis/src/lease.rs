//! Hints: keys with an owner and an end, which save work and decide nothing.
//!
//! A hint holds `OWNER FENCE`. Several are taken in one step or not at all; where a cluster has
//! them on different slots that is not possible, and nobody knows: the store decides alone.

use std::time::Duration;

use async_trait::async_trait;
use redis::{FromRedisValue as _, Pipeline, Value};
use solely_core::clock::millis;
use solely_core::companion::{Hinted, Hints};

use crate::Redis;
use crate::node::call;
use crate::script::Script;

impl Redis {
    /// One round trip for hints that are on one server.
    async fn on_hints(&self, script: &Script, keys: &[String], owner: &str, ttl: Duration) -> Option<Value> {
        let topology = self.shared.topology();
        let node = topology.nodes.get(topology.place_of_all(keys.iter().map(String::as_str))?)?;
        if !node.is_ours() {
            return None;
        }
        let mut ask = Pipeline::new();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        call(&mut ask, script, &keys).arg(owner).arg(millis(ttl));
        let (_, answers) = self.shared.ask(node, &ask).await?;
        answers.into_iter().next()
    }
}

#[async_trait]
impl Hints for Redis {
    async fn take(&self, keys: &[String], owner: &str, ttl: Duration) -> Hinted {
        let answer = self.on_hints(&self.shared.scripts.take, keys, owner, ttl).await;
        answer.map_or(Hinted::Unknown, |answer| hinted(&answer, owner))
    }

    async fn keep(&self, keys: &[String], owner: &str, ttl: Duration) -> bool {
        let answer = self.on_hints(&self.shared.scripts.keep, keys, owner, ttl).await;
        // What cannot be known has not vanished.
        answer.and_then(|answer| i64::from_redis_value(answer).ok()) != Some(1)
    }

    async fn give_back(&self, keys: &[String], owner: &str) {
        self.on_hints(&self.shared.scripts.give_back, keys, owner, Duration::ZERO).await;
    }
}

/// What the answer to a taking means. A hint that is the asker's own was taken by a call whose
/// answer was lost.
pub(crate) fn hinted(answer: &Value, asker: &str) -> Hinted {
    let Value::Array(answer) = answer else { return Hinted::Unknown };
    let text = |value: &Value| String::from_redis_value_ref(value).unwrap_or_default();
    if let [held, left] = answer.as_slice() {
        let (held, left) = (text(held), i64::from_redis_value_ref(left).unwrap_or(-1));
        let (owner, fence) = held.rsplit_once(' ').unwrap_or((&held, ""));
        return match fence.parse() {
            Ok(fence) if owner == asker => Hinted::Taken { fence },
            // One without an end is nobody's: a hint has one.
            _ if left < 0 => Hinted::Unknown,
            _ => {
                let ends_in = Duration::from_millis(u64::try_from(left).unwrap_or(0));
                Hinted::Held { owner: owner.to_owned(), ends_in }
            }
        };
    }
    match answer.as_slice() {
        [fence] => text(fence).parse().map_or(Hinted::Unknown, |fence| Hinted::Taken { fence }),
        _ => Hinted::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn answers_are_understood() {
        let held = Value::Array(vec![text("a b 17"), Value::Int(900)]);
        let ends_in = Duration::from_millis(900);
        assert_eq!(hinted(&held, "other"), Hinted::Held { owner: "a b".to_owned(), ends_in });
        assert_eq!(hinted(&held, "a b"), Hinted::Taken { fence: 17 });
        assert_eq!(hinted(&Value::Array(vec![text("a b 17"), Value::Int(-1)]), "other"), Hinted::Unknown);
        assert_eq!(hinted(&Value::Array(vec![text("18")]), "a"), Hinted::Taken { fence: 18 });
        assert_eq!(hinted(&Value::Nil, "a"), Hinted::Unknown);
    }
}
