"""A program of a user: what type checkers know of it. `tests/typing/test_types.py` checks it with both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

from pydantic import BaseModel

from astromesh import (
    Agent,
    AgentRuntime,
    AstromeshError,
    CallerContext,
    Event,
    ModelRetry,
    Question,
    Result,
    ToolContext,
    Usage,
    build_agent,
    get_current_caller,
    tool,
)
from astromesh.events import ModelDelta, ToolFinished
from astromesh.graph import Checkpoint, GraphResult, Interrupt, PromptGraph, PromptGraphEngine, StreamPart
from astromesh.types import CompletionRequest, Message


class City(BaseModel):
    name: str


@dataclass
class Place:
    name: str


class Spot(TypedDict):
    name: str


@dataclass
class Deps:
    prices: dict[str, float]


@tool
async def price(ctx: ToolContext[Deps], item: str) -> float:
    """The price of an item."""
    assert_type(ctx.deps, Deps)
    if item not in ctx.deps.prices:
        raise ModelRetry(f"There is no {item}.")
    return ctx.deps.prices[item]


def from_files() -> None:
    assert_type(Agent.from_yaml("city.agent.yaml", output_type=City).run_sync("Where?").output, City)
    assert_type(Agent.from_yaml("poet.agent.yaml").run_sync("Where?").output, Any)


@tool(name="sum", timeout_seconds=5)
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


assert_type(add(1, 2), int)


async def echo(request: CompletionRequest) -> str:
    return request.messages[-1].content


def prompt(ctx: ToolContext) -> str:
    return "Be kind." if ctx.caller else ""


plain = Agent(echo, system=prompt, tools=[add], memory="memory", budgets={"cost_usd": 0.1}, timeout_seconds=5)
typed = Agent("openai:gpt-4o-mini", output_type=City, guardrails=["pii_detection"])
placed = Agent("openai:gpt-4o-mini", output_type=Place, deps_type=Deps, tools=[price])
spotted = Agent("openai:gpt-4o-mini", output_type=Spot)
schema = Agent("openai:gpt-4o-mini", output_type={"type": "object"})
named = build_agent(echo, pattern="react")


async def main() -> None:
    text = await plain.run("Hi", session_id="s", on_error="return", caller=CallerContext(user_id="ada"))
    assert_type(text.output, str)
    assert_type(text.usage, Usage)
    city = await typed.run("Where?", history=text.messages)
    assert_type(city.output, City)
    assert_type((await placed.run("Where?", deps=Deps({}))).output, Place)
    assert_type((await spotted.run("Where?")).output, Spot)
    assert_type((await schema.run("Where?")).output, Any)
    assert_type((await named.run("Where?")).output, str)
    chat = typed.session("ada")
    assert_type((await chat.run("Again?")).output, City)
    async with typed.stream("Where?") as stream:
        async for event in stream:
            assert_type(event, Event)
            match event:
                case ModelDelta(content=text_piece):
                    assert_type(text_piece, str)
                case ToolFinished(name=name, ok=ok):
                    assert_type(name, str)
                    assert_type(ok, bool)
    assert_type(stream.result.output, City)
    async for piece in plain.stream("Hi").text():
        assert_type(piece, str)
    try:
        city.raise_for_error()
    except AstromeshError as error:
        assert_type(error.run_id, str)
    async with AgentRuntime(agents=[plain, typed]) as runtime:
        await runtime.run("agent", "Hi", "session")
    waiting = await placed.run("Where?", deps=Deps({}))
    assert_type(waiting.waiting_for, Question | None)
    assert_type((await placed.resume(waiting.run_id, "deny", deps=Deps({}))).output, Place)
    caller = get_current_caller()
    assert_type(caller, CallerContext | None)


async def graphs() -> GraphResult[City]:
    typed_graph = PromptGraph[City]("cities")
    assert_type((await PromptGraphEngine(typed_graph).ainvoke("Where?", state=City(name="Rome"))).state, City)
    assert_type((await PromptGraphEngine(PromptGraph[Spot]("g")).ainvoke("Where?", state={})).state, Spot)
    assert_type((await PromptGraphEngine(PromptGraph("g", state=Place)).ainvoke("Where?")).state, Place)
    assert_type((await PromptGraphEngine(PromptGraph("g")).ainvoke("Where?")).state, Any)
    engine = PromptGraphEngine(typed_graph, store="memory")
    assert_type((await engine.resume("run", {"question": 1})).state, City)
    assert_type((await engine.state_at("run", 1)).state, City)
    assert_type((await engine.fork("run", 1, {"name": "Rome"})).state, City)
    assert_type(await engine.history("run"), list[Checkpoint])
    assert_type(await engine.interrupts("run"), list[Interrupt])
    async with engine.astream("Where?", ["values", "custom"]) as stream:
        async for part in stream:
            assert_type(part, StreamPart)
    assert_type(stream.result.state, City)
    return await PromptGraphEngine(typed_graph).ainvoke("Where?")


def sync() -> Result[City]:
    with typed.override(model=echo):
        return typed.run_sync("Where?")


def last(result: Result[City]) -> Message:
    reveal_type(result.output)  # noqa: F821 (type checkers know it)
    return result.messages[-1]
