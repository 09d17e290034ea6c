//! Promises of requests that wait for lookups.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use solely_core::cache::{Age, EntryKey, Lifetimes, Overwrite, PutEntry};
use solely_core::enrich::{
    Ask, Asked, AskingRequest, NewWait, TOLD_BYTES_MAX, Told, ToldPlace, Waits, ends_wait, entry_key, queue,
    request_key,
};
use solely_core::event::{NewEvent, timeline};
use solely_core::job::{JobState, NewJob};
use solely_core::queue::JobFilter;
use solely_core::{Json, Store};

use crate::World;
use crate::cache::judged;

const HOUR: Duration = Duration::from_secs(3_600);

fn wait(place: &str, request: &str) -> NewWait {
    let mut job = NewJob::new(queue("wolt"), place);
    job.attributes = Json::of(&serde_json::json!({"requestId": request}));
    NewWait { key: entry_key("wolt", place), name: format!("Name of {place}"), place: 0, job, leased: false }
}

fn ask(request: &str, places: &[&str]) -> Ask {
    let asking = AskingRequest { id: request.to_owned(), ttl: HOUR, told: Told::default() };
    Ask { request: Some(asking), waits: places.iter().map(|place| wait(place, request)).collect() }
}

async fn asked(store: &Arc<dyn Store>, ask: Ask) -> Vec<Waits> {
    match store.wait(ask).await.expect("asks") {
        Asked::Answered(answers) => answers,
        Asked::TooMany => panic!("there are few"),
    }
}

fn found(place: &str, overwrite: Overwrite) -> PutEntry {
    PutEntry {
        key: entry_key("wolt", place),
        value: Json::of(&serde_json::json!({"status": "FOUND", "url": "u"})),
        lifetimes: Lifetimes { fresh: HOUR, stale: HOUR, keep: 2 * HOUR },
        overwrite,
        told: None,
    }
}

async fn jobs(store: &Arc<dyn Store>) -> usize {
    let filter = JobFilter { queue: Some(queue("wolt")), limit: 200, ..JobFilter::default() };
    store.jobs(filter).await.expect("lists").len()
}

async fn told(store: &Arc<dyn Store>, request: &str) -> Option<Told> {
    let entry = store.entries(vec![request_key(request)]).await.expect("reads").remove(0)?;
    Some(entry.value.parse().expect("what it was told"))
}

/// Whoever waits has a live job, made or seen, and hears whose it is.
pub async fn whoever_waits_has_a_live_job(world: World) {
    let store = world.store();
    let first = ask("r1", &["a", "b"]);
    let made = first.waits[0].job.id;
    assert_eq!(asked(&store, first).await, [Waits::Made, Waits::Made]);
    let again = asked(&store, ask("r2", &["a", "c"])).await;
    let seen = Waits::Known { of: made, state: JobState::Ready, by: Some("r1".to_owned()) };
    assert_eq!(again, [seen, Waits::Made]);
    assert_eq!(jobs(&store).await, 3);
    let events = timeline(&*store, "place:a".to_owned(), None, 10).await.expect("reads");
    let told: Vec<_> =
        events.iter().map(|event| (&*event.told.event, event.told.request_id.as_deref())).collect();
    assert_eq!(told, [("wolt_job_enqueued", Some("r1"))], "told once, of the one that was made");
}

/// What may be served is answered, and no job is made; what has ended is looked up.
pub async fn what_is_known_is_answered(world: World) {
    let store = world.store();
    store.put_entries(vec![found("a", Overwrite::Always)]).await.expect("writes");
    let answers = asked(&store, ask("r1", &["a", "b"])).await;
    assert!(matches!(&answers[0], Waits::Resolved(entry) if entry.age == Age::Fresh), "{answers:?}");
    assert_eq!((&answers[1], jobs(&store).await), (&Waits::Made, 1));
    world.advance(HOUR);
    assert_eq!(asked(&store, ask("r2", &["a"])).await, [Waits::Made]);
    store.put_entries(vec![found("c", Overwrite::Always)]).await.expect("writes");
    store.forget_entry(entry_key("wolt", "c"), HOUR, None).await.expect("forgets").expect("was there");
    assert_eq!(asked(&store, ask("r3", &["c"])).await, [Waits::Made]);
}

