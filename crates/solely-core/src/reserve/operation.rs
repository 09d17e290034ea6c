//! What is asked of reserve, and what comes of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::model::{BoxType, InventoryView, Merchant, Reservation};
use super::pricing::Pricing;
use super::waitlist::WaitView;
use super::window::Window;
use crate::id::{ReservationId, WaitId};

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A merchant is made.
    CreateMerchant(Merchant),
    /// A kind of box is made.
    CreateBoxType(BoxType),
    /// Boxes are put on offer.
    CreateInventory(NewInventory),
    /// Boxes are added or taken out; it is closed or opened.
    Change(Change),
    /// Boxes are held.
    Reserve(NewReservation),
    /// A hold is paid.
    Confirm(ReservationId),
    /// Boxes are collected, by showing a code.
    Collect {
        /// Whose.
        id: ReservationId,
        /// What was shown.
        code: String,
    },
    /// Boxes are given back.
    Cancel(ReservationId),
    /// A hold lasts longer.
    Extend {
        /// Which one.
        id: ReservationId,
        /// How long from now; the usual time if it does not say.
        ttl: Option<Duration>,
    },
    /// An offer is taken.
    Accept(ReservationId),
    /// Its time is over: housekeeping.
    Expire(ReservationId),
    /// Someone waits for a box.
    Join(NewWait),
    /// Someone waits no longer, or does not want what was offered.
    Leave(WaitId),
}

/// Someone who is to wait for a box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewWait {
    /// The id of the place in the line.
    pub id: WaitId,
    /// Who.
    pub user_id: String,
    /// For what.
    pub inventory_id: String,
}

/// Boxes to be put on offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewInventory {
    /// Its id.
    pub id: String,
    /// Of what.
    pub box_type_id: String,
    /// How many.
    pub quantity: u32,
    /// What one costs.
    pub price: i64,
    /// In which currency.
    pub currency: String,
    /// When they are given out.
    pub window: Window,
    /// How the price falls.
    pub pricing: Option<Pricing>,
}

/// What is to become of an inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which one.
    pub inventory_id: String,
    /// Boxes more, or fewer.
    pub add: i64,
    /// Whether it is closed from now on.
    pub closed: Option<bool>,
}

/// Boxes to be held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewReservation {
    /// The reservation's id, made beforehand: it can be looked for when an answer was lost.
    pub id: ReservationId,
    /// The code to collect it.
    pub pickup_code: String,
    /// For whom.
    pub user_id: String,
    /// Of what.
    pub inventory_id: String,
    /// How long; the usual time if it does not say.
    pub ttl: Option<Duration>,
    /// How many.
    pub quantity: u32,
    /// The most that one may cost.
    pub max_price: Option<i64>,
}

/// What makes a request the same as another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey {
    /// Whose, and of which operation.
    pub scope: String,
    /// As it was given.
    pub key: String,
}

/// An operation, and who asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is to be done.
    pub operation: Operation,
    /// Whose it must be, where only its owner may.
    pub only_of: Option<String>,
    /// What makes it the same as another, with a digest of all that was asked.
    pub idempotency: Option<(IdempotencyKey, String)>,
    /// The request that it is of.
    pub request_id: Option<String>,
}

impl Request {
    /// A request that nobody repeats.
    pub fn new(operation: Operation) -> Self {
        Self { operation, only_of: None, idempotency: None, request_id: None }
    }
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// What.
    pub verdict: Verdict,
    /// Whether it was decided before, for the same key.
    pub replayed: bool,
}

/// What was decided. Kept as text with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// A merchant, as it is.
    Merchant(Merchant),
    /// A kind of box, as it is.
    BoxType(BoxType),
    /// An inventory, as it is now.
    Inventory(InventoryView),
    /// A reservation, as it is now.
    Reservation(Reservation),
    /// A place in a waiting list, as it is now.
    Wait(WaitView),
    /// No.
    Refused(Refusal),
}

