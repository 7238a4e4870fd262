"""What every store of RAG pipelines does, over real SQLite files and a real PostgreSQL with pgvector."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from astromesh.errors import StoreError
from astromesh.knowledge.base import (
    OPERATOR,
    Chunk,
    ChunkStore,
    Document,
    DocumentVersion,
    ForeignDocument,
    IndexedDocument,
)
from astromesh.knowledge.embedders import HashingEmbedder
from astromesh.plugins import Deps, Plugins, Resources
from astromesh.telemetry.clock import SystemClock
from tests.platform.stores import deps_of

EMBEDDER = HashingEmbedder(64)
PASSAGES = {
    "tea": "Steep green tea at eighty degrees for two minutes.",
    "coffee": "Grind the coffee beans freshly, right before brewing.",
    "bread": "Knead the dough, let it rest and bake the bread.",
    "boat": "A boat needs an anchor, ropes and a compass.",
}


@pytest.fixture(params=["sqlite", "pgvector"])
async def opened(request, tmp_path) -> AsyncIterator[Callable[..., Any]]:
    """`await opened("name")` is a store; a second call opens it as another process would."""
    everything: list[Resources] = []

    async def open_store(name: str = "k", embedder: Any = EMBEDDER) -> ChunkStore:
        deps = replace(base, embedder=embedder, resources=Resources())
        everything.append(deps.resources)
        plugin = Plugins().load("vector_stores", request.param)
        store: ChunkStore = await (await plugin.open(plugin.Options(), deps)).collection(name)
        return store

    base: Deps = deps_of(request, SystemClock(), tmp_path)
    yield open_store
    for resources in everything:
        await resources.close()


@pytest.fixture
async def store(opened) -> ChunkStore:
    return await opened()


async def indexed(
    name: str, *texts: str, vectors: bool = True, heading: str = "", **metadata
) -> IndexedDocument:
    """A document of one chunk for each text."""
    made, start = [], 0
    for text in texts:
        made.append(Chunk(name, text, start, start + len(text), heading))
        start += len(text) + 1
    embedded = tuple(await EMBEDDER.embed(texts)) if vectors else ()
    document = Document(name, " ".join(texts), name.title(), metadata=metadata)
    return IndexedDocument(
        document, DocumentVersion(f"hash of {texts}", f"stamp of {name}"), tuple(made), embedded
    )


async def filled(store: ChunkStore) -> ChunkStore:
    await store.replace(
        [await indexed(name, text, heading=f"About {name}") for name, text in PASSAGES.items()]
    )
    await store.settle()
    return store


async def near(store: ChunkStore, text: str, **options) -> list[str]:
    [vector] = await EMBEDDER.embed([text])
    found = await store.search("", vector=vector, **{"top_k": 5, **options})
    return [passage.chunk.document for passage in found]


async def worded(store: ChunkStore, text: str, **options) -> list[str]:
    return [passage.chunk.document for passage in await store.search(text, **{"top_k": 5, **options})]


# -- finding -------------------------------------------------------------------------------------------------


async def test_an_empty_store_finds_nothing(store):
    """Before the first document, by words, by vectors and by both."""
    [vector] = await EMBEDDER.embed(["tea"])
    assert await store.known() == {}
    assert await store.search("tea", top_k=5) == ()
    assert await store.search("", top_k=5, vector=vector) == ()
    assert await store.search("tea", top_k=5, vector=vector) == ()


async def test_a_passage_comes_back_with_its_citation(store):
    """Document, offsets, heading, title and metadata, whatever characters they hold."""
    odd = 'Ein naïver 日本語 \x00 text\'s "passage" \x1a %s {size} \\ 🙂'
    await store.replace([await indexed("odd/ÿ'name", odd, heading="A > B\x00", lang="de", tags=["x\x00", 2])])
    [found] = await store.search("passage", top_k=1)
    chunk = found.chunk
    assert (chunk.document, chunk.text, chunk.start, chunk.end) == ("odd/ÿ'name", odd, 0, len(odd))
    assert (chunk.heading, dict(chunk.metadata)) == (
        "A > B\x00",
        {"title": "Odd/Ÿ'Name", "lang": "de", "tags": ["x\x00", 2]},
    )
    assert 0.0 < found.score <= 1.0
    stored = await store.document("odd/ÿ'name")
    assert (stored.id, stored.text, stored.metadata["tags"]) == ("odd/ÿ'name", odd, ["x\x00", 2])
    assert await store.document("odd/ÿ'name", "another owner") is None


async def test_words_find_inflections_accents_and_beginnings(store):
    """Stems, folded accents; words that begin alike only where there is nothing else."""
    await store.replace(
        [await indexed("a", "Passwords were resetted in the café."), await indexed("b", "Nothing.")]
    )
    for query in ("reset password", "CAFE", "café", "passw"):
        assert await worded(store, query) == ["a"], query


async def test_more_sought_words_rank_before_fewer(store):
    """And a passage with one of three says so by its score."""
    await store.replace(
        [
            await indexed("one", "the anchor of the boat"),
            await indexed("all", "the anchor, the rope and the compass"),
            await indexed("none", "nothing of that"),
        ]
    )
    found = await store.search("anchor rope compass", top_k=5)
    assert [(p.chunk.document, p.score > 0.5) for p in found] == [("all", True), ("one", False)]


async def test_vectors_find_the_nearest_with_their_cosine(store):
    """Nearest first; the same text is as near as can be; top_k bounds."""
    await filled(store)
    [vector] = await EMBEDDER.embed([PASSAGES["bread"]])
    found = await store.search("", top_k=2, vector=vector)
    assert found[0].chunk.document == "bread"
    assert found[0].score == pytest.approx(1.0, abs=1e-5)
    assert len(found) <= 2
    assert (await near(store, "boats and anchors"))[0] == "boat"


async def test_words_and_vectors_together_are_one_ranking(store):
    """What both find first has the score 1; what only one finds comes after."""
    await filled(store)
    [vector] = await EMBEDDER.embed(["coffee beans"])
    found = await store.search("coffee beans", top_k=4, vector=vector)
    assert (found[0].chunk.document, found[0].score) == ("coffee", 1.0)
    assert all(a.score >= b.score for a, b in pairwise(found))
    assert len({p.chunk.document for p in found}) == len(found)


@pytest.mark.parametrize(
    "query", ["", " ", "?!", '"', "a AND", "NEAR(", "x*", "& | !", "'; DROP", "\0", "-", "<->"]
)
async def test_any_text_is_a_sound_query(store, query):
    """Users may ask anything; it is never an error."""
    await store.replace([await indexed("a", "some text")])
    assert isinstance(await store.search(query, top_k=3), tuple)


async def test_words_of_every_passage_still_find(store):
    """They propose passages only where there are no other words; headings first."""
    await store.replace([await indexed(f"d{n}", f"report number n{n}") for n in range(60)])
    await store.replace([await indexed("named", "report", heading="Report number")])
    assert await worded(store, "report n7", top_k=1) == ["d7"]
    assert len(await worded(store, "report", top_k=50)) == 50
    assert "named" in await worded(store, "report number", top_k=3)


async def test_filters_hold_for_words_and_vectors(store):
    """Metadata and the document's id; a list means any of its values; unknown keys match nothing."""
    await store.replace(
        [
            await indexed("a", "word", lang="en", tags=["x", "y"]),
            await indexed("b", "word", lang="de", version=2),
            await indexed("c", "word"),
        ]
    )
    for search in (worded, near):
        assert await search(store, "word", filters={"lang": "de"}) == ["b"]
        assert sorted(await search(store, "word", filters={"lang": ["de", "en"]})) == ["a", "b"]
        assert await search(store, "word", filters={"tags": "y"}) == ["a"]
        assert await search(store, "word", filters={"version": 2, "lang": "de"}) == ["b"]
        assert await search(store, "word", filters={"document": "c"}) == ["c"]
        assert await search(store, "word", filters={"nope": "x"}) == []
        assert await search(store, "word", filters={"'; DROP": '"'}) == []


