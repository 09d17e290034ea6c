//! Following stock and reservations: what sockets of this process are told as things move.
//!
//! Nothing is carried from a change to a socket: a change marks what it touched, and one task reads what was marked and
//! someone follows, in one look for all, and tells those who follow it what is new. So what is told last is always the
//! truth, however fast things move, and nobody who sells waits for anybody who watches.
//!
//! ```text
//!   commit ──▶ marked here ──┐                         ┌─▶ INVENTORY_PATCH, at most ten a second
//!   other process ──▶ note ──┼─▶ one look at the store ─┤
//!   slow poll ───────────────┘                         └─▶ reservation.…, each once, in order
//! ```
//!
//! Other processes send notes only while someone says now and then that it follows something. **If a note is lost**, or
//! time alone changes something (a price falls, a hold ends), the slow poll sees it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::books::Touched;
use super::model::{InventoryStatus, InventoryView};
use super::{Follows, InventoryFilter, LATEST, ToldTo, notify};
use crate::bus::{Bus, ChangeListener, Note};
use crate::cache::EntryKey;
use crate::clock::Timestamp;
use crate::enrich::{Listens, Unheard};
use crate::error::StoreError;
use crate::event::EventId;
use crate::id::ReservationId;
use crate::metrics::Metrics;
use crate::queue::Jobs;
use crate::store::Store;

/// Between two patches of one inventory.
const PATCH_EVERY: Duration = Duration::from_millis(100);
/// Patches that a process sends in a second, over all inventories: with many who watch, each hears less often.
const PATCHES_PER_SECOND: u32 = 5_000;
/// How often what is followed is looked at if nobody says that it has changed.
const LOOK_AT_ITEMS: Duration = Duration::from_secs(2);
const LOOK_AT_USERS: Duration = Duration::from_secs(10);
/// How often it is said that someone follows something here, and for how long it is believed.
const SAY_EVERY: Duration = Duration::from_secs(5);
const BELIEVED: Duration = Duration::from_secs(20);
/// Inventories or users that one look is for.
const LOOK_MAX: usize = 200;
/// Events of a reservation that are looked at.
const EVENTS_MAX: u32 = 16;
/// What can be told of something before who follows it is acknowledged.
const EARLY_MAX: usize = 1_024;
/// What sockets of one process follow at the most.
const FOLLOWED_MAX: usize = 200_000;
/// How many are told before others may run.
const TOLD_AT_ONCE: usize = 256;
/// How long a look waits that could not be had.
const TROUBLE: Duration = Duration::from_millis(500);

/// The names under which processes tell each other of these things.
const STOCK: &str = "reserve:stock";
const HOLDER: &str = "reserve:holder";
const FOLLOWS: &str = "reserve:follows";

/// What is followed in one process. Clones share it.
#[derive(Clone)]
pub struct Watch(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    bus: Bus,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    some: Notify,
}

#[derive(Default)]
struct State {
    items: HashMap<String, Followed<Option<Shown>>>,
    users: HashMap<String, Followed<Option<Cursors>>>,
    /// Those who follow something, and of them those who follow an inventory.
    followers: usize,
    of_items: usize,
    next: u64,
    /// Until when another process is believed to follow something,
    others_until: Option<Instant>,
    /// and when it was last said that this one does.
    said: Option<Instant>,
}

/// How far each reservation of a user was told of.
type Cursors = BTreeMap<ReservationId, EventId>;

struct Followed<T> {
    by: HashMap<u64, Follower>,
    /// When it is looked at.
    look_at: Instant,
    /// When it was told of last.
    told_at: Option<Instant>,
    /// What was told last; none: nobody has looked yet.
    last: T,
}

/// Someone who follows something.
struct Follower {
    listens: Arc<dyn Listens>,
    /// What there was to tell before it was acknowledged; none: it is.
    early: Option<Vec<Arc<str>>>,
}

impl<T> Followed<T> {
    fn new(look_at: Instant, last: T) -> Self {
        Self { by: HashMap::new(), look_at, told_at: None, last }
    }

    /// Has a message told to everyone who follows it. Those who are not acknowledged yet hear it then.
    fn tell(&mut self, message: &Arc<str>, told: &mut Vec<(Arc<dyn Listens>, Arc<str>)>) {
        for follower in self.by.values_mut() {
            match &mut follower.early {
                None => told.push((follower.listens.clone(), message.clone())),
                Some(early) if early.len() < EARLY_MAX => early.push(message.clone()),
                Some(_) => follower.listens.end(),
            }
        }
    }

    /// The acknowledgement comes before anything else.
    fn acknowledge(&mut self, number: u64, acknowledgement: String) {
        let Some(follower) = self.by.get_mut(&number) else { return };
        follower.listens.push(acknowledgement);
        for message in follower.early.take().into_iter().flatten() {
            follower.listens.push(message.as_ref().to_owned());
        }
    }
}

