//! Waiting lists: what a batch reads and writes of them, and how they are listed.
//!
//! Where nobody waits nothing of this is read. Where someone does, a batch takes four round trips more, all of them under
//! its merchant's lock.

use solely_core::reserve::waitlist::{OVERDUE_MAX, WAITING_MAX};
use solely_core::reserve::{Books, Line, Request, Wait, WaitFilter, WaitStatus, WaitView, Wanted};
use solely_core::{ReservationId, StoreError, WaitId};
use tokio_postgres::{Error, Row};
use uuid::Uuid;

use crate::reserve::{EXPECTED, RESERVATION, load_missing_items, prefixed, reservation, uuid};
use crate::row::{self, signed};
use crate::transaction::Write;
use crate::{PostgresStore, Tx};

const WAIT: &str =
    "w.id, w.inventory_id, w.merchant_id, w.user_id, w.ordinal, w.status, w.reservation_id, w.created_at";

fn wait(found: &Row) -> Wait {
    let status = u8::try_from(found.get::<_, i16>(5)).unwrap_or(u8::MAX);
    Wait {
        id: WaitId::from_bytes(found.get::<_, Uuid>(0).into_bytes()),
        inventory_id: found.get(1),
        merchant_id: found.get(2),
        user_id: found.get(3),
        ordinal: row::unsigned(found, 4),
        status: WaitStatus::from_code(status).expect("the column's CHECK allows known states only"),
        reservation_id: found.get::<_, Option<Uuid>>(6).map(|id| ReservationId::from_bytes(id.into_bytes())),
        created_at: row::time(found, 7),
    }
}

/// Reads what is needed where someone waits, behind all else that a batch needs.
pub(crate) async fn load(
    tx: &Tx<'_>,
    wanted: &Wanted,
    requests: &[Request],
    books: &mut Books,
) -> Result<(), Error> {
    if !wanted.waits.is_empty() {
        let ids: Vec<Uuid> = wanted.waits.iter().map(|id| Uuid::from_bytes(*id.as_bytes())).collect();
        let sql = format!(
            "SELECT {WAIT} FROM unnest($1::uuid[]) AS wanted (id)
              CROSS JOIN LATERAL (SELECT * FROM waitlist AS l WHERE l.id = wanted.id LIMIT 1) AS w"
        );
        for found in &tx.query(&sql, &[&ids]).await? {
            books.wait(wait(found));
        }
    }
    let merchants = books.waited_merchants();
    if merchants.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "SELECT {RESERVATION} FROM reservations
          WHERE status <= 1 AND expires_at <= $1 AND merchant_id = ANY ($2) ORDER BY expires_at, id LIMIT $3"
    );
    let values = [&books.now().as_millis() as _, &merchants as _, &i64::from(OVERDUE_MAX) as _];
    for found in &tx.query(&sql, &values).await? {
        books.overdue(reservation(found));
    }
    load_owners(tx, wanted, books).await?;
    load_missing_items(tx, books).await?;
    load_lines(tx, requests, books).await
}

