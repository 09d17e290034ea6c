//! Feeds: runs, partitions, pages, versions of records and the switch between them.
//!
//! One thread writes, so what a command looked at is still true when it acts upon it.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};
use solely_core::clock::{Timestamp, millis};
use solely_core::feed::{
    BEGINNING, Changed, Counts, FeedStore, Mode, NewPartition, NewRun, Page, Partition, PartitionKey,
    PartitionStatus, PinWhat, Pinned, Place, PriceRange, Record, Run, RunChange, RunState, RunStatus,
    Started, Step, StoredRecord, UpdatedWithin, WORK_ITEMS,
};
use solely_core::job::JobState;
use solely_core::{Json, RunId, StoreError, limits};

use crate::row::{signed, time, unsigned};
use crate::writer::Tx;
use crate::{SqliteStore, event, job};

#[async_trait]
impl FeedStore for SqliteStore {
    async fn start_run(&self, run: NewRun) -> Result<Started, StoreError> {
        self.writer.run("start_run", move |tx| start(tx, &run)).await
    }

    async fn run(&self, id: RunId) -> Result<Option<RunState>, StoreError> {
        let clock = self.clock.clone();
        self.read(move |conn| {
            let sql = format!("SELECT {RUN_COLUMNS} FROM run_metadata WHERE run_id = ?1");
            let found = conn.prepare_cached(&sql)?.query_row([id.to_string()], run).optional()?;
            found.map(|run| with_partitions(conn, run, clock.now())).transpose()
        })
        .await
    }

    async fn runs(
        &self,
        source: Option<String>,
        before: Option<RunId>,
        limit: u32,
    ) -> Result<Vec<RunState>, StoreError> {
        let (clock, before) =
            (self.clock.clone(), before.map_or_else(|| "~".to_owned(), |id| id.to_string()));
        self.read(move |conn| {
            let of_source = if source.is_some() { "source = ?1" } else { "?1 IS NULL" };
            let sql = format!(
                "SELECT {RUN_COLUMNS} FROM run_metadata WHERE {of_source} AND run_id < ?2
                  ORDER BY run_id DESC LIMIT ?3"
            );
            let mut list = conn.prepare_cached(&sql)?;
            let runs: Vec<Run> =
                list.query_map(params![source, before, limit], run)?.collect::<Result<_, _>>()?;
            runs.into_iter().map(|run| with_partitions(conn, run, clock.now())).collect()
        })
        .await
    }

    async fn place(&self, of: PartitionKey) -> Result<Option<Place>, StoreError> {
        self.read(move |conn| place(conn, &of)).await
    }

    async fn change_run(&self, change: RunChange) -> Result<Changed, StoreError> {
        self.writer.run("change_run", move |tx| change_run(tx, &change)).await
    }

    async fn stuck(
        &self,
        source: String,
        stuck_after: Duration,
        limit: u32,
    ) -> Result<Vec<PartitionKey>, StoreError> {
        let clock = self.clock.clone();
        self.read(move |conn| {
            let mut find = conn.prepare_cached(
                "SELECT progress.run_id, progress.partition_id
                   FROM run_metadata AS of_run
                   JOIN partition_progress AS progress USING (run_id)
                   JOIN worker_runs AS worker USING (run_id, partition_id)
                  WHERE of_run.source = ?1 AND of_run.status IN ('scheduling', 'running', 'consolidating')
                    AND of_run.status = 'running' AND worker.status = 'running'
                    AND progress.updated_at <= ?2
                    AND (progress.reported_at IS NULL OR progress.reported_at <= ?2)
                  ORDER BY progress.partition_id
                  LIMIT ?3",
            )?;
            let cutoff = clock.now().minus(stuck_after).as_millis();
            let key = |row: &Row<'_>| Ok(PartitionKey { run: run_id(row, 0)?, partition: row.get(1)? });
            find.query_map(params![source, cutoff, limit], key)?.collect()
        })
        .await
    }

    async fn consolidate(&self, run: RunId, within: Vec<PriceRange>) -> Result<bool, StoreError> {
        self.writer.housekeep("consolidate", move |tx| consolidate(tx, run, &within)).await
    }

    async fn counts(&self, run: RunId) -> Result<(Counts, u64), StoreError> {
        self.read(move |conn| {
            let mut count = conn.prepare_cached(
                "SELECT count(*) FILTER (WHERE kind = 2), count(*) FILTER (WHERE kind = 1),
                        count(*) FILTER (WHERE kind = 0), count(*) FILTER (WHERE kind = 3),
                        (SELECT current_records FROM feeds JOIN run_metadata USING (feed) WHERE run_id = ?1)
                   FROM run_metadata CROSS JOIN seen USING (feed, number)
                  WHERE run_id = ?1",
            )?;
            count.query_row([run.to_string()], |row| {
                let counts = Counts {
                    added: unsigned(row, 0)?,
                    changed: unsigned(row, 1)?,
                    unchanged: unsigned(row, 2)?,
                    removed: unsigned(row, 3)?,
                };
                Ok((counts, unsigned(row, 4)?))
            })
        })
        .await
    }

