"""Tools that ask a person by `interrupt`: of agents, of graphs, and of agents that are tools."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from astromesh import Agent, tool
from astromesh.errors import AstromeshError, InvalidInput
from astromesh.graph import PromptGraph, PromptGraphEngine, PromptNode, interrupt, node
from astromesh.testing import ManualClock, ScriptedProvider
from astromesh.types import ToolCall

ORDER = ToolCall("1", "order", '{"item": "shirt"}')


class Shop:
    """A tool that asks twice, and notes each time that it begins and that it ends."""

    def __init__(self, effect: Any = "read") -> None:
        self.begun: list[str] = []
        self.done: list[str] = []

        @tool(effect=effect)
        async def order(item: str) -> str:
            """Orders an item.

            Args:
                item: its name
            """
            self.begun.append(item)
            size = await interrupt({"question": "Which size?", "item": item})
            count = await interrupt("How many?")
            self.done.append(item)
            return f"{count} {item} of size {size}"

        self.order = order


@pytest.mark.parametrize("effect", ["read", "write", "external"])
async def test_a_tool_of_an_agent_waits_and_begins_again_with_each_answer(
    tmp_path: Path, effect: Any
) -> None:
    """Each time in another program. Nobody has to say whether a call with an effect may be repeated."""
    shop, model = Shop(effect), ScriptedProvider(ORDER, "Ordered.")

    def agent() -> Agent:
        return Agent(model, tools=[shop.order], store=f"sqlite:{tmp_path}/runs.db")

    async with agent() as first:
        waiting = await first.run("A shirt.")
    question = waiting.waiting_for
    assert question is not None
    assert (question.kind, question.name, question.text) == ("interrupt", "order", "Which size?")
    assert question.arguments == {"question": "Which size?", "item": "shirt"}
    async with agent() as second:
        waiting = await second.resume(waiting.run_id, "answer", answer="L")
    async with agent() as third:
        assert (await third.resume(waiting.run_id, "answer", answer=3)).output == "Ordered."
    assert (len(shop.begun), len(shop.done), len(model.requests)) == (3, 1, 2)
    assert model.requests[1].messages[-1].content == "3 shirt of size L"


async def test_tools_of_a_turn_wait_together() -> None:
    shop = Shop()
    model = ScriptedProvider([ORDER, ToolCall("2", "order", '{"item": "hat"}')], "Ordered.")
    sell = PromptNode("sell", tools=[shop.order])
    engine = PromptGraphEngine(PromptGraph(nodes=[sell]), model, store="memory")
    waiting = await engine.ainvoke("A shirt and a hat.")
    asked = [(one.node, one.value["item"]) for one in waiting.interrupts]
    assert asked == [("order", "shirt"), ("order", "hat")]
    for answers in (["L", "S"], [1, 2]):
        given = {one.id: answer for one, answer in zip(waiting.interrupts, answers, strict=True)}
        waiting = await engine.resume(waiting.run_id, given)
    assert waiting.ok
    assert sorted(shop.done) == ["hat", "shirt"]
    assert [m.content for m in model.requests[1].messages[-2:]] == ["1 shirt of size L", "2 hat of size S"]


async def test_a_tool_that_a_function_calls_waits(tmp_path: Path) -> None:
    """The function runs again from its beginning; its finished calls come from the journal."""
    shop, visits = Shop("write"), list[str]()

    @node("buy", tools=[shop.order])
    async def buy(state: Any, config: Any) -> str:
        visits.append("buy")
        [result] = await config.call_tools([ORDER], state)
        return str(result.content)

    engine = PromptGraphEngine(PromptGraph(nodes=[buy]), store=f"sqlite:{tmp_path}/runs.db")
    waiting = await engine.ainvoke("A shirt.")
    waiting = await engine.resume(waiting.run_id, {waiting.interrupts[0].id: "S"})
    result = await engine.resume(waiting.run_id, {waiting.interrupts[0].id: 1})
    assert result.output == "1 shirt of size S"
    assert (len(visits), shop.done) == (3, ["shirt"])


async def test_a_tool_of_an_agent_that_is_a_tool_waits(tmp_path: Path) -> None:
    shop = Shop()
    seller = Agent(ScriptedProvider(ORDER, "Sold."), name="seller", tools=[shop.order])
    boss = Agent(
        ScriptedProvider(ToolCall("1", "seller", '{"query": "A shirt."}'), "Done."),
        tools=[seller.as_tool()],
        store=f"sqlite:{tmp_path}/runs.db",
    )
    waiting = await boss.run("A shirt.")
    for answer in ("L", 3):
        assert waiting.waiting_for is not None
        assert (waiting.waiting_for.agent, waiting.waiting_for.name) == ("seller", "order")
        waiting = await boss.resume(waiting.run_id, "answer", answer=answer)
    assert (waiting.output, shop.done) == ("Done.", ["shirt"])


async def test_a_tool_of_a_run_that_cannot_wait_fails_the_run() -> None:
    """At once, with what to do; the model is not told of it."""
    model = ScriptedProvider(ORDER, "not asked")
    with pytest.raises(AstromeshError, match="the agent a `store`"):
        await Agent(model, tools=[Shop().order]).run("A shirt.")
    assert len(model.requests) == 1
    result = await PromptGraphEngine(
        PromptGraph(nodes=[PromptNode("sell", tools=[Shop().order])]), ScriptedProvider(ORDER)
    ).ainvoke("A shirt.")
    assert "give the engine or the agent a `store`" in result.report.error


async def test_an_answer_that_comes_too_late_is_none() -> None:
    clock = ManualClock()

    @node("ask")
    async def ask(state: Any) -> str:
        try:
            return str(await interrupt("Now?", seconds=60))
        except TimeoutError as error:
            return str(error)

    engine = PromptGraphEngine(PromptGraph(nodes=[ask]), clock=clock, store="memory")
    for seconds, told in ((59, "yes"), (61, "'ask' got no answer within 60 s.")):
        waiting = await engine.ainvoke("q")
        clock.advance(seconds)
        assert (await engine.resume(waiting.run_id, {waiting.interrupts[0].id: "yes"})).output == told


@pytest.mark.parametrize("answer", [float("nan"), [float("inf")], object()])
async def test_an_answer_is_json(answer: Any) -> None:
    @node("ask")
    async def ask(state: Any) -> str:
        return str(await interrupt("Now?"))

    engine = PromptGraphEngine(PromptGraph(nodes=[ask]), store="memory")
    waiting = await engine.ainvoke("q")
    with pytest.raises(InvalidInput, match="The answer is not JSON"):
        await engine.resume(waiting.run_id, {waiting.interrupts[0].id: answer})
    assert (await engine.resume(waiting.run_id, {waiting.interrupts[0].id: 1})).output == "1"


@pytest.mark.parametrize(
    ("value", "seconds", "told"),
    [
        (float("nan"), 1, "is not JSON"),
        (object(), 1, "is not JSON"),
        ("q", float("nan"), "seconds"),
        ("q", "x", "seconds"),
    ],
)
async def test_what_is_asked_is_json_and_has_a_time(value: Any, seconds: Any, told: str) -> None:
    @node("ask")
    async def ask(state: Any) -> str:
        return str(await interrupt(value, seconds=seconds))

    result = await PromptGraphEngine(PromptGraph(nodes=[ask]), store="memory").ainvoke("q")
    assert told in result.report.error


async def test_a_node_that_catches_everything_waits_too() -> None:
    @node("ask")
    async def ask(state: Any) -> str:
        try:
            return str(await interrupt("Now?"))
        except BaseException:  # noqa: BLE001 (what users write)
            return "caught"

    engine = PromptGraphEngine(PromptGraph(nodes=[ask]), store="memory")
    async with asyncio.timeout(10):
        waiting = await engine.ainvoke("q")
        assert waiting.report.stop_reason == "waiting"
        assert (await engine.resume(waiting.run_id, {waiting.interrupts[0].id: "yes"})).output == "yes"
