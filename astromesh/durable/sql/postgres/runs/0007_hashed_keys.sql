-- A key may name a person or an order: the table has its hash.
UPDATE astromesh.idempotency_keys SET key = encode(sha256(convert_to(key, 'UTF8')), 'hex');
