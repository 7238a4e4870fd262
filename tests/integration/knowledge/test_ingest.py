"""Taking in: kinds of files, embedders that fail, processes that die, and what a query does meanwhile."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from astromesh.errors import ConfigError, InvalidInput, MissingExtra, ProviderUnavailable, StoreUnavailable
from astromesh.knowledge.base import Document, DocumentReader, DocumentVersion, IngestReport
from astromesh.knowledge.chunking import ChunkOptions, MarkdownChunker
from astromesh.knowledge.embedders import HashingEmbedder
from astromesh.knowledge.loaders import Folder
from astromesh.knowledge.pipeline import RAGPipeline
from astromesh.knowledge.postgres import SCHEMA as POSTGRES_SCHEMA
from astromesh.knowledge.sqlite import SCHEMA as SQLITE_SCHEMA
from astromesh.knowledge.sqlite import SqliteChunkStores
from astromesh.plugins import Deps, Plugins, Resources
from astromesh.storage.migrations import statements
from astromesh.storage.postgres import Address, Connection, Postgres
from astromesh.testing import FaultInjector, ManualClock
from tests.integration.knowledge.rag_files import pdf
from tests.platform.stores import impatient

ALL = ("**/*.md", "**/*.txt", "**/*.html", "**/*.pdf")


def readers() -> Callable[[str], DocumentReader]:
    plugins = Plugins()
    return lambda kind: plugins.load("readers", kind)()


@asynccontextmanager
async def pipeline(tmp_path: Path, **options: Any) -> AsyncIterator[RAGPipeline]:
    """A pipeline over `tmp_path/docs`, its index in `tmp_path/data`; several in a row share it."""
    resources = Resources()
    deps = Deps(data_dir=tmp_path / "data", resources=resources, embedder=options.get("embedder"))
    stores = await SqliteChunkStores.open(SqliteChunkStores.Options(), deps)
    given = {"sources": [(tmp_path / "docs", ALL)], "readers": readers(), "clock": ManualClock(), **options}
    pipe = RAGPipeline("k", await stores.collection("k"), MarkdownChunker(ChunkOptions()), **given)
    yield pipe
    await pipe.close()
    await resources.close()


def write(tmp_path: Path, **files: str | bytes) -> Path:
    """Files `docs/NAME.SUFFIX`, given as NAME_SUFFIX."""
    folder = tmp_path / "docs"
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        file = folder / name.replace("_", ".")
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


async def found(pipe: RAGPipeline, query: str, **options) -> list[str]:
    return [passage.chunk.document for passage in await pipe.query(query, **options)]


# -- kinds of files ------------------------------------------------------------------------------------------


async def test_markdown_text_html_and_pdf_in_one_folder(tmp_path):
    """Several globs; every passage is a slice of its document's text, under its heading."""
    folder = write(
        tmp_path,
        a_md="# Markdown\n\nalpha word",
        b_txt="beta word",
        c_html="<title>Page</title><nav>menu</nav><h1>Web</h1><p>gamma <b>word</b></p>",
        d_pdf=pdf("delta word", "epsilon", title="Paper"),
    )
    async with pipeline(tmp_path) as pipe:
        assert await pipe.refresh() == IngestReport(added=4)
        passages = {p.chunk.document: p.chunk for p in await pipe.query("word", top_k=10)}
        assert sorted(passages) == ["a.md", "b.txt", "c.html", "d.pdf"]
        assert [passages[name].metadata["title"] for name in sorted(passages)] == [
            "Markdown",
            "b",
            "Page",
            "Paper",
        ]
        assert (passages["c.html"].heading, passages["d.pdf"].heading) == ("Web", "Paper > Page 1")
        for name, chunk in passages.items():
            document = Folder(folder, ALL, readers=readers()).read(name, "")
            assert document is not None
            assert document.text[chunk.start : chunk.end] == chunk.text
        assert await found(pipe, "menu") == []


