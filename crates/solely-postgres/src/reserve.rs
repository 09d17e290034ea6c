//! Stock: the merchants' rows are the locks, and a batch is three round trips.
//!
//! ```text
//!   BEGIN · lock merchants, look at the clock · items · mentioned · open · keys              one round trip
//!   decide                                                                                   here
//!   items · reservations · events · keys                                                     one round trip
//!   COMMIT                                                                                   one round trip
//! ```
//!
//! Holds whose time is over are read where an inventory has less left than is asked of it: one more.
//!
//! What is read is sent behind the lock without waiting for it: each statement sees what was committed when it runs.
//!
//! Who buys of an inventory that this process has just seen is decided before anything is asked, in one round trip: [`hot`].

pub(crate) mod hot;

use std::fmt::Write as _;
use std::sync::Arc;

use async_trait::async_trait;
use solely_core::clock::Timestamp;
use solely_core::event::{Event, EventId};
use solely_core::fault::Guard;
use solely_core::job::NewJob;
use solely_core::reserve::{
    Batch, Books, BoxType, Decided, Follows, IdempotencyKey, Inventory, InventoryFilter, InventoryStatus,
    InventoryView, LAPSED_MAX, LATEST, Lapsed, Making, Merchant, OPEN_MAX, PaymentStatus, Request,
    Reservation, ReservationFilter, ReservationInner, ReservationStatus, ReserveStore, Rules, ToldByRows,
    ToldTo, Touched, WaitFilter, WaitView, Wanted, event_of_row,
};
use solely_core::{ReservationId, StoreError};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};
use uuid::Uuid;

use crate::row::{self, signed};
use crate::transaction::{Values, Write, transact};
use crate::{PostgresStore, Tx, event, job, waitlist};

#[async_trait]
impl ReserveStore for PostgresStore {
    async fn decide(&self, batch: Batch, rules: Arc<Rules>) -> Result<(Vec<Decided>, Touched), StoreError> {
        let requests = batch.requests.clone();
        if !rules.guards.hold(Guard::Decrement) {
            return self.decide_on_what_was_read(&requests, &rules).await;
        }
        if let Some(sold) = self.sell(&batch, &rules).await? {
            return Ok(sold);
        }
        self.work.unless_away(batch.ahead_over()).await?;
        let life = self.work.life();
        self.hot.begin(&life);
        let wanted = Wanted::of(&requests);
        let asked = Asked::of(&wanted, &rules);
        let (decided, books): (Vec<Decided>, Books) = transact!(self.work, |tx| async {
            let mut books = load(tx, &asked, &wanted).await?;
            waitlist::load(tx, &wanted, &requests, &mut books).await?;
            let decided = books.decide(&requests, &rules);
            write(tx, &books, true).await?;
            Ok((decided, books))
        }
        .await)?;
        self.hot.hear(books.now());
        self.hot.remember(&books, &life);
        Ok((decided, books.touched()))
    }

