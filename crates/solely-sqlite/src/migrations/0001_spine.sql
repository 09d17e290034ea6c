-- Jobs. `live`, `due_at` and `ends_at` say in columns of their own what `state` implies, so that
-- each partial index is touched only by the transitions that concern it: a claim leaves
-- jobs_live alone, a settlement leaves jobs_due alone. `ends_at` is the end of the lock while
-- the job runs and its own end afterwards. Three indexes, no more: every statement that writes
-- opens all of them.
CREATE TABLE jobs (
    id           BLOB    NOT NULL PRIMARY KEY,
    queue        TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    state        INTEGER NOT NULL CHECK (state BETWEEN 0 AND 5),
    live         INTEGER          CHECK ((live IS 1) = (state <= 2)),
    priority     INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 9),
    run_at       INTEGER NOT NULL,
    due_at       INTEGER          CHECK ((due_at IS NOT NULL) = (state <= 1)),
    fence        INTEGER NOT NULL DEFAULT 0,
    attempts     INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    max_attempts INTEGER NOT NULL,
    process      BLOB,
    ends_at      INTEGER          CHECK ((ends_at IS NOT NULL) = (state >= 2)),
    again        INTEGER NOT NULL DEFAULT 0,
    error        TEXT,
    payload      TEXT    NOT NULL,
    attributes   TEXT    NOT NULL,
    trace        TEXT,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL
) WITHOUT ROWID;

-- One live job per key: the states it covers are closed under retry, release and rescue. The
-- key comes first because it tells jobs apart at the first comparison.
CREATE UNIQUE INDEX jobs_live ON jobs (key, queue)              WHERE live = 1;
CREATE INDEX jobs_due         ON jobs (queue, priority, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX jobs_ends        ON jobs (state, ends_at)          WHERE ends_at IS NOT NULL;

-- The duplicate-detection window: keys that were sent, finished or not.
CREATE TABLE sent_keys (
    queue   TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    job     BLOB    NOT NULL,
    until   INTEGER NOT NULL,
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE INDEX sent_keys_until ON sent_keys (until);

-- A pause is compared at claim time; it ends by itself.
CREATE TABLE queues (
    name         TEXT    NOT NULL PRIMARY KEY,
    paused_until INTEGER NOT NULL
) WITHOUT ROWID;

-- One row a key; the keys of one lease share its id and its fence.
CREATE TABLE leases (
    key        TEXT    NOT NULL PRIMARY KEY,
    lease      BLOB    NOT NULL,
    owner      TEXT    NOT NULL,
    process    BLOB,
    fence      INTEGER NOT NULL,
    ttl_ms     INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX leases_by_id ON leases (lease);

CREATE TABLE entries (
    space       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    value       TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    fresh_until INTEGER NOT NULL,
    stale_until INTEGER NOT NULL,
    keep_until  INTEGER NOT NULL,
    PRIMARY KEY (space, key)
) WITHOUT ROWID;
CREATE INDEX entries_keep_until ON entries (keep_until);

-- Timeline, audit and outbox. AUTOINCREMENT: a number is never used twice, so that a cursor
-- stays true after pruning.
CREATE TABLE events (
    id         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    subject    TEXT    NOT NULL,
    event      TEXT    NOT NULL,
    outcome    TEXT,
    reason     TEXT,
    request_id TEXT,
    details    TEXT    NOT NULL,
    topic      TEXT
);
CREATE INDEX events_subject ON events (subject);
CREATE INDEX events_topic   ON events (topic) WHERE topic IS NOT NULL;

CREATE TABLE upstreams (
    name         TEXT    NOT NULL PRIMARY KEY,
    paused_until INTEGER NOT NULL DEFAULT 0,
    next_slot_us INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE processes (
    id           BLOB    NOT NULL PRIMARY KEY,
    started_at   INTEGER NOT NULL,
    beat_at      INTEGER NOT NULL,
    steady_since INTEGER NOT NULL
) WITHOUT ROWID;

-- Counters that only grow: the last fence given out, the latest time that was seen.
CREATE TABLE counters (
    name  TEXT    NOT NULL PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO counters (name, value) VALUES ('fence', 0), ('now_ms', 0);
