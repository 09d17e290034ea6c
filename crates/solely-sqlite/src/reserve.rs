//! Stock: a batch is one command of the writer, which is the one lock that is needed here.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};
use solely_core::clock::Timestamp;
use solely_core::event::{Event, EventId};
use solely_core::fault::Guard;
use solely_core::reserve::{
    Batch, Books, BoxType, Decided, Follows, Inventory, InventoryFilter, InventoryStatus, InventoryView,
    LAPSED_MAX, LATEST, Lapsed, Merchant, OPEN_MAX, PaymentStatus, Request, Reservation, ReservationFilter,
    ReservationInner, ReservationStatus, ReserveStore, Rules, ToldByRows, ToldTo, Touched, WaitFilter,
    WaitView, Wanted, event_of_row, subject_of,
};
use solely_core::{ReservationId, StoreError};

use crate::row::{self, signed};
use crate::writer::Tx;
use crate::{SqliteStore, event, job, waitlist};

#[async_trait]
impl ReserveStore for SqliteStore {
    async fn decide(&self, batch: Batch, rules: Arc<Rules>) -> Result<(Vec<Decided>, Touched), StoreError> {
        let requests = batch.requests.clone();
        if !rules.guards.hold(Guard::Decrement) {
            return self.decide_on_what_was_read(requests, rules).await;
        }
        let wanted = Wanted::of(&requests);
        batch.ahead_sent().await;
        let decided = self.writer.run("reserve", move |tx| {
            let mut books = load(tx.conn, tx.now, &wanted, &requests)?;
            let decided = books.decide(&requests, &rules);
            write(tx, &books, true)?;
            Ok((decided, books.touched()))
        });
        // The writer runs what stands in its lane in turn, and there it stands once it was asked about.
        let mut decided = pin!(decided);
        let at_once = futures::poll!(decided.as_mut());
        batch.sent();
        match at_once {
            Poll::Ready(decided) => decided,
            Poll::Pending => decided.await,
        }
    }

    async fn inventories(&self, filter: InventoryFilter) -> Result<Vec<InventoryView>, StoreError> {
        let now = self.writer.now();
        self.read(move |conn| inventories(conn, now, &filter)).await
    }

    async fn reservations(&self, filter: ReservationFilter) -> Result<Vec<Reservation>, StoreError> {
        let now = self.writer.now();
        self.read(move |conn| reservations(conn, now, &filter)).await
    }

    async fn lapsed(&self, limit: u32) -> Result<Lapsed, StoreError> {
        let now = self.writer.now();
        self.read(move |conn| {
            let mut find = conn.prepare_cached(
                "SELECT id, expires_at, merchant_id FROM reservations
                  WHERE status <= 1 AND expires_at <= ?1 ORDER BY expires_at, id LIMIT ?2",
            )?;
            let rows = find.query_map((now.as_millis(), limit), |found| {
                Ok((row::time(found, 1)?, (found.get::<_, String>(2)?, reservation_id(found, 0)?)))
            })?;
            let found = rows.collect::<Result<Vec<_>, _>>()?;
            let since = found.first().map(|(since, _)| *since);
            Ok(Lapsed { ids: found.into_iter().map(|(_, of)| of).collect(), since, now })
        })
        .await
    }

    async fn waitlist(&self, filter: WaitFilter) -> Result<Vec<(u64, WaitView)>, StoreError> {
        let now = self.writer.now();
        self.read(move |conn| waitlist::list(conn, now, &filter)).await
    }

    async fn close_waits(&self, limit: u32) -> Result<u64, StoreError> {
        let now = self.writer.now();
        // Most of the time there is nothing to write, and nothing is.
        if self.read(move |conn| waitlist::any_over(conn, now)).await? {
            return self.writer.run("reserve", move |tx| waitlist::close(tx, limit)).await;
        }
        Ok(0)
    }

    async fn told_to(&self, users: Vec<Follows>, limit: u32) -> Result<Vec<ToldTo>, StoreError> {
        let now = self.writer.now();
        self.read(move |conn| told_to(conn, now, &users, limit)).await
    }
}

