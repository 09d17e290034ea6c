//! Copies of entries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use redis::{FromRedisValue as _, Pipeline, Value};
use solely_core::cache::{Change, Entry, EntryKey};
use solely_core::clock::millis;
use solely_core::companion::{Copied, Copies, CopiesRead, Form, Hinted, Hints as _, Visit, Wanted};
use solely_core::fault::{Guard, Guards};
use solely_core::{Timestamp, limits};
use tokio::time::Instant;

use crate::follow::Mark;
use crate::lease::hinted;
use crate::node::{Connection, Node, call};
use crate::topology::Topology;
use crate::{Redis, Shared};

/// The places of keys, by the server that has them.
pub(crate) fn by_node(topology: &Topology, names: &[String]) -> BTreeMap<usize, Vec<usize>> {
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (place, name) in names.iter().enumerate() {
        if let Some(node) = topology.place(name) {
            groups.entry(node).or_default().push(place);
        }
    }
    groups
}

/// What one server said of its mark and of some copies.
struct Said {
    connection: Connection,
    mark: Value,
    /// Each with its place among all keys.
    texts: Vec<(usize, Value)>,
}

#[async_trait]
impl Copies for Redis {
    async fn read(&self, keys: &[EntryKey]) -> CopiesRead {
        let shared = &self.shared;
        let topology = shared.topology();
        let names: Vec<String> = keys.iter().map(|key| shared.form(&key.space).name(key)).collect();
        let reads = by_node(&topology, &names).into_iter().map(|(place, members)| {
            let (node, names, cluster) = (topology.nodes[place].clone(), &names, topology.is_cluster());
            async move {
                let mut ask = Pipeline::new();
                let all = std::iter::once(&node.mark).chain(members.iter().map(|&place| &names[place]));
                if cluster {
                    for name in all {
                        ask.cmd("GET").arg(name);
                    }
                } else {
                    ask.cmd("MGET").arg(all.collect::<Vec<_>>());
                }
                let (connection, answers) = shared.ask(&node, &ask).await?;
                let mut answers = match answers.as_slice() {
                    [Value::Array(all)] if !cluster => all.clone(),
                    _ => answers,
                }
                .into_iter();
                let mark = answers.next()?;
                Some(Said { connection, mark, texts: members.into_iter().zip(answers).collect() })
            }
        });
        let said = join_all(reads).await;
        shared.understand(keys, said.into_iter().flatten())
    }

    async fn read_or_hint(&self, wanted: &[Wanted], ttl: Duration) -> (CopiesRead, Vec<Option<Hinted>>) {
        let shared = &self.shared;
        let topology = shared.topology();
        let keys: Vec<EntryKey> = wanted.iter().map(|wanted| wanted.key.clone()).collect();
        if topology.is_cluster() {
            // A step of several keys needs them on one slot: copies first, then hints.
            let read = self.read(&keys).await;
            let hints = join_all(wanted.iter().zip(&read.copies).map(|(wanted, copied)| async move {
                match copied {
                    Copied::Entry(_) => None,
                    _ => Some(self.take(std::slice::from_ref(&wanted.hint), &wanted.owner, ttl).await),
                }
            }));
            let hints = hints.await;
            return (read, hints);
        }
        let unknown = || {
            let (copies, places) = (vec![Copied::Missing; keys.len()], vec![None; keys.len()]);
            let read = CopiesRead { copies, visit: Visit { places } };
            (read, vec![Some(Hinted::Unknown); keys.len()])
        };
        let Some(node) = topology.nodes.first() else { return unknown() };
        let copies: Vec<String> = keys.iter().map(|key| shared.form(&key.space).name(key)).collect();
        let hints = wanted.iter().map(|wanted| wanted.hint.as_str());
        let names: Vec<&str> = std::iter::once(node.mark.as_str())
            .chain(copies.iter().map(String::as_str))
            .chain(hints)
            .collect();
        let mut ask = Pipeline::with_capacity(1);
        let step = call(&mut ask, &shared.scripts.read_or_take, &names).arg(millis(ttl));
        for wanted in wanted {
            step.arg(&wanted.owner);
        }
        let Some((connection, answers)) = shared.ask(node, &ask).await else { return unknown() };
        let Some(Value::Array(answers)) = answers.into_iter().next() else { return unknown() };
        let mut answers = answers.into_iter();
        let mark = answers.next().unwrap_or(Value::Nil);
        let fence = answers.next().and_then(|fence| u64::from_redis_value(fence).ok());
        let taken = fence.map_or(Hinted::Unknown, |fence| Hinted::Taken { fence });
        let texts = answers.by_ref().take(keys.len()).enumerate().collect();
        let hint = |(hint, wanted): (Value, &Wanted)| match hint {
            Value::Nil => None,
            Value::Int(_) => Some(taken.clone()),
            held => Some(hinted(&held, &wanted.owner)),
        };
        let mut hints: Vec<Option<Hinted>> = answers.zip(wanted).map(hint).collect();
        hints.resize(keys.len(), Some(Hinted::Unknown));
        (shared.understand(&keys, [Said { connection, mark, texts }].into_iter()), hints)
    }

