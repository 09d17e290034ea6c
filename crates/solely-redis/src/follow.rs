//! Making the copies follow the store, and saying how far they do.
//!
//! The mark of a server is moved from the value that was read to the next, on the connection it was
//! read by, so that whatever became of the server in between leaves it as it is. It lives as long
//! as the copies may be trusted: [`limits::COPIES_TRUST`] from the instant they are true for.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use redis::{FromRedisValue as _, Pipeline, Value};
use solely_core::cache::{Change, ChangeCursor};
use solely_core::clock::millis;
use solely_core::fault::Guard;
use solely_core::{Timestamp, limits};
use tokio::time::Instant;

use crate::cache::replacements;
use crate::node::{Connection, Node, Trouble, call};
use crate::topology::Topology;
use crate::{Heard, LOOK_EVERY, Shared};

/// A server whose copies are to catch up.
struct Behind<'a> {
    place: usize,
    node: &'a Node,
    connection: Connection,
    /// The mark as it was read; empty if there was none.
    mark: String,
    /// Up to when its copies follow; unknown if there was no mark.
    at: Option<Timestamp>,
}

/// Has every server follow that does not.
pub(crate) async fn follow(shared: &Shared, topology: &Topology) {
    if !shared.guards.hold(Guard::CopiesFollow) {
        for node in &topology.nodes {
            node.trusted.store(node.connection().is_some(), Ordering::Relaxed);
        }
    }
    let looks = (0..topology.nodes.len()).map(|place| look(shared, topology, place));
    let behind: Vec<Behind<'_>> = join_all(looks).await.into_iter().flatten().collect();
    let known = shared.heard().is_some_and(|heard| heard.at.elapsed() < HEARD_FOR);
    if !behind.is_empty() || !known {
        catch_up(shared, topology, behind).await;
    }
}

/// Reads the mark of a server; nothing if it does not need to catch up.
async fn look<'a>(shared: &Shared, topology: &'a Topology, place: usize) -> Option<Behind<'a>> {
    let node = &topology.nodes[place];
    let connection = node.connection()?;
    let mut ask = Pipeline::new();
    ask.cmd("TIME").cmd("GET").arg(&node.mark).cmd("PTTL").arg(&node.mark);
    let answers = call_own(shared, node, &connection, &ask).await?;
    connection.learn_time(answers.first()?);
    let mark = Option::<String>::from_redis_value_ref(answers.get(1)?).ok()?.unwrap_or_default();
    let left = i64::from_redis_value_ref(answers.get(2)?).ok()?;
    let at = mark.split_once(' ').and_then(|(_, at)| at.parse().ok()).map(Timestamp::from_millis);
    let ours = shared.heard().is_none_or(|heard| mark.is_empty() || is_of(&mark, &heard.store));
    if !ours {
        tracing::error!(server = node.address, "Redis holds copies of another store and is not used");
        node.trusted.store(false, Ordering::Relaxed);
        return None;
    }
    if at.is_some() && shared.heard().is_some() {
        trust(node, &connection);
        if left > millis(limits::COPIES_TRUST.saturating_sub(MARGIN + LOOK_EVERY)) {
            return None;
        }
    }
    Some(Behind { place, node, connection, mark, at })
}

/// Whether a mark is of this store.
pub(crate) fn is_of(mark: &str, store: &str) -> bool {
    mark.strip_prefix(store).is_some_and(|rest| rest.starts_with(' '))
}

fn trust(node: &Node, connection: &Connection) {
    connection.proven.store(true, Ordering::Relaxed);
    node.trusted.store(true, Ordering::Relaxed);
}

/// Copies what has changed since the earliest mark to the servers that are behind, and moves their
/// marks.
async fn catch_up(shared: &Shared, topology: &Topology, mut behind: Vec<Behind<'_>>) {
    let Some((now_complete, _)) =
        changes(shared, &ChangeCursor { at: Timestamp::FAR_FUTURE, key: None }).await
    else {
        return;
    };
    if !shared.guards.hold(Guard::CopiesFollow) {
        return;
    }
    // The mark may have been read before it was known whose it is.
    behind.retain(|one| {
        one.mark.is_empty() || shared.heard().is_some_and(|heard| is_of(&one.mark, &heard.store))
    });
    for one in behind.iter().filter(|one| one.at.is_none()) {
        one.node.trusted.store(false, Ordering::Relaxed);
    }
    let cleaned = join_all(
        behind
            .iter()
            .map(|one| async move { one.at.is_some() || clean(shared, topology, one).await.is_some() }),
    );
    let mut cleaned = cleaned.await.into_iter();
    behind.retain(|_| cleaned.next().unwrap_or_default());
    // Copies that were on their way while others were dropped are from before this at the earliest.
    let since = |one: &Behind<'_>| one.at.unwrap_or(now_complete.minus(REWIND));
    let Some(since) = behind.iter().map(since).min() else { return };
    let (mut after, mut complete) = (ChangeCursor { at: since, key: None }, None);
    loop {
        let Some((complete_until, page)) = changes(shared, &after).await else { return };
        let complete_until = *complete.get_or_insert(complete_until);
        let mut applied = Vec::new();
        for one in behind {
            if apply(shared, topology, &one, &page.changes).await.is_some() {
                applied.push(one);
            }
        }
        behind = applied;
        shared.metrics.redis_followed(page.changes.len());
        let Some(next) = page.next else {
            join_all(behind.iter().map(|one| advance(shared, one, complete_until))).await;
            return;
        };
        after = next;
    }
}