/// Open reservations and live entries of everyone who owns something that was read, or asks for something.
async fn load_owners(tx: &Tx<'_>, wanted: &Wanted, books: &mut Books) -> Result<(), Error> {
    let (merchants, users): (Vec<String>, Vec<String>) = books.owners().into_iter().unzip();
    let joined: Vec<&String> = wanted.joined.iter().collect();
    let open = format!(
        "SELECT {} FROM unnest($1::text[], $2::text[]) AS owner (merchant_id, user_id)
          CROSS JOIN LATERAL (SELECT * FROM reservations AS r
                               WHERE r.merchant_id = owner.merchant_id AND r.user_id = owner.user_id AND r.status <= 1
                               LIMIT 1) AS open",
        prefixed("open")
    );
    let waits = format!(
        "SELECT {WAIT}, CASE WHEN w.status = 0 AND w.inventory_id = ANY ($3::text[])
                             THEN (SELECT count(*) FROM waitlist AS a
                                    WHERE a.inventory_id = w.inventory_id AND a.ordinal < w.ordinal
                                      AND a.status <= 1 AND a.status = 0) END
           FROM unnest($1::text[], $2::text[]) AS owner (merchant_id, user_id)
          CROSS JOIN LATERAL (SELECT * FROM waitlist AS l
                               WHERE l.merchant_id = owner.merchant_id AND l.user_id = owner.user_id
                                 AND l.status <= 1 LIMIT {WAITING_MAX}) AS w"
    );
    let lines = "SELECT joined.id, count(*) FILTER (WHERE w.status = 0), coalesce(max(w.ordinal), 0)
                   FROM unnest($1::text[]) AS joined (id)
                   LEFT JOIN LATERAL (SELECT status, ordinal FROM waitlist AS l
                                       WHERE l.inventory_id = joined.id AND l.status <= 1
                                       ORDER BY l.ordinal LIMIT 1000000) AS w ON true
                  GROUP BY joined.id";
    let found = tx
        .in_a_row(&[
            (&open, &[&merchants, &users]),
            (&waits, &[&merchants, &users, &joined]),
            (lines, &[&joined]),
        ])
        .await?;
    let [open, waits, lines] = found.as_slice() else { unreachable!("as many answers as statements") };
    for found in open {
        books.reservation(reservation(found));
    }
    for found in waits {
        let wait = wait(found);
        if let Some(ahead) = found.get::<_, Option<i64>>(8) {
            books.ahead(wait.id, u64::try_from(ahead).unwrap_or(0));
        }
        books.wait(wait);
    }
    for found in lines {
        let line = Line { waiting: row::unsigned(found, 1), last: row::unsigned(found, 2) };
        books.line(found.get(0), line);
    }
    Ok(())
}

/// Of each line as many of those who may have a box as could be offered one.
async fn load_lines(tx: &Tx<'_>, requests: &[Request], books: &mut Books) -> Result<(), Error> {
    let (items, most): (Vec<String>, Vec<i64>) =
        books.lines_wanted(requests).into_iter().map(|(id, most)| (id, signed(most))).unzip();
    let ending: Vec<Uuid> = books.all_overdue().iter().map(|id| uuid(*id)).collect();
    let sql = format!(
        "SELECT {WAIT} FROM unnest($1::text[], $2::bigint[]) AS line (item, most)
          CROSS JOIN LATERAL (SELECT * FROM waitlist AS l
                               WHERE l.inventory_id = line.item AND l.status <= 1 AND l.status = 0
                                 AND NOT EXISTS (SELECT 1 FROM reservations AS r
                                                  WHERE r.merchant_id = l.merchant_id AND r.user_id = l.user_id
                                                    AND r.status <= 1 AND NOT (r.id = ANY ($3::uuid[])))
                               ORDER BY l.ordinal LIMIT line.most) AS w"
    );
    for found in &tx.query(&sql, &[&items, &most, &ending]).await? {
        books.wait(wait(found));
    }
    Ok(())
}

/// Writes entries that have changed, each only if it is as it was read.
pub(crate) fn update(books: &Books) -> Option<Write<'_>> {
    let changed = books.changed_waits();
    if changed.is_empty() {
        return None;
    }
    let sql = format!(
        "WITH done AS (
             UPDATE waitlist
                SET status = new.status, reservation_id = new.reservation_id
               FROM unnest($2::uuid[], $3::smallint[], $4::uuid[], $5::smallint[])
                    AS new (id, status, reservation_id, was)
              WHERE waitlist.id = new.id AND waitlist.status = new.was
             RETURNING 1)
         {EXPECTED}"
    );
    let id = |wait: &Wait| Uuid::from_bytes(*wait.id.as_bytes());
    Some(Write {
        sql,
        values: vec![
            Box::new(i64::try_from(changed.len()).unwrap_or(i64::MAX)),
            Box::new(changed.iter().map(|(wait, _)| id(wait)).collect::<Vec<Uuid>>()),
            Box::new(changed.iter().map(|(wait, _)| i16::from(wait.status.code())).collect::<Vec<i16>>()),
            Box::new(
                changed.iter().map(|(wait, _)| wait.reservation_id.map(uuid)).collect::<Vec<Option<Uuid>>>(),
            ),
            Box::new(changed.iter().map(|(_, was)| i16::from(was.code())).collect::<Vec<i16>>()),
        ],
    })
}