# -- keeping in step -----------------------------------------------------------------------------------------


async def test_what_is_replaced_is_found_as_it_is_now(store):
    """By words and by vectors, with fewer chunks and with more."""
    await store.replace([await indexed("a", "alpha beta", "gamma delta")])
    assert await near(store, "gamma delta", top_k=1) == ["a"]
    await store.replace([await indexed("a", "omega"), await indexed("b", "kappa", "sigma")])
    assert await near(store, "gamma delta") == []
    assert await worded(store, "gamma") == []
    assert await near(store, "omega", top_k=1) == await worded(store, "omega") == ["a"]
    assert await near(store, "sigma", top_k=1) == ["b"]


async def test_what_is_removed_is_gone_and_its_place_is_nobody_elses(store):
    """Also the last one, whose id must not come back with another vector."""
    await filled(store)
    assert (await near(store, "boat anchor"))[0] == "boat"
    await store.remove(["boat", "never there"])
    assert "boat" not in await near(store, "boat anchor ropes compass")
    await store.replace([await indexed("new", "Sails for the wind.")])
    assert (await near(store, "sails wind"))[0] == "new"
    assert "new" not in (await near(store, "boat anchor ropes compass"))[:1]
    assert set(await store.known()) == {"tea", "coffee", "bread", "new"}


