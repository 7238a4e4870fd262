"""One suite for every semantic store, with an embedder and without. A new one joins in `BACKENDS`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astromesh.errors import InvalidInput, ProviderError
from astromesh.knowledge.base import SemanticStore
from astromesh.knowledge.embedders import HashingEmbedder
from astromesh.plugins import Deps, Plugins
from astromesh.storage.migrations import EXPIRY_PERIOD
from astromesh.storage.postgres import Address, Connection, Postgres
from astromesh.testing import ManualClock
from astromesh.types import SessionKey
from tests.platform.stores import deps_of

BACKENDS = ("in_memory", "sqlite", "pgvector")
ANN = ("acme", "support", "ann")
NOW = 1_700_000_000.0
TEXTS = (
    "The router restarts when you hold its reset button for ten seconds.",
    "Invoices are sent by e-mail on the first day of each month.",
    "A subscription ends with the month in which it was cancelled.",
    "The warranty covers the battery for two years.",
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture(params=BACKENDS)
async def deps(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Deps]:
    deps = deps_of(request, clock, tmp_path, embedder=HashingEmbedder())
    yield deps
    await deps.resources.close()


@pytest.fixture
def backend(request: pytest.FixtureRequest, deps: Deps) -> str:
    return request.node.callspec.params["deps"]


async def opened(backend: str, deps: Deps, embedder=..., **options) -> SemanticStore:
    if embedder is not ...:
        deps = Deps(
            clock=deps.clock, data_dir=deps.data_dir, storage_url=deps.storage_url,
            resources=deps.resources, embedder=embedder,
        )  # fmt: skip
    return await Plugins().open("semantic_stores", backend, options, deps)


@pytest.fixture(params=["words and vectors", "words only"])
async def store(request: pytest.FixtureRequest, backend: str, deps: Deps) -> SemanticStore:
    return await opened(backend, deps, HashingEmbedder() if request.param != "words only" else None)


def told(*texts: str, session: str = "s-1", run: str = "run_1") -> list:
    about = {"source": "conversation", "session_id": session, "run_id": run}
    return [(text, about) for text in texts]


async def found(
    store: SemanticStore, query: str, *, scope: tuple[str, str, str] = ANN, **options
) -> list[str]:
    return [result.content for result in await store.search(*scope, query, **options)]


# -- finding -------------------------------------------------------------------------------------------------


async def test_what_was_stored_is_found_with_its_source_and_a_score(store):
    await store.add(*ANN, told(*TEXTS))
    best = (await store.search(*ANN, "Where is the reset button of the router?"))[0]
    assert best.content == TEXTS[0]
    assert best.source == "conversation"
    assert best.metadata == {"source": "conversation", "session_id": "s-1", "run_id": "run_1"}
    assert 0.0 < best.score <= 1.0
    assert best.why == {"similarity": best.score, "words": ["reset", "button", "router"]}


async def test_the_best_come_first_and_no_more_than_asked_for(store):
    await store.add(*ANN, told(*(f"The battery of model {n} lasts {n} hours." for n in range(30)), *TEXTS))
    results = await store.search(*ANN, "warranty of the battery", top_k=3)
    assert len(results) == 3
    assert results[0].content == TEXTS[3]


async def test_what_fits_less_than_the_threshold_is_left_out(store):
    await store.add(*ANN, told(*TEXTS))
    results = await store.search(*ANN, "reset button warranty", threshold=0.3)
    assert results
    assert all(result.score >= 0.3 for result in results)
    assert await store.search(*ANN, "reset button warranty", threshold=1.01) == ()


@pytest.mark.parametrize(
    "query", ["", "?", "the of and", "a\x00b", "\"AND* OR (NOT) near:5 '", "zzzz", "% _ \\"]
)
async def test_any_text_is_a_sound_query(store, query):
    await store.add(*ANN, told(*TEXTS))
    assert isinstance(await store.search(*ANN, query), tuple)


async def test_texts_come_back_whole(store):
    strange = "Zeile 1\nλ 🎉 \x00 \x1a0 'q\" router"
    await store.add(*ANN, told(strange))
    assert await found(store, "router") == [strange]


async def test_inflections_are_found_by_vectors(backend, deps):
    store = await opened(backend, deps)
    await store.add(*ANN, told(*TEXTS))
    assert (await found(store, "invoicing", top_k=1)) == [TEXTS[1]]


async def test_an_empty_store_finds_nothing(store):
    assert await store.search(*ANN, "anything") == ()
    await store.add(*ANN, [])
    await store.add(*ANN, told("  "))
    assert await store.search(*ANN, "anything") == ()


async def test_the_same_content_again_is_the_same_passage_told_from_its_newest_source(store):
    await store.add(*ANN, told(TEXTS[0], session="s-1"))
    await store.add(*ANN, told(TEXTS[0], session="s-2", run="run_9"))
    results = await store.search(*ANN, "reset button")
    assert [r.metadata["run_id"] for r in results] == ["run_9"]


async def test_what_is_added_later_is_found_too(store):
    """An index in memory takes in what is new, also from other writers of the same database."""
    for text in TEXTS:
        await store.add(*ANN, told(text))
        assert (await found(store, text, top_k=1)) == [text]


async def test_words_and_vectors_find_more_than_either(backend, deps):
    """A rare word that a vector drowns in is found by words, a misspelt one by vectors: hybrid has both."""
    store = await opened(backend, deps)
    long = " ".join(f"topic{n} alpha{n} beta{n}" for n in range(120))
    await store.add(*ANN, told(f"{long} ticket4711", *(f"topic{n} gamma{n}" for n in range(80)), *TEXTS))
    assert (await found(store, "ticket4711", top_k=2))[0].endswith("ticket4711")
    assert TEXTS[2] in await found(store, "subscriptons cancelation", top_k=3)


# -- whose ---------------------------------------------------------------------------------------------------


async def test_each_tenant_agent_and_owner_finds_its_own(store):
    scopes = [ANN, ("other", "support", "ann"), ("acme", "sales", "ann"), ("acme", "support", "bob")]
    for scope in scopes:
        await store.add(*scope, told(f"The secret of {' '.join(scope)} is a router."))
    for scope in scopes:
        assert await found(store, "secret router", scope=scope) == [
            f"The secret of {' '.join(scope)} is a router."
        ]


async def test_erasing_an_owner_leaves_the_others(store):
    bob, elsewhere = ("acme", "support", "bob"), ("other", "support", "ann")
    for scope in (ANN, ("acme", "sales", "ann"), bob, elsewhere):
        await store.add(*scope, told(*TEXTS))
    assert await store.erase_owner("acme", "ann") == 8
    assert await store.erase_owner("acme", "ann") == 0
    assert await found(store, "router") == []
    assert await found(store, "router", scope=bob, top_k=1) == [TEXTS[0]]
    assert await found(store, "router", scope=elsewhere, top_k=1) == [TEXTS[0]]
    await store.add(*ANN, told(TEXTS[1]))
    assert await found(store, "invoices", top_k=1) == [TEXTS[1]]
    assert TEXTS[0] not in await found(store, "router")


async def test_all_passages_of_a_principal_are_found_by_pages(store):
    """Over all agents, and those of nobody else."""
    sales, bob, elsewhere = ("acme", "sales", "ann"), ("acme", "support", "bob"), ("other", "support", "ann")
    await store.add(*ANN, told(*TEXTS[:3], session="s-1"))
    for scope in (sales, bob, elsewhere):
        await store.add(*scope, told(TEXTS[0], session="s-2"))
    seen, after = [], 0
    while page := await store.owned("acme", "ann", after=after, limit=2):
        seen += [(one.agent, one.content, one.metadata["session_id"]) for one in page]
        after = page[-1].number
    assert seen == [*(("support", text, "s-1") for text in TEXTS[:3]), ("sales", TEXTS[0], "s-2")]


async def test_agents_that_share_a_place_say_so(backend, deps):
    """So that what a principal has there is shown once."""
    one, other = await opened(backend, deps), await opened(backend, deps)
    await one.add(*ANN, told(TEXTS[0]))
    shared = await other.owned("acme", "ann") != ()
    assert (one.place == other.place) is shared


async def test_a_rare_word_is_found_among_many_passages_with_a_common_one(backend, deps):
    """However old or new its passage is, and although another sought word is nowhere."""
    store = await opened(backend, deps, None)
    await store.add(*ANN, told("The router in the attic likes zebras."))
    for start in range(0, 1700, 850):
        await store.add(*ANN, told(*(f"The router says {n}." for n in range(start, start + 850))))
    await store.add(*ANN, told("The router in the cellar likes camels."))
    for words, says in (("attic zebras", "attic likes zebras"), ("cellar camels", "cellar likes camels")):
        best = await found(store, f"router {words} balloon", top_k=1)
        assert best == [f"The router in the {says}."]


async def test_erasing_a_session_takes_what_came_from_it(store):
    await store.add(*ANN, told(TEXTS[0], session="s-1"))
    await store.add(*ANN, told(TEXTS[3], session="s-2"))
    assert await found(store, "router", top_k=1) == [TEXTS[0]]
    assert await store.erase(SessionKey("acme", "support", "s-1")) == 1
    assert await store.erase(SessionKey("acme", "sales", "s-2")) == 0
    assert TEXTS[0] not in await found(store, "router battery")
    assert await found(store, "battery", top_k=1) == [TEXTS[3]]


# -- how long ------------------------------------------------------------------------------------------------


async def test_time_over_means_gone_before_anybody_swept(backend, deps, clock):
    store = await opened(backend, deps, ttl=10)
    await store.add(*ANN, told(TEXTS[0]))
    clock.advance(9)
    assert await found(store, "router", top_k=1) == [TEXTS[0]]
    clock.advance(1)
    assert await found(store, "router") == []


async def test_the_store_expires_by_itself(backend, deps, clock):
    store = await opened(backend, deps, ttl=10)
    await store.add(*ANN, told(*TEXTS))
    async with asyncio.timeout(20):
        while not clock.sleepers:
            await asyncio.sleep(0.002)
        await clock.run_for(EXPIRY_PERIOD + 1)
        while not clock.sleepers:
            await asyncio.sleep(0.002)
    assert await store.erase_owner("acme", "ann") == 0, "it was there to be deleted"


async def test_beyond_the_bound_the_oldest_go(backend, deps):
    store = await opened(backend, deps, max_passages=5)
    for n in range(12):
        await store.add(*ANN, told(f"Router number {n} is broken."))
    kept = await found(store, "router number broken", top_k=20)
    assert "Router number 11 is broken." in kept
    assert "Router number 0 is broken." not in kept
    assert len(kept) <= 10


# -- faults --------------------------------------------------------------------------------------------------


class Moody(HashingEmbedder):
    """An embedder that can be told to fail."""

    fails = False

    async def embed(self, texts):
        if self.fails:
            raise ProviderError("does not want to")
        return await super().embed(texts)


async def test_what_cannot_be_embedded_is_found_by_its_words(backend, deps):
    """An answer is not lost because the embedding service was away; a question then says that it was."""
    embedder = Moody()
    store = await opened(backend, deps, embedder)
    embedder.fails = True
    await store.add(*ANN, told(TEXTS[0]))
    with pytest.raises(ProviderError):
        await store.search(*ANN, "router")
    embedder.fails = False
    assert await found(store, "reset router") == [TEXTS[0]]
    await store.add(*ANN, told(TEXTS[0], run="run_2"))
    assert await found(store, "resets", top_k=1) == [TEXTS[0]], "said again, it got its vector"


async def test_vectors_of_another_model_are_never_compared(backend, deps):
    store = await opened(backend, deps, embedder := Moody())
    await store.add(*ANN, told(TEXTS[0]))
    embedder.fingerprint = "another"
    await store.add(*ANN, told(TEXTS[1]))
    assert await found(store, "invoicing", top_k=5) == [TEXTS[1]]
    assert await found(store, "reset button", top_k=1) == [TEXTS[0]], "by words, as before"


async def test_text_that_is_none_is_refused(store):
    with pytest.raises(InvalidInput, match="surrogate"):
        await store.add(*ANN, told("a\ud800b"))
    await store.add(*ANN, told(TEXTS[0]))
    assert await found(store, "router") == [TEXTS[0]]


async def test_a_sound_store_answers_a_ping(store):
    await store.ping()


async def test_the_event_loop_stays_free(store, free_loop):
    await store.add(*ANN, told(*TEXTS))
    await store.search(*ANN, "router")
    await store.erase_owner("acme", "ann")


# -- facts ---------------------------------------------------------------------------------------------------


async def test_facts_are_listed_found_forgotten_and_no_passages(store, clock):
    about = {"source": "fact", "session_id": "s-1", "run_id": "run_1", "since": "2026-01-01"}
    for text in ("The user likes tea.", "The user's \x00 name is Ann."):
        clock.advance(1)
        await store.add(*ANN, [(text, about)])
    await store.add(*ANN, told("The user likes tea."))
    await store.add("acme", "sales", "ann", [("The user likes tea.", about)])
    newest, older = await store.facts("acme", "ann", agent="support")
    assert (newest.content, older.content) == ("The user's \x00 name is Ann.", "The user likes tea.")
    assert (newest.agent, newest.metadata) == ("support", about)
    assert len(await store.facts("acme", "ann")) == 3
    assert await store.facts("acme", "bob") == await store.facts("other", "ann") == ()
    found = await store.search(*ANN, "tea")
    assert sorted(one.source for one in found if one.content == older.content) == ["conversation", "fact"]
    assert await store.forget("acme", "bob", older.id) == await store.forget("acme", "ann", "no id") == 0
    assert await store.forget("acme", "ann", older.id) == 2
    assert [one.content for one in await store.facts("acme", "ann")] == [newest.content]
    assert [one.source for one in await store.search(*ANN, "tea")] == ["conversation"]
    assert await store.erase(SessionKey("acme", "support", "s-1", "ann")) == 2
    assert await store.facts("acme", "ann") == ()


async def test_facts_do_not_count_among_the_passages(backend, deps):
    store = await opened(backend, deps, None, max_passages=2)
    await store.add(*ANN, [("The user likes tea.", {"source": "fact"})])
    for number in range(5):
        await store.add(*ANN, told(f"passage {number}"))
    assert len(await store.facts("acme", "ann")) == 1
    assert len(await found(store, "passage", top_k=9)) == 2


async def test_a_new_space_waits_for_passages_that_are_being_added(
    postgres_database: str, clock: ManualClock, tmp_path: Path
) -> None:
    """Else the first passages and the first facts of an agent block each other, and one of them is lost."""
    deps = Deps(clock=clock, data_dir=tmp_path, storage_url=postgres_database, embedder=HashingEmbedder())
    made, is_added, begins, commits = (asyncio.Event() for _ in range(4))
    row = """
    INSERT INTO astromesh.passages
        (tenant, agent, owner, session_id, hash, content, metadata, created_at, expires_at, space)
    VALUES ('acme', 'support', 'bob', 's', $1, 'a', '{}', 1, 0, $2)
    """

    async def make_space(connection: Connection) -> int:
        created: int = await connection.fetchval(
            "INSERT INTO astromesh.spaces (name) VALUES ($1) RETURNING id", name
        )
        made.set()
        await commits.wait()
        return created

    async def add(connection: Connection) -> None:
        await connection.execute(row, b"1", None)
        begins.set()
        await is_added.wait()
        await connection.execute(row, b"2", space)

    async def until_one_waits() -> None:
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        while not await database.read(waiting):
            await asyncio.sleep(0.01)

    store = await opened("pgvector", deps)
    await store.add(*ANN, told("The first one."))
    async with Postgres(Address.parse(postgres_database)) as database:
        await database.write("DELETE FROM astromesh.passages")
        name = (await database.write("DELETE FROM astromesh.spaces RETURNING name"))[0][0]
        other = Deps(
            clock=clock, data_dir=tmp_path, storage_url=postgres_database, embedder=HashingEmbedder()
        )
        adding_store = await opened("pgvector", other)
        making = asyncio.create_task(database.transact(make_space))
        await made.wait()
        adding = asyncio.create_task(adding_store.add(*ANN, told("The second one.")))
        beside = asyncio.create_task(database.transact(add))
        await begins.wait()
        await until_one_waits()  # for the row of the space
        commits.set()
        space = await making
        await until_one_waits()  # for the passage that is being added
        is_added.set()
        await asyncio.gather(adding, beside)
        assert len(await database.read("SELECT 1 FROM astromesh.passages")) == 3
    await other.resources.close()
    await deps.resources.close()
