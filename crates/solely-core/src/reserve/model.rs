//! Merchants, their boxes, and who has one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::pricing::Pricing;
use crate::clock::Timestamp;
use crate::id::ReservationId;

/// Someone who offers boxes. The unit of stock serialisation.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Merchant {
    /// Which one.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The zone of its daily times.
    pub timezone: String,
}

/// A kind of box of a merchant.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BoxType {
    /// Which one.
    pub id: String,
    /// Whose.
    pub merchant_id: String,
    /// Its name.
    pub name: String,
}

/// Boxes of one type for one pickup window.
///
/// `original = remaining + held + paid + collected + withdrawn`, always.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// Which one.
    pub id: String,
    /// Whose.
    pub merchant_id: String,
    /// Of what.
    pub box_type_id: String,
    /// Boxes there ever were.
    pub original: u32,
    /// Boxes that nobody has.
    pub remaining: u32,
    /// Boxes held or offered, and not paid; those whose time is over too, until they are given back.
    pub held: u32,
    /// Boxes paid and not collected.
    pub paid: u32,
    /// Boxes collected.
    pub collected: u32,
    /// Boxes taken out again.
    pub withdrawn: u32,
    /// What one costs, in the smallest unit of the currency.
    pub price: i64,
    /// In which currency.
    pub currency: String,
    /// How the price falls.
    pub pricing: Option<Pricing>,
    /// From when boxes are given out,
    pub pickup_start: Timestamp,
    /// and until when.
    pub pickup_end: Timestamp,
    /// Whether the merchant has closed it.
    pub closed: bool,
    /// Grows with every change.
    pub version: u64,
    /// Of `held`, those whose time is over. Not a column: counted when it is read.
    pub lapsed: u32,
    /// Those who wait for one and may have it: they come first. Not a column: counted when it is shown.
    pub waiting: u32,
    /// Whether anyone waits, or has an offer, at its merchant. Not a column: looked at when it is read.
    pub waited: bool,
}

/// What can be done with an inventory.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum InventoryStatus {
    /// It can be reserved.
    Active,
    /// Nothing is left.
    SoldOut,
    /// Its window is over.
    Expired,
    /// The merchant has closed it.
    Closed,
}

/// An inventory as clients see it at an instant.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InventoryView {
    /// Which one.
    pub id: String,
    /// Whose.
    pub merchant_id: String,
    /// Of what.
    pub box_type_id: String,
    /// Boxes there ever were.
    pub original_quantity: u32,
    /// What someone who walks in could take now.
    pub remaining_quantity: u32,
    /// What one costs at first.
    pub price: i64,
    /// What one costs now.
    pub current_price: i64,
    /// In which currency.
    pub currency: String,
    /// From when boxes are given out,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub pickup_start: Timestamp,
    /// and until when.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub pickup_end: Timestamp,
    /// What can be done with it.
    pub status: InventoryStatus,
    /// How the price falls.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub pricing: Option<Pricing>,
}

impl Inventory {
    /// Boxes that someone who walks in can have at this instant: those that nobody has, and those whose time is over,
    /// but for those that others wait for.
    pub fn free(&self) -> u32 {
        (self.remaining + self.lapsed).saturating_sub(self.waiting)
    }

    /// Whether boxes can be had of it at an instant, if there are any.
    pub fn is_open(&self, now: Timestamp) -> bool {
        !self.closed && now < self.pickup_end
    }

    /// What one costs at an instant.
    pub fn price_at(&self, now: Timestamp) -> i64 {
        self.pricing.as_ref().map_or(self.price, |pricing| pricing.price_at(self.price, self.pickup_end, now))
    }

    /// Whether every box is somewhere.
    pub fn adds_up(&self) -> bool {
        let all = [self.remaining, self.held, self.paid, self.collected, self.withdrawn];
        all.iter().map(|part| u64::from(*part)).sum::<u64>() == u64::from(self.original)
    }

    /// What can be done with it at an instant.
    pub fn status_at(&self, now: Timestamp) -> InventoryStatus {
        if self.closed {
            InventoryStatus::Closed
        } else if now >= self.pickup_end {
            InventoryStatus::Expired
        } else if self.free() == 0 {
            InventoryStatus::SoldOut
        } else {
            InventoryStatus::Active
        }
    }