/// What a request was told is kept for as long as the request is used, however short its own life; and a request
/// that waits has what it is told later, though all of that is known.
pub async fn what_a_request_was_told_is_kept_while_it_is_used(world: World) {
    let store = world.store();
    asked(&store, ask("r", &["a"])).await;
    let minute = Duration::from_secs(60);
    let short = Lifetimes { fresh: minute, stale: minute, keep: HOUR };
    let failed = PutEntry { lifetimes: short, ..found("a", Overwrite::Always) };
    store.put_entries(vec![failed]).await.expect("writes");
    world.advance(HOUR / 2);
    let later = ToldPlace { name: "Later".to_owned(), place: 1, since: None };
    let mut again = ask("r", &[]);
    again.request.as_mut().expect("asks").told = Told([("wolt/later".to_owned(), later)].into());
    assert_eq!(asked(&store, again).await, []);
    let told = told(&store, "r").await.expect("remembered");
    assert_eq!(told.0.keys().collect::<Vec<_>>(), ["wolt/a", "wolt/later"]);
    assert!(told.0["wolt/a"].since.is_some() && told.0["wolt/later"].since.is_none(), "{told:?}");
    world.advance(HOUR * 3 / 4);
    let kept = store.kept_entries(vec![entry_key("wolt", "a")]).await.expect("reads").remove(0);
    assert!(kept.is_some(), "it is past its own time, and the request can still be asked about");
    // One that nobody waits for is not remembered.
    let mut known = ask("known", &[]);
    let told_now = ToldPlace { name: "Known".to_owned(), place: 0, since: None };
    known.request.as_mut().expect("asks").told = Told([("wolt/a".to_owned(), told_now)].into());
    asked(&store, known).await;
    assert!(self::told(&store, "known").await.is_none());
}

/// A wait ends with whatever is written after what was seen, for good, and with nothing else: neither with what had ended
/// already, nor with what was forgotten.
pub async fn a_wait_ends_with_what_is_written_after_what_was_seen(world: World) {
    let store = world.store();
    let brief = Duration::from_secs(1);
    let write = async || {
        let lifetimes = Lifetimes { fresh: brief, stale: brief, keep: HOUR };
        let entry = PutEntry { lifetimes, ..found("a", Overwrite::Always) };
        store.put_entries(vec![entry]).await.expect("writes");
    };
    let ended = async || {
        let since = told(&store, "r").await.expect("remembered").0["wolt/a"].since.expect("it waits");
        let kept = store.kept_entries(vec![entry_key("wolt", "a")]).await.expect("reads").remove(0);
        (since, kept.is_some_and(|entry| ends_wait(&entry, since)))
    };
    let mut waits = Vec::new();
    for forgets in [false, true, false] {
        asked(&store, ask("r", &["a"])).await;
        let (since, at_once) = ended().await;
        assert!(!at_once, "it waits for what comes");
        write().await;
        if forgets {
            store
                .forget_entry(entry_key("wolt", "a"), HOUR, None)
                .await
                .expect("forgets")
                .expect("was there");
        } else {
            assert_eq!(ended().await, (since, true));
            world.advance(brief);
        }
        assert_eq!(ended().await, (since, true), "it has ended, though what ended it is over");
        waits.push(since);
    }
    waits.dedup();
    assert_eq!(waits.len(), 3, "each is a wait of its own");
}

