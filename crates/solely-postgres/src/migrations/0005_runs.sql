-- Feeds: runs, their partitions, the versions of records, and which run is current. What the
-- page transaction was tried out with before there were runs is left behind.
DROP FUNCTION solely_write_page;
DROP TABLE records, worker_runs, partition_progress;

-- The connection that a process beats on, and since when: it ends with the process, however that
-- ended.
ALTER TABLE processes ADD COLUMN backend integer, ADD COLUMN connected_since bigint;

-- A source. `current_number` is the switch: readers see versions up to it.
CREATE TABLE feeds (
    feed           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source         text COLLATE "C" NOT NULL UNIQUE,
    last_number    bigint NOT NULL DEFAULT 0,
    current_number bigint NOT NULL DEFAULT 0,
    watermark      bigint,
    started_at     bigint
);

CREATE TABLE run_metadata (
    run_id             uuid    NOT NULL PRIMARY KEY,
    feed               integer NOT NULL,
    source             text COLLATE "C" NOT NULL,
    number             bigint  NOT NULL,
    mode               text    NOT NULL CHECK (mode IN ('full', 'incremental')),
    status             text    NOT NULL
        CHECK (status IN ('scheduling', 'running', 'consolidating', 'completed', 'failed', 'cancelled')),
    force              boolean NOT NULL,
    page_limit         integer NOT NULL,
    watermark_before   bigint,
    watermark_after    bigint  NOT NULL,
    expected_workers   integer NOT NULL DEFAULT 0,
    completed_workers  integer NOT NULL DEFAULT 0,
    failed_workers     integer NOT NULL DEFAULT 0,
    error              text,
    trace              text,
    started_at         bigint  NOT NULL,
    running_at         bigint,
    completed_at       bigint,
    added              bigint,
    changed            bigint,
    unchanged          bigint,
    removed            bigint,
    -- How far consolidation has come, and what is swept up behind the run.
    consolidated_to    text COLLATE "C",
    swept_to           text COLLATE "C",
    versions_swept     boolean NOT NULL DEFAULT false,
    swept              boolean NOT NULL DEFAULT false
);

-- One run of a source at a time.
CREATE UNIQUE INDEX run_metadata_active ON run_metadata (source)
    WHERE status IN ('scheduling', 'running', 'consolidating');
CREATE INDEX run_metadata_source ON run_metadata (source, run_id);
CREATE INDEX run_metadata_number ON run_metadata (feed, number);

CREATE TABLE partition_progress (
    run_id        uuid    NOT NULL,
    partition_id  text COLLATE "C" NOT NULL,
    place         integer NOT NULL,
    min_price     bigint  NOT NULL,
    max_price     bigint  NOT NULL,
    total_records bigint,
    next_offset   bigint  NOT NULL DEFAULT 0,
    completed     boolean NOT NULL DEFAULT false,
    reported_at   bigint,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    PRIMARY KEY (run_id, partition_id)
);

CREATE TABLE worker_runs (
    run_id            uuid    NOT NULL,
    partition_id      text COLLATE "C" NOT NULL,
    status            text    NOT NULL CHECK (status IN ('running', 'completed', 'failed')),
    records_processed bigint  NOT NULL DEFAULT 0,
    pages_processed   bigint  NOT NULL DEFAULT 0,
    attempts          integer NOT NULL DEFAULT 0,
    error             text,
    PRIMARY KEY (run_id, partition_id)
);

-- Versions. `low` and `high` are the record's price, or the prices it is known to be within.
CREATE TABLE records (
    feed       integer NOT NULL,
    id         text COLLATE "C" NOT NULL,
    number     bigint  NOT NULL,
    run_id     uuid    NOT NULL,
    removed    boolean NOT NULL,
    hash       bytea   NOT NULL,
    low        bigint  NOT NULL,
    high       bigint  NOT NULL,
    updated_at bigint  NOT NULL,
    payload    text    NOT NULL
);
CREATE UNIQUE INDEX records_version ON records (feed, id, number DESC);

-- What a run saw, by which partition: 0 unchanged, 1 changed, 2 added; and 3, what it found to be
-- removed, by none. Every version that a run wrote is in it.
CREATE TABLE seen (
    feed   integer  NOT NULL,
    number bigint   NOT NULL,
    id     text COLLATE "C" NOT NULL,
    kind   smallint NOT NULL,
    place  integer  NOT NULL,
    PRIMARY KEY (feed, number, id)
);

CREATE FUNCTION solely_time(ms bigint) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE AS
$$
    SELECT to_timestamp(ms / 1000.0)
$$;

CREATE FUNCTION solely_ms(at timestamptz) RETURNS bigint
    LANGUAGE sql IMMUTABLE AS
$$
    SELECT round(extract(epoch FROM at) * 1000)::bigint
$$;

