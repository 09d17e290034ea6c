-- Names and keys are compared byte by byte, as everywhere in solely: COLLATE "C".

-- The store's clock in milliseconds. The offset is zero but in tests.
CREATE FUNCTION solely_now(offset_ms bigint) RETURNS bigint
    LANGUAGE sql VOLATILE AS
$$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + offset_ms
$$;

-- Jobs. `due_at` and `ends_at` say in columns of their own what `state` implies, so that each
-- partial index is touched only by the transitions that concern it. `ends_at` is the end of the
-- lock while the job runs and its own end afterwards.
CREATE TABLE jobs (
    id           uuid     NOT NULL PRIMARY KEY,
    queue        text COLLATE "C" NOT NULL,
    kind         text     NOT NULL,
    key          text COLLATE "C" NOT NULL,
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

-- Makes jobs, given in the order of their keys so that two batches cannot wait for each other.
-- Answers with those that were not made, and why: 1 a running job will run again, 2 a live job
-- has the key, 3 the key was sent within its window.
--
-- The insert waits for a racing one to commit or not; if the job that was in the way has ended
-- by the time it is looked for, the insert is tried again: never no job at all.
CREATE FUNCTION solely_enqueue(
    ids uuid[], queues text[], kinds text[], keys text[], priorities smallint[], delays bigint[],
    attempts integer[], payloads text[], attribute_sets text[], traces text[],
    windows bigint[], checks boolean[], triggers boolean[], now_ms bigint
) RETURNS TABLE (place integer, outcome smallint, of_job uuid, of_state smallint, until_ms bigint)
    LANGUAGE plpgsql VOLATILE AS
$$
#variable_conflict use_column
DECLARE
    made     uuid[];
    new      record;
    sent     record;
    live     record;
    inserted boolean;
BEGIN
    WITH inserted AS (
        INSERT INTO jobs (id, queue, kind, key, state, priority, run_at, due_at, max_attempts,
                          payload, attributes, trace, created_at, updated_at)
        SELECT given.id, given.queue, given.kind, given.key, 0, given.priority, now_ms + given.delay,
               now_ms + given.delay, given.attempts, given.payload, given.attributes, given.trace,
               now_ms, now_ms
          FROM unnest(ids, queues, kinds, keys, priorities, delays, attempts, payloads, attribute_sets,
                      traces, checks)
               AS given (id, queue, kind, key, priority, delay, attempts, payload, attributes, trace, checked)
         WHERE NOT given.checked
            ON CONFLICT (key, queue) WHERE state <= 2 DO NOTHING
        RETURNING id)
    SELECT coalesce(array_agg(id), '{}') INTO made FROM inserted;
    IF windows IS NOT NULL THEN
        INSERT INTO sent_keys (queue, key, job, until)
        SELECT given.queue, given.key, given.id, now_ms + given.sent_for
          FROM unnest(ids, queues, keys, windows) AS given (id, queue, key, sent_for)
         WHERE given.sent_for IS NOT NULL AND given.id = ANY (made)
            ON CONFLICT (queue, key) DO UPDATE SET job = excluded.job, until = excluded.until;
    END IF;
    IF cardinality(made) = cardinality(ids) THEN
        RETURN;
    END IF;
    FOR new IN
        SELECT given.*
          FROM unnest(ids, queues, kinds, keys, priorities, delays, attempts, payloads, attribute_sets,
                      traces, windows, checks, triggers)
               WITH ORDINALITY
               AS given (id, queue, kind, key, priority, delay, attempts, payload, attributes, trace,
                         sent_for, checked, is_trigger, place)
         WHERE given.id <> ALL (made)
         ORDER BY given.place
    LOOP
        LOOP
            SELECT job, until INTO sent
              FROM sent_keys
             WHERE new.checked AND queue = new.queue AND key = new.key AND until > now_ms;
            IF sent.job IS NULL THEN
                INSERT INTO jobs (id, queue, kind, key, state, priority, run_at, due_at, max_attempts,
                                  payload, attributes, trace, created_at, updated_at)
                VALUES (new.id, new.queue, new.kind, new.key, 0, new.priority, now_ms + new.delay,
                        now_ms + new.delay, new.attempts, new.payload, new.attributes, new.trace, now_ms,
                        now_ms)
                    ON CONFLICT (key, queue) WHERE state <= 2 DO NOTHING;
                inserted := FOUND;
                IF inserted AND new.checked THEN
                    -- Sent and done between the look and the insert? Whoever comes later waits
                    -- for this one.
                    SELECT job, until INTO sent
                      FROM sent_keys
                     WHERE queue = new.queue AND key = new.key AND until > now_ms;
                    IF FOUND THEN
                        DELETE FROM jobs WHERE id = new.id;
                        RETURN QUERY SELECT new.place::integer, 3::smallint, sent.job, NULL::smallint,
                                            sent.until;
                        EXIT;
                    END IF;
                END IF;
                IF inserted THEN
                    IF new.sent_for IS NOT NULL THEN
                        INSERT INTO sent_keys (queue, key, job, until)
                        VALUES (new.queue, new.key, new.id, now_ms + new.sent_for)
                            ON CONFLICT (queue, key) DO UPDATE SET job = excluded.job, until = excluded.until;
                    END IF;
                    EXIT;
                END IF;
            END IF;
            SELECT id, state, CASE WHEN state = 2 THEN ends_at END AS until INTO live
              FROM jobs
             WHERE key = new.key AND queue = new.queue AND state <= 2
               FOR UPDATE;
            IF live.id IS NOT NULL AND live.state = 2 AND new.is_trigger THEN
                UPDATE jobs SET again = true, payload = new.payload, updated_at = now_ms WHERE id = live.id;
                RETURN QUERY SELECT new.place::integer, 1::smallint, live.id, live.state, live.until;
                EXIT;
            ELSIF live.id IS NOT NULL THEN
                RETURN QUERY SELECT new.place::integer, 2::smallint, live.id, live.state, live.until;
                EXIT;
            ELSIF sent.job IS NOT NULL THEN
                RETURN QUERY SELECT new.place::integer, 3::smallint, sent.job, NULL::smallint, sent.until;
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
END
$$;

-- Takes due jobs of a queue that is not paused, most urgent first; those that others have locked
-- are passed over, and jobs that wait for later are never looked at. None for a process that is
-- not known to be alive.
CREATE FUNCTION solely_claim(claimer uuid, wanted_queue text, most integer, lock_ms bigint, offset_ms bigint)
RETURNS SETOF jobs
    LANGUAGE plpgsql VOLATILE ROWS 16 AS
$$
DECLARE
    now_ms  bigint   := solely_now(offset_ms);
    urgency smallint := -1;
    missing integer  := most;
    taken   integer;
BEGIN
    -- Said to solely_next_due, which is sent together with this.
    PERFORM set_config('solely.claimed_at', now_ms::text, true), set_config('solely.missing', most::text, true);
    PERFORM 1 FROM processes WHERE id = claimer;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM 1 FROM queues WHERE name = wanted_queue AND paused_until > now_ms;
    IF FOUND THEN
        RETURN;
    END IF;
    WHILE missing > 0 LOOP
        SELECT priority INTO urgency
          FROM jobs
         WHERE queue = wanted_queue AND priority > urgency AND due_at IS NOT NULL
         ORDER BY priority
         LIMIT 1;
        EXIT WHEN NOT FOUND;
        RETURN QUERY
            WITH due AS MATERIALIZED (
                SELECT ctid AS at
                  FROM jobs
                 WHERE queue = wanted_queue AND priority = urgency AND due_at <= now_ms
                 ORDER BY due_at, id
                 LIMIT missing
                   FOR UPDATE SKIP LOCKED)
            UPDATE jobs
               SET state = 2, due_at = NULL, process = claimer, ends_at = now_ms + lock_ms,
                   updated_at = now_ms, fence = fence + 1, attempts = attempts + 1, again = false
              FROM due
             WHERE jobs.ctid = due.at
            RETURNING jobs.*;
        GET DIAGNOSTICS taken = ROW_COUNT;
        missing := missing - taken;
    END LOOP;
    PERFORM set_config('solely.missing', missing::text, true);
END
$$;

-- Whether a process is known to be alive, and how long until a queue has something more for it:
-- until its pause ends, or its next job is due. Follows solely_claim in its transaction, and does
-- not look if that found all it wanted.
CREATE FUNCTION solely_next_due(claimer uuid, wanted_queue text, offset_ms bigint,
                                OUT alive boolean, OUT wait_ms bigint)
    LANGUAGE plpgsql VOLATILE AS
$$
DECLARE
    -- The same instant: a job that was not due then is due later.
    now_ms bigint := coalesce(nullif(current_setting('solely.claimed_at', true), '')::bigint,
                              solely_now(offset_ms));
BEGIN
    IF current_setting('solely.missing', true) = '0' THEN
        alive := true;
        RETURN;
    END IF;
    alive := EXISTS (SELECT 1 FROM processes WHERE id = claimer);
    SELECT paused_until - now_ms INTO wait_ms
      FROM queues WHERE name = wanted_queue AND paused_until > now_ms;
    IF NOT FOUND THEN
        SELECT min(later.due_at) - now_ms INTO wait_ms
          FROM generate_series(0, 9) AS urgency
         CROSS JOIN LATERAL (SELECT due_at FROM jobs
                              WHERE queue = wanted_queue AND priority = urgency AND due_at > now_ms
                              ORDER BY due_at LIMIT 1) AS later;
    END IF;
END
$$;

-- Locks jobs, given in the order of their ids, and says where their rows are: they stay there
-- until the transaction ends. Null for one that is not there.
CREATE FUNCTION solely_lock_jobs(ids uuid[]) RETURNS tid[]
    LANGUAGE plpgsql VOLATILE AS
$$
BEGIN
    RETURN ARRAY(SELECT locked.at
                   FROM unnest(ids) AS wanted (wanted_id)
                   LEFT JOIN LATERAL (SELECT ctid AS at FROM jobs WHERE id = wanted_id FOR UPDATE) AS locked
                     ON true);
END
$$;

-- Moves the end of locks. Claims are given in the order of their jobs' ids; rows are locked first,
-- and only then is the clock looked at. Answers with those that could be renewed.
CREATE FUNCTION solely_renew(ids uuid[], fences bigint[], lock_ms bigint, offset_ms bigint, fence_holds boolean)
RETURNS TABLE (place integer, until_ms bigint)
    LANGUAGE plpgsql VOLATILE AS
$$
DECLARE
    rows   tid[];
    now_ms bigint;
BEGIN
    rows := solely_lock_jobs(ids);
    now_ms := solely_now(offset_ms);
    RETURN QUERY
        UPDATE jobs
           SET ends_at = now_ms + lock_ms
          FROM unnest(rows, fences) WITH ORDINALITY AS claimed (at, claimed_fence, claimed_place)
         WHERE jobs.ctid = claimed.at AND state = 2
           AND (fence = claimed_fence AND ends_at > now_ms OR NOT fence_holds)
        RETURNING claimed_place::integer, ends_at;
END
$$;

-- Passes verdicts on deliveries: 0 complete, 1 retry, 2 postpone, 3 release, 4 dead. As with
-- solely_renew: locked first, judged by the time after. Answers with the claims that were the
-- jobs' own, and for a dead one whether a trigger came while it ran.
--
-- A job that is complete needs its payload no more, and it may hold a secret; one that a trigger
-- met while it ran is as if made anew. A job put back serves such a trigger by its next delivery.
CREATE FUNCTION solely_settle(ids uuid[], fences bigint[], verdicts smallint[], delays bigint[], errors text[],
                              offset_ms bigint, fence_holds boolean)
RETURNS TABLE (place integer, was_triggered boolean, at_ms bigint)
    LANGUAGE plpgsql VOLATILE AS
$$
DECLARE
    rows   tid[];
    now_ms bigint;
BEGIN
    rows := solely_lock_jobs(ids);
    now_ms := solely_now(offset_ms);
    RETURN QUERY
        UPDATE jobs
           SET state      = CASE WHEN verdict = 0 THEN CASE WHEN again THEN 0 ELSE 3 END
                                 WHEN verdict IN (1, 2) THEN 1
                                 WHEN verdict = 3 THEN 0
                                 ELSE 4 END,
               run_at     = CASE WHEN verdict = 0 AND again THEN now_ms
                                 WHEN verdict IN (1, 2) THEN now_ms + delay
                                 ELSE run_at END,
               due_at     = CASE WHEN verdict = 0 AND again THEN now_ms
                                 WHEN verdict IN (1, 2) THEN now_ms + delay
                                 WHEN verdict = 3 THEN run_at END,
               ends_at    = CASE WHEN verdict = 4 OR verdict = 0 AND NOT again THEN now_ms END,
               attempts   = CASE WHEN verdict = 0 AND again THEN 0
                                 WHEN verdict IN (2, 3) THEN greatest(attempts - 1, 0)
                                 ELSE attempts END,
               again      = verdict = 4 AND again,
               error      = CASE WHEN verdict <> 0 THEN coalesce(new_error, error) END,
               payload    = CASE WHEN verdict = 0 AND NOT again THEN '{}' ELSE payload END,
               process    = NULL,
               updated_at = now_ms
          FROM unnest(rows, fences, verdicts, delays, errors) WITH ORDINALITY
               AS claimed (at, claimed_fence, verdict, delay, new_error, claimed_place)
         WHERE jobs.ctid = claimed.at
           AND (fence = claimed_fence AND state = 2 AND ends_at > now_ms OR NOT fence_holds)
        RETURNING claimed_place::integer, again, now_ms;
END
$$;

-- The duplicate-detection window: keys that were sent, finished or not.
CREATE TABLE sent_keys (
    queue text COLLATE "C" NOT NULL,
    key   text COLLATE "C" NOT NULL,
    job   uuid   NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (queue, key)
);
CREATE INDEX sent_keys_until ON sent_keys (until);

-- A pause is compared at claim time; it ends by itself.
CREATE TABLE queues (
    name         text COLLATE "C" NOT NULL PRIMARY KEY,
    paused_until bigint NOT NULL
);

-- One row a key; the keys of one lease share its id and its fence.
CREATE SEQUENCE fences;
CREATE TABLE leases (
    key        text COLLATE "C" NOT NULL PRIMARY KEY,
    lease      uuid   NOT NULL,
    owner      text   NOT NULL,
    process    uuid,
    fence      bigint NOT NULL,
    ttl_ms     bigint NOT NULL,
    expires_at bigint NOT NULL
);
CREATE INDEX leases_by_id   ON leases (lease);
CREATE INDEX leases_expires ON leases (expires_at);
CREATE INDEX leases_process ON leases (process) WHERE process IS NOT NULL;

-- Releases, renews and takes leases for many callers at once, in this order. No lease is named
-- twice and no key is wanted twice; leases are given in the order of their ids, keys in theirs.
--
-- Every wanted key is locked first by its number, there or not; then the rows that are renewed;
-- then the clock is looked at and fences are drawn, so that whoever gets a key later gets a
-- greater one. A key that is held is refused at once, so nothing here waits for a release that
-- is under way.
--
-- Answers: 0 released and 1 renewed (one row a key), 2 held by another (one row a key), 3 the
-- fences of all requests; those of refused ones mean nothing.
CREATE FUNCTION solely_lease(
    released uuid[], renewed uuid[], renewed_ttls bigint[],
    numbers bigint[], keys text[], wanted_by integer[],
    ids uuid[], owners text[], holders uuid[], ttls bigint[], requests integer, offset_ms bigint
) RETURNS TABLE (answer integer, place integer, of_key text, of_owner text, of_fence bigint, until_ms bigint,
                 now_at bigint, drawn bigint[])
    LANGUAGE plpgsql VOLATILE AS
$$
#variable_conflict use_column
DECLARE
    now_ms  bigint;
    held    record;
    refused integer[] := '{}';
    ended   text[]    := '{}';
    fences  bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(number) FROM unnest(numbers) AS number;
    IF cardinality(renewed) > 0 THEN
        PERFORM 1
           FROM unnest(renewed) AS given (id)
          CROSS JOIN LATERAL (SELECT 1 FROM leases WHERE lease = given.id FOR UPDATE) AS locked;
    END IF;
    now_ms := solely_now(offset_ms);
    IF cardinality(released) > 0 THEN
        RETURN QUERY
            DELETE FROM leases
             USING unnest(released) WITH ORDINALITY AS given (id, place)
             WHERE lease = given.id AND expires_at > now_ms
            RETURNING 0, given.place::integer, key, owner, fence, expires_at, now_ms, NULL::bigint[];
    END IF;
    IF cardinality(renewed) > 0 THEN
        RETURN QUERY
            UPDATE leases
               SET ttl_ms = coalesce(given.ttl, ttl_ms), expires_at = now_ms + coalesce(given.ttl, ttl_ms)
              FROM unnest(renewed, renewed_ttls) WITH ORDINALITY AS given (id, ttl, place)
             WHERE lease = given.id AND expires_at > now_ms
            RETURNING 1, given.place::integer, key, owner, fence, expires_at, now_ms, NULL::bigint[];
    END IF;
    IF requests = 0 THEN
        RETURN;
    END IF;
    FOR held IN
        SELECT given.place, lease.key, lease.owner, lease.fence, lease.expires_at
          FROM unnest(keys, wanted_by) AS given (name, place)
         CROSS JOIN LATERAL (SELECT key, owner, fence, expires_at FROM leases
                              WHERE key = given.name LIMIT 1) AS lease
    LOOP
        IF held.expires_at > now_ms THEN
            refused := refused || held.place;
            RETURN QUERY SELECT 2, held.place, held.key, held.owner, held.fence, held.expires_at, now_ms,
                                NULL::bigint[];
        ELSE
            ended := ended || held.key;
        END IF;
    END LOOP;
    fences := ARRAY(SELECT nextval('fences') FROM generate_series(1, requests));
    -- Nobody else can take these keys now: what is not there stays so, unless a process that has
    -- ended is swept away meanwhile, and that leaves nothing behind.
    IF cardinality(ended) > 0 THEN
        DELETE FROM leases USING unnest(ended) AS name WHERE key = name AND expires_at <= now_ms;
    END IF;
    INSERT INTO leases (key, lease, owner, process, fence, ttl_ms, expires_at)
    SELECT given.name, given.id, given.owner, given.holder, fences[given.place], given.ttl, now_ms + given.ttl
      FROM unnest(keys, wanted_by, ids, owners, holders, ttls) AS given (name, place, id, owner, holder, ttl)
     WHERE given.place <> ALL (refused);
    RETURN QUERY SELECT 3, 0, NULL::text, NULL::text, NULL::bigint, NULL::bigint, now_ms, fences;
END
$$;

CREATE TABLE entries (
    space       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    value       text   NOT NULL,
    version     bigint NOT NULL,
    updated_at  bigint NOT NULL,
    fresh_until bigint NOT NULL,
    stale_until bigint NOT NULL,
    keep_until  bigint NOT NULL,
    PRIMARY KEY (space, key)
);
CREATE INDEX entries_keep_until ON entries (keep_until);

-- Writes entries, given in the order of their keys, each if its version allows: a null version
-- always does. Answers for each with its version now, and whether it was stored.
CREATE FUNCTION solely_put_entries(
    spaces text[], keys text[], contents text[], versions bigint[],
    fresh_ms bigint[], stale_ms bigint[], keep_ms bigint[], now_ms bigint
) RETURNS TABLE (place integer, stored boolean, version_now bigint)
    LANGUAGE plpgsql VOLATILE AS
$$
#variable_conflict use_column
DECLARE
    new  record;
    kept bigint;
BEGIN
    FOR new IN
        SELECT given.*
          FROM unnest(spaces, keys, contents, versions, fresh_ms, stale_ms, keep_ms) WITH ORDINALITY
               AS given (space, key, value, version, fresh, stale, keep, place)
         ORDER BY given.place
    LOOP
        INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
        VALUES (new.space, new.key, new.value, coalesce(new.version, 1), now_ms, now_ms + new.fresh,
                now_ms + new.stale, now_ms + new.keep)
            ON CONFLICT (space, key) DO UPDATE
           SET value = excluded.value, version = coalesce(new.version, entries.version + 1),
               updated_at = excluded.updated_at, fresh_until = excluded.fresh_until,
               stale_until = excluded.stale_until, keep_until = excluded.keep_until
         WHERE new.version IS NULL OR new.version > entries.version
        RETURNING version INTO kept;
        IF FOUND THEN
            RETURN QUERY SELECT new.place::integer, true, kept;
        ELSE
            RETURN QUERY SELECT new.place::integer, false, version
                           FROM entries WHERE space = new.space AND key = new.key;
        END IF;
    END LOOP;
END
$$;

-- Timeline, audit and outbox.
CREATE TABLE events (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         bigint NOT NULL,
    subject    text COLLATE "C" NOT NULL,
    event      text   NOT NULL,
    outcome    text,
    reason     text,
    request_id text,
    details    text   NOT NULL,
    topic      text COLLATE "C"
);
CREATE INDEX events_subject ON events (subject, id);
CREATE INDEX events_topic   ON events (topic, id) WHERE topic IS NOT NULL;
CREATE INDEX events_at      ON events (at)        WHERE topic IS NULL;

CREATE TABLE upstreams (
    name         text COLLATE "C" NOT NULL PRIMARY KEY,
    paused_until bigint NOT NULL DEFAULT 0,
    next_slot_us bigint NOT NULL DEFAULT 0
);

-- Locks the upstream's row, then looks at the clock: slots are granted one after the other, and
-- those that nobody used are forfeited. A slot beyond the caller's patience is not taken.
CREATE FUNCTION solely_take_slot(upstream text, spacing_us bigint, patience_us bigint, offset_ms bigint,
                                 OUT paused_ms bigint, OUT after_us bigint)
    LANGUAGE plpgsql VOLATILE AS
$$
DECLARE
    shared record;
    now_us bigint;
BEGIN
    INSERT INTO upstreams (name) VALUES (upstream)
        ON CONFLICT (name) DO UPDATE SET name = excluded.name
    RETURNING paused_until, next_slot_us INTO shared;
    now_us := solely_now(offset_ms) * 1000;
    paused_ms := greatest(shared.paused_until - now_us / 1000, 0);
    after_us := greatest(shared.next_slot_us - now_us, 0);
    IF paused_ms = 0 AND after_us <= patience_us THEN
        UPDATE upstreams SET next_slot_us = now_us + after_us + spacing_us WHERE name = upstream;
    END IF;
END
$$;

CREATE TABLE processes (
    id           uuid   NOT NULL PRIMARY KEY,
    started_at   bigint NOT NULL,
    beat_at      bigint NOT NULL,
    steady_since bigint NOT NULL
);
