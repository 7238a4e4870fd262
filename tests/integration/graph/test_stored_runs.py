"""Runs that an engine keeps in a store: interrupts, history, states, forks, and dead processes."""

from __future__ import annotations

import asyncio
import math
import operator
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, field_validator

from astromesh.errors import (
    ApprovalNotFound,
    ConfigError,
    Conflict,
    InvalidInput,
    NondeterministicGraph,
    NotDurable,
    RunNotFound,
)
from astromesh.graph import (
    BaseNode,
    Command,
    FanOutNode,
    FunctionNode,
    HumanNode,
    NodeResult,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    Send,
    SubgraphNode,
    ToolNode,
    emit,
    interrupt,
    node,
)
from astromesh.testing import ManualClock, ScriptedProvider
from astromesh.tools.functions import tool
from astromesh.types import CallerContext, ToolCall, get_current_caller


class Item(BaseModel):
    name: str


class Order(BaseModel):
    items: Annotated[list[Item], operator.add] = []
    log: Annotated[list[str], operator.add] = []
    total: int = 0


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory" if request.param == "memory" else f"sqlite:{tmp_path / 'runs.db'}"


class Counted:
    """Functions that count their calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def node(self, name: str, value: Any = None, **keywords: Any) -> FunctionNode:
        async def work(state: Any) -> Any:
            self.calls.append(name)
            made = value(state) if callable(value) else value
            return await made if hasattr(made, "__await__") else made

        return FunctionNode(name, work, **keywords)


def chain(*nodes: Any, state: Any = None) -> PromptGraph[Any]:
    return PromptGraph("made", nodes=nodes, state=state).sequential(*(one.name for one in nodes))


async def ask_twice(state: Any) -> Any:
    size = await interrupt({"question": "Which size?", "sizes": ["S", "L"]})
    count = await interrupt("How many?")
    return {"log": [f"{count} of {size}"]}


async def test_a_node_waits_for_answers_and_runs_again_from_its_beginning(store: str) -> None:
    """What it has called comes from the journal; answers return in order; typed values keep their types."""
    counted = Counted()
    model = ScriptedProvider("A nice text.")
    write = PromptNode("write", instructions="Write.")
    graph = chain(counted.node("first", {"items": [{"name": "tea"}]}), counted.node("ask", ask_twice),
                  counted.node("last", lambda s: {"log": [s.items[0].name]}), write, state=Order)  # fmt: skip
    engine = PromptGraphEngine(graph, model, store=store)
    result = await engine.ainvoke("Order", state={"log": ["begun"]}, run_id="order-1")
    assert (result.report.stop_reason, result.ok, result.run_id) == ("waiting", False, "order-1")
    (one,) = result.interrupts
    assert (one.kind, one.node, one.question) == ("interrupt", "ask", "Which size?")
    assert one.value == {"question": "Which size?", "sizes": ["S", "L"]}
    assert await engine.interrupts("order-1") == [one]
    result = await engine.resume("order-1", {one.id: "L"})
    (two,) = result.interrupts
    assert two.value == two.question == "How many?"
    result = await engine.resume("order-1", {two.id: 3})
    assert result.ok, result.error
    assert counted.calls == ["first", "ask", "ask", "ask", "last"]
    assert result.state == Order(items=[Item(name="tea")], log=["begun", "3 of L", "tea"])
    assert result.output == "A nice text."
    assert await engine.interrupts("order-1") == []
    with pytest.raises(Conflict, match="has ended: it is completed"):
        await engine.resume("order-1")


async def test_calls_before_an_interrupt_are_not_repeated(store: str) -> None:
    """A model call and a tool call of the node that asks: both come from the journal."""
    bought: list[str] = []

    def buy(item: str) -> str:
        """Buys an item.

        Args:
            item: its name
        """
        bought.append(item)
        return "bought"

    shop = PromptNode("shop", tools=[buy])

    async def shop_and_ask(state: Any, config: Any) -> Any:
        text = (await config.run(shop, state)).output
        return f"{text} {await interrupt('Wrap it?')}"

    model = ScriptedProvider(ToolCall("1", "buy", '{"item": "tea"}'), "I have tea.")
    engine = PromptGraphEngine(chain(FunctionNode("ask", shop_and_ask)), model, store=store)
    result = await engine.ainvoke("Tea")
    result = await engine.resume(result.run_id, {result.interrupts[0].id: "yes"})
    assert (result.output, bought, len(model.requests)) == ("I have tea. yes", ["tea"], 2)


async def test_several_interrupts_are_open_at_once_and_answered_in_any_order(store: str) -> None:
    """Of branches that run at once, and of a human node; an answered branch goes on while the others wait."""
    counted = Counted()

    def asking(name: str) -> FunctionNode:
        async def ask(state: Any) -> Any:
            return {"log": [f"{name}: {await interrupt(name)}"]}

        return counted.node(name, ask)

    graph = PromptGraph("made", state=Order, nodes=[counted.node("s"), asking("a"), asking("b")])
    graph.add_node(HumanNode("h")).add_node(counted.node("end"))
    graph.fork("s", "a", "b", "h").always("a", "end").always("b", "end").always("h", "end")
    engine = PromptGraphEngine(graph, store=store)
    result = await engine.ainvoke("q")
    by_node = {one.node: one for one in result.interrupts}
    assert {name: one.kind for name, one in by_node.items()} == {
        "a": "interrupt", "b": "interrupt", "h": "human",
    }  # fmt: skip
    result = await engine.resume(result.run_id, {by_node["b"].id: 2})
    assert {one.node for one in result.interrupts} == {"a", "h"}
    result = await engine.resume(result.run_id, {by_node["a"].id: 1, by_node["h"].id: True})
    assert result.ok, result.error
    assert result.state.log == ["a: 1", "b: 2"]
    assert counted.calls.count("s") == counted.calls.count("end") == 1


async def test_an_unanswered_interrupt_expires(store: str) -> None:
    clock = ManualClock(1_700_000_000.0)

    async def ask(state: Any) -> Any:
        try:
            return await interrupt("Now?", seconds=60)
        except TimeoutError:
            return "too late"

    engine = PromptGraphEngine(chain(FunctionNode("ask", ask)), store=store, clock=clock)
    result = await engine.ainvoke("q")
    assert result.interrupts[0].expires_at == 1_700_000_060.0
    clock.advance(61)
    assert (await engine.resume(result.run_id)).output == "too late"


async def test_what_does_not_fit_is_refused_and_the_run_still_waits(store: str) -> None:
    engine = PromptGraphEngine(chain(FunctionNode("ask", ask_twice), state=Order), store=store)
    result = await engine.ainvoke("q", run_id="r")
    with pytest.raises(ApprovalNotFound, match="has no question 'nope'"):
        await engine.resume("r", {"nope": 1})
    with pytest.raises(RunNotFound):
        await engine.resume("other")
    with pytest.raises(Conflict, match="already a run 'r'"):
        await engine.ainvoke("q", run_id="r")
    for step in (99, None):
        with pytest.raises(InvalidInput, match=f"no step {step}"):
            await engine.state_at("r", step)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="must be a mapping, not of type Order"):
        await engine.fork("r", 0, Order())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="only JSON values"):
        await engine.ainvoke("half a pair: \ud800")
    assert await engine.interrupts("r") == result.interrupts
    assert await engine.delete("r")
    assert not await engine.delete("r")
    with pytest.raises(RunNotFound):
        await engine.history("r")


async def test_one_approval_that_arrives_several_times_counts_once(store: str) -> None:
    """The first answer continues the run; the others find no open question, and disturb nobody."""
    counted = Counted()

    async def ask(state: Any) -> Any:
        return await interrupt("Charge?")

    async def charge(state: Any) -> str:
        await asyncio.sleep(0.02)
        return "charged"

    def engine() -> PromptGraphEngine:
        return PromptGraphEngine(chain(FunctionNode("ask", ask), counted.node("charge", charge)), store=store)

    one = engine()
    engines = [one, one] if store == "memory" else [one, engine()]
    result = await one.ainvoke("q", run_id="r")
    answers = {result.interrupts[0].id: True}
    ended = await asyncio.gather(
        *(other.resume("r", answers) for other in [*engines, *engines]), return_exceptions=True
    )
    assert counted.calls == ["charge"]
    assert [type(one) for one in ended].count(ApprovalNotFound) == 3
    assert [one.text for one in ended if not isinstance(one, BaseException)] == ["charged"]


class Shop:
    """A tool that a person must approve, in each place of a graph that may have tools."""

    def __init__(self) -> None:
        self.refunded: list[int] = []

        @tool(approval={"when": "order > 5"}, effect="external")
        def refund(order: int) -> str:
            self.refunded.append(order)
            return f"refunded {order}"

        self.tool = refund

    def engine(self, place: str, store: str | None) -> PromptGraphEngine:
        model = ScriptedProvider(ToolCall("1", "refund", '{"order": 7}'), "done")
        match place:
            case "prompt":
                return PromptGraphEngine(chain(PromptNode("p", tools=[self.tool])), model, store=store)
            case "engine":
                graph = chain(PromptNode("p", tools=["refund"]))
                return PromptGraphEngine(graph, model, store=store, tools=[self.tool])
            case "tool":
                graph = chain(ToolNode("p", "refund", {"order": 7}, tools=[self.tool]))
                return PromptGraphEngine(graph, store=store)
        graph = chain(ToolNode("p", "refund", {"order": 7}))
        return PromptGraphEngine(graph, store=store, tools=[self.tool])


places = pytest.mark.parametrize("place", ["prompt", "engine", "tool", "tool of the engine"])


@places
async def test_tools_of_graphs_wait_for_their_approval(place: str, store: str) -> None:
    shop = Shop()
    engine = shop.engine(place, store)
    waiting = await engine.ainvoke("q", run_id="r")
    (question,) = waiting.interrupts
    assert (waiting.report.stop_reason, question.kind, shop.refunded) == ("waiting", "approval", [])
    result = await engine.resume("r", {question.id: True})
    assert result.report.stop_reason == "completed"
    assert shop.refunded == [7]


@places
async def test_tools_of_graphs_are_not_called_without_their_approval(place: str) -> None:
    shop = Shop()
    result = await shop.engine(place, None).ainvoke("q")
    assert shop.refunded == []
    told = [one.content for one in result.messages if one.role == "tool"] or [result.error]
    assert "A person must approve a call of 'refund'" in told[0]
    assert "`store`" in told[0]


async def test_a_finalizer_does_not_run_while_a_run_waits(store: str) -> None:
    counted = Counted()
    graph = chain(FunctionNode("ask", ask_twice), counted.node("final"), state=Order)
    graph.remove_edge("ask", "final").set_finalizer("final")
    result = await PromptGraphEngine(graph, store=store).ainvoke("q")
    assert (result.report.stop_reason, counted.calls) == ("waiting", [])


async def test_history_has_every_finished_node_and_states_come_without_calls(store: str) -> None:
    """Nested nodes and branches, too; a step that is no node has the state of the newest one before it."""
    counted = Counted()
    both = ParallelNode("both", [counted.node("x", {"log": ["x"]}), counted.node("y", {"total": 2})])
    inner = PromptGraph("inner", nodes=[counted.node("deep", "deep")])
    graph = chain(
        counted.node("a", {"log": ["a"]}), both, SubgraphNode("sub", inner), PromptNode("say"), state=Order
    )
    model = ScriptedProvider("Hello.")
    engine = PromptGraphEngine(graph, model, store=store)
    result = await engine.ainvoke("q", run_id="r")
    assert result.ok, result.error
    calls = list(counted.calls)
    history = await engine.history("r")
    assert [one.path for one in history] == ["a", "both/x", "both/y", "both", "sub/deep", "sub", "say"]
    assert [one.next for one in history if one.path in ("a", "both", "say")] == ["both", "sub", "__end__"]
    by_path = {one.path: one.step for one in history}
    assert (await engine.state_at("r", 0)).state == Order()
    assert (await engine.state_at("r", 0)).next == "a"
    assert (await engine.state_at("r", by_path["a"])).state == Order(log=["a"])
    assert (await engine.state_at("r", by_path["both/y"])).state.total == 2
    assert (await engine.state_at("r", by_path["both"])).state == Order(log=["a", "x"], total=2)
    assert (await engine.state_at("r", by_path["sub/deep"])).context["deep_output"] == "deep"
    last = await engine.state_at("r", by_path["say"])
    assert (last.messages[-1].content, last.next, last.path) == ("Hello.", "__end__", "say")
    said = by_path["say"] - 1  # the model call
    assert (await engine.state_at("r", said)).path == "sub"
    assert (counted.calls, len(model.requests)) == (calls, 1)


async def test_a_fork_repeats_nothing_before_its_step_and_goes_on_with_an_update(store: str) -> None:
    """The edges after the step are decided anew, with the update; the other run stays as it was."""
    counted = Counted()

    def route(state: Order) -> Command:
        return Command({"log": ["big" if state.total > 5 else "small"]})

    graph = PromptGraph("made", state=Order)
    for one in (counted.node("a", {"total": 1}), counted.node("b", {"log": ["b"]}), counted.node("big"),
                counted.node("small"), counted.node("end", route)):  # fmt: skip
        graph.add_node(one)
    graph.always("a", "b").when("b", "big", lambda result, state: state.context["total"] > 5)
    graph.always("b", "small").always("big", "end").always("small", "end")
    engine = PromptGraphEngine(graph, store=store)
    first = await engine.ainvoke("q", run_id="first")
    assert (counted.calls, first.state.log) == (["a", "b", "small", "end"], ["b", "small"])
    history = {one.path: one.step for one in await engine.history("first")}
    counted.calls.clear()
    fork = await engine.fork("first", history["b"], {"total": 9, "log": ["edited"]})
    assert (counted.calls, fork.state.log) == (["big", "end"], ["b", "edited", "big"])
    again = await engine.fork(fork.run_id, history["b"], {"log": ["twice"]}, new_id="again")
    assert (again.run_id, again.state.log) == ("again", ["b", "edited", "twice", "big"])
    counted.calls.clear()
    same = await engine.fork("first", history["b"])
    assert (counted.calls, same.state) == (["small", "end"], first.state)
    start = await engine.fork("first", 0, {"log": ["anew"]})
    assert start.state.log == ["anew", "b", "small"]
    assert (await engine.state_at("first", history["end"])).state == first.state
    with pytest.raises(InvalidInput, match="Order has no field 'totl'"):
        await engine.fork("first", history["b"], {"totl": 1})


async def test_forks_of_untyped_graphs_write_over_outputs_of_the_node(store: str) -> None:
    draft = FunctionNode("draft", lambda state: "bad", inline=True, output_key="text")
    send = FunctionNode("send", lambda state: f"sent: {state.context['text']}", inline=True)
    engine = PromptGraphEngine(chain(draft, send), store=store)
    first = await engine.ainvoke("q")
    assert first.output == "sent: bad"
    (step, _) = await engine.history(first.run_id)
    fork = await engine.fork(first.run_id, step.step, {"text": "good"})
    assert fork.output == "sent: good"
    assert (await engine.state_at(fork.run_id, step.step)).context["text"] == "good"


async def test_a_graph_that_was_changed_is_not_resumed(store: str) -> None:
    graph = chain(FunctionNode("a", lambda s: 1, inline=True), FunctionNode("ask", ask_twice), state=Order)
    engine = PromptGraphEngine(graph, store=store)
    result = await engine.ainvoke("q")
    graph.remove_node("a").add_node(FunctionNode("z", lambda s: 1, inline=True))
    graph.set_entry("z").always("z", "ask")
    with pytest.raises(NondeterministicGraph, match="its graph was changed"):
        await engine.resume(result.run_id, {result.interrupts[0].id: 1})
    with pytest.raises(InvalidInput, match="its graph was changed"):
        await engine.state_at(result.run_id, 1)


async def test_interrupts_need_a_store() -> None:
    result = await PromptGraphEngine(chain(FunctionNode("ask", ask_twice))).ainvoke("q")
    assert "give the engine or the agent a `store`" in result.error
    assert isinstance(result.report.errors[0].exception, NotDurable)
    with pytest.raises(NotDurable):
        await interrupt("outside")
    with pytest.raises(InvalidInput, match="has no `store`"):
        await PromptGraphEngine(chain(HumanNode("h"))).history("r")
    with pytest.raises(ConfigError, match="names no store"):
        PromptGraphEngine(chain(HumanNode("h")), store="redis://x")


async def test_values_without_json_are_refused_at_the_start(store: str) -> None:
    engine = PromptGraphEngine(chain(HumanNode("h")), store=store)
    with pytest.raises(InvalidInput, match="'thing' in the context is not JSON"):
        await engine.ainvoke("q", context={"thing": object()})


async def test_a_node_that_writes_several_values_without_json_fails_alone(store: str) -> None:
    def write(state: Any) -> None:
        state.context["one"], state.context["two"], state.context["text"] = object(), object(), "kept"
        state.observations.append(object())

    nodes = [FunctionNode("write", write, inline=True), FunctionNode("last", lambda s: 1, inline=True)]
    engine = PromptGraphEngine(chain(*nodes), store=store)
    result = await engine.ainvoke("q", run_id="r")
    assert (result.ok, result.output, result.context["text"]) == (True, 1, "kept")
    assert "The value of 'one' in the context is not JSON" in result.report.errors[0].message
    with pytest.raises(InvalidInput, match="'thing' in the context is not JSON"):
        await engine.fork("r", (await engine.history("r"))[0].step, {"thing": object()})


@dataclass
class Measured:
    value: float
    earlier: list[float] = field(default_factory=list)


@pytest.mark.parametrize(
    ("value", "where"),
    [(math.nan, ""), ({"a": [1.5, -math.inf]}, " at a.1"), (Measured(1.0, [math.inf]), " at earlier.0")],
)
async def test_nan_and_infinity_are_errors_of_their_node(value: Any, where: str) -> None:
    """JSON would keep null in their place, so that another value stood there after a resume than before."""
    write = FunctionNode("write", lambda state: state.context.update(w=value), inline=True)
    read = Counted().node("give", value, output_key="v")
    engine = PromptGraphEngine(chain(write, read, HumanNode("ask")), store="memory")
    waiting = await engine.ainvoke("q")
    assert [(one.node, "NaN or infinity" + where in one.message) for one in waiting.report.errors] == [
        ("write", True),
        ("give", True),
    ]
    assert not {"v", "w"} & waiting.context.keys()
    fine = chain(Counted().node("give", {"a": None, "b": 1.5}, output_key="v"), HumanNode("ask"))
    assert (await PromptGraphEngine(fine, store="memory").ainvoke("q")).report.errors == []


async def test_a_cancelled_run_has_ended(store: str) -> None:
    begun = asyncio.Event()

    async def hang(state: Any) -> None:
        begun.set()
        await asyncio.sleep(60)

    engine = PromptGraphEngine(chain(FunctionNode("hang", hang)), store=store)
    task = asyncio.create_task(engine.ainvoke("q", run_id="r"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(Conflict, match="it is cancelled"):
        await engine.resume("r")


def test_one_engine_serves_one_event_loop_after_the_other(store: str) -> None:
    engine = PromptGraphEngine(chain(FunctionNode("ask", ask_twice), state=Order), store=store)
    result = asyncio.run(engine.ainvoke("q"))
    again = asyncio.run(engine.resume(result.run_id, {result.interrupts[0].id: "S"}))
    assert again.interrupts[0].value == "How many?"


PROGRAM = '''
import asyncio, os, signal, sys
from astromesh.graph import FunctionNode, PromptGraph, PromptGraphEngine, ToolNode, interrupt, node

STORE, FILE, DIES = sys.argv[1], sys.argv[2], sys.argv[3]

def note(text):
    with open(FILE, "a") as file:
        file.write(text + "\\n")

def charge() -> str:
    """Charges."""
    note("charge")
    return "charged"

call = ToolNode("call", "charge", {})

@node("pay")
async def pay(state, config):
    receipt = (await config.run(call, state)).output
    answer = await interrupt({"question": "Send it?"})
    note(f"answer {answer}")
    return f"{receipt} {answer}"

@node("send")
async def send(state):
    note("send")

@node("after", effect="idempotent")
async def after(state):
    if DIES == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return state.context["pay_output"]

graph = PromptGraph("shop", nodes=[pay, send, after]).sequential("pay", "send", "after")
engine = PromptGraphEngine(graph, tools=[charge], store=STORE)

async def main():
    if DIES == "wait":
        result = await engine.ainvoke("q", run_id="r")
        assert result.interrupts, result
        os.kill(os.getpid(), signal.SIGKILL)
    answers = {one.id: "yes" for one in await engine.interrupts("r")}
    result = await engine.resume("r", answers)
    print(result.output, result.error)

asyncio.run(main())
'''


def test_answers_survive_kill_9_and_effects_happen_once(tmp_path: Path) -> None:
    """Killed while it waits, and after the answer: charged once, sent once, and the answer is still there."""
    program, file = tmp_path / "program.py", tmp_path / "effects"
    program.write_text(PROGRAM)
    argv = [sys.executable, str(program), f"sqlite:{tmp_path / 'runs.db'}", str(file)]
    for dies in ("wait", "after"):
        done = subprocess.run([*argv, dies], check=False, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = subprocess.run([*argv, "never"], check=False, capture_output=True, text=True)
    assert done.stdout == "charged yes \n", done.stderr
    assert file.read_text().split("\n") == ["charge", "answer yes", "send", ""]


async def test_many_runs_of_one_engine_at_once_share_the_store(store: str) -> None:
    """The first ones open it together, and those that come while it closes open it again."""
    engine = PromptGraphEngine(chain(FunctionNode("ask", ask_twice), state=Order), store=store)

    async def one(number: int) -> Any:
        await asyncio.sleep(number % 3 / 100)
        waiting = await engine.ainvoke("q", run_id=f"r{number}")
        waiting = await engine.resume(waiting.run_id, {waiting.interrupts[0].id: number})
        return await engine.resume(waiting.run_id, {waiting.interrupts[0].id: "x"})

    results = await asyncio.gather(*map(one, range(12)))
    assert [result.state.log for result in results] == [[f"x of {n}"] for n in range(12)]


async def test_commands_of_tools_count_once_when_their_node_runs_again(store: str) -> None:
    """The call comes from the journal with its update, into the state of before the node."""
    made: list[str] = []

    def take(item: str) -> Command:
        """Takes an item.

        Args:
            item: its name
        """
        made.append(item)
        return Command({"items": [{"name": item}], "total": 5})

    class Nested(BaseNode):
        async def execute(self, state: Any, config: Any) -> NodeResult:
            await config.run(ToolNode("take", "take", {"item": "tea"}, tools=[take]), state)
            return NodeResult(self.name, await interrupt("Fine?"))

    class Taking(BaseNode):
        async def execute(self, state: Any, config: Any) -> NodeResult:
            (result,) = await config.call_tools([ToolCall("c1", "take", '{"item": "pear"}')], state)
            return NodeResult(self.name, await interrupt(result.value))

    graph = chain(Nested("nested"), Taking("direct", tools=[take]), state=Order)
    engine = PromptGraphEngine(graph, store=store)
    result = await engine.ainvoke("q")
    assert result.interrupts, result.error
    result = await engine.resume(result.run_id, {result.interrupts[0].id: "yes"})
    assert result.interrupts[0].value == {"items": [{"name": "pear"}], "total": 5}
    result = await engine.resume(result.run_id, {result.interrupts[0].id: "good"})
    assert result.ok, result.error
    assert [item.name for item in result.state.items] == ["tea", "pear"]
    assert made == ["tea", "pear"]


async def test_a_stream_of_a_run_that_waits_ends_with_its_questions(store: str) -> None:
    engine = PromptGraphEngine(chain(FunctionNode("ask", ask_twice), state=Order), store=store)
    stream = engine.astream("q", ["values", "updates"])
    assert [part async for part in stream] == []
    assert [one.node for one in stream.result.interrupts] == ["ask"]
    types = [event.type async for event in engine.astream_events("q")]
    assert types[-1] == "run.waiting"


async def test_a_run_is_resumed_as_a_stream(store: str) -> None:
    """What it did before is not told again; its texts come as they are made."""
    counted = Counted()

    async def ask(state: Any) -> dict[str, list[Any]]:
        emit(counted.calls)
        return {"log": [await interrupt("Ready?")]}

    nodes = [
        counted.node("a", {"total": 1}),
        FunctionNode("ask", ask),
        PromptNode("say", instructions="Say."),
    ]
    engine = PromptGraphEngine(chain(*nodes, state=Order), ScriptedProvider("Done."), store=store)
    first = await engine.ainvoke("q", run_id="r")
    stream = engine.astream_resume("r", {first.interrupts[0].id: "yes"}, ["updates", "messages", "custom"])
    parts = [part async for part in stream]
    assert parts[:2] == [("custom", "ask", ["a"]), ("updates", "ask", {"log": ["yes"]})]
    assert "".join(data for mode, _, data in parts if mode == "messages") == "Done."
    assert (stream.result.output, stream.result.state.log) == ("Done.", ["yes"])
    with pytest.raises(Conflict):
        await anext(engine.astream_resume("r"))


async def test_a_database_of_postgresql_keeps_runs_too(postgres_database: str) -> None:
    """Interrupts, history, states, forks and cached results, from one engine to another."""
    counted = Counted()
    first = counted.node("first", {"items": [{"name": "tea \x00"}]}, cache=60)
    graph = chain(first, FunctionNode("ask", ask_twice), state=Order)
    waiting = await PromptGraphEngine(graph, store=postgres_database).ainvoke("q", run_id="r")
    engine = PromptGraphEngine(graph, store=postgres_database)
    for answer in ("L", 3):
        [question] = await engine.interrupts("r")
        result = await engine.resume("r", {question.id: answer})
    assert result.state == Order(items=[Item(name="tea \x00")], log=["3 of L"])
    assert waiting.interrupts[0].value == {"question": "Which size?", "sizes": ["S", "L"]}
    step, _ = await engine.history("r")
    assert (await engine.state_at("r", step.step)).state.log == []
    fork = await engine.fork("r", step.step, {"log": ["forked"]})
    assert fork.interrupts[0].node == "ask"
    assert (await engine.ainvoke("q")).interrupts
    assert counted.calls == ["first"]


async def test_items_of_sends_and_fan_outs_ask_for_themselves(store: str) -> None:
    """Each item has its own question; answered ones keep their answer while the others wait."""

    @node("ask")
    async def ask(state: Order, run: Any) -> dict[str, Any]:
        item = run.context["item"]
        return {"log": [f"{item}: {await interrupt(item)}"]}

    @node("send", routes=["ask"])
    async def send(state: Order) -> list[Send]:
        return [Send("ask", "a"), Send("ask", "b")]

    sends = PromptGraph("sends", nodes=[send, ask], state=Order)
    fan = PromptGraph("fan", nodes=[FanOutNode("fan", ask, ["a", "b"])], state=Order)
    for graph in (sends, fan):
        engine = PromptGraphEngine(graph, store=store)
        result = await engine.ainvoke("q")
        open_ones = {one.value: one.id for one in result.interrupts}
        result = await engine.resume(result.run_id, {open_ones["b"]: 2})
        assert [one.id for one in result.interrupts] == [open_ones["a"]]
        result = await engine.resume(result.run_id, {open_ones["a"]: 1})
        assert result.ok, result.error
        assert result.state.log == ["a: 1", "b: 2"]


async def test_a_node_of_a_loop_asks_anew_in_each_round(store: str) -> None:
    @node("ask")
    async def ask(state: Order) -> dict[str, Any]:
        return {"log": [await interrupt(len(state.log))]}

    graph = PromptGraph("loop", nodes=[ask], state=Order)
    graph.when("ask", "ask", lambda result, state: len(state.context["log"]) < 3)
    engine = PromptGraphEngine(graph, store=store)
    result = await engine.ainvoke("q")
    for number in range(3):
        assert result.interrupts[0].value == number
        result = await engine.resume(result.run_id, {result.interrupts[0].id: f"answer {number}"})
    assert result.state.log == ["answer 0", "answer 1", "answer 2"]
    history = await engine.history(result.run_id)
    assert [one.path for one in history] == ["ask"] * 3
    states = [await engine.state_at(result.run_id, one.step) for one in history]
    assert [len(one.state.log) for one in states] == [1, 2, 3]


async def test_a_fork_may_change_the_state_of_one_branch(store: str) -> None:
    """The update is merged with the writes of the other branches, in the order of the targets."""
    counted = Counted()
    nodes = [counted.node("s"), *(counted.node(name, {"log": [name]}) for name in "ab"), counted.node("end")]
    graph = PromptGraph("made", nodes=nodes, state=Order).fork("s", "a", "b")
    engine = PromptGraphEngine(graph.always("a", "end").always("b", "end"), store=store)
    first = await engine.ainvoke("q", run_id="r")
    steps = {one.path: one.step for one in await engine.history("r")}
    assert (await engine.state_at("r", steps["a"])).state.log == ["a"]
    counted.calls.clear()
    last = max("ab", key=steps.__getitem__)
    fork = await engine.fork("r", steps[last], {"log": ["edited"], "total": 4})
    assert fork.ok, fork.error
    assert counted.calls == ["end"]
    expected = ["a", "edited", "b"] if last == "a" else ["a", "b", "edited"]
    assert (first.state.log, fork.state.log, fork.state.total) == (["a", "b"], expected, 4)
    again = await engine.fork(fork.run_id, steps["s"])
    assert (again.state, counted.calls.count("s")) == (first.state, 0)


class Tens(BaseModel):
    """A state with a validator that changes what it validates."""

    tens: int = 0

    @field_validator("tens")
    @classmethod
    def _times_ten(cls, value: int) -> int:
        return value * 10


async def test_validators_do_not_run_again_over_what_a_record_has() -> None:
    @node("a")
    async def ask(state: Tens) -> dict[str, int]:
        return {"tens": 2 if await interrupt("go?") else 0}

    @node("b")
    async def stop(state: Tens) -> None:
        await interrupt("and?")

    engine = PromptGraphEngine(PromptGraph[Tens]("g", nodes=[ask, stop]).always("a", "b"), store="memory")
    waiting = await engine.ainvoke("q", state={"tens": 1}, run_id="r")
    for _ in range(2):
        waiting = await engine.resume("r", {waiting.interrupts[0].id: True})
    assert waiting.state == Tens.model_construct(tens=20)
    assert (await engine.state_at("r", 0)).state.tens == 10


@pytest.mark.parametrize("join", ["any", 1])
async def test_branches_that_a_join_has_cancelled_do_not_come_back(join: Any, store: str) -> None:
    """Neither one that was at work, nor one that had not begun."""
    counted, begun = Counted(), asyncio.Event()

    async def never(state: Any) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async def ask(state: Any) -> str:
        return f"{state.context['quick_output']}, {await interrupt('Go on?')}"

    nodes = [
        counted.node("s", 0),
        counted.node("quick", lambda state: _after(begun, "quick")),
        counted.node("slow", never, effect="read"),
        counted.node("next", never, effect="read"),
        counted.node("idle", never, effect="read"),
        FunctionNode("j", ask, join=join),
    ]
    graph: PromptGraph[Any] = PromptGraph("dropping", nodes=nodes)
    graph.fork("s", "quick", "slow", "next", "idle", max_concurrency=2)
    for name in ("quick", "slow", "next", "idle"):
        graph.add_edge(name, "j")
    engine = PromptGraphEngine(graph, store=store)
    first = await engine.ainvoke("x", run_id="r")
    assert [one.value for one in first.interrupts] == ["Go on?"]
    done = await engine.resume("r", {first.interrupts[0].id: "yes"})
    assert (done.output, done.report.stop_reason) == ("quick, yes", "completed")
    assert sorted(counted.calls) in (["quick", "s", "slow"], ["next", "quick", "s", "slow"])


async def _after(event: asyncio.Event, value: str) -> str:
    await event.wait()
    return value


async def test_config_and_caller_come_from_the_store(store: str) -> None:
    """In a resume and in a fork, which may be in another process. What is passed anew replaces them."""
    seen: list[Any] = []

    async def look(state: Any, config: Any) -> Any:
        answer = await interrupt("Go on?")
        seen.append((config["city"], config.get("live"), config.caller, get_current_caller()))
        return answer

    engine = PromptGraphEngine(chain(Counted().node("first"), FunctionNode("look", look)), store=store)
    ada = CallerContext(
        "ada", "acme", "secret", frozenset({"admin"}), metadata={"plan": "pro", "db": object()}
    )
    live = object()
    waiting = await engine.ainvoke("Hi", config={"city": "Rome", "live": live}, caller=ada)
    again = PromptGraphEngine(engine.graph, store=store) if store != "memory" else engine
    key = waiting.interrupts[0].id
    assert (await again.resume(waiting.run_id, {key: "yes"})).output == "yes"
    stored = CallerContext("ada", "acme", "", frozenset({"admin"}), metadata={"plan": "pro"}, had_token=True)
    assert seen == [("Rome", None, stored, stored)]

    forked = await again.fork(waiting.run_id, 1, {"note": "x"}, config={"city": "Oslo", "live": live})
    eve = CallerContext("eve")
    await again.resume(forked.run_id, {forked.interrupts[0].id: "yes"}, config={"live": live}, caller=eve)
    assert seen[1] == ("Oslo", live, eve, eve)
