-- Feeds: runs, their partitions, the versions of records, and which run is current. What the
-- page transaction was tried out with before there were runs is left behind.
DROP TABLE records;
DROP TABLE worker_runs;
DROP TABLE partition_progress;

-- A source. `current_number` is the switch: readers see versions up to it.
CREATE TABLE feeds (
    feed           INTEGER NOT NULL PRIMARY KEY,
    source         TEXT    NOT NULL UNIQUE,
    last_number    INTEGER NOT NULL DEFAULT 0,
    current_number INTEGER NOT NULL DEFAULT 0,
    current_records INTEGER NOT NULL DEFAULT 0,
    watermark      INTEGER,
    started_at     INTEGER
);

CREATE TABLE run_metadata (
    run_id             TEXT    NOT NULL PRIMARY KEY,
    feed               INTEGER NOT NULL,
    source             TEXT    NOT NULL,
    number             INTEGER NOT NULL,
    mode               TEXT    NOT NULL CHECK (mode IN ('full', 'incremental')),
    status             TEXT    NOT NULL
        CHECK (status IN ('scheduling', 'running', 'consolidating', 'completed', 'failed', 'cancelled')),
    force              INTEGER NOT NULL,
    page_limit         INTEGER NOT NULL,
    watermark_before   INTEGER,
    watermark_after    INTEGER NOT NULL,
    expected_workers   INTEGER NOT NULL DEFAULT 0,
    completed_workers  INTEGER NOT NULL DEFAULT 0,
    failed_workers     INTEGER NOT NULL DEFAULT 0,
    error              TEXT,
    trace              TEXT,
    started_at         INTEGER NOT NULL,
    running_at         INTEGER,
    completed_at       INTEGER,
    added              INTEGER,
    changed            INTEGER,
    unchanged          INTEGER,
    removed            INTEGER,
    -- How far consolidation has come, and what is swept up behind the run.
    consolidated_to    TEXT,
    swept_to           TEXT,
    versions_swept     INTEGER NOT NULL DEFAULT 0,
    swept              INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- One run of a source at a time.
CREATE UNIQUE INDEX run_metadata_active ON run_metadata (source)
    WHERE status IN ('scheduling', 'running', 'consolidating');
CREATE INDEX run_metadata_source ON run_metadata (source, run_id);
CREATE INDEX run_metadata_number ON run_metadata (feed, number);

CREATE TABLE partition_progress (
    run_id        TEXT    NOT NULL,
    partition_id  TEXT    NOT NULL,
    place         INTEGER NOT NULL,
    min_price     INTEGER NOT NULL,
    max_price     INTEGER NOT NULL,
    total_records INTEGER,
    next_offset   INTEGER NOT NULL DEFAULT 0,
    completed     INTEGER NOT NULL DEFAULT 0,
    reported_at   INTEGER,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    PRIMARY KEY (run_id, partition_id)
) WITHOUT ROWID;

CREATE TABLE worker_runs (
    run_id            TEXT    NOT NULL,
    partition_id      TEXT    NOT NULL,
    status            TEXT    NOT NULL CHECK (status IN ('running', 'completed', 'failed')),
    records_processed INTEGER NOT NULL DEFAULT 0,
    pages_processed   INTEGER NOT NULL DEFAULT 0,
    attempts          INTEGER NOT NULL DEFAULT 0,
    error             TEXT,
    PRIMARY KEY (run_id, partition_id)
) WITHOUT ROWID;

-- Versions. `low` and `high` are the record's price, or the prices it is known to be within.
CREATE TABLE records (
    feed       INTEGER NOT NULL,
    id         TEXT    NOT NULL,
    number     INTEGER NOT NULL,
    run_id     TEXT    NOT NULL,
    removed    INTEGER NOT NULL,
    hash       BLOB    NOT NULL,
    low        INTEGER NOT NULL,
    high       INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    payload    TEXT    NOT NULL
);
CREATE UNIQUE INDEX records_version ON records (feed, id, number DESC);

-- What a run saw, by which partition: 0 unchanged, 1 changed, 2 added; and 3, what it found to be
-- removed, by none. Every version that a run wrote is in it.
CREATE TABLE seen (
    feed   INTEGER NOT NULL,
    number INTEGER NOT NULL,
    id     TEXT    NOT NULL,
    kind   INTEGER NOT NULL,
    place  INTEGER NOT NULL,
    PRIMARY KEY (feed, number, id)
) WITHOUT ROWID;
