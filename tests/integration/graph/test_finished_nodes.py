"""Durable runs of graphs: a finished node never runs again, and what it did is read from the journal."""

from __future__ import annotations

import asyncio
import inspect
import logging
import operator
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import httpx
import pytest
from pydantic import BaseModel

from astromesh.graph import (
    FanOutNode,
    FunctionNode,
    GraphState,
    HumanNode,
    LoopNode,
    NodeConfig,
    NodeFlag,
    ParallelNode,
    PromptGraph,
    PromptNode,
    Send,
    SubgraphNode,
    ToolNode,
    interrupt,
    node,
)
from astromesh.graph.base import BaseNode
from astromesh.graph.records import NodeResult
from astromesh.runtime.records import RunRequest
from astromesh.testing import RecordingTool, ScriptedProvider, plugin_of
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

MEMORY = {"conversational": {"backend": "sqlite"}}
SPEC: dict[str, Any] = {"orchestration": {"pattern": "graph", "graph": "made"}, "memory": MEMORY}


class City(BaseModel):
    name: str


class Log(BaseModel):
    log: Annotated[list[str], operator.add] = []


@dataclass
class Order:
    item: str
    amount: int


def chain(*nodes: BaseNode) -> PromptGraph:
    return PromptGraph("made", nodes=nodes).sequential(*(one.name for one in nodes))


