-- Keys of services. Nothing of a key's secret is here but its hash.
CREATE TABLE api_keys (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    name       text   NOT NULL,
    scopes     text   NOT NULL,
    hash       text   NOT NULL,
    created_at bigint NOT NULL,
    revoked_at bigint
);

-- Tickets stand for a caller once.
CREATE TABLE tickets (
    hash       text COLLATE "C" NOT NULL PRIMARY KEY,
    caller     text   NOT NULL,
    expires_at bigint NOT NULL
);
CREATE INDEX tickets_expires_at ON tickets (expires_at);
