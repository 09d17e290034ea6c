-- Which store this is, for whoever holds copies of its entries.
CREATE TABLE store_identity (id TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID;
INSERT INTO store_identity VALUES (lower(hex(randomblob(16))));

-- What was forgotten stays known for a while; changes are read in order of time.
ALTER TABLE entries ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0;
CREATE INDEX entries_changes ON entries (updated_at, space, key);
