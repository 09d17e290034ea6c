//! Waiting lists: what a batch reads and writes of them, and how they are listed.

use std::collections::HashSet;

use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};
use solely_core::clock::Timestamp;
use solely_core::reserve::waitlist::OVERDUE_MAX;
use solely_core::reserve::{Books, Line, Request, Wait, WaitFilter, WaitStatus, WaitView, Wanted};
use solely_core::{ReservationId, WaitId};

use crate::reserve::{RESERVATION, as_it_was_read, read_item, reservation};
use crate::row::{self, signed};
use crate::writer::Tx;

const WAIT: &str = "id, inventory_id, merchant_id, user_id, ordinal, status, reservation_id, created_at";

fn wait(found: &Row<'_>) -> Result<Wait, Error> {
    let status: u8 = found.get(5)?;
    let wrong = || {
        let wrong = FromSqlError::OutOfRange(i64::from(status));
        Error::FromSqlConversionFailure(5, Type::Integer, Box::new(wrong))
    };
    Ok(Wait {
        id: WaitId::from_bytes(found.get(0)?),
        inventory_id: found.get(1)?,
        merchant_id: found.get(2)?,
        user_id: found.get(3)?,
        ordinal: row::unsigned(found, 4)?,
        status: WaitStatus::from_code(status).ok_or_else(wrong)?,
        reservation_id: found.get::<_, Option<[u8; 16]>>(6)?.map(ReservationId::from_bytes),
        created_at: row::time(found, 7)?,
    })
}

/// Reads what is needed where someone waits, behind all else that a batch needs.
pub(crate) fn load(
    conn: &Connection,
    wanted: &Wanted,
    requests: &[Request],
    books: &mut Books,
) -> Result<(), Error> {
    for id in &wanted.waits {
        let mut find = conn.prepare_cached(&format!("SELECT {WAIT} FROM waitlist WHERE id = ?1"))?;
        if let Some(found) = find.query_row([id.as_bytes()], wait).optional()? {
            books.wait(found);
        }
    }
    let merchants = books.waited_merchants();
    if merchants.is_empty() {
        return Ok(());
    }
    let now = books.now();
    for merchant in &merchants {
        let mut find = conn.prepare_cached(&format!(
            "SELECT {RESERVATION} FROM reservations INDEXED BY reservations_ending
              WHERE status <= 1 AND expires_at <= ?1 AND merchant_id = ?2 ORDER BY expires_at, id LIMIT ?3"
        ))?;
        for found in find.query_map(params![now.as_millis(), merchant, OVERDUE_MAX], reservation)? {
            books.overdue(found?);
        }
    }
    load_owners(conn, wanted, books)?;
    for id in books.missing_items() {
        if let Some(item) = read_item(conn, now, &id)? {
            books.item(item);
        }
    }
    load_lines(conn, requests, books)
}

/// Open reservations and live entries of everyone who owns something that was read, or asks for something.
fn load_owners(conn: &Connection, wanted: &Wanted, books: &mut Books) -> Result<(), Error> {
    for (merchant, user) in books.owners() {
        let mut find = conn.prepare_cached(&format!(
            "SELECT {RESERVATION} FROM reservations INDEXED BY reservations_open
              WHERE merchant_id = ?1 AND user_id = ?2 AND status <= 1"
        ))?;
        for found in find.query_map((&merchant, &user), reservation)? {
            books.reservation(found?);
        }
        let mut find = conn.prepare_cached(&format!(
            "SELECT {WAIT} FROM waitlist INDEXED BY waitlist_live
              WHERE merchant_id = ?1 AND user_id = ?2 AND status <= 1"
        ))?;
        for found in find.query_map((&merchant, &user), wait)? {
            let found = found?;
            if wanted.joined.contains(&found.inventory_id) && found.status == WaitStatus::Waiting {
                books.ahead(found.id, ahead(conn, &found)?);
            }
            books.wait(found);
        }
    }
    for id in &wanted.joined {
        let mut find = conn.prepare_cached(
            "SELECT count(*) FILTER (WHERE status = 0), coalesce(max(ordinal), 0)
               FROM waitlist INDEXED BY waitlist_line WHERE inventory_id = ?1 AND status <= 1",
        )?;
        let line = find.query_row([id], |found| {
            Ok(Line { waiting: row::unsigned(found, 0)?, last: row::unsigned(found, 1)? })
        })?;
        books.line(id.clone(), line);
    }
    Ok(())
}

/// How many wait ahead of an entry.
fn ahead(conn: &Connection, wait: &Wait) -> Result<u64, Error> {
    let mut count = conn.prepare_cached(
        "SELECT count(*) FROM waitlist INDEXED BY waitlist_line
          WHERE inventory_id = ?1 AND ordinal < ?2 AND status <= 1 AND status = 0",
    )?;
    count.query_row((&wait.inventory_id, signed(wait.ordinal)), |found| row::unsigned(found, 0))
}

