//! The request path: memory, then Redis with a lease for each that is missing, then one statement of the
//! store that reads, makes lookups and remembers the request. Never an upstream.
//!
//! | what is asked for | round trips |
//! |---|---|
//! | all of it is in memory | none |
//! | all of it is in Redis | one |
//! | all of it is missing, or Redis is empty | two |

use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use super::copy::lock_name;
use super::decision::{Lock, Skip, Subject};
use super::finder::Place;
use super::system::{Enrich, Inner, Provider};
use super::{
    Ask, Asked, AskingRequest, Lookup, NewWait, Resolved, Told, ToldPlace, Waits, ends_wait, entry_key,
    request_key,
};
use crate::cache::{Age, AskHints, CopiedEntries, Entry, EntryKey};
use crate::clock::Timestamp;
use crate::companion::Hinted;
use crate::error::StoreError;
use crate::fault::{self, Guard};
use crate::id::JobId;
use crate::job::{Enqueued, JobState, NewJob, Window};

/// Who asks.
#[derive(Clone, Debug, Default)]
pub struct Asker {
    /// The request, under which it can be asked about later.
    pub request_id: String,
    /// Its W3C `traceparent`.
    pub trace: Option<String>,
}

/// A place that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct PlaceRef<'a> {
    /// Its id.
    pub place_id: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its address.
    pub address: Option<&'a str>,
}

/// What is asked for.
pub struct Wanted<'a> {
    /// Of these providers.
    pub providers: &'a [Arc<Provider>],
    /// Each once.
    pub places: &'a [PlaceRef<'a>],
    /// The city that was searched in.
    pub city: Option<&'a str>,
}

/// One place at one provider.
#[derive(Clone, Copy)]
struct One<'a> {
    provider: &'a Arc<Provider>,
    place: PlaceRef<'a>,
    city: Option<&'a str>,
    /// Where it is in the request.
    nth: usize,
}

impl<'a> Wanted<'a> {
    /// Every place at every provider, in order.
    fn each(&self) -> impl Iterator<Item = One<'a>> {
        let (places, city) = (self.places, self.city);
        let of = move |provider: &'a Arc<Provider>| {
            places.iter().enumerate().map(move |(nth, place)| One { provider, place: *place, city, nth })
        };
        self.providers.iter().flat_map(of)
    }
}

impl One<'_> {
    fn key(&self) -> EntryKey {
        entry_key(&self.provider.name, self.place.place_id)
    }

    fn place(&self) -> Place {
        Place {
            place_id: self.place.place_id.to_owned(),
            name: self.place.name.to_owned(),
            city_text: self.city.map(str::to_owned),
            address_text: self.place.address.map(str::to_owned),
        }
    }

    /// What is said of it.
    fn named<'b>(&'b self, from: &'b Asker) -> Subject<'b> {
        let PlaceRef { place_id, name, .. } = self.place;
        Subject { request_id: &from.request_id, place_id, name, city: self.city }
    }

    /// What its request is told; since when, if it waits.
    fn told(&self, since: Option<i64>) -> ToldPlace {
        ToldPlace {
            name: self.place.name.to_owned(),
            place: u32::try_from(self.nth).unwrap_or(u32::MAX),
            since,
        }
    }
}

/// What is known of a place at a provider.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// A lookup is under way.
    Pending,
    /// It is known.
    Known {
        /// What.
        resolved: Resolved,
        /// Since when.
        updated_at: Timestamp,
    },
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Answered {
    /// For each provider, for each place, in the order asked for.
    pub states: Vec<Vec<State>>,
    /// How many of them are pending.
    pub pending: usize,
}

/// A place of a request that is asked about later.
#[derive(Clone, Debug)]
pub struct Recalled {
    /// The place.
    pub place_id: String,
    /// Its name.
    pub name: String,
    /// By provider.
    pub states: Vec<(String, State)>,
}

