"""Agents that run a graph of their folder: what its flags and models do inside the runtime."""

from __future__ import annotations

import asyncio
import json
import threading
import traceback
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from structlog.testing import capture_logs

from astromesh.errors import ProviderTimeout
from astromesh.graph import (
    FanOutNode,
    FunctionNode,
    GraphState,
    GuardNode,
    GuardVerdict,
    HumanNode,
    PromptGraph,
    PromptNode,
    SubgraphNode,
    node,
)
from astromesh.testing import RecordingSink, ScriptedProvider, plugin_of
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.otlp_collector import collecting

MEMORY = {"conversational": {"backend": "sqlite"}}

#: the first node names a model of its own, the second is light, the third neither
THREE: list[dict[str, Any]] = [
    {"name": "ponder", "kind": "think", "model_override": "careful"},
    {"name": "sort", "kind": "prompt", "flags": ["lightweight"], "role": "sorter"},
    {"name": "answer", "kind": "prompt"},
]


def with_graph(folder: Path, nodes: list[dict[str, Any]], **models: str) -> Path:
    """Agent `helper` runs these nodes one after another; `models` are its roles by provider."""
    names = [node["name"] for node in nodes]
    edges = [{"from": one, "to": other} for one, other in pairwise(names)]
    head = {"apiVersion": "astromesh/v1", "kind": "Graph", "metadata": {"name": "steps"}}
    (folder / "graphs").mkdir()
    graph = {**head, "spec": {"nodes": nodes, "edges": edges}}
    (folder / "graphs" / "steps.graph.yaml").write_text(yaml.safe_dump(graph))
    roles = {role: {"primary": {"provider": name, "model": "m"}} for role, name in models.items()}
    model = {"primary": {"provider": "scripted", "model": "m"}, "roles": roles}
    return write(folder, manifest(orchestration={"pattern": "graph", "graph": "steps"}, model=model))


@pytest.mark.parametrize(
    ("roles", "asked"),
    [
        ({"careful": "large"}, ["large", "scripted", "scripted"]),
        ({"careful": "large", "lightweight": "small"}, ["large", "small", "scripted"]),
    ],
)
async def test_lightweight_nodes_of_a_yaml_graph_ask_the_role_of_that_name(
    tmp_path: Path, roles: dict[str, str], asked: list[str]
) -> None:
    """LIGHTWEIGHT swaps to `model.roles.lightweight` where there is one and the node names no model."""
    order: list[str] = []

    def provider(name: str) -> ScriptedProvider:
        def say(request: Any) -> str:
            order.append(name)
            return f"{name} says"

        return ScriptedProvider(say, repeat=True, name=f"{name}/m")

    models = {name: provider(name) for name in ("scripted", "large", "small")}
    plugins = {"providers": {name: plugin_of(model) for name, model in models.items()}}
    folder = with_graph(tmp_path, THREE, **roles)
    async with runtime_of(folder, models["scripted"], plugins=plugins) as runtime:
        assert runtime.broken == {}
        answer = await runtime.run("helper", "Why?", "s")
    assert (answer.response, order) == ("scripted says", asked)


async def test_yaml_nodes_have_parameters_retries_and_results_across_runs(tmp_path: Path) -> None:
    """A timeout is tried again as the policy says; the second run asks only the node without `cache`."""
    nodes: list[dict[str, Any]] = [
        {
            "name": "look", "kind": "prompt", "role": "looker", "model_override": "careful",
            "input_keys": ["topic"], "parameters": {"temperature": 0},
            "retry": {"attempts": 2, "on": ["ProviderTimeout"], "delay": 0.01},
            "cache": {"seconds": 60, "key": "v1"},
        },
        {"name": "answer", "kind": "prompt"},
    ]  # fmt: skip
    careful = ScriptedProvider(ProviderTimeout("slow"), "seen", name="careful/m")
    plain = ScriptedProvider("answered", repeat=True, name="scripted/m")
    plugins = {"providers": {"scripted": plugin_of(plain), "careful": plugin_of(careful)}}
    folder = with_graph(tmp_path, nodes, careful="careful")
    async with runtime_of(folder, plain, plugins=plugins) as runtime:
        assert runtime.broken == {}
        for session in ("s", "t"):
            answer = await runtime.run("helper", "Why?", session)
            assert answer.response == "answered"
    assert [request.parameters["temperature"] for request in careful.requests] == [0, 0]
    assert len(plain.requests) == 2
    assert all("temperature" not in request.parameters for request in plain.requests)


