//! Leases.

use std::time::Duration;

use solely_core::lease::keep::Begun;
use solely_core::lease::{Acquired, Holder, Lease, LeaseRenewed, LeaseRequest, Obstacle, WaitedLease};
use solely_core::{LeaseId, ProcessId};

use crate::World;
use crate::world::{DEAD_AFTER, secs};

const TTL: Duration = secs(30);

/// A client's request for these keys.
pub fn request(owner: &str, keys: &[&str]) -> LeaseRequest {
    LeaseRequest {
        id: LeaseId::random(),
        keys: keys.iter().map(|&key| key.to_owned()).collect(),
        owner: owner.to_owned(),
        ttl: TTL,
        holder: Holder::Client,
    }
}

async fn acquire(world: &World, owner: &str, keys: &[&str]) -> Acquired {
    world.store().acquire(request(owner, keys)).await.expect("answers")
}

async fn take(world: &World, owner: &str, keys: &[&str]) -> Lease {
    match acquire(world, owner, keys).await {
        Acquired::Acquired(lease) => lease,
        Acquired::Held(obstacle) => panic!("held: {obstacle:?}"),
    }
}

async fn obstacle(world: &World, owner: &str, keys: &[&str]) -> Obstacle {
    match acquire(world, owner, keys).await {
        Acquired::Held(obstacle) => obstacle,
        Acquired::Acquired(lease) => panic!("taken: {lease:?}"),
    }
}

async fn held_keys(world: &World) -> Vec<String> {
    let keys = world.store().held_keys(None, 100).await.expect("lists");
    keys.into_iter().map(|held| held.key).collect()
}

/// Whoever comes second is told who has it and until when.
pub async fn a_held_key_says_by_whom_and_until_when(world: World) {
    let lease = take(&world, "first", &["a"]).await;
    let obstacle = obstacle(&world, "second", &["a"]).await;
    assert_eq!((obstacle.key.as_str(), obstacle.owner.as_str()), ("a", "first"));
    assert_eq!(obstacle.expires_at, lease.expires_at);
    assert!(obstacle.ends_in > secs(25) && obstacle.ends_in <= TTL);
}

/// All keys or none: a refused request leaves no key behind.
pub async fn several_keys_are_taken_together_or_not_at_all(world: World) {
    take(&world, "first", &["b"]).await;
    assert_eq!(obstacle(&world, "second", &["a", "b", "c"]).await.key, "b");
    assert_eq!(held_keys(&world).await, ["b"]);
    let lease = take(&world, "second", &["a", "c"]).await;
    assert_eq!(lease.keys, ["a", "c"]);
}

/// Racing for overlapping keys never gives two leases that share one.
pub async fn racing_for_overlapping_keys_gives_one_of_them_each(world: World) {
    let racers = (0..40).map(|n: usize| {
        let store = world.store();
        let keys = [["a", "b"], ["b", "c"], ["c", "a"]][n % 3];
        tokio::spawn(async move { store.acquire(request(&n.to_string(), &keys)).await.expect("answers") })
    });
    let racers: Vec<_> = racers.collect();
    let mut taken: Vec<String> = Vec::new();
    for racer in racers {
        if let Acquired::Acquired(lease) = racer.await.expect("ends") {
            taken.extend(lease.keys);
        }
    }
    taken.sort_unstable();
    assert_eq!(taken, held_keys(&world).await);
    assert_eq!(taken.len(), 2, "two of the three keys, by one lease");
}

/// A fence grows with every lease of a key: across release,
pub async fn a_fence_grows_across_release(world: World) {
    let first = take(&world, "o", &["a"]).await;
    world.store().release(first.id).await.expect("releases");
    assert!(take(&world, "o", &["a"]).await.fence > first.fence);
}

/// … across expiry,
pub async fn a_fence_grows_across_expiry(world: World) {
    let first = take(&world, "o", &["a"]).await;
    world.advance(TTL);
    assert!(take(&world, "p", &["a"]).await.fence > first.fence);
}

/// … across restart, with nothing left of the earlier lease,
pub async fn a_fence_grows_across_restart(mut world: World) {
    let first = take(&world, "o", &["a"]).await;
    world.store().release(first.id).await.expect("releases");
    world.store().prune(solely_core::store::Retention::default()).await.expect("prunes");
    world.restart().await;
    assert!(take(&world, "o", &["a"]).await.fence > first.fence);
}

