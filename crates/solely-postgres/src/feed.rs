//! Feeds: runs, partitions, pages, versions of records and the switch between them.
//!
//! Pages of one settlement are written by one call, records in one order, so that two batches that
//! meet wait for each other and never in a circle. The run's row is locked last, and only when a
//! partition ends. What people ask for locks the source's row first.

use std::time::Duration;

use async_trait::async_trait;
use solely_core::clock::{Timestamp, millis};
use solely_core::event::NewEvent;
use solely_core::feed::{
    BEGINNING, Changed, Counts, FeedStore, Mode, NewPartition, NewRun, Page, Partition, PartitionKey,
    PartitionStatus, PinWhat, Pinned, Place, PriceRange, Record, Run, RunChange, RunState, RunStatus,
    Started, Step, StoredRecord, UpdatedWithin, WORK_ITEMS,
};
use solely_core::job::NewJob;
use solely_core::{Json, RunId, StoreError, limits};
use tokio_postgres::{Error, Row};
use uuid::Uuid;

use crate::batch::Together;
use crate::connection::Connections;
use crate::row::{self, signed};
use crate::transaction::transact;
use crate::{PostgresStore, Tx, event, job};

#[async_trait]
impl FeedStore for PostgresStore {
    async fn start_run(&self, run: NewRun) -> Result<Started, StoreError> {
        transact!(self.work, |tx| start(tx, &run).await)
    }

    async fn run(&self, id: RunId) -> Result<Option<RunState>, StoreError> {
        let sql = format!("SELECT {RUN_COLUMNS}, solely_now($2) FROM run_metadata WHERE run_id = $1");
        let offset_ms = self.work.clock.offset_ms();
        let rows = self.read(&sql, &[&uuid(id), &offset_ms]).await?;
        Ok(self.with_partitions(&rows).await?.pop())
    }