/// What became of warming.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Places for which a lookup was made.
    pub queued: usize,
    /// Places that are known.
    pub cached: usize,
    /// Places for which a lookup was there.
    pub duplicate: usize,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The request has been used for as many places as one can have.
    #[error("this request has been used for as many places as one can have")]
    TooMany,
    /// The store cannot say.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Enrich {
    /// Answers at once: what is known, and PENDING for what is being looked up from now on at the latest.
    pub async fn ask(&self, from: &Asker, wanted: &Wanted<'_>) -> Result<Answered, AskError> {
        let inner = &self.inner;
        if wanted.places.is_empty() {
            for provider in wanted.providers {
                inner.decisions(provider).skipped_all(Skip::NoResults, &from.request_id);
            }
            return Ok(Answered { states: vec![Vec::new(); wanted.providers.len()], pending: 0 });
        }
        let all: Vec<One<'_>> = wanted.each().collect();
        let keys: Vec<EntryKey> = all.iter().map(One::key).collect();
        let visit = inner.visit(&keys, wanted.providers).await;
        let missing = visit.missing();
        // A request that this process has told to wait has all its places, also those that are known by now.
        let waits = inner.waits.contains(&from.request_id);
        let known = if missing.is_empty() && !waits {
            visit.copied.entries
        } else {
            inner.wait(from, &all, &keys, visit, &missing).await?
        };
        let answered = inner.answer(from, wanted, &all, &known);
        if answered.pending > 0 || waits {
            inner.waits.insert(&from.request_id);
        }
        Ok(answered)
    }

    /// Says that a provider that is off was not asked.
    pub fn not_asked(&self, from: &Asker, provider: &Provider) {
        self.inner.decisions(provider).skipped_all(Skip::FlagDisabled, &from.request_id);
    }

    /// Has places looked up that are not known, ahead of requests.
    pub async fn warm(
        &self,
        from: &Asker,
        provider: &Arc<Provider>,
        places: &[Place],
    ) -> Result<Warmed, StoreError> {
        let inner = &self.inner;
        let keys: Vec<EntryKey> =
            places.iter().map(|place| entry_key(&provider.name, &place.place_id)).collect();
        let visit = Visit { copied: inner.cache.copies(&keys).await, jobs: Vec::new() };
        let missing = visit.missing();
        let mut warmed = Warmed { cached: keys.len() - missing.len(), ..Warmed::default() };
        let wait = |&n: &usize| {
            let mut wait = inner.new_wait(provider, places[n].clone(), JobId::new(), from);
            wait.job.priority = WARM_PRIORITY;
            wait
        };
        let waits: Vec<NewWait> = missing.iter().map(wait).collect();
        if waits.is_empty() {
            return Ok(warmed);
        }
        let began = Instant::now();
        let Asked::Answered(answers) = inner.jobs.wait(Ask { request: None, waits }).await? else {
            return Ok(warmed);
        };
        let (decisions, waiting) = (inner.decisions(provider), inner.waiting(provider));
        let (mut found, mut made) = (Vec::new(), 0);
        for (n, answer) in missing.into_iter().zip(answers) {
            let Place { place_id, name, city_text, .. } = &places[n];
            let of = Subject { request_id: &from.request_id, place_id, name, city: city_text.as_deref() };
            match answer {
                Waits::Resolved(entry) => {
                    warmed.cached += 1;
                    found.push((n, entry));
                }
                Waits::Made => {
                    warmed.queued += 1;
                    made += 1;
                    decisions.enqueued(of, "warm", waiting + made);
                }
                Waits::Known { of: job, by, .. } => {
                    warmed.duplicate += 1;
                    decisions.deduplicated(of, job, by.as_deref());
                }
            }
        }
        inner.cache.remember(&visit.copied, found, began);
        Ok(warmed)
    }

    /// What a request was told, as it is now. None if nothing of it was pending, or it is too long ago.
    pub async fn recall(&self, request_id: &str) -> Result<Option<Vec<Recalled>>, StoreError> {
        let store = self.inner.jobs.store();
        let request = store.kept_entries(vec![request_key(request_id)]).await?.into_iter().next().flatten();
        let Some(told) = request.and_then(|entry| entry.value.parse::<Told>().ok()) else { return Ok(None) };
        let told: Vec<(EntryKey, ToldPlace)> =
            told.0.into_iter().filter_map(|(name, told)| Some((Told::key(&name)?, told))).collect();
        let entries = store.kept_entries(told.iter().map(|(key, _)| key.clone()).collect()).await?;
        let mut places: Vec<(u32, Recalled)> = Vec::new();
        for ((key, told), entry) in told.into_iter().zip(entries) {
            let entry = entry.filter(|entry| told.since.is_none_or(|since| ends_wait(entry, since)));
            let state = entry.as_ref().and_then(State::of).unwrap_or(State::Pending);
            let provider = super::provider_of(&key.space).unwrap_or_default().to_owned();
            if let Some((_, place)) = places.iter_mut().find(|(_, place)| place.place_id == key.key) {
                place.states.push((provider, state));
            } else {
                let states = vec![(provider, state)];
                places.push((told.place, Recalled { place_id: key.key, name: told.name, states }));
            }
        }
        places.sort_by_key(|(place, _)| *place);
        Ok(Some(places.into_iter().map(|(_, place)| place).collect()))
    }
}

