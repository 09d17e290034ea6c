-- What is not there is not looked for, and what a row says is not written twice.

-- A reservation that was made where nobody is notified, in a batch that did nothing else, tells of that by itself: the number
-- of the event that it stands for, whose request it was, and until when it was held at first.
ALTER TABLE reservations ADD COLUMN told_as bigint, ADD COLUMN told_of text, ADD COLUMN told_until bigint;
CREATE INDEX reservations_told ON reservations (inventory_id, told_as) WHERE told_as IS NOT NULL;

-- As that of thirty-one arguments, which older programs call. What is sold tells of itself if `by_rows`; then there are no
-- events, and the requests are in the order of the ids. What was decided behind another sale, not known yet, is sold only if
-- that one was: the version is what that one leaves, but may be what someone else made of it, and so may what is left, which
-- is therefore said.
CREATE FUNCTION solely_sell(
    merchant text, item text, as_version bigint, from_ms bigint, until_ms bigint, wait_ms bigint, offset_ms bigint,
    units integer, price_currency text,
    ids uuid[], users text[], pickup_codes text[], quantities integer[], amounts bigint[], ends bigint[],
    scopes text[], keys text[], digests text[], verdicts text[],
    by_rows boolean, subjects text[], request_ids text[], snapshots text[], topics text[],
    job_queue text, job_kind text, job_priority smallint, job_attempts integer, job_payload text,
    job_ids uuid[], job_keys text[], job_attributes text[], behind uuid
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS
$$
#variable_conflict use_column
DECLARE
    now_ms  bigint;
    lapsed  bigint;
    left_of integer;
    held_of integer;
BEGIN
    PERFORM set_config('lock_timeout', wait_ms::text, true);
    PERFORM 1 FROM merchants WHERE id = merchant FOR NO KEY UPDATE;
    now_ms := solely_now(offset_ms);
    IF now_ms < from_ms OR now_ms >= until_ms THEN
        RETURN ARRAY[now_ms];
    END IF;
    IF behind IS NOT NULL AND NOT EXISTS (SELECT 1 FROM reservations WHERE id = behind) THEN
        RETURN ARRAY[now_ms];
    END IF;
    UPDATE inventory
       SET remaining = remaining - units, held = held + units, version = version + 1
     WHERE id = item AND version = as_version
       AND NOT EXISTS (SELECT 1 FROM waitlist WHERE waitlist.merchant_id = merchant AND waitlist.status <= 1)
    RETURNING remaining, held,
              (SELECT coalesce(sum(quantity), 0) FROM reservations
                WHERE reservations.inventory_id = item AND status <= 1 AND payment = 0 AND expires_at <= now_ms)
      INTO left_of, held_of, lapsed;
    IF NOT FOUND THEN
        RETURN ARRAY[now_ms];
    END IF;
    INSERT INTO reservations (id, user_id, merchant_id, inventory_id, status, payment, code, quantity, amount, currency,
                              reserved_at, expires_at, offered, wrong_codes, blocked_until, told_as, told_of, told_until)
    SELECT sold.id, sold.user_id, merchant, item, 0, 0, sold.code, sold.quantity, sold.amount, price_currency,
           from_ms, sold.expires_at, false, 0, 0,
           CASE WHEN by_rows THEN nextval('events_id_seq') END, sold.told_of, CASE WHEN by_rows THEN sold.expires_at END
      FROM unnest(ids, users, pickup_codes, quantities, amounts, ends, CASE WHEN by_rows THEN request_ids END)
           AS sold (id, user_id, code, quantity, amount, expires_at, told_of);
    IF cardinality(scopes) > 0 THEN
        INSERT INTO idempotency_keys (scope, key, digest, verdict, at)
        SELECT made.scope, made.key, made.digest, made.verdict, from_ms
          FROM unnest(scopes, keys, digests, verdicts) AS made (scope, key, digest, verdict);
    END IF;
    IF cardinality(subjects) > 0 THEN
        INSERT INTO events (at, subject, event, outcome, request_id, details, topic, also)
        SELECT from_ms, told.subject, 'reserve', 'done', told.request_id, told.details, told.topic, 'inventory:' || item
          FROM unnest(subjects, request_ids, snapshots, topics) AS told (subject, request_id, details, topic);
    END IF;
    IF cardinality(job_ids) > 0 THEN
        INSERT INTO jobs (id, queue, kind, key, state, priority, run_at, due_at, max_attempts, payload, attributes,
                          created_at, updated_at)
        SELECT made.id, job_queue, job_kind, made.key, 0, job_priority, now_ms, now_ms, job_attempts, job_payload,
               made.attributes, now_ms, now_ms
          FROM unnest(job_ids, job_keys, job_attributes) AS made (id, key, attributes);
    END IF;
    RETURN ARRAY[now_ms, lapsed, left_of, held_of];
END
$$;

-- As that of twenty arguments, which older programs call, of what tells of itself. Holds whose time is over are looked for
-- only from `lapses_ms` on, before which, as the caller knows, no hold ends. Whoever had them looked for is also told when
-- the next one ends.
CREATE FUNCTION solely_sell_one(
    merchant text, item text, as_version bigint, from_ms bigint, until_ms bigint, wait_ms bigint, offset_ms bigint,
    units integer, price_currency text, made uuid, buyer text, pickup_code text, due bigint, ends bigint,
    key_scope text, key_name text, key_digest text, key_verdict text, of_request text, lapses_ms bigint
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS
$$
#variable_conflict use_column
DECLARE
    now_ms bigint;
    lapsed bigint;
    next   bigint;
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
       AND NOT EXISTS (SELECT 1 FROM waitlist WHERE waitlist.merchant_id = merchant AND waitlist.status <= 1);
    IF NOT FOUND THEN
        RETURN ARRAY[now_ms];
    END IF;
    INSERT INTO reservations (id, user_id, merchant_id, inventory_id, status, payment, code, quantity, amount, currency,
                              reserved_at, expires_at, offered, wrong_codes, blocked_until, told_as, told_of, told_until)
    VALUES (made, buyer, merchant, item, 0, 0, pickup_code, units, due, price_currency, from_ms, ends, false, 0, 0,
            nextval('events_id_seq'), of_request, ends);
    IF key_name IS NOT NULL THEN
        INSERT INTO idempotency_keys (scope, key, digest, verdict, at)
        VALUES (key_scope, key_name, key_digest, key_verdict, from_ms);
    END IF;
    IF now_ms < lapses_ms THEN
        RETURN ARRAY[now_ms, 0];
    END IF;
    SELECT coalesce(sum(quantity), 0) INTO lapsed
      FROM reservations
     WHERE inventory_id = item AND status <= 1 AND payment = 0 AND expires_at <= now_ms;
    -- In the order of the one index that is by inventory, whatever the planner knows of them.
    SELECT expires_at INTO next
      FROM (SELECT inventory_id, expires_at
              FROM reservations
             WHERE (inventory_id, expires_at) > (item, now_ms) AND status <= 1 AND payment = 0
             ORDER BY inventory_id, expires_at
             LIMIT 1) AS following
     WHERE inventory_id = item;
    RETURN ARRAY[now_ms, lapsed, CASE lapsed WHEN 0 THEN next END];
END
$$;
