-- The tables of SQLite have no foreign keys.
SELECT 1;