/// Why not. Each has a code that clients know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Refusal {
    /// There is no such merchant.
    MerchantNotFound,
    /// There is no such kind of box.
    BoxTypeNotFound,
    /// There is no such inventory.
    BoxNotFound,
    /// There is no such reservation.
    ReservationNotFound,
    /// There is no such place in a waiting list.
    WaitNotFound,
    /// As many wait as may.
    WaitlistFull,
    /// The id is taken by something else.
    AlreadyExists,
    /// What was asked for cannot be.
    Invalid(String),
    /// The pickup window is over.
    PickupWindowClosed,
    /// It is closed, or nothing is left.
    BoxUnavailable,
    /// The user has one at this merchant.
    ActiveReservationExists,
    /// There are fewer left.
    InsufficientInventory,
    /// It costs more by now.
    PriceChanged,
    /// Its time is over.
    ReservationExpired,
    /// It was given back.
    AlreadyCancelled,
    /// It was collected.
    AlreadyCompleted,
    /// Its state does not allow this.
    InvalidState,
    /// That is not the code.
    WrongCode,
    /// Too many wrong codes; no more for so many milliseconds.
    TooManyCodes(u64),
    /// It is another user's.
    NotYours,
    /// The key was used for something else.
    IdempotencyKeyReused,
    /// The key's first request is under way.
    IdempotencyInProgress,
}

impl Refusal {
    /// Its code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::MerchantNotFound => "MERCHANT_NOT_FOUND",
            Self::BoxTypeNotFound => "BOX_TYPE_NOT_FOUND",
            Self::BoxNotFound => "BOX_NOT_FOUND",
            Self::ReservationNotFound => "RESERVATION_NOT_FOUND",
            Self::WaitNotFound => "WAITLIST_ENTRY_NOT_FOUND",
            Self::WaitlistFull => "WAITLIST_FULL",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::Invalid(_) => "INVALID_REQUEST",
            Self::PickupWindowClosed => "PICKUP_WINDOW_CLOSED",
            Self::BoxUnavailable => "BOX_UNAVAILABLE",
            Self::ActiveReservationExists => "ACTIVE_RESERVATION_EXISTS",
            Self::InsufficientInventory => "INSUFFICIENT_INVENTORY",
            Self::PriceChanged => "PRICE_CHANGED",
            Self::ReservationExpired => "RESERVATION_EXPIRED",
            Self::AlreadyCancelled => "ALREADY_CANCELLED",
            Self::AlreadyCompleted => "ALREADY_COMPLETED",
            Self::InvalidState => "INVALID_STATE",
            Self::WrongCode => "WRONG_CODE",
            Self::TooManyCodes(_) => "TOO_MANY_REQUESTS",
            Self::NotYours => "FORBIDDEN",
            Self::IdempotencyKeyReused => "IDEMPOTENCY_KEY_REUSED",
            Self::IdempotencyInProgress => "IDEMPOTENCY_IN_PROGRESS",
        }
    }

    /// A sentence for people. Those of the document are the document's.
    pub fn message(&self) -> String {
        let text = match self {
            Self::MerchantNotFound => "There is no such merchant.",
            Self::BoxTypeNotFound => "There is no such box type.",
            Self::BoxNotFound => "The selected box is no longer available.",
            Self::ReservationNotFound => "There is no such reservation.",
            Self::WaitNotFound => "There is no such place in a waiting list.",
            Self::WaitlistFull => "As many wait for this as may. Please try again later.",
            Self::AlreadyExists => "There is something else with this id.",
            Self::Invalid(why) => return why.clone(),
            Self::PickupWindowClosed => "The pickup window for this box has closed.",
            Self::BoxUnavailable | Self::InsufficientInventory => "This box is no longer available.",
            Self::ActiveReservationExists => "You already have an active reservation with this merchant.",
            Self::PriceChanged => "The price of this box is higher than the one you agreed to.",
            Self::ReservationExpired => "This reservation has expired.",
            Self::AlreadyCancelled => "This reservation was cancelled.",
            Self::AlreadyCompleted => "This reservation was collected.",
            Self::InvalidState => "The reservation's state does not allow this.",
            Self::WrongCode => "This is not the reservation's pickup code.",
            Self::TooManyCodes(_) => "Too many wrong codes were shown. Please try again later.",
            Self::NotYours => "This is another user's.",
            Self::IdempotencyKeyReused => "This Idempotency-Key was used for another request.",
            Self::IdempotencyInProgress => "The first request with this Idempotency-Key is still under way.",
        };
        text.to_owned()
    }

    /// Whether it is kept with an idempotency key: what may be otherwise the next time is not.
    pub fn is_kept(&self) -> bool {
        !matches!(self, Self::TooManyCodes(_) | Self::IdempotencyKeyReused | Self::IdempotencyInProgress)
    }
}
