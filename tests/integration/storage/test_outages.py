"""Servers that vanish and come back under load (reliability.md R7), and stores opened without them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from astromesh.errors import ConfigError, StoreError, StoreUnavailable
from astromesh.knowledge.embedders import HashingEmbedder
from astromesh.memory.base import ConversationStore
from astromesh.plugins import Deps, Plugins
from astromesh.types import SessionKey, Turn
from tests.platform.stores import impatient

WRITERS = 6
PATIENCE = 40.0


class Server(NamedTuple):
    """A server that can be taken away, and what reaches it."""

    backend: str
    deps: Deps
    stop: Callable[[], None]
    start: Callable[[], None]


@pytest.fixture(params=["postgres", "redis"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    if request.param == "postgres":
        process = request.getfixturevalue("postgres_server")
        deps = Deps(data_dir=tmp_path, storage_url=request.getfixturevalue("postgres_database"))
    else:
        process = request.getfixturevalue("redis_server")
        deps = Deps(data_dir=tmp_path, redis_url=process.url)
    yield Server(request.param, deps, process.stop, process.start)
    await deps.resources.close()


def key(name: str) -> SessionKey:
    return SessionKey("acme", "support", name)


def pair(text: str) -> list[Turn]:
    return [Turn("user", text), Turn("assistant", text)]


async def opened(server: Server) -> ConversationStore:
    return await Plugins().open("conversation_stores", server.backend, {}, server.deps)


async def healed(store: ConversationStore) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await store.ping()
            except StoreUnavailable:
                await asyncio.sleep(0.05)


async def test_nothing_that_was_accepted_is_lost_while_the_server_comes_and_goes(server):
    """Writers go on for all the time: every accepted pair is there whole; who was refused knows it."""
    store = await opened(server)
    accepted: dict[str, list[str]] = {f"s{n}": [] for n in range(WRITERS)}
    refused: list[BaseException] = []
    going = True

    async def write(name: str) -> None:
        n = 0
        while going:
            n += 1
            try:
                await store.append(key(name), "ann", pair(f"{name}/{n}"))
                accepted[name].append(f"{name}/{n}")
            except StoreUnavailable as error:
                refused.append(error)
            await asyncio.sleep(0.002)

    async def all_have(count: int) -> None:
        async with asyncio.timeout(60):
            while min(map(len, accepted.values())) < count:
                await asyncio.sleep(0.01)

    writers = [asyncio.create_task(write(name)) for name in accepted]
    for stops in range(1, 4):
        await all_have(2 * stops)
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(0.1)
        await asyncio.to_thread(server.start)
        await healed(store)
    await all_have(8)
    going = False
    await asyncio.gather(*writers)
    for name, texts in accepted.items():
        turns = await store.page(key(name), limit=100_000)
        assert [t.seq for t in turns] == list(range(1, len(turns) + 1))
        assert [t.role for t in turns] == ["user", "assistant"] * (len(turns) // 2)
        stored = [t.content for t in turns[::2]]
        assert stored == [t.content for t in turns[1::2]]
        assert set(texts) <= set(stored), "accepted, and lost"
        assert len(set(stored)) == len(stored), "written twice"


async def test_a_call_waits_for_a_server_that_restarts(server):
    store = await opened(server)
    await store.append(key("s"), "ann", pair("before"))
    await asyncio.to_thread(server.stop)
    await asyncio.sleep(0.1)  # the end of its connections has arrived
    waiting = asyncio.create_task(store.append(key("s"), "ann", pair("meanwhile")))
    reading = asyncio.create_task(store.recall(key("s"), 10))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(server.start)
    assert await waiting == 4
    assert (await reading).last_seq in (2, 4)


async def test_a_server_that_stays_away_is_said_so_within_the_deadline(server):
    await impatient(server.deps)
    store = await opened(server)
    await asyncio.to_thread(server.stop)
    async with asyncio.timeout(PATIENCE):
        said = await asyncio.gather(
            store.recall(key("s"), 10),
            store.append(key("s"), "ann", pair("x")),
            store.ping(),
            return_exceptions=True,
        )
    for refused in said:
        assert isinstance(refused, StoreUnavailable)
        assert "try again" in str(refused)
        assert "@" not in str(refused), "the password stays out of messages"
    await asyncio.to_thread(server.start)
    await healed(store)
    assert await store.append(key("s"), "ann", pair("x")) == 2


async def test_a_store_may_be_opened_before_its_server_is_there(server):
    """A server that comes up later is found, and gets its tables then."""
    await asyncio.to_thread(server.stop)
    store = await opened(server)
    await asyncio.to_thread(server.start)
    await healed(store)
    assert await store.append(key("s"), "ann", pair("x")) == 2


async def test_connections_that_were_cut_are_replaced(postgres_server, postgres_database, tmp_path):
    """A fail-over cuts every connection: reads do not notice, writes go through or say that they did not."""
    deps = Deps(data_dir=tmp_path, storage_url=postgres_database)
    store = await Plugins().open("conversation_stores", "postgres", {}, deps)
    written = 0
    for _ in range(20):
        await asyncio.to_thread(postgres_server.terminate_backends)
        assert (await store.recall(key("s"), 10)).last_seq == written
        try:
            written = await store.append(key("s"), "ann", pair("x"))
        except StoreUnavailable:
            written = (await store.recall(key("s"), 10)).last_seq
    assert written >= 20
    await deps.resources.close()


async def test_a_crash_of_the_server_loses_nothing_that_was_accepted(
    postgres_server, postgres_database, tmp_path
):
    deps = Deps(data_dir=tmp_path, storage_url=postgres_database, embedder=HashingEmbedder())
    conversations = await Plugins().open("conversation_stores", "postgres", {}, deps)
    passages = await Plugins().open("semantic_stores", "pgvector", {}, deps)
    events = await Plugins().open("episodic_stores", "postgres", {}, deps)
    await conversations.append(key("s"), "ann", pair("x"))
    await passages.add("acme", "support", "ann", [("the router is broken", {})])
    await events.record(key("s"), "ann", [{"event": "run"}], now=1.0)
    await asyncio.to_thread(postgres_server.crash)
    await asyncio.to_thread(postgres_server.start)
    assert (await conversations.recall(key("s"), 10)).last_seq == 2
    assert (await passages.search("acme", "support", "ann", "router"))[0].content == "the router is broken"
    assert await events.recent(key("s"), 5) == ({"event": "run"},)
    await deps.resources.close()


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["postgres", "redis"])
async def test_a_backend_without_its_url_says_which_key_is_missing(backend, tmp_path):
    deps = Deps(data_dir=tmp_path, storage_url="sqlite:///x.db")
    with pytest.raises(ConfigError, match="URL"):
        await Plugins().open("conversation_stores", backend, {}, deps)


async def test_a_wrong_password_is_the_operators_to_change(
    postgres_server, postgres_database, redis_url, tmp_path
):
    user, _, rest = postgres_database.partition("@")
    wrong = f"{user.rpartition(':')[0]}:wrong@{rest}"
    deps = Deps(
        data_dir=tmp_path, storage_url=wrong, redis_url=f"redis://:wrong@{redis_url.rpartition('@')[2]}"
    )
    with pytest.raises(StoreError, match="login") as refused:
        await Plugins().open("conversation_stores", "postgres", {}, deps)
    assert not isinstance(refused.value, StoreUnavailable)
    store = await Plugins().open("conversation_stores", "redis", {}, deps)
    with pytest.raises(StoreError, match="login"):
        await store.ping()
    await deps.resources.close()


async def test_a_server_without_tls_is_named_where_the_url_requires_it(postgres_database, tmp_path):
    deps = Deps(data_dir=tmp_path, storage_url=f"{postgres_database}?sslmode=require")
    store = await Plugins().open("conversation_stores", "postgres", {}, deps)
    with pytest.raises(StoreUnavailable, match="offers no TLS as sslmode in its URL requires"):
        await store.ping()
    await deps.resources.close()


async def test_a_user_who_may_not_make_the_extension_is_told_what_to_do(
    postgres_server, postgres_database, tmp_path
):
    postgres_server.execute("drop role if exists plain")
    postgres_server.execute("create role plain login password 'x'")
    name = postgres_database.rpartition("/")[2]
    postgres_server.execute(f"grant all on database {name} to plain")
    url = f"postgresql://plain:x@127.0.0.1:{postgres_server.port}/{name}"
    deps = Deps(data_dir=tmp_path, storage_url=url)
    with pytest.raises(StoreError, match="CREATE EXTENSION vector"):
        await Plugins().open("semantic_stores", "pgvector", {}, deps)
    await deps.resources.close()
    postgres_server.execute(f"revoke all on database {name} from plain")


async def test_the_url_says_how_large_the_pool_is(postgres_database, tmp_path):
    deps = Deps(data_dir=tmp_path, storage_url=f"{postgres_database}?pool_size=2&statement_cache=0")
    store = await Plugins().open("conversation_stores", "postgres", {}, deps)
    await asyncio.gather(*(store.append(key(f"s{n}"), "ann", pair("x")) for n in range(20)))
    assert len(await store.sessions("acme", "support")) == 20
    await deps.resources.close()
    bad = Deps(data_dir=tmp_path, storage_url=f"{postgres_database}?pool_size=many")
    with pytest.raises(ConfigError, match="pool_size"):
        await Plugins().open("conversation_stores", "postgres", {}, bad)
