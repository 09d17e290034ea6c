-- Whoever is alone.

-- Sells to one buyer, as `solely_sell` does to many: plain values take less to receive than lists of one. Nothing of it is
-- delivered to anyone; where something is to be, `solely_sell` is called.
CREATE FUNCTION solely_sell_one(
    merchant text, item text, as_version bigint, from_ms bigint, until_ms bigint, wait_ms bigint, offset_ms bigint,
    units integer, price_currency text, made uuid, buyer text, pickup_code text, due bigint, ends bigint,
    key_scope text, key_name text, key_digest text, key_verdict text, of_request text, snapshot text
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS
$$
#variable_conflict use_column
DECLARE
    now_ms bigint;
    lapsed bigint;
    bound  text := set_config('lock_timeout', wait_ms::text, true);
BEGIN
    PERFORM 1 FROM merchants WHERE id = merchant FOR NO KEY UPDATE;
    now_ms := solely_now(offset_ms);
    IF now_ms < from_ms OR now_ms >= until_ms THEN
        RETURN ARRAY[now_ms];
    END IF;
    UPDATE inventory
       SET remaining = remaining - units, held = held + units, version = version + 1
     WHERE id = item AND version = as_version
       AND NOT EXISTS (SELECT 1 FROM waitlist WHERE waitlist.merchant_id = merchant AND waitlist.status <= 1)
    RETURNING (SELECT coalesce(sum(quantity), 0) FROM reservations
                WHERE reservations.inventory_id = item AND status <= 1 AND payment = 0 AND expires_at <= now_ms)
      INTO lapsed;
    IF NOT FOUND THEN
        RETURN ARRAY[now_ms];
    END IF;
    INSERT INTO reservations (id, user_id, merchant_id, inventory_id, status, payment, code, quantity, amount, currency,
                              reserved_at, expires_at, offered, wrong_codes, blocked_until)
    VALUES (made, buyer, merchant, item, 0, 0, pickup_code, units, due, price_currency, from_ms, ends, false, 0, 0);
    IF key_name IS NOT NULL THEN
        INSERT INTO idempotency_keys (scope, key, digest, verdict, at)
        VALUES (key_scope, key_name, key_digest, key_verdict, from_ms);
    END IF;
    INSERT INTO events (at, subject, event, outcome, request_id, details, also)
    VALUES (from_ms, 'reservation:' || made, 'reserve', 'done', of_request, snapshot, 'inventory:' || item);
    RETURN ARRAY[now_ms, lapsed];
END
$$;
