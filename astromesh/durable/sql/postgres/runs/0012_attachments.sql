-- What messages bring along, by the hash of its content, once per tenant. What no run refers to is deleted.
CREATE TABLE astromesh.attachments (
    tenant TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    content BYTEA NOT NULL,
    PRIMARY KEY (tenant, sha256)
);

CREATE TABLE astromesh.run_attachments (
    run_id TEXT NOT NULL REFERENCES astromesh.runs (run_id) ON DELETE CASCADE,
    tenant TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (run_id, sha256)
);

CREATE INDEX attachments_in_use ON astromesh.run_attachments (tenant, sha256);

-- The lock comes first: a run that refers to the content again has then committed, and the deletion sees it.
CREATE FUNCTION astromesh.drop_attachment() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
    PERFORM 1 FROM astromesh.attachments WHERE tenant = OLD.tenant AND sha256 = OLD.sha256 FOR UPDATE;
    DELETE FROM astromesh.attachments WHERE tenant = OLD.tenant AND sha256 = OLD.sha256 AND NOT EXISTS (
        SELECT 1 FROM astromesh.run_attachments r WHERE r.tenant = OLD.tenant AND r.sha256 = OLD.sha256);
    RETURN NULL;
END
$function$;

CREATE TRIGGER attachments_go_with_the_last AFTER DELETE ON astromesh.run_attachments
FOR EACH ROW EXECUTE FUNCTION astromesh.drop_attachment();
