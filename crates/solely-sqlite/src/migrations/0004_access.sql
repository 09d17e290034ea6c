-- Keys of services. Nothing of a key's secret is here but its hash.
CREATE TABLE api_keys (
    id         TEXT    NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    scopes     TEXT    NOT NULL,
    hash       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) WITHOUT ROWID;

-- Tickets stand for a caller once.
CREATE TABLE tickets (
    hash       TEXT    NOT NULL PRIMARY KEY,
    caller     TEXT    NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX tickets_expires_at ON tickets (expires_at);