async def test_a_file_that_cannot_be_read_is_skipped_and_the_others_count(tmp_path):
    """A broken or scanned PDF, and files that are not what their name says, are named in a warning."""
    folder = write(tmp_path, a_md="# A\nword", broken_pdf=b"%PDF-1.4 nonsense", scan_pdf=pdf(""))
    write(
        tmp_path, b_csv="item,price\nword,2", c_docx=b"PK", d_pptx=b"PK", e_xlsx=b"PK", f_go="func word() {}"
    )
    async with pipeline(tmp_path, sources=[(folder, "*.*")]) as pipe:
        with capture_logs() as logs:
            assert await pipe.refresh() == IngestReport(added=3)
        assert sorted(await found(pipe, "word")) == ["a.md", "b.csv", "f.go"]
    broken = ["broken.pdf", "c.docx", "d.pptx", "e.xlsx", "scan.pdf"]
    assert sorted(Path(entry["file"]).name for entry in logs) == broken
    assert any("text recognition" in entry["why"] for entry in logs)


async def test_a_name_that_is_not_utf_8_is_skipped_and_the_others_count(tmp_path):
    """Of a file, or of a folder with files in it; the warning has the bytes escaped, and comes once."""
    folder = write(tmp_path, a_md="# A\nword")
    odd = Path(os.fsdecode(os.fsencode(folder) + b"/na\xffme"))
    odd.mkdir()
    (odd / "x.md").write_text("word")
    Path(f"{odd}.md").write_text("word")
    async with pipeline(tmp_path) as pipe:
        with capture_logs() as logs:
            assert await pipe.refresh() == IngestReport(added=1)
            assert await pipe.refresh() == IngestReport(unchanged=1)
        assert await found(pipe, "word") == ["a.md"]
    names = sorted(entry["file"].removeprefix(f"{folder}/") for entry in logs)
    assert names == [r"na\xffme.md", r"na\xffme/x.md"]
    assert {(entry["event"], entry["why"]) for entry in logs} == {
        ("document_skipped", "its name is not UTF-8")
    }


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(1), RuntimeError("as told")])
async def test_a_file_that_breaks_its_reader_holds_back_no_other_one(tmp_path, error):
    class Breaks:
        fingerprint = "breaks/1"

        def read(self, data: bytes):
            raise error

    write(tmp_path, bad_html="<p>bad", good_md="# Tea\nword")
    async with pipeline(tmp_path, readers=lambda kind: Breaks()) as pipe:
        assert await pipe.refresh() == IngestReport(added=1)
        assert await found(pipe, "word") == ["good.md"]


async def test_a_reader_that_is_not_installed_is_asked_for_by_name(tmp_path):
    """Only where such a file is met, and before anything is changed."""

    def missing(kind: str) -> DocumentReader:
        raise MissingExtra(f"readers plugin {kind!r} needs what is not installed: pip install astromesh[rag]")

    write(tmp_path, a_md="# A\nword")
    async with pipeline(tmp_path, readers=missing) as pipe:
        assert await pipe.refresh() == IngestReport(added=1)
        write(tmp_path, b_html="<p>word")
        with pytest.raises(MissingExtra, match=r"astromesh\[rag\]"):
            await pipe.refresh()
        assert await found(pipe, "word") == ["a.md"]


# -- documents that are handed in ----------------------------------------------------------------------------


async def test_a_pipeline_without_sources_lives_on_what_is_handed_in(tmp_path):
    """Titles come from the first heading; what is removed is gone; a pipeline may be empty."""
    async with pipeline(tmp_path, sources=()) as pipe:
        assert await pipe.query("tea") == ()
        assert await pipe.refresh() == IngestReport()
        assert await pipe.ingest([Document("tea", "# All tea\n\nSteep the tea.")]) == IngestReport(added=1)
        [passage] = await pipe.query("tea")
        assert passage.to_json() == {
            "document": "tea", "title": "All tea", "heading": "All tea", "start": 0, "end": 25,
            "score": 1.0, "text": "# All tea\n\nSteep the tea.",
        }  # fmt: skip
        assert await pipe.remove(["tea", "never there"]) == IngestReport(removed=1)
        assert await pipe.query("tea") == ()


