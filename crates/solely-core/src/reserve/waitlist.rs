//! Waiting lists: the transaction that frees a box offers it to the first in line who may have one.
//!
//! ```text
//!            join                     a box is free, and it is the first who may have one
//!   (none) ───────▶ waiting ─────────────────────────────────────────────────▶ offered
//!                      │ leave                          accept ┌───────────────────┤ cancel, leave: passed on
//!                      ▼                                       ▼                   ▼ time is over: passed on
//!                     left                                   taken               passed
//! ```
//!
//! *What is true* are the rows: an entry that waits, or one that is offered together with its reservation, which is
//! `OFFERED`. *Who may have one* is whoever has no open reservation at the merchant; the others keep their place and
//! are passed over. *Whoever walks in* comes after all who wait and may have one: every request of a batch is followed
//! by offers of what it freed, before the next is decided.
//!
//! Where someone waits, a batch first writes what time has ended at that merchant, so that rows say what the clock
//! says: an engine reads those, whoever owns what is read and where they wait, and of each line as many as could be
//! offered a box ([`Books::waited_merchants`] and what follows it). Where nobody waits none of this is read.
//!
//! **If it dies**: a box is free, or offered, or held, in one commit with what freed it. There is no moment at which a
//! box is free and someone waits for it, but for holds whose time is over and that nobody has looked at since; whoever
//! looks, or the sweeper, offers them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::books::Books;
use super::decide::{Outcome, Rules, subject_of_item};
use super::model::{PaymentStatus, Reservation, ReservationInner, ReservationStatus};
use super::operation::{NewWait, Operation, Refusal, Request, Verdict};
use crate::clock::Timestamp;
use crate::event::NewEvent;
use crate::id::{ReservationId, WaitId};
use crate::json::Json;

/// Those who wait for one inventory.
pub const WAITING_MAX: u64 = 10_000;
/// Holds of a merchant whose time is over that one batch ends where someone waits.
pub const OVERDUE_MAX: u32 = 4_096;

/// Where an entry of a waiting list stands.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum WaitStatus {
    /// In line.
    Waiting,
    /// A box is offered.
    Offered,
    /// The offer was taken.
    Taken,
    /// It was left, or the offer was not wanted.
    Left,
    /// The offer's time is over.
    Passed,
}

impl WaitStatus {
    /// Every status, by its code.
    pub const ALL: [Self; 5] = [Self::Waiting, Self::Offered, Self::Taken, Self::Left, Self::Passed];

    /// Its number in the store. Those that are live come first.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The status of a number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether it is still in the list.
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Waiting | Self::Offered)
    }
}

/// An entry of a waiting list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Which one.
    pub id: WaitId,
    /// For what,
    pub inventory_id: String,
    /// whose it is,
    pub merchant_id: String,
    /// and who waits.
    pub user_id: String,
    /// Grows with every entry of a list: who has a smaller one comes first.
    pub ordinal: u64,
    /// Where it stands.
    pub status: WaitStatus,
    /// What was offered.
    pub reservation_id: Option<ReservationId>,
    /// Since when.
    pub created_at: Timestamp,
}

/// An entry of a waiting list, as clients see it.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitView {
    /// Which one.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: WaitId,
    /// Who waits.
    pub user_id: String,
    /// For what.
    pub inventory_id: String,
    /// Which place in line: 1 is the next. 0 once a box is offered.
    pub position: u64,
    /// `WAITING`, or `OFFERED`.
    pub status: WaitStatus,
    /// What is offered.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub reservation_id: Option<ReservationId>,
    /// Since when.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
}

/// How many wait for an inventory, and who is last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// How many are in line.
    pub waiting: u64,
    /// The greatest ordinal of a live entry.
    pub last: u64,
}

impl Wait {
    /// As clients see it, with so many ahead of it.
    pub fn view(&self, ahead: u64) -> WaitView {
        WaitView {
            id: self.id,
            user_id: self.user_id.clone(),
            inventory_id: self.inventory_id.clone(),
            position: if self.status == WaitStatus::Waiting { ahead + 1 } else { 0 },
            status: self.status,
            reservation_id: self.reservation_id,
            created_at: self.created_at,
        }
    }
}

/// What an engine reads where someone waits, in this order; each depends on what was read before it.
impl Books {
    /// Merchants at which someone waits, is about to, or has an offer.
    pub fn waited_merchants(&self) -> Vec<String> {
        let of_items =
            self.items.values().filter(|item| item.now.waited || self.joined.contains(&item.now.id));
        let of_waits = self.waits.values().map(|wait| &wait.now.merchant_id);
        let found: BTreeSet<&String> = of_items.map(|item| &item.now.merchant_id).chain(of_waits).collect();
        found.into_iter().cloned().collect()
    }