    async fn inventories(&self, filter: InventoryFilter) -> Result<Vec<InventoryView>, StoreError> {
        let status = filter.status.map(|status| match status {
            InventoryStatus::Active => 0_i32,
            InventoryStatus::SoldOut => 1,
            InventoryStatus::Expired => 2,
            InventoryStatus::Closed => 3,
        });
        let mut which = "inventory.id > $2".to_owned();
        let after = filter.after.unwrap_or_default();
        let (offset, limit) = (self.work.clock.offset_ms(), i64::from(filter.limit));
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&offset, &after, &status, &limit];
        if let Some(ids) = &filter.ids {
            values.push(ids);
            let _ = write!(which, " AND inventory.id = ANY (${})", values.len());
        }
        if let Some(merchant) = &filter.merchant_id {
            values.push(merchant);
            let _ = write!(which, " AND inventory.merchant_id = ${}", values.len());
        }
        let sql = format!(
            "SELECT * FROM (SELECT found.*, CASE WHEN remaining + units > 0 AND waited THEN {WAITING} ELSE 0 END AS waiting
                              FROM (SELECT {ITEM}, now_ms
                                      FROM (SELECT solely_now($1) AS now_ms) AS clock, inventory, {LAPSED}
                                     WHERE {which}) AS found) AS shown
              WHERE $3::integer IS NULL
                 OR $3 = CASE WHEN closed THEN 3 WHEN pickup_end <= now_ms THEN 2
                              WHEN remaining + units <= waiting THEN 1 ELSE 0 END
              ORDER BY id LIMIT $4"
        );
        let rows = self.read(&sql, &values).await?;
        let shown = |found: &Row| {
            let waiting = u32::try_from(found.get::<_, i64>(19)).unwrap_or(u32::MAX);
            Inventory { waiting, ..item(found) }.view(row::time(found, 18))
        };
        Ok(rows.iter().map(shown).collect())
    }

    async fn reservations(&self, filter: ReservationFilter) -> Result<Vec<Reservation>, StoreError> {
        let mut which = "id > $2".to_owned();
        let after = Uuid::from_bytes(filter.after.map_or([0; 16], |id| *id.as_bytes()));
        let (offset, limit) = (self.work.clock.offset_ms(), i64::from(filter.limit));
        let (id, status) = (filter.id.map(uuid), filter.status.map(|status| i32::from(status.code())));
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&offset, &after, &limit];
        let mut add = |sql: &str, value| {
            values.push(value);
            let _ = write!(which, " AND {sql} = ${}", values.len());
        };
        if let Some(id) = &id {
            add("id", id);
        }
        if let Some(user) = &filter.user_id {
            add("user_id", user);
        }
        if let Some(merchant) = &filter.merchant_id {
            add("merchant_id", merchant);
        }
        if let Some(status) = &status {
            add("CASE WHEN status <= 1 AND expires_at <= now_ms THEN 4 ELSE status END", status);
        }
        let sql = format!(
            "SELECT {RESERVATION}, now_ms FROM (SELECT solely_now($1) AS now_ms) AS clock, reservations
              WHERE {which} ORDER BY id LIMIT $3"
        );
        let rows = self.read(&sql, &values).await?;
        Ok(rows.iter().map(|found| reservation(found).at(row::time(found, 17))).collect())
    }

    async fn lapsed(&self, limit: u32) -> Result<Lapsed, StoreError> {
        let rows = self
            .read(
                "SELECT now_ms, id, expires_at, merchant_id
                   FROM (SELECT solely_now($1) AS now_ms) AS clock
                   LEFT JOIN LATERAL (SELECT id, expires_at, merchant_id FROM reservations
                                       WHERE status <= 1 AND expires_at <= now_ms
                                       ORDER BY expires_at, id LIMIT $2) AS lapsed ON true",
                &[&self.work.clock.offset_ms(), &i64::from(limit)],
            )
            .await?;
        let now = rows.first().map_or(Timestamp::default(), |found| row::time(found, 0));
        self.hot.hear(now);
        let of = |found: &Row| {
            let id = ReservationId::from_bytes(found.get::<_, Option<Uuid>>(1)?.into_bytes());
            Some((row::time(found, 2), (found.get::<_, String>(3), id)))
        };
        let found: Vec<(Timestamp, (String, ReservationId))> = rows.iter().filter_map(of).collect();
        let since = found.first().map(|(since, _)| *since);
        Ok(Lapsed { ids: found.into_iter().map(|(_, of)| of).collect(), since, now })
    }

    async fn waitlist(&self, filter: WaitFilter) -> Result<Vec<(u64, WaitView)>, StoreError> {
        waitlist::list(self, &filter).await
    }

    async fn close_waits(&self, limit: u32) -> Result<u64, StoreError> {
        waitlist::close(self, limit).await
    }

    async fn told_to(&self, users: Vec<Follows>, limit: u32) -> Result<Vec<ToldTo>, StoreError> {
        let names: Vec<&str> = users.iter().map(|user| user.user_id.as_str()).collect();
        let first: Vec<bool> = users.iter().map(|user| user.told.is_none()).collect();
        let (mut known, mut of_users, mut cursors) = (Vec::new(), Vec::new(), Vec::new());
        for (nth, user) in (1_i64..).zip(&users) {
            for (id, cursor) in user.told.iter().flatten() {
                known.push(uuid(*id));
                of_users.push(nth);
                cursors.push(cursor.0);
            }
        }
        let sql = format!(
            "SELECT {}, now_ms, {}, r.told_as, r.told_of, r.told_until,
                    CASE WHEN ($3::boolean[])[mine.nth] THEN e.id IS NULL ELSE r.told_as > coalesce(known.cursor, 0) END
               FROM (SELECT solely_now($1) AS now_ms) AS clock,
                    (SELECT wanted.nth, latest.id
                       FROM unnest($2::text[]) WITH ORDINALITY AS wanted (user_id, nth)
                      CROSS JOIN LATERAL (SELECT id FROM reservations WHERE user_id = wanted.user_id
                                           ORDER BY id DESC LIMIT $4) AS latest
                      UNION
                     SELECT wanted.nth, open.id
                       FROM unnest($2::text[]) WITH ORDINALITY AS wanted (user_id, nth)
                      CROSS JOIN LATERAL (SELECT id FROM reservations WHERE user_id = wanted.user_id AND status <= 1
                                           LIMIT {OPEN_MAX}) AS open
                      UNION
                     SELECT known.nth, known.id FROM unnest($6::uuid[], $7::bigint[]) AS known (id, nth)) AS mine
              CROSS JOIN LATERAL (SELECT * FROM reservations WHERE reservations.id = mine.id LIMIT 1) AS r
               LEFT JOIN unnest($6::uuid[], $8::bigint[]) AS known (id, cursor) ON known.id = mine.id
               LEFT JOIN LATERAL ((SELECT * FROM events
                                    WHERE NOT ($3::boolean[])[mine.nth] AND subject = 'reservation:' || r.id::text
                                      AND events.id > coalesce(known.cursor, 0)
                                    ORDER BY events.id LIMIT $5)
                                  UNION ALL
                                  (SELECT * FROM events
                                    WHERE ($3::boolean[])[mine.nth] AND subject = 'reservation:' || r.id::text
                                    ORDER BY events.id DESC LIMIT 1)) AS e ON true
              ORDER BY r.id, e.id",
            prefixed("r"),
            event::prefixed("e"),
        );
        let (latest, at_once, limit) = (i64::from(LATEST), limit as usize, i64::from(limit));
        let values: Values<'_> =
            &[&self.work.clock.offset_ms(), &names, &first, &latest, &limit, &known, &of_users, &cursors];
        let mut found: Vec<ToldTo> = Vec::new();
        for row in &self.read(&sql, values).await? {
            let told = row.get::<_, Option<i64>>(18).map(|_| event::event(row, 18));
            let one = reservation(row);
            match found.last_mut() {
                Some(last) if last.reservation.id == one.id => last.events.extend(told),
                _ => {
                    // Its making comes before all that was written of it.
                    let making = event_of(row, &one, 28).filter(|_| row.get(31));
                    found.push(ToldTo {
                        is_open: one.status.is_open(),
                        reservation: one.at(row::time(row, 17)),
                        events: making.into_iter().chain(told).collect(),
                    });
                }
            }
        }
        for one in &mut found {
            one.events.truncate(at_once);
        }
        Ok(found)
    }
}

