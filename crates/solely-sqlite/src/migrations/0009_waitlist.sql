-- status: 0 waiting, 1 offered, 2 taken, 3 left, 4 passed. Who has a smaller ordinal comes first.
CREATE TABLE waitlist (
    id             BLOB    NOT NULL PRIMARY KEY,
    inventory_id   TEXT    NOT NULL,
    merchant_id    TEXT    NOT NULL,
    user_id        TEXT    NOT NULL,
    ordinal        INTEGER NOT NULL,
    status         INTEGER NOT NULL CHECK (status BETWEEN 0 AND 4),
    reservation_id BLOB,
    created_at     INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX waitlist_live ON waitlist (merchant_id, user_id, inventory_id) WHERE status <= 1;
CREATE UNIQUE INDEX waitlist_line ON waitlist (inventory_id, ordinal) WHERE status <= 1;