async def test_what_another_process_writes_is_found_too(opened):
    """Vectors that are held in memory follow, removals included."""
    one, other = await opened(), await opened()
    await filled(one)
    assert (await near(other, "green tea"))[0] == "tea"
    await one.replace([await indexed("matcha", "Whisk the powdered matcha.")])
    await one.remove(["tea"])
    assert (await near(other, "powdered matcha"))[0] == "matcha"
    assert "tea" not in await near(other, "green tea minutes")


async def test_vectors_of_another_embedder_are_not_compared(opened):
    """Their space is another one; words find the passage all the same."""
    await filled(await opened())

    class Other(HashingEmbedder):
        def __init__(self) -> None:
            super().__init__(64)
            self.fingerprint = "another/model"

    store = await opened(embedder=Other())
    assert await near(store, PASSAGES["tea"]) == []
    assert await worded(store, "green tea") == ["tea"]
    for name, vectors in (("cup\0", True), ("pot", False)):
        await (await opened()).replace([await indexed(name, "A cup of tea", vectors=vectors)], "acme")
    assert await store.foreign_documents() == (
        ForeignDocument("acme", "cup\0", EMBEDDER.fingerprint),
        ForeignDocument("acme", "pot", ""),
    )
    assert [one.id for one in await (await opened()).foreign_documents()] == ["pot"]


async def test_known_and_touch(store):
    """Hash and stamp of every document; a touch changes stamps alone."""
    await filled(store)
    known = await store.known()
    assert known["tea"] == DocumentVersion(f"hash of {(PASSAGES['tea'],)}", "stamp of tea")
    await store.touch({"tea": "later", "never there": "x"})
    assert await store.known() == {**known, "tea": replace(known["tea"], stamp="later")}


async def test_pipelines_do_not_see_each_other(opened):
    """Two of one store, with the same document."""
    one, other = await opened("one"), await opened("other")
    await one.replace([await indexed("a", "alpha")])
    await other.replace([await indexed("a", "beta")])
    assert await worded(one, "alpha") == ["a"]
    assert await worded(one, "beta") == await worded(other, "alpha") == []
    await one.remove(["a"])
    assert set(await other.known()) == {"a"}


async def test_documents_without_vectors_and_without_chunks(store):
    """A pipeline that finds words only, and an empty document, are sound."""
    await store.replace(
        [await indexed("plain", "words only", vectors=False), await indexed("empty", vectors=False)]
    )
    assert await worded(store, "words") == ["plain"]
    assert await near(store, "words only") == []
    assert set(await store.known()) == {"plain", "empty"}


async def test_a_batch_is_stored_whole_or_not_at_all(store):
    """One document of it that cannot be stored leaves the others out."""
    good, bad = await indexed("good", "alpha"), await indexed("bad", "beta", what=object())
    with pytest.raises((TypeError, StoreError)):
        await store.replace([good, bad])
    assert await store.known() == {}


async def test_searches_go_on_while_documents_come_in(store, free_loop):
    """Readers see a batch or do not, and nothing blocks the loop."""
    await filled(store)

    async def write() -> None:
        for n in range(5):
            await store.replace([await indexed(f"d{n}-{m}", f"filler number {m}") for m in range(20)])

    writing = asyncio.create_task(write())
    while not writing.done():
        assert (await worded(store, "green tea"))[0] == "tea"
        assert (await near(store, PASSAGES["tea"]))[0] == "tea"
    await writing
    assert len(await worded(store, "filler", top_k=200)) == 100


async def test_ping(store):
    """A store that answers says nothing."""
    await store.ping()


# -- owners --------------------------------------------------------------------------------------------------

OWNERS = (OPERATOR, "acme", "other", 'o\'ther "x" λ')