impl PostgresStore {
    /// What solely never does unless a fault test opens the guard: stock is read, and written later, however it is then.
    async fn decide_on_what_was_read(
        &self,
        requests: &[Request],
        rules: &Rules,
    ) -> Result<(Vec<Decided>, Touched), StoreError> {
        let wanted = Wanted::of(requests);
        let asked = Asked { unlocked: true, ..Asked::of(&wanted, rules) };
        let mut books = transact!(self.work, |tx| load(tx, &asked, &wanted).await)?;
        let decided = books.decide(requests, rules);
        transact!(self.work, |tx| write(tx, &books, false).await)?;
        Ok((decided, books.touched()))
    }
}

/// The making of a reservation, if its row tells of it, in columns that begin at this one.
fn event_of(found: &Row, row: &Reservation, first: usize) -> Option<Event> {
    let number = EventId(found.get::<_, Option<i64>>(first)?);
    Some(event_of_row(row, number, found.get(first + 1), row::time(found, first + 2)))
}

/// A page of what was written of a subject and what rows tell of it by themselves: one statement, so that whoever follows its
/// end sees nothing of one kind before what came earlier of the other.
pub(crate) async fn timeline(
    store: &PostgresStore,
    subject: &str,
    told: ToldByRows<'_>,
    after: i64,
    limit: u32,
) -> Result<Vec<Event>, StoreError> {
    let (of, value): (_, Box<dyn ToSql + Sync + Send>) = match told {
        ToldByRows::Of(id) => ("id", Box::new(uuid(id))),
        ToldByRows::OfInventory(id) => ("inventory_id", Box::new(id.to_owned())),
    };
    let sql = format!(
        "SELECT {}, {}, r.told_as, r.told_of, r.told_until
           FROM ({}) AS e LEFT JOIN (SELECT * FROM reservations WHERE false) AS r ON true
          UNION ALL
         (SELECT told_as, 0, '', '', NULL, NULL, NULL, '', NULL, NULL, {RESERVATION}, told_as, told_of, told_until
            FROM reservations WHERE {of} = $4 AND told_as > $2 ORDER BY told_as LIMIT $3)
          ORDER BY 1 LIMIT $3",
        event::prefixed("e"),
        prefixed("r"),
        event::about("*"),
    );
    let rows = store.read(&sql, &[&subject, &after, &i64::from(limit), &*value]).await?;
    let event = |found: &Row| match found.get::<_, Option<i64>>(27) {
        Some(_) => event_of(found, &reservation_at(found, 10), 27),
        None => Some(event::event(found, 0)),
    };
    Ok(rows.iter().filter_map(event).collect())
}

/// What is asked for, as columns.
struct Asked {
    items: Vec<String>,
    units: Vec<i64>,
    reservations: Vec<Uuid>,
    bought: Vec<String>,
    buyers: Vec<String>,
    merchants: Vec<String>,
    box_types: Vec<String>,
    scopes: Vec<String>,
    keys: Vec<String>,
    waits: Vec<Uuid>,
    /// How long the merchants are waited for.
    wait_ms: i64,
    unlocked: bool,
}

