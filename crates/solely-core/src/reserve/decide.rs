//! Deciding a batch: each request in its order, on what those before it left.
//!
//! Pure. A request that is refused changes nothing, but that holds whose time is over may have been given back on
//! the way, which is true anyway.

use std::collections::HashSet;
use std::time::Duration;

use super::books::Books;
use super::making::{self, Making};
use super::model::{HoldTimes, Inventory, PaymentStatus, Reservation, ReservationInner, ReservationStatus};
use super::operation::{Change, Decided, NewInventory, NewReservation, Operation, Refusal, Request, Verdict};
use crate::access::same_secret;
use crate::event::NewEvent;
use crate::fault::{Guard, Guards};
use crate::id::ReservationId;
use crate::json::Json;

/// Wrong codes that may be shown in a row.
const WRONG_CODES_MAX: u8 = 5;
/// How long no code is looked at after that.
const CODES_BLOCKED: Duration = Duration::from_secs(300);
/// Units of one inventory.
pub const UNITS_MAX: u32 = 10_000_000;

/// A refusal that is told once a minute: of which inventory or reservation, to whom, of what, and why.
pub type ToldOf = (String, String, &'static str, &'static str);

/// Refusals that were told within the minute. Clones share them.
#[derive(Clone)]
pub struct Told(moka::sync::Cache<ToldOf, ()>);

/// Refusals that a process remembers to have told.
const TOLD_MAX: u64 = 100_000;
/// A refusal is told once in this time.
const TELL_EVERY: Duration = Duration::from_secs(60);

impl Default for Told {
    fn default() -> Self {
        Self(moka::sync::Cache::builder().max_capacity(TOLD_MAX).time_to_live(TELL_EVERY).build())
    }
}

impl Told {
    /// One was told, and that is true by now. One that was not told again is remembered no longer for it.
    pub fn remember(&self, of: ToldOf) {
        self.0.entry(of).or_insert(());
    }
}

/// What a batch is decided by.
#[derive(Clone)]
pub struct Rules {
    /// How long holds last.
    pub times: HoldTimes,
    /// Guards that may be open in a fault test.
    pub guards: Guards,
    /// Refusals that were told a short while ago.
    pub told: Told,
    /// The id and the code of an offer that is made.
    pub mint: fn() -> (ReservationId, String),
    /// Whether what becomes of reservations is to be delivered ([`super::notify`]).
    pub notify: bool,
    /// How long a batch waits for a merchant that others have hold of.
    pub lock_wait: Duration,
}

/// How long a batch waits for a merchant at the most.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(4);

impl Rules {
    /// The usual ones.
    pub fn new(times: HoldTimes) -> Self {
        let mint = || (ReservationId::new(), super::pickup_code());
        let (guards, told) = (Guards::all(), Told::default());
        Self { times, guards, told, mint, notify: false, lock_wait: LOCK_WAIT_MAX }
    }

    /// The same, for those who wait so long for their turn.
    pub fn patient_for(self, patience: Duration) -> Self {
        Self { lock_wait: patience.min(LOCK_WAIT_MAX), ..self }
    }
}

pub(super) type Outcome<T> = Result<T, Refusal>;

impl Books {
    /// Decides requests in their order.
    pub fn decide(&mut self, requests: &[Request], rules: &Rules) -> Vec<Decided> {
        let mut told = HashSet::new();
        self.notify = rules.notify;
        self.begin(rules);
        let mut decided = Vec::with_capacity(requests.len());
        for request in requests {
            decided.push(self.decide_one(request, rules, &mut told));
            // What it has freed is offered to those who wait before the next is decided.
            self.offer_freed(Some(request), rules);
        }
        self.settle_makings();
        decided
    }

