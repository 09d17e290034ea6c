-- Fewer things are written for each event, and for each request that waits.

-- Events are made in the order of their ids, so what is old is found from their beginning on.
DROP INDEX events_at;

-- As before in what it guarantees. The same rows, found by who has them.
DROP INDEX reservations_open;
CREATE UNIQUE INDEX reservations_open ON reservations (user_id, merchant_id) WHERE status <= 1;

-- As that of six arguments, which older programs call; whoever does not get the merchants within `wait_ms` gives up.
CREATE FUNCTION solely_lock_merchants(
    merchant_ids text[], box_type_ids text[], inventory_ids text[], reservation_ids uuid[], wait_ids uuid[],
    wait_ms bigint, offset_ms bigint
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS
$$
DECLARE
    ids text[] := merchant_ids;
BEGIN
    PERFORM set_config('lock_timeout', wait_ms::text, true);
    -- Each by its key, and only what was asked for: this is part of every batch.
    IF cardinality(inventory_ids) > 0 THEN
        ids := ids || ARRAY(SELECT found.merchant_id FROM unnest(inventory_ids) AS named (id)
                             CROSS JOIN LATERAL (SELECT merchant_id FROM inventory AS i
                                                  WHERE i.id = named.id LIMIT 1) AS found);
    END IF;
    IF cardinality(reservation_ids) > 0 THEN
        ids := ids || ARRAY(SELECT found.merchant_id FROM unnest(reservation_ids) AS named (id)
                             CROSS JOIN LATERAL (SELECT merchant_id FROM reservations AS r
                                                  WHERE r.id = named.id LIMIT 1) AS found);
    END IF;
    IF cardinality(box_type_ids) > 0 THEN
        ids := ids || ARRAY(SELECT found.merchant_id FROM unnest(box_type_ids) AS named (id)
                             CROSS JOIN LATERAL (SELECT merchant_id FROM box_types AS b
                                                  WHERE b.id = named.id LIMIT 1) AS found);
    END IF;
    IF cardinality(wait_ids) > 0 THEN
        ids := ids || ARRAY(SELECT found.merchant_id FROM unnest(wait_ids) AS named (id)
                             CROSS JOIN LATERAL (SELECT merchant_id FROM waitlist AS w
                                                  WHERE w.id = named.id LIMIT 1) AS found);
    END IF;
    PERFORM id FROM merchants WHERE id = ANY (ids) ORDER BY id FOR NO KEY UPDATE;
    RETURN solely_now(offset_ms);
END
$$;

-- Requests that wait for lookups, as `solely_wait` of 26 arguments, which older programs call. What a request
-- is told comes as the text of its entry: an object of `PROVIDER/PLACE` to name, place, and `"since":-1` for
-- what it waits for, where the time is put in. Requests are each there once, in the order of their ids.
--
-- Looks at the entries of places once more, makes a lookup for each that has none that may be served and no
-- live lookup, and remembers what each request was told if it waits for anything, now or since earlier.
-- Answers for each place: 1 its entry, 2 the lookup that was there, and whose request made it, 3 its request
-- has been told more than `most` bytes and is refused. For places without an answer a lookup was made.
CREATE FUNCTION solely_wait(
    requests text[], ttls bigint[], told text[], most integer,
    of_requests integer[], spaces text[], keys text[], told_keys text[],
    ids uuid[], job_keys text[], priorities smallint[], attempts integer[], payloads text[],
    attribute_sets text[], traces text[], events text[], details text[], by_requests text[], offset_ms bigint
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
    -- Places that make no lookup: their requests are refused, or they have an entry.
    passed  integer[];
    known   integer[] := '{}';
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
    passed := ARRAY(SELECT n::integer FROM unnest(of_requests) WITH ORDINALITY AS given (of_request, n)
                     WHERE of_request = ANY (refused));
    IF cardinality(passed) > 0 THEN
        RETURN QUERY SELECT n, 3::smallint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
                            NULL::uuid, NULL::smallint, NULL::text, now_ms
                       FROM unnest(passed) AS given (n);
    END IF;
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
        passed := passed || found.n;
        IF of_requests[found.n] > 0 THEN
            told[of_requests[found.n]] :=
                (told[of_requests[found.n]]::jsonb #- ARRAY[told_keys[found.n], 'since'])::text;
        END IF;
        RETURN QUERY SELECT found.n, 1::smallint, found.value, found.version, found.updated_at,
                            found.fresh_until, found.stale_until, NULL::uuid, NULL::smallint, NULL::text, now_ms;
    END LOOP;
    -- As a rule all of them are missing, and nothing has to be picked out.
    IF cardinality(passed) = 0 THEN
        SELECT ids AS ids, spaces AS queues, job_keys AS keys, priorities AS priorities, attempts AS attempts,
               payloads AS payloads, attribute_sets AS attribute_sets, traces AS traces,
               NULL::integer[] AS places
          INTO missing;
    ELSE
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
    END IF;
    IF cardinality(missing.ids) > 0 THEN
        FOR found IN
            SELECT CASE WHEN missing.places IS NULL THEN made.place ELSE missing.places[made.place] END AS n,
                   made.of_job, made.of_state
              FROM solely_enqueue(missing.ids, missing.queues,
                                  array_fill('lookup'::text, ARRAY[cardinality(missing.ids)]), missing.keys,
                                  missing.priorities, array_fill(0::bigint, ARRAY[cardinality(missing.ids)]),
                                  missing.attempts, missing.payloads, missing.attribute_sets, missing.traces,
                                  NULL, array_fill(false, ARRAY[cardinality(missing.ids)]),
                                  array_fill(false, ARRAY[cardinality(missing.ids)]), now_ms) AS made
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
        INSERT INTO events (at, subject, event, outcome, reason, request_id, details)
        SELECT now_ms, 'place:' || given.key, given.event, 'PENDING', 'cache_miss', given.by_request, given.details
          FROM unnest(keys, events, details, by_requests) WITH ORDINALITY
               AS given (key, event, details, by_request, n)
         WHERE given.n <> ALL (passed) AND given.n <> ALL (known);
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
                                        AND entries.keep_until < now_ms + ttls[again.n]
                                      LIMIT 1
                                        FOR UPDATE SKIP LOCKED) AS kept) AS longer
         WHERE entries.ctid = longer.at AND entries.keep_until < longer.until;
    END IF;
    INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
    SELECT 'requests', asking.request, replace(replace(asking.told, '"since":-1', '"since":' || now_ms),
                                               '"since": -1', '"since":' || now_ms), 1, now_ms,
           now_ms + asking.ttl, now_ms + asking.ttl, now_ms + asking.ttl
      FROM unnest(requests, ttls, told) WITH ORDINALITY AS asking (request, ttl, told, n)
     WHERE asking.n <> ALL (refused)
       AND (asking.n = ANY (earlier) OR strpos(asking.told, '"since":-1') > 0 OR strpos(asking.told, '"since": -1') > 0)
     ORDER BY asking.n
        ON CONFLICT (space, key) DO UPDATE
       SET value = CASE WHEN entries.keep_until > now_ms
                        -- What it was told PENDING stays so; what it waits for again it does from now on.
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
