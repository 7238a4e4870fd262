-- `asked_at` is the time of a question to a person; a request to cancel has its own word.
ALTER TABLE astromesh.run_ends RENAME TO cancel_requests;

ALTER TABLE astromesh.cancel_requests RENAME COLUMN asked_at TO requested_at;