    fn decide_one(&mut self, request: &Request, rules: &Rules, told: &mut HashSet<ToldOf>) -> Decided {
        let fresh = |verdict| Decided { verdict, replayed: false };
        if let Some((key, digest)) = &request.idempotency {
            match self.keys.get(key) {
                Some((first, verdict)) if first == digest => {
                    return Decided { verdict: verdict.clone(), replayed: true };
                }
                Some(_) => {
                    let refusal = Refusal::IdempotencyKeyReused;
                    self.tell_refusal(request, &refusal, rules, told);
                    return fresh(Verdict::Refused(refusal));
                }
                None if self.busy.contains(key) => {
                    return fresh(Verdict::Refused(Refusal::IdempotencyInProgress));
                }
                None => {}
            }
        }
        let verdict = self.verdict(request, rules).unwrap_or_else(Verdict::Refused);
        if let Verdict::Refused(refusal) = &verdict {
            self.tell_refusal(request, refusal, rules, told);
        }
        let kept = !matches!(&verdict, Verdict::Refused(refusal) if !refusal.is_kept());
        if let (Some((key, digest)), true) = (&request.idempotency, kept) {
            self.keys.insert(key.clone(), (digest.clone(), verdict.clone()));
            self.new_keys.push((key.clone(), digest.clone(), verdict.clone()));
        }
        fresh(verdict)
    }

    fn verdict(&mut self, request: &Request, rules: &Rules) -> Outcome<Verdict> {
        let reservation = |found: Outcome<Reservation>| found.map(Verdict::Reservation);
        match &request.operation {
            Operation::CreateMerchant(merchant) => match self.merchants.get(&merchant.id) {
                Some(found) if found.now == *merchant => Ok(Verdict::Merchant(merchant.clone())),
                Some(_) => Err(Refusal::AlreadyExists),
                None => {
                    self.add_merchant(merchant.clone());
                    Ok(Verdict::Merchant(merchant.clone()))
                }
            },
            Operation::CreateBoxType(made) => {
                self.merchants.get(&made.merchant_id).ok_or(Refusal::MerchantNotFound)?;
                match self.box_types.get(&made.id) {
                    Some(found) if found.now == *made => Ok(Verdict::BoxType(made.clone())),
                    Some(_) => Err(Refusal::AlreadyExists),
                    None => {
                        self.add_box_type(made.clone());
                        Ok(Verdict::BoxType(made.clone()))
                    }
                }
            }
            Operation::CreateInventory(made) => self.create_inventory(made, request),
            Operation::Change(change) => self.change(change, request, rules),
            Operation::Reserve(new) => reservation(self.reserve(new, request, rules)),
            Operation::Confirm(id) => reservation(self.confirm(*id, request)),
            Operation::Collect { id, code } => reservation(self.collect(*id, code, request)),
            Operation::Cancel(id) => reservation(self.cancel(*id, request)),
            Operation::Extend { id, ttl } => reservation(self.extend(*id, *ttl, request, rules)),
            Operation::Expire(id) => {
                let found = self.reservations.get(id).ok_or(Refusal::ReservationNotFound)?;
                if found.now.has_lapsed(self.now) {
                    self.expire(*id);
                } else if !self.has_ended(*id) {
                    return Err(Refusal::InvalidState);
                }
                reservation(Ok(self.of(*id)?.clone()))
            }
            Operation::Accept(id) => reservation(self.accept(*id, request, rules)),
            Operation::Join(new) => self.join(new, request, rules),
            Operation::Leave(id) => self.leave(*id, request),
        }
    }

