//! The lookup: looks again, asks the finder, picks with the matcher, and says what should become true.
//!
//! *The claim decides*: what is written commits with the completion of the job, under its fence. The
//! lease in Redis is set again should it have vanished, and silences nothing. *Nobody is left on
//! PENDING*: a job that is given up, by whomever, writes for a short time that there is no link, unless
//! there is something that may be served.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use tokio::time::Instant;

use super::finder::{Candidate, Findings, Place};
use super::matcher::{Verdict, Why};
use super::system::{Enrich, Provider};
use super::timeline::Made;
use super::{Lookup, Resolved, Status, copy, entry_key, matcher, subject};
use crate::cache::{Age, Entry, Overwrite, PutEntry};
use crate::commit::Effect;
use crate::event::NewEvent;
use crate::fault::Guard;
use crate::job::Job;
use crate::json::Json;
use crate::upstream::{CallError, UpstreamError};
use crate::worker::{Delivery, Done, Failure, Handler};

/// Looks up the places of one provider.
pub(super) struct Lookups {
    pub(super) enrich: Enrich,
    pub(super) provider: Arc<Provider>,
}

/// What a lookup writes, for what is said of it.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) resolved: Resolved,
    pub(super) ttl: Duration,
    /// From when the lookup was made to its delivery,
    pub(super) waited: Duration,
    /// which was then.
    pub(super) began: Instant,
    pub(super) request_id: Option<String>,
    /// Whose the lease is.
    pub(super) owner: String,
}

#[async_trait]
impl Handler for Lookups {
    async fn handle(&self, delivery: &Delivery) -> Result<Done, Failure> {
        let job = &delivery.job;
        let lookup: Lookup = job
            .payload
            .parse()
            .map_err(|error| Failure::permanent(format!("the lookup cannot be read: {error}")))?;
        let time = Time::of(job, self.provider.settings.deadline);
        let (entry, ()) = tokio::join!(self.look_again(job), self.keep_lease(job));
        let entry = entry?;
        if entry.is_some_and(|entry| self.is_done(&entry, &lookup, job)) {
            self.give_lease_back(job);
            return Ok(self.known(job, &lookup));
        }
        let (resolved, refused) = self.find(&lookup, job, &time).await?;
        Ok(self.done(job, &lookup, resolved, &refused, time.began))
    }

    fn died(&self, job: &Job, error: &str) -> Done {
        // One that cannot be read is waited for, too: its key is the place.
        let lookup = job.payload.parse().unwrap_or_else(|_| Lookup {
            place: Place { place_id: job.key.clone(), ..Place::default() },
            request_id: None,
            refreshes: None,
        });
        let mut done = self.done(job, &lookup, Resolved::failed(), &[], Instant::now());
        for told in done.events.iter_mut().chain(&mut done.otherwise) {
            told.reason = Some(error.to_owned());
        }
        done
    }
}

impl Lookups {
    async fn look_again(&self, job: &Job) -> Result<Option<Entry>, Failure> {
        let key = entry_key(&self.provider.name, &job.key);
        let found = self.enrich.inner.jobs.store().entries(vec![key]).await;
        let found = found.map_err(|error| Failure::transient(error.to_string()))?;
        Ok(found.into_iter().next().flatten())
    }

    /// The lease is the job's, from its first request on. One that vanished is set again.
    async fn keep_lease(&self, job: &Job) {
        if let Some(companion) = &self.enrich.inner.companion {
            let lock = copy::lock_name(&entry_key(&self.provider.name, &job.key));
            companion.keep(&[lock], &job.id.to_string(), self.provider.settings.lock_ttl).await;
        }
    }

    /// There is nothing to be looked up after all.
    fn give_lease_back(&self, job: &Job) {
        if let Some(companion) = self.enrich.inner.companion.clone() {
            let (lock, owner) =
                (copy::lock_name(&entry_key(&self.provider.name, &job.key)), job.id.to_string());
            tokio::spawn(async move { companion.give_back(&[lock], &owner).await });
        }
    }