    /// A reservation at one of those merchants whose time is over: ended before anything is decided.
    pub fn overdue(&mut self, row: Reservation) {
        self.overdue.push(row.id);
        self.reservation(row);
    }

    /// The ids of those.
    pub fn all_overdue(&self) -> &[ReservationId] {
        &self.overdue
    }

    /// Merchants and users whose open reservations and live entries are needed: owners of what was read, and whoever asks.
    pub fn owners(&self) -> Vec<(String, String)> {
        let of_reservations = self.reservations.values().map(|one| (&one.now.merchant_id, &one.now.user_id));
        let of_waits = self.waits.values().map(|one| (&one.now.merchant_id, &one.now.user_id));
        let merchant = |item: &String| self.items.get(item).map(|item| &item.now.merchant_id);
        let of_buyers = self.buyers.iter().filter_map(|(item, user)| Some((merchant(item)?, user)));
        let all: BTreeSet<(&String, &String)> = of_reservations.chain(of_waits).chain(of_buyers).collect();
        all.into_iter().map(|(merchant, user)| (merchant.clone(), user.clone())).collect()
    }

    /// Inventories that are mentioned by what was read, and were not.
    pub fn missing_items(&self) -> Vec<String> {
        let of_reservations = self.reservations.values().map(|one| &one.now.box_inventory_id);
        let of_waits = self.waits.values().map(|one| &one.now.inventory_id);
        let all: BTreeSet<&String> = of_reservations.chain(of_waits).collect();
        all.into_iter().filter(|id| !self.items.contains_key(*id)).cloned().collect()
    }

    /// Inventories whose lines are needed, each with how many of those who may have a box at the most.
    pub fn lines_wanted(&self, requests: &[Request]) -> Vec<(String, u64)> {
        let merchants = self.waited_merchants();
        let at_them = self.items.values().filter(|item| merchants.contains(&item.now.merchant_id));
        let mut wanted: Vec<(String, u64)> = at_them
            .map(|item| {
                let of_it = |one: &&Reservation| one.box_inventory_id == item.now.id && one.status.is_open();
                let ending = self.reservations.values().map(|one| &one.now).filter(of_it);
                let ending: u64 = ending.map(|one| u64::from(one.quantity)).sum();
                let added = requests.iter().filter_map(|request| match &request.operation {
                    Operation::Change(change) if change.inventory_id == item.now.id => {
                        Some(change.add.max(0))
                    }
                    _ => None,
                });
                let added: u64 = added.map(i64::unsigned_abs).sum();
                // Those who take something else meanwhile are passed over.
                let most = u64::from(item.now.remaining) + ending + added + requests.len() as u64;
                (item.now.id.clone(), most.min(WAITING_MAX))
            })
            .collect();
        wanted.sort();
        wanted
    }

    /// An entry that is there. Those of one line may be read in any order.
    pub fn wait(&mut self, row: Wait) {
        self.stand(&row);
        self.waits.entry(row.id).or_insert_with(|| super::books::Kept::read(row));
    }

    /// How many wait for an inventory that someone joins.
    pub fn line(&mut self, item: String, line: Line) {
        self.lines_known.insert(item, line);
    }

    /// How many are ahead of an entry of someone who joins once more.
    pub fn ahead(&mut self, id: WaitId, ahead: u64) {
        self.ahead.insert(id, ahead);
    }

    fn stand(&mut self, row: &Wait) {
        if row.status.is_live() {
            let whose = (row.merchant_id.clone(), row.user_id.clone());
            self.waits_of.entry(whose).or_default().insert(row.id);
        }
        if row.status == WaitStatus::Waiting {
            self.lines.entry(row.inventory_id.clone()).or_default().insert(row.ordinal, row.id);
        }
    }
}

impl Books {
    /// Ends what time has ended at merchants where someone waits, and offers what is free there.
    pub(super) fn begin(&mut self, rules: &Rules) {
        for id in std::mem::take(&mut self.overdue) {
            if self.reservations.get(&id).is_some_and(|one| one.now.has_lapsed(self.now)) {
                self.expire(id);
            }
        }
        self.freed.extend(self.lines.keys().cloned());
        self.offer_freed(None, rules);
    }

