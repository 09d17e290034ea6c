-- As before, and: version -1 replaces only what may not be served any more.
CREATE OR REPLACE FUNCTION solely_put_entries(
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
        SELECT given.space, given.key, given.value, nullif(given.version, -1) AS version, given.fresh,
               given.stale, given.keep, given.place, coalesce(given.version = -1, false) AS if_gone
          FROM unnest(spaces, keys, contents, versions, fresh_ms, stale_ms, keep_ms) WITH ORDINALITY
               AS given (space, key, value, version, fresh, stale, keep, place)
         ORDER BY given.place
    LOOP
        INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
        VALUES (new.space, new.key, new.value, coalesce(new.version, 1), now_ms, now_ms + new.fresh,
                now_ms + new.stale, now_ms + new.keep)
            ON CONFLICT (space, key) DO UPDATE
           SET value = excluded.value, version = coalesce(new.version, entries.version + 1),
               updated_at = greatest(excluded.updated_at, entries.updated_at + 1), forgotten = false,
               fresh_until = excluded.fresh_until, stale_until = excluded.stale_until,
               keep_until = excluded.keep_until
         WHERE (new.version IS NULL OR new.version > entries.version)
           AND (NOT new.if_gone OR entries.stale_until <= now_ms)
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

-- Requests that wait for lookups. Looks at the entries of places once more, makes a lookup for each that
-- has none that may be served and no live lookup, and remembers what each request was told, as an entry
-- of the space `requests`: an object of `PROVIDER/PLACE` to name, place, and since when it waits.
--
-- Places are given in the order of their queues and keys, so that two batches cannot wait for each other,
-- each with the number of its request (0: of none). What requests were told from copies comes beside them.
-- A request that has been told more than `most` bytes is refused (outcome 3). Answers for each place: 0 a
-- lookup was made, 1 its entry, 2 the lookup that was there, and whose request made it.
CREATE FUNCTION solely_wait(
    requests text[], ttls bigint[], most integer,
    copied_of integer[], copied_keys text[], copied_names text[], copied_places integer[],
    of_requests integer[], spaces text[], keys text[], told_keys text[], names text[], told_places integer[],
    ids uuid[], queues text[], kinds text[], job_keys text[], priorities smallint[], attempts integer[],
    payloads text[], attribute_sets text[], traces text[], events text[], details text[], subjects text[],
    offset_ms bigint
) RETURNS TABLE (place integer, outcome smallint, value text, version bigint, updated_at bigint,
                 fresh_until bigint, stale_until bigint, of_job uuid, of_state smallint, by_request text,
                 at_ms bigint)
    LANGUAGE plpgsql VOLATILE AS
$$
#variable_conflict use_column
DECLARE
    now_ms  bigint;
    refused integer[];
    -- Places that make no lookup: their requests are refused, or they have an entry.
    passed  integer[];
    hits    integer[] := '{}';
    known   integer[] := '{}';
    missing record;
    found   record;
BEGIN
    -- The transaction is known to write before it looks at the clock: the list of changes relies on it.
    PERFORM pg_current_xact_id();
    now_ms := solely_now(offset_ms);
    SELECT coalesce(array_agg(given.n::integer), '{}') INTO refused
      FROM unnest(requests) WITH ORDINALITY AS given (request, n)
     CROSS JOIN LATERAL (SELECT 1 FROM entries
                          WHERE entries.space = 'requests' AND entries.key = given.request
                            AND entries.keep_until > now_ms AND octet_length(entries.value) > most) AS large;
    SELECT coalesce(array_agg(given.n::integer), '{}') INTO passed
      FROM unnest(of_requests) WITH ORDINALITY AS given (of_request, n)
     WHERE given.of_request = ANY (refused);
    RETURN QUERY SELECT n, 3::smallint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
                        NULL::uuid, NULL::smallint, NULL::text, now_ms
                   FROM unnest(passed) AS given (n);
    FOR found IN
        SELECT given.n::integer AS n, entry.*
          FROM unnest(of_requests, spaces, keys) WITH ORDINALITY AS given (of_request, space, key, n)
         CROSS JOIN LATERAL (SELECT entries.value, entries.version, entries.updated_at, entries.fresh_until,
                                    entries.stale_until
                               FROM entries
                              WHERE entries.space = given.space AND entries.key = given.key
                                AND entries.stale_until > now_ms AND NOT entries.forgotten
                              LIMIT 1) AS entry
         WHERE given.of_request <> ALL (refused)
    LOOP
        hits := hits || found.n;
        RETURN QUERY SELECT found.n, 1::smallint, found.value, found.version, found.updated_at,
                            found.fresh_until, found.stale_until, NULL::uuid, NULL::smallint, NULL::text, now_ms;
    END LOOP;
    passed := passed || hits;
    -- As a rule all of them are missing, and nothing has to be picked out.
    IF cardinality(passed) = 0 THEN
        SELECT ids AS ids, queues AS queues, kinds AS kinds, job_keys AS keys, priorities AS priorities,
               array_fill(0::bigint, ARRAY[cardinality(ids)]) AS delays, attempts AS attempts,
               payloads AS payloads, attribute_sets AS attribute_sets, traces AS traces,
               array_fill(false, ARRAY[cardinality(ids)]) AS no, NULL::integer[] AS places
          INTO missing;
    ELSE
        SELECT array_agg(id) AS ids, array_agg(queue) AS queues, array_agg(kind) AS kinds,
               array_agg(key) AS keys, array_agg(priority) AS priorities, array_agg(0::bigint) AS delays,
               array_agg(attempt) AS attempts, array_agg(payload) AS payloads,
               array_agg(attribute_set) AS attribute_sets, array_agg(trace) AS traces,
               array_agg(false) AS no, array_agg(n::integer) AS places
          INTO missing
          FROM (SELECT *
                  FROM unnest(ids, queues, kinds, job_keys, priorities, attempts, payloads, attribute_sets,
                              traces) WITH ORDINALITY
                       AS given (id, queue, kind, key, priority, attempt, payload, attribute_set, trace, n)
                 WHERE given.n <> ALL (passed)
                 ORDER BY given.n) AS given;
    END IF;
    IF cardinality(missing.ids) > 0 THEN
        FOR found IN
            SELECT CASE WHEN missing.places IS NULL THEN made.place ELSE missing.places[made.place] END AS n,
                   made.of_job, made.of_state
              FROM solely_enqueue(missing.ids, missing.queues, missing.kinds, missing.keys, missing.priorities,
                                  missing.delays, missing.attempts, missing.payloads, missing.attribute_sets,
                                  missing.traces, NULL, missing.no, missing.no, now_ms) AS made
        LOOP
            -- One that finds its own job has made it, and did not hear.
            IF found.of_job <> ids[found.n] THEN
                known := known || found.n;
                -- A statement of its own, which sees what this transaction has made.
                RETURN QUERY SELECT found.n, 2::smallint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint,
                                    NULL::bigint, jobs.id, found.of_state,
                                    jobs.attributes::json ->> 'requestId', now_ms
                               FROM jobs WHERE jobs.id = found.of_job;
            END IF;
        END LOOP;
        INSERT INTO events (at, subject, event, request_id, details)
        SELECT now_ms, given.subject, given.event, asking.request, given.details
          FROM unnest(of_requests, subjects, events, details) WITH ORDINALITY
               AS given (of_request, subject, event, details, n)
          LEFT JOIN unnest(requests) WITH ORDINALITY AS asking (request, n) ON asking.n = given.of_request
         WHERE given.n <> ALL (passed) AND given.n <> ALL (known)
         ORDER BY given.n;
        RETURN QUERY SELECT n, 0::smallint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
                            NULL::uuid, NULL::smallint, NULL::text, now_ms
                       FROM generate_series(1, cardinality(ids)) AS given (n)
                      WHERE n <> ALL (passed) AND n <> ALL (known);
        INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
        SELECT 'requests', asking.request,
               jsonb_object_agg(told.key, CASE WHEN told.waits
                                               THEN jsonb_build_object('name', told.name, 'n', told.place,
                                                                       'since', now_ms)
                                               ELSE jsonb_build_object('name', told.name, 'n', told.place) END
                                ORDER BY told.waits)::text,
               1, now_ms, now_ms + max(asking.ttl), now_ms + max(asking.ttl), now_ms + max(asking.ttl)
          FROM (SELECT of_request, key, name, place, n <> ALL (hits) AS waits
                  FROM unnest(of_requests, told_keys, names, told_places) WITH ORDINALITY
                       AS given (of_request, key, name, place, n)
                 UNION ALL
                SELECT of_request, key, name, place, false
                  FROM unnest(copied_of, copied_keys, copied_names, copied_places)
                       AS copied (of_request, key, name, place)) AS told
          JOIN unnest(requests, ttls) WITH ORDINALITY AS asking (request, ttl, n) ON asking.n = told.of_request
         WHERE told.of_request <> ALL (refused)
         GROUP BY asking.request
        HAVING bool_or(told.waits)
         ORDER BY asking.request
            ON CONFLICT (space, key) DO UPDATE
           SET value = CASE WHEN entries.keep_until > now_ms
                            -- What it was told PENDING stays so; what it waits for again it does from now on.
                            THEN (excluded.value::jsonb || entries.value::jsonb ||
                                  (SELECT jsonb_object_agg(key, value) FROM jsonb_each(excluded.value::jsonb)
                                    WHERE value ? 'since'))::text
                            ELSE excluded.value END,
               version = entries.version + 1, updated_at = greatest(now_ms, entries.updated_at + 1),
               forgotten = false, fresh_until = excluded.fresh_until, stale_until = excluded.stale_until,
               keep_until = excluded.keep_until;
    END IF;
END
$$;
