"""`engine.astream`: values, updates, messages and custom parts of one run."""

from __future__ import annotations

import asyncio
import gc
import operator
import weakref
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from astromesh.errors import InvalidInput
from astromesh.graph import (
    FunctionNode,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    StreamPart,
    SubgraphNode,
    emit,
    node,
)
from astromesh.testing import ScriptedProvider


class Count(BaseModel):
    n: int = 0
    log: Annotated[list[str], operator.add] = []


@node("up")
async def up(state: Count) -> dict[str, Any]:
    emit("going up")
    return {"n": state.n + 1}


@node("note")
async def note(state: Count) -> dict[str, Any]:
    return {"log": ["noted"]}


async def parts(engine: PromptGraphEngine[Any], mode: Any, **arguments: Any) -> list[StreamPart]:
    return [part async for part in engine.astream("q", mode, **arguments)]


async def test_each_mode_alone_and_all_together() -> None:
    graph = PromptGraph("g", nodes=[up, note, PromptNode("say")], state=Count).sequential("up", "note", "say")
    engine = PromptGraphEngine(graph, ScriptedProvider("a b", repeat=True))
    assert await parts(engine, "updates") == [
        ("updates", "up", {"n": 1}), ("updates", "note", {"log": ["noted"]}), ("updates", "say", {}),
    ]  # fmt: skip
    assert [part.data for part in await parts(engine, "values", state={"n": 4})] == [
        Count(n=5), Count(n=5, log=["noted"]), Count(n=5, log=["noted"]),
    ]  # fmt: skip
    assert await parts(engine, ["messages"]) == [("messages", "say", "a "), ("messages", "say", "b")]
    assert await parts(engine, ("custom",)) == [("custom", "up", "going up")]
    modes = [mode for mode, _, _ in await parts(engine, ["values", "updates", "messages", "custom"])]
    assert modes == ["custom", *["updates", "values"] * 2, "messages", "messages", "updates", "values"]


async def test_untyped_graphs_branches_and_nested_nodes() -> None:
    """Values are the context; where branches meet, the update is of all of them."""

    def writes(name: str) -> FunctionNode:
        def write(state: Any) -> str:
            state.context[f"by_{name}"] = 1
            return name

        return FunctionNode(name, write, inline=True)

    inner = PromptGraph("inner", nodes=[writes("deep")])
    graph = PromptGraph("g", nodes=[writes("s"), writes("a"), writes("b"), SubgraphNode("sub", inner)])
    graph.fork("s", "a", "b").always("a", "sub").always("b", "sub")
    found = await parts(PromptGraphEngine(graph), ["updates", "values"])
    updates = {part.node: part.data for part in found if part.mode == "updates"}
    assert updates["a"] == {"by_a": 1, "a_output": "a"}
    assert updates["s"] == {"by_a": 1, "a_output": "a", "by_b": 1, "b_output": "b"}
    assert updates["sub/deep"] == {"by_deep": 1, "deep_output": "deep"}
    assert found[-1].data.keys() == {
        f"{key}" for name in ("s", "a", "b", "deep") for key in (f"by_{name}", f"{name}_output")
    } | {"sub_output"}


@pytest.mark.parametrize("inline", [True, False])
async def test_plain_functions_emit_any_object_in_order(inline: bool) -> None:
    """In the event loop, and from a thread; without a listener nothing happens."""
    thing = object()

    @node("work", inline=inline)
    def work(state: Any) -> int:
        for value in (1, thing):
            emit(value)
        return 3

    engine = PromptGraphEngine(PromptGraph(nodes=[work]))
    assert [part.data for part in await parts(engine, ["custom", "updates"])] == [
        1,
        thing,
        {"work_output": 3},
    ]
    assert (await engine.ainvoke("q")).output == 3
    emit("outside")


async def test_a_stream_has_the_result_and_leaving_it_cancels_the_run() -> None:
    ended: list[str] = []

    async def slow(state: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    engine = PromptGraphEngine(PromptGraph("g", nodes=[up, FunctionNode("slow", slow)], state=Count))
    engine.graph.always("up", "slow")
    async with engine.astream("q") as stream:
        with pytest.raises(InvalidInput, match="has not ended"):
            _ = stream.result
        async for _ in stream:
            await asyncio.sleep(0.01)
            break
    assert ended == ["cancelled"]
    stream = PromptGraphEngine(PromptGraph("g", nodes=[up], state=Count)).astream("q", "values")
    assert [part.data.n async for part in stream] == [1]
    assert stream.result.state.n == 1


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_leaving_a_loop_cancels_the_run_and_prints_nothing(
    seconds: float, capfd: pytest.CaptureFixture[str]
) -> None:
    ended: list[str] = []

    async def slow(state: Any) -> None:
        try:
            emit(1)
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    engine = PromptGraphEngine(PromptGraph("g", nodes=[FunctionNode("slow", slow)]))

    async def read() -> None:
        async for _ in engine.astream("q", "custom"):
            break
        await asyncio.sleep(seconds)
        assert ended == ["cancelled"] or not seconds

    asyncio.run(read())
    assert ended == ["cancelled"]
    assert capfd.readouterr() == ("", "")


async def test_modes_are_checked_and_errors_arrive() -> None:
    engine = PromptGraphEngine(PromptGraph("g", nodes=[up], state=Count))
    with pytest.raises(InvalidInput, match="no stream mode 'update'"):
        engine.astream("q", "update")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="The state is not valid"):
        await parts(engine, "updates", state={"m": 1})


async def test_stored_runs_stream_too() -> None:
    engine = PromptGraphEngine(PromptGraph("g", nodes=[up], state=Count), store="memory")
    stream = engine.astream("q", ["updates", "custom"], run_id="r")
    assert [part async for part in stream] == [("custom", "up", "going up"), ("updates", "up", {"n": 1})]
    assert stream.result.run_id == "r"
    assert [e.type async for e in engine.astream_events("q")][-1] == "run.completed"


async def test_a_timer_that_begins_in_a_node_does_not_keep_the_run() -> None:
    """Nor does a connection of a pool: both have the context of the node for as long as they live."""

    class Large:
        pass

    kept: list[weakref.ref[Large]] = []
    timers: list[asyncio.TimerHandle] = []

    @node("work")
    async def work(state: Any) -> dict[str, Any]:
        large = Large()
        kept.append(weakref.ref(large))
        timers.append(asyncio.get_running_loop().call_later(3600, emit, "late"))
        return {"large": large}

    graph = PromptGraph("g", nodes=[work]).set_entry("work")
    assert await parts(PromptGraphEngine(graph, ScriptedProvider()), "updates")
    gc.collect()
    assert [ref() for ref in kept] == [None]
    timers[0].cancel()
