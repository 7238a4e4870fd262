"""Durable runs that a Restate server places: its timers, its loss, and the change to it and back."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.access.scopes import Viewer
from astromesh.errors import InvalidConfiguration
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.monitoring import check_readiness
from astromesh.runtime.records import RunRequest
from astromesh.testing import ManualClock, ScriptedProvider
from astromesh.types import CompletionRequest, ToolCall
from tests.integration.agents_folder import manifest, runtime_of, write
from tests.platform.processes import free_port
from tests.platform.restate import RestateServer

ME = Viewer("default", "anonymous")
PATIENCE = 60.0
WEEK = 7 * 86_400.0
TOOL = {
    "name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup",
    "approval": "required",
}  # fmt: skip


def asks_once(request: CompletionRequest) -> Any:
    if request.messages[-1].role == "tool":
        return "done"
    return [ToolCall("c1", "lookup", '{"query": "x"}')]


def place(folder: Path, durable: dict[str, Any] | None, **spec: Any) -> Path:
    """Writes a runtime.yaml with this block `durable`."""
    spec |= {"durable": durable} if durable else {}
    head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": spec}
    (folder / "runtime.yaml").write_text(yaml.safe_dump(head))
    return folder


def restate(server: RestateServer, port: int) -> dict[str, Any]:
    own = {"listen": f"127.0.0.1:{port}", "admin_url": server.admin_url}
    return {"backend": "restate", "url": server.url, "restate": own}


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await what():
            await asyncio.sleep(0.02)


async def status_becomes(runtime: AgentRuntime, status: str, *run_ids: str) -> None:
    async def all_are() -> bool:
        return all([(await runtime.runs.get(run_id, ME))["status"] == status for run_id in run_ids])

    await until(all_are)


async def accept(runtime: AgentRuntime, *sessions: str) -> list[str]:
    rows = [
        await runtime.runner.accept(runtime.agent("helper"), RunRequest(f"{n}", session))
        for n, session in enumerate(sessions)
    ]
    return [row.run_id for row in rows]


async def test_accepted_runs_go_on_under_restate_and_back(tmp_path, restate_server):
    """A process that only accepts stands for one that died before it began what it had accepted."""
    heard: list[str] = []

    def says(request: CompletionRequest) -> str:
        heard.append(str(request.messages[-1].content))
        return "Hi"

    write(tmp_path, manifest())
    port = free_port()
    left: list[str] = []
    for durable in (None, restate(restate_server, port), None):
        place(tmp_path, durable)
        async with runtime_of(tmp_path, ScriptedProvider(says, repeat=True)) as runtime:
            await runtime.durable.start()
            new = await accept(runtime, "s-1", "s-1", "s-2")
            await status_becomes(runtime, "completed", *left, *new)
        place(tmp_path, durable)
        async with runtime_of(tmp_path, ScriptedProvider(says, repeat=True)) as runtime:
            runtime.durable.executes = False
            left = await accept(runtime, "s-3", "s-3")
    assert Counter(heard) == {"0": 3 + 2, "1": 3 + 2, "2": 3}  # each once, and the last two not yet
    assert heard.index("0") < heard.index("1")


async def test_all_runs_that_restate_does_not_know_are_sent_to_it(tmp_path, restate_server):
    """More than one look at the store finds, by a clock that stands still: nothing becomes due by waiting."""
    write(tmp_path, manifest())
    clock, sessions = ManualClock(), [f"s-{n}" for n in range(120)]
    async with runtime_of(tmp_path, ScriptedProvider("Hi", repeat=True), clock=clock) as runtime:
        runtime.durable.executes = False
        left = await accept(runtime, *sessions)
    clock.advance(1.0)
    place(tmp_path, restate(restate_server, free_port()))
    async with runtime_of(tmp_path, ScriptedProvider("Hi", repeat=True), clock=clock) as runtime:
        await runtime.durable.start()
        await status_becomes(runtime, "completed", *left)


async def test_a_week_for_an_approval_and_the_next_schedule_are_timers_of_restate(tmp_path, restate_server):
    yearly = {"cron": "0 0 1 1 *", "query": "A new year"}
    write(tmp_path, manifest(tools=[TOOL]), manifest("yearly", schedules=[yearly]))
    place(tmp_path, restate(restate_server, free_port()))
    clock = ManualClock()
    async with runtime_of(tmp_path, ScriptedProvider(asks_once, repeat=True), clock=clock) as runtime:
        (run_id,) = await accept(runtime, "s-1")
        await status_becomes(runtime, "waiting", run_id)

        runtime.schedules.start()
        later: dict[str, datetime] = {}

        async def are_scheduled() -> bool:
            for row in restate_server.query("select * from sys_invocation where status = 'scheduled'"):
                name = row["idempotency_key"].partition("/")[0]
                later[name] = datetime.fromisoformat(row["scheduled_start_at"])
            return {"runs", "schedules"} <= set(later)

        await until(are_scheduled)
        assert timedelta(days=6) < later["runs"] - datetime.now(UTC) < timedelta(days=8)
        clock.advance(WEEK + 1.0)
        await runtime.durable.wake_at("runs", clock.now())  # the server's own clock cannot be moved
        await status_becomes(runtime, "completed", run_id)


async def test_a_restate_server_that_dies_and_forgets_loses_no_accepted_run(tmp_path, restate_server):
    write(tmp_path, manifest())
    place(tmp_path, restate(restate_server, free_port()))
    async with runtime_of(tmp_path, ScriptedProvider("Hi", repeat=True)) as runtime:
        first = await accept(runtime, "s-1")
        await status_becomes(runtime, "completed", *first)
        assert (await check_readiness(runtime)).results["durable:restate"].code == "ok"
        restate_server.kill()
        readiness = await check_readiness(runtime)
        assert not readiness.ready
        assert readiness.results["durable:restate"].code != "ok"
        waiting = await accept(runtime, "s-1", "s-2")  # they wait: nothing else places them
        await asyncio.to_thread(restate_server.restart_empty)
        await status_becomes(runtime, "completed", *waiting)


async def test_a_process_that_restate_cannot_call_is_not_ready(tmp_path, restate_server):
    write(tmp_path, manifest())
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        place(tmp_path, restate(restate_server, other.getsockname()[1]))
        async with runtime_of(tmp_path, ScriptedProvider("Hi")) as runtime:
            assert (await check_readiness(runtime)).ready
            runtime.resume_pending(shared=True)

            async def is_told() -> bool:
                return "durable:runs" in (await check_readiness(runtime)).results

            await until(is_told)
            assert not (await check_readiness(runtime)).ready


@pytest.mark.parametrize(
    ("durable", "fault"),
    [
        ({"backend": "restate"}, "spec.durable.url"),
        ({"backend": "restate", "url": "localhost:8080"}, "spec.durable.url"),
        ({"backend": "restate", "url": "http://h", "restate": {"listen": "9080"}}, "durable.restate.listen"),
        (
            {"backend": "restate", "url": "http://h", "restate": {"listen": "h:70000"}},
            "durable.restate.listen",
        ),
        ({"backend": "restate", "url": "http://h", "restate": {"identity_keys": ["k"]}}, "identity_keys"),
        ({"backend": "restart", "url": "http://h"}, "spec.durable.backend"),
        ({"backend": "in_process", "url": "http://h"}, "spec.durable.url"),
    ],
)
async def test_what_is_wrong_in_the_block_is_named_with_its_key(tmp_path, durable, fault):
    place(write(tmp_path, manifest()), durable)
    with pytest.raises(InvalidConfiguration) as refused:
        async with runtime_of(tmp_path, ScriptedProvider("Hi")):
            pass
    assert fault in str(refused.value)
