//! The request path: memory, then Redis with a lease for each that is missing, then one statement of the
//! store that reads, makes lookups and remembers the request. Never an upstream.
//!
//! | what is asked for | round trips |
//! |---|---|
//! | all of it is in memory | none |
//! | all of it is in Redis | one |
//! | all of it is missing, or Redis is empty | two |

use std::sync::Arc;

use tokio::time::Instant;

use super::copy::lock_name;
use super::decision::{Lock, Skip, Subject, age};
use super::finder::Place;
use super::system::{Enrich, Inner, Provider};
use super::{
    Ask, Asked, AskingRequest, Lookup, NewWait, Resolved, Told, ToldPlace, Waits, ends_wait, entry_key,
    request_key, subject,
};
use crate::cache::{Age, AskHints, CopiedEntries, Entry, EntryKey};
use crate::clock::Timestamp;
use crate::companion::Hinted;
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::fault::Guard;
use crate::id::JobId;
use crate::job::{JobState, NewJob, Window};
use crate::json::Json;

/// Who asks.
#[derive(Clone, Debug, Default)]
pub struct Asker {
    /// The request, under which it can be asked about later.
    pub request_id: String,
    /// Its W3C `traceparent`.
    pub trace: Option<String>,
}

/// What is asked for.
pub struct Wanted<'a> {
    /// Of these providers.
    pub providers: &'a [Arc<Provider>],
    /// Each once.
    pub places: &'a [Place],
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

/// One place at one provider, on its way.
struct Missing {
    /// Its place among the keys.
    place: usize,
    wait: NewWait,
}

impl Enrich {
    /// Answers at once: what is known, and PENDING for what is being looked up from now on at the latest.
    pub async fn ask(&self, asker: &Asker, wanted: &Wanted<'_>) -> Result<Answered, AskError> {
        let inner = &self.inner;
        let places = wanted.places;
        let on: Vec<&Arc<Provider>> = wanted.providers.iter().collect();
        if places.is_empty() {
            for provider in &on {
                inner.decisions(provider).skipped_all(Skip::NoResults, &asker.request_id);
            }
            return Ok(Answered { states: vec![Vec::new(); on.len()], pending: 0 });
        }
        let keys: Vec<EntryKey> = on
            .iter()
            .flat_map(|provider| places.iter().map(|place| entry_key(&provider.name, &place.place_id)))
            .collect();
        let of = |n: usize| (on[n / places.len()], &places[n % places.len()]);
        let jobs: Vec<JobId> = keys.iter().map(|_| JobId::new()).collect();
        let copied = inner.copies(&keys, &jobs, &on).await;
        let mut known: Vec<Option<Entry>> = copied.entries.clone();
        // One that has ended is no answer.
        known.iter_mut().for_each(|entry| drop(entry.take_if(|entry| entry.age == Age::Gone)));
        let missing: Vec<usize> = (0..keys.len()).filter(|&n| known[n].is_none()).collect();
        if !missing.is_empty() {
            let wait = |&n: &usize| {
                let (provider, place) = of(n);
                let place_in_request = u32::try_from(n % places.len()).unwrap_or(u32::MAX);
                let wait = inner.new_wait(provider, place, jobs[n], asker, place_in_request);
                Missing { place: n, wait }
            };
            let waits: Vec<Missing> = missing.iter().map(wait).collect();
            let told = told(&keys, &known, |n| (&of(n).1.name, n % places.len()));
            let found = inner.wait(asker, &copied, waits, told, |n| of(n)).await?;
            for (n, entry) in found {
                known[n] = Some(entry);
            }
        }
        Ok(inner.answer(asker, &known, &missing, places.len(), |n| of(n)))
    }

    /// Says that a provider that is off was not asked.
    pub fn not_asked(&self, asker: &Asker, provider: &Provider) {
        self.inner.decisions(provider).skipped_all(Skip::FlagDisabled, &asker.request_id);
    }