    fn create_inventory(&mut self, made: &NewInventory, request: &Request) -> Outcome<Verdict> {
        let box_type = self.box_types.get(&made.box_type_id).ok_or(Refusal::BoxTypeNotFound)?.now.clone();
        let merchant = self.merchants.get(&box_type.merchant_id).ok_or(Refusal::MerchantNotFound)?;
        let invalid = |why: &str| Refusal::Invalid(why.to_owned());
        let (pickup_start, pickup_end) = made
            .window
            .instants(&merchant.now.timezone)
            .ok_or_else(|| invalid("The pickup window cannot be told in the merchant's time zone."))?;
        if pickup_start >= pickup_end {
            return Err(invalid("`pickupEnd` is after `pickupStart`"));
        }
        if let Some(problem) =
            made.pricing.as_ref().and_then(|pricing| pricing.problem(made.price, pickup_end))
        {
            return Err(Refusal::Invalid(problem));
        }
        let item = Inventory {
            id: made.id.clone(),
            merchant_id: box_type.merchant_id,
            box_type_id: box_type.id,
            original: made.quantity,
            remaining: made.quantity,
            held: 0,
            paid: 0,
            collected: 0,
            withdrawn: 0,
            price: made.price,
            currency: made.currency.clone(),
            pricing: made.pricing.clone(),
            pickup_start,
            pickup_end,
            closed: false,
            version: 1,
            lapsed: 0,
            waiting: 0,
            waited: false,
        };
        if let Some(found) = self.items.get(&made.id) {
            let there = &found.now;
            // How many there were at first is known until something has changed.
            let same = (there.original == item.original || there.version > item.version)
                && there.box_type_id == item.box_type_id
                && (there.price, &there.currency, &there.pricing)
                    == (item.price, &item.currency, &item.pricing)
                && (there.pickup_start, there.pickup_end) == (pickup_start, pickup_end);
            return if same {
                Ok(Verdict::Inventory(there.view(self.now)))
            } else {
                Err(Refusal::AlreadyExists)
            };
        }
        let details =
            serde_json::json!({"quantity": item.original, "price": item.price, "currency": item.currency});
        self.tell(NewEvent::new(subject_of_item(&item.id), "create").details(Json::of(&details)), request);
        let view = item.view(self.now);
        self.add_item(item);
        Ok(Verdict::Inventory(view))
    }

    fn change(&mut self, change: &Change, request: &Request, rules: &Rules) -> Outcome<Verdict> {
        let units = u32::try_from(change.add.unsigned_abs())
            .map_err(|_| Refusal::Invalid("`addQuantity` is too large".to_owned()))?;
        if !self.items.contains_key(&change.inventory_id) {
            return Err(Refusal::BoxNotFound);
        }
        if change.add < 0 {
            self.give_back(&change.inventory_id, units);
            self.offer_freed(Some(request), rules);
        }
        let item = &mut self.items.get_mut(&change.inventory_id).ok_or(Refusal::BoxNotFound)?.now;
        if change.add < 0 {
            if item.remaining < units {
                return Err(Refusal::InsufficientInventory);
            }
            item.remaining -= units;
            item.withdrawn += units;
        } else {
            let fits = item.original.checked_add(units).filter(|all| *all <= UNITS_MAX);
            item.original =
                fits.ok_or_else(|| Refusal::Invalid(format!("an inventory has at most {UNITS_MAX} boxes")))?;
            item.remaining += units;
        }
        item.closed = change.closed.unwrap_or(item.closed);
        let details = serde_json::json!({"addQuantity": change.add, "closed": change.closed});
        let told = NewEvent::new(subject_of_item(&change.inventory_id), "change").details(Json::of(&details));
        self.tell(told, request);
        self.freed.insert(change.inventory_id.clone());
        self.offer_freed(Some(request), rules);
        let changed = &self.items.get(&change.inventory_id).ok_or(Refusal::BoxNotFound)?.now;
        Ok(Verdict::Inventory(changed.view(self.now)))
    }

    fn reserve(&mut self, new: &NewReservation, request: &Request, rules: &Rules) -> Outcome<Reservation> {
        let item = &self.items.get(&new.inventory_id).ok_or(Refusal::BoxNotFound)?.now;
        if self.now >= item.pickup_end {
            return Err(Refusal::PickupWindowClosed);
        }
        let owner = (item.merchant_id.clone(), new.user_id.clone());
        // The caller's own hold at this merchant, if its time is over: it stands in nobody's way.
        if let Some(own) = self.open.get(&owner).copied()
            && self.reservations.get(&own).is_some_and(|own| own.now.has_lapsed(self.now))
        {
            self.expire(own);
        }
        self.give_back(&new.inventory_id, new.quantity);
        self.offer_freed(Some(request), rules);
        let (now, times) = (self.now, rules.times);
        let one_active = rules.guards.hold(Guard::OneActive) && self.open.contains_key(&owner);
        let item = &mut self.items.get_mut(&new.inventory_id).ok_or(Refusal::BoxNotFound)?.now;
        if item.closed || item.remaining == 0 {
            return Err(Refusal::BoxUnavailable);
        }
        if one_active {
            return Err(Refusal::ActiveReservationExists);
        }
        if item.remaining < new.quantity {
            return Err(Refusal::InsufficientInventory);
        }
        let price = item.price_at(now);
        if new.max_price.is_some_and(|most| price > most) {
            return Err(Refusal::PriceChanged);
        }
        item.remaining -= new.quantity;
        item.held += new.quantity;
        let reservation = Reservation {
            id: new.id,
            user_id: new.user_id.clone(),
            merchant_id: item.merchant_id.clone(),
            box_inventory_id: item.id.clone(),
            status: ReservationStatus::Active,
            payment_status: PaymentStatus::Pending,
            pickup_code: new.pickup_code.clone(),
            quantity: new.quantity,
            total_amount: price.saturating_mul(i64::from(new.quantity)),
            currency: item.currency.clone(),
            reserved_at: now,
            expires_at: now.plus(new.ttl.unwrap_or(times.usual)).min(item.pickup_end),
            completed_at: None,
            cancelled_at: None,
            inner: ReservationInner::default(),
        };
        self.add_reservation(reservation.clone());
        if self.notify {
            self.tell_of(&reservation, "reserve", request);
        } else {
            let (id, until, behind) = (reservation.id, reservation.expires_at, self.events.len());
            self.makings.push(Making { id, request_id: request.request_id.clone(), until, behind });
        }
        Ok(reservation)
    }