    /// As clients see it at an instant.
    pub fn view(&self, now: Timestamp) -> InventoryView {
        InventoryView {
            id: self.id.clone(),
            merchant_id: self.merchant_id.clone(),
            box_type_id: self.box_type_id.clone(),
            original_quantity: self.original,
            remaining_quantity: self.free(),
            price: self.price,
            current_price: self.price_at(now),
            currency: self.currency.clone(),
            pickup_start: self.pickup_start,
            pickup_end: self.pickup_end,
            status: self.status_at(now),
            pricing: self.pricing.clone(),
        }
    }
}

/// Where a reservation stands.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ReservationStatus {
    /// Held or paid, while its time lasts.
    Active,
    /// Offered to someone who waited, while its time lasts.
    Offered,
    /// Collected.
    Completed,
    /// Given back.
    Cancelled,
    /// Its time is over.
    Expired,
}

impl ReservationStatus {
    /// Every status, by its code.
    pub const ALL: [Self; 5] = [Self::Active, Self::Offered, Self::Completed, Self::Cancelled, Self::Expired];

    /// Its number in the store. Those that may be live come first.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The status of a number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether time can still end it.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Active | Self::Offered)
    }
}

impl std::str::FromStr for ReservationStatus {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        serde_json::from_value(serde_json::Value::String(text.to_owned())).map_err(|_| ())
    }
}

impl std::str::FromStr for InventoryStatus {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        serde_json::from_value(serde_json::Value::String(text.to_owned())).map_err(|_| ())
    }
}

/// Whether it was paid.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum PaymentStatus {
    /// Not yet.
    Pending,
    /// Yes.
    Paid,
    /// Yes, and it was given back.
    Refunded,
}

impl PaymentStatus {
    /// Every status, by its code.
    pub const ALL: [Self; 3] = [Self::Pending, Self::Paid, Self::Refunded];

    /// Its number in the store.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The status of a number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Boxes that someone has, or had.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// Which one.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: ReservationId,
    /// Whose.
    pub user_id: String,
    /// At whom.
    pub merchant_id: String,
    /// Of what.
    pub box_inventory_id: String,
    /// Where it stands.
    pub status: ReservationStatus,
    /// Whether it was paid.
    pub payment_status: PaymentStatus,
    /// What is shown to collect it. Never logged.
    pub pickup_code: String,
    /// How many boxes.
    pub quantity: u32,
    /// What they cost together.
    pub total_amount: i64,
    /// In which currency.
    pub currency: String,
    /// Since when.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub reserved_at: Timestamp,
    /// Until when it is live.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub expires_at: Timestamp,
    /// When it was collected.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub completed_at: Option<Timestamp>,
    /// When it was given back.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub cancelled_at: Option<Timestamp>,
    /// What clients do not see.
    #[serde(skip)]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub inner: ReservationInner,
}

/// What clients do not see of a reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationInner {
    /// Whether it began as an offer.
    pub offered: bool,
    /// Wrong codes that were shown in a row.
    pub wrong_codes: u8,
    /// Until when no code is looked at.
    pub blocked_until: Timestamp,
}

impl Reservation {
    /// Whether time has ended it, though nobody may have written so yet.
    pub fn has_lapsed(&self, now: Timestamp) -> bool {
        self.status.is_open() && now >= self.expires_at
    }

    /// Whether its boxes are given back when its time is over.
    pub fn is_unpaid(&self) -> bool {
        self.payment_status == PaymentStatus::Pending
    }

    /// As clients see it at an instant: judged by the clock.
    pub fn at(mut self, now: Timestamp) -> Self {
        if self.has_lapsed(now) {
            self.status = ReservationStatus::Expired;
        }
        self
    }
}

/// How long holds last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldTimes {
    /// A hold that does not say,
    pub usual: Duration,
    /// the shortest,
    pub least: Duration,
    /// and the longest, also from when it was reserved.
    pub most: Duration,
    /// An offer to someone who waits.
    pub offer: Duration,
}