    async fn pin(&self, what: PinWhat) -> Result<Option<Pinned>, StoreError> {
        let cutoff = self.clock.now().minus(limits::STREAM_TIME).as_millis();
        self.read(move |conn| {
            let seen_only = matches!(what, PinWhat::Run(_));
            let pinned = |row: &Row<'_>| {
                let (number, base, forgotten) = (unsigned(row, 1)?, unsigned(row, 2)?, row.get(3)?);
                Ok(Pinned { feed: row.get(0)?, number, base, seen_only, forgotten })
            };
            match &what {
                PinWhat::Current(source) => conn
                    .prepare_cached(
                        "SELECT feed, current_number, current_number, 0 FROM feeds WHERE source = ?1",
                    )?
                    .query_row([source], pinned),
                PinWhat::Run(run) => conn
                    .prepare_cached(
                        "SELECT feed, number, min(number, current_number),
                                swept OR EXISTS (SELECT 1 FROM run_metadata AS later
                                                  WHERE later.feed = of_run.feed
                                                    AND later.number > of_run.number
                                                    AND later.status = 'completed'
                                                    AND later.completed_at <= ?2)
                           FROM run_metadata AS of_run JOIN feeds USING (feed)
                          WHERE run_id = ?1",
                    )?
                    .query_row(params![run.to_string(), cutoff], pinned),
            }
            .optional()
        })
        .await
    }

    async fn records(
        &self,
        pinned: Pinned,
        after: Option<String>,
        limit: u32,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let after = after.unwrap_or_default();
        self.read(move |conn| records(conn, pinned, &after, limit)).await
    }
}

fn run_id(row: &Row<'_>, column: usize) -> Result<RunId, Error> {
    let text: String = row.get(column)?;
    text.parse().map_err(|error| {
        Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
    })
}

fn status(row: &Row<'_>, column: usize) -> Result<RunStatus, Error> {
    let word: String = row.get(column)?;
    Ok(RunStatus::of_word(&word).expect("the table checks it"))
}

const RUN_COLUMNS: &str = "run_id, source, number, mode, status, force, page_limit, watermark_before,
    watermark_after, expected_workers, completed_workers, failed_workers, error, added, changed, unchanged,
    removed, started_at, running_at, completed_at, trace";

fn run(row: &Row<'_>) -> Result<Run, Error> {
    let mode = if row.get::<_, String>(3)? == "full" { Mode::Full } else { Mode::Incremental };
    let (from, to) = (row.get::<_, Option<i64>>(7)?, time(row, 8)?);
    let counts = match row.get::<_, Option<i64>>(13)? {
        Some(_) => Some(Counts {
            added: unsigned(row, 13)?,
            changed: unsigned(row, 14)?,
            unchanged: unsigned(row, 15)?,
            removed: unsigned(row, 16)?,
        }),
        None => None,
    };
    Ok(Run {
        id: run_id(row, 0)?,
        source: row.get(1)?,
        number: unsigned(row, 2)?,
        mode,
        status: status(row, 4)?,
        force: row.get(5)?,
        limit: row.get(6)?,
        updated: from.map(|from| UpdatedWithin { from: Timestamp::from_millis(from), to }),
        expected: row.get(9)?,
        completed: row.get(10)?,
        failed: row.get(11)?,
        error: row.get(12)?,
        counts,
        started_at: time(row, 17)?,
        running_at: row.get::<_, Option<i64>>(18)?.map(Timestamp::from_millis),
        completed_at: row.get::<_, Option<i64>>(19)?.map(Timestamp::from_millis),
        trace: row.get(20)?,
    })
}

fn with_partitions(conn: &Connection, run: Run, now: Timestamp) -> Result<RunState, Error> {
    let mut list = conn.prepare_cached(
        "SELECT progress.partition_id, min_price, max_price, total_records, next_offset, worker.status,
                records_processed, coalesce(jobs.attempts, worker.attempts),
                coalesce(worker.error, jobs.error), reported_at, progress.updated_at, jobs.state
           FROM partition_progress AS progress
           JOIN worker_runs AS worker USING (run_id, partition_id)
           LEFT JOIN jobs ON jobs.key = progress.run_id || ':' || progress.partition_id || ':' || next_offset
                         AND jobs.queue = ?2 AND jobs.live = 1
          WHERE progress.run_id = ?1
          ORDER BY place",
    )?;
    let partitions = list.query_map(params![run.id.to_string(), WORK_ITEMS], partition)?;
    let partitions = partitions.collect::<Result<_, _>>()?;
    Ok(RunState { run, partitions, now })
}