async def owned(store: ChunkStore) -> ChunkStore:
    """Each owner has `same`, and a document of a name of its own; every passage has the owner's colour."""
    for owner, colour in zip(OWNERS, ("red", "green", "blue", "violet"), strict=True):
        texts = {"same": f"The kettle is {colour}", f"own {colour}": f"A {colour} teapot with a kettle"}
        await store.replace(
            [await indexed(name, text, heading="Kettles", lang="de") for name, text in texts.items()], owner
        )
    await store.settle()
    return store


async def test_a_search_finds_passages_of_the_named_owners_only(opened):
    """By words in any number of passages, beginnings of words, vectors and both, with filters and without."""
    one = await owned(await opened())
    other = await opened()
    for owners in (
        OWNERS[:1],
        OWNERS[1:2],
        OWNERS[:2],
        OWNERS[1:],
        OWNERS,
        ("nobody",),
        (OPERATOR, "nobody"),
    ):
        colours = {"red", "green", "blue", "violet"} - {
            colour
            for owner, colour in zip(OWNERS, ("red", "green", "blue", "violet"), strict=True)
            if owner not in owners
        }
        for text in ("kettle", "teapot", "kett", "the kettle is red green blue violet", "violet blue"):
            [vector] = await EMBEDDER.embed([text])
            for filters in (None, {"lang": "de"}, {"document": "same"}):
                for asked in (
                    {"query": text},
                    {"query": "", "vector": vector},
                    {"query": text, "vector": vector},
                ):
                    for store in (one, other):
                        found = await store.search(**asked, top_k=20, owners=owners, filters=filters)
                        shown = " ".join(passage.chunk.text for passage in found)
                        assert set(shown.split()) & {"red", "green", "blue", "violet"} <= colours
                        if text == "kettle":
                            assert len(found) == len(colours) * (1 if filters == {"document": "same"} else 2)


async def test_a_document_of_another_owner_is_neither_replaced_nor_removed(store):
    """Nor does a removal of what another has reach it, under the same id."""
    await owned(store)
    before = {owner: dict(await store.known(owner)) for owner in OWNERS}
    assert all(set(before[owner]) > {"same"} for owner in OWNERS)
    await store.replace([await indexed("same", "The kettle is black")], "acme")
    await store.touch({"same": "new"}, "acme")
    assert [p.chunk.text for p in await store.search("black", top_k=5, owners=OWNERS)] == [
        "The kettle is black"
    ]
    assert (await store.known("acme"))["same"].stamp == "new"
    await store.remove(["same", "own red", "own blue"], "acme")
    assert set(await store.known("acme")) == {"own green"}
    assert {owner: await store.known(owner) for owner in OWNERS if owner != "acme"} == {
        owner: known for owner, known in before.items() if owner != "acme"
    }
    await store.remove(["own green"], "acme")
    assert await store.known("acme") == {}
    assert await store.search("teapot", top_k=5, owners=("acme",)) == ()
    await store.replace([await indexed("back", "A white teapot")], "acme")
    assert await worded(store, "teapot", owners=("acme",)) == ["back"]
    assert await near(store, "teapot", owners=("acme",)) == ["back"]


async def test_documents_are_listed_by_owner_and_id(store):
    """A page begins behind an id; titles and metadata are whole."""
    await owned(store)
    await store.replace([await indexed("a\x00λ", "text", lang=["de", "x\x00"])], "acme")
    listed = await store.documents("acme")
    assert [one.id for one in listed] == ["a\x00λ", "own green", "same"]
    assert listed[0].metadata == {"title": "A\x00Λ", "lang": ["de", "x\x00"]}
    assert [one.id for one in await store.documents("acme", after="a\x00λ", limit=1)] == ["own green"]
    assert [one.id for one in await store.documents()] == ["own red", "same"]
    assert await store.documents("acme", after="same") == await store.documents("nobody") == ()


async def test_passages_of_others_push_none_of_mine_out(store):
    """However many passages of others have the word and the same vector."""
    await store.replace([await indexed("mine", "kettle of mine")], "acme")
    crowd = [await indexed(f"crowd {n}", *["kettle kettle"] * 50) for n in range(30)]
    await store.replace(crowd, "other")
    await store.replace([await indexed("mine too", "another kettle")], "acme")
    await store.settle()
    assert set(await worded(store, "kettle", owners=("acme",), top_k=2)) == {"mine", "mine too"}
    assert set(await near(store, "kettle kettle", owners=("acme",), top_k=2)) == {"mine", "mine too"}