    async fn back_fill(&self, visit: Visit, entries: Vec<(usize, Entry)>, read_at: Instant) {
        let shared = &self.shared;
        let soon = shared.guards.hold(Guard::BackFillSoon);
        let left = if soon { BACK_FILL_WITHIN.saturating_sub(read_at.elapsed()) } else { ANY_TIME };
        if left.is_zero() {
            return;
        }
        let topology = shared.topology();
        let form = |entry: &Entry| shared.form(&entry.key.space);
        let names: Vec<String> = entries.iter().map(|(_, entry)| form(entry).name(&entry.key)).collect();
        let writes = by_node(&topology, &names).into_iter().map(|(place, members)| {
            let (node, names, entries, visit) = (topology.nodes[place].clone(), &names, &entries, &visit);
            let cluster = topology.is_cluster();
            async move {
                let connection = node.connection().filter(|_| node.is_ours())?;
                let mut commands = Pipeline::new();
                for member in members {
                    let (place, entry) = &entries[member];
                    let Some((visited, mark)) = visit.places.get(*place).cloned().flatten() else { continue };
                    // Only if that is still the same server, and the copies follow no further.
                    if visited == connection.id {
                        let keys = shared.with_mark(&names[member], &node, cluster);
                        call(&mut commands, &shared.scripts.back_fill, &keys)
                            .arg(form(entry).write(entry))
                            .arg(millis(entry.stale_until.since(entry.as_of)).max(1))
                            .arg(connection.now_ms().saturating_add(millis(left)))
                            .arg(u8::from(shared.guards.hold(Guard::BackFillIfAbsent)))
                            .arg(&*mark)
                            .arg(entry.updated_at.to_string())
                            .arg(beside(form(entry), &names[member], cluster));
                    }
                }
                if !commands.is_empty() {
                    shared.ask_once(&node, &connection, &commands).await.ok()?;
                }
                Some(())
            }
        });
        join_all(writes).await;
    }

    async fn replace(&self, changes: Vec<Change>, read_at: Instant) {
        let shared = &self.shared;
        let topology = shared.topology();
        let name = |change: &Change| shared.form(&change.key.space).name(&change.key);
        let names: Vec<String> = changes.iter().map(name).collect();
        let writes = by_node(&topology, &names).into_iter().map(|(place, members)| {
            let (node, changes, cluster) = (topology.nodes[place].clone(), &changes, topology.is_cluster());
            async move {
                let connection = node.connection().filter(|_| node.is_ours())?;
                let here: Vec<Change> = members.into_iter().map(|member| changes[member].clone()).collect();
                let commands = replacements(shared, &node, &connection, cluster, &here, read_at)?;
                shared.ask_once(&node, &connection, &commands).await.ok()
            }
        });
        join_all(writes).await;
    }
}

