"""Calls of Python functions: who waits can always go on, and one that hangs takes nothing from the others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from astromesh.core.tools import AgentTools, ToolRegistry
from astromesh.graph.scope import Scope
from astromesh.tools.base import DeclaredTool, ToolContext, ToolPolicy
from astromesh.tools.executor import DetachedTasks, FunctionExecutor, ThreadPool
from astromesh.tools.functions import FunctionTool
from astromesh.types import ToolCall, ToolResult

#: long enough for a call that answers, on a busy machine
PATIENT = 30.0
#: set by the functions below that hang, once they do
BEGUN = threading.Event()


def calls_of(threads: int = 2, moment: float = 0.01, most_hanging: int = 16) -> FunctionExecutor:
    return FunctionExecutor(ThreadPool(threads, "t"), DetachedTasks(moment), most_hanging)


def bound(calls: FunctionExecutor, *functions: tuple[Callable[..., Any], float]) -> AgentTools:
    """Functions as the tools of an agent, each with its time limit in seconds."""
    tools = [FunctionTool(function, executor=calls) for function, _ in functions]
    policies = [ToolPolicy(timeout_seconds=seconds) for _, seconds in functions]
    declared = [DeclaredTool(tool.spec, tool, policy) for tool, policy in zip(tools, policies, strict=True)]
    return ToolRegistry().bind("bot", declared)


async def call(tools: AgentTools, name: str, scope: Scope | None = None) -> ToolResult:
    return await tools.execute(ToolCall("c1", name, "{}"), ToolContext(tool=name, run=scope))


@asynccontextmanager
async def stubborn() -> AsyncIterator[Callable[..., Any]]:
    """An async function that swallows every request to end, until the test is over."""
    enough = asyncio.Event()

    async def poll() -> str:
        BEGUN.set()
        while not enough.is_set():
            try:
                await enough.wait()
            except BaseException:  # noqa: BLE001 (this is its fault)
                continue
        return "late"

    yield poll
    enough.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def swift() -> str:
    return "here"


def swift_too() -> str:
    return "here"


# -- who waits goes on ---------------------------------------------------------------------------------------


async def test_a_coroutine_that_swallows_its_cancellation_is_left_when_its_time_is_up() -> None:
    """The model is told, and the run's record says that the tool goes on."""
    scope = Scope("r")
    async with stubborn() as poll:
        result = await call(bound(calls_of(), (poll, 0.01)), "poll", scope)
    assert (result.error, scope.uncancelled) == ("tool_timeout", ["poll"])


async def test_a_run_that_is_cancelled_does_not_wait_for_such_a_coroutine() -> None:
    async with stubborn() as poll:
        task = asyncio.create_task(call(bound(calls_of(), (poll, PATIENT)), "poll"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PATIENT)


async def test_a_second_cancellation_leaves_the_coroutine_no_moment() -> None:
    async with stubborn() as poll:
        begun = asyncio.Event()

        async def poll_on() -> str:
            begun.set()
            return await poll()

        task = asyncio.create_task(call(bound(calls_of(moment=3600.0), (poll_on, 3600.0)), "poll_on"))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PATIENT)


async def test_a_coroutine_that_ends_when_it_is_asked_tidies_up_first() -> None:
    """What needs a moment to close a connection is not left behind."""
    tidied, scope = [], Scope("r")

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            tidied.append(1)

    result = await call(bound(calls_of(moment=PATIENT), (tidy, 0.01)), "tidy", scope)
    assert (result.error, tidied, scope.uncancelled) == ("tool_timeout", [1], [])


@pytest.mark.parametrize("run", ["asyncio.run", "uvloop.run"])
def test_a_coroutine_that_swallows_its_cancellation_does_not_keep_the_process_from_ending(run: str) -> None:
    """Event loops wait for their tasks at the end, and coroutines that are thrown away are told."""
    program = (
        "import asyncio, uvloop\n"
        "from astromesh.tools.executor import DetachedTasks\n"
        "async def poll():\n"
        "    while True:\n"
        "        try:\n            await asyncio.sleep(.05)\n"
        "        except BaseException:\n            continue\n"
        "async def main():\n"
        "    try:\n"
        "        async with asyncio.timeout(.01):\n"
        "            await DetachedTasks(.01).run(poll, poll, lambda: print('left'))\n"
        "    except TimeoutError:\n        print('given up')\n"
        f"{run}(main())\nprint('over')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENT, check=True
    )
    assert (done.stdout, done.stderr) == ("left\ngiven up\nover\n", "")


# -- one that hangs takes nothing from the others ----------------------------------------------------------