    async fn runs(
        &self,
        source: Option<String>,
        before: Option<RunId>,
        limit: u32,
    ) -> Result<Vec<RunState>, StoreError> {
        let of_source = if source.is_some() { "source = $1" } else { "$1::text IS NULL" };
        let sql = format!(
            "SELECT {RUN_COLUMNS}, solely_now($4) FROM run_metadata
              WHERE {of_source} AND run_id < coalesce($2, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
              ORDER BY run_id DESC LIMIT $3"
        );
        let (before, offset_ms) = (before.map(uuid), self.work.clock.offset_ms());
        let rows = self.read(&sql, &[&source, &before, &i64::from(limit), &offset_ms]).await?;
        self.with_partitions(&rows).await
    }

    async fn place(&self, of: PartitionKey) -> Result<Option<Place>, StoreError> {
        self.places.submit(of).await
    }

    async fn change_run(&self, change: RunChange) -> Result<Changed, StoreError> {
        transact!(self.work, |tx| change_run(tx, &change).await)
    }

    async fn stuck(
        &self,
        source: String,
        stuck_after: Duration,
        limit: u32,
    ) -> Result<Vec<PartitionKey>, StoreError> {
        let sql = "SELECT progress.run_id, progress.partition_id
                     FROM run_metadata AS of_run
                     JOIN partition_progress AS progress USING (run_id)
                     JOIN worker_runs AS worker USING (run_id, partition_id)
                    WHERE of_run.source = $1 AND of_run.status IN ('scheduling', 'running', 'consolidating')
                      AND of_run.status = 'running' AND worker.status = 'running'
                      AND solely_ms(progress.updated_at) <= solely_now($3) - $2
                      AND (progress.reported_at IS NULL OR progress.reported_at <= solely_now($3) - $2)
                    ORDER BY progress.partition_id
                    LIMIT $4";
        let offset_ms = self.work.clock.offset_ms();
        let rows = self.read(sql, &[&source, &millis(stuck_after), &offset_ms, &i64::from(limit)]).await?;
        Ok(rows.iter().map(|row| PartitionKey { run: run_id(row, 0), partition: row.get(1) }).collect())
    }

    async fn consolidate(&self, run: RunId, within: Vec<PriceRange>) -> Result<bool, StoreError> {
        transact!(self.work, |tx| consolidate(tx, run, &within).await)
    }

    async fn counts(&self, run: RunId) -> Result<(Counts, u64), StoreError> {
        let sql = "SELECT count(*) FILTER (WHERE kind = 2), count(*) FILTER (WHERE kind = 1),
                          count(*) FILTER (WHERE kind = 0), count(*) FILTER (WHERE kind = 3),
                          (SELECT current_records FROM feeds JOIN run_metadata USING (feed) WHERE run_id = $1)
                     FROM run_metadata JOIN seen USING (feed, number)
                    WHERE run_id = $1";
        let rows = self.read(sql, &[&uuid(run)]).await?;
        let row = rows.first().ok_or_else(|| StoreError::Unavailable("no counts".to_owned()))?;
        let count = |column| row::unsigned(row, column);
        let counts = Counts { added: count(0), changed: count(1), unchanged: count(2), removed: count(3) };
        Ok((counts, count(4)))
    }

    async fn pin(&self, what: PinWhat) -> Result<Option<Pinned>, StoreError> {
        let rows = match &what {
            PinWhat::Current(source) => {
                let sql = "SELECT feed, current_number, current_number, false FROM feeds WHERE source = $1";
                self.read(sql, &[source]).await?
            }
            PinWhat::Run(run) => {
                let sql = "SELECT feed, number, least(number, current_number),
                                  swept OR EXISTS (SELECT 1 FROM run_metadata AS later
                                                    WHERE later.feed = of_run.feed
                                                      AND later.number > of_run.number
                                                      AND later.status = 'completed'
                                                      AND later.completed_at <= solely_now($2) - $3)
                             FROM run_metadata AS of_run JOIN feeds USING (feed)
                            WHERE run_id = $1";
                let (offset_ms, kept) = (self.work.clock.offset_ms(), millis(limits::STREAM_TIME));
                self.read(sql, &[&uuid(*run), &offset_ms, &kept]).await?
            }
        };
        let seen_only = matches!(what, PinWhat::Run(_));
        Ok(rows.first().map(|row| Pinned {
            feed: i64::from(row.get::<_, i32>(0)),
            number: row::unsigned(row, 1),
            base: row::unsigned(row, 2),
            seen_only,
            forgotten: row.get(3),
        }))
    }

    async fn records(
        &self,
        pinned: Pinned,
        after: Option<String>,
        limit: u32,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let sql = if pinned.seen_only {
            "SELECT version.id, version.payload, version.run_id, version.updated_at
               FROM seen
              CROSS JOIN LATERAL (SELECT id, payload, run_id, updated_at
                                    FROM records
                                   WHERE records.feed = seen.feed AND records.id = seen.id
                                     AND (records.number = $2 OR records.number <= $5)
                                   ORDER BY records.number DESC
                                   LIMIT 1) AS version
              WHERE seen.feed = $1 AND seen.number = $2 AND seen.kind < 3 AND seen.id > $3
              ORDER BY seen.id
              LIMIT $4"
        } else {
            "SELECT id, payload, run_id, updated_at
               FROM (SELECT DISTINCT ON (id) id, removed, payload, run_id, updated_at
                       FROM records
                      WHERE feed = $1 AND number <= $2 AND number <= $5 AND id > $3
                      ORDER BY id, number DESC) AS version
              WHERE NOT removed
              LIMIT $4"
        };
        let feed = i32::try_from(pinned.feed).unwrap_or_default();
        let (number, base) = (signed(pinned.number), signed(pinned.base));
        let after = after.unwrap_or_default();
        let rows = self.read(sql, &[&feed, &number, &after, &i64::from(limit), &base]).await?;
        let record = |row: &Row| StoredRecord {
            id: row.get(0),
            payload: Json::from_stored(row.get(1)),
            run: run_id(row, 2),
            updated_at: row::time(row, 3),
        };
        Ok(rows.iter().map(record).collect())
    }
}

/// Looks at where partitions are, of all pages that are about to be fetched.
pub(crate) struct PlaceLooks(pub(crate) Connections);

#[async_trait]
impl Together for PlaceLooks {
    type Request = PartitionKey;
    type Answer = Option<Place>;

    fn weight(_: &PartitionKey) -> usize {
        1
    }