/// Commands that replace the copies of what has changed, as it was read from the store at an instant;
/// none if that is too long ago.
pub(crate) fn replacements(
    shared: &Shared,
    node: &Node,
    connection: &Connection,
    cluster: bool,
    changes: &[Change],
    read_at: Instant,
) -> Option<Pipeline> {
    let store = shared.heard()?.store;
    let left = Some(REPLACE_WITHIN.saturating_sub(read_at.elapsed())).filter(|left| !left.is_zero())?;
    let deadline = connection.now_ms().saturating_add(millis(left));
    let mut commands = Pipeline::new();
    for change in changes.iter().filter(|change| change.key.is_copied()) {
        let form = shared.form(&change.key.space);
        let written =
            change.entry.as_ref().map(|entry| (entry, millis(entry.stale_until.since(entry.as_of))));
        let (text, life) = match written {
            Some((entry, life)) if life > 0 => (form.write(entry), life),
            _ if shared.guards.hold(Guard::Tombstones) => {
                (format!(r#"{{"forgotten":true,"updatedAt":"{}"}}"#, change.updated_at), millis(TOMBSTONE))
            }
            _ => (String::new(), 0),
        };
        let name = form.name(&change.key);
        call(&mut commands, &shared.scripts.replace, &shared.with_mark(&name, node, cluster))
            .arg(text)
            .arg(change.updated_at.to_string())
            .arg(life)
            .arg(deadline)
            .arg(u8::from(shared.guards.hold(Guard::CopiesCompared)))
            .arg(&store)
            .arg(change.updated_at.as_millis())
            .arg(beside(form, &name, cluster));
    }
    Some(commands)
}

/// The key beside a copy; empty if there is none.
fn beside(form: &dyn Form, name: &str, cluster: bool) -> String {
    form.beside(name).filter(|_| !cluster).unwrap_or_default()
}

impl Shared {
    /// The keys of a step on one copy: with the mark, where a step can have both.
    fn with_mark<'a>(&self, name: &'a str, node: &'a Node, cluster: bool) -> Vec<&'a str> {
        // Twins of tests have one rule off, and nothing that would do its work.
        if cluster || self.guards != Guards::all() { vec![name] } else { vec![name, &node.mark] }
    }

    /// What the servers' answers mean.
    fn understand(&self, keys: &[EntryKey], said: impl Iterator<Item = Said>) -> CopiesRead {
        let mut read = CopiesRead {
            copies: vec![Copied::Missing; keys.len()],
            visit: Visit { places: vec![None; keys.len()] },
        };
        let Some(heard) = self.heard() else { return read };
        let now: Timestamp = heard.now.plus(heard.at.elapsed());
        for Said { connection, mark, texts } in said {
            let mark = Option::<String>::from_redis_value(mark).ok().flatten().unwrap_or_default();
            // Its life is on Redis's clock; its time is on the store's.
            let recent = Mark::read(&mark)
                .is_some_and(|mark| mark.store == heard.store && now.since(mark.at) < limits::COPIES_TRUST);
            let follows = recent || !self.guards.hold(Guard::CopiesFollow);
            let (proven, mark) = (connection.proven.load(Ordering::Relaxed), Arc::<str>::from(mark));
            for (place, text) in texts {
                let (key, text) = (&keys[place], Option::<String>::from_redis_value(text).ok().flatten());
                let entry = text.and_then(|text| self.form(&key.space).read(key, &text, now));
                read.copies[place] = match entry {
                    Some(entry) if follows => Copied::Entry(entry),
                    Some(entry) if proven => Copied::Doubtful(entry),
                    _ => Copied::Missing,
                };
                read.visit.places[place] = follows.then(|| (connection.id, mark.clone()));
            }
        }
        read
    }
}

/// What was read from the store is copied within this time, on Redis's clock.
const BACK_FILL_WITHIN: Duration = Duration::from_secs(1);
/// A change is copied within this time of its being read from the store, on Redis's clock.
const REPLACE_WITHIN: Duration = Duration::from_secs(5);
/// How long a mark of what was forgotten stays: longer than any write may be on its way.
const TOMBSTONE: Duration = Duration::from_secs(30);
const ANY_TIME: Duration = Duration::from_secs(3_600);
