"""Several runtimes over one store: one writer per session (reliability.md R2)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from astromesh.durable.leases import REQUEST_SECONDS
from astromesh.errors import Interrupted, SessionBusy
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.sessions import become_newest
from astromesh.testing import ScriptedProvider
from astromesh.types import SessionKey
from tests.integration.agents_folder import manifest, runtime_of, write

STORES = ("sqlite", "postgres", "redis")


@pytest.fixture(params=STORES)
def memory(request: pytest.FixtureRequest) -> dict[str, Any]:
    options = {"max_turns": 100}
    if request.param == "postgres":
        options["url"] = request.getfixturevalue("postgres_database")
    if request.param == "redis":
        options["url"] = request.getfixturevalue("redis_url")
    return {"conversational": {"backend": request.param, **options}}


async def echo(request: Any) -> str:
    """Slow enough for the others to come; says how many messages it was shown."""
    await asyncio.sleep(0.002)
    return f"{len(request.messages)}: {request.messages[-1].content}"


def runtimes(
    folder: Path, memory: dict[str, Any], count: int = 2, script: Any = echo, **spec: Any
) -> list[AgentRuntime]:
    """Runtimes of one folder and data folder, as several processes would be."""
    config = write(folder, manifest("a", memory=memory, **spec))
    return [runtime_of(config, ScriptedProvider(script, repeat=True)) for _ in range(count)]


async def turns_of(runtime: AgentRuntime, session: str = "s") -> list[tuple[str, str]]:
    store = runtime.agent("a").memory.conversations
    assert store is not None
    key = SessionKey("default", "a", session, "anonymous")
    return [(t.role, t.content) for t in await store.page(key, limit=1000)]


async def test_ten_clients_by_twenty_messages_by_two_processes_lose_no_turn(
    tmp_path: Path, memory: dict[str, Any]
) -> None:
    """Strictly user, assistant; every run has seen all turns before it."""
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(r) for r in runtimes(tmp_path, memory)]

        async def client(n: int) -> None:
            for m in range(5):
                await both[n % 2].run("a", f"{n}.{m}", "s")

        await asyncio.gather(*(client(n) for n in range(10)))
        turns = await turns_of(both[0])
    assert [role for role, _ in turns] == ["user", "assistant"] * 50
    asked = [text for role, text in turns if role == "user"]
    assert sorted(asked) == sorted(f"{n}.{m}" for n in range(10) for m in range(5))
    for position, (role, text) in enumerate(turns):
        if role == "assistant":  # the system message is not a turn
            assert text == f"{position + 1}: {turns[position - 1][1]}"


async def test_the_policies_hold_over_processes(tmp_path: Path, memory: dict[str, Any]) -> None:
    """`reject` refuses at once, `interrupt` ends the run of the other process."""
    started = asyncio.Event()

    async def slow(request: Any) -> str:
        if request.messages[-1].content == "old":
            started.set()
            await asyncio.Event().wait()
        return "done"

    for policy in ("reject", "interrupt"):
        folder = tmp_path / policy
        async with AsyncExitStack() as stack:
            made = runtimes(folder, memory, 2, slow, sessions={"concurrency": policy})
            first, second = [await stack.enter_async_context(r) for r in made]
            started.clear()
            old = asyncio.create_task(first.run("a", "old", policy))
            await started.wait()
            if policy == "reject":
                with pytest.raises(SessionBusy):
                    await second.run("a", "new", policy)
                old.cancel()
                await asyncio.wait([old])
            else:
                assert (await second.run("a", "new", policy)).response == "done"
                with pytest.raises(Interrupted):
                    await old
            assert (await second.run("a", "later", policy)).response == "done"


async def test_of_messages_at_once_in_two_processes_one_is_answered(
    tmp_path: Path, memory: dict[str, Any]
) -> None:
    """`interrupt`: a message that waited for another process is not answered behind a newer one."""
    go = asyncio.Event()

    async def waits(request: Any) -> str:
        await go.wait()
        return "done"

    async with AsyncExitStack() as stack:
        made = runtimes(tmp_path, memory, 2, waits, sessions={"concurrency": "interrupt"})
        both = [await stack.enter_async_context(r) for r in made]
        runs = [asyncio.create_task(both[n % 2].run("a", f"{n}", "s")) for n in range(8)]
        async with asyncio.timeout(30):
            while sum(run.done() for run in runs) < 7:
                await asyncio.sleep(0.01)
        go.set()
        results = await asyncio.gather(*runs, return_exceptions=True)
        turns = await turns_of(both[0])
    assert sum(isinstance(result, Interrupted) for result in results) == 7
    assert [role for role, _ in turns] == ["user", "assistant"]


async def test_a_message_that_waits_behind_a_replaced_one_stays(
    tmp_path: Path, memory: dict[str, Any]
) -> None:
    """`interrupt`: a run that learns of its replacement from the store does not end the newest message."""
    asked, stored = asyncio.Event(), asyncio.Event()

    async def slow_to_leave(request: Any) -> str:
        if request.messages[-1].content == "old":
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                await stored.wait()
        return "done"

    async with AsyncExitStack() as stack:
        made = runtimes(tmp_path, memory, 2, slow_to_leave, sessions={"concurrency": "interrupt"})
        one, _ = [await stack.enter_async_context(r) for r in made]
        old = asyncio.create_task(one.run("a", "old", "s"))
        await asyncio.wait_for(asked.wait(), 30)
        newest = asyncio.create_task(one.run("a", "newest", "s"))
        await asyncio.sleep(2 * REQUEST_SECONDS)  # as long as it takes to hear of it
        stored.set()
        assert (await newest).response == "done"
        with pytest.raises(Interrupted):
            await old


async def test_the_newest_message_is_answered_although_an_older_one_asks_it_to_leave(
    tmp_path: Path, memory: dict[str, Any]
) -> None:
    """`interrupt`: the older message may ask for the session when it is replaced already."""
    asked, go = asyncio.Event(), asyncio.Event()

    async def waits(request: Any) -> str:
        asked.set()
        await go.wait()
        return "done"

    async with AsyncExitStack() as stack:
        made = runtimes(tmp_path, memory, 2, waits, sessions={"concurrency": "interrupt"})
        one, two = [await stack.enter_async_context(r) for r in made]
        newest = asyncio.create_task(one.run("a", "newest", "s"))
        await asyncio.wait_for(asked.wait(), 30)
        leases = two.agent("a").memory.leases
        assert leases is not None
        await leases.interrupt(SessionKey("default", "a", "s"))
        await asyncio.wait([newest], timeout=4 * REQUEST_SECONDS)  # as long as it takes to hear of it
        go.set()
        assert (await newest).response == "done"
        assert [role for role, _ in await turns_of(two)] == ["user", "assistant"]


async def test_who_was_replaced_while_it_said_its_last_word_stores_nothing(
    tmp_path: Path, memory: dict[str, Any]
) -> None:
    """`interrupt`: the older run ends before it could hear of the newer one, and is no answer."""
    asked, go = asyncio.Event(), asyncio.Event()

    async def waits(request: Any) -> str:
        if request.messages[-1].content == "old":
            asked.set()
            await go.wait()
        return "done"

    async with AsyncExitStack() as stack:
        made = runtimes(tmp_path, memory, 2, waits, sessions={"concurrency": "interrupt"})
        one, two = [await stack.enter_async_context(r) for r in made]
        old = asyncio.create_task(one.run("a", "old", "s"))
        await asyncio.wait_for(asked.wait(), 30)
        over = two.agent("a").memory.leases
        assert over is not None
        await become_newest(over, SessionKey("default", "a", "s", "anonymous"))
        go.set()
        with pytest.raises(Interrupted):
            await old
        assert await turns_of(two) == []


async def test_a_run_that_began_alone_is_under_a_lease_when_another_process_comes(tmp_path: Path) -> None:
    """SQLite: alone there are no leases; the second process waits for the run of the first."""
    memory = {"conversational": {"backend": "sqlite"}}
    go, started = asyncio.Event(), asyncio.Event()

    async def waits(request: Any) -> str:
        started.set()
        await go.wait()
        return f"{len(request.messages)}"

    first, second = runtimes(tmp_path, memory, 2, waits)
    async with first:
        leases = first.agent("a").memory.leases
        assert leases is not None and not leases.shared
        one = asyncio.create_task(first.run("a", "one", "s"))
        await started.wait()
        async with second:
            assert first.agent("a").memory.leases.shared  # type: ignore[union-attr]
            two = asyncio.create_task(second.run("a", "two", "s"))
            go.set()
            assert [(await run).response for run in (one, two)] == ["2", "4"]