impl SqliteStore {
    /// What solely never does unless a fault test opens the guard: stock is read, and written later, however it is then.
    async fn decide_on_what_was_read(
        &self,
        requests: Arc<Vec<Request>>,
        rules: Arc<Rules>,
    ) -> Result<(Vec<Decided>, Touched), StoreError> {
        let (now, wanted) = (self.writer.now(), Wanted::of(&requests));
        let (books, decided) = self
            .read(move |conn| {
                let mut books = load(conn, now, &wanted, &requests)?;
                let decided = books.decide(&requests, &rules);
                Ok((books, decided))
            })
            .await?;
        let books = Arc::new(books);
        let to_write = books.clone();
        self.writer.run("reserve", move |tx| write(tx, &to_write, false)).await?;
        Ok((decided, Arc::into_inner(books).map(Books::touched).unwrap_or_default()))
    }
}

const ITEM: &str = "id, merchant_id, box_type_id, original, remaining, held, paid, collected, withdrawn, price, \
                    currency, pricing, pickup_start, pickup_end, closed, version, \
                    (SELECT coalesce(sum(quantity), 0) FROM reservations INDEXED BY reservations_lapsing \
                      WHERE reservations.inventory_id = inventory.id AND status <= 1 AND payment = 0 \
                        AND expires_at <= :now) AS lapsed, \
                    EXISTS (SELECT 1 FROM waitlist INDEXED BY waitlist_live \
                             WHERE waitlist.merchant_id = inventory.merchant_id AND waitlist.status <= 1) AS waited";

/// Those who wait for an inventory and may have a box of it.
const WAITING: &str = "(SELECT count(*) FROM waitlist AS w INDEXED BY waitlist_line \
                         WHERE w.inventory_id = found.id AND w.status <= 1 AND w.status = 0 \
                           AND NOT EXISTS (SELECT 1 FROM reservations AS r INDEXED BY reservations_open \
                                            WHERE r.merchant_id = w.merchant_id AND r.user_id = w.user_id \
                                              AND r.status <= 1 AND r.expires_at > :now))";

fn item(found: &Row<'_>) -> Result<Inventory, Error> {
    let pricing: Option<String> = found.get(11)?;
    Ok(Inventory {
        id: found.get(0)?,
        merchant_id: found.get(1)?,
        box_type_id: found.get(2)?,
        original: found.get(3)?,
        remaining: found.get(4)?,
        held: found.get(5)?,
        paid: found.get(6)?,
        collected: found.get(7)?,
        withdrawn: found.get(8)?,
        price: found.get(9)?,
        currency: found.get(10)?,
        pricing: pricing.and_then(|text| serde_json::from_str(&text).ok()),
        pickup_start: row::time(found, 12)?,
        pickup_end: row::time(found, 13)?,
        closed: found.get(14)?,
        version: row::unsigned(found, 15)?,
        lapsed: found.get(16)?,
        waited: found.get(17)?,
        waiting: 0,
    })
}

pub(crate) const RESERVATION: &str = "id, user_id, merchant_id, inventory_id, status, payment, code, quantity, amount, currency, \
                           reserved_at, expires_at, completed_at, cancelled_at, offered, wrong_codes, blocked_until";

pub(crate) fn reservation(found: &Row<'_>) -> Result<Reservation, Error> {
    let wrong = |column, code: u8| {
        let wrong = FromSqlError::OutOfRange(i64::from(code));
        Error::FromSqlConversionFailure(column, Type::Integer, Box::new(wrong))
    };
    let (status, payment): (u8, u8) = (found.get(4)?, found.get(5)?);
    let maybe = |column| Ok::<_, Error>(found.get::<_, Option<i64>>(column)?.map(Timestamp::from_millis));
    Ok(Reservation {
        id: reservation_id(found, 0)?,
        user_id: found.get(1)?,
        merchant_id: found.get(2)?,
        box_inventory_id: found.get(3)?,
        status: ReservationStatus::from_code(status).ok_or_else(|| wrong(4, status))?,
        payment_status: PaymentStatus::from_code(payment).ok_or_else(|| wrong(5, payment))?,
        pickup_code: found.get(6)?,
        quantity: found.get(7)?,
        total_amount: found.get(8)?,
        currency: found.get(9)?,
        reserved_at: row::time(found, 10)?,
        expires_at: row::time(found, 11)?,
        completed_at: maybe(12)?,
        cancelled_at: maybe(13)?,
        inner: ReservationInner {
            offered: found.get(14)?,
            wrong_codes: found.get(15)?,
            blocked_until: row::time(found, 16)?,
        },
    })
}