fn partition(row: &Row<'_>) -> Result<Partition, Error> {
    Ok(Partition {
        id: row.get(0)?,
        range: PriceRange { min: row.get(1)?, max: row.get(2)? },
        total: row.get::<_, Option<i64>>(3)?.and_then(|total| u64::try_from(total).ok()),
        next_offset: unsigned(row, 4)?,
        status: PartitionStatus::of_word(&row.get::<_, String>(5)?),
        records: unsigned(row, 6)?,
        attempts: row.get(7)?,
        error: row.get(8)?,
        reported_at: row.get::<_, Option<i64>>(9)?.map(Timestamp::from_millis),
        updated_at: time(row, 10)?,
        message: row.get::<_, Option<u8>>(11)?.and_then(JobState::from_code),
    })
}

fn place(conn: &Connection, of: &PartitionKey) -> Result<Option<Place>, Error> {
    let mut look = conn.prepare_cached(
        "SELECT of_run.status, worker.status, progress.next_offset
           FROM partition_progress AS progress
           JOIN worker_runs AS worker USING (run_id, partition_id)
           JOIN run_metadata AS of_run USING (run_id)
          WHERE progress.run_id = ?1 AND progress.partition_id = ?2",
    )?;
    look.query_row(params![of.run.to_string(), of.partition], |row| {
        Ok(Place {
            run: status(row, 0)?,
            status: PartitionStatus::of_word(&row.get::<_, String>(1)?),
            next_offset: unsigned(row, 2)?,
        })
    })
    .optional()
}

fn start(tx: &Tx<'_>, new: &NewRun) -> Result<Started, Error> {
    tx.conn
        .prepare_cached("INSERT INTO feeds (source) VALUES (?1) ON CONFLICT DO NOTHING")?
        .execute([&new.source])?;
    if let Some(run) = active(tx, &new.source)? {
        return Ok(Started::Active { run });
    }
    let (feed, number, watermark, last) = tx
        .conn
        .prepare_cached("SELECT feed, last_number + 1, watermark, started_at FROM feeds WHERE source = ?1")?
        .query_row([&new.source], |row| {
            let (watermark, last): (Option<i64>, Option<i64>) = (row.get(2)?, row.get(3)?);
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, watermark, last))
        })?;
    let too_soon =
        |within: Duration| last.is_some_and(|last| tx.now < Timestamp::from_millis(last).plus(within));
    if new.not_within.is_some_and(too_soon) {
        return Ok(Started::NotDue);
    }
    let from = (new.mode == Mode::Incremental).then(|| {
        watermark
            .map_or(BEGINNING.as_millis(), |at| Timestamp::from_millis(at).minus(new.overlap).as_millis())
    });
    tx.conn
        .prepare_cached("UPDATE feeds SET last_number = ?2, started_at = ?3 WHERE feed = ?1")?
        .execute((feed, number, tx.now_ms()))?;
    let mode = if new.mode == Mode::Full { "full" } else { "incremental" };
    tx.conn
        .prepare_cached(
            "INSERT INTO run_metadata (run_id, feed, source, number, mode, status, force, page_limit,
                                       watermark_before, watermark_after, trace, started_at)
             VALUES (?1, ?2, ?3, ?4, ?5, 'scheduling', ?6, ?7, ?8, ?9, ?10, ?9)",
        )?
        .execute(params![
            new.id.to_string(),
            feed,
            new.source,
            number,
            mode,
            new.force,
            new.limit,
            from,
            tx.now_ms(),
            new.trace,
        ])?;
    make_partitions(tx, new.id, &new.partitions)?;
    job::enqueue_one(tx, &new.job)?;
    event::insert(tx, &new.event)?;
    Ok(Started::Started)
}

fn active(tx: &Tx<'_>, source: &str) -> Result<Option<RunId>, Error> {
    tx.conn
        .prepare_cached(
            "SELECT run_id FROM run_metadata
              WHERE source = ?1 AND status IN ('scheduling', 'running', 'consolidating')",
        )?
        .query_row([source], |row| run_id(row, 0))
        .optional()
}

/// Makes partitions; of one that is there, only the count is new.
fn make_partitions(tx: &Tx<'_>, run: RunId, partitions: &[NewPartition]) -> Result<(), Error> {
    let mut progress = tx.conn.prepare_cached(
        "INSERT INTO partition_progress (run_id, partition_id, place, min_price, max_price, total_records,
                                         created_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)
             ON CONFLICT (run_id, partition_id) DO UPDATE
            SET total_records = excluded.total_records, updated_at = excluded.updated_at",
    )?;
    let mut worker = tx.conn.prepare_cached(
        "INSERT INTO worker_runs (run_id, partition_id, status) VALUES (?1, ?2, 'running') ON CONFLICT DO NOTHING",
    )?;
    let run = run.to_string();
    for (place, partition) in (1_i64..).zip(partitions) {
        let total = partition.total.map(signed);
        let PriceRange { min, max } = partition.range;
        progress.execute(params![run, partition.id, place, min, max, total, tx.now_ms()])?;
        worker.execute(params![run, partition.id])?;
    }
    Ok(())
}

