//! Switches for fault tests: points at which a process can be made to die, and guards that
//! can be turned off to show that their tests would notice.
//!
//! [`Points`] hold a task up where a test wants it, to play one interleaving through.
//!
//! The first two are off unless the environment of the process says otherwise, and cost one relaxed
//! load then. `SOLELY_CRASH=settle.effect:3` aborts the process the third time it reaches
//! that point; `SOLELY_BREAK=fence,page-transaction` opens those guards. `SOLELY_SKEW_MS=-90000` has the
//! process believe that it is a minute and a half ago. They exist for `solely torture` and the fault tests;
//! nobody sets them in production.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::oneshot;

/// Names the environment variable that arms a crash point.
pub const CRASH_ENV: &str = "SOLELY_CRASH";
/// Names the environment variable that opens guards.
pub const BREAK_ENV: &str = "SOLELY_BREAK";
/// Names the environment variable that puts the clock of the process wrong.
pub const SKEW_ENV: &str = "SOLELY_SKEW_MS";

/// The points of claim → effect → settle at which a process can be made to die, in order.
pub const CRASH_POINTS: &[&str] = &[
    "claim.begin",
    "claim.committed",
    "worker.handled",
    "settle.begin",
    "settle.fenced",
    "settle.effect",
    "settle.next",
    "settle.commit",
    "settle.committed",
];

/// By how much the clock of this process is wrong.
#[inline]
pub(crate) fn skew_ms() -> i64 {
    static SKEW: OnceLock<i64> = OnceLock::new();
    *SKEW.get_or_init(|| std::env::var(SKEW_ENV).ok().and_then(|text| text.parse().ok()).unwrap_or(0))
}

struct Crash {
    point: String,
    left: AtomicU64,
}

static CRASH: OnceLock<Option<Crash>> = OnceLock::new();

/// Dies here, without any clean-up, if this is the armed point and its count is reached.
#[inline]
pub fn point(name: &str) {
    if let Some(crash) = CRASH.get_or_init(armed) {
        die_at(crash, name);
    }
}

#[cold]
fn die_at(crash: &Crash, name: &str) {
    if crash.point == name && crash.left.fetch_sub(1, Ordering::Relaxed) == 1 {
        std::process::abort();
    }
}

fn armed() -> Option<Crash> {
    let text = std::env::var(CRASH_ENV).ok()?;
    let (point, count) = text.rsplit_once(':').unwrap_or((&text, "1"));
    let left = AtomicU64::new(count.parse().ok()?);
    Some(Crash { point: point.to_owned(), left })
}

/// A guard that can be opened, to show that its test would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A settlement needs the fence, the state and the live lock of its claim.
    Fence,
    /// A job's effect commits with its completion and its successors.
    PageTransaction,
    /// A hint may refuse early and never allows: the row decides.
    RowsDecide,
    /// A hint that vanished is set again and cancels nothing.
    HintsCancelNothing,
    /// Whoever waits for an entry is registered before the store is read.
    RegisterFirst,
    /// What a watch was sent it is not sent again.
    SentOnce,
    /// What was read from the store is copied only where there is no copy.
    BackFillIfAbsent,
    /// What was read from the store is copied only within a second.
    BackFillSoon,
    /// A copy is replaced only by a later one.
    CopiesCompared,
    /// A forgotten entry leaves a mark where its copy was.
    Tombstones,
    /// Copies are trusted only while they are known to follow the store.
    CopiesFollow,
    /// A copy in memory is trusted for a bounded time.
    MemoryTrust,
    /// Copies in memory are dropped when a change may have been missed.
    FlushOnGap,
    /// A copy older than a change that was heard of is not taken.
    Floors,
    /// There is one lookup of a place at a time, and none while its result is there.
    Dedupe,
    /// Whoever subscribes late is told what was resolved before.
    Replay,
    /// There is one call of a plugin at a time for a catalogue.
    SingleFlight,
    /// Stock is counted under the merchant's lock, and written only if it is as it was read.
    Decrement,
    /// A user has one open reservation at a merchant.
    OneActive,
    /// Holds whose time is over are swept. Not a guard: without it they are given back when they are needed.
    Sweeper,
    /// Lookups are thinned by leases. Not a guard: without it more is asked of the store, and no more.
    Thinning,
}