fn reservation_id(found: &Row<'_>, column: usize) -> Result<ReservationId, Error> {
    found.get(column).map(ReservationId::from_bytes)
}

/// An inventory, if there is one by this id.
pub(crate) fn read_item(conn: &Connection, now: Timestamp, id: &str) -> Result<Option<Inventory>, Error> {
    let mut find = conn.prepare_cached(&format!("SELECT {ITEM} FROM inventory WHERE id = :id"))?;
    let values = rusqlite::named_params! {":now": now.as_millis(), ":id": id};
    find.query_row(values, item).optional()
}

/// Reads the rows that a batch needs.
fn load(conn: &Connection, now: Timestamp, wanted: &Wanted, requests: &[Request]) -> Result<Books, Error> {
    let mut books = Books::at(now, wanted);
    let mut merchants = wanted.merchants.clone();
    for (id, units) in &wanted.items {
        let Some(found) = read_item(conn, now, id)? else { continue };
        let needed = units.saturating_sub(u64::from(found.remaining)).min(LAPSED_MAX.into());
        if needed > 0 && found.lapsed > 0 {
            let mut find = conn.prepare_cached(&format!(
                "SELECT {RESERVATION} FROM reservations INDEXED BY reservations_lapsing
                  WHERE inventory_id = ?1 AND status <= 1 AND payment = 0 AND expires_at <= ?2
                  ORDER BY expires_at, id LIMIT ?3"
            ))?;
            for lapsed in find.query_map(params![id, now.as_millis(), signed(needed)], reservation)? {
                books.lapsed(lapsed?);
            }
        }
        books.item(found);
    }
    let mut others: Vec<Reservation> = Vec::new();
    for id in &wanted.reservations {
        let mut find =
            conn.prepare_cached(&format!("SELECT {RESERVATION} FROM reservations WHERE id = ?1"))?;
        others.extend(find.query_row([id.as_bytes()], reservation).optional()?);
    }
    if !wanted.buyers.is_empty() {
        let mut find = conn.prepare_cached(&format!(
            "SELECT {RESERVATION} FROM reservations INDEXED BY reservations_open
              WHERE merchant_id = ?1 AND user_id = ?2 AND status <= 1"
        ))?;
        for (item, user) in &wanted.buyers {
            let Some(merchant) = books.merchant_of(item) else { continue };
            others.extend(find.query_row((merchant, user), reservation).optional()?);
        }
    }
    for found in others {
        if !wanted.items.contains_key(&found.box_inventory_id)
            && let Some(item) = read_item(conn, now, &found.box_inventory_id)?
        {
            books.item(item);
        }
        books.reservation(found);
    }
    for id in &wanted.box_types {
        let mut find = conn.prepare_cached("SELECT id, merchant_id, name FROM box_types WHERE id = ?1")?;
        let found = find.query_row([id], |found| {
            Ok(BoxType { id: found.get(0)?, merchant_id: found.get(1)?, name: found.get(2)? })
        });
        if let Some(found) = found.optional()? {
            merchants.insert(found.merchant_id.clone());
            books.box_type(found);
        }
    }
    for id in &merchants {
        let mut find = conn.prepare_cached("SELECT id, name, timezone FROM merchants WHERE id = ?1")?;
        let found = find.query_row([id], |found| {
            Ok(Merchant { id: found.get(0)?, name: found.get(1)?, timezone: found.get(2)? })
        });
        if let Some(found) = found.optional()? {
            books.merchant(found);
        }
    }
    let mut find =
        conn.prepare_cached("SELECT digest, verdict FROM idempotency_keys WHERE scope = ?1 AND key = ?2")?;
    for key in &wanted.keys {
        let found = find.query_row((&key.scope, &key.key), |found| {
            Ok((found.get::<_, String>(0)?, found.get::<_, String>(1)?))
        });
        if let Some((digest, verdict)) = found.optional()? {
            // What cannot be read was decided by another version: nothing is decided over it.
            match serde_json::from_str(&verdict) {
                Ok(verdict) => books.key(key.clone(), digest, verdict),
                Err(_) => books.busy_key(key.clone()),
            }
        }
    }
    waitlist::load(conn, wanted, requests, &mut books)?;
    Ok(books)
}