    async fn run(&self, of: &[PartitionKey]) -> Result<Vec<Option<Place>>, StoreError> {
        let sql = "SELECT wanted.nth::integer, found.run, found.status, found.next_offset
                     FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS wanted (run, partition, nth)
                    CROSS JOIN LATERAL (SELECT of_run.status AS run, worker.status, progress.next_offset
                                          FROM partition_progress AS progress
                                          JOIN worker_runs AS worker USING (run_id, partition_id)
                                          JOIN run_metadata AS of_run USING (run_id)
                                         WHERE progress.run_id = wanted.run
                                           AND progress.partition_id = wanted.partition
                                         LIMIT 1) AS found";
        let runs: Vec<Uuid> = of.iter().map(|key| uuid(key.run)).collect();
        let partitions: Vec<&str> = of.iter().map(|key| key.partition.as_str()).collect();
        let mut places = vec![None; of.len()];
        for row in &self.0.read(sql, &[&runs, &partitions]).await? {
            places[row::place(row, 0)] = Some(Place {
                run: status(row, 1),
                status: PartitionStatus::of_word(row.get(2)),
                next_offset: row::unsigned(row, 3),
            });
        }
        Ok(places)
    }
}

fn uuid(id: RunId) -> Uuid {
    row::uuid(id.as_bytes())
}

fn run_id(row: &Row, column: usize) -> RunId {
    RunId::from_bytes(row.get::<_, Uuid>(column).into_bytes())
}

fn status(row: &Row, column: usize) -> RunStatus {
    RunStatus::of_word(row.get(column)).expect("the table checks it")
}

const RUN_COLUMNS: &str = "run_id, source, number, mode, status, force, page_limit, watermark_before,
    watermark_after, expected_workers, completed_workers, failed_workers, error, added, changed, unchanged,
    removed, started_at, running_at, completed_at, trace";

fn run(row: &Row) -> Run {
    let mode = if row.get::<_, &str>(3) == "full" { Mode::Full } else { Mode::Incremental };
    let count = |column| u32::try_from(row.get::<_, i32>(column)).unwrap_or(0);
    let from = row.get::<_, Option<i64>>(7).map(Timestamp::from_millis);
    let found = |column| row.get::<_, Option<i64>>(column).and_then(|count| u64::try_from(count).ok());
    let counts = || {
        Some(Counts { added: found(13)?, changed: found(14)?, unchanged: found(15)?, removed: found(16)? })
    };
    Run {
        id: run_id(row, 0),
        source: row.get(1),
        number: row::unsigned(row, 2),
        mode,
        status: status(row, 4),
        force: row.get(5),
        limit: count(6),
        updated: from.map(|from| UpdatedWithin { from, to: row::time(row, 8) }),
        expected: count(9),
        completed: count(10),
        failed: count(11),
        error: row.get(12),
        counts: counts(),
        started_at: row::time(row, 17),
        running_at: row.get::<_, Option<i64>>(18).map(Timestamp::from_millis),
        completed_at: row.get::<_, Option<i64>>(19).map(Timestamp::from_millis),
        trace: row.get(20),
    }
}

impl PostgresStore {
    /// Runs, with their partitions and the store's time behind their columns.
    async fn with_partitions(&self, runs: &[Row]) -> Result<Vec<RunState>, StoreError> {
        let ids: Vec<Uuid> = runs.iter().map(|row| row.get(0)).collect();
        let sql = "SELECT progress.run_id, progress.partition_id, min_price, max_price, total_records,
                          next_offset, worker.status, records_processed, worker.attempts, worker.error,
                          reported_at, solely_ms(progress.updated_at), message.state, message.attempts,
                          message.error
                     FROM unnest($1::uuid[]) AS wanted (run_id)
                    CROSS JOIN LATERAL (SELECT * FROM partition_progress
                                         WHERE partition_progress.run_id = wanted.run_id) AS progress
                     JOIN worker_runs AS worker
                       ON worker.run_id = progress.run_id AND worker.partition_id = progress.partition_id
                     LEFT JOIN LATERAL (SELECT state, attempts, error
                                          FROM jobs
                                         WHERE key = progress.run_id || ':' || progress.partition_id || ':'
                                                     || next_offset
                                           AND queue = $2 AND jobs.state <= 2) AS message ON true
                    ORDER BY progress.run_id, place";
        let rows = self.read(sql, &[&ids, &WORK_ITEMS]).await?;
        let mut states: Vec<RunState> = runs
            .iter()
            .map(|row| RunState { run: run(row), partitions: Vec::new(), now: row::time(row, 21) })
            .collect();
        for row in &rows {
            let of = run_id(row, 0);
            if let Some(state) = states.iter_mut().find(|state| state.run.id == of) {
                state.partitions.push(partition(row));
            }
        }
        Ok(states)
    }
}

fn partition(row: &Row) -> Partition {
    let total = row.get::<_, Option<i64>>(4).and_then(|total| u64::try_from(total).ok());
    let message = row.get::<_, Option<i16>>(12).and_then(|code| u8::try_from(code).ok());
    let attempts: i32 = row.get::<_, Option<i32>>(13).unwrap_or_else(|| row.get(8));
    Partition {
        id: row.get(1),
        range: PriceRange { min: row.get(2), max: row.get(3) },
        total,
        next_offset: row::unsigned(row, 5),
        status: PartitionStatus::of_word(row.get(6)),
        records: row::unsigned(row, 7),
        attempts: u32::try_from(attempts).unwrap_or(0),
        message: message.and_then(solely_core::job::JobState::from_code),
        error: row.get::<_, Option<String>>(9).or_else(|| row.get(14)),
        reported_at: row.get::<_, Option<i64>>(10).map(Timestamp::from_millis),
        updated_at: row::time(row, 11),
    }
}

async fn start(tx: &Tx<'_>, new: &NewRun) -> Result<Started, Error> {
    tx.execute("INSERT INTO feeds (source) VALUES ($1) ON CONFLICT DO NOTHING", &[&new.source]).await?;
    let feed = tx
        .one(
            "SELECT feed, last_number, watermark, started_at FROM feeds WHERE source = $1 FOR UPDATE",
            &[&new.source],
        )
        .await?;
    let now = tx.now().await?;
    if let Some(run) = active(tx, &new.source).await? {
        return Ok(Started::Active { run });
    }
    let last: Option<i64> = feed.get(3);
    let too_soon =
        |within: Duration| last.is_some_and(|last| now < Timestamp::from_millis(last).plus(within));
    if new.not_within.is_some_and(too_soon) {
        return Ok(Started::NotDue);
    }
    let number = feed.get::<_, i64>(1) + 1;
    let from = (new.mode == Mode::Incremental).then(|| {
        let watermark = feed.get::<_, Option<i64>>(2);
        watermark
            .map_or(BEGINNING.as_millis(), |at| Timestamp::from_millis(at).minus(new.overlap).as_millis())
    });
    tx.execute(
        "UPDATE feeds SET last_number = $2, started_at = $3 WHERE feed = $1",
        &[&feed.get::<_, i32>(0), &number, &now.as_millis()],
    )
    .await?;
    let mode = if new.mode == Mode::Full { "full" } else { "incremental" };
    tx.execute(
        "INSERT INTO run_metadata (run_id, feed, source, number, mode, status, force, page_limit,
                                   watermark_before, watermark_after, trace, started_at)
         VALUES ($1, $2, $3, $4, $5, 'scheduling', $6, $7, $8, $9, $10, $9)",
        &[
            &uuid(new.id),
            &feed.get::<_, i32>(0),
            &new.source,
            &number,
            &mode,
            &new.force,
            &i32::try_from(new.limit).unwrap_or(i32::MAX),
            &from,
            &now.as_millis(),
            &new.trace,
        ],
    )
    .await?;
    make_partitions(tx, new.id, &new.partitions, now).await?;
    job::enqueue_all(tx, &[&new.job], Some(now)).await?;
    event::insert(tx, std::slice::from_ref(&new.event), now).await?;
    Ok(Started::Started)
}