async def test_an_agent_runs_a_graph_made_in_python_and_its_events_are_the_runs(tmp_path: Path) -> None:
    """Nodes, deltas and tools of the graph are told in the run's own stream, in their order."""

    @node("shout")
    def shout(state: GraphState) -> str:
        return str(state.context["answer_output"]).upper()

    asks = PromptNode("answer", tools=[lookup_price])
    made = PromptGraph("made", nodes=[asks, shout]).sequential("answer", "shout")
    call = ToolCall("c1", "lookup_price", '{"item": "tea"}')
    folder = write(tmp_path, manifest(orchestration={"pattern": "graph", "graph": "made"}))
    sink = RecordingSink()
    async with runtime_of(folder, ScriptedProvider(call, "it is 3"), graphs={"made": made}) as runtime:
        assert runtime.broken == {}
        answer = await runtime.run("helper", "Tea?", "s", sinks=[sink])
    assert (answer.response, answer.metadata["tools_called"]) == ("IT IS 3", ["lookup_price"])
    told = [(e.type, e.data.get("node", "")) for e in sink.events if e.type.startswith(("node.", "tool."))]
    assert told == [
        ("node.started", "answer"), ("tool.started", ""), ("tool.finished", ""), ("node.finished", "answer"),
        ("node.started", "answer"), ("node.finished", "answer"),
        ("node.started", "shout"), ("node.finished", "shout"),
    ]  # fmt: skip
    deltas = [(e.data["step"], e.data["content"]) for e in sink.events if e.type == "model.delta"]
    assert deltas == [(2, "it "), (2, "is "), (2, "3"), (3, "IT IS 3")]


def lookup_price(item: str) -> int:
    """The price of an item."""
    return {"tea": 3}[item]


async def test_a_graph_made_in_python_waits_for_a_person_over_a_restart(tmp_path: Path) -> None:
    """The next process has the graph again, and the run the manifest that it began with."""

    def made() -> PromptGraph:
        nodes = [PromptNode("write"), HumanNode("review"), PromptNode("send")]
        return PromptGraph("made", nodes=nodes).sequential("write", "review", "send")

    spec: dict[str, Any] = {"orchestration": {"pattern": "graph", "graph": "made"}, "memory": MEMORY}
    folder = write(tmp_path, manifest(**spec))
    body = {"query": "Write to Ann", "session_id": "s-1"}
    runtime = runtime_of(folder, ScriptedProvider("a draft"), graphs={"made": made()})
    async with client_of(runtime) as client:
        answer = await client.post("/v1/agents/helper/run", json=body)
    assert (answer.status_code, answer.json()["waiting_for"]["name"]) == (202, "review")
    path = f"/v1/runs/{answer.json()['run_id']}"
    write(folder, manifest(**spec, prompts={"system": "Changed meanwhile."}))
    provider = ScriptedProvider("sent")
    async with client_of(runtime_of(folder, provider, graphs={"made": made()})) as client:
        assert (await client.post(f"{path}/resume", json={"decision": "approve"})).status_code == 200
        run = await ended(client, path)
    assert (run["status"], run["result"]["response"]) == ("completed", "sent")
    assert "You are helper." in provider.requests[0].messages[0].content