/// Writes what has changed, each row only if it is as it was read.
fn write(tx: &Tx<'_>, books: &Books, guarded: bool) -> Result<(), Error> {
    for merchant in books.new_merchants() {
        let mut insert =
            tx.conn.prepare_cached("INSERT INTO merchants (id, name, timezone) VALUES (?1, ?2, ?3)")?;
        insert.execute((&merchant.id, &merchant.name, &merchant.timezone))?;
    }
    for made in books.new_box_types() {
        let mut insert =
            tx.conn.prepare_cached("INSERT INTO box_types (id, merchant_id, name) VALUES (?1, ?2, ?3)")?;
        insert.execute((&made.id, &made.merchant_id, &made.name))?;
    }
    for item in books.new_items() {
        insert_item(tx, item)?;
    }
    for (item, version) in books.changed_items() {
        let mut update = tx.conn.prepare_cached(
            "UPDATE inventory
                SET original = ?2, remaining = ?3, held = ?4, paid = ?5, collected = ?6, withdrawn = ?7, closed = ?8,
                    version = version + 1
              WHERE id = ?1 AND (version = ?9 OR NOT ?10)",
        )?;
        let values = params![
            item.id,
            item.original,
            item.remaining,
            item.held,
            item.paid,
            item.collected,
            item.withdrawn,
            item.closed,
            signed(version),
            guarded,
        ];
        as_it_was_read(update.execute(values)?)?;
    }
    for (changed, status, payment) in books.changed_reservations() {
        update_reservation(tx, changed, (status, payment))?;
    }
    insert_reservations(tx, books)?;
    waitlist::write(tx, books)?;
    for job in books.new_jobs() {
        job::enqueue_one(tx, &job)?;
    }
    let mut insert = tx.conn.prepare_cached(
        "INSERT INTO idempotency_keys (scope, key, digest, verdict, at) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    for (key, digest, verdict) in books.new_keys() {
        let verdict = serde_json::to_string(verdict).unwrap_or_default();
        insert.execute((&key.scope, &key.key, digest, verdict, tx.now_ms()))?;
    }
    event::insert_all(tx, books.events())
}

fn insert_item(tx: &Tx<'_>, item: &Inventory) -> Result<(), Error> {
    let mut insert = tx.conn.prepare_cached(
        "INSERT INTO inventory (id, merchant_id, box_type_id, original, remaining, held, paid, collected, withdrawn,
                                price, currency, pricing, pickup_start, pickup_end, closed, version)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
    )?;
    let pricing = item.pricing.as_ref().and_then(|pricing| serde_json::to_string(pricing).ok());
    let values = params![
        item.id,
        item.merchant_id,
        item.box_type_id,
        item.original,
        item.remaining,
        item.held,
        item.paid,
        item.collected,
        item.withdrawn,
        item.price,
        item.currency,
        pricing,
        item.pickup_start.as_millis(),
        item.pickup_end.as_millis(),
        item.closed,
        signed(item.version),
    ];
    insert.execute(values).map(drop)
}

fn insert_reservations(tx: &Tx<'_>, books: &Books) -> Result<(), Error> {
    let (all, makings) = (books.new_reservations(), books.makings());
    if all.is_empty() {
        return Ok(());
    }
    let mut number = event::numbers(tx, makings.len())?;
    // In the same order. Reservations that are offered, and any in a batch with events, are told of by those.
    let mut makings = makings.iter().peekable();
    let mut insert = tx.conn.prepare_cached(&format!(
        "INSERT INTO reservations ({RESERVATION}, told_as, told_of, told_until)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)"
    ))?;
    for made in all {
        let told = makings.next_if(|making| making.id == made.id);
        number += i64::from(told.is_some());
        insert.execute(params![
            made.id.as_bytes(),
            made.user_id,
            made.merchant_id,
            made.box_inventory_id,
            made.status.code(),
            made.payment_status.code(),
            made.pickup_code,
            made.quantity,
            made.total_amount,
            made.currency,
            made.reserved_at.as_millis(),
            made.expires_at.as_millis(),
            made.completed_at.map(Timestamp::as_millis),
            made.cancelled_at.map(Timestamp::as_millis),
            made.inner.offered,
            made.inner.wrong_codes,
            made.inner.blocked_until.as_millis(),
            told.map(|_| number),
            told.and_then(|told| told.request_id.as_deref()),
            told.map(|told| told.until.as_millis()),
        ])?;
    }
    Ok(())
}