/// Takes one step that commits with its job. False if its condition does not hold.
pub(crate) fn take(tx: &Tx<'_>, step: &Step) -> Result<bool, Error> {
    match step {
        Step::Page(page) => write_page(tx, page),
        Step::Begin { run, partitions } => begin(tx, *run, partitions),
        Step::At { of, offset } => is_at(tx, of, *offset),
        Step::FailPartition { of, offset, error, attempts } => {
            fail_partition(tx, of, *offset, error, *attempts)
        }
        Step::End { run, completed, failed, to, error } => {
            let ended = (*to == RunStatus::Failed).then_some(tx.now_ms());
            let mut end = tx.conn.prepare_cached(
                "UPDATE run_metadata SET status = ?4, error = ?5, completed_at = ?6
                  WHERE run_id = ?1 AND status = 'running' AND completed_workers = ?2
                    AND failed_workers = ?3 AND expected_workers = ?2 + ?3",
            )?;
            let values = params![run.to_string(), completed, failed, to.word(), error, ended];
            Ok(end.execute(values)? == 1)
        }
        Step::Switch { run, counts, move_watermark } => switch(tx, *run, counts, *move_watermark),
        Step::FailRun { run, from, error } => {
            let mut fail = tx.conn.prepare_cached(
                "UPDATE run_metadata SET status = 'failed', error = ?3, completed_at = ?4
                  WHERE run_id = ?1 AND status = ?2",
            )?;
            Ok(fail.execute(params![run.to_string(), from.word(), error, tx.now_ms()])? == 1)
        }
    }
}

/// Writes a page if its partition is where the page begins, has work left, and its run is running.
fn write_page(tx: &Tx<'_>, page: &Page) -> Result<bool, Error> {
    if !is_at(tx, &page.of, page.offset)? {
        return Ok(false);
    }
    let run = page.of.run.to_string();
    let mut advance = tx.conn.prepare_cached(
        "UPDATE partition_progress
            SET next_offset = ?3, completed = ?4, reported_at = NULL, updated_at = ?5
          WHERE run_id = ?1 AND partition_id = ?2
         RETURNING place",
    )?;
    let place: i64 = advance.query_row(
        params![run, page.of.partition, signed(page.next_offset), page.last, tx.now_ms()],
        |row| row.get(0),
    )?;
    let mut find = tx.conn.prepare_cached(
        "SELECT feed, number, current_number FROM run_metadata JOIN feeds USING (feed) WHERE run_id = ?1",
    )?;
    let (feed, number, base) = find.query_row([&run], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let of = Writing { run: &run, feed, number, base, place };
    let mut records = 0_i64;
    for record in &page.records {
        records += i64::from(write_record(tx, &of, record)?);
    }
    let mut count = tx.conn.prepare_cached(
        "UPDATE worker_runs
            SET records_processed = records_processed + ?3, pages_processed = pages_processed + 1,
                status = iif(?4, 'completed', 'running'), error = NULL
          WHERE run_id = ?1 AND partition_id = ?2",
    )?;
    count.execute(params![run, page.of.partition, records, page.last])?;
    if page.last {
        tx.conn
            .prepare_cached(
                "UPDATE run_metadata SET completed_workers = completed_workers + 1 WHERE run_id = ?1",
            )?
            .execute([&run])?;
    }
    Ok(true)
}

/// The run and the partition that a record is of.
struct Writing<'a> {
    run: &'a str,
    feed: i64,
    number: i64,
    base: i64,
    place: i64,
}

/// Writes a record where it differs from the version that is current, or from the run's own.
/// True if the run had not seen it.
fn write_record(tx: &Tx<'_>, of: &Writing<'_>, record: &Record) -> Result<bool, Error> {
    let mut look = tx.conn.prepare_cached(
        "SELECT number, removed, hash = ?5
           FROM records
          WHERE feed = ?1 AND id = ?2 AND (number <= ?3 OR number = ?4)
          ORDER BY number DESC
          LIMIT 1",
    )?;
    let known: Option<(i64, bool, bool)> = look
        .query_row(params![of.feed, record.id, of.base, of.number, record.hash], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let kind = match known {
        Some((number, _, same)) if number == of.number => {
            if !same {
                rewrite(tx, of, record)?;
            }
            return Ok(false);
        }
        None | Some((_, true, _)) => 2,
        Some((_, _, false)) => 1,
        Some((_, _, true)) => 0,
    };
    if kind > 0 {
        let mut insert = tx.conn.prepare_cached(
            "INSERT INTO records (feed, id, number, run_id, removed, hash, low, high, updated_at, payload)
             VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7, ?8, ?9)",
        )?;
        insert.execute(params![
            of.feed,
            record.id,
            of.number,
            of.run,
            record.hash,
            record.price.min,
            record.price.max,
            tx.now_ms(),
            record.payload.as_str(),
        ])?;
    }
    let mut see = tx.conn.prepare_cached(
        "INSERT INTO seen (feed, number, id, kind, place) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING",
    )?;
    let new = see.execute(params![of.feed, of.number, record.id, kind, of.place])? == 1;
    if !new && kind > 0 {
        tx.conn
            .prepare_cached(
                "UPDATE seen SET kind = ?4 WHERE feed = ?1 AND number = ?2 AND id = ?3 AND kind = 0",
            )?
            .execute(params![of.feed, of.number, record.id, kind])?;
    }
    Ok(new)
}