/// Of each line as many of those who may have a box as could be offered one.
fn load_lines(conn: &Connection, requests: &[Request], books: &mut Books) -> Result<(), Error> {
    let ending: HashSet<ReservationId> = books.all_overdue().iter().copied().collect();
    for (item, most) in books.lines_wanted(requests) {
        let mut find = conn.prepare_cached(&format!(
            "SELECT {WAIT}, (SELECT id FROM reservations AS r INDEXED BY reservations_open
                              WHERE r.merchant_id = waitlist.merchant_id AND r.user_id = waitlist.user_id
                                AND r.status <= 1)
               FROM waitlist INDEXED BY waitlist_line
              WHERE inventory_id = ?1 AND status <= 1 AND status = 0 ORDER BY ordinal"
        ))?;
        let mut left = most;
        let mut rows = find.query([&item])?;
        while left > 0
            && let Some(found) = rows.next()?
        {
            let open = found.get::<_, Option<[u8; 16]>>(8)?.map(ReservationId::from_bytes);
            if open.is_none_or(|open| ending.contains(&open)) {
                books.wait(wait(found)?);
                left -= 1;
            }
        }
    }
    Ok(())
}

/// Writes what has changed, each row only if it is as it was read.
pub(crate) fn write(tx: &Tx<'_>, books: &Books) -> Result<(), Error> {
    for (changed, before) in books.changed_waits() {
        let mut update = tx.conn.prepare_cached(
            "UPDATE waitlist SET status = ?2, reservation_id = ?3 WHERE id = ?1 AND status = ?4",
        )?;
        let offered = changed.reservation_id.map(|id| *id.as_bytes());
        as_it_was_read(update.execute(params![
            changed.id.as_bytes(),
            changed.status.code(),
            offered,
            before.code()
        ])?)?;
    }
    for made in books.new_waits() {
        let mut insert = tx.conn.prepare_cached(&format!(
            "INSERT INTO waitlist ({WAIT}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)"
        ))?;
        insert.execute(params![
            made.id.as_bytes(),
            made.inventory_id,
            made.merchant_id,
            made.user_id,
            signed(made.ordinal),
            made.status.code(),
            made.reservation_id.map(|id| *id.as_bytes()),
            made.created_at.as_millis(),
        ])?;
    }
    Ok(())
}

/// Entries that wait for an inventory whose window has closed.
const OVER: &str = "FROM waitlist AS w INDEXED BY waitlist_line JOIN inventory AS i ON i.id = w.inventory_id
          WHERE w.status <= 1 AND w.status = 0 AND i.pickup_end <= ?1";

/// Whether anyone waits for what will never be offered.
pub(crate) fn any_over(conn: &Connection, now: Timestamp) -> Result<bool, Error> {
    let mut find = conn.prepare_cached(&format!("SELECT EXISTS (SELECT 1 {OVER})"))?;
    find.query_row([now.as_millis()], |found| found.get(0))
}

/// Ends the wait of some of those.
pub(crate) fn close(tx: &Tx<'_>, limit: u32) -> Result<u64, Error> {
    let mut update = tx.conn.prepare_cached(&format!(
        "UPDATE waitlist SET status = 4 WHERE id IN (SELECT w.id {OVER} LIMIT ?2)"
    ))?;
    update.execute(params![tx.now_ms(), limit]).map(|closed| closed as u64)
}

/// A page of a waiting list. An offer whose time is over is not in it any more.
pub(crate) fn list(
    conn: &Connection,
    now: Timestamp,
    filter: &WaitFilter,
) -> Result<Vec<(u64, WaitView)>, Error> {
    let mut find = conn.prepare_cached(&format!(
        "SELECT {WAIT} FROM waitlist INDEXED BY waitlist_line
          WHERE inventory_id = ?1 AND ordinal > ?2 AND status <= 1 AND (?5 IS NULL OR user_id = ?5)
            AND (status = 0 OR EXISTS (SELECT 1 FROM reservations AS r
                                        WHERE r.id = waitlist.reservation_id AND r.status = 1 AND r.expires_at > ?3))
          ORDER BY ordinal LIMIT ?4"
    ))?;
    let after = signed(filter.after.unwrap_or(0));
    let found = find.query_map(
        params![filter.inventory_id, after, now.as_millis(), filter.limit, filter.user_id],
        wait,
    )?;
    let found = found.collect::<Result<Vec<Wait>, Error>>()?;
    let first = found.iter().find(|wait| wait.status == WaitStatus::Waiting);
    let mut before = first.map_or(Ok(0), |wait| ahead(conn, wait))?;
    Ok(found
        .into_iter()
        .map(|wait| {
            let view = wait.view(before);
            before += u64::from(wait.status == WaitStatus::Waiting);
            (wait.ordinal, view)
        })
        .collect())
}