async def ended(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    """The run once it is over."""
    async with asyncio.timeout(30):
        while not (run := dict((await client.get(path)).json()))["finished_at"]:
            await asyncio.sleep(0.02)
    return run


def made_of(*nodes: Any) -> PromptGraph:
    return PromptGraph("made", nodes=nodes).sequential(*(one.name for one in nodes))


async def failing(folder: Path, graph: PromptGraph, **spec: Any) -> tuple[httpx.Response, list[Any], str]:
    """The answer of an agent with this graph, what was logged meanwhile, and its numbers."""
    write(folder, manifest(orchestration={"pattern": "graph", "graph": "made"}, **spec))
    runtime = runtime_of(folder, ScriptedProvider("a draft", repeat=True), graphs={"made": graph})
    async with client_of(runtime) as client:
        with capture_logs() as logged:
            answer = await client.post("/v1/agents/helper/run", json={"query": "q", "session_id": "s"})
        return answer, logged, (await client.get("/metrics")).text


@pytest.mark.parametrize("nested", [False, True])
async def test_callers_and_log_are_told_which_node_raised_what(
    tmp_path: Path, nested: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """500 `node_failed` with the node and the message; the log has the traceback under the run's id."""

    @node("boom")
    def boom(state: GraphState) -> str:
        raise ValueError("the disk is full")

    inner = SubgraphNode("outer", made_of(boom))
    with collecting() as collector:
        (tmp_path / "runtime.yaml").write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "astromesh/v1",
                    "kind": "RuntimeConfig",
                    "metadata": {"name": "default"},
                    "spec": {"telemetry": {"otlp_endpoint": collector.url}},
                }
            )
        )
        answer, _, metrics = await failing(tmp_path, made_of(inner if nested else boom))
    path, problem = "outer/boom" if nested else "boom", answer.json()
    assert (answer.status_code, problem["code"], problem["node"]) == (500, "node_failed", path)
    assert problem["detail"] == f"{path}: the disk is full"
    assert 'astromesh_run_failures_total{code="node_failed"} 1.0' in metrics
    line = next(one for one in caplog.records if f"node {path!r} of {problem['run_id']}" in one.getMessage())
    assert line.exc_info is not None
    assert line.levelname == "WARNING"
    told = "".join(traceback.format_exception(*line.exc_info))
    assert "ValueError: the disk is full" in told
    assert "in boom" in told
    span = collector.named("invoke_agent helper")
    assert (span.failed, "the disk is full" in span.said) == (True, True)


@pytest.mark.parametrize("kind", ["node", "nested", "function", "prompt"])
async def test_what_a_guard_of_the_graph_refuses_is_refused_and_no_fault_of_the_server(
    tmp_path: Path, kind: str
) -> None:
    """422 `guardrail_blocked` with the guard's name; what it said of the draft is not for the caller."""

    def too_rude(output: Any) -> GuardVerdict:
        return GuardVerdict(False, f"{output!r} is rude")

    @node("draft", guards=[too_rude] if kind == "function" else [])
    def draft(state: GraphState) -> str:
        return "a draft"

    guard = GuardNode("gate", guards=[too_rude])
    ways: dict[str, list[Any]] = {
        "node": [draft, guard],
        "nested": [draft, SubgraphNode("inner", made_of(guard))],
        "function": [draft],
        "prompt": [PromptNode("draft", guards=[too_rude])],
    }
    answer, logged, metrics = await failing(tmp_path, made_of(*ways[kind]))
    assert (answer.status_code, answer.json()["code"]) == (422, "guardrail_blocked")
    assert answer.json()["guardrail"] == "too_rude"
    assert "draft" not in answer.json()["detail"]
    assert 'astromesh_run_failures_total{code="guardrail_blocked"} 1.0' in metrics
    assert [one for one in logged if one["event"] == "run_failed"] == []


@node("pick")
def pick(state: GraphState) -> str:
    raise ValueError("no such row, api_key=abcd1234efgh")


@pytest.mark.parametrize("route", ["run", "runs"])
async def test_an_error_that_the_graph_goes_on_from_is_in_the_metadata_and_the_events(
    tmp_path: Path, route: str
) -> None:
    """200 `completed`; metadata.errors and `node.failed` say what happened, without secrets."""

    @node("say")
    def say(state: GraphState) -> str:
        return "done without it"

    spec: dict[str, Any] = {"orchestration": {"pattern": "graph", "graph": "made"}, "memory": MEMORY}
    write(tmp_path, manifest(**spec))
    runtime = runtime_of(
        tmp_path, ScriptedProvider("a draft", repeat=True), graphs={"made": made_of(pick, say)}
    )
    async with client_of(runtime) as client:
        answer = await client.post(f"/v1/agents/helper/{route}", json={"query": "q", "session_id": "s"})
        run = await ended(client, f"/v1/runs/{answer.json()['run_id']}")
        events = (await client.get(f"/v1/runs/{run['run_id']}/events")).text
    expected = {"node": "pick", "type": "ValueError", "message": "no such row, api_key=***"}
    assert (run["status"], run["result"]["response"]) == ("completed", "done without it")
    assert run["result"]["metadata"]["errors"] == [expected]
    failed = [block for block in events.split("\n\n") if "event: node.failed" in block]
    assert [json.loads(block.partition("data: ")[2]) for block in failed] == [expected]
    assert "abcd1234efgh" not in events