/// The run saw it before, with another payload.
fn rewrite(tx: &Tx<'_>, of: &Writing<'_>, record: &Record) -> Result<(), Error> {
    let mut update = tx.conn.prepare_cached(
        "UPDATE records SET hash = ?4, low = ?5, high = ?6, updated_at = ?7, payload = ?8
          WHERE feed = ?1 AND id = ?2 AND number = ?3",
    )?;
    let PriceRange { min, max } = record.price;
    let payload = record.payload.as_str();
    update
        .execute(params![of.feed, record.id, of.number, record.hash, min, max, tx.now_ms(), payload])
        .map(drop)
}

fn begin(tx: &Tx<'_>, run: RunId, partitions: &[NewPartition]) -> Result<bool, Error> {
    let mut begin = tx.conn.prepare_cached(
        "UPDATE run_metadata SET status = 'running', expected_workers = ?2, running_at = ?3
          WHERE run_id = ?1 AND status = 'scheduling'",
    )?;
    let expected = signed(partitions.len() as u64);
    if begin.execute(params![run.to_string(), expected, tx.now_ms()])? == 0 {
        return Ok(false);
    }
    make_partitions(tx, run, partitions)?;
    Ok(true)
}

/// Whether a partition has work left, there, and its run is running.
fn is_at(tx: &Tx<'_>, of: &PartitionKey, offset: u64) -> Result<bool, Error> {
    let place = place(tx.conn, of)?;
    Ok(place.is_some_and(|place| {
        place.run == RunStatus::Running
            && place.status == PartitionStatus::Running
            && place.next_offset == offset
    }))
}

fn fail_partition(
    tx: &Tx<'_>,
    of: &PartitionKey,
    offset: u64,
    error: &str,
    attempts: u32,
) -> Result<bool, Error> {
    if !is_at(tx, of, offset)? {
        return Ok(false);
    }
    let run = of.run.to_string();
    tx.conn
        .prepare_cached(
            "UPDATE worker_runs SET status = 'failed', error = ?3, attempts = ?4
              WHERE run_id = ?1 AND partition_id = ?2",
        )?
        .execute(params![run, of.partition, error, attempts])?;
    tx.conn
        .prepare_cached(
            "UPDATE partition_progress SET updated_at = ?3 WHERE run_id = ?1 AND partition_id = ?2",
        )?
        .execute(params![run, of.partition, tx.now_ms()])?;
    tx.conn
        .prepare_cached("UPDATE run_metadata SET failed_workers = failed_workers + 1 WHERE run_id = ?1")?
        .execute([&run])?;
    Ok(true)
}

fn switch(tx: &Tx<'_>, run: RunId, counts: &Counts, move_watermark: bool) -> Result<bool, Error> {
    let counted = [counts.added, counts.changed, counts.unchanged, counts.removed].map(signed);
    let mut complete = tx.conn.prepare_cached(
        "UPDATE run_metadata
            SET status = 'completed', completed_at = ?2, error = NULL, added = ?3, changed = ?4,
                unchanged = ?5, removed = ?6
          WHERE run_id = ?1 AND status = 'consolidating'",
    )?;
    let values = params![run.to_string(), tx.now_ms(), counted[0], counted[1], counted[2], counted[3]];
    if complete.execute(values)? == 0 {
        return Ok(false);
    }
    tx.conn
        .prepare_cached(
            "UPDATE feeds
                SET current_number = of_run.number,
                    current_records = current_records + of_run.added - of_run.removed,
                    watermark = CASE WHEN ?2 THEN max(coalesce(watermark, 0), of_run.watermark_after)
                                     ELSE watermark END
               FROM run_metadata AS of_run
              WHERE of_run.run_id = ?1 AND feeds.feed = of_run.feed",
        )?
        .execute(params![run.to_string(), move_watermark])?;
    Ok(true)
}

