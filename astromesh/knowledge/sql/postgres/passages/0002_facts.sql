-- Facts about a principal are passages, too.
ALTER TABLE astromesh.passages ADD COLUMN kind TEXT NOT NULL DEFAULT 'passage';

CREATE INDEX passages_of_facts ON astromesh.passages (tenant, owner, agent) WHERE kind = 'fact';
