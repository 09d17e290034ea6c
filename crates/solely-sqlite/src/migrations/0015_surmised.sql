-- What a row says is not written twice.

-- A reservation that was made where nobody is notified, in a batch that did nothing else, tells of that by itself: the number
-- of the event that it stands for, whose request it was, and until when it was held at first.
ALTER TABLE reservations ADD COLUMN told_as INTEGER;
ALTER TABLE reservations ADD COLUMN told_of TEXT;
ALTER TABLE reservations ADD COLUMN told_until INTEGER;
CREATE INDEX reservations_told ON reservations (inventory_id, told_as) WHERE told_as IS NOT NULL;