async def test_a_path_is_taken_in_beside_the_sources(tmp_path):
    """A file or a folder, its ids paths; what a source owns and what cannot be read is refused."""
    folder = write(tmp_path, a_md="# A\nalpha")
    more = tmp_path / "more" / "deep"
    more.mkdir(parents=True)
    (more / "b.html").write_text("<p>beta")
    (more.parent / "c[1].txt").write_text("gamma")
    (more.parent / "d.zip").write_bytes(b"PK")
    async with pipeline(tmp_path) as pipe:
        await pipe.refresh()
        assert await pipe.ingest_path(more.parent) == IngestReport(added=2)
        assert await pipe.ingest_path(more.parent / "c[1].txt") == IngestReport(unchanged=1)
        assert await found(pipe, "beta") == ["deep/b.html"]
        for bad in (folder, more.parent / "d.zip"):
            with pytest.raises(InvalidInput):
                await pipe.ingest_path(bad)
        write(tmp_path, a_md="# A\nother")
        assert await pipe.refresh() == IngestReport(changed=1)
        assert await found(pipe, "gamma") == ["c[1].txt"]


async def test_progress_is_told_from_nothing_to_all(tmp_path):
    """For a bar: how many of how many documents."""
    write(tmp_path, **{f"d{n}_md": f"# D\nword {n}" for n in range(70)})
    told: list[tuple[int, int]] = []
    async with pipeline(tmp_path) as pipe:
        await pipe.refresh(lambda done, total: told.append((done, total)))
    assert (told[0], told[-1]) == ((0, 70), (70, 70))
    assert told == sorted(told)
    assert len(told) > 2


# -- embedders -----------------------------------------------------------------------------------------------


async def test_an_embedder_that_fails_in_the_middle_loses_nothing(tmp_path):
    """Whole batches stay; the next ingest goes on with the rest and embeds nothing twice."""
    write(tmp_path, **{f"d{n}_md": f"# D\nword number{n}" for n in range(100)})
    gone = FaultInjector(HashingEmbedder(64), embed=[None, ProviderUnavailable("gone")])
    async with pipeline(tmp_path, embedder=gone, mode="hybrid") as pipe:
        with pytest.raises(ProviderUnavailable):
            await pipe.refresh()
        half = len(await pipe._store.known())
        assert 0 < half < 100
        assert await pipe.refresh() == IngestReport(added=100 - half, unchanged=half)
        assert len({*await found(pipe, "word", top_k=200)}) == 100


async def test_a_query_that_cannot_be_embedded(tmp_path):
    """Hybrid answers by words and says so in the log; vector has nothing else and raises."""
    write(tmp_path, a_md="# A\nalpha word")
    embedder = HashingEmbedder(64)
    for mode in ("hybrid", "vector"):
        gone = FaultInjector(embedder)
        async with pipeline(tmp_path, embedder=gone, mode=mode) as pipe:
            await pipe.refresh()
            gone.fail("embed", ProviderUnavailable("gone"))
            if mode == "vector":
                with pytest.raises(ProviderUnavailable):
                    await pipe.query("alpha")
                continue
            with capture_logs() as logs:
                assert await found(pipe, "alpha") == ["a.md"]
            assert [entry["event"] for entry in logs] == ["query_not_embedded"]


async def test_another_embedder_embeds_everything_anew(tmp_path):
    """Vectors of two spaces are never compared."""
    write(tmp_path, a_md="# A\nalpha", b_md="# B\nbeta")
    async with pipeline(tmp_path, embedder=HashingEmbedder(64), mode="vector") as pipe:
        assert await pipe.refresh() == IngestReport(added=2)
        assert await found(pipe, "alpha", top_k=1) == ["a.md"]
    async with pipeline(tmp_path, embedder=HashingEmbedder(128), mode="vector") as pipe:
        assert await pipe.refresh() == IngestReport(changed=2)
        assert await found(pipe, "beta", top_k=1) == ["b.md"]


class Failing(HashingEmbedder):
    """An embedder that answers a number of times."""

    def __init__(self, dimensions: int, left: int) -> None:
        super().__init__(dimensions)
        self.left = left

    async def embed(self, texts: Sequence[str]) -> Sequence[array[float]]:
        if not self.left:
            raise ProviderUnavailable("It is away.")
        self.left -= 1
        return await super().embed(texts)