impl Asked {
    fn of(wanted: &Wanted, rules: &Rules) -> Self {
        let (items, units) = wanted.items.iter().map(|(id, units)| (id.clone(), signed(*units))).unzip();
        let (bought, buyers) = wanted.buyers.iter().cloned().unzip();
        let (scopes, keys) = wanted.keys.iter().map(|key| (key.scope.clone(), key.key.clone())).unzip();
        Self {
            items,
            units,
            reservations: wanted.reservations.iter().map(|id| uuid(*id)).collect(),
            bought,
            buyers,
            merchants: wanted.merchants.iter().cloned().collect(),
            box_types: wanted.box_types.iter().cloned().collect(),
            scopes,
            keys,
            waits: wanted.waits.iter().map(|id| Uuid::from_bytes(*id.as_bytes())).collect(),
            wait_ms: row::millis(rules.lock_wait).max(1),
            unlocked: false,
        }
    }
}

pub(crate) fn uuid(id: ReservationId) -> Uuid {
    Uuid::from_bytes(*id.as_bytes())
}

pub(crate) const ITEM: &str = "inventory.id, inventory.merchant_id, box_type_id, original, remaining, held, paid, collected, \
                    withdrawn, price, inventory.currency, pricing, pickup_start, pickup_end, closed, version, units, \
                    EXISTS (SELECT 1 FROM waitlist \
                             WHERE waitlist.merchant_id = inventory.merchant_id AND waitlist.status <= 1) AS waited";

/// Those who wait for an inventory and may have a box of it.
const WAITING: &str = "(SELECT count(*) FROM waitlist AS w \
                         WHERE w.inventory_id = found.id AND w.status <= 1 AND w.status = 0 \
                           AND NOT EXISTS (SELECT 1 FROM reservations AS r \
                                            WHERE r.merchant_id = w.merchant_id AND r.user_id = w.user_id \
                                              AND r.status <= 1 AND r.expires_at > now_ms))";

/// The units of an inventory's holds whose time is over at `now_ms`.
pub(crate) const LAPSED: &str = "LATERAL (SELECT coalesce(sum(quantity), 0)::integer AS units FROM reservations \
                       WHERE reservations.inventory_id = inventory.id AND status <= 1 AND payment = 0 \
                         AND expires_at <= now_ms) AS lapsed";

pub(crate) fn item(found: &Row) -> Inventory {
    let count = |column| u32::try_from(found.get::<_, i32>(column)).unwrap_or(0);
    let pricing: Option<&str> = found.get(11);
    Inventory {
        id: found.get(0),
        merchant_id: found.get(1),
        box_type_id: found.get(2),
        original: count(3),
        remaining: count(4),
        held: count(5),
        paid: count(6),
        collected: count(7),
        withdrawn: count(8),
        price: found.get(9),
        currency: found.get(10),
        pricing: pricing.and_then(|text| serde_json::from_str(text).ok()),
        pickup_start: row::time(found, 12),
        pickup_end: row::time(found, 13),
        closed: found.get(14),
        version: row::unsigned(found, 15),
        lapsed: count(16),
        waited: found.get(17),
        waiting: 0,
    }
}

pub(crate) const RESERVATION: &str = "id, user_id, merchant_id, inventory_id, status, payment, code, quantity, amount, currency, \
                           reserved_at, expires_at, completed_at, cancelled_at, offered, wrong_codes, blocked_until";

pub(crate) fn reservation(found: &Row) -> Reservation {
    reservation_at(found, 0)
}

/// The same, whose columns begin at this one.
fn reservation_at(found: &Row, first: usize) -> Reservation {
    let code = |column| u8::try_from(found.get::<_, i16>(first + column)).unwrap_or(u8::MAX);
    let maybe = |column| found.get::<_, Option<i64>>(first + column).map(Timestamp::from_millis);
    Reservation {
        id: ReservationId::from_bytes(found.get::<_, Uuid>(first).into_bytes()),
        user_id: found.get(first + 1),
        merchant_id: found.get(first + 2),
        box_inventory_id: found.get(first + 3),
        status: ReservationStatus::from_code(code(4)).expect("the column's CHECK allows known states only"),
        payment_status: PaymentStatus::from_code(code(5))
            .expect("the column's CHECK allows known states only"),
        pickup_code: found.get(first + 6),
        quantity: u32::try_from(found.get::<_, i32>(first + 7)).unwrap_or(0),
        total_amount: found.get(first + 8),
        currency: found.get(first + 9),
        reserved_at: row::time(found, first + 10),
        expires_at: row::time(found, first + 11),
        completed_at: maybe(12),
        cancelled_at: maybe(13),
        inner: ReservationInner {
            offered: found.get(first + 14),
            wrong_codes: code(15),
            blocked_until: row::time(found, first + 16),
        },
    }
}