async fn active(tx: &Tx<'_>, source: &str) -> Result<Option<RunId>, Error> {
    let found = tx
        .optional(
            "SELECT run_id FROM run_metadata
              WHERE source = $1 AND status IN ('scheduling', 'running', 'consolidating')",
            &[&source],
        )
        .await?;
    Ok(found.map(|row| run_id(&row, 0)))
}

/// Makes partitions; of one that is there, only the count is new.
async fn make_partitions(
    tx: &Tx<'_>,
    run: RunId,
    partitions: &[NewPartition],
    now: Timestamp,
) -> Result<(), Error> {
    if partitions.is_empty() {
        return Ok(());
    }
    let ids: Vec<&str> = partitions.iter().map(|partition| partition.id.as_str()).collect();
    let column =
        |of: fn(&NewPartition) -> Option<i64>| partitions.iter().map(of).collect::<Vec<Option<i64>>>();
    tx.execute(
        "INSERT INTO partition_progress (run_id, partition_id, place, min_price, max_price, total_records,
                                         created_at, updated_at)
         SELECT $1, given.id, given.nth, given.low, given.high, given.total, solely_time($6), solely_time($6)
           FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) WITH ORDINALITY
                AS given (id, low, high, total, nth)
             ON CONFLICT (run_id, partition_id) DO UPDATE
            SET total_records = excluded.total_records, updated_at = excluded.updated_at",
        &[
            &uuid(run),
            &ids,
            &column(|partition| Some(partition.range.min)),
            &column(|partition| Some(partition.range.max)),
            &column(|partition| partition.total.map(signed)),
            &now.as_millis(),
        ],
    )
    .await?;
    tx.execute(
        "INSERT INTO worker_runs (run_id, partition_id, status)
         SELECT $1, id, 'running' FROM unnest($2::text[]) AS given (id) ON CONFLICT DO NOTHING",
        &[&uuid(run), &ids],
    )
    .await
    .map(drop)
}

/// Takes one step that commits with its job. False if its condition does not hold.
pub(crate) async fn take(tx: &Tx<'_>, step: &Step, now: Timestamp) -> Result<bool, Error> {
    match step {
        Step::Page(page) => Ok(!write_pages(tx, &[page], now).await?.is_empty()),
        Step::Begin { run, partitions } => begin(tx, *run, partitions, now).await,
        Step::At { of, offset } => is_at(tx, of, *offset).await,
        Step::FailPartition { of, offset, error, attempts } => {
            fail_partition(tx, of, *offset, error, *attempts, now).await
        }
        Step::End { run, completed, failed, to, error } => {
            let ended = (*to == RunStatus::Failed).then_some(now.as_millis());
            let (completed, failed) = (signed_32(*completed), signed_32(*failed));
            let changed = tx
                .execute(
                    "UPDATE run_metadata SET status = $4, error = $5, completed_at = $6
                      WHERE run_id = $1 AND status = 'running' AND completed_workers = $2
                        AND failed_workers = $3 AND expected_workers = $2 + $3",
                    &[&uuid(*run), &completed, &failed, &to.word(), error, &ended],
                )
                .await?;
            Ok(changed == 1)
        }
        Step::Switch { run, counts, move_watermark } => switch(tx, *run, counts, *move_watermark, now).await,
        Step::FailRun { run, from, error } => {
            let changed = tx
                .execute(
                    "UPDATE run_metadata SET status = 'failed', error = $3, completed_at = $4
                      WHERE run_id = $1 AND status = $2",
                    &[&uuid(*run), &from.word(), error, &now.as_millis()],
                )
                .await?;
            Ok(changed == 1)
        }
    }
}