@pytest.mark.parametrize("route", ["run", "runs"])
async def test_a_failed_run_shows_the_errors_of_its_nodes(tmp_path: Path, route: str) -> None:
    spec: dict[str, Any] = {"orchestration": {"pattern": "graph", "graph": "made"}, "memory": MEMORY}
    write(tmp_path, manifest(**spec))
    runtime = runtime_of(tmp_path, ScriptedProvider("a draft", repeat=True), graphs={"made": made_of(pick)})
    async with client_of(runtime) as client:
        answer = await client.post(f"/v1/agents/helper/{route}", json={"query": "q", "session_id": "s"})
        run = await ended(client, f"/v1/runs/{answer.json()['run_id']}")
    assert (run["status"], run["error"]["code"]) == ("failed", "node_failed")
    assert "abcd1234efgh" not in str(run)
    assert [error["node"] for error in run["result"]["metadata"]["errors"]] == ["pick"]


async def test_metadata_holds_the_first_twenty_errors(tmp_path: Path) -> None:
    nodes = [FunctionNode(f"n{number}", pick.function) for number in range(30)]
    last = FunctionNode("last", lambda state: "fine")
    answer, _, _ = await failing(tmp_path, made_of(*nodes, last))
    assert (answer.status_code, len(answer.json()["metadata"]["errors"])) == (200, 20)


async def test_output_rules_hold_for_the_messages_of_node_errors(tmp_path: Path) -> None:
    @node("quote")
    def quote(state: GraphState) -> str:
        raise ValueError("cannot mail ada@example.org")

    say = FunctionNode("say", lambda state: "fine")
    rules = {"output": [{"type": "pii_detection", "action": "redact"}]}
    answer, _, _ = await failing(tmp_path, made_of(quote, say), guardrails=rules)
    (error,) = answer.json()["metadata"]["errors"]
    assert "cannot mail" in error["message"]
    assert "ada@example.org" not in answer.text


async def traced(folder: Path, graph: PromptGraph, *said: Any, **spec: Any) -> tuple[Any, list[Any]]:
    """The body of a run of this graph, and the spans of its trace."""
    write(folder, manifest(orchestration={"pattern": "graph", "graph": "made"}, **spec))
    async with client_of(runtime_of(folder, ScriptedProvider(*said), graphs={"made": graph})) as client:
        body = (await client.post("/v1/agents/helper/run", json={"query": "q", "session_id": "s"})).json()
        (trace,) = (await client.get("/v1/traces")).json()["traces"]
        spans = (await client.get(f"/v1/traces/{trace['trace_id']}")).json()["spans"]
    return body, spans


def tree_of(spans: list[Any]) -> dict[str, list[str]]:
    """The labels of the spans below `orchestration`, by the label of their parent."""
    labels = {span["span_id"]: span["attributes"].get("node", span["name"]) for span in spans}
    for span in spans:
        if span["name"] in ("llm.complete", "tool.call"):
            labels[span["span_id"]] = span["name"]
    below: dict[str, list[str]] = {}
    for span in spans:
        below.setdefault(labels.get(span["parent_id"], ""), []).append(labels[span["span_id"]])
    return below


async def test_traces_have_a_span_for_each_node_and_calls_stand_below_theirs(tmp_path: Path) -> None:
    """Nested and concurrent ones too, each with its path and its duration."""
    inner = PromptGraph("inner", nodes=[PromptNode("ask"), FunctionNode("end", lambda s: "done")])
    worker = PromptNode("work")
    graph = PromptGraph(
        nodes=[FanOutNode("fan", worker, ["a", "b"]), SubgraphNode("sub", inner.always("ask", "end"))]
    ).always("fan", "sub")
    body, spans = await traced(tmp_path, graph, "one", "two", "three")
    assert body["response"] == "done"
    below = tree_of(spans)
    assert below["orchestration"] == ["fan", "sub"]
    assert below["fan"] == ["fan/work[0]", "fan/work[1]"]
    assert below["fan/work[0]"] == below["fan/work[1]"] == below["sub/ask"] == ["llm.complete"]
    assert below["sub"] == ["sub/ask", "sub/end"]
    by_id = {span["span_id"]: span for span in spans}
    for span in spans:
        if span["name"] == "graph.node":
            assert span["status"] == "ok"
            above = by_id[span["parent_id"]]
            assert above["start"] <= span["start"] + 1e-4
            assert span["duration_ms"] <= above["duration_ms"] + 1
    visited = body["metadata"]["nodes_visited"]
    assert [(one["node"], one["times"]) for one in visited] == [
        ("fan/work", 2), ("fan", 1), ("sub/ask", 1), ("sub/end", 1), ("sub", 1),
    ]  # fmt: skip
    assert all(one["seconds"] > 0 for one in visited)