    /// Boxes of this inventory may be free, or someone may have one now.
    pub(super) fn ended(&mut self, reservation: &Reservation) {
        let whose = (reservation.merchant_id.clone(), reservation.user_id.clone());
        self.open.remove(&whose);
        if let Some(waits) = self.waits_of.get(&whose) {
            let waits = waits.iter().filter_map(|id| self.waits.get(id));
            self.freed.extend(waits.map(|wait| wait.now.inventory_id.clone()));
        }
        if self.lines.contains_key(&reservation.box_inventory_id) {
            self.freed.insert(reservation.box_inventory_id.clone());
        }
        if reservation.inner.offered {
            let to = match reservation.status {
                ReservationStatus::Cancelled => WaitStatus::Left,
                ReservationStatus::Expired => WaitStatus::Passed,
                _ => WaitStatus::Taken,
            };
            self.close_offer(reservation, to);
        }
    }

    /// The entry of an offer is not in the list any more.
    fn close_offer(&mut self, reservation: &Reservation, to: WaitStatus) {
        let whose = (reservation.merchant_id.clone(), reservation.user_id.clone());
        let Some(waits) = self.waits_of.get_mut(&whose) else { return };
        let of_it = |id: &&WaitId| {
            let wait = self.waits.get(*id).map(|wait| &wait.now);
            wait.is_some_and(|wait| {
                wait.status == WaitStatus::Offered && wait.reservation_id == Some(reservation.id)
            })
        };
        let Some(id) = waits.iter().find(of_it).copied() else { return };
        waits.remove(&id);
        if let Some(wait) = self.waits.get_mut(&id) {
            wait.now.status = to;
        }
    }

    /// Offers what is free to those who wait for it, in their order.
    pub(super) fn offer_freed(&mut self, cause: Option<&Request>, rules: &Rules) {
        while let Some(item) = self.freed.pop_first() {
            while let Some(id) = self.next_in_line(&item) {
                self.offer(id, cause, rules);
            }
        }
    }

    /// The first in line who may have a box, if there is one to be had.
    fn next_in_line(&self, item: &str) -> Option<WaitId> {
        let line = self.lines.get(item)?;
        let there = &self.items.get(item)?.now;
        if there.remaining == 0 || !there.is_open(self.now) {
            return None;
        }
        let may = |id: &&WaitId| {
            let wait = self.waits.get(*id).map(|wait| &wait.now);
            wait.is_some_and(|wait| {
                !self.open.contains_key(&(wait.merchant_id.clone(), wait.user_id.clone()))
            })
        };
        line.values().find(may).copied()
    }

    fn offer(&mut self, id: WaitId, cause: Option<&Request>, rules: &Rules) {
        let Some(wait) = self.waits.get_mut(&id).map(|wait| &mut wait.now) else { return };
        let Some(item) = self.items.get_mut(&wait.inventory_id).map(|item| &mut item.now) else { return };
        let (reservation_id, pickup_code) = (rules.mint)();
        item.remaining -= 1;
        item.held += 1;
        let offer = Reservation {
            id: reservation_id,
            user_id: wait.user_id.clone(),
            merchant_id: wait.merchant_id.clone(),
            box_inventory_id: wait.inventory_id.clone(),
            status: ReservationStatus::Offered,
            payment_status: PaymentStatus::Pending,
            pickup_code,
            quantity: 1,
            total_amount: item.price_at(self.now),
            currency: item.currency.clone(),
            reserved_at: self.now,
            expires_at: self.now.plus(rules.times.offer).min(item.pickup_end),
            completed_at: None,
            cancelled_at: None,
            inner: ReservationInner { offered: true, ..ReservationInner::default() },
        };
        wait.status = WaitStatus::Offered;
        wait.reservation_id = Some(offer.id);
        let (item, ordinal) = (wait.inventory_id.clone(), wait.ordinal);
        self.step_out(&item, ordinal);
        self.add_reservation(offer.clone());
        let own = Request::new(Operation::Expire(offer.id));
        self.tell_of(&offer, "offer", cause.unwrap_or(&own));
    }

    /// Someone is not in line any more.
    fn step_out(&mut self, item: &str, ordinal: u64) {
        if let Some(line) = self.lines.get_mut(item) {
            line.remove(&ordinal);
        }
        if let Some(known) = self.lines_known.get_mut(item) {
            known.waiting = known.waiting.saturating_sub(1);
        }
        for (id, ahead) in &mut self.ahead {
            let behind = self.waits.get(id).map(|wait| &wait.now);
            if behind.is_some_and(|wait| wait.inventory_id == item && wait.ordinal > ordinal) {
                *ahead = ahead.saturating_sub(1);
            }
        }
    }

