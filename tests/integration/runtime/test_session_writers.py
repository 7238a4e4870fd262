"""R2 in one process: many writers on one session, through locks, memory manager and a real SQLite file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astromesh.config.agent import Sessions as SessionsSpec
from astromesh.core.memory import ConversationalMemory, MemoryManager
from astromesh.errors import Interrupted, SessionBusy
from astromesh.memory.backends.sqlite import SCHEMA, SqliteConversations
from astromesh.memory.strategies import SlidingWindow
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.sessions import SessionLeaseHolder, Sessions
from astromesh.runtime.wrappers import within_session
from astromesh.storage.sqlite import Database
from astromesh.telemetry.clock import SystemClock
from astromesh.types import Message, SessionKey, Turn

KEY = SessionKey("default", "support", "s-1", "ann")
WRITERS, MESSAGES = 10, 20


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[MemoryManager]:
    async with Database(tmp_path / "a.db") as database:
        await database.migrate(SCHEMA)
        store = SqliteConversations(database, SystemClock())
        yield MemoryManager(ConversationalMemory(store, SlidingWindow(1000)))


def agent(policy: str, **spec: Any) -> Any:
    spec = {"concurrency": policy, **spec}
    manifest = SimpleNamespace(spec=SimpleNamespace(sessions=SessionsSpec(**spec)))
    return SimpleNamespace(manifest=manifest, memory=SimpleNamespace(leases=None))


class Runs:
    """Runs as the pipeline does them: recall, think, keep both turns. Notes what each one saw."""

    def __init__(self, memory: MemoryManager) -> None:
        self.memory = memory
        self.saw: dict[str, tuple[Message, ...]] = {}
        self.handle = within_session(Sessions(), SessionLeaseHolder())(self.answer)

    async def answer(self, agent: Any, request: RunRequest, run: Any) -> RunAnswer:
        context = await self.memory.build_context(KEY.agent, KEY.session_id, request.query, owner="ann")
        self.saw[request.query] = context.conversation_history
        await asyncio.sleep(0)
        async with self.memory.transaction(KEY, "ann") as transaction:
            transaction.persist_turn(Turn("user", request.query))
            transaction.persist_turn(Turn("assistant", f"re: {request.query}"))
        return RunAnswer(f"re: {request.query}", "support", KEY.session_id, "run_1", {})

    async def ask(self, agent: Any, query: str) -> RunAnswer:
        run: Any = SimpleNamespace(key=KEY, owner="ann", policy="", accepted=None)
        return await self.handle(agent, RunRequest(query, KEY.session_id), run)

    async def stored(self) -> tuple[Turn, ...]:
        assert self.memory.conversations is not None
        return (await self.memory.conversations.recall(KEY, 1000)).turns


async def test_ten_writers_lose_nothing_and_each_run_sees_all_turns_before_it(memory, free_loop):
    runs, enqueue = Runs(memory), agent("enqueue")

    async def write(who: int) -> None:
        for n in range(MESSAGES):
            await runs.ask(enqueue, f"{who}/{n}")

    await asyncio.gather(*(write(who) for who in range(WRITERS)))
    turns = await runs.stored()
    assert [t.seq for t in turns] == list(range(1, 2 * WRITERS * MESSAGES + 1))
    assert [t.role for t in turns] == ["user", "assistant"] * (WRITERS * MESSAGES)
    assert {t.content for t in turns[::2]} == {f"{w}/{n}" for w in range(WRITERS) for n in range(MESSAGES)}
    assert all(a.content == f"re: {q.content}" for q, a in zip(turns[::2], turns[1::2], strict=True))
    for position, turn in enumerate(turns[::2]):
        assert len(runs.saw[turn.content]) == 2 * position


async def test_reject_answers_one_and_refuses_the_others(memory):
    runs, reject = Runs(memory), agent("reject")
    results = await asyncio.gather(*(runs.ask(reject, str(n)) for n in range(5)), return_exceptions=True)
    assert [type(r) for r in results] == [RunAnswer] + [SessionBusy] * 4
    assert [t.content for t in await runs.stored()] == ["0", "re: 0"]


async def test_interrupt_answers_the_newest(memory):
    runs, interrupt = Runs(memory), agent("interrupt")
    results = await asyncio.gather(*(runs.ask(interrupt, str(n)) for n in range(5)), return_exceptions=True)
    assert [type(r) for r in results] == [Interrupted] * 4 + [RunAnswer]
    assert [t.content for t in await runs.stored()] == ["4", "re: 4"]