/// Locks, looks at the clock, and reads the rows that a batch needs: one round trip.
async fn load(tx: &Tx<'_>, asked: &Asked, wanted: &Wanted) -> Result<Books, Error> {
    let offset = tx.offset_ms();
    let lock = if asked.unlocked {
        "SELECT solely_now($7) FROM (SELECT $1::text[], $2::text[], $3::text[], $4::uuid[], $5::uuid[], $6::bigint) AS unused"
    } else {
        "SELECT solely_lock_merchants($1, $2, $3, $4, $5, $6, $7)"
    };
    let locked: [&(dyn ToSql + Sync); 7] = [
        &asked.merchants,
        &asked.box_types,
        &asked.items,
        &asked.reservations,
        &asked.waits,
        &asked.wait_ms,
        &offset,
    ];
    // Each by its key, whatever the planner knows of the tables: a LIMIT keeps it from joining them in another way.
    let items_sql = format!(
        "SELECT {ITEM}
           FROM (SELECT solely_now($3) AS now_ms) AS clock,
                (SELECT unnest($1::text[]) AS id
                 UNION SELECT inventory_id
                         FROM unnest($2::uuid[]) AS mentioned (id)
                        CROSS JOIN LATERAL (SELECT inventory_id FROM reservations AS r
                                             WHERE r.id = mentioned.id LIMIT 1) AS r) AS wanted
          CROSS JOIN LATERAL (SELECT * FROM inventory AS i WHERE i.id = wanted.id LIMIT 1) AS inventory, {LAPSED}"
    );
    let mentioned_sql = format!(
        "SELECT {} FROM unnest($1::uuid[]) AS mentioned (id)
          CROSS JOIN LATERAL (SELECT * FROM reservations AS r WHERE r.id = mentioned.id LIMIT 1) AS found",
        prefixed("found")
    );
    let open_sql = format!(
        "SELECT {} FROM unnest($1::text[], $2::text[]) AS buys (item, buyer)
          CROSS JOIN LATERAL (SELECT merchant_id FROM inventory AS i WHERE i.id = buys.item LIMIT 1) AS bought
          CROSS JOIN LATERAL (SELECT * FROM reservations AS r
                               WHERE r.merchant_id = bought.merchant_id AND r.user_id = buys.buyer AND r.status <= 1
                               LIMIT 1) AS open",
        prefixed("open")
    );
    let items_values: [&(dyn ToSql + Sync); 3] = [&asked.items, &asked.reservations, &offset];
    let of_keys: [&(dyn ToSql + Sync); 2] = [&asked.scopes, &asked.keys];
    let of_merchants: [&(dyn ToSql + Sync); 2] = [&asked.merchants, &asked.box_types];
    let makes = !asked.merchants.is_empty() || !asked.box_types.is_empty();
    let has_keys = !asked.keys.is_empty();
    // What nobody asks for is not asked for.
    let statements: [(bool, Statement<'_>); 8] = [
        (true, (lock, &locked)),
        (true, (&items_sql, &items_values)),
        (!asked.reservations.is_empty(), (&mentioned_sql, &[&asked.reservations])),
        (!asked.buyers.is_empty(), (&open_sql, &[&asked.bought, &asked.buyers])),
        (makes, (BOX_TYPES, &[&asked.box_types])),
        (makes, (MERCHANTS, &of_merchants)),
        (has_keys, (LOCK_KEYS, &of_keys)),
        (has_keys, (KEYS, &of_keys)),
    ];
    let wanted_ones = statements.iter().filter(|(wanted, _)| *wanted).map(|(_, statement)| *statement);
    let mut answers = tx.in_a_row(&wanted_ones.collect::<Vec<_>>()).await?.into_iter();
    let rows =
        statements.map(|(wanted, _)| if wanted { answers.next().unwrap_or_default() } else { Vec::new() });
    let [locked, items, mentioned, open, types, merchants, locks, keys] = &rows;
    let now = locked.first().map_or(Timestamp::default(), |locked| row::time(locked, 0));
    let mut books = Books::at(now, wanted);
    for found in items {
        books.item(item(found));
    }
    for found in mentioned.iter().chain(open) {
        books.reservation(reservation(found));
    }
    for found in types {
        books.box_type(BoxType { id: found.get(0), merchant_id: found.get(1), name: found.get(2) });
    }
    for found in merchants {
        books.merchant(Merchant { id: found.get(0), name: found.get(1), timezone: found.get(2) });
    }
    let key = |found: &Row| IdempotencyKey { scope: found.get(0), key: found.get(1) };
    for lock in locks.iter().filter(|lock| !lock.get::<_, bool>(2)) {
        books.busy_key(key(lock));
    }
    for found in keys {
        // What cannot be read was decided by another version: nothing is decided over it.
        match serde_json::from_str(found.get(3)) {
            Ok(verdict) => books.key(key(found), found.get(2), verdict),
            Err(_) => books.busy_key(key(found)),
        }
    }
    if items
        .iter()
        .map(item)
        .any(|item| item.lapsed > 0 && u64::from(item.remaining) < units_of(wanted, &item.id))
    {
        load_lapsed(tx, asked, &mut books).await?;
    }
    load_missing_items(tx, &mut books).await?;
    Ok(books)
}

fn units_of(wanted: &Wanted, item: &str) -> u64 {
    wanted.items.get(item).copied().unwrap_or(0)
}

/// Reads holds whose time is over, of inventories that have less left than is asked of them.
async fn load_lapsed(tx: &Tx<'_>, asked: &Asked, books: &mut Books) -> Result<(), Error> {
    let sql = format!(
        "SELECT {} FROM unnest($1::text[], $2::bigint[]) AS wanted (item, units)
          CROSS JOIN LATERAL (SELECT id, remaining FROM inventory AS i WHERE i.id = wanted.item LIMIT 1) AS inventory
          CROSS JOIN LATERAL (SELECT * FROM reservations
                               WHERE inventory_id = inventory.id AND status <= 1 AND payment = 0
                                 AND expires_at <= $3
                               ORDER BY expires_at, id
                               LIMIT least(greatest(wanted.units - inventory.remaining, 0), {LAPSED_MAX})) AS lapsed
          ORDER BY lapsed.expires_at, lapsed.id",
        prefixed("lapsed")
    );
    for found in &tx.query(&sql, &[&asked.items, &asked.units, &books.now().as_millis()]).await? {
        books.lapsed(reservation(found));
    }
    Ok(())
}

/// Reads inventories of reservations that were read, where they were not: a buyer has something else, or waits for it.
pub(crate) async fn load_missing_items(tx: &Tx<'_>, books: &mut Books) -> Result<(), Error> {
    let missing = books.missing_items();
    if missing.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "SELECT {ITEM} FROM (SELECT $2::bigint AS now_ms) AS clock, unnest($1::text[]) AS wanted (id)
          CROSS JOIN LATERAL (SELECT * FROM inventory AS i WHERE i.id = wanted.id LIMIT 1) AS inventory, {LAPSED}"
    );
    for found in &tx.query(&sql, &[&missing, &books.now().as_millis()]).await? {
        books.item(item(found));
    }
    Ok(())
}

