-- A session's id holds its principal behind a record separator (SessionKey.columns), so that equal ids of two principals
-- are two sessions.
UPDATE astromesh.sessions SET session_id = session_id || chr(30) || owner;