async def test_the_span_of_a_failed_node_says_why_and_the_run_where_it_has_been(tmp_path: Path) -> None:
    """With the exception's class and message; a failed run too has `nodes_visited`."""

    @node("broken")
    def broken(state):
        raise ValueError("no such page")

    graph = PromptGraph(nodes=[FunctionNode("first", lambda s: 1), broken]).always("first", "broken")
    body, spans = await traced(tmp_path, graph)
    assert body["code"] == "node_failed"
    found = {span["attributes"]["node"]: span for span in spans if span["name"] == "graph.node"}
    assert found["first"]["status"] == "ok"
    assert found["broken"]["status"] == "error"
    assert found["broken"]["attributes"] == {
        "node": "broken",
        "error": "ValueError",
        "message": "no such page",
    }


async def test_the_server_answers_while_a_plain_function_blocks(tmp_path: Path) -> None:
    """The function waits until `/health/live` has answered. One that exceeds its timeout fails the run."""
    answered, late = threading.Event(), threading.Event()

    @node("block", timeout=20)
    def block(state):
        return f"answered: {answered.wait(20)}"

    @node("hang", timeout=0.1)
    def hang(state):
        late.wait(20)

    for made, status, text in (
        (block, 200, "answered: True"),
        (hang, 500, "'hang' did not end within 0.1 s"),
    ):
        write(tmp_path, manifest(orchestration={"pattern": "graph", "graph": "made"}))
        async with client_of(
            runtime_of(tmp_path, ScriptedProvider(), graphs={"made": PromptGraph(nodes=[made])})
        ) as client:
            run = asyncio.create_task(
                client.post("/v1/agents/helper/run", json={"query": "q", "session_id": "s"})
            )
            await asyncio.sleep(0)
            assert (await client.get("/health/live")).status_code == 200
            answered.set()
            response = await run
        assert (response.status_code, text in response.text) == (status, True)
    late.set()


async def test_a_limit_that_the_agents_graph_can_never_keep_is_a_fault_of_the_agent(tmp_path: Path) -> None:
    """The file of the graph is right: another agent may give it more iterations."""
    nodes = [{"name": f"n{i}", "kind": "prompt"} for i in range(4)]
    for limit, broken in ((3, True), (4, False)):
        folder = tmp_path / str(limit)
        folder.mkdir()
        with_graph(folder, nodes)
        pattern = {"pattern": "graph", "graph": "steps", "max_iterations": limit}
        write(folder, manifest(orchestration=pattern))
        async with runtime_of(folder, ScriptedProvider()) as runtime:
            faults = " ".join(map(str, runtime.broken.values()))
        expected = "max_iterations: is 3, but the graph `steps` needs at least 4 node executions"
        assert (expected in faults) == broken, faults


async def test_a_yaml_node_names_its_model_as_provider_and_name(tmp_path: Path) -> None:
    nodes: list[dict[str, Any]] = [
        {"name": "look", "kind": "prompt", "model_override": "careful:large"},
        {"name": "answer", "kind": "prompt"},
    ]
    careful = ScriptedProvider("seen", name="careful/large")
    plain = ScriptedProvider("answered", name="scripted/m")
    plugins = {"providers": {"scripted": plugin_of(plain), "careful": plugin_of(careful)}}
    async with runtime_of(with_graph(tmp_path, nodes), plain, plugins=plugins) as runtime:
        assert runtime.broken == {}
        assert (await runtime.run("helper", "Why?", "s")).response == "answered"
    assert (len(careful.requests), len(plain.requests)) == (1, 1)


async def test_a_yaml_node_with_a_model_without_provider_is_told_how_to_write_it(tmp_path: Path) -> None:
    folder = with_graph(tmp_path, [{"name": "look", "kind": "prompt", "model_override": "gpt-4o"}])
    async with runtime_of(folder, ScriptedProvider("a")) as runtime:
        (fault,) = runtime.broken["helper"]
    assert "Write 'openai:gpt-4o'" in str(fault)