fn change_run(tx: &Tx<'_>, change: &RunChange) -> Result<Changed, Error> {
    let id = change.run.to_string();
    let found = tx
        .conn
        .prepare_cached(
            "SELECT status, number, consolidated_to IS NOT NULL, current_number, feeds.source
               FROM run_metadata JOIN feeds USING (feed) WHERE run_id = ?1",
        )?
        .query_row([&id], |row| {
            let numbers: (i64, i64) = (row.get(1)?, row.get(3)?);
            Ok((status(row, 0)?, numbers, row.get::<_, bool>(2)?, row.get::<_, String>(4)?))
        })
        .optional()?;
    let Some((from, (number, current), marked, source)) = found else { return Ok(Changed::Otherwise) };
    if from != change.from || !all_where_they_were_seen(tx, change)? {
        return Ok(Changed::Otherwise);
    }
    if change.to.is_active() && !change.from.is_active() {
        if let Some(run) = active(tx, &source)? {
            return Ok(Changed::Active { run });
        }
        if current > number {
            return Ok(Changed::Superseded);
        }
    }
    if marked && change.to == RunStatus::Running {
        forget_removals(tx, &id)?;
    }
    set_going(tx, change)?;
    let ended = (!change.to.is_active()).then_some(tx.now_ms());
    tx.conn
        .prepare_cached(
            "UPDATE run_metadata
                SET status = ?2, completed_at = ?3, error = iif(?3 IS NULL, NULL, error),
                    completed_workers = (SELECT count(*) FROM worker_runs
                                          WHERE worker_runs.run_id = ?1 AND worker_runs.status = 'completed'),
                    failed_workers = (SELECT count(*) FROM worker_runs
                                       WHERE worker_runs.run_id = ?1 AND worker_runs.status = 'failed')
              WHERE run_id = ?1",
        )?
        .execute(params![id, change.to.word(), ended])?;
    for (queue, key) in &change.cancel {
        job::cancel_one(tx, queue, key)?;
    }
    for job in &change.jobs {
        job::enqueue_one(tx, job)?;
    }
    for told in &change.events {
        event::insert(tx, told)?;
    }
    Ok(Changed::Made)
}