fn update_reservation(
    tx: &Tx<'_>,
    changed: &Reservation,
    before: (ReservationStatus, PaymentStatus),
) -> Result<(), Error> {
    let mut update = tx.conn.prepare_cached(
        "UPDATE reservations
            SET status = ?2, payment = ?3, expires_at = ?4, completed_at = ?5, cancelled_at = ?6,
                wrong_codes = ?7, blocked_until = ?8, reserved_at = ?11
          WHERE id = ?1 AND status = ?9 AND payment = ?10",
    )?;
    let values = params![
        changed.id.as_bytes(),
        changed.status.code(),
        changed.payment_status.code(),
        changed.expires_at.as_millis(),
        changed.completed_at.map(Timestamp::as_millis),
        changed.cancelled_at.map(Timestamp::as_millis),
        changed.inner.wrong_codes,
        changed.inner.blocked_until.as_millis(),
        before.0.code(),
        before.1.code(),
        changed.reserved_at.as_millis(),
    ];
    as_it_was_read(update.execute(values)?)
}

/// One thread writes: what was read is still so, or something is very wrong.
pub(crate) fn as_it_was_read(rows: usize) -> Result<(), Error> {
    if rows == 1 { Ok(()) } else { Err(Error::StatementChangedRows(rows)) }
}

fn inventories(
    conn: &Connection,
    now: Timestamp,
    filter: &InventoryFilter,
) -> Result<Vec<InventoryView>, Error> {
    let status = filter.status.map(|status| match status {
        InventoryStatus::Active => 0,
        InventoryStatus::SoldOut => 1,
        InventoryStatus::Expired => 2,
        InventoryStatus::Closed => 3,
    });
    let (ids, wanted) = match &filter.ids {
        Some(ids) => (serde_json::to_string(ids).unwrap_or_default(), true),
        None => (String::new(), false),
    };
    let which = if wanted {
        "id IN (SELECT value FROM json_each(:ids))"
    } else if filter.merchant_id.is_some() {
        "merchant_id = :merchant"
    } else {
        "1"
    };
    let mut find = conn.prepare_cached(&format!(
        "SELECT * FROM (SELECT found.*, CASE WHEN remaining + lapsed > 0 AND waited THEN {WAITING} ELSE 0 END AS waiting
                          FROM (SELECT {ITEM} FROM inventory WHERE {which} AND id > :after) AS found)
          WHERE :status IS NULL
             OR :status = CASE WHEN closed THEN 3 WHEN pickup_end <= :now THEN 2
                               WHEN remaining + lapsed <= waiting THEN 1 ELSE 0 END
          ORDER BY id LIMIT :limit"
    ))?;
    let values: &[(&str, &dyn rusqlite::ToSql)] = &[
        (":now", &now.as_millis()),
        (":after", &filter.after.as_deref().unwrap_or_default()),
        (":status", &status),
        (":limit", &filter.limit),
        (":ids", &ids),
        (":merchant", &filter.merchant_id),
    ];
    // Names that a statement does not have cannot be bound.
    let used = |name: &str| find.parameter_index(name).is_ok_and(|index| index.is_some());
    let values: Vec<(&str, &dyn rusqlite::ToSql)> =
        values.iter().filter(|(name, _)| used(name)).copied().collect();
    let shown = |found: &Row<'_>| {
        let item = Inventory { waiting: found.get(18)?, ..item(found)? };
        Ok(item.view(now))
    };
    find.query_map(values.as_slice(), shown)?.collect()
}