    /// Has places looked up that are not known, ahead of requests.
    pub async fn warm(
        &self,
        asker: &Asker,
        provider: &Arc<Provider>,
        places: &[Place],
    ) -> Result<Warmed, StoreError> {
        let inner = &self.inner;
        let keys: Vec<EntryKey> =
            places.iter().map(|place| entry_key(&provider.name, &place.place_id)).collect();
        let copied = inner.cache.copies(&keys).await;
        let is_known = |n: &usize| copied.entries[*n].as_ref().is_some_and(|entry| entry.age != Age::Gone);
        let mut warmed = Warmed { cached: (0..keys.len()).filter(is_known).count(), ..Warmed::default() };
        let missing: Vec<usize> = (0..keys.len()).filter(|n| !is_known(n)).collect();
        let wait = |&n: &usize| {
            let mut wait = inner.new_wait(provider, &places[n], JobId::new(), asker, 0);
            wait.job.priority = WARM_PRIORITY;
            wait
        };
        let waits: Vec<NewWait> = missing.iter().map(wait).collect();
        if waits.is_empty() {
            return Ok(warmed);
        }
        let asked = Instant::now();
        let Asked::Answered(answers) = inner.jobs.store().wait(Ask { request: None, waits }).await? else {
            return Ok(warmed);
        };
        let decisions = inner.decisions(provider);
        let mut found = Vec::new();
        for (n, answer) in missing.into_iter().zip(answers) {
            let of = named(asker, &places[n]);
            match answer {
                Waits::Resolved(entry) => {
                    warmed.cached += 1;
                    found.push((n, entry));
                }
                Waits::Made => {
                    warmed.queued += 1;
                    decisions.enqueued(of, "warm");
                }
                Waits::Known { by, .. } => {
                    warmed.duplicate += 1;
                    decisions.deduplicated(of, by.as_deref());
                }
            }
        }
        inner.cache.remember(&copied, found, asked);
        inner.jobs.wake([super::queue(&provider.name).as_str()]);
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
            match places.iter_mut().find(|(_, place)| place.place_id == key.key) {
                Some((_, place)) => place.states.push((provider, state)),
                None => {
                    let states = vec![(provider, state)];
                    places.push((told.place, Recalled { place_id: key.key, name: told.name, states }));
                }
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

fn named<'a>(asker: &'a Asker, place: &'a Place) -> Subject<'a> {
    Subject {
        request_id: &asker.request_id,
        place_id: &place.place_id,
        name: &place.name,
        city: place.city_text.as_deref(),
    }
}

/// What a request is told from the copies.
fn told<'a>(keys: &[EntryKey], known: &[Option<Entry>], of: impl Fn(usize) -> (&'a String, usize)) -> Told {
    let known = keys.iter().enumerate().filter(|(n, _)| known[*n].is_some());
    let told = known.map(|(n, key)| {
        let (name, place) = of(n);
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        (Told::name(key), ToldPlace { name: name.clone(), place, since: None })
    });
    Told(told.collect())
}

impl Inner {
    /// One round trip at most, which takes the lease of each that is missing as well.
    async fn copies(&self, keys: &[EntryKey], jobs: &[JobId], on: &[&Arc<Provider>]) -> CopiedEntries {
        let Some(ttl) = on.iter().map(|provider| provider.settings.lock_ttl).max() else {
            return self.cache.copies(keys).await;
        };
        if self.companion.is_none() {
            return self.cache.copies(keys).await;
        }
        let owner = |key: &EntryKey| {
            let place = keys.iter().position(|known| known == key);
            place.map(|place| jobs[place].to_string()).unwrap_or_default()
        };
        self.cache.copies_or_hints(keys, Some(AskHints { name: &lock_name, owner: &owner, ttl })).await
    }

    fn new_wait(
        &self,
        provider: &Provider,
        place: &Place,
        id: JobId,
        asker: &Asker,
        place_in_request: u32,
    ) -> NewWait {
        let request_id = Some(asker.request_id.clone()).filter(|id| !id.is_empty());
        let lookup = Lookup { place: place.clone(), request_id: request_id.clone(), refreshes: None };
        let mut job = NewJob { id, ..lookup.job(provider, asker.trace.clone()) };
        if !self.guards.hold(Guard::Dedupe) {
            job.key = format!("{}#{id}", job.key);
        }
        let details = serde_json::json!({"provider": provider.name, "job": id.to_string()});
        let mut event = NewEvent::new(subject(&place.place_id), format!("{}_job_enqueued", provider.name))
            .outcome("PENDING")
            .reason("cache_miss")
            .details(Json::of(&details));
        event.request_id = request_id;
        NewWait {
            key: entry_key(&provider.name, &place.place_id),
            name: place.name.clone(),
            place: place_in_request,
            job,
            event,
        }
    }

