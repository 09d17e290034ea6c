//! Making the copies follow the store, and saying how far they do.
//!
//! The mark of a server is moved from the value that was read to the next, on the connection it was
//! read by, so that whatever became of the server in between leaves it as it is. It lives as long
//! as the copies may be trusted: [`limits::COPIES_TRUST`] from the instant they are true for. It is
//! moved only if every change before it was taken.
//!
//! Where there is no mark the copies are dropped first, a while at a time, so that the marks of
//! other servers do not end meanwhile. While the store's list of changes is not complete for longer
//! than copies are trusted (a transaction stays open), there is nothing to be said, and nothing is
//! dropped.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use redis::{FromRedisValue as _, Pipeline, Value};
use solely_core::cache::{Change, ChangeCursor, Changes};
use solely_core::clock::millis;
use solely_core::fault::Guard;
use solely_core::{Timestamp, limits};
use tokio::time::Instant;

use crate::cache::replacements;
use crate::node::{Cleaning, Connection, Node, Trouble, call};
use crate::topology::Topology;
use crate::{Heard, LOOK_EVERY, Shared};

/// What a mark says: of which store, up to when.
pub(crate) struct Mark<'a> {
    pub(crate) store: &'a str,
    pub(crate) at: Timestamp,
}

impl<'a> Mark<'a> {
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        let (store, at) = text.split_once(' ')?;
        Some(Self { store, at: Timestamp::from_millis(at.parse().ok()?) })
    }
}

/// A server whose copies are to catch up.
struct Behind<'a> {
    place: usize,
    node: &'a Node,
    connection: Connection,
    /// The mark as it was read; empty if there was none.
    mark: String,
    /// From when on changes are copied; unknown where there was no mark.
    since: Option<Timestamp>,
}

/// Has every server follow that does not.
pub(crate) async fn follow(shared: &Shared, topology: &Topology) {
    let known = shared.heard().is_some_and(|heard| heard.at.elapsed() < HEARD_FOR);
    // Before anything is believed: which store this is.
    if !known && changes(shared, &nothing()).await.is_none() && shared.heard().is_none() {
        return;
    }
    if !shared.guards.hold(Guard::CopiesFollow) {
        for node in &topology.nodes {
            node.set_ours(true);
            node.trusted.store(node.connection().is_some(), Ordering::Relaxed);
        }
        return;
    }
    let looks = (0..topology.nodes.len()).map(|place| look(shared, topology, place));
    let behind = join_all(looks).await.into_iter().flatten();
    let (marked, unmarked): (Vec<_>, Vec<_>) = behind.partition(|one| one.since.is_some());
    if marked.is_empty() && unmarked.is_empty() {
        return;
    }
    let Some(page) = changes(shared, &nothing()).await else { return };
    if page.now.since(page.complete_until) >= limits::COPIES_TRUST.saturating_sub(MARGIN) {
        tracing::debug!("a transaction stays open: it is not known what has changed");
        return;
    }
    catch_up(shared, topology, marked, page.complete_until).await;
    let cleaned =
        join_all(unmarked.iter().map(|one| clean(shared, topology, one, page.complete_until))).await;
    let cleaned = unmarked.into_iter().zip(cleaned).filter(|(_, since)| since.is_some());
    let cleaned = cleaned.map(|(one, since)| Behind { since, ..one }).collect();
    catch_up(shared, topology, cleaned, page.complete_until).await;
}

/// A cursor behind every change: only the store's clock is asked for.
fn nothing() -> ChangeCursor {
    ChangeCursor { at: Timestamp::FAR_FUTURE, key: None }
}

/// Reads the mark of a server; nothing if it does not need to catch up.
async fn look<'a>(shared: &Shared, topology: &'a Topology, place: usize) -> Option<Behind<'a>> {
    let (node, heard) = (&topology.nodes[place], shared.heard()?);
    let connection = node.connection()?;
    let mut ask = Pipeline::new();
    ask.cmd("TIME").cmd("GET").arg(&node.mark).cmd("PTTL").arg(&node.mark);
    let answers = call_own(shared, node, &connection, &ask).await?;
    connection.learn_time(answers.first()?);
    let text = Option::<String>::from_redis_value_ref(answers.get(1)?).ok()?.unwrap_or_default();
    let left = i64::from_redis_value_ref(answers.get(2)?).ok()?;
    let mark = Mark::read(&text);
    let ours = mark.as_ref().is_none_or(|mark| mark.store == heard.store);
    node.set_ours(ours);
    if !ours {
        tracing::error!(server = node.address, "Redis holds copies of another store and is not used");
        return None;
    }
    let since = mark.map(|mark| mark.at);
    if since.is_some() {
        trust(node, &connection);
        if left > millis(limits::COPIES_TRUST.saturating_sub(MARGIN + LOOK_EVERY)) {
            return None;
        }
    } else {
        node.trusted.store(false, Ordering::Relaxed);
    }
    Some(Behind { place, node, connection, mark: text, since })
}