/// Reservations of users that may have news, and what was told of each.
fn told_to(conn: &Connection, now: Timestamp, users: &[Follows], limit: u32) -> Result<Vec<ToldTo>, Error> {
    let mut latest = conn.prepare_cached(&format!(
        "SELECT {RESERVATION} FROM reservations INDEXED BY reservations_user
          WHERE user_id = ?1 ORDER BY id DESC LIMIT ?2"
    ))?;
    let mut open = conn.prepare_cached(&format!(
        "SELECT {RESERVATION} FROM reservations INDEXED BY reservations_open
          WHERE user_id = ?1 AND status <= 1 LIMIT ?2"
    ))?;
    let mut known = conn.prepare_cached(&format!("SELECT {RESERVATION} FROM reservations WHERE id = ?1"))?;
    let mut found = Vec::new();
    for Follows { user_id, told } in users {
        let mut all: BTreeMap<ReservationId, Reservation> = BTreeMap::new();
        for one in latest.query_map((user_id, LATEST), reservation)? {
            let one = one?;
            all.insert(one.id, one);
        }
        for one in open.query_map((user_id, OPEN_MAX), reservation)? {
            let one = one?;
            all.insert(one.id, one);
        }
        for id in told.iter().flat_map(BTreeMap::keys).filter(|id| !all.contains_key(id)).collect::<Vec<_>>()
        {
            if let Some(one) = known.query_row([id.as_bytes()], reservation).optional()? {
                all.insert(one.id, one);
            }
        }
        for (id, one) in all {
            let subject = subject_of(id);
            let after = told.as_ref().and_then(|told| told.get(&id)).copied().unwrap_or(EventId(0));
            let written = match told {
                None => event::latest(conn, &subject)?,
                Some(_) => event::after(conn, &subject, after, limit)?,
            };
            // Its making comes before all that was written of it.
            let mut events = match told {
                None if !written.is_empty() => Vec::new(),
                _ => told_by_rows(conn, &subject, after.0, limit)?,
            };
            events.extend(written);
            events.truncate(limit as usize);
            found.push(ToldTo { is_open: one.status.is_open(), reservation: one.at(now), events });
        }
    }
    Ok(found)
}

/// What rows tell of a subject by themselves, after an event.
pub(crate) fn told_by_rows(
    conn: &Connection,
    subject: &str,
    after: i64,
    limit: u32,
) -> Result<Vec<Event>, Error> {
    let event = |found: &Row<'_>| {
        let (number, request_id) = (EventId(found.get(17)?), found.get(18)?);
        Ok(event_of_row(&reservation(found)?, number, request_id, row::time(found, 19)?))
    };
    let select = format!("SELECT {RESERVATION}, told_as, told_of, told_until FROM reservations");
    match ToldByRows::about(subject) {
        None => Ok(Vec::new()),
        Some(ToldByRows::Of(id)) => conn
            .prepare_cached(&format!("{select} WHERE id = ?1 AND told_as > ?2"))?
            .query_map((id.as_bytes(), after), event)?
            .collect(),
        Some(ToldByRows::OfInventory(id)) => conn
            .prepare_cached(&format!(
                "{select} INDEXED BY reservations_told
                  WHERE inventory_id = ?1 AND told_as > ?2 ORDER BY told_as LIMIT ?3"
            ))?
            .query_map((id, after, limit), event)?
            .collect(),
    }
}

fn reservations(
    conn: &Connection,
    now: Timestamp,
    filter: &ReservationFilter,
) -> Result<Vec<Reservation>, Error> {
    let mut which = String::from("id > :after");
    let status = filter.status.map(ReservationStatus::code);
    let (id, after) = (filter.id.map(|id| *id.as_bytes()), filter.after.map_or([0; 16], |id| *id.as_bytes()));
    let now_ms = now.as_millis();
    let mut values: Vec<(&str, &dyn rusqlite::ToSql)> = vec![(":after", &after), (":limit", &filter.limit)];
    let mut add = |sql: &str, name: &'static str, value| {
        which.push_str(sql);
        values.push((name, value));
    };
    if id.is_some() {
        add(" AND id = :id", ":id", &id);
    }
    if filter.user_id.is_some() {
        add(" AND user_id = :user", ":user", &filter.user_id);
    }
    if filter.merchant_id.is_some() {
        add(" AND merchant_id = :merchant", ":merchant", &filter.merchant_id);
    }
    if status.is_some() {
        add(
            " AND CASE WHEN status <= 1 AND expires_at <= :now THEN 4 ELSE status END = :status",
            ":status",
            &status,
        );
        values.push((":now", &now_ms));
    }
    let sql = format!("SELECT {RESERVATION} FROM reservations WHERE {which} ORDER BY id LIMIT :limit");
    let mut find = conn.prepare_cached(&sql)?;
    find.query_map(values.as_slice(), reservation)?.map(|found| found.map(|one| one.at(now))).collect()
}

/// Keys of idempotency that were made before an instant are forgotten.
pub(crate) const PRUNE_KEYS: &str = "DELETE FROM idempotency_keys WHERE (scope, key) IN
        (SELECT scope, key FROM idempotency_keys WHERE at <= ?1 ORDER BY at LIMIT ?2)";
