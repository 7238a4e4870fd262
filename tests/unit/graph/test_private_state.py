"""Plain functions run in tool threads, on a private copy of the state."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from astromesh.graph import (
    FanOutNode,
    FunctionNode,
    NodeFlag,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    node,
)
from astromesh.types import CallerContext, Message, get_current_caller

#: Seconds after which a test fails, instead of waiting forever.
PATIENCE = 20


async def run(*nodes: Any, context: Any = None, **arguments: Any):
    graph = PromptGraph("g", nodes=nodes).sequential(*(n.name for n in nodes))
    return await PromptGraphEngine(graph).ainvoke("q", context=context, **arguments)


def changes(change: Any, **keywords: Any) -> FunctionNode:
    """A node whose function changes the state."""

    def body(state):
        change(state)

    return FunctionNode("change", body, **keywords)


async def test_the_event_loop_goes_on_while_a_function_blocks() -> None:
    """The function waits for something that only the loop does. Marked inline it runs in the loop itself."""
    gone_on = threading.Event()

    @node("wait")
    def wait(state):
        return gone_on.wait(PATIENCE), threading.current_thread() is threading.main_thread()

    work = asyncio.create_task(run(wait))
    await asyncio.sleep(0)
    gone_on.set()
    assert (await work).output == (True, False)
    inline = FunctionNode("i", lambda s: threading.current_thread() is threading.main_thread(), inline=True)
    assert (await run(inline)).output is True


async def test_a_timeout_holds_and_the_writes_after_it_are_dropped() -> None:
    """The thread goes on behind the timeout: what it writes is seen by nobody, at no depth."""
    late, written = threading.Event(), threading.Event()

    @node("slow", timeout=0.05)
    def slow(state):
        late.wait(PATIENCE)
        state.context["new"] = 1
        state.context["deep"]["list"].append(1)
        state.messages.append(Message("assistant", "late"))
        state.observations[0]["seen"] = True
        state.stop("budget", "late")
        written.set()

    @node("first")
    async def first(state):
        state.observations.append({})

    @node("after")
    async def after(state):
        late.set()
        while not written.is_set():
            await asyncio.sleep(0)
        return dict(state.context), [m.content for m in state.messages], list(state.observations)

    result = await run(first, slow, after, context={"deep": {"list": []}})
    context, messages, observations = result.output
    assert (context, messages, observations) == ({"deep": {"list": []}}, ["q"], [{}])
    assert result.ok
    assert "'slow' did not end within 0.05 s" in result.report.errors[0].message


async def test_children_that_are_plain_functions_overlap() -> None:
    """Each waits in its thread until all are there."""
    both = threading.Barrier(3, timeout=PATIENCE)

    def meet(state):
        both.wait()
        return "met"

    children = [FunctionNode(name, meet) for name in "abc"]
    assert (await run(ParallelNode("p", children))).output == {"a": "met", "b": "met", "c": "met"}
    assert (await run(FanOutNode("f", FunctionNode("w", meet), [1, 2, 3]))).output == ["met"] * 3


async def test_writes_come_back_as_if_the_function_had_run_in_the_loop() -> None:
    """New, changed and removed values, changes inside values, lists that grow, shrink and are replaced."""
    shared: dict[str, Any] = {"n": 1}
    start = {"gone": 1, "deep": {"list": [1], "set": {1}}, "one": shared, "same": shared, "text": "a"}

    def change(state):
        del state.context["gone"]
        state.context.update(new=[1], text="b")
        state.context["deep"]["list"].append(2)
        state.context["deep"]["set"].add(2)
        state.context["one"]["n"] = 2
        state.messages.append(Message("assistant", "hi"))
        state.observations.extend(["x", "y"])
        state.plan = ["p"]
        state.reflections.append({"r": 1})
        state.observations.pop(0)

    seen: list[Any] = []
    for inline in (False, True):
        context = {**start, "deep": {"list": [1], "set": {1}}, "one": (one := {"n": 1}), "same": one}
        look = FunctionNode("look", lambda s: (s.observations, s.plan, s.reflections))
        result = await run(changes(change, inline=inline), look, context=context)
        result.context.pop("look_output")
        seen.append((result.context, [m.content for m in result.messages], result.output))
    assert seen[0] == seen[1]
    assert seen[0][0] == {
        "deep": {"list": [1, 2], "set": {1, 2}}, "one": {"n": 2}, "same": {"n": 2}, "text": "b", "new": [1],
    }  # fmt: skip


async def test_what_has_not_changed_stays_the_same_object() -> None:
    """Containers are copied for the thread, other values are not. Both are the same objects afterwards."""

    class Thing:
        def __deepcopy__(self, memo):
            raise TypeError("no copies")

        def __eq__(self, other):
            raise TypeError("no comparisons")

        __hash__ = None  # type: ignore[assignment]

    thing, deep = Thing(), {"list": [1]}
    endless: list[Any] = [thing]
    endless.append(endless)
    start = {"thing": thing, "deep": deep, "endless": endless, "things": [thing]}
    seen: list[Any] = []

    def look(state):
        context = state.context
        seen.extend(
            [context["thing"] is thing, context["deep"] is deep, context["endless"][1] is context["endless"]]
        )
        context["more"] = 1

    result = await run(changes(look), context=start)
    assert seen == [True, False, True]
    assert all(result.context[key] is start[key] for key in ("thing", "deep", "things"))


async def test_a_function_that_fails_or_ends_the_run_has_written() -> None:
    """As in the loop: an error edge may read what the function has found."""

    def fail(state):
        state.context["found"] = 1
        raise ValueError("broken")

    result = await run(changes(fail))
    assert (result.context["found"], result.error) == (1, "ValueError: broken")
    stopped = await run(changes(lambda s: s.stop("budget", "enough")), FunctionNode("after", str))
    assert (stopped.report.stop_reason, stopped.report.nodes_visited) == ("budget", ["change"])
    ended = await run(changes(lambda s: setattr(s, "current_node", "__end__")), FunctionNode("after", str))
    assert (ended.report.stop_reason, ended.report.nodes_visited) == ("completed", ["change"])


async def test_what_breaks_the_state_ends_the_run_as_it_does_in_the_loop() -> None:
    """The engine repairs it and says by which node it became invalid."""
    for slot in ("messages", "context", "node_history"):
        result = await run(changes(lambda s, slot=slot: setattr(s, slot, None)))
        assert result.report.stop_reason == "critical_error"
        assert f"{slot} must be" in result.error


async def test_readonly_holds_in_a_thread() -> None:
    """Its own writes to context, plan and observations raise."""
    for change in (
        lambda s: s.context.update(k=1),
        lambda s: s.plan.append(1),
        lambda s: setattr(s, "observations", []),
    ):
        result = await run(changes(change, flags={NodeFlag.READONLY}))
        assert "READONLY" in result.error
    assert (
        await run(FunctionNode("r", lambda s: s.context["k"], flags={NodeFlag.READONLY}), context={"k": 1})
    ).ok


async def test_a_function_may_return_an_awaitable_that_runs_children() -> None:
    """It is awaited in the loop. What the children write comes back with the rest."""
    leaf = FunctionNode(
        "leaf", lambda s: s.context.setdefault("deep", []).append(1) or "leaf", output_key="k"
    )

    def outer(state, config):
        state.context["deep"] = [0]
        return config.run(leaf, state)

    result = await run(FunctionNode("outer", outer))
    assert (result.output, result.context["k"], result.context["deep"]) == ("leaf", "leaf", [0, 1])
    assert result.report.nodes_visited == ["outer", "outer/leaf"]


async def test_the_caller_is_known_in_the_thread() -> None:
    """Context variables go along."""
    who = FunctionNode("who", lambda s: get_current_caller().user_id)  # type: ignore[union-attr]
    assert (await run(who, caller=CallerContext("ada"))).output == "ada"


async def test_a_cancelled_run_does_not_wait_for_its_thread() -> None:
    """The thread is left behind and ends when its function does."""
    begun, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @node("hangs")
    def hangs(state):
        loop.call_soon_threadsafe(begun.set)
        go.wait(PATIENCE)

    work = asyncio.create_task(run(hangs))
    await begun.wait()
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    assert work.cancelled()
    go.set()


async def test_a_function_that_always_hangs_is_refused() -> None:
    """So that it does not take the threads of all others."""
    go = threading.Event()

    @node("hangs", timeout=0.01)
    def hangs(state):
        go.wait(PATIENCE)

    errors = [""]
    while (
        "was not started" not in errors[-1] and len(errors) < 100
    ):  # a busy machine begins fewer calls in time
        errors.append((await run(hangs)).error)
    go.set()
    assert len(errors) > 17
    assert "did not end within" in errors[-2]
    assert "was not started: 16 earlier calls of it still hang" in errors[-1]


def test_inline_is_checked() -> None:
    """True or false, and of no use for an async function. It is written to YAML."""

    async def later(state): ...

    with pytest.raises(TypeError, match="inline must be true or false"):
        FunctionNode("f", str, inline="yes")  # type: ignore[arg-type]
    assert PromptGraph(nodes=[FunctionNode("f", later, inline=True)]).validate() == [
        "Node 'f': inline: not used by an async function, which runs in the event loop."
    ]
    data = PromptGraph(nodes=[FunctionNode("f", str, inline=True)]).to_config()
    assert data["nodes"][0]["inline"] is True
    assert PromptGraph.from_config(data).get_node("f").inline is True  # type: ignore[attr-defined]
