-- The page transaction of a feed: where a partition is, what its worker did, what it stored.
CREATE TABLE partition_progress (
    run_id       TEXT    NOT NULL,
    partition_id TEXT    NOT NULL,
    next_offset  INTEGER NOT NULL DEFAULT 0,
    completed    INTEGER NOT NULL DEFAULT 0,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    PRIMARY KEY (run_id, partition_id)
) WITHOUT ROWID;

CREATE TABLE worker_runs (
    run_id            TEXT    NOT NULL,
    partition_id      TEXT    NOT NULL,
    status            TEXT    NOT NULL CHECK (status IN ('running', 'completed', 'failed')),
    records_processed INTEGER NOT NULL DEFAULT 0,
    pages_processed   INTEGER NOT NULL DEFAULT 0,
    error             TEXT,
    PRIMARY KEY (run_id, partition_id)
) WITHOUT ROWID;

CREATE TABLE records (
    run_id       TEXT NOT NULL,
    id           TEXT NOT NULL,
    partition_id TEXT NOT NULL,
    payload      TEXT NOT NULL,
    updated_at   INTEGER NOT NULL,
    PRIMARY KEY (run_id, id)
) WITHOUT ROWID;