/// A statement with its values.
type Statement<'a> = (&'a str, Values<'a>);

const BOX_TYPES: &str = "SELECT id, merchant_id, name FROM box_types WHERE id = ANY ($1)";
const MERCHANTS: &str = "SELECT id, name, timezone FROM merchants
              WHERE id = ANY ($1) OR id IN (SELECT merchant_id FROM box_types WHERE id = ANY ($2))";
/// Whoever decides for a key has its lock until the commit; what is not to be had is under way elsewhere.
const LOCK_KEYS: &str =
    "SELECT scope, key, pg_try_advisory_xact_lock(hashtextextended(scope || E'\\n' || key, 20))
               FROM unnest($1::text[], $2::text[]) AS wanted (scope, key)";
const KEYS: &str = "SELECT scope, key, digest, verdict
               FROM unnest($1::text[], $2::text[]) AS wanted (scope, key)
              CROSS JOIN LATERAL (SELECT digest, verdict FROM idempotency_keys AS known
                                   WHERE known.scope = wanted.scope AND known.key = wanted.key LIMIT 1) AS known";

/// The columns of a reservation, of a table by this name.
pub(crate) fn prefixed(table: &str) -> String {
    RESERVATION.split(", ").map(|column| format!("{table}.{column}")).collect::<Vec<_>>().join(", ")
}

/// Writes what has changed, each row only if it is as it was read: one round trip.
async fn write(tx: &Tx<'_>, books: &Books, guarded: bool) -> Result<(), Error> {
    write_new(tx, books).await?;
    let jobs = books.new_jobs();
    let jobs: Vec<&NewJob> = jobs.iter().collect();
    // In this order: who had a reservation that has ended may have another.
    let writes = [
        update_items(books, guarded),
        update_reservations(books, guarded),
        insert_reservations(books),
        waitlist::update(books),
        waitlist::insertion(books),
        insert_keys(books),
        event::insertion(books.events(), books.now()),
        job::insertion(&jobs, Some(books.now()), tx.offset_ms()).map(|(write, _)| write),
    ];
    tx.write_in_a_row(writes.into_iter().flatten().collect()).await
}

/// Merchants, box types and inventories that are made.
async fn write_new(tx: &Tx<'_>, books: &Books) -> Result<(), Error> {
    for merchant in books.new_merchants() {
        let sql = "INSERT INTO merchants (id, name, timezone) VALUES ($1, $2, $3)";
        tx.execute(sql, &[&merchant.id, &merchant.name, &merchant.timezone]).await?;
    }
    for made in books.new_box_types() {
        let sql = "INSERT INTO box_types (id, merchant_id, name) VALUES ($1, $2, $3)";
        tx.execute(sql, &[&made.id, &made.merchant_id, &made.name]).await?;
    }
    for item in books.new_items() {
        let pricing = item.pricing.as_ref().and_then(|pricing| serde_json::to_string(pricing).ok());
        tx.execute(
            "INSERT INTO inventory (id, merchant_id, box_type_id, original, remaining, held, paid, collected, withdrawn,
                                    price, currency, pricing, pickup_start, pickup_end, closed, version)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)",
            // As the batch left it: some of it may have been sold since.
            &[
                &item.id,
                &item.merchant_id,
                &item.box_type_id,
                &count(item.original),
                &count(item.remaining),
                &count(item.held),
                &count(item.paid),
                &count(item.collected),
                &count(item.withdrawn),
                &item.price,
                &item.currency,
                &pricing,
                &item.pickup_start.as_millis(),
                &item.pickup_end.as_millis(),
                &item.closed,
                &signed(item.version),
            ],
        )
        .await?;
    }
    Ok(())
}

