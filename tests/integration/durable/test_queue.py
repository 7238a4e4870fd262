"""A process accepts more durable runs than it begins at once, and begins them as it has room."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from astromesh.access.scopes import Viewer
from astromesh.durable import run_worker
from astromesh.durable.base import IdempotencyKey
from astromesh.durable.queue import LocalQueue
from astromesh.errors import Forbidden, IdempotencyConflict, Overloaded
from astromesh.runtime.records import RunRequest
from astromesh.testing import ScriptedProvider
from astromesh.types import CallerContext, CompletionRequest
from tests.integration.agents_folder import manifest, runtime_of, write

ME = Viewer("default", "anonymous")
PATIENCE = 30.0


async def test_more_runs_than_begin_at_once_begin_as_others_end(tmp_path: Path) -> None:
    """All are accepted while none has ended; none of them waits for another process to look for it."""
    write(tmp_path, manifest("plain"))
    begun, go = 0, asyncio.Event()

    async def says_when_it_may(request: CompletionRequest) -> str:
        nonlocal begun
        begun += 1
        await go.wait()
        return "done"

    async with runtime_of(tmp_path, ScriptedProvider(says_when_it_may, repeat=True)) as runtime:
        runtime.durable.max_starting = 4
        agent, count = runtime.agent("plain"), 12
        rows = [await runtime.runner.accept(agent, RunRequest("go", f"s-{n}")) for n in range(count)]
        async with asyncio.timeout(PATIENCE):
            while begun < 4:
                await asyncio.sleep(0.01)
            assert begun == 4
            go.set()
            for row in rows:
                while (await runtime.runs.get(row.run_id, ME))["status"] != "completed":
                    await asyncio.sleep(0.01)
    assert begun == count


async def test_no_more_begin_than_may_where_the_queue_in_memory_is_full(tmp_path: Path) -> None:
    """What has no place there is begun later, by a sweep."""
    write(tmp_path, manifest("plain"))
    active = most = 0

    async def says(request: CompletionRequest) -> str:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.01)
        active -= 1
        return "done"

    async with runtime_of(tmp_path, ScriptedProvider(says, repeat=True)) as runtime:
        runtime.durable.max_starting = 2
        runtime.durable._local_queue = LocalQueue(2)
        agent = runtime.agent("plain")
        rows = [await runtime.runner.accept(agent, RunRequest("go", f"s-{n}")) for n in range(8)]
        async with asyncio.timeout(PATIENCE):
            for row in rows:
                while (await runtime.runs.get(row.run_id, ME))["status"] != "completed":
                    await asyncio.sleep(0.01)
    assert most == 2


async def test_a_process_that_has_emptied_a_page_of_the_database_takes_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the next sweep: other processes may have taken most of the page."""
    monkeypatch.setattr(run_worker, "SWEEP_SECONDS", 3600.0)
    monkeypatch.setattr(run_worker, "QUEUED_SECONDS", 1e-6)
    monkeypatch.setattr(run_worker, "_PAGE", 3)
    write(tmp_path, manifest("plain"))
    async with runtime_of(tmp_path, ScriptedProvider("done", repeat=True)) as runtime:
        durable = runtime.durable
        await durable.start()
        room, durable.max_starting = durable.max_starting, 0
        durable._local_queue = LocalQueue(1)
        agent = runtime.agent("plain")
        rows = [await runtime.runner.accept(agent, RunRequest("go", f"s-{n}")) for n in range(12)]
        durable.max_starting = room
        durable._worker.wake()
        async with asyncio.timeout(PATIENCE):
            for row in rows:
                while (await runtime.runs.get(row.run_id, ME))["status"] != "completed":
                    await asyncio.sleep(0.01)


async def test_tenants_take_turns_at_the_slots_of_a_bounded_agent(tmp_path: Path) -> None:
    """Durable runs and plain ones: a tenant with many waiting runs delays another one by one run."""
    write(tmp_path, manifest("plain", queue={"max_running": 1}))
    begun, go = list[str](), asyncio.Event()

    async def says(request: CompletionRequest) -> str:
        begun.append(str(request.messages[-1].content))
        await go.wait()
        return "done"

    def caller(tenant: str) -> CallerContext:
        return CallerContext(user_id="ann", tenant_id=tenant)

    async with runtime_of(tmp_path, ScriptedProvider(says, repeat=True)) as runtime:
        await runtime.durable.start()
        await runtime.durable._worker.abandon()
        agent = runtime.agent("plain")
        messages = [(f"noisy-{n}", "noisy") for n in range(4)] + [("quiet-0", "quiet"), ("quiet-1", "quiet")]
        rows = [
            await runtime.runner.accept(agent, RunRequest(text, text), caller=caller(tenant))
            for text, tenant in messages
        ]
        urgent = RunRequest("urgent", "urgent", priority=-1)
        with pytest.raises(Forbidden, match="runs:priority"):
            await runtime.runner.accept(agent, urgent, caller=caller("noisy"))
        may = CallerContext("ann", "noisy", scopes=frozenset({"runs:priority"}))
        rows.append(await runtime.runner.accept(agent, urgent, caller=may))
        go.set()
        async with asyncio.timeout(PATIENCE):
            for row in rows:
                viewer = Viewer(row.tenant, "ann")
                while (await runtime.runs.get(row.run_id, viewer))["status"] != "completed":
                    await asyncio.sleep(0.01)
        durable = begun.copy()
        begun.clear()
        go.clear()
        plain = [
            asyncio.create_task(runtime.run("plain", *m, caller=caller(t))) for *m, t in _plain(messages)
        ]
        while not begun:
            await asyncio.sleep(0.01)
        go.set()
        await asyncio.gather(*plain)
    assert durable == ["noisy-0", "urgent", "quiet-0", "noisy-1", "quiet-1", "noisy-2", "noisy-3"]
    assert begun == ["noisy-0", "quiet-0", "noisy-1", "quiet-1", "noisy-2", "noisy-3"]