    fn confirm(&mut self, id: ReservationId, request: &Request) -> Outcome<Reservation> {
        let (now, found) = (self.now, self.of_owner(id, request)?);
        match (found.status, found.payment_status) {
            _ if found.has_lapsed(now) => return Err(Refusal::ReservationExpired),
            (ReservationStatus::Active, PaymentStatus::Paid) => return Ok(found.clone()),
            (ReservationStatus::Active, PaymentStatus::Pending) => {}
            (status, _) => return Err(ended(status)),
        }
        let quantity = found.quantity;
        let item = self.item_of(id)?;
        item.held -= quantity;
        item.paid += quantity;
        let pickup_end = item.pickup_end;
        self.write(id, "confirm", request, |found| {
            found.payment_status = PaymentStatus::Paid;
            found.expires_at = pickup_end;
        })
    }

    fn collect(&mut self, id: ReservationId, code: &str, request: &Request) -> Outcome<Reservation> {
        let (now, found) = (self.now, self.of_owner(id, request)?);
        if now < found.inner.blocked_until {
            let left = found.inner.blocked_until.since(now);
            return Err(Refusal::TooManyCodes(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)));
        }
        if !same_secret(&normal(code), &normal(&found.pickup_code)) {
            let inner = &mut self.reservations.get_mut(&id).ok_or(Refusal::ReservationNotFound)?.now.inner;
            inner.wrong_codes += 1;
            if inner.wrong_codes >= WRONG_CODES_MAX {
                inner.wrong_codes = 0;
                inner.blocked_until = now.plus(CODES_BLOCKED);
            }
            return Err(Refusal::WrongCode);
        }
        match found.status {
            _ if found.has_lapsed(now) => return Err(Refusal::ReservationExpired),
            ReservationStatus::Active => {}
            ReservationStatus::Completed => return Ok(found.clone()),
            status => return Err(ended(status)),
        }
        let (quantity, unpaid) = (found.quantity, found.is_unpaid());
        let item = self.item_of(id)?;
        if unpaid {
            item.held -= quantity;
        } else {
            item.paid -= quantity;
        }
        item.collected += quantity;
        self.write(id, "collect", request, |found| {
            found.status = ReservationStatus::Completed;
            found.payment_status = PaymentStatus::Paid;
            found.completed_at = Some(now);
            found.inner.wrong_codes = 0;
        })
    }

    pub(super) fn cancel(&mut self, id: ReservationId, request: &Request) -> Outcome<Reservation> {
        let (now, found) = (self.now, self.of_owner(id, request)?);
        match found.status {
            _ if found.has_lapsed(now) => return Err(Refusal::ReservationExpired),
            ReservationStatus::Active | ReservationStatus::Offered => {}
            ReservationStatus::Cancelled => return Ok(found.clone()),
            status => return Err(ended(status)),
        }
        let (quantity, unpaid) = (found.quantity, found.is_unpaid());
        let item = self.item_of(id)?;
        if unpaid {
            item.held -= quantity;
        } else {
            item.paid -= quantity;
        }
        item.remaining += quantity;
        self.write(id, "cancel", request, |found| {
            found.status = ReservationStatus::Cancelled;
            found.cancelled_at = Some(now);
            if !unpaid {
                found.payment_status = PaymentStatus::Refunded;
            }
        })
    }

    fn extend(
        &mut self,
        id: ReservationId,
        ttl: Option<Duration>,
        request: &Request,
        rules: &Rules,
    ) -> Outcome<Reservation> {
        let (now, found) = (self.now, self.of_owner(id, request)?);
        match (found.status, found.payment_status) {
            _ if found.has_lapsed(now) => return Err(Refusal::ReservationExpired),
            (ReservationStatus::Active, PaymentStatus::Pending) => {}
            (ReservationStatus::Active | ReservationStatus::Offered, _) => return Err(Refusal::InvalidState),
            (status, _) => return Err(ended(status)),
        }
        let last = found.reserved_at.plus(rules.times.most).min(self.item_of(id)?.pickup_end);
        let until = now.plus(ttl.unwrap_or(rules.times.usual)).min(last);
        self.write(id, "extend", request, |found| found.expires_at = found.expires_at.max(until))
    }

    /// Ends a reservation whose time is over. What was held is free again; what was paid stays sold.
    pub(super) fn expire(&mut self, id: ReservationId) {
        let Some(found) = self.reservations.get_mut(&id) else { return };
        found.now.status = ReservationStatus::Expired;
        let expired = found.now.clone();
        self.ended(&expired);
        if expired.is_unpaid()
            && let Some(item) = self.items.get_mut(&expired.box_inventory_id)
        {
            item.now.held -= expired.quantity;
            item.now.remaining += expired.quantity;
            item.now.lapsed = item.now.lapsed.saturating_sub(expired.quantity);
        }
        self.tell_of(&expired, "expire", &Request::new(Operation::Expire(id)));
    }

    /// Gives back the oldest holds of an inventory whose time is over, until so many units are free.
    fn give_back(&mut self, item: &str, units: u32) {
        while self.items.get(item).is_some_and(|item| item.now.remaining < units) {
            let Some(oldest) = self.lapsed.get_mut(item).and_then(std::collections::VecDeque::pop_front)
            else {
                return;
            };
            if self.reservations.get(&oldest).is_some_and(|found| found.now.has_lapsed(self.now)) {
                self.expire(oldest);
            }
        }
    }

    fn of(&self, id: ReservationId) -> Outcome<&Reservation> {
        self.reservations.get(&id).map(|found| &found.now).ok_or(Refusal::ReservationNotFound)
    }

    pub(super) fn of_owner(&self, id: ReservationId, request: &Request) -> Outcome<&Reservation> {
        let found = self.of(id)?;
        match &request.only_of {
            Some(user) if *user != found.user_id => Err(Refusal::NotYours),
            _ => Ok(found),
        }
    }

    pub(super) fn item_of(&mut self, id: ReservationId) -> Outcome<&mut Inventory> {
        let item = self.of(id)?.box_inventory_id.clone();
        self.items.get_mut(&item).map(|item| &mut item.now).ok_or(Refusal::BoxNotFound)
    }

    /// Changes a reservation, and tells of it.
    pub(super) fn write(
        &mut self,
        id: ReservationId,
        event: &'static str,
        request: &Request,
        change: impl FnOnce(&mut Reservation),
    ) -> Outcome<Reservation> {
        let found = &mut self.reservations.get_mut(&id).ok_or(Refusal::ReservationNotFound)?.now;
        change(found);
        let written = found.clone();
        if !written.status.is_open() {
            self.ended(&written);
        }
        self.tell_of(&written, event, request);
        Ok(written)
    }

    pub(super) fn tell(&mut self, told: NewEvent, request: &Request) {
        self.events.push(NewEvent { request_id: request.request_id.clone(), ..told });
    }

    /// What became of a reservation, for it and for its inventory.
    pub(super) fn tell_of(&mut self, reservation: &Reservation, event: &'static str, request: &Request) {
        let told = making::told(reservation, event);
        let topic = self.notify.then(|| {
            self.notified.insert(reservation.id);
            told.subject.clone()
        });
        self.tell(NewEvent { topic, ..told }, request);
    }

    /// A refusal is told once a minute for each inventory, user and reason.
    fn tell_refusal(
        &mut self,
        request: &Request,
        refusal: &Refusal,
        rules: &Rules,
        told: &mut HashSet<ToldOf>,
    ) {
        let Some(of) = told_of(request, refusal) else { return };
        let repeated = rules.told.0.contains_key(&of) || !told.insert(of.clone());
        // Whoever guesses codes is seen to.
        if repeated && *refusal != Refusal::WrongCode {
            return;
        }
        let (subject, mut user, _, reason) = of;
        let about = request.operation.reservation().and_then(|id| self.of(id).ok());
        if let Some(about) = about {
            user.clone_from(&about.user_id);
        }
        let details = Json::of(&serde_json::json!({"userId": (!user.is_empty()).then_some(user)}));
        let event = NewEvent::new(subject, request.operation.name()).outcome("refused").reason(reason);
        let also = match &request.operation {
            Operation::Reserve(_) | Operation::Join(_) => None,
            operation => operation
                .reservation()
                .and_then(|id| self.of(id).ok())
                .map(|found| subject_of_item(&found.box_inventory_id)),
        };
        self.tell(NewEvent { also, ..event.details(details) }, request);
    }
}