/// What is told of an inventory.
#[derive(Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    remaining_quantity: u32,
    status: InventoryStatus,
    current_price: i64,
}

impl From<&InventoryView> for Shown {
    fn from(view: &InventoryView) -> Self {
        Self {
            remaining_quantity: view.remaining_quantity,
            status: view.status,
            current_price: view.current_price,
        }
    }
}

/// Something that is followed, until it is dropped.
pub struct Watched {
    watch: Watch,
    what: What,
    number: u64,
}

#[derive(Clone)]
enum What {
    Item(String),
    User(String),
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut state = self.watch.0.state();
        let state = &mut *state;
        let was_there = match &self.what {
            What::Item(id) => {
                let there = forget(&mut state.items, id, self.number);
                state.of_items -= usize::from(there);
                there
            }
            What::User(id) => forget(&mut state.users, id, self.number),
        };
        state.followers -= usize::from(was_there);
    }
}

fn forget<T>(all: &mut HashMap<String, Followed<T>>, id: &str, number: u64) -> bool {
    let Some(followed) = all.get_mut(id) else { return false };
    let there = followed.by.remove(&number).is_some();
    if followed.by.is_empty() {
        all.remove(id);
    }
    there
}

impl Watch {
    pub(super) fn new(jobs: &Jobs) -> Self {
        let inner = Arc::new(Inner {
            store: jobs.store().clone(),
            bus: jobs.bus().clone(),
            metrics: jobs.metrics().clone(),
            state: Mutex::default(),
            some: Notify::new(),
        });
        let listener: Weak<dyn ChangeListener> = Arc::downgrade(&(inner.clone() as Arc<dyn ChangeListener>));
        inner.bus.tell_changes_to(listener);
        Self(inner)
    }

    /// A batch has changed this.
    pub(super) fn touched(&self, touched: &Touched) {
        let mut state = self.0.state();
        let others = state.others_until.is_some_and(|until| Instant::now() < until);
        if state.followers == 0 && !others {
            return;
        }
        let mut some = false;
        for left in &touched.items {
            some |= state.mark_item(&left.id);
        }
        for reservation in &touched.reservations {
            some |= state.mark_user(&reservation.user_id);
        }
        drop(state);
        if some {
            self.0.some.notify_one();
        }
        if others {
            let items = touched.items.iter().map(|left| EntryKey::new(STOCK, &left.id));
            let users = touched.reservations.iter().map(|one| EntryKey::new(HOLDER, &one.user_id));
            for key in items.chain(users) {
                self.0.bus.tell(&Note::Changed { key, at: None });
            }
        }
    }

    /// Follows an inventory: the acknowledgement is said, then what changes. None if there is no such one.
    pub async fn inventory(
        &self,
        id: &str,
        by: Arc<dyn Listens>,
        acknowledgement: String,
    ) -> Result<Option<Watched>, Unheard> {
        let watched = self.follow(What::Item(id.to_owned()), by)?;
        let found = self.0.look_at_items(vec![id.to_owned()]).await?;
        let Some(view) = found.first() else { return Ok(None) };
        let mut state = self.0.state();
        if let Some(item) = state.items.get_mut(id) {
            item.acknowledge(watched.number, acknowledgement);
            item.last.get_or_insert_with(|| view.into());
        }
        // What has changed since it was read may have been looked at before there was anything to compare with.
        state.mark_item(id);
        drop(state);
        self.0.some.notify_one();
        Ok(Some(watched))
    }

    /// Follows the reservations of a user: the acknowledgement is said, then what becomes of them.
    pub async fn reservations(
        &self,
        user: &str,
        by: Arc<dyn Listens>,
        acknowledgement: String,
    ) -> Result<Watched, Unheard> {
        let watched = self.follow(What::User(user.to_owned()), by)?;
        let follows = Follows { user_id: user.to_owned(), told: None };
        let told = self.0.store.told_to(vec![follows], EVENTS_MAX).await?;
        let last = |told: &ToldTo| told.events.last().map(|event| (told.reservation.id, event.id));
        let cursors: Cursors = told.iter().filter_map(last).collect();
        if let Some(followed) = self.0.state().users.get_mut(user) {
            followed.acknowledge(watched.number, acknowledgement);
            followed.last.get_or_insert(cursors);
            followed.look_at = Instant::now();
        }
        self.0.some.notify_one();
        Ok(watched)
    }