fn signed_32(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Writes pages, and answers with the places of those that were written. All of them by one call,
/// unless two hold the same record of one run.
pub(crate) async fn write_pages(tx: &Tx<'_>, pages: &[&Page], now: Timestamp) -> Result<Vec<usize>, Error> {
    let mut records: Vec<(i32, RunId, &Record)> = Vec::new();
    for (nth, page) in (1..).zip(pages) {
        records.extend(page.records.iter().map(|record| (nth, page.of.run, record)));
    }
    records.sort_unstable_by(|a, b| (a.1, &a.2.id).cmp(&(b.1, &b.2.id)));
    let meet = records.windows(2).any(|pair| (pair[0].1, &pair[0].2.id) == (pair[1].1, &pair[1].2.id));
    if !meet {
        return write_apart(tx, pages, &records, now).await;
    }
    let mut written = Vec::new();
    for (place, page) in pages.iter().enumerate() {
        let records: Vec<(i32, RunId, &Record)> =
            page.records.iter().map(|record| (1, page.of.run, record)).collect();
        if !write_apart(tx, &[page], &records, now).await?.is_empty() {
            written.push(place);
        }
    }
    Ok(written)
}

/// Writes pages whose records, each with the number of its page, are in order and each there once.
async fn write_apart(
    tx: &Tx<'_>,
    pages: &[&Page],
    records: &[(i32, RunId, &Record)],
    now: Timestamp,
) -> Result<Vec<usize>, Error> {
    let runs: Vec<Uuid> = pages.iter().map(|page| uuid(page.of.run)).collect();
    let partitions: Vec<&str> = pages.iter().map(|page| page.of.partition.as_str()).collect();
    let offsets: Vec<i64> = pages.iter().map(|page| signed(page.offset)).collect();
    let nexts: Vec<i64> = pages.iter().map(|page| signed(page.next_offset)).collect();
    let lasts: Vec<bool> = pages.iter().map(|page| page.last).collect();
    let numbers: Vec<i32> = records.iter().map(|(page, ..)| *page).collect();
    let ids: Vec<&str> = records.iter().map(|(.., record)| record.id.as_str()).collect();
    let payloads: Vec<&str> = records.iter().map(|(.., record)| record.payload.as_str()).collect();
    let hashes: Vec<&[u8]> = records.iter().map(|(.., record)| record.hash.as_slice()).collect();
    let lows: Vec<i64> = records.iter().map(|(.., record)| record.price.min).collect();
    let highs: Vec<i64> = records.iter().map(|(.., record)| record.price.max).collect();
    let rows = tx
        .query(
            "SELECT solely_write_pages($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
            &[
                &runs,
                &partitions,
                &offsets,
                &nexts,
                &lasts,
                &numbers,
                &ids,
                &payloads,
                &hashes,
                &lows,
                &highs,
                &now.as_millis(),
            ],
        )
        .await?;
    Ok(rows.iter().map(|row| row::place(row, 0)).collect())
}

async fn begin(tx: &Tx<'_>, run: RunId, partitions: &[NewPartition], now: Timestamp) -> Result<bool, Error> {
    let changed = tx
        .execute(
            "UPDATE run_metadata SET status = 'running', expected_workers = $2, running_at = $3
              WHERE run_id = $1 AND status = 'scheduling'",
            &[&uuid(run), &signed_32(u32::try_from(partitions.len()).unwrap_or(0)), &now.as_millis()],
        )
        .await?;
    if changed == 0 {
        return Ok(false);
    }
    make_partitions(tx, run, partitions, now).await?;
    Ok(true)
}

/// Whether a partition has work left, there, and its run is running. Its row is locked.
async fn is_at(tx: &Tx<'_>, of: &PartitionKey, offset: u64) -> Result<bool, Error> {
    let found = tx
        .optional(
            "SELECT 1
               FROM partition_progress AS progress
               JOIN worker_runs AS worker USING (run_id, partition_id)
               JOIN run_metadata AS of_run USING (run_id)
              WHERE progress.run_id = $1 AND progress.partition_id = $2 AND next_offset = $3
                AND NOT completed AND worker.status = 'running' AND of_run.status = 'running'
                FOR UPDATE OF progress",
            &[&uuid(of.run), &of.partition, &signed(offset)],
        )
        .await?;
    Ok(found.is_some())
}

async fn fail_partition(
    tx: &Tx<'_>,
    of: &PartitionKey,
    offset: u64,
    error: &str,
    attempts: u32,
    now: Timestamp,
) -> Result<bool, Error> {
    if !is_at(tx, of, offset).await? {
        return Ok(false);
    }
    let (run, attempts) = (uuid(of.run), signed_32(attempts));
    tx.execute(
        "UPDATE worker_runs SET status = 'failed', error = $3, attempts = $4
          WHERE run_id = $1 AND partition_id = $2",
        &[&run, &of.partition, &error, &attempts],
    )
    .await?;
    tx.execute(
        "UPDATE partition_progress SET updated_at = solely_time($3) WHERE run_id = $1 AND partition_id = $2",
        &[&run, &of.partition, &now.as_millis()],
    )
    .await?;
    tx.execute("UPDATE run_metadata SET failed_workers = failed_workers + 1 WHERE run_id = $1", &[&run])
        .await?;
    Ok(true)
}

async fn switch(
    tx: &Tx<'_>,
    run: RunId,
    counts: &Counts,
    move_watermark: bool,
    now: Timestamp,
) -> Result<bool, Error> {
    let counted = [counts.added, counts.changed, counts.unchanged, counts.removed].map(signed);
    let switched = tx
        .optional(
            "UPDATE run_metadata
                SET status = 'completed', completed_at = $2, error = NULL, added = $3, changed = $4,
                    unchanged = $5, removed = $6
              WHERE run_id = $1 AND status = 'consolidating'
            RETURNING feed, number, watermark_after",
            &[&uuid(run), &now.as_millis(), &counted[0], &counted[1], &counted[2], &counted[3]],
        )
        .await?;
    let Some(row) = switched else { return Ok(false) };
    tx.execute(
        "UPDATE feeds
            SET current_number = $2, watermark = CASE WHEN $6 THEN greatest(watermark, $3) ELSE watermark END,
                current_records = current_records + $4::bigint - $5::bigint
          WHERE feed = $1",
        &[
            &row.get::<_, i32>(0),
            &row.get::<_, i64>(1),
            &row.get::<_, i64>(2),
            &counted[0],
            &counted[3],
            &move_watermark,
        ],
    )
    .await?;
    Ok(true)
}

async fn change_run(tx: &Tx<'_>, change: &RunChange) -> Result<Changed, Error> {
    let id = uuid(change.run);
    let found = tx
        .optional(
            "SELECT feeds.current_number, feeds.source
               FROM feeds WHERE source = (SELECT source FROM run_metadata WHERE run_id = $1) FOR UPDATE",
            &[&id],
        )
        .await?;
    let Some(feed) = found else { return Ok(Changed::Otherwise) };
    let run = tx
        .one("SELECT status, number, consolidated_to IS NOT NULL FROM run_metadata WHERE run_id = $1 FOR UPDATE", &[&id])
        .await?;
    let now = tx.now().await?;
    if status(&run, 0) != change.from {
        return Ok(Changed::Otherwise);
    }
    if change.to.is_active() && !change.from.is_active() {
        if let Some(run) = active(tx, feed.get(1)).await? {
            return Ok(Changed::Active { run });
        }
        if feed.get::<_, i64>(0) > run.get::<_, i64>(1) {
            return Ok(Changed::Superseded);
        }
    }
    if !all_where_they_were_seen(tx, change).await? {
        return Ok(Changed::Otherwise);
    }
    if run.get(2) && change.to == RunStatus::Running {
        forget_removals(tx, id).await?;
    }
    set_going(tx, change, now).await?;
    let ended = (!change.to.is_active()).then_some(now.as_millis());
    tx.execute(
        "UPDATE run_metadata
            SET status = $2, completed_at = $3, error = CASE WHEN $3::bigint IS NULL THEN NULL ELSE error END,
                completed_workers = (SELECT count(*) FROM worker_runs
                                      WHERE worker_runs.run_id = $1 AND worker_runs.status = 'completed'),
                failed_workers = (SELECT count(*) FROM worker_runs
                                   WHERE worker_runs.run_id = $1 AND worker_runs.status = 'failed')
          WHERE run_id = $1",
        &[&id, &change.to.word(), &ended],
    )
    .await?;
    for (queue, key) in &change.cancel {
        job::cancel_one(tx, queue, key, now).await?;
    }
    let jobs: Vec<&NewJob> = change.jobs.iter().collect();
    if !jobs.is_empty() {
        job::enqueue_all(tx, &jobs, Some(now)).await?;
    }
    let events: &[NewEvent] = &change.events;
    event::insert(tx, events, now).await?;
    Ok(Changed::Made)
}

/// Locks the partitions that a change names, and looks whether each is where it was seen.
async fn all_where_they_were_seen(tx: &Tx<'_>, change: &RunChange) -> Result<bool, Error> {
    let going = change.going.iter().map(|going| (going.partition.as_str(), going.seen_at));
    let stuck = change.stuck.iter().map(|(partition, at)| (partition.as_str(), *at));
    let mut named: Vec<(&str, u64)> = going.chain(stuck).collect();
    named.sort_unstable();
    for (partition, at) in named {
        let found = tx
            .optional(
                "SELECT 1 FROM partition_progress
                  WHERE run_id = $1 AND partition_id = $2 AND next_offset = $3 FOR UPDATE",
                &[&uuid(change.run), &partition, &signed(at)],
            )
            .await?;
        if found.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn set_going(tx: &Tx<'_>, change: &RunChange, now: Timestamp) -> Result<(), Error> {
    let id = uuid(change.run);
    for going in &change.going {
        tx.execute(
            "UPDATE partition_progress
                SET next_offset = $3, completed = false, reported_at = NULL, updated_at = solely_time($4)
              WHERE run_id = $1 AND partition_id = $2",
            &[&id, &going.partition, &signed(going.next_offset), &now.as_millis()],
        )
        .await?;
        tx.execute(
            "UPDATE worker_runs SET status = 'running', error = NULL, attempts = 0
              WHERE run_id = $1 AND partition_id = $2",
            &[&id, &going.partition],
        )
        .await?;
    }
    for (partition, _) in &change.stuck {
        tx.execute(
            "UPDATE partition_progress SET reported_at = $3 WHERE run_id = $1 AND partition_id = $2",
            &[&id, partition, &now.as_millis()],
        )
        .await?;
    }
    Ok(())
}

/// What a consolidation that was broken off had marked, before its run goes on.
async fn forget_removals(tx: &Tx<'_>, id: Uuid) -> Result<(), Error> {
    tx.execute(
        "WITH gone AS (DELETE FROM seen USING run_metadata AS of_run
                        WHERE of_run.run_id = $1 AND seen.feed = of_run.feed AND seen.number = of_run.number
                          AND seen.kind = 3
                       RETURNING seen.feed, seen.number, seen.id)
         DELETE FROM records USING gone
          WHERE records.feed = gone.feed AND records.number = gone.number AND records.id = gone.id",
        &[&id],
    )
    .await?;
    tx.execute("UPDATE run_metadata SET consolidated_to = NULL WHERE run_id = $1", &[&id]).await.map(drop)
}

async fn consolidate(tx: &Tx<'_>, run: RunId, within: &[PriceRange]) -> Result<bool, Error> {
    let found = tx
        .optional(
            "SELECT feed, number, current_number, consolidated_to
               FROM run_metadata JOIN feeds USING (feed)
              WHERE run_id = $1 AND status = 'consolidating' FOR UPDATE OF run_metadata",
            &[&uuid(run)],
        )
        .await?;
    let Some(row) = found else { return Ok(false) };
    let (feed, number, base): (i32, i64, i64) = (row.get(0), row.get(1), row.get(2));
    if take_away_left_behind(tx, feed, base, number).await? {
        return Ok(true);
    }
    if within.is_empty() {
        return Ok(false);
    }
    let after: Option<String> = row.get(3);
    let now = tx.now().await?;
    let (mins, maxs): (Vec<i64>, Vec<i64>) = within.iter().map(|range| (range.min, range.max)).unzip();
    let batch = i64::from(limits::CONSOLIDATE_BATCH);
    let looked = tx
        .one(
            "WITH looked AS MATERIALIZED (
                 SELECT DISTINCT ON (id) id, removed, low, high
                   FROM records
                  WHERE feed = $1 AND id > $4 AND number <= $3
                  ORDER BY id, number DESC
                  LIMIT $7),
             gone AS (
                 INSERT INTO seen (feed, number, id, kind, place)
                 SELECT $1, $2, id, 3, -1
                   FROM looked
                  WHERE NOT removed
                    AND EXISTS (SELECT 1 FROM unnest($5::bigint[], $6::bigint[]) AS fetched (min, max)
                                 WHERE fetched.min <= low AND high <= fetched.max)
                     ON CONFLICT DO NOTHING
                 RETURNING id),
             marked AS (
                 INSERT INTO records (feed, id, number, run_id, removed, hash, low, high, updated_at, payload)
                 SELECT $1, id, $2, $8, true, '', 0, 0, $9, '' FROM gone ON CONFLICT DO NOTHING)
             SELECT max(id), count(*) FROM looked",
            &[
                &feed,
                &number,
                &base,
                &after.unwrap_or_default(),
                &mins,
                &maxs,
                &batch,
                &uuid(run),
                &now.as_millis(),
            ],
        )
        .await?;
    let last: Option<String> = looked.get(0);
    if last.is_some() {
        tx.execute("UPDATE run_metadata SET consolidated_to = $2 WHERE run_id = $1", &[&uuid(run), &last])
            .await?;
    }
    Ok(looked.get::<_, i64>(1) == batch)
}

/// Versions of runs between the current one and this: they never became current, and nobody can go
/// on with them once this one does. True if there was something.
async fn take_away_left_behind(tx: &Tx<'_>, feed: i32, base: i64, number: i64) -> Result<bool, Error> {
    let left = tx
        .optional(
            "SELECT run_id, number FROM run_metadata
              WHERE feed = $1 AND number > $2 AND number < $3 AND NOT swept
              ORDER BY number LIMIT 1",
            &[&feed, &base, &number],
        )
        .await?;
    let Some(left) = left else { return Ok(false) };
    let gone = forget_seen(tx, feed, left.get(1), true, limits::CONSOLIDATE_BATCH).await?;
    if gone == 0 {
        tx.execute("UPDATE run_metadata SET swept = true WHERE run_id = $1", &[&left.get::<_, Uuid>(0)])
            .await?;
    }
    Ok(true)
}

/// Forgets what a run saw, a few at a time, with the versions it wrote if they are not to be kept.
pub(crate) async fn forget_seen(
    tx: &Tx<'_>,
    feed: i32,
    number: i64,
    with_versions: bool,
    batch: u32,
) -> Result<u64, Error> {
    let row = tx
        .one(
            "WITH gone AS (DELETE FROM seen
                            WHERE feed = $1 AND number = $2
                              AND id = ANY (ARRAY(SELECT id FROM seen WHERE feed = $1 AND number = $2
                                                   ORDER BY id LIMIT $4))
                           RETURNING id),
                  versions AS (DELETE FROM records USING gone
                                WHERE $3 AND records.feed = $1 AND records.id = gone.id
                                  AND records.number = $2)
             SELECT count(*) FROM gone",
            &[&feed, &number, &with_versions, &i64::from(batch)],
        )
        .await?;
    Ok(row::unsigned(&row, 0))
}

