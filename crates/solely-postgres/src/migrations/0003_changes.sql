-- Which store this is, for whoever holds copies of its entries.
CREATE TABLE store_identity (id text NOT NULL PRIMARY KEY);
INSERT INTO store_identity VALUES (replace(gen_random_uuid()::text, '-', ''));

-- What was forgotten stays known for a while; changes are read in order of time.
ALTER TABLE entries ADD COLUMN forgotten boolean NOT NULL DEFAULT false;
CREATE INDEX entries_changes ON entries (updated_at, space, key);

-- As before, and: of two writes of one entry the later has the later time.
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
               updated_at = greatest(excluded.updated_at, entries.updated_at + 1), forgotten = false,
               fresh_until = excluded.fresh_until, stale_until = excluded.stale_until,
               keep_until = excluded.keep_until
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
