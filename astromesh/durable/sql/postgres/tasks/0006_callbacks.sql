-- Whom to tell about a Task, and what is to be told, as of runs. The ids of deliveries are above those of runs.
CREATE TABLE astromesh.task_callbacks (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id TEXT NOT NULL UNIQUE REFERENCES astromesh.tasks (task_id) ON DELETE CASCADE,
    url TEXT NOT NULL,
    events TEXT NOT NULL,
    headers BYTEA NOT NULL
);

CREATE TABLE astromesh.task_deliveries (
    id BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 4503599627370496) PRIMARY KEY,
    callback BIGINT NOT NULL,
    task_id TEXT NOT NULL REFERENCES astromesh.tasks (task_id) ON DELETE CASCADE,
    event TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts BIGINT NOT NULL,
    began_at DOUBLE PRECISION NOT NULL,
    due_at DOUBLE PRECISION NOT NULL,
    http_status BIGINT NOT NULL,
    error TEXT NOT NULL
);

CREATE INDEX task_deliveries_due ON astromesh.task_deliveries (due_at) WHERE state = 'pending';

CREATE INDEX task_deliveries_of_task ON astromesh.task_deliveries (task_id);

-- Whatever ends a Task or makes it wait, the delivery is stored in the same transaction.
CREATE FUNCTION astromesh.tell_of_task(task TEXT, event TEXT) RETURNS void LANGUAGE sql AS $function$
    INSERT INTO astromesh.task_deliveries
        (callback, task_id, event, state, attempts, began_at, due_at, http_status, error)
    SELECT c.id, c.task_id, $2, 'pending', 0, 0.0, 0.0, 0, '' FROM astromesh.task_callbacks c
    WHERE c.task_id = $1 AND c.events::jsonb ? $2;
$function$;

CREATE FUNCTION astromesh.call_back_of_end() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
    PERFORM astromesh.tell_of_task(NEW.task_id, CASE WHEN NEW.status <> 'failure' THEN 'completed'
        WHEN NEW.cancelling = 1 THEN 'cancelled' ELSE 'failed' END);
    RETURN NULL;
END
$function$;

CREATE TRIGGER tasks_call_back AFTER UPDATE OF status ON astromesh.tasks FOR EACH ROW
WHEN (NEW.finished_at > 0 AND OLD.finished_at = 0)
EXECUTE FUNCTION astromesh.call_back_of_end();

CREATE FUNCTION astromesh.call_back_of_wait() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
    PERFORM astromesh.tell_of_task(NEW.task_id, 'waiting');
    RETURN NULL;
END
$function$;

CREATE TRIGGER waits_call_back AFTER INSERT ON astromesh.task_waits FOR EACH ROW
WHEN (NEW.kind <> 'pause' AND NEW.answer IS NULL)
EXECUTE FUNCTION astromesh.call_back_of_wait();