async def test_threads_that_hang_are_replaced() -> None:
    """More calls hang than there are threads, and healthy tools are served."""
    calls, release = calls_of(threads=2), threading.Event()
    dig = digging(release)
    for _ in range(5):
        await given_up(calls, dig, is_async=False)
    assert (await call(bound(calls, (swift_too, PATIENT)), "swift_too")).content == "here"
    release.set()


async def given_up(calls: FunctionExecutor, function: Callable[..., Any], *, is_async: bool) -> None:
    """A call that has begun, and whose caller is cancelled then."""
    begun, left = BEGUN, []
    begun.clear()
    call = calls.call(function, {}, "f", lambda: left.append(1), is_async=is_async)
    task = asyncio.create_task(call)
    while not begun.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left == [1]


def digging(release: threading.Event) -> Callable[[], str]:
    def dig() -> str:
        BEGUN.set()
        release.wait()
        return "late"

    return dig


async def test_a_call_that_no_thread_was_free_for_has_not_happened_and_says_so() -> None:
    """It is not said to have begun; whose calls hold the threads is in the log."""
    release, begun = threading.Event(), []

    def dig() -> None:
        release.wait()

    def later() -> None:
        begun.append(1)

    calls = calls_of(threads=1)
    tools = bound(calls, (dig, PATIENT), (later, 0.01))
    digging = asyncio.create_task(call(tools, "dig"))
    await asyncio.sleep(0)
    result = await call(tools, "later")
    assert result.error == "tool_busy"
    assert "was not started" in result.content
    assert "Nothing has happened" in result.content
    release.set()
    assert (await digging).ok
    assert (await call(bound(calls, (swift_too, PATIENT)), "swift_too")).ok
    assert begun == []


@pytest.mark.parametrize("way", ["async", "threads"])
async def test_a_function_whose_calls_hang_is_refused_until_one_ends(way: str) -> None:
    """So that it cannot use up threads and memory; every other function is called as ever."""
    async with stubborn() as poll:
        release = threading.Event()
        dig = digging(release)
        slow, name = (poll, "poll") if way == "async" else (dig, "dig")
        calls = calls_of(threads=1, most_hanging=3)
        tools = bound(calls, (slow, PATIENT), (swift, PATIENT), (swift_too, PATIENT))
        for _ in range(3):
            await given_up(calls, slow, is_async=way == "async")
        refused = await call(tools, name)
        assert refused.error == "tool_busy"
        assert "3 earlier calls of it still hang" in refused.content
        assert [(await call(tools, each)).content for each in ("swift", "swift_too")] == ["here", "here"]
        release.set()


async def test_calls_that_wait_for_a_thread_are_refused_where_those_before_them_hang() -> None:
    """They would only take the threads that replace those."""
    calls, release = calls_of(threads=1, most_hanging=1), threading.Event()
    begun: list[int] = []

    def dig() -> None:
        begun.append(1)
        release.wait()

    tasks = [asyncio.create_task(calls.call(dig, {}, "dig", is_async=False)) for _ in range(5)]
    while not begun:
        await asyncio.sleep(0.001)
    tasks[0].cancel()
    said = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one).__name__ for one in said] == ["CancelledError"] + ["ToolBusy"] * 4
    assert len(begun) == 1
    release.set()


async def test_a_thread_that_comes_back_is_counted_no_more() -> None:
    threads, release, ended = ThreadPool(1, "t", max_abandoned=1), threading.Event(), threading.Event()
    hanging = threads.start(release.wait, (release, "wait"))
    await threads_begin(hanging)
    assert threads.abandon(hanging) == "running"
    assert (threads.abandoned_calls(release), threads.running_calls()) == (1, {"wait": 1})
    blocked = threads.start(ended.wait, (ended, "wait"))
    await threads_begin(blocked)
    assert threads.abandon(blocked) == "running"  # one too many to be replaced: it keeps its place
    assert threads.abandoned_calls(ended) == 0
    waiting = threads.start(swift_too)
    ended.set()
    assert await waiting.future == "here"
    release.set()
    while threads.abandoned_calls(release):
        await asyncio.sleep(0.001)


async def threads_begin(job: Any) -> None:
    while job.state == "waiting":
        await asyncio.sleep(0.001)


# -- whatever it raises is its result -----------------------------------------------------------------------


class Mute(Exception):
    """One that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, Mute])
@pytest.mark.parametrize("way", ["async", "threads"])
async def test_whatever_a_function_raises_is_told_to_the_model(raised: type[BaseException], way: str) -> None:
    """Neither the run nor the event loop ends by it."""

    async def fail() -> None:
        raise raised

    def fail_too() -> None:
        raise raised

    tools = bound(calls_of(), (fail, PATIENT), (fail_too, PATIENT))
    result = await call(tools, "fail" if way == "async" else "fail_too")
    assert (result.ok, result.error) == (False, "tool_failed")
    assert raised.__name__ in result.content