@asynccontextmanager
async def process(
    folder: Path, graph: PromptGraph, *answers: Any, tool: RecordingTool | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A server process over the folder, whose agent `helper` runs the graph."""
    tools = [{"name": "lookup", "type": "lookup", "effect": "read"}] if tool else []
    write(folder, manifest(**SPEC, tools=tools))
    provider = ScriptedProvider(*answers) if answers else ScriptedProvider("said", repeat=True)
    plugins = {"tools": {"lookup": plugin_of(tool)}} if tool else {}
    async with client_of(runtime_of(folder, provider, graphs={"made": graph}, plugins=plugins)) as client:
        yield client


async def begun(client: httpx.AsyncClient) -> str:
    """Begins a run, and returns its path when it waits for a person."""
    answer = await client.post("/v1/agents/helper/runs", json={"query": "Do it", "session_id": "s"})
    path = f"/v1/runs/{answer.json()['run_id']}"
    assert (await rests(client, path))["status"] == "waiting"
    return path


async def rests(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    """The run when it waits or has ended."""
    async with asyncio.timeout(20):
        while (run := dict((await client.get(path)).json()))["status"] in ("queued", "running"):
            await asyncio.sleep(0.01)
    return run


async def decided(client: httpx.AsyncClient, path: str, **decision: Any) -> dict[str, Any]:
    """Decides, and returns the run when it rests again."""
    answer = await client.post(f"{path}/resume", json=decision or {"decision": "approve"})
    assert answer.status_code == 200, answer.text
    return await rests(client, path)


async def stopped_when(folder: Path, graph: PromptGraph, ready: asyncio.Event) -> str:
    """Begins a run in a process that leaves at once when something has happened. Returns the run's path."""
    write(folder, manifest(**SPEC))
    runtime = runtime_of(folder, ScriptedProvider("said", repeat=True), graphs={"made": graph})
    await runtime.bootstrap()
    await runtime.durable.start()
    row = await runtime.runner.accept(runtime.agent("helper"), RunRequest("q", "s"))
    await asyncio.wait_for(ready.wait(), 20)
    await runtime.close(grace=0.0)
    return f"/v1/runs/{row.run_id}"


async def events(client: httpx.AsyncClient, path: str, *types: str) -> list[str]:
    text = (await client.get(f"{path}/events")).text
    found = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    return [one for one in found if one in types] if types else found


class Counted:
    """Functions of a graph that count their calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def node(self, name: str, value: Any = None, **keywords: Any) -> FunctionNode:
        async def work(state: GraphState) -> Any:
            self.calls.append(name)
            made = value(state) if callable(value) else value
            return await made if inspect.isawaitable(made) else made

        return FunctionNode(name, work, **keywords)


async def test_a_charge_before_an_approval_happens_once(tmp_path: Path) -> None:
    """`charge → review → told`: the value that the person sees is that of the one charge."""
    counted = Counted()

    def made() -> PromptGraph:
        charge = counted.node("charge", lambda state: f"receipt {uuid4()}")
        told = counted.node("told", lambda state: f"told of {state.context['charge_output']}")
        return chain(charge, HumanNode("review"), told)

    async with process(tmp_path, made()) as client:
        path = await begun(client)
        [question] = (await client.get("/v1/approvals")).json()["approvals"]
    async with process(tmp_path, made()) as client:
        run = await decided(client, path)
        started = await events(client, path, "node.started")
    assert counted.calls == ["charge", "told"]
    assert run["status"] == "completed"
    assert run["result"]["response"] == f"told of {question['arguments']}"
    assert len(started) == 3


@pytest.mark.parametrize("kind", ["loop", "parallel", "fan_out", "subgraph", "function"])
async def test_finished_children_run_once_inside_a_node_that_has_not_ended(tmp_path: Path, kind: str) -> None:
    """A person is asked inside of a composite: its finished children are not run again."""
    counted = Counted()

    def made() -> PromptGraph:
        pay = counted.node("pay", lambda state: str(uuid4()), flags={NodeFlag.PARALLEL_SAFE})
        ask = HumanNode("ask", instructions="Fine?")

        async def both(state: GraphState, config: NodeConfig) -> Any:
            paid = await config.run(pay, state)
            await config.run(ask, state)
            return paid.output

        composites: dict[str, Callable[[], BaseNode]] = {
            "loop": lambda: LoopNode("outer", [pay, ask], lambda result: True),
            "parallel": lambda: ParallelNode("outer", [pay, ask]),
            "fan_out": lambda: FanOutNode("outer", SubgraphNode("item", chain(pay, ask)), [1]),
            "subgraph": lambda: SubgraphNode("outer", chain(pay, ask)),
            "function": lambda: FunctionNode("outer", both),
        }
        return chain(composites[kind](), counted.node("last", "done"))

    async with process(tmp_path, made()) as client:
        path = await begun(client)
    async with process(tmp_path, made()) as client:
        run = await decided(client, path)
        visits = await events(client, path, "node.started")
    assert (run["status"], run["result"]["response"]) == ("completed", "done")
    assert counted.calls == ["pay", "last"]
    assert len(visits) == {"fan_out": 5}.get(kind, 4)


async def test_what_a_finished_node_wrote_is_there_again(tmp_path: Path) -> None:
    """Context (nested and removed keys too), lists, messages, output and the chosen edge."""
    seen: list[Any] = []

    def made() -> PromptGraph:
        @node("first", output_key="made")
        async def first(state: GraphState) -> Any:
            state.context["cart"] = {"items": [1]}
            state.context["gone"] = True
            state.plan.append("step 1")
            return {"at": Order("tea", 3)}

        @node("second")
        async def second(state: GraphState, config: NodeConfig) -> NodeResult:
            state.context["cart"]["items"].append(2)
            del state.context["gone"]
            state.plan[0] = "step one"
            state.observations.append({"seen": True})
            return NodeResult(output="to a", next_node="a")

        @node("a")
        async def a(state: GraphState) -> str:
            keep = {key: value for key, value in state.context.items() if not key.startswith("_")}
            seen.append([keep, state.plan, state.observations, [m.content for m in state.messages]])
            return "from a"

        graph = PromptGraph("made", nodes=[first, PromptNode("say"), second, a, HumanNode("ask"), counted])
        return graph.sequential("first", "say", "second").always("a", "ask").always("ask", "last")

    def tell(state: GraphState) -> str:
        seen.append(state.context["second_output"])
        return "done"

    counted = FunctionNode("last", tell)
    async with process(tmp_path, made()) as client:
        path = await begun(client)
        assert (await client.get(path)).json()["status"] == "waiting"
    async with process(tmp_path, made()) as client:
        run = await decided(client, path)
    assert (run["status"], run["result"]["response"]) == ("completed", "done")
    [[context, plan, observations, messages], second] = seen
    assert context["cart"] == {"items": [1, 2]}
    assert "gone" not in context
    assert (plan, observations, second) == (["step one"], [{"seen": True}], "to a")
    assert messages[-1] == "said"


async def test_values_come_back_as_json_and_outputs_with_a_schema_as_their_class(tmp_path: Path) -> None:
    found: list[Any] = []

    def made() -> PromptGraph:
        order = FunctionNode("order", lambda state: Order("tea", 3), output_key="order")
        city = PromptNode("city", output_schema=City)
        last = FunctionNode(
            "last", lambda state: found.extend([state.context["order"], state.context["city_output"]])
        )
        return chain(order, city, HumanNode("ask"), last)

    async with process(tmp_path, made(), '{"name": "Oslo"}') as client:
        path = await begun(client)
    async with process(tmp_path, made()) as client:
        await decided(client, path)
    assert found[0] == {"item": "tea", "amount": 3}
    assert getattr(found[1], "name", found[1]) in ("Oslo", '{"name": "Oslo"}')


async def test_what_json_cannot_carry_is_an_error_of_its_node(tmp_path: Path) -> None:
    """In a durable run; its key is not in the context any more."""
    keys: list[Any] = []

    @node("open")
    async def opens(state: GraphState) -> str:
        state.context["handle"] = object()
        return "opened"

    def look(state: GraphState) -> str:
        keys.append("handle" in state.context)
        return "done"

    graph = chain(opens, FunctionNode("last", look))
    async with process(tmp_path, graph) as client:
        accepted = await client.post("/v1/agents/helper/runs", json={"query": "q", "session_id": "s"})
        path = f"/v1/runs/{accepted.json()['run_id']}"
        run = await rests(client, path)
    [error] = run["result"]["metadata"]["errors"]
    assert (error["node"], keys) == ("open", [False])
    assert "handle" in error["message"]
    assert "not JSON" in error["message"]


async def test_an_exception_whose_text_is_not_unicode_ends_its_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the name of a file may be, and then the exception of `open`."""
    caplog.set_level(logging.CRITICAL, "astromesh.graph")  # a worker of pytest cannot report such a line
    counted = Counted()

    def refuse(state: GraphState) -> Any:
        raise FileNotFoundError("caf\udce9.txt")

    async with process(tmp_path, chain(counted.node("look", refuse))) as client:
        answer = await client.post("/v1/agents/helper/runs", json={"query": "Do it", "session_id": "s"})
        run = await rests(client, f"/v1/runs/{answer.json()['run_id']}")
    assert run["error"] == {"code": "node_failed", "detail": "look: caf\\udce9.txt"}


async def test_usage_calls_and_errors_of_finished_nodes_are_counted_once(tmp_path: Path) -> None:
    """The numbers of a run that was resumed are those of one that was not."""
    tool = RecordingTool("lookup", lambda **_: "found", parameters={"type": "object", "properties": {}})

    def made(waits: bool) -> PromptGraph:
        inner = chain(PromptNode("think", tools=["lookup"]), ToolNode("call", "lookup", {}))
        fails = FunctionNode("fails", lambda state: 1 / 0)
        ask = HumanNode("ask") if waits else FunctionNode("ask", lambda state: "ok")
        return chain(SubgraphNode("inner", inner), fails, ask, FunctionNode("last", lambda state: "done"))

    answers = ([ToolCall("c1", "lookup", "{}")], "thought")
    async with process(tmp_path / "plain", made(False), *answers, tool=tool) as client:
        whole = await client.post("/v1/agents/helper/run", json={"query": "Do it", "session_id": "s"})
    async with process(tmp_path / "resumed", made(True), *answers, tool=tool) as client:
        path = await begun(client)
    async with process(tmp_path / "resumed", made(True), tool=tool) as client:
        run = await decided(client, path)
        again = await events(client, path)
    about, expected = run["result"]["metadata"], whole.json()["metadata"]
    for key in ("usage", "tools_called", "errors", "iterations", "stop_reason"):
        assert about[key] == expected[key], key
    assert len(tool.calls) == 4
    assert again.count("node.failed") == 1
    assert again.count("model.finished") == 2
    assert again.count("node.started") == 7


async def test_a_changed_graph_stops_the_run_and_names_the_node(tmp_path: Path) -> None:
    counted = Counted()

    def made(*names: str) -> PromptGraph:
        return chain(*(HumanNode(n) if n == "ask" else counted.node(n, n) for n in names))

    cases = {
        "another entry": (("a", "ask", "b"), ("x", "ask", "b"), "'x'"),
        "an edge that is gone": (("a", "b", "ask", "c"), ("a", "ask", "c"), "'b'"),
    }
    for number, (name, (before, after, named)) in enumerate(cases.items()):
        async with process(tmp_path / str(number), made(*before)) as client:
            path = await begun(client)
        made_calls = list(counted.calls)
        async with process(tmp_path / str(number), made(*after)) as client:
            run = await decided(client, path)
        assert (run["status"], run["error"]["code"]) == ("failed", "nondeterministic_graph"), name
        assert named in run["error"]["detail"], name
        assert counted.calls == made_calls, name


async def test_a_loop_that_ends_before_its_recorded_rounds_stops_the_run(tmp_path: Path) -> None:
    counted = Counted()

    def made(rounds: int) -> PromptGraph:
        def enough(result: NodeResult, state: GraphState) -> bool:
            return state.context["n"] >= rounds

        def count(state: GraphState) -> int:
            state.context["n"] = state.context.get("n", 0) + 1
            return int(state.context["n"])

        async def waits_in_the_third(state: GraphState, config: NodeConfig) -> Any:
            return (await config.run(HumanNode("ask"), state)).output if state.context["n"] == 3 else None

        body = [counted.node("count", count), FunctionNode("maybe", waits_in_the_third)]
        return chain(LoopNode("loop", body, enough), counted.node("last", "done"))

    async with process(tmp_path, made(3)) as client:
        path = await begun(client)
    async with process(tmp_path, made(2)) as client:
        run = await decided(client, path)
    assert (run["status"], run["error"]["code"]) == ("failed", "nondeterministic_graph")
    assert "loop" in run["error"]["detail"]
    assert counted.calls == ["count"] * 3


@pytest.mark.parametrize(
    ("effect", "asks"),
    [("read", False), ("idempotent", False), ("write", True), ("external", True), (None, True)],
)
async def test_a_function_that_did_not_end_is_repeated_by_its_effect(
    tmp_path: Path, effect: Any, asks: bool
) -> None:
    """`read` and `idempotent` begin again; for another one a person decides."""
    calls: list[str] = []
    stuck = asyncio.Event()

    def made() -> PromptGraph:
        async def charge(state: GraphState) -> str:
            calls.append("charge")
            if len(calls) == 1:
                stuck.set()
                await asyncio.Event().wait()
            return "charged"

        keywords = {} if effect is None else {"effect": effect}
        return chain(FunctionNode("charge", charge, **keywords), FunctionNode("last", lambda state: "done"))

    path = await stopped_when(tmp_path, made(), stuck)
    async with process(tmp_path, made()) as client:
        run = await rests(client, path)
        assert run["status"] == ("waiting" if asks else "completed")
        if asks:
            [question] = (await client.get("/v1/approvals")).json()["approvals"]
            assert (question["kind"], question["name"], calls) == ("unknown_outcome", "charge", ["charge"])
            run = await decided(client, path)
    assert (run["status"], run["result"]["response"], len(calls)) == ("completed", "done", 2)


@pytest.mark.parametrize("place", ["branch", "behind"])
async def test_finished_branches_of_a_fork_run_once(tmp_path: Path, place: str) -> None:
    """Whether a person is asked in a branch or where the branches meet, over a restart."""
    counted = Counted()

    def made() -> PromptGraph:
        a = counted.node("a", lambda s: [f"a {uuid4()}"], output_key="log")
        b = counted.node("b", ["b"], output_key="log")
        end = counted.node("end", lambda s: len(s.context["log"]))
        asked = HumanNode("ask", input_keys=["log"] if place == "behind" else ())
        graph = PromptGraph(
            "made", nodes=[counted.node("s"), a, b, asked, end], reducers={"log": operator.add}
        )
        graph.fork("s", "a", "b")
        if place == "behind":
            return graph.always("a", "ask").always("b", "ask").always("ask", "end")
        return graph.always("a", "end").sequential("b", "ask", "end")

    async with process(tmp_path, made()) as client:
        path = await begun(client)
    async with process(tmp_path, made()) as client:
        run = await decided(client, path)
        started = await events(client, path, "node.started")
    assert (run["status"], run["result"]["response"]) == ("completed", "2")
    assert sorted(counted.calls) == ["a", "b", "end", "s"]
    assert len(started) == 5


async def test_finished_sends_run_once(tmp_path: Path) -> None:
    """The values come back from the record of the node that sent them."""
    counted = Counted()

    def made() -> PromptGraph:
        split = counted.node("split", [Send("w", 1), Send("w", 2)], routes=["w"])
        worker = counted.node("w", lambda s: [s.context["item"] * 10], output_key="all")
        end = counted.node("end", lambda s: sum(s.context["all"]))
        nodes = [split, worker, HumanNode("ask", input_keys=["all"]), end]
        graph = PromptGraph("made", nodes=nodes, reducers={"all": operator.add})
        return graph.sequential("w", "ask", "end")

    async with process(tmp_path, made()) as client:
        path = await begun(client)
    async with process(tmp_path, made()) as client:
        run = await decided(client, path)
    assert (run["status"], run["result"]["response"]) == ("completed", "30")
    assert counted.calls == ["split", "w", "w", "end"]


async def test_updates_of_finished_branches_are_reduced_once(tmp_path: Path) -> None:
    """A typed state: the branch that had ended and the one that had not count the same after a restart."""
    counted = Counted()

    def made() -> PromptGraph:
        nodes = [counted.node(name, {"log": [name]}) for name in ("s", "a", "a2", "b", "end")]
        graph = PromptGraph("made", nodes=[*nodes, HumanNode("ask")], state=Log)
        graph.fork("s", "a", "b").sequential("a", "a2", "end").sequential("b", "ask", "end")
        graph.add_node(FunctionNode("told", lambda state: " ".join(state.log), inline=True))
        return graph.always("end", "told")

    async with process(tmp_path, made()) as client:
        path = await begun(client)
    async with process(tmp_path, made()) as client:
        run = await decided(client, path)
    assert run["result"]["response"] == "s a a2 b end"
    assert sorted(counted.calls) == ["a", "a2", "b", "end", "s"]


def asking(counted: Counted, name: str) -> FunctionNode:
    async def ask(state: GraphState) -> Any:
        return f"{name}: {await interrupt({'question': f'{name}?'})}"

    return counted.node(name, ask)


async def test_interrupts_of_branches_are_listed_and_answered_by_id_in_any_order(tmp_path: Path) -> None:
    """Each function runs again from its beginning once it is answered; the others still wait."""
    counted = Counted()

    def made() -> PromptGraph:
        def join(state: GraphState) -> str:
            return ", ".join(state.context[f"{name}_output"] for name in "ab")

        graph = PromptGraph("made", nodes=[counted.node("s"), asking(counted, "a"), asking(counted, "b")])
        graph.add_node(counted.node("end", join)).fork("s", "a", "b")
        return graph.always("a", "end").always("b", "end")

    async with process(tmp_path, made()) as client:
        path = await begun(client)
        listed = (await client.get("/v1/approvals")).json()["approvals"]
    by_name = {one["name"]: one for one in listed}
    assert {one["kind"] for one in listed} == {"interrupt"}
    assert by_name["a"]["arguments"] == {"question": "a?"}
    assert by_name["b"]["question"] == "b?"
    async with process(tmp_path, made()) as client:
        unknown = await client.post(f"{path}/resume", json={"decision": "approve", "question": "nope"})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "approval_not_found")
        answer = {"decision": "answer", "answer": {"n": 2}, "question": by_name["b"]["id"]}
        assert (await decided(client, path, **answer))["status"] == "waiting"
        [left] = (await client.get("/v1/approvals")).json()["approvals"]
        assert left["id"] == by_name["a"]["id"]
        run = await decided(client, path, decision="approve", question=left["id"])
    assert (run["status"], run["result"]["response"]) == ("completed", "a: True, b: {'n': 2}")
    assert sorted(counted.calls) == ["a", "a", "a", "b", "b", "end", "s"]


