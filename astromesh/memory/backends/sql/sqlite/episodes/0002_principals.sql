-- As of sessions: the id holds the principal.
UPDATE events SET session_id = session_id || char(30) || owner;
