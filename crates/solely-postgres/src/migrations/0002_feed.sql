-- The page transaction of a feed: where a partition is, what its worker did, what it stored.
CREATE TABLE partition_progress (
    run_id       text COLLATE "C" NOT NULL,
    partition_id text COLLATE "C" NOT NULL,
    next_offset  bigint  NOT NULL DEFAULT 0,
    completed    boolean NOT NULL DEFAULT false,
    created_at   bigint  NOT NULL,
    updated_at   bigint  NOT NULL,
    PRIMARY KEY (run_id, partition_id)
);

CREATE TABLE worker_runs (
    run_id            text COLLATE "C" NOT NULL,
    partition_id      text COLLATE "C" NOT NULL,
    status            text   NOT NULL CHECK (status IN ('running', 'completed', 'failed')),
    records_processed bigint NOT NULL DEFAULT 0,
    pages_processed   bigint NOT NULL DEFAULT 0,
    error             text,
    PRIMARY KEY (run_id, partition_id)
);

CREATE TABLE records (
    run_id       text COLLATE "C" NOT NULL,
    id           text COLLATE "C" NOT NULL,
    partition_id text COLLATE "C" NOT NULL,
    payload      text   NOT NULL,
    updated_at   bigint NOT NULL,
    PRIMARY KEY (run_id, id)
);

-- Writes a page if its partition is where the page begins. False, and nothing, otherwise.
-- Records are given in the order of their ids; those that the run had not seen are counted.
CREATE FUNCTION solely_write_page(
    of_run text, of_partition text, at_offset bigint, then_offset bigint, is_last boolean,
    ids text[], payloads text[], now_ms bigint
) RETURNS boolean
    LANGUAGE plpgsql VOLATILE AS
$$
DECLARE
    new_records bigint;
BEGIN
    IF at_offset = 0 THEN
        INSERT INTO partition_progress (run_id, partition_id, created_at, updated_at)
        VALUES (of_run, of_partition, now_ms, now_ms)
            ON CONFLICT DO NOTHING;
        INSERT INTO worker_runs (run_id, partition_id, status)
        VALUES (of_run, of_partition, 'running')
            ON CONFLICT DO NOTHING;
    END IF;
    UPDATE partition_progress
       SET next_offset = then_offset, completed = is_last, updated_at = now_ms
     WHERE run_id = of_run AND partition_id = of_partition AND next_offset = at_offset AND NOT completed;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WITH written AS (
        INSERT INTO records (run_id, id, partition_id, payload, updated_at)
        SELECT of_run, page.id, of_partition, page.payload, now_ms
          FROM unnest(ids, payloads) AS page (id, payload)
            ON CONFLICT (run_id, id) DO UPDATE
           SET payload = excluded.payload, updated_at = excluded.updated_at
         WHERE records.payload <> excluded.payload
        RETURNING xmax = 0 AS is_new
    )
    SELECT count(*) FILTER (WHERE is_new) INTO new_records FROM written;
    UPDATE worker_runs
       SET records_processed = records_processed + new_records, pages_processed = pages_processed + 1,
           status = CASE WHEN is_last THEN 'completed' ELSE 'running' END, error = NULL
     WHERE run_id = of_run AND partition_id = of_partition;
    RETURN true;
END
$$;