/// A page of changes; the store's clock is learnt by the way.
async fn changes(shared: &Shared, after: &ChangeCursor) -> Option<(Timestamp, solely_core::cache::Changes)> {
    match shared.store.changes(after.clone(), PAGE).await {
        Ok(page) => {
            let heard = Heard { store: page.store.clone(), now: page.now, at: Instant::now() };
            *shared.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(heard);
            Some((page.complete_until, page))
        }
        Err(error) => {
            tracing::debug!(%error, "the store's changes cannot be read");
            None
        }
    }
}

/// Drops every copy on a server that has no mark.
async fn clean(shared: &Shared, topology: &Topology, one: &Behind<'_>) -> Option<()> {
    let mut dropped = 0;
    for form in &shared.forms {
        let (names, mut cursor) = (form.names(), "0".to_owned());
        loop {
            let mut scan = Pipeline::new();
            scan.cmd("SCAN").arg(&cursor).arg("MATCH").arg(&names).arg("COUNT").arg(SCAN_COUNT);
            let answers = call_own(shared, one.node, &one.connection, &scan).await?;
            let (next, found) = <(String, Vec<String>)>::from_redis_value_ref(answers.first()?).ok()?;
            dropped += found.len();
            if !found.is_empty() {
                let mut drop = Pipeline::new();
                if topology.is_cluster() {
                    for name in &found {
                        drop.cmd("UNLINK").arg(name);
                    }
                } else {
                    drop.cmd("UNLINK").arg(&found);
                }
                call_own(shared, one.node, &one.connection, &drop).await?;
            }
            cursor = next;
            if cursor == "0" {
                break;
            }
        }
    }
    if dropped > 0 {
        shared.metrics.redis_cleaned();
        tracing::warn!(
            server = one.node.address,
            dropped,
            "copies in Redis could not be trusted and were dropped"
        );
    }
    Some(())
}

async fn apply(shared: &Shared, topology: &Topology, one: &Behind<'_>, changes: &[Change]) -> Option<()> {
    let here = |change: &&Change| {
        let name = shared.form(&change.key.space).name(&change.key);
        topology.place(&name) == Some(one.place)
    };
    let changes: Vec<Change> = changes.iter().filter(here).cloned().collect();
    if changes.is_empty() {
        return Some(());
    }
    let commands = replacements(shared, &one.connection, &changes);
    call_own(shared, one.node, &one.connection, &commands).await.map(drop)
}

async fn advance(shared: &Shared, one: &Behind<'_>, complete_until: Timestamp) {
    let Some(heard) = shared.heard() else { return };
    let lag = heard.now.since(complete_until) + heard.at.elapsed();
    let life = limits::COPIES_TRUST.saturating_sub(MARGIN + lag);
    if life.is_zero() {
        return;
    }
    let mut commands = Pipeline::new();
    call(&mut commands, &shared.scripts.advance, &[&one.node.mark])
        .arg(&one.mark)
        .arg(format!("{} {}", heard.store, complete_until.as_millis()))
        .arg(millis(life))
        .arg(one.connection.now_ms() + millis(MARGIN));
    let answers = call_own(shared, one.node, &one.connection, &commands).await;
    let moved = answers.and_then(|answers| i64::from_redis_value_ref(answers.first()?).ok());
    // Should another have moved it meanwhile, the next look tells.
    if moved == Some(1) {
        trust(one.node, &one.connection);
    }
}

/// A round trip that is nobody's: it is not counted among those of callers.
async fn call_own(
    shared: &Shared,
    node: &Node,
    connection: &Connection,
    commands: &Pipeline,
) -> Option<Vec<Value>> {
    let answer: Result<Vec<Value>, Trouble> = connection.ask(commands, shared.patience.command).await;
    if answer.is_err() {
        shared.judge(node, connection, &answer);
    }
    answer.ok()
}

/// What is kept of the trust for a mark on its way.
const MARGIN: Duration = Duration::from_secs(1);
/// How far before the dropping of copies changes are looked for.
const REWIND: Duration = Duration::from_secs(10);
/// How long the store's clock is believed to go on as it did.
const HEARD_FOR: Duration = Duration::from_secs(30);
/// Changes read at once.
const PAGE: u32 = 500;
/// Keys that one step of a scan looks at.
const SCAN_COUNT: u32 = 1_000;
