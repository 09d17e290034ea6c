-- An event can be about two things: a reservation, and its inventory.
ALTER TABLE events ADD COLUMN also text COLLATE "C";
CREATE INDEX events_also ON events (also, id) WHERE also IS NOT NULL;

CREATE TABLE merchants (
    id       text COLLATE "C" PRIMARY KEY,
    name     text NOT NULL,
    timezone text NOT NULL
);

CREATE TABLE box_types (
    id          text COLLATE "C" PRIMARY KEY,
    merchant_id text COLLATE "C" NOT NULL REFERENCES merchants (id),
    name        text NOT NULL
);

-- Every box is somewhere.
CREATE TABLE inventory (
    id           text COLLATE "C" PRIMARY KEY,
    merchant_id  text COLLATE "C" NOT NULL REFERENCES merchants (id),
    box_type_id  text COLLATE "C" NOT NULL REFERENCES box_types (id),
    original     integer NOT NULL,
    remaining    integer NOT NULL CHECK (remaining >= 0),
    held         integer NOT NULL CHECK (held >= 0),
    paid         integer NOT NULL CHECK (paid >= 0),
    collected    integer NOT NULL CHECK (collected >= 0),
    withdrawn    integer NOT NULL CHECK (withdrawn >= 0),
    price        bigint  NOT NULL,
    currency     text    NOT NULL,
    pricing      text,
    pickup_start bigint  NOT NULL,
    pickup_end   bigint  NOT NULL,
    closed       boolean NOT NULL,
    version      bigint  NOT NULL,
    CHECK (original = remaining + held + paid + collected + withdrawn)
) WITH (fillfactor = 50);
CREATE INDEX inventory_merchant ON inventory (merchant_id, id);

-- status: 0 active, 1 offered, 2 completed, 3 cancelled, 4 expired. payment: 0 pending, 1 paid, 2 refunded.
CREATE TABLE reservations (
    id            uuid PRIMARY KEY,
    user_id       text COLLATE "C" NOT NULL,
    merchant_id   text COLLATE "C" NOT NULL,
    inventory_id  text COLLATE "C" NOT NULL,
    status        smallint NOT NULL CHECK (status BETWEEN 0 AND 4),
    payment       smallint NOT NULL CHECK (payment BETWEEN 0 AND 2),
    code          text     NOT NULL,
    quantity      integer  NOT NULL CHECK (quantity > 0),
    amount        bigint   NOT NULL,
    currency      text     NOT NULL,
    reserved_at   bigint   NOT NULL,
    expires_at    bigint   NOT NULL,
    completed_at  bigint,
    cancelled_at  bigint,
    offered       boolean  NOT NULL,
    wrong_codes   smallint NOT NULL,
    blocked_until bigint   NOT NULL
);
CREATE UNIQUE INDEX reservations_open ON reservations (merchant_id, user_id) WHERE status <= 1;
CREATE INDEX reservations_ending ON reservations (expires_at, id) WHERE status <= 1;
CREATE INDEX reservations_lapsing ON reservations (inventory_id, expires_at, id) WHERE status <= 1 AND payment = 0;
CREATE INDEX reservations_user ON reservations (user_id, id);
CREATE INDEX reservations_merchant ON reservations (merchant_id, id);

CREATE TABLE idempotency_keys (
    scope   text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    digest  text   NOT NULL,
    verdict text   NOT NULL,
    at      bigint NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX idempotency_keys_at ON idempotency_keys (at);

-- Locks the merchants that a batch touches, in the order of their ids, and looks at the clock when it has them. Whoever
-- does not get them within some seconds gives up: nothing has happened then.
CREATE FUNCTION solely_lock_merchants(
    merchant_ids text[], box_type_ids text[], inventory_ids text[], reservation_ids uuid[], offset_ms bigint
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS
$$
BEGIN
    PERFORM set_config('lock_timeout', '4000', true);
    PERFORM id FROM merchants
      WHERE id IN (SELECT unnest(merchant_ids)
                   UNION SELECT merchant_id FROM box_types WHERE id = ANY (box_type_ids)
                   UNION SELECT merchant_id FROM inventory WHERE id = ANY (inventory_ids)
                   UNION SELECT merchant_id FROM reservations WHERE id = ANY (reservation_ids))
      ORDER BY id
        FOR NO KEY UPDATE;
    RETURN solely_now(offset_ms);
END
$$;

-- Ends a transaction that met rows which were not as they had been read; it is run again.
CREATE FUNCTION solely_expect(changed bigint, expected bigint) RETURNS integer LANGUAGE plpgsql VOLATILE AS
$$
BEGIN
    IF changed <> expected THEN
        RAISE EXCEPTION 'stock is not as it was read' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN 1;
END
$$;