    pub(super) fn join(&mut self, new: &NewWait, request: &Request, rules: &Rules) -> Outcome<Verdict> {
        let item = &self.items.get(&new.inventory_id).ok_or(Refusal::BoxNotFound)?.now;
        if self.now >= item.pickup_end {
            return Err(Refusal::PickupWindowClosed);
        }
        let merchant_id = item.merchant_id.clone();
        let known = self.waits_of.get(&(merchant_id.clone(), new.user_id.clone()));
        let of_it =
            |id: &&WaitId| self.waits.get(*id).is_some_and(|wait| wait.now.inventory_id == new.inventory_id);
        if let Some(id) = known.and_then(|waits| waits.iter().find(of_it)).copied() {
            return self.shown(id);
        }
        if item.closed {
            return Err(Refusal::BoxUnavailable);
        }
        let line = self.lines_known.entry(new.inventory_id.clone()).or_default();
        if line.waiting >= WAITING_MAX {
            return Err(Refusal::WaitlistFull);
        }
        // By the clock, so that it also grows from one who has left to the next.
        let by_clock = u64::try_from(self.now.as_millis()).unwrap_or(0) << 12;
        let ahead = line.waiting;
        line.waiting += 1;
        line.last = by_clock.max(line.last + 1);
        let wait = Wait {
            id: new.id,
            inventory_id: new.inventory_id.clone(),
            merchant_id,
            user_id: new.user_id.clone(),
            ordinal: line.last,
            status: WaitStatus::Waiting,
            reservation_id: None,
            created_at: self.now,
        };
        self.ahead.insert(wait.id, ahead);
        self.stand(&wait);
        self.waits.insert(wait.id, super::books::Kept::made(wait));
        self.tell_wait(&new.inventory_id, &new.user_id, "join", request);
        self.freed.insert(new.inventory_id.clone());
        self.offer_freed(Some(request), rules);
        self.shown(new.id)
    }

    fn shown(&self, id: WaitId) -> Outcome<Verdict> {
        let wait = &self.waits.get(&id).ok_or(Refusal::WaitNotFound)?.now;
        Ok(Verdict::Wait(wait.view(self.ahead.get(&id).copied().unwrap_or(0))))
    }

    pub(super) fn leave(&mut self, id: WaitId, request: &Request) -> Outcome<Verdict> {
        let wait = self.waits.get(&id).ok_or(Refusal::WaitNotFound)?.now.clone();
        if request.only_of.as_ref().is_some_and(|user| *user != wait.user_id) {
            return Err(Refusal::NotYours);
        }
        match (wait.status, wait.reservation_id) {
            (WaitStatus::Left | WaitStatus::Passed, _) => {}
            (WaitStatus::Taken, _) => return Err(Refusal::InvalidState),
            (WaitStatus::Offered, Some(offer)) => match self.cancel(offer, request) {
                Ok(_) | Err(Refusal::ReservationExpired) => {}
                Err(refusal) => return Err(refusal),
            },
            (WaitStatus::Waiting | WaitStatus::Offered, _) => {
                if let Some(wait) = self.waits.get_mut(&id) {
                    wait.now.status = WaitStatus::Left;
                }
                let whose = (wait.merchant_id.clone(), wait.user_id.clone());
                if let Some(waits) = self.waits_of.get_mut(&whose) {
                    waits.remove(&id);
                }
                self.step_out(&wait.inventory_id, wait.ordinal);
                self.tell_wait(&wait.inventory_id, &wait.user_id, "leave", request);
            }
        }
        self.shown(id)
    }

    pub(super) fn accept(
        &mut self,
        id: ReservationId,
        request: &Request,
        rules: &Rules,
    ) -> Outcome<Reservation> {
        let (now, found) = (self.now, self.of_owner(id, request)?);
        match found.status {
            _ if found.has_lapsed(now) => return Err(Refusal::ReservationExpired),
            ReservationStatus::Offered => {}
            ReservationStatus::Active if found.inner.offered => return Ok(found.clone()),
            status => return Err(super::decide::ended(status)),
        }
        let until = now.plus(rules.times.usual).min(self.item_of(id)?.pickup_end);
        let accepted = self.write(id, "accept", request, |found| {
            found.status = ReservationStatus::Active;
            found.reserved_at = now;
            found.expires_at = until;
        })?;
        self.close_offer(&accepted, WaitStatus::Taken);
        Ok(accepted)
    }

    fn tell_wait(&mut self, item: &str, user: &str, event: &'static str, request: &Request) {
        let details = Json::of(&serde_json::json!({"userId": user}));
        self.tell(NewEvent::new(subject_of_item(item), event).outcome("done").details(details), request);
    }
}
