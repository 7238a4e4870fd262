"""The plans of PostgreSQL: searches use the indexes of words and of vectors."""

from __future__ import annotations

import random
from array import array

from astromesh.knowledge.base import Chunk, Document, DocumentVersion, IndexedDocument
from astromesh.knowledge.postgres import MAX_COMPARED, Partition, PgvectorChunkStores
from astromesh.plugins import Deps
from astromesh.storage.postgres import Connection, PostgresOptions, shared_postgres

SIZE = 384


def indexed(number: int, numbers: random.Random) -> IndexedDocument:
    name, text = f"d{number}", f"word{number % 300} and other{number}"
    vector = array("f", [numbers.gauss(0.0, 1.0) for _ in range(SIZE)])
    length = sum(one * one for one in vector) ** 0.5
    unit = array("f", [one / length for one in vector])
    return IndexedDocument(
        Document(name, text), DocumentVersion(name), (Chunk(name, text, 0, len(text)),), (unit,)
    )


async def test_searches_use_the_indexes_of_words_and_of_vectors(postgres_database: str) -> None:
    """The statements of searches; the store makes the index of vectors after the ingest."""
    numbers, deps = random.Random(7), Deps()
    stores = await PgvectorChunkStores.open(PostgresOptions(url=postgres_database), deps)
    store = await stores.collection("planned")
    documents = [indexed(n, numbers) for n in range(4 * MAX_COMPARED)]
    for start in range(0, len(documents), 200):
        await store.replace(documents[start : start + 200])
    await store.settle()
    plans: list[str] = []

    async def explain(connection: Connection) -> None:
        pipeline = await connection.fetchval("SELECT id FROM astromesh.rag_pipelines WHERE name = 'planned'")
        space = await connection.fetchval("SELECT max(id) FROM astromesh.rag_spaces")
        partition = Partition(pipeline, space, SIZE)
        near = partition.sql("near", filter="")
        ranked = partition.sql("ranked", words="words")
        words = (["word7"], [20], ["word7"], [""], None, None)
        for query, *bound in ((near, [0.1] + [0.0] * (SIZE - 1), 20, [""]), (ranked, *words)):
            rows = await connection.fetch(f"EXPLAIN {query}", *bound)
            plans.append("\n".join(row[0] for row in rows))

    database = await shared_postgres(deps, postgres_database)
    await database.transact(explain)
    [passage] = await store.search("other77", top_k=1)
    await deps.resources.close()
    assert passage.chunk.document == "d77"
    assert "_near_" in plans[0], plans[0]
    assert "words" in plans[1].partition("Index Scan")[2], plans[1]
