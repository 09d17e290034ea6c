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
    current_records bigint NOT NULL DEFAULT 0,
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
-- page, in the order of their ids and each once, across all pages: two batches that meet take them
-- in the same order. A record is compared with the version that is current, or with the run's own.
CREATE FUNCTION solely_write_pages(
    runs uuid[], partitions text[], offsets bigint[], nexts bigint[], lasts boolean[],
    pages integer[], ids text[], payloads text[], hashes bytea[], lows bigint[], highs bigint[], now_ms bigint
) RETURNS SETOF integer
    LANGUAGE plpgsql VOLATILE AS
$$
#variable_conflict use_column
DECLARE
    -- Of each page, null where it is not written.
    page_feeds   integer[];
    page_numbers bigint[];
    page_bases   bigint[];
    page_places  integer[];
    -- Of each record: 0 unchanged, 1 changed, 2 added; 3 the run's own version, 4 with another
    -- payload; null where its page is not written.
    kinds        smallint[];
    is_first     boolean;
    -- Of each record that the run had not seen.
    new_feeds    integer[];
    new_places   integer[];
BEGIN
    WITH advanced AS MATERIALIZED (
        UPDATE partition_progress
           SET next_offset = page.next, completed = page.is_last, reported_at = NULL,
               updated_at = solely_time(now_ms)
          FROM unnest(runs, partitions, offsets, nexts, lasts) WITH ORDINALITY
               AS page (run, partition, at, next, is_last, nth)
          JOIN run_metadata AS of_run ON of_run.run_id = page.run AND of_run.status = 'running'
          JOIN feeds ON feeds.feed = of_run.feed
          JOIN worker_runs AS worker
            ON worker.run_id = page.run AND worker.partition_id = page.partition AND worker.status = 'running'
         WHERE partition_progress.run_id = page.run AND partition_progress.partition_id = page.partition
           AND partition_progress.next_offset = page.at AND NOT partition_progress.completed
        RETURNING page.nth, of_run.feed, of_run.number, feeds.current_number AS base, partition_progress.place)
    SELECT array_agg(feed ORDER BY page.nth), array_agg(number ORDER BY page.nth),
           array_agg(base ORDER BY page.nth), array_agg(place ORDER BY page.nth)
      INTO page_feeds, page_numbers, page_bases, page_places
      FROM generate_series(1, cardinality(runs)) AS page (nth) LEFT JOIN advanced USING (nth);

    -- As a rule nobody else has any of these records, and where nothing is current there is nothing
    -- to compare with. Should one be there after all, all are looked at, one by one.
    is_first := 0 >= ALL (array_remove(page_bases, NULL));
    FOR round IN 1..2 LOOP
        kinds := ARRAY(
            SELECT CASE WHEN page_feeds[record.nth] IS NULL THEN NULL
                        WHEN before.number = page_numbers[record.nth]
                            THEN CASE WHEN before.hash = record.hash THEN 3 ELSE 4 END
                        WHEN before.number IS NULL OR before.removed THEN 2
                        WHEN before.hash <> record.hash THEN 1
                        ELSE 0 END
              FROM unnest(pages, ids, hashes) WITH ORDINALITY AS record (nth, id, hash, place)
              LEFT JOIN LATERAL (SELECT number, removed, hash
                                   FROM records
                                  WHERE (round = 2 OR NOT is_first)
                                    AND records.feed = page_feeds[record.nth] AND records.id = record.id
                                    AND (records.number <= page_bases[record.nth]
                                         OR records.number = page_numbers[record.nth])
                                  ORDER BY number DESC
                                  LIMIT 1) AS before ON true
             ORDER BY record.place);
        CONTINUE WHEN round = 1 AND 4 = ANY (kinds);
        IF round = 1 THEN
            BEGIN
                IF 1 = ANY (kinds) OR 2 = ANY (kinds) THEN
                    INSERT INTO records (feed, id, number, run_id, removed, hash, low, high, updated_at, payload)
                    SELECT page_feeds[nth], id, page_numbers[nth], runs[nth], false, hash, low, high, now_ms,
                           payload
                      FROM unnest(pages, kinds, ids, hashes, lows, highs, payloads)
                           AS record (nth, kind, id, hash, low, high, payload)
                     WHERE kind IN (1, 2);
                END IF;
                INSERT INTO seen (feed, number, id, kind, place)
                SELECT page_feeds[nth], page_numbers[nth], id, kind, page_places[nth]
                  FROM unnest(pages, kinds, ids) AS record (nth, kind, id)
                 WHERE kind <= 2;
                SELECT array_agg(page_feeds[nth]), array_agg(page_places[nth]) INTO new_feeds, new_places
                  FROM unnest(pages, kinds) AS record (nth, kind)
                 WHERE kind <= 2;
                EXIT;
            EXCEPTION WHEN unique_violation THEN
                NULL;
            END;
        ELSE
            INSERT INTO records (feed, id, number, run_id, removed, hash, low, high, updated_at, payload)
            SELECT page_feeds[nth], id, page_numbers[nth], runs[nth], false, hash, low, high, now_ms, payload
              FROM unnest(pages, kinds, ids, hashes, lows, highs, payloads)
                   AS record (nth, kind, id, hash, low, high, payload)
             WHERE kind IN (1, 2, 4)
                ON CONFLICT (feed, id, number) DO UPDATE
               SET hash = excluded.hash, low = excluded.low, high = excluded.high,
                   updated_at = excluded.updated_at, payload = excluded.payload
             WHERE records.hash <> excluded.hash;
            WITH noted AS (
                INSERT INTO seen (feed, number, id, kind, place)
                SELECT page_feeds[nth], page_numbers[nth], id, kind, page_places[nth]
                  FROM unnest(pages, kinds, ids) AS record (nth, kind, id)
                 WHERE kind <= 2
                    ON CONFLICT (feed, number, id) DO NOTHING
                RETURNING feed, place)
            SELECT array_agg(feed), array_agg(place) INTO new_feeds, new_places FROM noted;
            -- Seen before by this run, and changed since.
            UPDATE seen SET kind = record.kind
              FROM unnest(pages, kinds, ids) AS record (nth, kind, id)
             WHERE record.kind IN (1, 2) AND seen.feed = page_feeds[nth] AND seen.number = page_numbers[nth]
               AND seen.id = record.id AND seen.kind = 0;
        END IF;
    END LOOP;

    UPDATE worker_runs
       SET records_processed = records_processed + (SELECT count(*) FROM unnest(new_feeds, new_places) AS new (feed, place)
                                                     WHERE new.feed = page_feeds[nth] AND new.place = page_places[nth]),
           pages_processed = pages_processed + 1,
           status = CASE WHEN lasts[nth] THEN 'completed' ELSE 'running' END, error = NULL
      FROM generate_series(1, cardinality(runs)) AS page (nth)
     WHERE page_feeds[nth] IS NOT NULL
       AND worker_runs.run_id = runs[nth] AND worker_runs.partition_id = partitions[nth];

    UPDATE run_metadata
       SET completed_workers = completed_workers + ended.partitions
      FROM (SELECT runs[nth] AS run, count(*) AS partitions
              FROM generate_series(1, cardinality(runs)) AS page (nth)
             WHERE lasts[nth] AND page_feeds[nth] IS NOT NULL
             GROUP BY 1
             ORDER BY 1) AS ended
     WHERE run_metadata.run_id = ended.run;
    RETURN QUERY SELECT nth FROM generate_series(1, cardinality(runs)) AS page (nth) WHERE page_feeds[nth] IS NOT NULL;
END
$$;
