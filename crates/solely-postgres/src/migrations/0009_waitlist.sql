-- status: 0 waiting, 1 offered, 2 taken, 3 left, 4 passed. Who has a smaller ordinal comes first.
CREATE TABLE waitlist (
    id             uuid PRIMARY KEY,
    inventory_id   text COLLATE "C" NOT NULL,
    merchant_id    text COLLATE "C" NOT NULL,
    user_id        text COLLATE "C" NOT NULL,
    ordinal        bigint   NOT NULL,
    status         smallint NOT NULL CHECK (status BETWEEN 0 AND 4),
    reservation_id uuid,
    created_at     bigint   NOT NULL
);
CREATE UNIQUE INDEX waitlist_live ON waitlist (merchant_id, user_id, inventory_id) WHERE status <= 1;
CREATE UNIQUE INDEX waitlist_line ON waitlist (inventory_id, ordinal) WHERE status <= 1;

-- As before, and the merchants of entries of waiting lists.
CREATE FUNCTION solely_lock_merchants(
    merchant_ids text[], box_type_ids text[], inventory_ids text[], reservation_ids uuid[], wait_ids uuid[],
    offset_ms bigint
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS
$$
DECLARE
    ids text[] := merchant_ids;
BEGIN
    PERFORM set_config('lock_timeout', '4000', true);
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