/// Of what a refusal is told, if it is: not of what is not there.
pub fn told_of(request: &Request, refusal: &Refusal) -> Option<ToldOf> {
    let silent = [Refusal::BoxNotFound, Refusal::ReservationNotFound, Refusal::IdempotencyInProgress];
    if silent.contains(refusal) {
        return None;
    }
    match &request.operation {
        Operation::Reserve(new) => {
            Some((subject_of_item(&new.inventory_id), new.user_id.clone(), "reserve", refusal.code()))
        }
        Operation::Join(new) => {
            Some((subject_of_item(&new.inventory_id), new.user_id.clone(), "join", refusal.code()))
        }
        Operation::Change(change) => {
            Some((subject_of_item(&change.inventory_id), String::new(), "change", refusal.code()))
        }
        Operation::Expire(_) | Operation::Leave(_) => None,
        operation => {
            Some((subject_of(operation.reservation()?), String::new(), operation.name(), refusal.code()))
        }
    }
}

/// What the timeline tells of a reservation.
pub fn subject_of(id: ReservationId) -> String {
    format!("reservation:{id}")
}

/// What it tells of an inventory.
pub fn subject_of_item(id: &str) -> String {
    format!("inventory:{id}")
}

/// Why a reservation that has ended, or is only offered, does not allow something.
pub(super) fn ended(status: ReservationStatus) -> Refusal {
    match status {
        ReservationStatus::Completed => Refusal::AlreadyCompleted,
        ReservationStatus::Cancelled => Refusal::AlreadyCancelled,
        ReservationStatus::Expired => Refusal::ReservationExpired,
        ReservationStatus::Active | ReservationStatus::Offered => Refusal::InvalidState,
    }
}

/// A code as people write it: with or without its dash, in small letters.
fn normal(code: &str) -> String {
    code.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_uppercase()).take(64).collect()
}

impl Operation {
    /// Its name, in the timeline.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CreateMerchant(_) | Self::CreateBoxType(_) | Self::CreateInventory(_) => "create",
            Self::Change(_) => "change",
            Self::Reserve(_) => "reserve",
            Self::Confirm(_) => "confirm",
            Self::Collect { .. } => "collect",
            Self::Cancel(_) => "cancel",
            Self::Extend { .. } => "extend",
            Self::Accept(_) => "accept",
            Self::Expire(_) => "expire",
            Self::Join(_) => "join",
            Self::Leave(_) => "leave",
        }
    }

    /// The reservation that it is about, if it is about one that is there.
    pub fn reservation(&self) -> Option<ReservationId> {
        match self {
            Self::Confirm(id)
            | Self::Accept(id)
            | Self::Cancel(id)
            | Self::Expire(id)
            | Self::Collect { id, .. }
            | Self::Extend { id, .. } => Some(*id),
            _ => None,
        }
    }
}
