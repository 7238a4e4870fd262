-- Whom to tell about a run, and what is to be told. `events` is a JSON array of statuses; `headers` is encrypted.
CREATE TABLE astromesh.callbacks (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES astromesh.runs (run_id) ON DELETE CASCADE,
    url TEXT NOT NULL,
    events TEXT NOT NULL,
    headers BYTEA NOT NULL,
    UNIQUE (run_id, url)
);

CREATE TABLE astromesh.callback_deliveries (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    callback BIGINT NOT NULL,
    run_id TEXT NOT NULL REFERENCES astromesh.runs (run_id) ON DELETE CASCADE,
    event TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts BIGINT NOT NULL,
    began_at DOUBLE PRECISION NOT NULL,
    due_at DOUBLE PRECISION NOT NULL,
    http_status BIGINT NOT NULL,
    error TEXT NOT NULL
);

CREATE INDEX callbacks_due ON astromesh.callback_deliveries (due_at) WHERE state = 'pending';

CREATE INDEX callbacks_of_run ON astromesh.callback_deliveries (run_id);

-- Whatever changes the status of a run, the delivery is stored in the same transaction.
CREATE FUNCTION astromesh.call_back() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
    INSERT INTO astromesh.callback_deliveries
        (callback, run_id, event, state, attempts, began_at, due_at, http_status, error)
    SELECT c.id, c.run_id, NEW.status, 'pending', 0, 0.0, 0.0, 0, '' FROM astromesh.callbacks c
    WHERE c.run_id = NEW.run_id AND c.events::jsonb ? NEW.status;
    RETURN NULL;
END
$function$;

CREATE TRIGGER runs_call_back AFTER UPDATE OF status ON astromesh.runs FOR EACH ROW
WHEN (NEW.status IN ('waiting', 'completed', 'failed', 'cancelled') AND NEW.status <> OLD.status)
EXECUTE FUNCTION astromesh.call_back();