    /// Whether someone else was first. A job that is brought back after it was given up is not done by
    /// what its death wrote.
    fn is_done(&self, entry: &Entry, lookup: &Lookup, job: &Job) -> bool {
        if entry.age == Age::Gone || !self.enrich.inner.guards.hold(Guard::Dedupe) {
            return false;
        }
        let own_death = || {
            let failed = Resolved::of(entry).is_some_and(|resolved| resolved.is_failed());
            failed && job.created_at < entry.updated_at && entry.updated_at < job.run_at
        };
        lookup.refreshes.is_none_or(|refreshed| entry.updated_at > refreshed) && !own_death()
    }

    /// Asks from tight to loose, until something is accepted. What was refused on the way is told.
    async fn find(
        &self,
        lookup: &Lookup,
        job: &Job,
        time: &Time,
    ) -> Result<(Resolved, Vec<Refused>), Failure> {
        let (provider, place, mut refused) = (&self.provider, &lookup.place, Vec::new());
        for query in 0..provider.finder.queries(place).max(1) {
            let left = time.left().ok_or_else(too_late)?;
            let asked = provider.finder.ask(place, query, job.trace.as_deref());
            let called = provider.upstream.call(PATIENCE.min(left), asked);
            let findings = match tokio::time::timeout(left, called).await {
                Ok(answer) => answer.map_err(|error| failure(&error, time))?,
                Err(_) => return Err(too_late()),
            };
            if let Some(resolved) = self.judge(lookup, findings, query, &mut refused) {
                return Ok((resolved, refused));
            }
        }
        let meta = serde_json::json!({"reason": "no_match", "candidates": refused.len()});
        Ok((Resolved { status: Status::NotFound, url: None, meta: Some(meta) }, refused))
    }

    /// What the findings say; nothing if none of the candidates is accepted.
    fn judge(
        &self,
        lookup: &Lookup,
        findings: Findings,
        query: usize,
        refused: &mut Vec<Refused>,
    ) -> Option<Resolved> {
        let hosts = &self.provider.settings.hosts;
        let not_found = |meta| Resolved { status: Status::NotFound, url: None, meta };
        match findings {
            Findings::NotFound => Some(not_found(None)),
            Findings::Found { url } if matcher::is_allowed(&url, hosts) => {
                Some(Resolved { status: Status::Found, url: Some(url), meta: None })
            }
            Findings::Found { .. } => {
                Some(not_found(Some(serde_json::json!({"reason": "link_not_allowed"}))))
            }
            Findings::Candidates(mut candidates) => {
                candidates.truncate(CANDIDATES_MAX);
                let decision = matcher::decide(&lookup.place, hosts, &candidates);
                let verdicts = decision.verdicts.into_iter().zip(candidates);
                refused.extend(verdicts.filter(|(verdict, _)| verdict.score.is_none()).map(Refused::of));
                let accepted = decision.accepted?;
                let meta =
                    serde_json::json!({"score": accepted.score, "query": query + 1, "why": accepted.why});
                Some(Resolved { status: Status::Found, url: Some(accepted.url), meta: Some(meta) })
            }
        }
    }

    /// There was something by the time it was looked for: nothing is written, but that it was so. Should it have
    /// ended by now, or been forgotten, somebody may wait for this lookup: then it is one that failed.
    fn known(&self, job: &Job, lookup: &Lookup) -> Done {
        let details = serde_json::json!({
            "provider": self.provider.name, "job": job.id.to_string(),
            "made": Made::of(job, lookup.refreshes.is_some()),
        });
        let place = subject(&lookup.place.place_id);
        let mut told = NewEvent::new(place, format!("{}_cache_hit", self.provider.name))
            .reason("already_cached")
            .details(Json::of(&details));
        told.request_id.clone_from(&lookup.request_id);
        let (entry, failed) = self.outcome(job, lookup, &Resolved::failed(), &[]);
        let effect = Effect::PutEntries(vec![entry]);
        Done { effect, events: vec![failed], otherwise: vec![told], ..Done::default() }
    }

    /// What is written with the end of the job, and said when it is true.
    fn done(
        &self,
        job: &Job,
        lookup: &Lookup,
        resolved: Resolved,
        refused: &[Refused],
        began: Instant,
    ) -> Done {
        let (entry, told) = self.outcome(job, lookup, &resolved, refused);
        let written = Written {
            resolved,
            ttl: entry.lifetimes.stale,
            waited: job.updated_at.since(job.created_at),
            began,
            request_id: lookup.request_id.clone(),
            owner: job.id.to_string(),
        };
        self.enrich.inner.is_writing(entry.key.clone(), written);
        // Told of, too, where nothing is written.
        let kept =
            told.clone().outcome("KEPT").reason("what is known may still be served, and stays as it is");
        let (events, otherwise) = (vec![told], vec![kept]);
        Done { effect: Effect::PutEntries(vec![entry]), events, otherwise, ..Done::default() }
    }

