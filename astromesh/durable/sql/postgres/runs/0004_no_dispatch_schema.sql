-- Drops the schema of the library that dispatched segments; each process now dispatches by itself.
DROP SCHEMA IF EXISTS astromesh_dbos CASCADE;
