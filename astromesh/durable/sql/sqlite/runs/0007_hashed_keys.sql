-- A key may name a person or an order: the table has its hash. (`sha256` is a function of the migration.)
UPDATE idempotency_keys SET key = sha256(key);
