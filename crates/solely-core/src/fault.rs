//! Switches for fault tests: points at which a process can be made to die, and guards that
//! can be turned off to show that their tests would notice.
//!
//! Both are off unless the environment of the process says otherwise, and cost one relaxed
//! load then. `SOLELY_CRASH=settle.effect:3` aborts the process the third time it reaches
//! that point; `SOLELY_BREAK=fence,page-transaction` opens those guards. They exist for
//! `solely torture` and the fault tests; nobody sets them in production.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names the environment variable that arms a crash point.
pub const CRASH_ENV: &str = "SOLELY_CRASH";
/// Names the environment variable that opens guards.
pub const BREAK_ENV: &str = "SOLELY_BREAK";

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

/// Which guards hold. All of them, unless a fault test says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guards {
    /// A settlement needs the fence, the state and the live lock of its claim.
    pub fence: bool,
    /// A job's effect commits with its completion and its successors.
    pub page_transaction: bool,
}

impl Guards {
    /// Every guard on.
    pub const fn all() -> Self {
        Self { fence: true, page_transaction: true }
    }

    /// Every guard on but those that the environment names.
    pub fn from_env() -> Self {
        let broken = std::env::var(BREAK_ENV).unwrap_or_default();
        let holds = |name: &str| !broken.split(',').any(|broken| broken.trim() == name);
        Self { fence: holds("fence"), page_transaction: holds("page-transaction") }
    }
}

impl Default for Guards {
    fn default() -> Self {
        Self::all()
    }
}
