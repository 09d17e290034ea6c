//! What upstreams share.

use std::sync::Arc;
use std::time::Duration;

use solely_core::upstream::{
    Admission, CallError, CallFailed, Rate, SlotRequest, Upstream, UpstreamKind, UpstreamLimits, Upstreams,
};

use crate::World;
use crate::world::secs;

/// Far longer than a test takes, so that only the store decides.
const SPACING: Duration = secs(60);

const SLOT: SlotRequest = SlotRequest { spacing: SPACING, patience: secs(3_600) };

async fn admit(world: &World, slot: Option<SlotRequest>) -> Admission {
    world.store().admit("wolt".to_owned(), slot).await.expect("answers")
}

async fn slot(world: &World) -> Duration {
    match admit(world, Some(SLOT)).await {
        Admission::Go { after } => after,
        not_now @ (Admission::Paused { .. } | Admission::Later { .. }) => panic!("{not_now:?}"),
    }
}

/// Evenly spaced slots, a burst of one.
pub async fn slots_are_evenly_spaced(world: World) {
    let first = slot(&world).await;
    assert_eq!(first, Duration::ZERO);
    let mut last = Duration::ZERO;
    for _ in 0..5 {
        let next = slot(&world).await;
        // The clock runs on between two calls; the slots themselves are exactly apart.
        assert!(next > last + SPACING / 2 && next <= last + SPACING, "{last:?} {next:?}");
        last = next;
    }
}

/// Slots that nobody used are forfeited: idling saves up no burst.
pub async fn unused_slots_are_forfeited(world: World) {
    slot(&world).await;
    world.advance(secs(600));
    assert_eq!(slot(&world).await, Duration::ZERO);
    assert!(slot(&world).await > SPACING / 2);
}

/// A slot that the caller would not wait for is not taken: refusals cost the others nothing.
pub async fn a_slot_too_far_away_is_not_taken(world: World) {
    slot(&world).await;
    let impatient = SlotRequest { patience: Duration::from_millis(10), ..SLOT };
    for _ in 0..50 {
        let Admission::Later { left } = admit(&world, Some(impatient)).await else { panic!("too far away") };
        assert!(left <= SPACING);
    }
    assert!(slot(&world).await <= SPACING, "still the next one");
}

/// A pause refuses for all, takes no slot, and ends by itself.
pub async fn a_paused_upstream_refuses_until_its_time(world: World) {
    world.store().pause_upstream("wolt".to_owned(), secs(30)).await.expect("pauses");
    for slot in [None, Some(SLOT)] {
        let Admission::Paused { left } = admit(&world, slot).await else { panic!("paused") };
        assert!(left > secs(29) && left <= secs(30));
    }
    world.advance(secs(30));
    assert_eq!(admit(&world, Some(SLOT)).await, Admission::Go { after: Duration::ZERO });
    assert!(world.store().paused_upstreams().await.expect("lists").is_empty());
}

/// A shorter pause does not end a longer one.
pub async fn the_later_end_of_two_pauses_holds(world: World) {
    let long = world.store().pause_upstream("wolt".to_owned(), secs(60)).await.expect("pauses");
    let short = world.store().pause_upstream("wolt".to_owned(), secs(1)).await.expect("pauses");
    assert_eq!(long, short);
    assert_eq!(world.store().paused_upstreams().await.expect("lists")["wolt"], long);
}

fn upstream(world: &World, concurrency: usize, rate: Option<Rate>) -> Arc<Upstream> {
    let limits = UpstreamLimits {
        name: "wolt".to_owned(),
        kind: UpstreamKind::Provider,
        timeout: Duration::from_millis(500),
        concurrency,
        rate,
        failures: solely_core::upstream::breaker::FAILURES,
    };
    Arc::new(Upstream::new(limits, world.store()))
}

fn ok() -> std::future::Ready<Result<u32, CallFailed<&'static str>>> {
    std::future::ready(Ok(1))
}

