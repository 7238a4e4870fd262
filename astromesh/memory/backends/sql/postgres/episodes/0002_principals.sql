-- As of sessions: the id holds the principal.
UPDATE astromesh.events SET session_id = session_id || chr(30) || owner;