/// Sweeps up behind runs: one that was given up long ago, one that has been current for long
/// enough; then takes away one that is past its retention. Answers how many rows went and whether
/// there is more.
pub(crate) async fn prune(tx: &Tx<'_>, now: Timestamp, kept: Duration) -> Result<(u64, bool), Error> {
    let cutoff = now.minus(kept).as_millis();
    let given_up = tx
        .optional(
            "SELECT run_id, feed, number FROM run_metadata
              WHERE status IN ('failed', 'cancelled') AND completed_at <= $1 AND NOT swept
              ORDER BY run_id LIMIT 1 FOR UPDATE SKIP LOCKED",
            &[&cutoff],
        )
        .await?;
    if let Some(run) = given_up {
        let gone = forget_seen(tx, run.get(1), run.get(2), true, limits::PRUNE_BATCH).await?;
        if gone == 0 {
            let id: Uuid = run.get(0);
            tx.execute("UPDATE run_metadata SET swept = true WHERE run_id = $1", &[&id]).await?;
        }
        return Ok((gone, true));
    }
    let (swept, more) = sweep(tx, now).await?;
    if more {
        return Ok((swept, true));
    }
    let row = tx
        .one(
            "WITH old AS (DELETE FROM run_metadata
                           WHERE run_id = (SELECT run_id FROM run_metadata
                                            WHERE completed_at <= $1 AND swept
                                            ORDER BY run_id LIMIT 1 FOR UPDATE SKIP LOCKED)
                          RETURNING run_id),
                  progress AS (DELETE FROM partition_progress USING old
                                WHERE partition_progress.run_id = old.run_id),
                  workers AS (DELETE FROM worker_runs USING old WHERE worker_runs.run_id = old.run_id)
             SELECT count(*) FROM old",
            &[&cutoff],
        )
        .await?;
    let gone = row::unsigned(&row, 0);
    Ok((gone, gone > 0))
}