impl State {
    /// What an entry says.
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        Resolved::of(entry).map(|resolved| Self::Known { resolved, updated_at: entry.updated_at })
    }
}

#[expect(clippy::ref_option, reason = "as lists of them are looked at")]
fn is_known(entry: &Option<Entry>) -> bool {
    entry.as_ref().is_some_and(|entry| entry.age != Age::Gone)
}

/// What the copies had, and the ids of the lookups that leases were taken for.
struct Visit {
    copied: CopiedEntries,
    jobs: Vec<OnceLock<JobId>>,
}

impl Visit {
    /// The places of what has to be asked of the store. An entry that has ended is no answer.
    fn missing(&self) -> Vec<usize> {
        (0..self.copied.entries.len()).filter(|&n| !is_known(&self.copied.entries[n])).collect()
    }

    fn job(&self, n: usize) -> JobId {
        self.jobs.get(n).map_or_else(JobId::new, |job| *job.get_or_init(JobId::new))
    }
}

impl Inner {
    /// Looks at the copies: one round trip at most, which takes the lease of each that is missing as well.
    async fn visit(&self, keys: &[EntryKey], providers: &[Arc<Provider>]) -> Visit {
        let ttl = providers.iter().map(|provider| provider.settings.lock_ttl).max().unwrap_or_default();
        let jobs: Vec<OnceLock<JobId>> = keys.iter().map(|_| OnceLock::new()).collect();
        let owner = |n: usize| jobs[n].get_or_init(JobId::new).to_string();
        let leases = self.companion.is_some() && self.guards.hold(Guard::Thinning);
        let leases = leases.then_some(AskHints { name: &lock_name, owner: &owner, ttl });
        let copied = self.cache.copies_or_hints(keys, leases).await;
        Visit { copied, jobs }
    }

    fn new_wait(&self, provider: &Provider, place: Place, id: JobId, from: &Asker) -> NewWait {
        let request_id = Some(from.request_id.clone()).filter(|id| !id.is_empty());
        let (key, name) = (entry_key(&provider.name, &place.place_id), place.name.clone());
        let lookup = Lookup { place, request_id, refreshes: None };
        let mut job = NewJob { id, ..lookup.job(provider, from.trace.clone()) };
        if !self.guards.hold(Guard::Dedupe) {
            job.key = format!("{}#{id}", job.key);
        }
        NewWait { key, name, place: 0, job, leased: false }
    }

