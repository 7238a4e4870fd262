-- The Task that this one was forked from.
ALTER TABLE tasks ADD COLUMN forked_from TEXT;
