-- The same rows, found by who has them.
DROP INDEX reservations_open;
CREATE UNIQUE INDEX reservations_open ON reservations (user_id, merchant_id) WHERE status <= 1;
