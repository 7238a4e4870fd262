-- The agent that wrote an answer, if it is another one than the session's.
ALTER TABLE astromesh.turns ADD COLUMN author TEXT NOT NULL DEFAULT '';