async def test_two_people_may_answer_at_the_same_moment(tmp_path: Path) -> None:
    """The second answer waits until the run has worked on the first one."""
    counted = Counted()
    graph = PromptGraph("made", nodes=[counted.node("s"), asking(counted, "a"), asking(counted, "b")])
    async with process(tmp_path, graph.fork("s", "a", "b")) as client:
        path = await begun(client)
        listed = (await client.get("/v1/approvals")).json()["approvals"]
        done = await asyncio.gather(*(
            client.post(f"{path}/resume", json={"decision": "deny", "question": one["id"]}) for one in listed
        ))  # fmt: skip
        assert [one.status_code for one in done] == [200, 200]
        assert (await rests(client, path))["status"] == "completed"


async def test_a_node_with_the_flag_requires_human_makes_plain_runs_wait(tmp_path: Path) -> None:
    async def ask(state: GraphState) -> Any:
        return f"You said {await interrupt('Well?')}."

    graph = chain(FunctionNode("ask", ask, flags={NodeFlag.REQUIRES_HUMAN}))
    async with process(tmp_path, graph) as client:
        answer = await client.post("/v1/agents/helper/run", json={"query": "q", "session_id": "s"})
        assert (answer.status_code, answer.json()["status"]) == (202, "waiting")
        path = f"/v1/runs/{answer.json()['run_id']}"
        run = await decided(client, path, decision="answer", answer="yes")
    assert run["result"]["response"] == "You said yes."
