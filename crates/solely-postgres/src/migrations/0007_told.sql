-- Writes entries as `solely_put_entries` does, says when each was written, and tells of those that are
-- stored: one statement, and so one round trip. `now_ms` may be null; then the clock is looked at here. An
-- entry of which nothing is told has a null subject.
CREATE FUNCTION solely_put_told(
    spaces text[], keys text[], contents text[], versions bigint[],
    fresh_ms bigint[], stale_ms bigint[], keep_ms bigint[], now_ms bigint, offset_ms bigint,
    subjects text[], events text[], outcomes text[], reasons text[], request_ids text[], details text[],
    topics text[]
) RETURNS TABLE (place integer, stored boolean, version_now bigint, written_at bigint)
    LANGUAGE plpgsql VOLATILE AS
$$
#variable_conflict use_column
DECLARE
    at_ms   bigint := coalesce(now_ms, solely_now(offset_ms));
    new     record;
    kept    bigint;
    written bigint;
BEGIN
    FOR new IN
        SELECT given.space, given.key, given.value, nullif(given.version, -1) AS version, given.fresh,
               given.stale, given.keep, coalesce(given.version = -1, false) AS if_gone,
               given.subject, given.event, given.outcome, given.reason, given.request_id, given.detail,
               given.topic, given.place
          FROM unnest(spaces, keys, contents, versions, fresh_ms, stale_ms, keep_ms,
                      subjects, events, outcomes, reasons, request_ids, details, topics) WITH ORDINALITY
               AS given (space, key, value, version, fresh, stale, keep,
                         subject, event, outcome, reason, request_id, detail, topic, place)
         ORDER BY given.place
    LOOP
        INSERT INTO entries (space, key, value, version, updated_at, fresh_until, stale_until, keep_until)
        VALUES (new.space, new.key, new.value, coalesce(new.version, 1), at_ms, at_ms + new.fresh,
                at_ms + new.stale, at_ms + new.keep)
            ON CONFLICT (space, key) DO UPDATE
           SET value = excluded.value, version = coalesce(new.version, entries.version + 1),
               updated_at = greatest(excluded.updated_at, entries.updated_at + 1), forgotten = false,
               fresh_until = excluded.fresh_until, stale_until = excluded.stale_until,
               keep_until = excluded.keep_until
         WHERE (new.version IS NULL OR new.version > entries.version)
           AND (NOT new.if_gone OR entries.stale_until <= at_ms)
        RETURNING version, updated_at INTO kept, written;
        IF FOUND THEN
            IF new.subject IS NOT NULL THEN
                INSERT INTO events (at, subject, event, outcome, reason, request_id, details, topic)
                VALUES (at_ms, new.subject, new.event, new.outcome, new.reason, new.request_id, new.detail,
                        new.topic);
            END IF;
            RETURN QUERY SELECT new.place::integer, true, kept, written;
        ELSE
            RETURN QUERY SELECT new.place::integer, false, version, updated_at
                           FROM entries WHERE space = new.space AND key = new.key;
        END IF;
    END LOOP;
END
$$;