    fn follow(&self, what: What, by: Arc<dyn Listens>) -> Result<Watched, Unheard> {
        let mut state = self.0.state();
        let state = &mut *state;
        if state.followers >= FOLLOWED_MAX {
            return Err(Unheard::TooMany);
        }
        state.followers += 1;
        state.next += 1;
        let (number, now) = (state.next, Instant::now());
        let follower = Follower { listens: by, early: Some(Vec::new()) };
        match &what {
            What::Item(id) => {
                state.of_items += 1;
                let new = || Followed::new(now + LOOK_AT_ITEMS, None);
                state.items.entry(id.clone()).or_insert_with(new).by.insert(number, follower);
            }
            What::User(id) => {
                let new = || Followed::new(now + LOOK_AT_USERS, None);
                state.users.entry(id.clone()).or_insert_with(new).by.insert(number, follower);
            }
        }
        self.0.some.notify_one();
        Ok(Watched { watch: self.clone(), what, number })
    }

    /// Tells those who follow something, until it is told to stop.
    pub async fn run(&self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let (items, users, next) = self.0.due();
            let some = !items.is_empty() || !users.is_empty();
            let looked = if some { self.0.look(&items, &users).await } else { Ok(()) };
            if let Err(error) = &looked {
                tracing::debug!(%error, "what is followed cannot be looked at");
                self.0.look_again(&items, &users);
            }
            let rest = async {
                match (some, &looked) {
                    (_, Err(_)) => tokio::time::sleep(TROUBLE).await,
                    (true, _) => {}
                    (false, _) => tokio::select! {
                        () = self.0.some.notified() => {}
                        () = until(next) => {}
                    },
                }
            };
            if stop.run_until_cancelled(rest).await.is_none() {
                return;
            }
        }
    }
}

async fn until(next: Option<Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next).await,
        None => std::future::pending().await,
    }
}

impl State {
    /// Whether someone follows it.
    fn mark_item(&mut self, id: &str) -> bool {
        let between = self.between();
        let Some(item) = self.items.get_mut(id) else { return false };
        let next = item.told_at.map_or_else(Instant::now, |told| told + between);
        item.look_at = item.look_at.min(next);
        true
    }

    fn mark_user(&mut self, id: &str) -> bool {
        let Some(user) = self.users.get_mut(id) else { return false };
        user.look_at = Instant::now();
        true
    }