    /// Asks the store for what is missing. Answers with what was known there, by place among the keys.
    async fn wait<'a>(
        &self,
        asker: &Asker,
        copied: &CopiedEntries,
        missing: Vec<Missing>,
        told: Told,
        of: impl Fn(usize) -> (&'a Arc<Provider>, &'a Place),
    ) -> Result<Vec<(usize, Entry)>, AskError> {
        let (places, waits): (Vec<usize>, Vec<NewWait>) =
            missing.into_iter().map(|missing| (missing.place, missing.wait)).unzip();
        let leases: Vec<(String, String)> =
            waits.iter().map(|wait| (lock_name(&wait.key), wait.job.id.to_string())).collect();
        let request = AskingRequest { id: asker.request_id.clone(), ttl: self.request_ttl, told };
        let asked = Instant::now();
        let answers = self.jobs.store().wait(Ask { request: Some(request), waits }).await;
        let answers = match answers {
            Ok(Asked::Answered(answers)) => answers,
            Ok(Asked::TooMany) => {
                self.give_back(copied, &places, leases, |_| true);
                return Err(AskError::TooMany);
            }
            Err(error) => {
                self.give_back(copied, &places, leases, |_| true);
                // What was true last is good enough, if it is there for all of them.
                if let Some(last) = copied.last_known().filter(|_| error.retryable()) {
                    return Ok(places.into_iter().zip(last).collect());
                }
                for &n in &places {
                    let (provider, place) = of(n);
                    self.decisions(provider).skipped(named(asker, place), Skip::QueueUnavailable);
                }
                return Err(error.into());
            }
        };
        let mut found = Vec::new();
        let mut made: Vec<&str> = Vec::new();
        for (&n, answer) in places.iter().zip(&answers) {
            let (provider, place) = of(n);
            let decisions = self.decisions(provider);
            let of = named(asker, place);
            let waits = match answer {
                Waits::Resolved(entry) => {
                    found.push((n, entry.clone()));
                    continue;
                }
                Waits::Made => None,
                Waits::Known { of, state, by } => Some((*of, *state, by.as_deref())),
            };
            decisions.miss(of);
            let lock = self.lock(copied.hints[n].as_ref(), waits.map(|(of, state, _)| (of, state)), provider);
            decisions.lock(of, lock);
            match (waits, lock) {
                (None, _) => {
                    made.push(&provider.name);
                    decisions.enqueued(of, "cache_miss");
                }
                (Some((_, _, by)), Lock::Acquired) => decisions.deduplicated(of, by),
                (Some(_), Lock::Held) => decisions.skipped(of, Skip::LockHeld),
                (Some((_, _, by)), Lock::Error(_)) => {
                    decisions.deduplicated(of, by);
                    let away = self.companion.as_ref().is_some_and(|companion| !companion.ok());
                    decisions.skipped(of, if away { Skip::RedisDown } else { Skip::LockError });
                }
            }
        }
        self.give_back(copied, &places, leases, |nth| !matches!(answers[nth], Waits::Made));
        self.cache.remember(copied, found.clone(), asked);
        made.dedup();
        for provider in made {
            self.jobs.wake([super::queue(provider).as_str()]);
        }
        if answers.iter().any(|answer| !matches!(answer, Waits::Resolved(_))) {
            // Whoever has subscribed to the request hears that it waits.
            self.jobs.bus().changed_here(&[request_key(&asker.request_id)]);
        }
        Ok(found)
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

    /// Gives back leases that were taken for lookups that were not made.
    fn give_back(
        &self,
        copied: &CopiedEntries,
        places: &[usize],
        leases: Vec<(String, String)>,
        not_made: impl Fn(usize) -> bool,
    ) {
        let Some(companion) = &self.companion else { return };
        for (nth, (lock, owner)) in leases.into_iter().enumerate() {
            if not_made(nth) && matches!(copied.hints[places[nth]], Some(Hinted::Taken { .. })) {
                let companion = companion.clone();
                tokio::spawn(async move { companion.give_back(&[lock], &owner).await });
            }
        }
    }

    fn answer<'a>(
        self: &Arc<Self>,
        asker: &Asker,
        known: &[Option<Entry>],
        missing: &[usize],
        places: usize,
        of: impl Fn(usize) -> (&'a Arc<Provider>, &'a Place),
    ) -> Answered {
        let mut states = Vec::with_capacity(known.len());
        let mut pending = 0;
        for (n, entry) in known.iter().enumerate() {
            let state = entry.as_ref().and_then(|entry| Some((entry, Resolved::of(entry)?)));
            let Some((entry, resolved)) = state else {
                pending += 1;
                states.push(State::Pending);
                continue;
            };
            let (provider, place) = of(n);
            self.decisions(provider).hit(named(asker, place), &resolved, age(entry.as_of, entry.updated_at));
            if entry.age == Age::Stale {
                self.refresh_ahead(asker, provider, place, entry);
            }
            states.push(State::Known { resolved, updated_at: entry.updated_at });
        }
        let _ = missing;
        let states = states.chunks(places).map(<[State]>::to_vec).collect();
        Answered { states, pending }
    }

    /// Has an entry refreshed that is near its end, once in its life. Nobody waits for it.
    fn refresh_ahead(
        self: &Arc<Self>,
        asker: &Asker,
        provider: &Arc<Provider>,
        place: &Place,
        entry: &Entry,
    ) {
        if self.refreshed.get(&entry.key) == Some(entry.updated_at) {
            return;
        }
        self.refreshed.insert(entry.key.clone(), entry.updated_at);
        let request_id = Some(asker.request_id.clone());
        let lookup = Lookup { place: place.clone(), request_id, refreshes: Some(entry.updated_at) };
        let mut job = lookup.job(provider, asker.trace.clone());
        // The window is what is left of its life: a refresh that fails is not tried again.
        job.window = Window::Check(entry.stale_until.since(entry.as_of));
        let (inner, key) = (self.clone(), entry.key.clone());
        tokio::spawn(async move {
            if inner.jobs.enqueue(vec![job]).await.is_err() {
                inner.refreshed.invalidate(&key);
            }
        });
    }
}

/// Lookups that someone waits for come first.
const WARM_PRIORITY: u8 = 7;