fn count(units: u32) -> i32 {
    i32::try_from(units).unwrap_or(i32::MAX)
}

/// Ends the transaction unless so many rows were as they had been read.
pub(crate) const EXPECTED: &str = "SELECT solely_expect((SELECT count(*) FROM done), $1)";

fn update_items(books: &Books, guarded: bool) -> Option<Write<'_>> {
    let changed = books.changed_items();
    if changed.is_empty() {
        return None;
    }
    let counts =
        |of: fn(&Inventory) -> u32| changed.iter().map(|(item, _)| count(of(item))).collect::<Vec<i32>>();
    let ids: Vec<&str> = changed.iter().map(|(item, _)| item.id.as_str()).collect();
    let versions: Vec<i64> = changed.iter().map(|(_, version)| signed(*version)).collect();
    let closed: Vec<bool> = changed.iter().map(|(item, _)| item.closed).collect();
    let expected = i64::try_from(changed.len()).unwrap_or(i64::MAX);
    let sql = format!(
        "WITH done AS (
             UPDATE inventory
                SET original = new.original, remaining = new.remaining, held = new.held, paid = new.paid,
                    collected = new.collected, withdrawn = new.withdrawn, closed = new.closed,
                    version = inventory.version + 1
               FROM unnest($2::text[], $3::integer[], $4::integer[], $5::integer[], $6::integer[], $7::integer[],
                           $8::integer[], $9::boolean[], $10::bigint[])
                    AS new (id, original, remaining, held, paid, collected, withdrawn, closed, version)
              WHERE inventory.id = new.id AND (inventory.version = new.version OR NOT $11)
             RETURNING 1)
         {EXPECTED}"
    );
    Some(Write {
        sql,
        values: vec![
            Box::new(expected),
            Box::new(ids),
            Box::new(counts(|item| item.original)),
            Box::new(counts(|item| item.remaining)),
            Box::new(counts(|item| item.held)),
            Box::new(counts(|item| item.paid)),
            Box::new(counts(|item| item.collected)),
            Box::new(counts(|item| item.withdrawn)),
            Box::new(closed),
            Box::new(versions),
            Box::new(guarded),
        ],
    })
}

fn update_reservations(books: &Books, guarded: bool) -> Option<Write<'_>> {
    let changed = books.changed_reservations();
    if changed.is_empty() {
        return None;
    }
    let times = |of: fn(&Reservation) -> Option<Timestamp>| {
        changed.iter().map(|(row, _, _)| of(row).map(Timestamp::as_millis)).collect::<Vec<Option<i64>>>()
    };
    let codes = |of: fn(&(&Reservation, ReservationStatus, PaymentStatus)) -> u8| {
        changed.iter().map(|row| i16::from(of(row))).collect::<Vec<i16>>()
    };
    let ids: Vec<Uuid> = changed.iter().map(|(row, _, _)| uuid(row.id)).collect();
    let expected = if guarded { i64::try_from(changed.len()).unwrap_or(i64::MAX) } else { -1 };
    let sql = format!(
        "WITH done AS (
             UPDATE reservations
                SET status = new.status, payment = new.payment, expires_at = new.expires_at,
                    completed_at = new.completed_at, cancelled_at = new.cancelled_at, wrong_codes = new.wrong_codes,
                    blocked_until = new.blocked_until, reserved_at = new.reserved_at
               FROM unnest($2::uuid[], $3::smallint[], $4::smallint[], $5::bigint[], $6::bigint[], $7::bigint[],
                           $8::smallint[], $9::bigint[], $10::smallint[], $11::smallint[], $12::bigint[])
                    AS new (id, status, payment, expires_at, completed_at, cancelled_at, wrong_codes, blocked_until,
                            was_status, was_payment, reserved_at)
              WHERE reservations.id = new.id AND reservations.status = new.was_status
                AND reservations.payment = new.was_payment
             RETURNING 1)
         {}",
        if guarded { EXPECTED } else { "SELECT $1::bigint" }
    );
    Some(Write {
        sql,
        values: vec![
            Box::new(expected),
            Box::new(ids),
            Box::new(codes(|row| row.0.status.code())),
            Box::new(codes(|row| row.0.payment_status.code())),
            Box::new(times(|row| Some(row.expires_at))),
            Box::new(times(|row| row.completed_at)),
            Box::new(times(|row| row.cancelled_at)),
            Box::new(codes(|row| row.0.inner.wrong_codes)),
            Box::new(times(|row| Some(row.inner.blocked_until))),
            Box::new(codes(|row| row.1.code())),
            Box::new(codes(|row| row.2.code())),
            Box::new(times(|row| Some(row.reserved_at))),
        ],
    })
}