    /// The time between two patches of one inventory.
    fn between(&self) -> Duration {
        let share =
            f64::from(u32::try_from(self.of_items).unwrap_or(u32::MAX)) / f64::from(PATCHES_PER_SECOND);
        PATCH_EVERY.max(Duration::from_secs_f64(share))
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be looked at now, and when the next is.
    fn due(&self) -> (Vec<String>, Vec<String>, Option<Instant>) {
        let (now, mut state) = (Instant::now(), self.state());
        let mut next = None;
        let (mut items, mut users) = (Vec::new(), Vec::new());
        take_due(&mut state.items, (now, LOOK_AT_ITEMS), &mut items, &mut next);
        take_due(&mut state.users, (now, LOOK_AT_USERS), &mut users, &mut next);
        // Others tell of changes while they know that someone here wants to hear of them.
        if state.followers > 0 && state.said.is_none_or(|said| said + SAY_EVERY <= now) {
            state.said = Some(now);
            self.bus.tell(&Note::Changed { key: EntryKey::new(FOLLOWS, "anything"), at: None });
        }
        let say = state.said.filter(|_| state.followers > 0).map(|said| said + SAY_EVERY);
        let next = next.into_iter().chain(say).min();
        (items, users, next)
    }

    async fn look(&self, items: &[String], users: &[String]) -> Result<(), StoreError> {
        if !items.is_empty() {
            let views = self.look_at_items(items.to_vec()).await?;
            let told = self.patches(items, &views);
            self.tell("inventory", told).await;
        }
        if !users.is_empty() {
            let found = self.store.told_to(self.followed(users), EVENTS_MAX).await?;
            let told = self.notices(users, &found);
            self.tell("reservations", told).await;
        }
        Ok(())
    }

    /// How far users were told of their reservations.
    fn followed(&self, users: &[String]) -> Vec<Follows> {
        let state = self.state();
        let told = |id: &String| state.users.get(id).and_then(|user| user.last.clone());
        users.iter().map(|id| Follows { user_id: id.clone(), told: told(id) }).collect()
    }

    /// What could not be looked at is to be looked at as soon as that is possible.
    fn look_again(&self, items: &[String], users: &[String]) {
        let mut state = self.state();
        for id in items {
            state.mark_item(id);
        }
        for id in users {
            state.mark_user(id);
        }
    }

    async fn look_at_items(&self, ids: Vec<String>) -> Result<Vec<InventoryView>, StoreError> {
        let limit = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let filter = InventoryFilter { ids: Some(ids), limit, ..InventoryFilter::default() };
        self.store.inventories(filter).await
    }

    /// What is new of inventories, for each who follows one.
    fn patches(&self, ids: &[String], views: &[InventoryView]) -> Vec<(Arc<dyn Listens>, Arc<str>)> {
        let mut state = self.state();
        let (between, mut told) = (state.between(), Vec::new());
        for id in ids {
            let Some(item) = state.items.get_mut(id) else { continue };
            let Some(view) = views.iter().find(|view| view.id == *id) else { continue };
            let shown = Shown::from(view);
            let Some(last) = &mut item.last else { continue };
            if *last == shown {
                continue;
            }
            let message =
                serde_json::json!({"type": "INVENTORY_PATCH", "inventoryId": id, "patch": shown}).to_string();
            *last = shown;
            // What was marked while it was looked at is told of when its next patch may be sent.
            let now = Instant::now();
            item.told_at = Some(now);
            item.look_at = item.look_at.max(now + between);
            item.tell(&message.into(), &mut told);
        }
        told
    }

    /// What is new of users' reservations, for each who follows one.
    fn notices(&self, ids: &[String], found: &[ToldTo]) -> Vec<(Arc<dyn Listens>, Arc<str>)> {
        let mut state = self.state();
        let mut told = Vec::new();
        for id in ids {
            let Some(user) = state.users.get_mut(id) else { continue };
            // Nobody is told what was before they asked.
            let Some(cursors) = &mut user.last else { continue };
            let mut new: Vec<(EventId, String)> = Vec::new();
            for ToldTo { reservation, events, .. } in
                found.iter().filter(|told| told.reservation.user_id == *id)
            {
                let cursor = cursors.entry(reservation.id).or_insert(EventId(0));
                for event in events.iter().filter(|event| event.id > *cursor) {
                    new.extend(notify::notice(event, reservation).map(|message| (event.id, message)));
                }
                *cursor = events.last().map_or(*cursor, |last| last.id.max(*cursor));
                // There may be more than one look tells of.
                if events.len() >= EVENTS_MAX as usize {
                    user.look_at = Instant::now();
                }
            }
            // What is open may end however old it is; what has ended is of interest while it is among the latest.
            let mine = || found.iter().filter(|told| told.reservation.user_id == *id);
            let open: BTreeSet<ReservationId> =
                mine().filter(|told| told.is_open).map(|told| told.reservation.id).collect();
            let mut latest: Vec<ReservationId> = mine().map(|told| told.reservation.id).collect();
            latest.sort_unstable_by(|a, b| b.cmp(a));
            latest.truncate(LATEST as usize);
            cursors.retain(|id, _| open.contains(id) || latest.contains(id));
            new.sort();
            for (_, message) in new {
                user.tell(&message.into(), &mut told);
            }
        }
        told
    }

    async fn tell(&self, channel: &'static str, told: Vec<(Arc<dyn Listens>, Arc<str>)>) {
        self.metrics.reserve.pushed(channel, told.len());
        for (nth, (by, message)) in told.into_iter().enumerate() {
            // Whoever takes no more is closed, and forgotten with that.
            by.push(message.as_ref().to_owned());
            if nth % TOLD_AT_ONCE == TOLD_AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Adds those that are to be looked at now, and says when the next is. They are looked at again after a while;
/// sooner if they are marked from now on, also while they are looked at.
fn take_due<T>(
    all: &mut HashMap<String, Followed<T>>,
    (now, every): (Instant, Duration),
    due: &mut Vec<String>,
    next: &mut Option<Instant>,
) {
    for (id, followed) in all {
        if followed.look_at <= now && due.len() < LOOK_MAX {
            due.push(id.clone());
            followed.look_at = now + every;
        }
        *next = Some(next.map_or(followed.look_at, |next: Instant| next.min(followed.look_at)));
    }
}

impl ChangeListener for Inner {
    fn changed_here(&self, _keys: &[EntryKey]) {}

    fn changed(&self, key: &EntryKey, _at: Option<Timestamp>) {
        let mut state = self.state();
        let some = match &*key.space {
            STOCK => state.mark_item(&key.key),
            HOLDER => state.mark_user(&key.key),
            FOLLOWS => {
                state.others_until = Some(Instant::now() + BELIEVED);
                false
            }
            _ => false,
        };
        drop(state);
        if some {
            self.some.notify_one();
        }
    }

    fn anything(&self) {
        let (now, mut state) = (Instant::now(), self.state());
        for item in state.items.values_mut() {
            item.look_at = item.look_at.min(now + PATCH_EVERY);
        }
        for user in state.users.values_mut() {
            user.look_at = now;
        }
        drop(state);
        self.some.notify_one();
    }
}
