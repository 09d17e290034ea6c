//! Random sequences of lease transitions against a plain model.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use solely_core::LeaseId;
use solely_core::lease::{Acquired, Holder, LeaseRenewed, LeaseRequest};

use crate::{Engine, World, seed};

/// Time moves in whole steps, far longer than a case takes, on a disk that is busy too.
const STEP: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
enum Op {
    /// The bits say which of the four keys.
    Acquire {
        keys: u8,
        ttl: u64,
    },
    /// One of the leases ever given out, ended ones too.
    Renew {
        lease: usize,
        ttl: Option<u64>,
    },
    Release {
        lease: usize,
    },
    Advance {
        steps: u64,
    },
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..16_u8, 1..5_u64).prop_map(|(keys, ttl)| Op::Acquire { keys, ttl }),
        3 => (0..64_usize, prop::option::of(1..5_u64)).prop_map(|(lease, ttl)| Op::Renew { lease, ttl }),
        3 => (0..64_usize).prop_map(|lease| Op::Release { lease }),
        3 => (1..4_u64).prop_map(|steps| Op::Advance { steps }),
        1 => Just(Op::Restart),
    ]
}

#[derive(Clone, Debug)]
struct ModelLease {
    id: LeaseId,
    keys: Vec<String>,
    fence: u64,
    ttl: u64,
    ends: u64,
}

#[derive(Default)]
struct Model {
    now: u64,
    leases: Vec<ModelLease>,
    last_fence: u64,
}

impl Model {
    fn held(&self) -> BTreeMap<String, u64> {
        let live = self.leases.iter().filter(|lease| lease.ends > self.now);
        live.flat_map(|lease| lease.keys.iter().map(|key| (key.clone(), lease.fence))).collect()
    }
}

struct Case {
    world: World,
    model: Model,
}

fn steps(count: u64) -> Duration {
    STEP * u32::try_from(count).expect("small")
}

impl Case {
    async fn run(&mut self, op: Op) {
        match op {
            Op::Acquire { keys, ttl } => self.acquire(keys, ttl).await,
            Op::Renew { lease, ttl } => self.renew(lease, ttl).await,
            Op::Release { lease } => self.release(lease).await,
            Op::Advance { steps: count } => {
                self.world.advance(steps(count));
                self.model.now += count;
            }
            Op::Restart => self.world.restart().await,
        }
        self.assert_same().await;
    }

    async fn acquire(&mut self, bits: u8, ttl: u64) {
        let keys: Vec<String> = (0..4).filter(|n| bits & (1 << n) != 0).map(|n| format!("key-{n}")).collect();
        let request = LeaseRequest {
            id: LeaseId::random(),
            keys: keys.clone(),
            owner: "model".to_owned(),
            ttl: steps(ttl),
            holder: Holder::Client,
        };
        let id = request.id;
        let held = self.model.held();
        match self.world.store().acquire(request).await.expect("answers") {
            Acquired::Acquired(lease) => {
                assert!(keys.iter().all(|key| !held.contains_key(key)), "a key was held");
                assert!(lease.fence > self.model.last_fence, "the fence grows");
                self.model.last_fence = lease.fence;
                let ends = self.model.now + ttl;
                self.model.leases.push(ModelLease { id, keys, fence: lease.fence, ttl, ends });
            }
            Acquired::Held(obstacle) => {
                assert!(keys.contains(&obstacle.key) && held.contains_key(&obstacle.key));
            }
        }
    }

    fn some_lease(&mut self, n: usize) -> Option<&mut ModelLease> {
        let count = self.model.leases.len();
        (count > 0).then(|| &mut self.model.leases[n % count])
    }

    async fn renew(&mut self, lease: usize, ttl: Option<u64>) {
        let now = self.model.now;
        let store = self.world.store();
        let Some(lease) = self.some_lease(lease) else { return };
        let outcome = store.renew_lease(lease.id, ttl.map(steps)).await.expect("answers");
        if lease.ends <= now {
            assert_eq!(outcome, LeaseRenewed::Lost);
            return;
        }
        let LeaseRenewed::Renewed(renewed) = outcome else { panic!("it had not ended: {lease:?}") };
        lease.ttl = ttl.unwrap_or(lease.ttl);
        lease.ends = now + lease.ttl;
        assert_eq!((renewed.fence, &renewed.keys), (lease.fence, &lease.keys));
    }

    async fn release(&mut self, lease: usize) {
        let now = self.model.now;
        let store = self.world.store();
        let Some(lease) = self.some_lease(lease) else { return };
        let mut freed = store.release(lease.id).await.expect("answers");
        freed.sort_unstable();
        let expected = if lease.ends > now { lease.keys.clone() } else { Vec::new() };
        assert_eq!(freed, expected);
        lease.ends = 0;
    }

    async fn assert_same(&self) {
        let held = self.world.store().held_keys(None, 100).await.expect("lists");
        let held: BTreeMap<String, u64> = held.into_iter().map(|held| (held.key, held.fence)).collect();
        assert_eq!(held, self.model.held());
    }
}

/// Whatever is done in whatever order, the store does what the model does.
pub fn leases_agree_with_a_plain_model<E: Engine>(cases: u32) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let outcome = seed::runner(cases).run(&prop::collection::vec(op(), 1..50), |ops| {
        runtime.block_on(async {
            let mut case = Case { world: World::on(E::fresh().await).await, model: Model::default() };
            for op in ops {
                case.run(op).await;
            }
            case.world.assert_sound().await;
        });
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
