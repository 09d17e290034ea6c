-- Surer.

-- Requests that wait for lookups, as before; but a wait ends with whatever is written after what was seen. It did not end
-- with what was being written while its request looked: that is of an earlier instant, and was no answer any more once it
-- had ended. `since` is when the entry that was seen had been written; where there was none, the time, less than zero.
CREATE OR REPLACE FUNCTION solely_wait(
    requests text[], ttls bigint[], told text[], most integer,
    of_requests integer[], spaces text[], keys text[],
    ids uuid[], job_keys text[], priorities smallint[], attempts integer[], payloads text[],
    attribute_sets text[], traces text[], apart boolean, doubtful integer[], offset_ms bigint
) RETURNS TABLE (place integer, outcome smallint, value text, version bigint, updated_at bigint,
                 fresh_until bigint, stale_until bigint, of_job uuid, of_state smallint, by_request text,
                 at_ms bigint)
    LANGUAGE plpgsql VOLATILE AS
$$
#variable_conflict use_column
DECLARE
    now_ms  bigint;
    refused integer[];
    -- Requests that were remembered before.
    earlier integer[];
    -- Places that make no lookup: their requests are refused, or they have an entry, or a live lookup.
    passed  integer[];
    made    boolean := false;
    -- Whether what the requests were told is remembered.
    kept    boolean := false;
    -- Whether what they are told is as it was given.
    plain   boolean := true;
    missing record;
    found   record;