/// What was there and is kept no more does not come back as an answer, however often the request is used.
pub async fn what_is_kept_no_more_ends_no_wait(world: World) {
    let store = world.store();
    let brief = Duration::from_secs(1);
    let lifetimes = Lifetimes { fresh: brief, stale: brief, keep: 2 * brief };
    store.put_entries(vec![PutEntry { lifetimes, ..found("a", Overwrite::Always) }]).await.expect("writes");
    world.advance(3 * brief);
    for places in [["a"], ["b"], ["a"]] {
        asked(&store, ask("r", &places)).await;
        let since = told(&store, "r").await.expect("remembered").0["wolt/a"].since.expect("it waits");
        let kept = store.kept_entries(vec![entry_key("wolt", "a")]).await.expect("reads").remove(0);
        assert!(!kept.is_some_and(|entry| ends_wait(&entry, since)), "it waits for what comes");
    }
}

/// A request remembers what it was told, across its uses and a restart, for as long as it may.
pub async fn a_request_remembers_what_it_was_told(mut world: World) {
    let store = world.store();
    store.put_entries(vec![found("known", Overwrite::Always)]).await.expect("writes");
    let mut first = ask("r", &["a", "known"]);
    let from_copies = ToldPlace { name: "From memory".to_owned(), place: 7, since: None };
    let copied = Told([("wolt/copied".to_owned(), from_copies.clone())].into());
    first.request.as_mut().expect("asks").told = copied;
    asked(&store, first).await;
    let before = told(&store, "r").await.expect("remembered");
    assert_eq!(before.0.keys().collect::<Vec<_>>(), ["wolt/a", "wolt/copied", "wolt/known"]);
    assert_eq!(before.0["wolt/copied"], from_copies);
    assert_eq!((before.0["wolt/known"].since, before.0["wolt/a"].name.as_str()), (None, "Name of a"));
    let since = before.0["wolt/a"].since.expect("it waits");
    // Told what there is, it still waits for what it was told before; told PENDING again, from then on.
    world.advance(Duration::from_secs(1));
    store.put_entries(vec![found("a", Overwrite::Always)]).await.expect("writes");
    asked(&store, ask("r", &["a", "b"])).await;
    let after = told(&store, "r").await.expect("remembered");
    assert_eq!(after.0["wolt/a"].since, Some(since));
    store.forget_entry(entry_key("wolt", "a"), HOUR, None).await.expect("forgets").expect("was there");
    asked(&store, ask("r", &["a"])).await;
    drop(store);
    world.restart().await;
    let store = world.store();
    let again = told(&store, "r").await.expect("remembered");
    assert!(again.0["wolt/a"].since > Some(since) && again.0["wolt/b"].since.is_some());
    // All of it was known: nothing is remembered.
    store.put_entries(vec![found("known", Overwrite::Always)]).await.expect("writes");
    asked(&store, ask("nothing pending", &["known"])).await;
    assert_eq!(told(&store, "nothing pending").await, None);
    world.advance(HOUR);
    assert_eq!(told(&store, "r").await, None, "it is too long ago");
}

/// Of many who ask at once, one makes the job of each place.
pub async fn of_many_who_ask_at_once_one_makes_the_job(world: World) {
    let store = world.store();
    let places: Vec<String> = (0..20).map(|n| format!("p{n}")).collect();
    let request = |n: usize| {
        let mine: Vec<&str> = (0..10).map(|k| places[(n + k) % 20].as_str()).collect();
        asked_owned(store.clone(), ask(&format!("r{n}"), &mine))
    };
    let answers = join_all((0..40).map(request)).await;
    let made = answers.iter().flatten().filter(|answer| **answer == Waits::Made).count();
    assert_eq!((made, jobs(&store).await), (20, 20));
    for n in 0..40 {
        assert_eq!(told(&store, &format!("r{n}")).await.expect("remembered").0.len(), 10);
    }
}

async fn asked_owned(store: Arc<dyn Store>, ask: Ask) -> Vec<Waits> {
    asked(&store, ask).await
}