/// … and across keys: greater than that of any earlier lease on any of them.
pub async fn a_fence_is_above_that_of_every_key(world: World) {
    let a = take(&world, "o", &["a"]).await;
    let b = take(&world, "o", &["b"]).await;
    world.store().release(a.id).await.expect("releases");
    world.store().release(b.id).await.expect("releases");
    let both = take(&world, "o", &["a", "b"]).await;
    assert!(both.fence > a.fence && both.fence > b.fence);
}

/// A renewal moves the end and leaves the fence.
pub async fn a_renewal_moves_the_end_and_not_the_fence(world: World) {
    let lease = take(&world, "o", &["b", "a"]).await;
    world.advance(secs(20));
    let LeaseRenewed::Renewed(renewed) = world.store().renew_lease(lease.id, None).await.expect("answers")
    else {
        panic!("it has not ended")
    };
    assert_eq!((renewed.fence, renewed.keys), (lease.fence, vec!["a".to_owned(), "b".to_owned()]));
    assert!(renewed.expires_at >= lease.expires_at.plus(secs(20)));
    world.advance(secs(20));
    obstacle(&world, "p", &["a"]).await;
}

/// A renewal may ask for another time.
pub async fn a_renewal_may_change_the_time(world: World) {
    let lease = take(&world, "o", &["a"]).await;
    let renewed = world.store().renew_lease(lease.id, Some(secs(300))).await.expect("answers");
    let LeaseRenewed::Renewed(renewed) = renewed else { panic!("it has not ended") };
    assert!(renewed.expires_at >= lease.expires_at.plus(secs(269)));
}

/// What has ended cannot be renewed, though nobody took it.
pub async fn an_ended_lease_cannot_be_renewed(world: World) {
    let lease = take(&world, "o", &["a"]).await;
    world.advance(TTL);
    assert_eq!(world.store().renew_lease(lease.id, None).await.expect("answers"), LeaseRenewed::Lost);
}

/// What has ended cannot be released, though nobody took it: its owner is told that it was late.
pub async fn an_ended_lease_cannot_be_released(world: World) {
    let lease = take(&world, "o", &["a"]).await;
    world.advance(TTL);
    assert!(world.store().release(lease.id).await.expect("answers").is_empty());
}

/// A release by whoever is not the owner (any more) releases nothing.
pub async fn only_the_owner_can_release(world: World) {
    let first = take(&world, "o", &["a"]).await;
    assert!(world.store().release(LeaseId::random()).await.expect("answers").is_empty());
    world.advance(TTL);
    let second = take(&world, "p", &["a"]).await;
    assert!(world.store().release(first.id).await.expect("answers").is_empty(), "the retried unlock");
    obstacle(&world, "q", &["a"]).await;
    assert_eq!(world.store().release(second.id).await.expect("answers"), ["a"]);
}

/// The owner's name proves nothing.
pub async fn a_lease_is_not_re_entrant(world: World) {
    take(&world, "o", &["a"]).await;
    obstacle(&world, "o", &["a"]).await;
}

/// Released is free at once, for all its keys.
pub async fn a_released_lease_frees_all_its_keys(world: World) {
    let lease = take(&world, "o", &["a", "b"]).await;
    let mut freed = world.store().release(lease.id).await.expect("releases");
    freed.sort_unstable();
    assert_eq!(freed, ["a", "b"]);
    assert!(held_keys(&world).await.is_empty());
}

/// A client's lease is its owner's until it ends, whatever becomes of the server.
pub async fn a_clients_lease_outlives_its_server(mut world: World) {
    let lease = take(&world, "o", &["a"]).await;
    world.restart().await;
    assert_eq!(obstacle(&world, "p", &["a"]).await.owner, "o");
    assert!(matches!(
        world.store().renew_lease(lease.id, None).await.expect("answers"),
        LeaseRenewed::Renewed(_)
    ));
}

/// A process's own lease ends within seconds of its death.
pub async fn a_process_lease_ends_with_its_process(world: World) {
    let other = ProcessId::random();
    world.live_through(DEAD_AFTER).await;
    world.beat(other).await;
    let mut mine = request("worker", &["a"]);
    (mine.holder, mine.ttl) = (Holder::Process(other), secs(3_600));
    world.store().acquire(mine).await.expect("answers");
    world.live_through(secs(9)).await;
    take(&world, "p", &["a"]).await;
}

/// A listing shows what is held now, in order, page by page.
pub async fn held_keys_are_listed_in_order(world: World) {
    let lease = take(&world, "o", &["c", "a"]).await;
    let mut short = request("o", &["b"]);
    short.ttl = secs(1);
    world.store().acquire(short).await.expect("answers");
    world.advance(secs(1));
    let page = world.store().held_keys(None, 1).await.expect("lists");
    assert_eq!(
        (page[0].key.as_str(), page[0].fence, page[0].expires_at),
        ("a", lease.fence, lease.expires_at)
    );
    let rest = world.store().held_keys(Some("a".to_owned()), 10).await.expect("lists");
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].key, "c");
}