    /// Asks the store for what is missing. Answers with all that is known then.
    async fn wait(
        &self,
        from: &Asker,
        all: &[One<'_>],
        keys: &[EntryKey],
        visit: Visit,
        missing: &[usize],
    ) -> Result<Vec<Option<Entry>>, AskError> {
        let wait = |&n: &usize| {
            let wait = self.new_wait(all[n].provider, all[n].place(), visit.job(n), from);
            let leased = matches!(visit.copied.hints[n], Some(Hinted::Taken { .. }));
            NewWait { place: u32::try_from(all[n].nth).unwrap_or(u32::MAX), leased, ..wait }
        };
        let waits: Vec<NewWait> = missing.iter().map(wait).collect();
        let leases = Leases::taken(&waits);
        let told = (0..all.len()).filter(|n| missing.binary_search(n).is_err());
        let told = Told(told.map(|n| (Told::name(&keys[n]), all[n].told(None))).collect());
        let request = AskingRequest { id: from.request_id.clone(), ttl: self.request_ttl, told };
        fault::point("enrich.leased");
        let began = Instant::now();
        let answers = match self.jobs.wait(Ask { request: Some(request), waits }).await {
            Ok(Asked::Answered(answers)) => answers,
            Ok(Asked::TooMany) => {
                leases.give_back(self, |_| true);
                return Err(AskError::TooMany);
            }
            Err(error) => {
                leases.give_back(self, |_| true);
                return self.without_store(from, all, visit.copied, missing, error);
            }
        };
        let known = |(&n, answer): (&usize, &Waits)| match answer {
            Waits::Resolved(entry) => Some((n, entry.clone())),
            Waits::Made | Waits::Known { .. } => None,
        };
        let found: Vec<(usize, Entry)> = missing.iter().zip(&answers).filter_map(known).collect();
        let mut made = 0;
        for (&n, answer) in missing.iter().zip(&answers) {
            made += i64::from(*answer == Waits::Made);
            self.say(from, &all[n], visit.copied.hints[n].as_ref(), answer, made);
        }
        leases.give_back(self, |nth| !matches!(answers[nth], Waits::Made));
        self.cache.remember(&visit.copied, found.clone(), began);
        let mut entries = visit.copied.entries;
        for &n in missing {
            entries[n] = None;
        }
        for (n, entry) in found {
            entries[n] = Some(entry);
        }
        Ok(entries)
    }

    /// The store cannot be asked: what was true last is good enough, if it is there for all of them.
    fn without_store(
        &self,
        from: &Asker,
        all: &[One<'_>],
        copied: CopiedEntries,
        missing: &[usize],
        error: StoreError,
    ) -> Result<Vec<Option<Entry>>, AskError> {
        let (lacking, last) = (copied.missing(), copied.last_known());
        let mut entries = copied.entries;
        for (n, entry) in lacking.into_iter().zip(last.unwrap_or_default()) {
            entries[n] = Some(entry);
        }
        // What has ended is no answer, whoever cannot be asked.
        if error.retryable() && entries.iter().all(is_known) {
            return Ok(entries);
        }
        for &n in missing {
            self.decisions(all[n].provider).skipped(all[n].named(from), Skip::QueueUnavailable);
        }
        Err(error.into())
    }

    /// Lookups of a provider that waited when they were last counted.
    fn waiting(&self, provider: &Provider) -> i64 {
        self.jobs.metrics().queue_depth(&super::queue(&provider.name))
    }

    /// Says what became of a place that was missing, behind so many lookups that this request made.
    fn say(&self, from: &Asker, one: &One<'_>, hint: Option<&Hinted>, answer: &Waits, made: i64) {
        let (decisions, of) = (self.decisions(one.provider), one.named(from));
        let waits = match answer {
            Waits::Resolved(_) => return,
            Waits::Made => None,
            Waits::Known { of, state, by } => Some((*of, *state, by.as_deref())),
        };
        decisions.miss(of);
        let lock = self.lock(hint, waits.map(|(of, state, _)| (of, state)), one.provider);
        decisions.lock(of, lock);
        match (waits, lock) {
            (None, _) => decisions.enqueued(of, "cache_miss", self.waiting(one.provider) + made),
            (Some((job, _, by)), Lock::Acquired) => decisions.deduplicated(of, job, by),
            (Some(_), Lock::Held) => decisions.skipped(of, Skip::LockHeld),
            (Some((job, _, by)), Lock::Error(_)) => {
                decisions.deduplicated(of, job, by);
                let away = self.companion.as_ref().is_some_and(|companion| !companion.ok());
                decisions.skipped(of, if away { Skip::RedisDown } else { Skip::LockError });
            }
        }
    }

    /// What became of the lease. Without Redis it is the live job itself: held while it runs, and for as
    /// long as a lease would be after it was made.
    fn lock(
        &self,
        hint: Option<&Hinted>,
        waits: Option<(JobId, JobState)>,
        provider: &Provider,
    ) -> Lock<'static> {
        match (hint, waits) {
            (Some(Hinted::Taken { .. }), _) | (None, None) => Lock::Acquired,
            (Some(Hinted::Held { .. }), _) => Lock::Held,
            (Some(Hinted::Unknown), _) => {
                let ok = self.companion.as_ref().is_some_and(|companion| companion.ok());
                Lock::Error(if ok { "Redis did not answer" } else { "Redis is not available" })
            }
            (None, Some((job, state))) => {
                let made = job.made_at();
                let young = crate::Clock::system().now().since(made) < provider.settings.lock_ttl;
                if state == JobState::Running || young { Lock::Held } else { Lock::Acquired }
            }
        }
    }

    fn answer(
        self: &Arc<Self>,
        from: &Asker,
        wanted: &Wanted<'_>,
        all: &[One<'_>],
        known: &[Option<Entry>],
    ) -> Answered {
        let mut states: Vec<Vec<State>> = Vec::with_capacity(wanted.providers.len());
        let mut pending = 0;
        let chunks = known.chunks(wanted.places.len()).zip(all.chunks(wanted.places.len()));
        for ((entries, ones), provider) in chunks.zip(wanted.providers) {
            let decisions = self.decisions(provider);
            let state = |(entry, one): (&Option<Entry>, &One<'_>)| {
                let known = entry.as_ref().and_then(|entry| Some((entry, Resolved::of(entry)?)));
                let Some((entry, resolved)) = known else {
                    pending += 1;
                    return State::Pending;
                };
                decisions.hit(one.named(from), &resolved);
                if entry.age != Age::Stale || !self.refresh_ahead(from, one, entry) {
                    let age = entry.as_of.since(entry.updated_at);
                    decisions.already_cached(one.named(from), &resolved, age);
                }
                State::Known { resolved, updated_at: entry.updated_at }
            };
            states.push(entries.iter().zip(ones).map(state).collect());
        }
        Answered { states, pending }
    }

    /// Has an entry refreshed that is near its end, once in its life. Nobody waits for it. False if it was
    /// asked for before.
    fn refresh_ahead(self: &Arc<Self>, from: &Asker, one: &One<'_>, entry: &Entry) -> bool {
        if self.refreshed.get(&entry.key) == Some(entry.updated_at) {
            return false;
        }
        self.refreshed.insert(entry.key.clone(), entry.updated_at);
        let request_id = Some(from.request_id.clone());
        let lookup = Lookup { place: one.place(), request_id, refreshes: Some(entry.updated_at) };
        let mut job = lookup.job(one.provider, from.trace.clone());
        // The window is what is left of its life: a refresh that fails is not tried again.
        job.window = Window::Check(entry.stale_until.since(entry.as_of));
        let (inner, key, provider) = (self.clone(), entry.key.clone(), one.provider.clone());
        tokio::spawn(async move {
            match inner.jobs.enqueue(vec![job]).await.as_deref() {
                Ok([Enqueued::Created]) => {
                    let Place { place_id, name, city_text, .. } = &lookup.place;
                    let request_id = lookup.request_id.as_deref().unwrap_or_default();
                    let of = Subject { request_id, place_id, name, city: city_text.as_deref() };
                    inner.decisions(&provider).enqueued(of, "refresh_ahead", inner.waiting(&provider) + 1);
                }
                Ok(_) => {}
                Err(_) => inner.refreshed.invalidate(&key),
            }
        });
        true
    }
}

/// Leases that were taken, by the place of what they were taken for: hint and owner.
struct Leases(Vec<(usize, String, String)>);

impl Leases {
    fn taken(waits: &[NewWait]) -> Self {
        let taken = |(nth, wait): (usize, &NewWait)| {
            wait.leased.then(|| (nth, lock_name(&wait.key), wait.job.id.to_string()))
        };
        Self(waits.iter().enumerate().filter_map(taken).collect())
    }

    /// Gives back those of lookups that were not made.
    fn give_back(self, inner: &Inner, not_made: impl Fn(usize) -> bool) {
        let Some(companion) = &inner.companion else { return };
        for (_, lock, owner) in self.0.into_iter().filter(|(nth, ..)| not_made(*nth)) {
            let companion = companion.clone();
            tokio::spawn(async move { companion.give_back(&[lock], &owner).await });
        }
    }
}

/// Lookups that someone waits for come first.
pub(super) const WARM_PRIORITY: u8 = 7;