/// Sweeps up behind one run that has been current for long enough: versions that its own replaced,
/// and, once a later one is current, what it saw.
async fn sweep(tx: &Tx<'_>, now: Timestamp) -> Result<(u64, bool), Error> {
    let cutoff = now.minus(limits::STREAM_TIME * 2).as_millis();
    let found = tx
        .optional(
            "SELECT run_id, feed, number, versions_swept, coalesce(swept_to, '')
               FROM run_metadata AS of_run
              WHERE status = 'completed' AND completed_at <= $1 AND NOT swept
                AND (NOT versions_swept OR EXISTS (
                        SELECT 1 FROM run_metadata AS later
                         WHERE later.feed = of_run.feed AND later.number > of_run.number
                           AND later.status = 'completed' AND later.completed_at <= $1))
              ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED",
            &[&cutoff],
        )
        .await?;
    let Some(run) = found else { return Ok((0, false)) };
    let (id, feed, number): (Uuid, i32, i64) = (run.get(0), run.get(1), run.get(2));
    if run.get(3) {
        let gone = forget_seen(tx, feed, number, false, limits::PRUNE_BATCH).await?;
        if gone == 0 {
            tx.execute("UPDATE run_metadata SET swept = true WHERE run_id = $1", &[&id]).await?;
        }
        return Ok((gone, true));
    }
    let swept = tx
        .one(
            "WITH looked AS MATERIALIZED (SELECT id, kind FROM seen
                                           WHERE feed = $1 AND number = $2 AND id > $3
                                           ORDER BY id LIMIT $4),
                  gone AS (DELETE FROM records USING looked
                            WHERE looked.kind > 0 AND records.feed = $1 AND records.id = looked.id
                              AND (records.number < $2 OR looked.kind = 3 AND records.number = $2)
                           RETURNING 1)
             SELECT (SELECT max(id) FROM looked), (SELECT count(*) FROM gone)",
            &[&feed, &number, &run.get::<_, &str>(4), &i64::from(limits::PRUNE_BATCH)],
        )
        .await?;
    let last: Option<String> = swept.get(0);
    let done = last.is_none();
    tx.execute(
        "UPDATE run_metadata SET swept_to = $2, versions_swept = $3 WHERE run_id = $1",
        &[&id, &last, &done],
    )
    .await?;
    Ok((row::unsigned(&swept, 1), true))
}