async fn until_waiting(world: &World, leases: &solely_core::lease::Leases, key: &str) {
    loop {
        let held = leases.held(None, 100).await.expect("lists");
        if held.iter().any(|(held, waiters)| held.key == key && *waiters > 0) {
            return;
        }
        assert!(!held.is_empty(), "{key} is held in {:?}", world.process);
        tokio::task::yield_now().await;
    }
}

/// A waiter is woken by the release, not by the end.
pub async fn a_waiter_is_woken_by_a_release(world: World) {
    let leases = world.leases();
    let held = take(&world, "o", &["a"]).await;
    let waiter = tokio::spawn({
        let leases = leases.clone();
        async move { leases.acquire(request("p", &["a"]), secs(20)).await.expect("answers") }
    });
    until_waiting(&world, &leases, "a").await;
    assert!(leases.release(held.id).await.expect("releases"));
    let started = tokio::time::Instant::now();
    assert!(matches!(waiter.await.expect("ends"), WaitedLease::Acquired(_)));
    assert!(started.elapsed() < secs(5));
}

/// A waiter whose wait is over is told who still has it.
pub async fn a_wait_that_is_over_says_who_has_it(world: World) {
    take(&world, "o", &["a"]).await;
    let outcome =
        world.leases().acquire(request("p", &["a"]), Duration::from_millis(50)).await.expect("answers");
    assert!(matches!(outcome, WaitedLease::Held(obstacle) if obstacle.owner == "o"));
}

/// Many waiters for one key get it one after the other, none of them twice, none never.
pub async fn waiters_get_it_one_after_the_other(world: World) {
    let leases = world.leases();
    let waiters = (0..20).map(|n| {
        let leases = leases.clone();
        tokio::spawn(async move {
            let outcome =
                leases.acquire(request(&n.to_string(), &["a", "b"]), secs(30)).await.expect("answers");
            let WaitedLease::Acquired(lease) = outcome else { panic!("{outcome:?}") };
            assert!(leases.release(lease.id).await.expect("releases"), "it was its own");
            lease.fence
        })
    });
    let waiters: Vec<_> = waiters.collect();
    let mut fences = Vec::new();
    for waiter in waiters {
        fences.push(waiter.await.expect("ends"));
    }
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 20);
}

/// A waiter that leaves keeps nothing, even if its turn came as it left.
pub async fn a_waiter_that_leaves_keeps_nothing(world: World) {
    let leases = world.leases();
    let held = take(&world, "o", &["a"]).await;
    let waiter = tokio::spawn({
        let leases = leases.clone();
        async move { leases.acquire(request("p", &["a"]), secs(20)).await }
    });
    until_waiting(&world, &leases, "a").await;
    leases.release(held.id).await.expect("releases");
    waiter.abort();
    let left = waiter.await;
    let outcome = leases.acquire(request("q", &["a"]), secs(20)).await.expect("answers");
    match left {
        Ok(Ok(WaitedLease::Acquired(_))) => {
            assert!(matches!(outcome, WaitedLease::Held(_)), "it was quicker");
        }
        _ => assert!(matches!(outcome, WaitedLease::Acquired(_)), "{outcome:?}"),
    }
}

/// Work under a lease is renewed for as long as it goes on, and costs next to nothing between two
/// renewals, whatever hints it names where there are none.
pub async fn work_under_a_lease_is_kept_quietly(world: World) {
    let ttl = Duration::from_millis(2_400);
    let request = LeaseRequest { ttl, holder: Holder::Process(world.process), ..request("worker", &["a"]) };
    let begun = world.leases().begin(request, vec!["hint".to_owned()]).await.expect("asks");
    let Begun::Mine(kept) = begun else { panic!("free") };
    let (worked, before) = (Duration::from_secs(4), processor_time());
    // The work takes longer than the lease would last, and than a hint's time.
    tokio::time::sleep(worked).await;
    let used = processor_time().saturating_sub(before);
    assert!(!kept.lost().is_cancelled());
    assert_eq!(world.store().held_keys(None, 10).await.expect("reads").len(), 1);
    assert!(used < worked / 4, "{used:?} of the processor in {worked:?}");
}

/// What this process has used of the processor.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").expect("Linux says so");
    let fields: Vec<&str> = text.rsplit_once(')').expect("has a name").1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(ticks * 10)
}