-- Writes pages, each if its partition is where it begins, has work left, and its run is running.
-- Answers with the places of those that were written. Records are given with the place of their
-- page, in the order of their ids, across all pages: two batches that meet take them in the same
-- order. A record is compared with the version that is current, or with the run's own.
CREATE FUNCTION solely_write_pages(
    runs uuid[], partitions text[], offsets bigint[], nexts bigint[], lasts boolean[],
    pages integer[], ids text[], payloads text[], hashes bytea[], lows bigint[], highs bigint[], now_ms bigint
) RETURNS SETOF integer
    LANGUAGE plpgsql VOLATILE AS
$$
#variable_conflict use_column
DECLARE
    written integer[];
BEGIN
    WITH advanced AS (
        UPDATE partition_progress
           SET next_offset = page.next, completed = page.is_last, reported_at = NULL,
               updated_at = solely_time(now_ms)
          FROM unnest(runs, partitions, offsets, nexts, lasts) WITH ORDINALITY
               AS page (run, partition, at, next, is_last, nth)
          JOIN run_metadata AS of_run ON of_run.run_id = page.run AND of_run.status = 'running'
          JOIN worker_runs AS worker
            ON worker.run_id = page.run AND worker.partition_id = page.partition AND worker.status = 'running'
         WHERE partition_progress.run_id = page.run AND partition_progress.partition_id = page.partition
           AND partition_progress.next_offset = page.at AND NOT partition_progress.completed
        RETURNING page.nth::integer AS nth)
    SELECT array_agg(nth ORDER BY nth) INTO written FROM advanced;
    IF written IS NULL THEN
        RETURN;
    END IF;

    WITH given AS MATERIALIZED (
        SELECT DISTINCT ON (of_run.feed, of_run.number, record.id)
               of_run.feed, of_run.number, of_run.run_id, feeds.current_number AS base, progress.place,
               record.id, record.payload, record.hash, record.low, record.high
          FROM unnest(pages, ids, payloads, hashes, lows, highs)
               AS record (nth, id, payload, hash, low, high)
          JOIN partition_progress AS progress
            ON progress.run_id = runs[record.nth] AND progress.partition_id = partitions[record.nth]
          JOIN run_metadata AS of_run ON of_run.run_id = runs[record.nth]
          JOIN feeds ON feeds.feed = of_run.feed
         WHERE record.nth = ANY (written)
         ORDER BY of_run.feed, of_run.number, record.id, record.nth),
    known AS MATERIALIZED (
        SELECT given.*,
               CASE WHEN before.number = given.number THEN NULL
                    WHEN before.number IS NULL OR before.removed THEN 2
                    WHEN before.hash <> given.hash THEN 1
                    ELSE 0 END AS kind,
               before.number IS NULL OR before.removed OR before.hash <> given.hash AS differs
          FROM given
          LEFT JOIN LATERAL (SELECT number, removed, hash
                               FROM records
                              WHERE records.feed = given.feed AND records.id = given.id
                                AND (records.number <= given.base OR records.number = given.number)
                              ORDER BY number DESC
                              LIMIT 1) AS before ON true),
    stored AS (
        INSERT INTO records (feed, id, number, run_id, removed, hash, low, high, updated_at, payload)
        SELECT feed, id, number, run_id, false, hash, low, high, now_ms, payload
          FROM known
         WHERE differs
         ORDER BY feed, number, id
            ON CONFLICT (feed, id, number) DO UPDATE
           SET hash = excluded.hash, low = excluded.low, high = excluded.high,
               updated_at = excluded.updated_at, payload = excluded.payload
         WHERE records.hash <> excluded.hash),
    noted AS (
        INSERT INTO seen (feed, number, id, kind, place)
        SELECT feed, number, id, kind, place
          FROM known
         WHERE kind IS NOT NULL
         ORDER BY feed, number, id
            ON CONFLICT (feed, number, id) DO UPDATE SET kind = excluded.kind
         WHERE seen.kind = 0 AND excluded.kind <> 0
        RETURNING feed, number, place, xmax = 0 AS is_new)
    UPDATE worker_runs
       SET records_processed = records_processed + coalesce(counted.records, 0),
           pages_processed = pages_processed + 1,
           status = CASE WHEN lasts[page.nth] THEN 'completed' ELSE 'running' END, error = NULL
      FROM unnest(written) AS page (nth)
      JOIN partition_progress AS progress
        ON progress.run_id = runs[page.nth] AND progress.partition_id = partitions[page.nth]
      JOIN run_metadata AS of_run ON of_run.run_id = runs[page.nth]
      LEFT JOIN LATERAL (SELECT count(*) AS records
                           FROM noted
                          WHERE noted.is_new AND noted.feed = of_run.feed AND noted.number = of_run.number
                            AND noted.place = progress.place) AS counted ON true
     WHERE worker_runs.run_id = runs[page.nth] AND worker_runs.partition_id = partitions[page.nth];

    UPDATE run_metadata
       SET completed_workers = completed_workers + ended.partitions
      FROM (SELECT runs[page.nth] AS run, count(*) AS partitions
              FROM unnest(written) AS page (nth)
             WHERE lasts[page.nth]
             GROUP BY 1
             ORDER BY 1) AS ended
     WHERE run_metadata.run_id = ended.run;
    RETURN QUERY SELECT unnest(written);
END
$$;