impl Guard {
    /// Every guard.
    pub const ALL: [Self; 21] = [
        Self::Fence,
        Self::PageTransaction,
        Self::RowsDecide,
        Self::HintsCancelNothing,
        Self::RegisterFirst,
        Self::SentOnce,
        Self::BackFillIfAbsent,
        Self::BackFillSoon,
        Self::CopiesCompared,
        Self::Tombstones,
        Self::CopiesFollow,
        Self::MemoryTrust,
        Self::FlushOnGap,
        Self::Floors,
        Self::Dedupe,
        Self::Replay,
        Self::SingleFlight,
        Self::Decrement,
        Self::OneActive,
        Self::Sweeper,
        Self::Thinning,
    ];

    /// Its name in the environment.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fence => "fence",
            Self::PageTransaction => "page-transaction",
            Self::RowsDecide => "rows-decide",
            Self::HintsCancelNothing => "hints-cancel-nothing",
            Self::RegisterFirst => "register-first",
            Self::SentOnce => "sent-once",
            Self::BackFillIfAbsent => "back-fill-if-absent",
            Self::BackFillSoon => "back-fill-soon",
            Self::CopiesCompared => "copies-compared",
            Self::Tombstones => "tombstones",
            Self::CopiesFollow => "copies-follow",
            Self::MemoryTrust => "memory-trust",
            Self::FlushOnGap => "flush-on-gap",
            Self::Floors => "floors",
            Self::Dedupe => "dedupe",
            Self::Replay => "replay",
            Self::SingleFlight => "single-flight",
            Self::Decrement => "decrement",
            Self::OneActive => "one-active",
            Self::Sweeper => "sweeper",
            Self::Thinning => "thinning",
        }
    }

    const fn bit(self) -> u32 {
        1 << (self as u32)
    }
}

/// Which guards hold. All of them, unless a fault test says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guards {
    open: u32,
}

impl Guards {
    /// Every guard on.
    pub const fn all() -> Self {
        Self { open: 0 }
    }

    /// Every guard on but this one.
    pub const fn without(guard: Guard) -> Self {
        Self { open: guard.bit() }
    }

    /// Every guard on but those that the environment names.
    pub fn from_env() -> Self {
        let broken = std::env::var(BREAK_ENV).unwrap_or_default();
        let named = |guard: &Guard| broken.split(',').any(|name| name.trim() == guard.name());
        let open = Guard::ALL.into_iter().filter(named).fold(0, |open, guard| open | guard.bit());
        Self { open }
    }

    /// Whether a guard is on.
    pub const fn hold(self, guard: Guard) -> bool {
        self.open & guard.bit() == 0
    }
}

/// Named points at which a test can hold a task up, to play an interleaving through. Without a
/// test they are nothing.
#[derive(Clone, Debug, Default)]
pub struct Points {
    gates: Option<Arc<Mutex<HashMap<&'static str, Gate>>>>,
}

#[derive(Debug)]
struct Gate {
    reached: oneshot::Sender<()>,
    opened: oneshot::Receiver<()>,
}

/// A point at which the next task to come is held up.
#[derive(Debug)]
pub struct Stop {
    reached: oneshot::Receiver<()>,
    open: oneshot::Sender<()>,
}

impl Points {
    /// Points at which tasks can be held up.
    pub fn in_a_test() -> Self {
        Self { gates: Some(Arc::default()) }
    }

    /// Holds up the next task that reaches a point.
    pub fn stop_at(&self, name: &'static str) -> Stop {
        let ((reached, is_reached), (open, opened)) = (oneshot::channel(), oneshot::channel());
        let gates = self.gates.as_ref().expect("these points are a test's");
        gates.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Gate { reached, opened });
        Stop { reached: is_reached, open }
    }

    /// Goes on at once, unless a test has put a stop here.
    pub async fn reach(&self, name: &'static str) {
        let Some(gates) = &self.gates else { return };
        let gate = gates.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        if let Some(gate) = gate {
            let _ = gate.reached.send(());
            let _ = gate.opened.await;
        }
    }
}

impl Stop {
    /// Waits until a task is held up here.
    pub async fn reached(&mut self) {
        let _ = (&mut self.reached).await;
    }

    /// Lets it go on.
    pub fn open(self) {
        let _ = self.open.send(());
    }
}