fn all_where_they_were_seen(tx: &Tx<'_>, change: &RunChange) -> Result<bool, Error> {
    let going = change.going.iter().map(|going| (&going.partition, going.seen_at));
    let stuck = change.stuck.iter().map(|(partition, at)| (partition, *at));
    for (partition, at) in going.chain(stuck) {
        let of = PartitionKey { run: change.run, partition: partition.clone() };
        if place(tx.conn, &of)?.is_none_or(|place| place.next_offset != at) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn set_going(tx: &Tx<'_>, change: &RunChange) -> Result<(), Error> {
    let id = change.run.to_string();
    let mut progress = tx.conn.prepare_cached(
        "UPDATE partition_progress
            SET next_offset = ?3, completed = 0, reported_at = NULL, updated_at = ?4
          WHERE run_id = ?1 AND partition_id = ?2",
    )?;
    let mut worker = tx.conn.prepare_cached(
        "UPDATE worker_runs SET status = 'running', error = NULL, attempts = 0
          WHERE run_id = ?1 AND partition_id = ?2",
    )?;
    for going in &change.going {
        progress.execute(params![id, going.partition, signed(going.next_offset), tx.now_ms()])?;
        worker.execute(params![id, going.partition])?;
    }
    let mut report = tx.conn.prepare_cached(
        "UPDATE partition_progress SET reported_at = ?3 WHERE run_id = ?1 AND partition_id = ?2",
    )?;
    for (partition, _) in &change.stuck {
        report.execute(params![id, partition, tx.now_ms()])?;
    }
    Ok(())
}

/// What a consolidation that was broken off had marked, before its run goes on.
fn forget_removals(tx: &Tx<'_>, id: &str) -> Result<(), Error> {
    for table in ["records", "seen"] {
        let sql = format!(
            "DELETE FROM {table}
              WHERE (feed, number) = (SELECT feed, number FROM run_metadata WHERE run_id = ?1)
                AND id IN (SELECT id FROM seen JOIN run_metadata USING (feed, number)
                            WHERE run_id = ?1 AND kind = 3)"
        );
        tx.conn.prepare_cached(&sql)?.execute([id])?;
    }
    tx.conn
        .prepare_cached("UPDATE run_metadata SET consolidated_to = NULL WHERE run_id = ?1")?
        .execute([id])
        .map(drop)
}

fn consolidate(tx: &Tx<'_>, run: RunId, within: &[PriceRange]) -> Result<bool, Error> {
    let id = run.to_string();
    let found: Option<(i64, i64, i64, Option<String>)> = tx
        .conn
        .prepare_cached(
            "SELECT feed, number, current_number, consolidated_to
               FROM run_metadata JOIN feeds USING (feed)
              WHERE run_id = ?1 AND status = 'consolidating'",
        )?
        .query_row([&id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .optional()?;
    let Some((feed, number, base, after)) = found else { return Ok(false) };
    if take_away_left_behind(tx, feed, base, number)? {
        return Ok(true);
    }
    if within.is_empty() {
        return Ok(false);
    }
    let mut look = tx.conn.prepare_cached(
        "SELECT id, removed, low, high
           FROM records
          WHERE feed = ?1 AND id > ?2 AND number <= ?3
            AND number = (SELECT max(number) FROM records AS later
                           WHERE later.feed = records.feed AND later.id = records.id AND later.number <= ?3)
          ORDER BY id
          LIMIT ?4",
    )?;
    let mut see = tx.conn.prepare_cached(
        "INSERT INTO seen (feed, number, id, kind, place) VALUES (?1, ?2, ?3, 3, -1) ON CONFLICT DO NOTHING",
    )?;
    let mut mark = tx.conn.prepare_cached(
        "INSERT INTO records (feed, id, number, run_id, removed, hash, low, high, updated_at, payload)
         VALUES (?1, ?2, ?3, ?4, 1, '', 0, 0, ?5, '') ON CONFLICT DO NOTHING",
    )?;
    let values = params![feed, after.unwrap_or_default(), base, limits::CONSOLIDATE_BATCH];
    let looked: Vec<(String, bool, i64, i64)> = look
        .query_map(values, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
        .collect::<Result<_, _>>()?;
    for (id_of_record, removed, low, high) in &looked {
        let fetched = within.iter().any(|range| range.min <= *low && *high <= range.max);
        if !removed && fetched && see.execute(params![feed, number, id_of_record])? == 1 {
            mark.execute(params![feed, id_of_record, number, id, tx.now_ms()])?;
        }
    }
    if let Some((last, ..)) = looked.last() {
        tx.conn
            .prepare_cached("UPDATE run_metadata SET consolidated_to = ?2 WHERE run_id = ?1")?
            .execute(params![id, last])?;
    }
    Ok(looked.len() == limits::CONSOLIDATE_BATCH as usize)
}

/// Versions of runs between the current one and this: they never became current, and nobody can go
/// on with them once this one does. True if there was something.
fn take_away_left_behind(tx: &Tx<'_>, feed: i64, base: i64, number: i64) -> Result<bool, Error> {
    let left: Option<(String, i64)> = tx
        .conn
        .prepare_cached(
            "SELECT run_id, number FROM run_metadata
              WHERE feed = ?1 AND number > ?2 AND number < ?3 AND NOT swept
              ORDER BY number LIMIT 1",
        )?
        .query_row((feed, base, number), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((id, number)) = left else { return Ok(false) };
    if forget_seen(tx, feed, number, true, limits::CONSOLIDATE_BATCH)? == 0 {
        swept(tx, &id)?;
    }
    Ok(true)
}

fn swept(tx: &Tx<'_>, id: &str) -> Result<(), Error> {
    tx.conn.prepare_cached("UPDATE run_metadata SET swept = 1 WHERE run_id = ?1")?.execute([id]).map(drop)
}

/// Forgets what a run saw, a few at a time, with the versions it wrote if they are not to be kept.
fn forget_seen(tx: &Tx<'_>, feed: i64, number: i64, with_versions: bool, batch: u32) -> Result<usize, Error> {
    let mut find =
        tx.conn.prepare_cached("SELECT id FROM seen WHERE feed = ?1 AND number = ?2 ORDER BY id LIMIT ?3")?;
    let mut forget =
        tx.conn.prepare_cached("DELETE FROM seen WHERE feed = ?1 AND number = ?2 AND id = ?3")?;
    let mut delete =
        tx.conn.prepare_cached("DELETE FROM records WHERE feed = ?1 AND number = ?2 AND id = ?3")?;
    let ids: Vec<String> =
        find.query_map((feed, number, batch), |row| row.get(0))?.collect::<Result<_, _>>()?;
    for id in &ids {
        forget.execute(params![feed, number, id])?;
        if with_versions {
            delete.execute(params![feed, number, id])?;
        }
    }
    Ok(ids.len())
}

/// Sweeps up behind runs: one that was given up long ago, one that has been current for long
/// enough; then takes away one that is past its retention. Answers how many rows went and whether
/// there is more.
pub(crate) fn prune(tx: &Tx<'_>, kept: Duration) -> Result<(usize, bool), Error> {
    let cutoff = tx.now_ms().saturating_sub(millis(kept));
    let given_up: Option<(String, i64, i64)> = tx
        .conn
        .prepare_cached(
            "SELECT run_id, feed, number FROM run_metadata
              WHERE status IN ('failed', 'cancelled') AND completed_at <= ?1 AND NOT swept
              ORDER BY run_id LIMIT 1",
        )?
        .query_row([cutoff], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    if let Some((id, feed, number)) = given_up {
        let gone = forget_seen(tx, feed, number, true, limits::PRUNE_BATCH)?;
        if gone == 0 {
            swept(tx, &id)?;
        }
        return Ok((gone, true));
    }
    let (gone, more) = sweep(tx)?;
    if more {
        return Ok((gone, true));
    }
    let old: Option<String> = tx
        .conn
        .prepare_cached(
            "DELETE FROM run_metadata
              WHERE run_id = (SELECT run_id FROM run_metadata WHERE completed_at <= ?1 AND swept
                               ORDER BY run_id LIMIT 1)
             RETURNING run_id",
        )?
        .query_row([cutoff], |row| row.get(0))
        .optional()?;
    let Some(old) = old else { return Ok((0, false)) };
    for table in ["partition_progress", "worker_runs"] {
        tx.conn.prepare_cached(&format!("DELETE FROM {table} WHERE run_id = ?1"))?.execute([&old])?;
    }
    Ok((1, true))
}

/// Sweeps up behind one run that has been current for long enough: versions that its own replaced,
/// and, once a later one is current, what it saw.
fn sweep(tx: &Tx<'_>) -> Result<(usize, bool), Error> {
    let cutoff = tx.now.minus(limits::STREAM_TIME * 2).as_millis();
    let found: Option<(String, i64, i64, bool, String)> = tx
        .conn
        .prepare_cached(
            "SELECT run_id, feed, number, versions_swept, coalesce(swept_to, '')
               FROM run_metadata AS of_run
              WHERE status = 'completed' AND completed_at <= ?1 AND NOT swept
                AND (NOT versions_swept OR EXISTS (
                        SELECT 1 FROM run_metadata AS later
                         WHERE later.feed = of_run.feed AND later.number > of_run.number
                           AND later.status = 'completed' AND later.completed_at <= ?1))
              ORDER BY number LIMIT 1",
        )?
        .query_row([cutoff], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))
        .optional()?;
    let Some((id, feed, number, versions_swept, after)) = found else { return Ok((0, false)) };
    if versions_swept {
        let gone = forget_seen(tx, feed, number, false, limits::PRUNE_BATCH)?;
        if gone == 0 {
            swept(tx, &id)?;
        }
        return Ok((gone, true));
    }
    let mut look = tx.conn.prepare_cached(
        "SELECT id, kind FROM seen WHERE feed = ?1 AND number = ?2 AND id > ?3 ORDER BY id LIMIT ?4",
    )?;
    let looked: Vec<(String, i64)> = look
        .query_map(params![feed, number, after, limits::PRUNE_BATCH], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let mut delete = tx.conn.prepare_cached(
        "DELETE FROM records WHERE feed = ?1 AND id = ?2 AND (number < ?3 OR ?4 = 3 AND number = ?3)",
    )?;
    let mut gone = 0;
    for (id, kind) in looked.iter().filter(|(_, kind)| *kind > 0) {
        gone += delete.execute(params![feed, id, number, kind])?;
    }
    let last = looked.last().map(|(id, _)| id.as_str());
    tx.conn
        .prepare_cached("UPDATE run_metadata SET swept_to = ?2, versions_swept = ?3 WHERE run_id = ?1")?
        .execute(params![id, last, last.is_none()])?;
    Ok((gone, true))
}

fn records(conn: &Connection, pinned: Pinned, after: &str, limit: u32) -> Result<Vec<StoredRecord>, Error> {
    // The version that counts of each id is found by its index, whichever table is walked.
    let sql = if pinned.seen_only {
        "SELECT records.id, payload, run_id, updated_at
           FROM seen
           JOIN records ON records.feed = seen.feed AND records.id = seen.id
                       AND records.number = (SELECT max(number) FROM records AS version
                                              WHERE version.feed = seen.feed AND version.id = seen.id
                                                AND (version.number = ?2 OR version.number <= ?5))
          WHERE seen.feed = ?1 AND seen.number = ?2 AND seen.kind < 3 AND seen.id > ?3
          ORDER BY seen.id
          LIMIT ?4"
    } else {
        "SELECT id, payload, run_id, updated_at
           FROM records
          WHERE feed = ?1 AND id > ?3 AND number <= ?2 AND number <= ?5 AND NOT removed
            AND number = (SELECT max(number) FROM records AS version
                           WHERE version.feed = records.feed AND version.id = records.id
                             AND version.number <= ?2)
          ORDER BY id
          LIMIT ?4"
    };
    let mut read = conn.prepare_cached(sql)?;
    let values = params![pinned.feed, signed(pinned.number), after, limit, signed(pinned.base)];
    let found = read.query_map(values, |row| {
        Ok(StoredRecord {
            id: row.get(0)?,
            payload: Json::from_stored(row.get(1)?),
            run: run_id(row, 2)?,
            updated_at: time(row, 3)?,
        })
    })?;
    found.collect()
}