fn insert_reservations(books: &Books) -> Option<Write<'_>> {
    let made = books.new_reservations();
    if made.is_empty() {
        return None;
    }
    let texts = |of: fn(&Reservation) -> &str| made.iter().map(|row| of(row)).collect::<Vec<&str>>();
    let times = |of: fn(&Reservation) -> Option<Timestamp>| {
        made.iter().map(|row| of(row).map(Timestamp::as_millis)).collect::<Vec<Option<i64>>>()
    };
    let codes = |of: fn(&Reservation) -> u8| made.iter().map(|row| i16::from(of(row))).collect::<Vec<i16>>();
    let ids: Vec<Uuid> = made.iter().map(|row| uuid(row.id)).collect();
    let quantities: Vec<i32> = made.iter().map(|row| count(row.quantity)).collect();
    let amounts: Vec<i64> = made.iter().map(|row| row.total_amount).collect();
    let offered: Vec<bool> = made.iter().map(|row| row.inner.offered).collect();
    let sql = format!(
        "INSERT INTO reservations ({RESERVATION}, told_until, told_of, told_as)
         SELECT made.*, CASE WHEN made.told_until IS NOT NULL THEN nextval('events_id_seq') END
           FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::smallint[], $7::text[],
                       $8::integer[], $9::bigint[], $10::text[], $11::bigint[], $12::bigint[], $13::bigint[],
                       $14::bigint[], $15::boolean[], $16::smallint[], $17::bigint[], $18::bigint[], $19::text[])
                AS made ({RESERVATION}, told_until, told_of)"
    );
    // In the same order. Reservations that are offered, and any in a batch with events, are told of by those.
    let makings = books.makings();
    let mut told = makings.iter().peekable();
    let told: Vec<Option<&Making>> =
        made.iter().map(|row| told.next_if(|making| making.id == row.id)).collect();
    Some(Write {
        sql,
        values: vec![
            Box::new(ids),
            Box::new(texts(|row| &row.user_id)),
            Box::new(texts(|row| &row.merchant_id)),
            Box::new(texts(|row| &row.box_inventory_id)),
            Box::new(codes(|row| row.status.code())),
            Box::new(codes(|row| row.payment_status.code())),
            Box::new(texts(|row| &row.pickup_code)),
            Box::new(quantities),
            Box::new(amounts),
            Box::new(texts(|row| &row.currency)),
            Box::new(times(|row| Some(row.reserved_at))),
            Box::new(times(|row| Some(row.expires_at))),
            Box::new(times(|row| row.completed_at)),
            Box::new(times(|row| row.cancelled_at)),
            Box::new(offered),
            Box::new(codes(|row| row.inner.wrong_codes)),
            Box::new(times(|row| Some(row.inner.blocked_until))),
            Box::new(told.iter().map(|told| Some((*told)?.until.as_millis())).collect::<Vec<Option<i64>>>()),
            Box::new(told.iter().map(|told| (*told)?.request_id.as_deref()).collect::<Vec<Option<&str>>>()),
        ],
    })
}

fn insert_keys(books: &Books) -> Option<Write<'_>> {
    // In their order, so that batches that have the same wait for each other, and not in a circle.
    let mut made: Vec<_> = books.new_keys().iter().collect();
    if made.is_empty() {
        return None;
    }
    made.sort_by_key(|(key, _, _)| key);
    let scopes: Vec<&str> = made.iter().map(|(key, _, _)| key.scope.as_str()).collect();
    let keys: Vec<&str> = made.iter().map(|(key, _, _)| key.key.as_str()).collect();
    let digests: Vec<&str> = made.iter().map(|(_, digest, _)| digest.as_str()).collect();
    let verdicts: Vec<String> =
        made.iter().map(|(_, _, verdict)| serde_json::to_string(verdict).unwrap_or_default()).collect();
    Some(Write {
        sql: "INSERT INTO idempotency_keys (scope, key, digest, verdict, at)
         SELECT scope, key, digest, verdict, $5
           FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS made (scope, key, digest, verdict)"
            .to_owned(),
        values: vec![
            Box::new(scopes),
            Box::new(keys),
            Box::new(digests),
            Box::new(verdicts),
            Box::new(books.now().as_millis()),
        ],
    })
}

/// Keys of idempotency that were made before an instant are forgotten.
pub(crate) const PRUNE_KEYS: &str = "DELETE FROM idempotency_keys WHERE (scope, key) IN
        (SELECT scope, key FROM idempotency_keys WHERE at <= $1 ORDER BY at LIMIT $2)";
