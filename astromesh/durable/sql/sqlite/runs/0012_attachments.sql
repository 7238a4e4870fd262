-- What messages bring along, by the hash of its content, once per tenant. What no run refers to is deleted.
CREATE TABLE attachments (
    tenant TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (tenant, sha256)
);

CREATE TABLE run_attachments (
    run_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (run_id, sha256)
) WITHOUT ROWID;

CREATE INDEX attachments_in_use ON run_attachments (tenant, sha256);

CREATE TRIGGER attachments_go_with_the_last AFTER DELETE ON run_attachments
BEGIN
    DELETE FROM attachments WHERE tenant = OLD.tenant AND sha256 = OLD.sha256 AND NOT EXISTS (
        SELECT 1 FROM run_attachments r WHERE r.tenant = OLD.tenant AND r.sha256 = OLD.sha256);
END;

CREATE TRIGGER runs_take_their_attachments AFTER DELETE ON runs
BEGIN
    DELETE FROM run_attachments WHERE run_id = OLD.run_id;
END;
