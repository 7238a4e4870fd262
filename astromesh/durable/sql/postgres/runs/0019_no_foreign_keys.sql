-- The row of a run is locked while its steps and events are written: no foreign key has to look it up for each of them.
ALTER TABLE astromesh.run_steps DROP CONSTRAINT run_steps_run_id_fkey;

ALTER TABLE astromesh.run_events DROP CONSTRAINT run_events_run_id_fkey;

CREATE FUNCTION astromesh.take_log() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
    DELETE FROM astromesh.run_steps WHERE run_id IN (SELECT run_id FROM deleted);
    DELETE FROM astromesh.run_events WHERE run_id IN (SELECT run_id FROM deleted);
    RETURN NULL;
END
$function$;

CREATE TRIGGER runs_take_their_log AFTER DELETE ON astromesh.runs REFERENCING OLD TABLE AS deleted
FOR EACH STATEMENT EXECUTE FUNCTION astromesh.take_log();