/// A `Retry-After` pauses the upstream for every instance, and further calls are not made.
pub async fn a_retry_after_pauses_every_instance(world: World) {
    let (here, there) = (upstream(&world, 4, None), upstream(&world, 4, None));
    let throttled = async { Err(CallFailed { error: "429", blame: false, retry_after: Some(secs(30)) }) };
    let failed: Result<u32, _> = here.call(secs(1), throttled).await;
    assert_eq!(failed, Err(CallError::Failed("429")));
    for upstream in [&here, &there] {
        let mut called = false;
        let outcome = upstream
            .call(secs(1), async {
                called = true;
                ok().await
            })
            .await;
        assert!(matches!(outcome, Err(CallError::Paused { .. })), "{outcome:?}");
        assert!(!called);
    }
    world.advance(secs(31));
    assert_eq!(there.call(secs(1), ok()).await, Ok(1));
}

/// A call that hangs is cut off, and failures in a row open the breaker.
pub async fn a_hanging_upstream_times_out_and_opens_its_breaker(world: World) {
    let upstream = upstream(&world, 4, None);
    for _ in 0..solely_core::upstream::breaker::FAILURES {
        let hang = std::future::pending::<Result<u32, CallFailed<&'static str>>>();
        let outcome = upstream.call(secs(1), hang).await;
        assert!(matches!(outcome, Err(CallError::TimedOut { .. })), "{outcome:?}");
    }
    assert!(matches!(upstream.call(secs(1), ok()).await, Err(CallError::Open { .. })));
    let upstreams = Upstreams::new([upstream]);
    let status = upstreams.status(&*world.store()).await.expect("reads").remove(0);
    assert_eq!(status.state, solely_core::upstream::UpstreamState::Open);
    assert_eq!((status.calls, status.failures, status.in_flight), (5, 5, 0));
}

/// What is our own fault does not open it.
pub async fn a_refused_request_does_not_open_the_breaker(world: World) {
    let upstream = upstream(&world, 4, None);
    for _ in 0..20 {
        let refused = async { Err(CallFailed { error: "400", blame: false, retry_after: None }) };
        let _: Result<u32, _> = upstream.call(secs(1), refused).await;
    }
    assert_eq!(upstream.call(secs(1), ok()).await, Ok(1));
}

/// No more calls at once than allowed; whoever waits too long is told so.
pub async fn no_more_calls_at_once_than_allowed(world: World) {
    let upstream = upstream(&world, 1, None);
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let slow = tokio::spawn({
        let upstream = upstream.clone();
        async move {
            let work = async {
                let _ = begun.send(());
                let _ = ended.await;
                ok().await
            };
            upstream.call(secs(1), work).await
        }
    });
    has_begun.await.expect("it begins");
    assert_eq!(upstream.call(Duration::from_millis(5), ok()).await, Err(CallError::Busy));
    let _ = end.send(());
    assert_eq!(slow.await.expect("ends"), Ok(1));
    assert_eq!(upstream.call(secs(1), ok()).await, Ok(1));
}

/// A caller that leaves gives its place back.
pub async fn a_caller_that_leaves_gives_its_place_back(world: World) {
    let upstream = upstream(&world, 1, None);
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let slow = tokio::spawn({
        let upstream = upstream.clone();
        async move {
            let work = async {
                let _ = begun.send(());
                std::future::pending::<Result<u32, CallFailed<&'static str>>>().await
            };
            upstream.call(secs(1), work).await
        }
    });
    has_begun.await.expect("it begins");
    slow.abort();
    let _ = slow.await;
    assert_eq!(upstream.call(secs(1), ok()).await, Ok(1));
}

/// Calls of several instances together keep to the rate.
pub async fn instances_share_one_rate(world: World) {
    let rate = Rate::new(50, secs(1));
    let instances = [upstream(&world, 4, rate), upstream(&world, 4, rate), upstream(&world, 4, rate)];
    let started = tokio::time::Instant::now();
    let calls = (0..25).map(|n| {
        let upstream = instances[n % 3].clone();
        tokio::spawn(async move {
            let begun = async { Ok::<_, CallFailed<&'static str>>(tokio::time::Instant::now()) };
            upstream.call(secs(10), begun).await.expect("is called")
        })
    });
    let calls: Vec<_> = calls.collect();
    let mut times = Vec::new();
    for call in calls {
        times.push(call.await.expect("ends") - started);
    }
    times.sort_unstable();
    let span = times[24].checked_sub(times[0]).unwrap();
    assert!(span >= Duration::from_millis(24 * 20 - 15), "25 calls at 50/s in {span:?}");
}
