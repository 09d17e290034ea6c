-- The store's clock in milliseconds. The offset is zero but in tests.
CREATE FUNCTION solely_now(offset_ms bigint) RETURNS bigint
    LANGUAGE sql VOLATILE
    RETURN floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + offset_ms;

-- Jobs. `due_at` and `ends_at` say in columns of their own what `state` implies, so that each
-- partial index is touched only by the transitions that concern it. `ends_at` is the end of the
-- lock while the job runs and its own end afterwards.
CREATE TABLE jobs (
    id           uuid     NOT NULL PRIMARY KEY,
    queue        text     NOT NULL,
    kind         text     NOT NULL,
    key          text     NOT NULL,
    state        smallint NOT NULL CHECK (state BETWEEN 0 AND 5),
    priority     smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    run_at       bigint   NOT NULL,
    due_at       bigint            CHECK ((due_at IS NOT NULL) = (state <= 1)),
    fence        bigint   NOT NULL DEFAULT 0,
    attempts     integer  NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    max_attempts integer  NOT NULL,
    process      uuid,
    ends_at      bigint            CHECK ((ends_at IS NOT NULL) = (state >= 2)),
    again        boolean  NOT NULL DEFAULT false,
    error        text,
    payload      text     NOT NULL,
    attributes   text     NOT NULL,
    trace        text,
    created_at   bigint   NOT NULL,
    updated_at   bigint   NOT NULL
);

-- One live job per key: the states it covers are closed under retry, release and rescue.
CREATE UNIQUE INDEX jobs_live ON jobs (key, queue)                  WHERE state <= 2;
CREATE INDEX jobs_due         ON jobs (queue, priority, due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX jobs_ends        ON jobs (state, ends_at)              WHERE ends_at IS NOT NULL;

-- The due jobs of a queue, most urgent first, locked; those that others have locked are passed
-- over. Jobs that wait for later are never looked at.
CREATE FUNCTION solely_due(wanted_queue text, most integer, now_ms bigint) RETURNS SETOF uuid
    LANGUAGE plpgsql VOLATILE ROWS 16 AS
$$
DECLARE
    urgency smallint := -1;
    missing integer  := most;
    found   uuid[];
BEGIN
    WHILE missing > 0 LOOP
        SELECT min(priority) INTO urgency
          FROM jobs
         WHERE queue = wanted_queue AND priority > urgency AND due_at IS NOT NULL;
        EXIT WHEN urgency IS NULL;
        found := ARRAY(SELECT id
                         FROM jobs
                        WHERE queue = wanted_queue AND priority = urgency AND due_at <= now_ms
                        ORDER BY due_at, id
                        LIMIT missing
                          FOR UPDATE SKIP LOCKED);
        RETURN QUERY SELECT unnest(found);
        missing := missing - coalesce(array_length(found, 1), 0);
    END LOOP;
END
$$;

-- The duplicate-detection window: keys that were sent, finished or not.
CREATE TABLE sent_keys (
    queue text   NOT NULL,
    key   text   NOT NULL,
    job   uuid   NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (queue, key)
);
CREATE INDEX sent_keys_until ON sent_keys (until);

-- A pause is compared at claim time; it ends by itself.
CREATE TABLE queues (
    name         text   NOT NULL PRIMARY KEY,
    paused_until bigint NOT NULL
);

-- One row a key; the keys of one lease share its id and its fence.
CREATE SEQUENCE fences;
CREATE TABLE leases (
    key        text   NOT NULL PRIMARY KEY,
    lease      uuid   NOT NULL,
    owner      text   NOT NULL,
    process    uuid,
    fence      bigint NOT NULL,
    ttl_ms     bigint NOT NULL,
    expires_at bigint NOT NULL
);
CREATE INDEX leases_by_id   ON leases (lease);
CREATE INDEX leases_expires ON leases (expires_at);

CREATE TABLE entries (
    space       text   NOT NULL,
    key         text   NOT NULL,
    value       text   NOT NULL,
    version     bigint NOT NULL,
    updated_at  bigint NOT NULL,
    fresh_until bigint NOT NULL,
    stale_until bigint NOT NULL,
    keep_until  bigint NOT NULL,
    PRIMARY KEY (space, key)
);
CREATE INDEX entries_keep_until ON entries (keep_until);

-- Timeline, audit and outbox.
CREATE TABLE events (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         bigint NOT NULL,
    subject    text   NOT NULL,
    event      text   NOT NULL,
    outcome    text,
    reason     text,
    request_id text,
    details    text   NOT NULL,
    topic      text
);
CREATE INDEX events_subject ON events (subject, id);
CREATE INDEX events_topic   ON events (topic, id) WHERE topic IS NOT NULL;
CREATE INDEX events_at      ON events (at)        WHERE topic IS NULL;

CREATE TABLE upstreams (
    name         text   NOT NULL PRIMARY KEY,
    paused_until bigint NOT NULL DEFAULT 0,
    next_slot_us bigint NOT NULL DEFAULT 0
);

CREATE TABLE processes (
    id           uuid   NOT NULL PRIMARY KEY,
    started_at   bigint NOT NULL,
    beat_at      bigint NOT NULL,
    steady_since bigint NOT NULL
);
