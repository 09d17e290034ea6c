//! How a reservation was made, told by its own row.
//!
//! What a hot box does is to be reserved, and the row of a reservation says all of that: an event beside it would be the
//! larger half of what is written. So where nobody is notified, and a batch has done nothing else, each row carries what
//! only its event would know: its number in the order of events, whose request it was, and until when it was held at
//! first. Timelines, audits and the channels of users read the event from there, and cannot tell the difference. In any
//! other batch the events are written, in the order in which things happened.

use super::decide::{subject_of, subject_of_item};
use super::model::{PaymentStatus, Reservation, ReservationStatus};
use super::notify::Snapshot;
use crate::clock::Timestamp;
use crate::event::{Event, EventId, NewEvent};
use crate::id::ReservationId;
use crate::json::Json;

/// What the row of a new reservation has to say beyond itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Making {
    /// Whose row it is.
    pub id: ReservationId,
    /// Whose request it was.
    pub request_id: Option<String>,
    /// Until when it was held at first.
    pub until: Timestamp,
    /// The events of the batch that come before it.
    pub(super) behind: usize,
}

/// Whose rows tell something of a subject by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToldByRows<'a> {
    /// That of one reservation.
    Of(ReservationId),
    /// Those of the reservations of an inventory.
    OfInventory(&'a str),
}

impl<'a> ToldByRows<'a> {
    /// Of a subject; none if it is no such one.
    pub fn about(subject: &'a str) -> Option<Self> {
        match subject.split_once(':')? {
            ("reservation", id) => id.parse().ok().map(Self::Of),
            ("inventory", id) => Some(Self::OfInventory(id)),
            _ => None,
        }
    }
}

/// A page of a subject's events, of those that were written and those that rows tell of: each the first of their kind, in order.
pub fn page(mut events: Vec<Event>, rows: Vec<Event>, limit: u32) -> Vec<Event> {
    if !rows.is_empty() {
        events.extend(rows);
        events.sort_by_key(|event| event.id);
        events.truncate(limit as usize);
    }
    events
}

/// What became of a reservation, for it and for its inventory.
pub(super) fn told(reservation: &Reservation, event: &'static str) -> NewEvent {
    NewEvent {
        also: Some(subject_of_item(&reservation.box_inventory_id)),
        ..NewEvent::new(subject_of(reservation.id), event)
            .outcome("done")
            .details(Json::of(&Snapshot::of(reservation)))
    }
}

/// The event of a making, of a row as it is by now.
pub(super) fn making(row: &Reservation, request_id: Option<String>, until: Timestamp) -> NewEvent {
    let made = Reservation {
        status: ReservationStatus::Active,
        payment_status: PaymentStatus::Pending,
        expires_at: until,
        completed_at: None,
        cancelled_at: None,
        ..row.clone()
    };
    NewEvent { request_id, ..told(&made, "reserve") }
}

/// The event that a row tells of by itself, with its number among the others.
pub fn event_of_row(
    row: &Reservation,
    number: EventId,
    request_id: Option<String>,
    until: Timestamp,
) -> Event {
    Event { id: number, at: row.reserved_at, told: making(row, request_id, until) }
}