async def test_added_documents_of_another_embedder_are_told_and_embedded_again(tmp_path):
    """After an interruption only the rest; the passages and their places stay."""
    write(tmp_path, file_md="# File\ngamma")
    text = "---\nlang: de\n---\n\n# Empty\n\n## Full\n\nalpha"
    added = [Document(f"d{n:02}.md", text, f"T{n}", metadata={"n": n}) for n in range(40)]
    async with pipeline(tmp_path, embedder=HashingEmbedder(64), mode="hybrid") as pipe:
        await pipe.refresh()
        await pipe.ingest(added, tenant="acme")
        before = await pipe.query("alpha", tenant="acme", filters={"n": 7})
        assert await pipe.warning() == ""
    embedder = Failing(32, 2)
    with capture_logs() as logs:
        async with pipeline(tmp_path, embedder=embedder, mode="hybrid") as pipe:
            await pipe.refresh()
            assert await pipe.warning(tenant="other") == ""
            told = await pipe.warning(tenant="acme")
            assert told.startswith("40 documents have no vectors of the present embedder but of hashing")
            assert told.endswith("found by words only. Run `astromesh rag ingest k`.")
            assert await pipe.ping() == told
            with pytest.raises(ProviderUnavailable):
                await pipe.embed_again()
            assert (await pipe.warning(tenant="acme")).startswith("40 documents")  # looked for a moment ago
    assert [one["event"] for one in logs] == ["documents_of_another_embedder"]
    progress: list[tuple[int, int]] = []
    async with pipeline(tmp_path, embedder=HashingEmbedder(32), mode="hybrid") as pipe:
        assert (await pipe.warning(tenant="acme")).startswith("8 documents have")
        assert await pipe.embed_again(lambda *one: progress.append(one)) == IngestReport(changed=8)
        assert await pipe.warning(tenant="acme") == ""
        after = await pipe.query("alpha", tenant="acme", filters={"n": 7})
        assert [one.chunk for one in after] == [one.chunk for one in before]
        assert await pipe.embed_again() == IngestReport()
        assert await pipe.ingest(added[:1], tenant="acme") == IngestReport(changed=1)
    assert progress == [(0, 8), (8, 8)]


async def test_a_mode_that_needs_vectors_needs_an_embedder(tmp_path):
    """Said when the pipeline is made, not when somebody asks."""
    with pytest.raises(ConfigError, match="embeddings"):
        async with pipeline(tmp_path, mode="vector"):
            pass


class Slow(HashingEmbedder):
    """An embedder that waits until it may."""

    def __init__(self) -> None:
        super().__init__(64)
        self.may = asyncio.Event()
        self.may.set()

    async def embed(self, texts: Sequence[str]) -> Sequence[array[float]]:
        if len(texts) > 1:
            await self.may.wait()
        return await super().embed(texts)


async def test_a_query_waits_only_so_long_for_what_changed(tmp_path):
    """It is answered from what is there, and the taking in goes on."""
    clock, embedder = ManualClock(), Slow()
    write(tmp_path, a_md="# A\nalpha")
    async with pipeline(tmp_path, embedder=embedder, mode="hybrid", clock=clock) as pipe:
        await pipe.refresh()
        write(tmp_path, **{f"d{n}_md": "# D\nbeta" for n in range(3)})
        embedder.may.clear()
        clock.advance(1.1)
        assert not {"d0.md", "d1.md", "d2.md"} & {*await found(pipe, "beta")}
        embedder.may.set()
        assert pipe._refresh_task is not None
        await pipe._refresh_task
        assert len(await found(pipe, "beta", top_k=3)) == 3


# -- a database that goes away -------------------------------------------------------------------------------


async def test_a_database_that_is_away_when_the_pipeline_opens(tmp_path, postgres_server, postgres_database):
    """It is asked again with each question; once it is back, everything is taken in and found."""
    write(tmp_path, a_md="# A\nalpha")
    clock = ManualClock()
    deps = await impatient(Deps(storage_url=postgres_database, embedder=HashingEmbedder(64)))
    postgres_server.stop()
    plugin = Plugins().load("vector_stores", "pgvector")
    store = await (await plugin.open(plugin.Options(), deps)).collection("k")
    pipe = RAGPipeline(
        "k", store, MarkdownChunker(ChunkOptions()), sources=[(tmp_path / "docs", ALL)], mode="hybrid",
        embedder=deps.embedder, clock=clock,
    )  # fmt: skip
    with pytest.raises(StoreUnavailable):
        await pipe.refresh()
    postgres_server.start()
    clock.advance(1.1)
    assert await found(pipe, "alpha") == ["a.md"]
    postgres_server.crash()
    postgres_server.start()
    assert await found(pipe, "alpha") == ["a.md"]
    await deps.resources.close()