BEGIN
    -- The transaction is known to write before it looks at the clock: the list of changes relies on it.
    PERFORM pg_current_xact_id();
    now_ms := solely_now(offset_ms);
    SELECT coalesce(array_agg(given.n::integer) FILTER (WHERE remembered.large), '{}'),
           coalesce(array_agg(given.n::integer) FILTER (WHERE NOT remembered.large), '{}')
      INTO refused, earlier
      FROM unnest(requests) WITH ORDINALITY AS given (request, n)
     CROSS JOIN LATERAL (SELECT octet_length(entries.value) > most AS large
                           FROM entries
                          WHERE entries.space = 'requests' AND entries.key = given.request
                            AND entries.keep_until > now_ms
                          LIMIT 1) AS remembered;
    passed := '{}';
    IF cardinality(refused) > 0 THEN
        passed := ARRAY(SELECT n::integer FROM unnest(of_requests) WITH ORDINALITY AS given (of_request, n)
                         WHERE of_request = ANY (refused));
        RETURN QUERY SELECT n, 3::smallint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
                            NULL::uuid, NULL::smallint, NULL::text, now_ms
                       FROM unnest(passed) AS given (n);
    END IF;
    FOR found IN
        SELECT given.n::integer AS n, entry.*
          FROM unnest(of_requests, spaces, keys) WITH ORDINALITY AS given (of_request, space, key, n)
         CROSS JOIN LATERAL (SELECT entries.value, entries.version, entries.updated_at, entries.fresh_until,
                                    entries.stale_until, entries.stale_until > now_ms AND NOT entries.forgotten AS serves
                               FROM entries
                              WHERE entries.space = given.space AND entries.key = given.key
                              LIMIT 1) AS entry
         WHERE given.of_request <> ALL (refused)
    LOOP
        IF of_requests[found.n] > 0 THEN
            plain := false;
            told[of_requests[found.n]] :=
                CASE WHEN found.serves
                     THEN told[of_requests[found.n]]::jsonb
                          #- ARRAY[substr(spaces[found.n], 8) || '/' || keys[found.n], 'since']
                     ELSE jsonb_set(told[of_requests[found.n]]::jsonb,
                                    ARRAY[substr(spaces[found.n], 8) || '/' || keys[found.n], 'since'],
                                    to_jsonb(found.updated_at)) END::text;
        END IF;
        CONTINUE WHEN NOT found.serves;
        passed := passed || found.n;
        RETURN QUERY SELECT found.n, 1::smallint, found.value, found.version, found.updated_at,
                            found.fresh_until, found.stale_until, NULL::uuid, NULL::smallint, NULL::text, now_ms;
    END LOOP;
    FOR attempt IN 1..2 LOOP
        IF apart AND cardinality(doubtful) > 0 THEN
            -- Where there was never an entry, a lookup that is live now is enough: it ends with one, and whoever waits
            -- reads that. Where there is one that has ended, or was forgotten, the lookup may be ending without: then it is
            -- locked first, as always when lookups are made one by one.
            FOR found IN
                SELECT given.n, live.*,
                       EXISTS (SELECT 1 FROM entries
                                WHERE entries.space = spaces[given.n] AND entries.key = keys[given.n]) AS had_entry
                  FROM unnest(doubtful) AS given (n)
                 CROSS JOIN LATERAL (SELECT jobs.id AS live_id, jobs.state, jobs.attributes
                                       FROM jobs
                                      WHERE jobs.key = job_keys[given.n] AND jobs.queue = spaces[given.n] AND jobs.state <= 2
                                      LIMIT 1) AS live
                 WHERE given.n <> ALL (passed)
            LOOP
                IF found.had_entry THEN
                    apart := false;
                    CONTINUE;
                END IF;
                passed := passed || found.n;
                -- One that finds its own job has made it, and did not hear.
                IF found.live_id <> ids[found.n] THEN
                    RETURN QUERY SELECT found.n, 2::smallint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint,
                                        NULL::bigint, found.live_id, found.state,
                                        found.attributes::json ->> 'requestId', now_ms;
                END IF;
            END LOOP;
        END IF;
        EXIT WHEN NOT apart;
        -- As a rule nobody makes any of them meanwhile, and they are inserted without another look at each.
        BEGIN
            IF cardinality(passed) = 0 THEN
                INSERT INTO jobs (id, queue, kind, key, state, priority, run_at, due_at, max_attempts, payload,
                                  attributes, trace, created_at, updated_at)
                SELECT given.id, given.queue, 'lookup', given.key, 0, given.priority, now_ms, now_ms,
                       given.attempts, given.payload, given.attributes, given.trace, now_ms, now_ms
                  FROM unnest(ids, spaces, job_keys, priorities, attempts, payloads, attribute_sets, traces)
                       AS given (id, queue, key, priority, attempts, payload, attributes, trace);
            ELSE
                INSERT INTO jobs (id, queue, kind, key, state, priority, run_at, due_at, max_attempts, payload,
                                  attributes, trace, created_at, updated_at)
                SELECT given.id, given.queue, 'lookup', given.key, 0, given.priority, now_ms, now_ms,
                       given.attempts, given.payload, given.attributes, given.trace, now_ms, now_ms
                  FROM unnest(ids, spaces, job_keys, priorities, attempts, payloads, attribute_sets, traces)
                       WITH ORDINALITY
                       AS given (id, queue, key, priority, attempts, payload, attributes, trace, n)
                 WHERE given.n <> ALL (passed);
            END IF;
            -- Nor are the requests known, as a rule; where one is, or was, what it was told is merged below.
            IF attempt = 1 AND cardinality(earlier) = 0 AND cardinality(passed) = 0 AND plain THEN
                INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
                SELECT 'requests', asking.request, replace(asking.told, '"since":-1', '"since":-' || now_ms), 1, now_ms,
                       now_ms + asking.ttl, now_ms + asking.ttl, now_ms + asking.ttl
                  FROM unnest(requests, ttls, told) AS asking (request, ttl, told)
                 WHERE strpos(asking.told, '"since":-1') > 0;
                kept := true;
            END IF;
            made := true;
        EXCEPTION WHEN unique_violation THEN
            made := false;
            kept := false;
            -- Whoever had a lease may have lost it since, with its Redis: all of them are looked for, once.
            doubtful := ARRAY(SELECT generate_subscripts(ids, 1));
        END;
        EXIT WHEN made;
    END LOOP;
    IF NOT made THEN
        SELECT array_agg(id) AS ids, array_agg(queue) AS queues, array_agg(key) AS keys,
               array_agg(priority) AS priorities, array_agg(attempt) AS attempts,
               array_agg(payload) AS payloads, array_agg(attribute_set) AS attribute_sets,
               array_agg(trace) AS traces, array_agg(n::integer) AS places
          INTO missing
          FROM (SELECT *
                  FROM unnest(ids, spaces, job_keys, priorities, attempts, payloads, attribute_sets, traces)
                       WITH ORDINALITY AS given (id, queue, key, priority, attempt, payload, attribute_set, trace, n)
                 WHERE given.n <> ALL (passed)
                 ORDER BY given.n) AS given;
        IF cardinality(missing.ids) > 0 THEN
            FOR found IN
                SELECT missing.places[made.place] AS n, made.of_job, made.of_state
                  FROM solely_enqueue(missing.ids, missing.queues,
                                      array_fill('lookup'::text, ARRAY[cardinality(missing.ids)]), missing.keys,
                                      missing.priorities, array_fill(0::bigint, ARRAY[cardinality(missing.ids)]),
                                      missing.attempts, missing.payloads, missing.attribute_sets, missing.traces,
                                      NULL, array_fill(false, ARRAY[cardinality(missing.ids)]),
                                      array_fill(false, ARRAY[cardinality(missing.ids)]), now_ms) AS made
            LOOP
                IF found.of_job <> ids[found.n] THEN
                    -- A statement of its own, which sees what this transaction has made.
                    RETURN QUERY SELECT found.n, 2::smallint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint,
                                        NULL::bigint, jobs.id, found.of_state,
                                        jobs.attributes::json ->> 'requestId', now_ms
                                   FROM jobs WHERE jobs.id = found.of_job;
                END IF;
            END LOOP;
        END IF;
    END IF;
    IF kept THEN
        RETURN;
    END IF;
    IF cardinality(earlier) > 0 THEN
        -- What a request was told earlier can be asked about for as long as the request can. What is being
        -- written just now is kept anyway.
        UPDATE entries SET keep_until = longer.until
          FROM (SELECT kept.ctid AS at, now_ms + ttls[again.n] AS until
                  FROM unnest(earlier) AS again (n)
                 CROSS JOIN LATERAL (SELECT entries.value FROM entries
                                      WHERE entries.space = 'requests' AND entries.key = requests[again.n]
                                      LIMIT 1) AS before
                 CROSS JOIN LATERAL jsonb_object_keys(before.value::jsonb) AS named (name)
                 CROSS JOIN LATERAL (SELECT entries.ctid
                                       FROM entries
                                      WHERE entries.space = 'enrich:' || split_part(named.name, '/', 1)
                                        AND entries.key = substr(named.name, strpos(named.name, '/') + 1)
                                        AND entries.keep_until > now_ms AND entries.keep_until < now_ms + ttls[again.n]
                                      LIMIT 1
                                        FOR UPDATE SKIP LOCKED) AS kept) AS longer
         WHERE entries.ctid = longer.at AND entries.keep_until < longer.until;
    END IF;
    INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
    SELECT 'requests', asking.request, replace(replace(asking.told, '"since":-1', '"since":-' || now_ms),
                                               '"since": -1', '"since":-' || now_ms), 1, now_ms,
           now_ms + asking.ttl, now_ms + asking.ttl, now_ms + asking.ttl
      FROM unnest(requests, ttls, told) WITH ORDINALITY AS asking (request, ttl, told, n)
     WHERE asking.n <> ALL (refused)
       AND (asking.n = ANY (earlier) OR strpos(asking.told, '"since":') > 0)
     ORDER BY asking.n
        ON CONFLICT (space, key) DO UPDATE
       SET value = CASE WHEN entries.keep_until > now_ms
                        -- What it was told PENDING stays so; what it waits for again it waits for anew.
                        THEN (excluded.value::jsonb || entries.value::jsonb ||
                              (SELECT coalesce(jsonb_object_agg(key, value), '{}')
                                 FROM jsonb_each(excluded.value::jsonb)
                                WHERE value ? 'since'))::text
                        ELSE excluded.value END,
           version = entries.version + 1, updated_at = greatest(now_ms, entries.updated_at + 1),
           forgotten = false, fresh_until = excluded.fresh_until, stale_until = excluded.stale_until,
           keep_until = excluded.keep_until;
END
$$;
