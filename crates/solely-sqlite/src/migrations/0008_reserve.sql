-- An event can be about two things: a reservation, and its inventory.
ALTER TABLE events ADD COLUMN also TEXT;
CREATE INDEX events_also ON events (also, id) WHERE also IS NOT NULL;

CREATE TABLE merchants (
    id       TEXT NOT NULL PRIMARY KEY,
    name     TEXT NOT NULL,
    timezone TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE box_types (
    id          TEXT NOT NULL PRIMARY KEY,
    merchant_id TEXT NOT NULL REFERENCES merchants (id),
    name        TEXT NOT NULL
) WITHOUT ROWID;

-- Every box is somewhere.
CREATE TABLE inventory (
    id           TEXT    NOT NULL PRIMARY KEY,
    merchant_id  TEXT    NOT NULL REFERENCES merchants (id),
    box_type_id  TEXT    NOT NULL REFERENCES box_types (id),
    original     INTEGER NOT NULL,
    remaining    INTEGER NOT NULL CHECK (remaining >= 0),
    held         INTEGER NOT NULL CHECK (held >= 0),
    paid         INTEGER NOT NULL CHECK (paid >= 0),
    collected    INTEGER NOT NULL CHECK (collected >= 0),
    withdrawn    INTEGER NOT NULL CHECK (withdrawn >= 0),
    price        INTEGER NOT NULL,
    currency     TEXT    NOT NULL,
    pricing      TEXT,
    pickup_start INTEGER NOT NULL,
    pickup_end   INTEGER NOT NULL,
    closed       INTEGER NOT NULL,
    version      INTEGER NOT NULL,
    CHECK (original = remaining + held + paid + collected + withdrawn)
) WITHOUT ROWID;
CREATE INDEX inventory_merchant ON inventory (merchant_id, id);

-- status: 0 active, 1 offered, 2 completed, 3 cancelled, 4 expired. payment: 0 pending, 1 paid, 2 refunded.
CREATE TABLE reservations (
    id            BLOB    NOT NULL PRIMARY KEY,
    user_id       TEXT    NOT NULL,
    merchant_id   TEXT    NOT NULL,
    inventory_id  TEXT    NOT NULL,
    status        INTEGER NOT NULL CHECK (status BETWEEN 0 AND 4),
    payment       INTEGER NOT NULL CHECK (payment BETWEEN 0 AND 2),
    code          TEXT    NOT NULL,
    quantity      INTEGER NOT NULL CHECK (quantity > 0),
    amount        INTEGER NOT NULL,
    currency      TEXT    NOT NULL,
    reserved_at   INTEGER NOT NULL,
    expires_at    INTEGER NOT NULL,
    completed_at  INTEGER,
    cancelled_at  INTEGER,
    offered       INTEGER NOT NULL,
    wrong_codes   INTEGER NOT NULL,
    blocked_until INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX reservations_open ON reservations (merchant_id, user_id) WHERE status <= 1;
CREATE INDEX reservations_ending ON reservations (expires_at, id) WHERE status <= 1;
CREATE INDEX reservations_lapsing ON reservations (inventory_id, expires_at, id) WHERE status <= 1 AND payment = 0;
CREATE INDEX reservations_user ON reservations (user_id, id);
CREATE INDEX reservations_merchant ON reservations (merchant_id, id);

CREATE TABLE idempotency_keys (
    scope   TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    digest  TEXT    NOT NULL,
    verdict TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_keys_at ON idempotency_keys (at);