# -- from earlier versions -----------------------------------------------------------------------------------


#: documents of a folder (`file`) and of a caller (`sent`), as the last version before owners stored them
_SQLITE_WITHOUT_OWNERS = """
INSERT INTO documents VALUES ('file', 'h', 'stamp', '{}'), ('sent', 'h', '', '{"lang": "de"}');
INSERT INTO chunks VALUES (7, 'file', 0, 10), (8, 'sent', 0, 10);
INSERT INTO words (rowid, title, heading, body) VALUES (7, '', '', 'alpha file'), (8, '', '', 'alpha sent');
"""
_POSTGRES_WITHOUT_OWNERS = """
INSERT INTO astromesh.rag_pipelines (name) VALUES ('k');
CREATE TABLE astromesh.rag_chunks_1 PARTITION OF astromesh.rag_chunks FOR VALUES IN (1);
INSERT INTO astromesh.rag_documents (pipeline, id, hash, stamp, metadata)
VALUES (1, 'file', 'h', 'stamp', '{}'), (1, 'sent', 'h', '', '{"lang": "de"}');
INSERT INTO astromesh.rag_chunks (pipeline, document, start, "end", heading, body, words)
SELECT 1, id, 0, 10, '', 'alpha ' || id, to_tsvector('astromesh.words', 'alpha ' || id)
FROM astromesh.rag_documents;
"""


@pytest.mark.parametrize(("backend", "version"), [("sqlite", 1), ("sqlite", 2), ("pgvector", 1)])
async def test_documents_without_an_owner_get_one(tmp_path, request, backend, version):
    """Those of folders are the operator's, others of the tenant `default`; both can be embedded now."""
    deps = Deps(data_dir=tmp_path / "data", embedder=HashingEmbedder(64))
    if backend == "pgvector":
        deps = replace(deps, storage_url=request.getfixturevalue("postgres_database"))
        async with Postgres(Address.parse(deps.storage_url)) as database:
            await database.transact(partial(_left_in_postgres, version))
    else:
        _leave_in_sqlite(tmp_path / "data" / "rag" / "k.db", version)
    plugin = Plugins().load("vector_stores", backend)
    store = await (await plugin.open(plugin.Options(), deps)).collection("k")
    pipe = RAGPipeline("k", store, MarkdownChunker(ChunkOptions()), embedder=deps.embedder, mode="hybrid")
    assert await store.known() == {"file": DocumentVersion("h", "stamp")}
    assert await store.known("default") == {"sent": DocumentVersion("h")}
    assert sorted(await found(pipe, "alpha", top_k=5)) == ["file", "sent"]
    assert await found(pipe, "alpha", filters={"lang": "de"}) == ["sent"]
    assert await found(pipe, "alpha", tenant="acme") == ["file"]
    assert await pipe.ingest([Document("sent", "omega")]) == IngestReport(changed=1)
    assert await found(pipe, "omega") == ["sent"]
    assert await found(pipe, "omega", tenant="acme", top_k=5) == []
    await deps.resources.close()


def _leave_in_sqlite(file: Path, version: int) -> None:
    file.parent.mkdir(parents=True)
    with closing(sqlite3.connect(file)) as old, old:
        old.execute("CREATE TABLE schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID")
        old.execute("INSERT INTO schemas VALUES ('chunks', ?)", (version,))
        for script in (*SQLITE_SCHEMA.steps("sqlite")[:version], _SQLITE_WITHOUT_OWNERS):
            for statement in statements(script):
                old.execute(statement)


async def _left_in_postgres(version: int, connection: Connection) -> None:
    await connection.execute("CREATE SCHEMA astromesh")
    await connection.execute(
        "CREATE TABLE astromesh.schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL)"
    )
    for script in (*POSTGRES_SCHEMA.steps()[:version], _POSTGRES_WITHOUT_OWNERS):
        await connection.execute(script)
    await connection.execute("INSERT INTO astromesh.schemas VALUES ('rag', $1)", version)
