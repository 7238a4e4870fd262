-- Facts about a principal are passages, too.
ALTER TABLE passages ADD COLUMN kind TEXT NOT NULL DEFAULT 'passage';

CREATE INDEX passages_of_facts ON passages (scope) WHERE kind = 'fact';
