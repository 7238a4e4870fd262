-- A session's id holds its principal behind a record separator (SessionKey.columns), so that equal ids of two principals
-- are two sessions.
UPDATE sessions SET session_id = session_id || char(30) || owner;
