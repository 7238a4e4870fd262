-- Documents belong to the operator (the name is empty) or to a tenant. Documents without a stamp came over HTTP or from a
-- command, before they had an owner.
ALTER TABLE astromesh.rag_documents ADD COLUMN owner TEXT COLLATE "C" NOT NULL DEFAULT '';

UPDATE astromesh.rag_documents SET owner = 'default' WHERE stamp = '';

ALTER TABLE astromesh.rag_documents DROP CONSTRAINT rag_documents_pkey, ADD PRIMARY KEY (pipeline, owner, id);

ALTER TABLE astromesh.rag_chunks ADD COLUMN owner TEXT COLLATE "C" NOT NULL DEFAULT '';

UPDATE astromesh.rag_chunks SET owner = d.owner FROM astromesh.rag_documents d
WHERE d.pipeline = rag_chunks.pipeline AND d.id = rag_chunks.document AND d.owner <> '';

DROP INDEX astromesh.rag_chunks_by_document;

CREATE INDEX rag_chunks_by_document ON astromesh.rag_chunks (owner, document);