/// A request that has been told of too much is refused, and nothing is changed; others are not.
pub async fn a_request_of_too_many_places_changes_nothing(world: World) {
    let store = world.store();
    let long = "x".repeat(TOLD_BYTES_MAX);
    let mut large = ask("large", &["a"]);
    large.waits[0].name = long;
    asked(&store, large).await;
    let (refused, fine) = tokio::join!(store.wait(ask("large", &["b"])), store.wait(ask("other", &["c"])));
    assert_eq!(refused.expect("asks"), Asked::TooMany);
    assert_eq!(fine.expect("asks"), Asked::Answered(vec![Waits::Made]));
    assert_eq!(jobs(&store).await, 2);
}

/// Nobody who could be told: places are warmed, and nothing is remembered.
pub async fn warming_remembers_no_request(world: World) {
    let store = world.store();
    let warm = Ask { request: None, waits: vec![wait("a", ""), wait("b", "")] };
    assert_eq!(asked(&store, warm).await, [Waits::Made, Waits::Made]);
    assert_eq!(told(&store, "").await, None);
}

/// An ask whose answer was lost is run again, and finds what it has made.
pub async fn an_ask_may_be_run_again(world: World) {
    let store = world.store();
    let once = ask("r", &["a"]);
    assert_eq!(asked(&store, once.clone()).await, [Waits::Made]);
    assert_eq!(asked(&store, once).await, [Waits::Made], "it is its own");
    assert_eq!(jobs(&store).await, 1);
}

/// What failed replaces nothing that may be served.
pub async fn a_write_may_replace_only_what_is_gone(world: World) {
    let store = world.store();
    let put =
        async |overwrite| judged(store.put_entries(vec![found("a", overwrite)]).await.expect("writes")[0]);
    assert_eq!(put(Overwrite::IfGone).await, Ok(1));
    assert_eq!(put(Overwrite::IfGone).await, Err(1));
    world.advance(HOUR);
    assert_eq!(put(Overwrite::IfGone).await, Ok(2), "it had ended");
    store.forget_entry(entry_key("wolt", "a"), HOUR, None).await.expect("forgets").expect("was there");
    assert_eq!(put(Overwrite::IfGone).await, Ok(3), "it was forgotten");
}

/// What was forgotten, or has ended, is kept for those who were told of it.
pub async fn what_is_gone_is_kept_for_those_who_were_told(world: World) {
    let store = world.store();
    let key: EntryKey = entry_key("wolt", "a");
    let kept = async || store.kept_entries(vec![key.clone()]).await.expect("reads").remove(0);
    store.put_entries(vec![found("a", Overwrite::Always)]).await.expect("writes");
    let fresh = kept().await.expect("there");
    let told = || Some(NewEvent::new("place:a", "wolt_entry_forgotten"));
    store.forget_entry(key.clone(), 2 * HOUR, told()).await.expect("forgets").expect("was there");
    assert_eq!(store.forget_entry(key.clone(), HOUR, told()).await.expect("looks"), None);
    let events = store.timeline("place:a".to_owned(), None, 10).await.expect("reads");
    assert_eq!(events.len(), 1, "told of with it, and only if there was something to forget");
    assert_eq!(store.entries(vec![key.clone()]).await.expect("reads"), [None]);
    let gone = kept().await.expect("kept");
    assert_eq!((gone.age, &gone.value), (Age::Gone, &fresh.value));
    assert!(gone.updated_at > fresh.updated_at);
    world.advance(2 * HOUR);
    assert_eq!(kept().await, None);
    store.put_entries(vec![found("a", Overwrite::Always)]).await.expect("writes");
    world.advance(HOUR);
    assert_eq!(kept().await.map(|entry| entry.age), Some(Age::Gone));
    assert_eq!(
        store.forget_entry(key.clone(), HOUR, None).await.expect("looks"),
        None,
        "it has ended by itself"
    );
}
