-- The page transaction of a feed: where a partition is, what its worker did, what it stored.
CREATE TABLE partition_progress (
    run_id       text    NOT NULL,
    partition_id text    NOT NULL,
    next_offset  bigint  NOT NULL DEFAULT 0,
    completed    boolean NOT NULL DEFAULT false,
    created_at   bigint  NOT NULL,
    updated_at   bigint  NOT NULL,
    PRIMARY KEY (run_id, partition_id)
);

CREATE TABLE worker_runs (
    run_id            text   NOT NULL,
    partition_id      text   NOT NULL,
    status            text   NOT NULL CHECK (status IN ('running', 'completed', 'failed')),
    records_processed bigint NOT NULL DEFAULT 0,
    pages_processed   bigint NOT NULL DEFAULT 0,
    error             text,
    PRIMARY KEY (run_id, partition_id)
);

CREATE TABLE records (
    run_id       text   NOT NULL,
    id           text   NOT NULL,
    partition_id text   NOT NULL,
    payload      text   NOT NULL,
    updated_at   bigint NOT NULL,
    PRIMARY KEY (run_id, id)
);