/// Writes entries that are made.
pub(crate) fn insertion(books: &Books) -> Option<Write<'_>> {
    let made = books.new_waits();
    if made.is_empty() {
        return None;
    }
    let texts = |of: fn(&Wait) -> &str| made.iter().map(|wait| of(wait)).collect::<Vec<&str>>();
    let sql = "INSERT INTO waitlist (id, inventory_id, merchant_id, user_id, ordinal, status, reservation_id, created_at)
               SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::smallint[],
                                    $7::uuid[], $8::bigint[])";
    Some(Write {
        sql: sql.to_owned(),
        values: vec![
            Box::new(made.iter().map(|wait| Uuid::from_bytes(*wait.id.as_bytes())).collect::<Vec<Uuid>>()),
            Box::new(texts(|wait| &wait.inventory_id)),
            Box::new(texts(|wait| &wait.merchant_id)),
            Box::new(texts(|wait| &wait.user_id)),
            Box::new(made.iter().map(|wait| signed(wait.ordinal)).collect::<Vec<i64>>()),
            Box::new(made.iter().map(|wait| i16::from(wait.status.code())).collect::<Vec<i16>>()),
            Box::new(made.iter().map(|wait| wait.reservation_id.map(uuid)).collect::<Vec<Option<Uuid>>>()),
            Box::new(made.iter().map(|wait| wait.created_at.as_millis()).collect::<Vec<i64>>()),
        ],
    })
}

/// Ends the wait of those whose window has closed. Most of the time there are none, and nothing is written.
pub(crate) async fn close(store: &PostgresStore, limit: u32) -> Result<u64, StoreError> {
    let found = store
        .read(
            "UPDATE waitlist SET status = 4
              WHERE status = 0
                AND id IN (SELECT w.id FROM waitlist AS w
                            CROSS JOIN LATERAL (SELECT pickup_end FROM inventory AS i
                                                 WHERE i.id = w.inventory_id LIMIT 1) AS i
                            WHERE w.status <= 1 AND w.status = 0 AND i.pickup_end <= solely_now($1)
                            LIMIT $2)
             RETURNING 1",
            &[&store.work.clock.offset_ms(), &i64::from(limit)],
        )
        .await?;
    Ok(found.len() as u64)
}

/// A page of a waiting list. An offer whose time is over is not in it any more.
pub(crate) async fn list(
    store: &PostgresStore,
    filter: &WaitFilter,
) -> Result<Vec<(u64, WaitView)>, StoreError> {
    let sql = format!(
        "SELECT {WAIT}, (SELECT count(*) FROM waitlist AS a
                          WHERE a.inventory_id = $2 AND a.status <= 1 AND a.status = 0
                            AND a.ordinal <= CASE WHEN $5::text IS NULL THEN $3 ELSE w.ordinal - 1 END)
           FROM (SELECT solely_now($1) AS now_ms) AS clock, waitlist AS w
          WHERE w.inventory_id = $2 AND w.ordinal > $3 AND w.status <= 1 AND ($5 IS NULL OR w.user_id = $5)
            AND (w.status = 0 OR EXISTS (SELECT 1 FROM reservations AS r
                                          WHERE r.id = w.reservation_id AND r.status = 1 AND r.expires_at > now_ms))
          ORDER BY w.ordinal LIMIT $4"
    );
    let after = signed(filter.after.unwrap_or(0));
    let offset = store.work.clock.offset_ms();
    let found = store
        .read(&sql, &[&offset, &filter.inventory_id, &after, &i64::from(filter.limit), &filter.user_id])
        .await?;
    let mut before = found.first().map_or(0, |found| row::unsigned(found, 8));
    let view = |found: &Row| {
        let wait = wait(found);
        let view = wait.view(before);
        before += u64::from(wait.status == WaitStatus::Waiting);
        (wait.ordinal, view)
    };
    Ok(found.iter().map(view).collect())
}
