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
-- each with the number of its request (0: of none). A request that has been told more than `most` bytes
-- is refused (outcome 3). Answers for each place: 0 a lookup was made, 1 its entry, 2 the lookup that was
-- there, and whose request made it.
CREATE FUNCTION solely_wait(
    requests text[], ttls bigint[], told text[], most integer,
    of_requests integer[], spaces text[], keys text[], told_names text[], names text[], told_places integer[],
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
    now_ms   bigint;
    refused  integer[];
    hits     integer[] := '{}';
    misses   integer[];
    known    integer[] := '{}';
    found    record;
    asking   record;
    resolved jsonb;
    waiting  jsonb;
BEGIN
    -- The transaction is known to write before it looks at the clock: the list of changes relies on it.
    PERFORM pg_current_xact_id();
    now_ms := solely_now(offset_ms);
    SELECT coalesce(array_agg(given.n::integer), '{}') INTO refused
      FROM unnest(requests) WITH ORDINALITY AS given (request, n)
     CROSS JOIN LATERAL (SELECT 1 FROM entries
                          WHERE entries.space = 'requests' AND entries.key = given.request
                            AND entries.keep_until > now_ms AND length(entries.value) > most) AS large;
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
    SELECT coalesce(array_agg(given.n::integer ORDER BY given.n), '{}') INTO misses
      FROM unnest(of_requests) WITH ORDINALITY AS given (of_request, n)
     WHERE given.n <> ALL (hits) AND given.of_request <> ALL (refused);
    IF cardinality(misses) > 0 THEN
        FOR found IN
            SELECT misses[made.place] AS n, made.of_job, made.of_state
              FROM (SELECT array_agg(ids[n] ORDER BY n) AS ids, array_agg(queues[n] ORDER BY n) AS queues,
                           array_agg(kinds[n] ORDER BY n) AS kinds, array_agg(job_keys[n] ORDER BY n) AS keys,
                           array_agg(priorities[n] ORDER BY n) AS priorities,
                           array_agg(0::bigint ORDER BY n) AS delays,
                           array_agg(attempts[n] ORDER BY n) AS attempts,
                           array_agg(payloads[n] ORDER BY n) AS payloads,
                           array_agg(attribute_sets[n] ORDER BY n) AS attribute_sets,
                           array_agg(traces[n] ORDER BY n) AS traces,
                           array_agg(false ORDER BY n) AS no
                      FROM unnest(misses) AS missing (n)) AS given
             CROSS JOIN LATERAL solely_enqueue(given.ids, given.queues, given.kinds, given.keys,
                                               given.priorities, given.delays, given.attempts,
                                               given.payloads, given.attribute_sets, given.traces,
                                               NULL, given.no, given.no, now_ms) AS made
        LOOP
            -- One that finds its own job has made it, and did not hear.
            IF found.of_job <> ids[found.n] THEN
                known := known || found.n;
                RETURN QUERY SELECT found.n, 2::smallint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint,
                                    NULL::bigint, jobs.id, found.of_state,
                                    jobs.attributes::jsonb ->> 'requestId', now_ms
                               FROM jobs WHERE jobs.id = found.of_job;
            END IF;
        END LOOP;
        INSERT INTO events (at, subject, event, request_id, details)
        SELECT now_ms, subjects[n], events[n], nullif(requests[of_requests[n]], ''), details[n]
          FROM unnest(misses) AS missing (n)
         WHERE n <> ALL (known)
         ORDER BY n;
        RETURN QUERY SELECT n, 0::smallint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
                            NULL::uuid, NULL::smallint, NULL::text, now_ms
                       FROM unnest(misses) AS missing (n)
                      WHERE n <> ALL (known);
    END IF;
    FOR asking IN
        SELECT given.request, given.ttl, given.told::jsonb AS told, given.n::integer AS n
          FROM unnest(requests, ttls, told) WITH ORDINALITY AS given (request, ttl, told, n)
         ORDER BY given.request, given.n
    LOOP
        IF asking.n = ANY (refused) THEN
            RETURN QUERY SELECT given.n::integer, 3::smallint, NULL::text, NULL::bigint, NULL::bigint,
                                NULL::bigint, NULL::bigint, NULL::uuid, NULL::smallint, NULL::text, now_ms
                           FROM unnest(of_requests) WITH ORDINALITY AS given (of_request, n)
                          WHERE given.of_request = asking.n;
            CONTINUE;
        END IF;
        SELECT jsonb_object_agg(told_names[n], jsonb_build_object('name', names[n], 'n', told_places[n],
                                                                  'since', now_ms))
          INTO waiting
          FROM unnest(misses) AS missing (n)
         WHERE of_requests[n] = asking.n;
        CONTINUE WHEN waiting IS NULL;
        SELECT asking.told || coalesce(jsonb_object_agg(told_names[n], jsonb_build_object('name', names[n],
                                                                                          'n', told_places[n])),
                                       '{}')
          INTO resolved
          FROM unnest(hits) AS hit (n)
         WHERE of_requests[n] = asking.n;
        INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
        VALUES ('requests', asking.request, (resolved || waiting)::text, 1, now_ms, now_ms + asking.ttl,
                now_ms + asking.ttl, now_ms + asking.ttl)
            ON CONFLICT (space, key) DO UPDATE
           SET value = CASE WHEN entries.keep_until > now_ms
                            THEN (resolved || entries.value::jsonb || waiting)::text ELSE excluded.value END,
               version = entries.version + 1, updated_at = greatest(now_ms, entries.updated_at + 1),
               forgotten = false, fresh_until = excluded.fresh_until, stale_until = excluded.stale_until,
               keep_until = excluded.keep_until;
    END LOOP;
END
$$;
