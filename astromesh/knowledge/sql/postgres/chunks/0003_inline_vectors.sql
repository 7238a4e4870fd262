-- Vectors stay in the row: a comparison of all of them reads no second table, and the planner, which does not count the pages of
-- that table, no longer prefers the comparison to the index.
ALTER TABLE astromesh.rag_chunks ALTER COLUMN embedding SET STORAGE MAIN;