def _plain(messages: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
    return [(text, f"plain-{text}", tenant) for text, tenant in messages]


async def test_nothing_more_is_accepted_while_a_run_waits_too_long(tmp_path: Path) -> None:
    """Of its tenant: that of another one is accepted."""
    write(tmp_path, manifest("plain", queue={"max_running": 1, "max_wait_seconds": 0.05}))
    begun, go = asyncio.Event(), asyncio.Event()

    async def waits(request: CompletionRequest) -> str:
        begun.set()
        await go.wait()
        return "done"

    async with runtime_of(tmp_path, ScriptedProvider(waits, repeat=True)) as runtime:
        agent = runtime.agent("plain")
        await runtime.runner.accept(agent, RunRequest("go", "s-1"))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await runtime.runner.accept(agent, RunRequest("go", "s-2"))
        runtime.durable._capacity.clear()  # it has counted within this second
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded, match="max_wait_seconds") as refused:
            await runtime.runner.accept(agent, RunRequest("go", "s-3"))
        assert refused.value.retry_after >= 1.0
        other = CallerContext("ann", "globex")
        accepted = await runtime.runner.accept(agent, RunRequest("go", "s-4"), caller=other)
        assert accepted.status == "queued"
        go.set()


async def test_who_ends_a_run_of_a_bounded_agent_begins_the_next_at_once(tmp_path: Path) -> None:
    """As many go on as may, although nobody sweeps: of those that end together each one takes another run."""
    most, count = 4, 24
    write(tmp_path, manifest("plain", queue={"max_running": most}))
    go, together = asyncio.Event(), asyncio.Barrier(most)

    async def ends_with_the_others(request: CompletionRequest) -> str:
        await go.wait()
        await together.wait()
        return "done"

    async with runtime_of(tmp_path, ScriptedProvider(ends_with_the_others, repeat=True)) as runtime:
        await runtime.durable.start()
        await runtime.durable._worker.abandon()
        agent = runtime.agent("plain")
        rows = [await runtime.runner.accept(agent, RunRequest("go", f"s-{n}")) for n in range(count)]
        go.set()
        async with asyncio.timeout(PATIENCE):
            for row in rows:
                while (await runtime.runs.get(row.run_id, ME))["status"] != "completed":
                    await asyncio.sleep(0.01)


async def test_a_named_run_that_was_accepted_is_answered_where_no_more_are(tmp_path: Path) -> None:
    """A caller that lost the answer must not learn that its run was refused; a new name is refused."""
    write(tmp_path, manifest("plain", queue={"max_running": 1, "max_queued": 1}))
    begun, go = asyncio.Event(), asyncio.Event()

    async def waits(request: CompletionRequest) -> str:
        begun.set()
        await go.wait()
        return "done"

    def named(name: str, body: str = "hash") -> IdempotencyKey:
        return IdempotencyKey(ME.tenant, "anonymous", "POST /runs", name, body, 4e9)

    async with runtime_of(tmp_path, ScriptedProvider(waits, repeat=True)) as runtime:
        agent = runtime.agent("plain")
        await runtime.runner.accept(agent, RunRequest("go", "s-1"))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        kept = await runtime.runner.accept(agent, RunRequest("go", "s-2"), key=named("k-1"))
        again = await runtime.runner.accept(agent, RunRequest("go", "s-2"), key=named("k-1"))
        with pytest.raises(IdempotencyConflict):
            await runtime.runner.accept(agent, RunRequest("no", "s-2"), key=named("k-1", "another"))
        for body in ("hash", "another"):  # nothing of it is kept
            with pytest.raises(Overloaded):
                await runtime.runner.accept(agent, RunRequest("go", "s-3"), key=named("k-2", body))
        go.set()
        async with asyncio.timeout(PATIENCE):
            while (await runtime.runs.get(kept.run_id, ME))["status"] != "completed":
                await asyncio.sleep(0.01)
        later = await runtime.runner.accept(agent, RunRequest("more", "s-3"), key=named("k-2"))
    assert again.run_id == kept.run_id
    assert later.run_id not in (kept.run_id, "")
