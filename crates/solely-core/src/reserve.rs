//! reserve: boxes held, paid, collected, cancelled, expired. Never one too many, never one lost.
//!
//! Everything that changes stock is an [`Operation`]. Those who want boxes of one inventory at the same time are
//! combined ([`combiner`]): what waits is decided together, in the order of its arrival, each with a verdict of
//! its own. An engine runs such a batch as one transaction: it locks the merchants, looks at the clock, reads the rows
//! that the batch needs into [`Books`], has it decided (pure, the same code for every engine), and writes what has
//! changed, each row only if it is as it was read. A CHECK keeps every box somewhere; a unique index keeps one open
//! reservation for a user and merchant.
//!
//! Time ends a hold when it is over, whether or not anybody has written so: reads judge by the clock, and whoever
//! needs the boxes gives them back first. The sweeper is housekeeping.
//!
//! **If it dies**: before the commit nothing has happened, and nobody was told anything else. After it, the
//! reservation is there under the id that was made beforehand, and a repeated request with the same key is answered as
//! the first one was: the key is a row of the same transaction.

mod batch;
mod books;
pub mod combiner;
mod copy;
mod decide;
mod making;
mod model;
pub mod notify;
mod operation;
pub mod pricing;
mod system;
pub mod waitlist;
mod watch;
pub mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

pub use batch::{Ahead, Batch};
pub use books::{Books, Left, Touched, Wanted};
pub use decide::{Rules, Told, ToldOf, UNITS_MAX, subject_of, subject_of_item, told_of};
pub use making::{Making, ToldByRows, event_of_row, page};
pub use model::{
    BoxType, HoldTimes, Inventory, InventoryStatus, InventoryView, Merchant, PaymentStatus, Reservation,
    ReservationInner, ReservationStatus,
};
pub use operation::{
    Change, Decided, IdempotencyKey, NewInventory, NewReservation, NewWait, Operation, Refusal, Request,
    Verdict,
};
pub use system::{Reserve, ReserveError, ReserveParts, pickup_code};
pub use waitlist::{Line, Wait, WaitStatus, WaitView};
pub use watch::{Watch, Watched};

use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::event::{Event, EventId};
use crate::id::ReservationId;

/// Which inventories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InventoryFilter {
    /// These.
    pub ids: Option<Vec<String>>,
    /// Those of a merchant.
    pub merchant_id: Option<String>,
    /// Those of which this can be said now.
    pub status: Option<InventoryStatus>,
    /// Those behind this one.
    pub after: Option<String>,
    /// So many at most.
    pub limit: u32,
}

/// Which reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationFilter {
    /// This one.
    pub id: Option<ReservationId>,
    /// Those of a user.
    pub user_id: Option<String>,
    /// Those at a merchant.
    pub merchant_id: Option<String>,
    /// Those that stand so now.
    pub status: Option<ReservationStatus>,
    /// Those made after this one.
    pub after: Option<ReservationId>,
    /// So many at most.
    pub limit: u32,
}

/// A page of a waiting list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitFilter {
    /// For what.
    pub inventory_id: String,
    /// Who: this user alone.
    pub user_id: Option<String>,
    /// Those behind this ordinal.
    pub after: Option<u64>,
    /// So many at most.
    pub limit: u32,
}

/// The latest reservations of a user that it is told of, beside those that are open.
pub const LATEST: u32 = 20;

/// Holds of an inventory whose time is over that one batch gives back at the most.
pub const LAPSED_MAX: u32 = 10_000;

/// Open reservations of a user that are looked at.
pub const OPEN_MAX: u32 = 200;

/// A user whose reservations are followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Follows {
    /// Who.
    pub user_id: String,
    /// How far each reservation was told of; none: nobody has looked yet, and only how far each is matters.
    pub told: Option<BTreeMap<ReservationId, EventId>>,
}

/// What was told of a user's reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldTo {
    /// The reservation, as it is now.
    pub reservation: Reservation,
    /// Whether it is still to be written how it ends.
    pub is_open: bool,
    /// What was told, in order.
    pub events: Vec<Event>,
}

/// Reservations whose time is over, and nobody has written so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lapsed {
    /// The oldest of them, each with its merchant.
    pub ids: Vec<(String, ReservationId)>,
    /// Since when the oldest of all is over.
    pub since: Option<Timestamp>,
    /// When it is.
    pub now: Timestamp,
}

/// The transitions of stock.
#[async_trait]
pub trait ReserveStore: Send + Sync {
    /// Decides requests in their order, as one transaction and after the batch ahead of them, and answers in it, with what has
    /// changed. An error is everyone's, and nothing was changed, unless it is [`StoreError::Unknown`].
    async fn decide(&self, batch: Batch, rules: Arc<Rules>) -> Result<(Vec<Decided>, Touched), StoreError>;

    /// Inventories in the order of their ids, as they are now.
    async fn inventories(&self, filter: InventoryFilter) -> Result<Vec<InventoryView>, StoreError>;

    /// Reservations in the order they were made, judged by the clock.
    async fn reservations(&self, filter: ReservationFilter) -> Result<Vec<Reservation>, StoreError>;

    /// Reservations whose time is over, the oldest first.
    async fn lapsed(&self, limit: u32) -> Result<Lapsed, StoreError>;

    /// Those who wait for an inventory or have an offer, in their order, each with its ordinal; judged by the clock.
    async fn waitlist(&self, filter: WaitFilter) -> Result<Vec<(u64, WaitView)>, StoreError>;

    /// Ends the wait of those whose pickup window has closed: nothing will be offered to them. How many, of at most `limit`.
    async fn close_waits(&self, limit: u32) -> Result<u64, StoreError>;

    /// What was told of reservations of these users: the [`LATEST`], those that are open and those that are known. Each with
    /// what was told after what is known of it, in order and at most `limit`; of a user of whom nothing is known, with the last.
    async fn told_to(&self, users: Vec<Follows>, limit: u32) -> Result<Vec<ToldTo>, StoreError>;
}