fn trust(node: &Node, connection: &Connection) {
    connection.proven.store(true, Ordering::Relaxed);
    node.trusted.store(true, Ordering::Relaxed);
}

/// Copies what has changed since the earliest of these servers' marks, and moves their marks.
async fn catch_up(shared: &Shared, topology: &Topology, mut behind: Vec<Behind<'_>>, complete: Timestamp) {
    let Some(since) = behind.iter().filter_map(|one| one.since).min() else { return };
    // A clock that went back has given times from before the mark to what came after it.
    let since = if complete < since { complete.minus(REWIND) } else { since };
    let (mut after, mut complete) = (ChangeCursor { at: since, key: None }, None);
    loop {
        let asked = Instant::now();
        let Some(page) = changes(shared, &after).await else { return };
        let complete_until = *complete.get_or_insert(page.complete_until);
        let mut applied = Vec::new();
        for one in behind {
            if apply(shared, topology, &one, &page.changes, asked).await.is_some() {
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

/// A page of changes; which store it is and its clock are learnt by the way.
async fn changes(shared: &Shared, after: &ChangeCursor) -> Option<Changes> {
    let asked = Instant::now();
    match shared.store.changes(after.clone(), PAGE).await {
        Ok(page) => {
            // From before it was asked: the store looked at its clock somewhere since.
            let heard = Heard { store: page.store.clone(), now: page.now, at: asked };
            *shared.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(heard);
            Some(page)
        }
        Err(error) => {
            tracing::debug!(%error, "the store's changes cannot be read");
            None
        }
    }
}

/// Drops the copies on a server that has no mark, for a while. Once there are none left: from when on
/// changes are to be copied, since copies that were on their way are from before that at the
/// earliest.
async fn clean(
    shared: &Shared,
    topology: &Topology,
    one: &Behind<'_>,
    complete: Timestamp,
) -> Option<Timestamp> {
    let begun = one.node.cleaning.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let begun = begun.filter(|begun| begun.connection == one.connection.id);
    let mut at = begun.unwrap_or_else(|| Cleaning {
        connection: one.connection.id,
        since: complete.minus(REWIND),
        form: 0,
        cursor: "0".to_owned(),
    });
    let (started, mut dropped) = (Instant::now(), 0);
    while let Some(form) = shared.forms.get(at.form) {
        if started.elapsed() > CLEAN_FOR {
            *one.node.cleaning.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
            return None;
        }
        let mut scan = Pipeline::new();
        scan.cmd("SCAN").arg(&at.cursor).arg("MATCH").arg(form.names()).arg("COUNT").arg(SCAN_COUNT);
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
                let beside: Vec<String> = found.iter().filter_map(|name| form.beside(name)).collect();
                drop.cmd("UNLINK").arg(&found).arg(beside);
            }
            call_own(shared, one.node, &one.connection, &drop).await?;
        }
        if next == "0" {
            at.form += 1;
        }
        at.cursor = next;
    }
    *one.node.cleaning.lock().unwrap_or_else(PoisonError::into_inner) = None;
    if dropped > 0 {
        shared.metrics.redis_cleaned();
        let server = &one.node.address;
        tracing::warn!(server, dropped, "copies in Redis could not be trusted and were dropped");
    }
    Some(at.since)
}

/// Takes the changes that are this server's. Nothing unless every one of them was.
async fn apply(
    shared: &Shared,
    topology: &Topology,
    one: &Behind<'_>,
    changes: &[Change],
    read_at: Instant,
) -> Option<()> {
    let here = |change: &&Change| {
        let name = shared.form(&change.key.space).name(&change.key);
        change.key.is_copied() && topology.place(&name) == Some(one.place)
    };
    let changes: Vec<Change> = changes.iter().filter(here).cloned().collect();
    if changes.is_empty() {
        return Some(());
    }
    let cluster = topology.is_cluster();
    let commands = replacements(shared, one.node, &one.connection, cluster, &changes, read_at)?;
    let answers = call_own(shared, one.node, &one.connection, &commands).await?;
    answers.iter().all(|answer| matches!(answer, Value::Int(0..))).then_some(())
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

/// A round trip that is nobody's: it is not counted among those of callers. Nothing if any part of
/// it failed.
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
    let answers = answer.ok()?;
    if let Some(Value::ServerError(error)) = answers.iter().find(|one| matches!(one, Value::ServerError(_))) {
        tracing::warn!(server = node.address, %error, "Redis refuses; its copies are not trusted for now");
        return None;
    }
    Some(answers)
}

/// What is kept of the trust for a mark on its way.
const MARGIN: Duration = Duration::from_secs(1);
/// How far before the dropping of copies changes are looked for.
const REWIND: Duration = Duration::from_secs(10);
/// How long copies are dropped at a time.
const CLEAN_FOR: Duration = Duration::from_secs(2);
/// How long the store's clock is believed to go on as it did.
const HEARD_FOR: Duration = Duration::from_secs(30);
/// Changes read at once.
const PAGE: u32 = 500;
/// Keys that one step of a scan looks at.
const SCAN_COUNT: u32 = 1_000;