    /// The entry of what was found, and what is told of it. A lookup that failed replaces nothing that may be served.
    fn outcome(
        &self,
        job: &Job,
        lookup: &Lookup,
        resolved: &Resolved,
        refused: &[Refused],
    ) -> (PutEntry, NewEvent) {
        let (provider, key) = (&self.provider, entry_key(&self.provider.name, &lookup.place.place_id));
        let lifetimes = provider.settings.lives.of(resolved);
        let (event, overwrite) = if resolved.is_failed() {
            ("lookup_failed", Overwrite::IfGone)
        } else {
            ("cache_written", Overwrite::Always)
        };
        let details = serde_json::json!({
            "provider": provider.name, "status": resolved.status, "url": resolved.url, "meta": resolved.meta,
            "ttlSeconds": lifetimes.stale.as_secs(), "attempts": job.attempts, "job": job.id.to_string(),
            "refused": &refused[..refused.len().min(REFUSED_TOLD)], "made": Made::of(job, lookup.refreshes.is_some()),
        });
        let mut told = NewEvent::new(subject(&lookup.place.place_id), format!("{}_{event}", provider.name))
            .outcome(resolved.status.word())
            .details(Json::of(&details));
        told.request_id.clone_from(&lookup.request_id);
        (PutEntry { key, value: Json::of(resolved), lifetimes, overwrite, told: None }, told)
    }
}

/// A candidate that was not accepted, as the timeline tells of it.
#[derive(Serialize)]
struct Refused {
    url: String,
    why: Vec<Why>,
}

impl Refused {
    fn of((verdict, candidate): (Verdict, Candidate)) -> Self {
        Self { url: candidate.url.chars().take(REFUSED_CHARS).collect(), why: verdict.why }
    }
}

/// How much time a lookup has left, counted on the store's clock up to its delivery.
struct Time {
    began: Instant,
    ends: Instant,
}

impl Time {
    fn of(job: &Job, deadline: Duration) -> Self {
        // It is never put off beyond its deadline: one that is due later was brought back.
        let brought_back = job.run_at > job.created_at.plus(deadline + LAG);
        let began = if brought_back { job.run_at } else { job.created_at };
        let now = Instant::now();
        Self { began: now, ends: now + deadline.saturating_sub(job.updated_at.since(began)) }
    }

    /// None if it is over.
    fn left(&self) -> Option<Duration> {
        Some(self.ends.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }
}

fn too_late() -> Failure {
    Failure::permanent("the lookup has taken as long as it may")
}

/// What a call that brought nothing means for its lookup.
fn failure(error: &CallError<UpstreamError>, time: &Time) -> Failure {
    let Some(left) = time.left() else { return too_late() };
    let why = match error {
        CallError::Failed(why) => why.to_string(),
        other => other.to_string(),
    };
    let wait = |delay: Duration| Failure::Postponed {
        delay: delay.max(SHORTEST_WAIT).min(left),
        error: why.clone(),
    };
    match error {
        CallError::Paused { left } | CallError::Later { left } | CallError::Open { left } => wait(*left),
        // All lookups of the provider wait for as long: its pause is in the store.
        CallError::Busy | CallError::Failed(UpstreamError::Throttled(_)) => wait(SHORTEST_WAIT),
        CallError::Failed(UpstreamError::Permanent(_)) => Failure::permanent(why),
        CallError::Failed(UpstreamError::Transient(_)) | CallError::TimedOut { .. } | CallError::Store(_) => {
            Failure::Transient { error: why, at_most: Some(left) }
        }
    }
}

/// How long a lookup waits for its turn; then it makes room for others.
const PATIENCE: Duration = Duration::from_secs(5);
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
/// How late a settlement may come.
const LAG: Duration = Duration::from_secs(2);
/// Refused candidates that the timeline tells of,
const REFUSED_TOLD: usize = 5;
/// and characters of their links.
const REFUSED_CHARS: usize = 200;
/// Candidates that are looked at.
const CANDIDATES_MAX: usize = 50;
