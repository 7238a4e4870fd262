-- The Task that this one was forked from.
ALTER TABLE astromesh.tasks ADD COLUMN forked_from TEXT;
