"""Traces at the border of the process: every way in takes over the caller's trace, and what is sent out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import yaml
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from websockets.asyncio.client import connect

from astromesh import __version__
from astromesh.errors import ProviderTimeout
from astromesh.runtime.engine import AgentRuntime
from astromesh.telemetry.otlp import SCHEMA_URL
from astromesh.testing import Reply, ScriptedProvider
from astromesh.testing.whatsapp import FakeWhatsAppApi, sign_webhook, text_message, webhook
from astromesh.types import ToolCall, Usage
from tests.integration.agents_folder import manifest, runtime_of, served, write
from tests.integration.channels.whatsapp_server import HOOK, SECRET, channel_file
from tests.integration.otlp_collector import Collector, ExportedSpan, collecting
from tests.platform.astromesh import ROOT
from tests.platform.model import MockModel

SPAN, SERVER = "cd" * 8, 2
TOKENS, SECONDS = "gen_ai.client.token.usage", "gen_ai.client.operation.duration"
RUN, BODY = "/v1/agents/helper/run", {"query": "Who are you?", "session_id": "s"}
MEMORY = {"conversational": {"backend": "sqlite"}}
LOOK = ToolCall("c1", "lookup", '{"query": "private words of dan@example.org"}')
TOOLS = [{"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}]


def trace(n: int) -> str:
    return f"{n + 1:032x}"


def header(n: int, sampled: bool) -> dict[str, str]:
    return {"traceparent": f"00-{trace(n)}-{SPAN}-{int(sampled):02x}"}


def told(folder: Path, collector: Collector, **telemetry: Any) -> None:
    spec = {"telemetry": {"otlp_endpoint": collector.url, **telemetry}}
    head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
    (folder / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": spec}))


@asynccontextmanager
async def server(runtime: AgentRuntime) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the runtime on a real port; what it traced has arrived when this is left."""
    async with served(runtime) as place, httpx.AsyncClient(base_url=f"http://{place}", timeout=60) as client:
        yield client


# -- every way in ------------------------------------------------------------------------------------------


async def _rest(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    assert (await http.post(RUN, json=BODY, headers=headers)).status_code == 200


async def _events(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    answer = await http.post(RUN, json=BODY, headers={**headers, "accept": "text/event-stream"})
    assert "run.completed" in answer.text


async def _chat(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    body = {"model": "helper", "messages": [{"role": "user", "content": "Hi"}]}
    assert (await http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200


async def _durable(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    taken = (await http.post("/v1/agents/helper/runs", json=BODY, headers=headers)).json()
    assert "run.completed" in (await http.get(f"/v1/runs/{taken['run_id']}/events")).text


async def _socket(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    url = f"ws://{http.base_url.netloc.decode()}/v1/ws/agent/helper"
    async with connect(url, additional_headers=headers, open_timeout=60) as socket:
        await _ask(socket, BODY)


async def _frame(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    """One socket, many traces: a frame's own goes before that of the handshake."""
    url = f"ws://{http.base_url.netloc.decode()}/v1/ws/agent/helper"
    async with connect(
        url, additional_headers={"traceparent": f"00-{'12' * 16}-{'34' * 8}-00"}, open_timeout=60
    ) as socket:
        await _ask(socket, {**BODY, **headers})


async def _ask(socket: Any, body: Any) -> None:
    await socket.send(json.dumps(body))
    async for text in socket:
        frame = json.loads(text)
        assert frame["type"] != "error", frame
        if frame.get("done"):
            return


async def _mcp(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    url = f"{http.base_url}/mcp"
    async with (
        httpx2.AsyncClient(headers=headers) as outer,
        Client(streamable_http_client(url, http_client=outer)) as client,
    ):
        assert not (await client.call_tool("helper", {"query": "hi"})).is_error


async def _whatsapp(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    body, signature = sign_webhook(SECRET, webhook(text_message("wamid.1", "Hello")))
    answer = await http.post(HOOK, content=body, headers={**signature, **headers})
    assert answer.status_code == 200
    async with asyncio.timeout(60):
        while not await _has_ended(http, "whatsapp"):
            await asyncio.sleep(0.02)


async def _has_ended(http: httpx.AsyncClient, channel: str) -> bool:
    runs = (await http.get("/v1/runs", params={"status": "completed"})).json()["runs"]
    return any(run["session_id"].startswith(f"{channel}:") for run in runs)


async def _workflow(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    answer = await http.post("/v1/workflows/flow/run", json={"input": "Hi"}, headers=headers)
    assert answer.json()["status"] == "success", answer.text


async def _task(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    taken = (await http.post("/v1/workflows/flow/runs", json={"input": "Hi"}, headers=headers)).json()
    assert "task.finished" in (await http.get(f"/v1/tasks/{taken['task_id']}/events")).text


WAYS: list[Callable[[httpx.AsyncClient, dict[str, str]], Awaitable[None]]] = [
    _rest, _events, _chat, _durable, _socket, _frame, _mcp, _whatsapp, _workflow, _task,
]  # fmt: skip
ROOTS: dict[Any, str] = {_workflow: "invoke_workflow flow", _task: "invoke_workflow flow"}


def flow(folder: Path) -> None:
    """A workflow whose one stage runs the agent."""
    place = folder / "workflows" / "flow"
    place.mkdir(parents=True)
    place.joinpath("ops.py").write_text("def same(input, context, tools):\n    return input\n")
    place.joinpath("workflow.yaml").write_text(
        "version: 1\nworkflow: flow\nnodes:\n"
        "  - {id: s, kind: deterministic, role: start, default: true, context: none}\n"
        "  - {id: x, kind: agent, role: linear, context: none, agent: helper}\n"
        "  - {id: e, kind: deterministic, role: exit, context: none}\n"
        "edges:\n  - {from: s, to: x}\n  - {from: x, to: e}\n"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    flow(tmp_path)
    return write(tmp_path, manifest("helper", memory=MEMORY))


def told_all(folder: Path, collector: Collector, graph: FakeWhatsAppApi, **telemetry: Any) -> AgentRuntime:
    told(folder, collector, **telemetry)
    channel_file(folder, graph.url)
    return runtime_of(folder, ScriptedProvider("I am one.", repeat=True))


async def every_way(folder: Path, collector: Collector, *, kept: bool, ratio: float) -> list[Any]:
    """A run in each way, each in a trace of its own; answers the lines of `GET /v1/traces`."""
    async with (
        FakeWhatsAppApi() as graph,
        server(told_all(folder, collector, graph, sample_ratio=ratio)) as http,
    ):
        for n, way in enumerate(WAYS):
            await way(http, header(n, kept))
        lines: list[Any] = (await http.get("/v1/traces")).json()["traces"]
        return lines


async def test_a_run_goes_on_in_its_callers_trace_whatever_way_it_comes_in(folder: Path) -> None:
    """Under the caller's own span, and exported because the caller keeps it, although the ratio is 0."""
    with collecting() as collector:
        await every_way(folder, collector, kept=True, ratio=0.0)
    for n, way in enumerate(WAYS):
        spans = [span for span in collector.spans if span.trace_id == trace(n)]
        requests = {span.span_id for span in spans if span.kind == SERVER and span.parent_id == SPAN}
        assert requests, way
        (root,) = (span for span in spans if span.parent_id in {SPAN, *requests} and span.kind != SERVER)
        assert root.name == ROOTS.get(way, "invoke_agent helper"), way
        assert_tree(spans, root, *(span for span in spans if span.span_id in requests))
    assert {span.trace_id for span in collector.spans} == {trace(n) for n in range(len(WAYS))}


async def test_what_its_caller_does_not_keep_is_not_exported(folder: Path) -> None:
    """Although the ratio is 1, nested runs included; the trace can be read here all the same."""
    with collecting() as collector:
        lines = await every_way(folder, collector, kept=False, ratio=1.0)
    assert [span for n in range(len(WAYS)) for span in of_trace(collector, trace(n))] == []
    assert {line["trace_id"] for line in lines} == {trace(n) for n in range(len(WAYS))}


def assert_tree(spans: list[ExportedSpan], *roots: ExportedSpan) -> None:
    """Every span but the roots stands under another one that was sent."""
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans)
    assert [span.name for span in spans if span not in roots and span.parent_id not in ids] == []


def of_trace(collector: Collector, trace_id: str) -> list[ExportedSpan]:
    return [span for span in collector.spans if span.trace_id == trace_id]


# -- sampling ----------------------------------------------------------------------------------------------


async def test_the_ratio_decides_about_traces_that_begin_here(folder: Path) -> None:
    with collecting() as collector:
        for ratio in (0.0, 1.0):
            told(folder, collector, sample_ratio=ratio)
            async with server(runtime_of(folder, ScriptedProvider("one"))) as http:
                await _rest(http, {})
            assert bool(collector.spans) is (ratio == 1.0)


# -- the tree ----------------------------------------------------------------------------------------------


async def test_a_nested_agent_stands_under_its_tool_call_and_every_genai_name_exists(tmp_path: Path) -> None:
    """One trace over both; what begins with gen_ai is a name of OpenTelemetry's conventions."""
    boss = manifest("boss", tools=[{"name": "ask", "type": "agent", "agent": "helper"}])
    write(tmp_path, boss, manifest("helper", tools=TOOLS))
    ask = ToolCall("c9", "ask", '{"query": "look it up"}')
    script = (Reply("", [ask]), Reply("", [LOOK], usage=Usage(7, 3)), "Found.", "It was found.")
    with collecting() as collector:
        told(tmp_path, collector, capture_content=True)
        async with server(runtime_of(tmp_path, ScriptedProvider(*script))) as http:
            done = (await http.post("/v1/agents/boss/run", json=BODY)).json()
            trace_id = done["metadata"]["trace_id"]
            kept = (await http.get(f"/v1/traces/{trace_id}")).json()["spans"]
    outer, inner = collector.named("invoke_agent boss"), collector.named("invoke_agent helper")
    spans = of_trace(collector, trace_id)
    (request,) = (span for span in spans if span.kind == SERVER)
    assert inner.parent_id == collector.named("execute_tool ask").span_id
    assert (outer.parent_id, request.parent_id) == (request.span_id, "")
    assert_tree(spans, request)
    known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    used = {name for span in spans for name in span.attributes if name.startswith("gen_ai.")}
    assert used - known == set()
    assert {f"gen_ai.{name}" for name in (
        "operation.name", "agent.name", "conversation.id", "provider.name", "request.model", "tool.name",
        "tool.call.id", "tool.type", "usage.input_tokens", "usage.output_tokens",
        "response.finish_reasons",
    )} <= used  # fmt: skip
    assert len(kept) == len(spans) - 1  # the request is in the collector alone
    by_id = {span["span_id"]: span for span in kept}
    (nested,) = (span for span in kept if span["name"] == "agent.run" and span["parent_id"])
    assert by_id[nested["parent_id"]]["name"] == "tool.call"


async def test_a_failed_stage_and_its_task_are_failed_spans(folder: Path) -> None:
    with collecting() as collector:
        told(folder, collector)
        async with server(runtime_of(folder, ScriptedProvider())) as http:
            answer = await http.post("/v1/workflows/flow/run", json={"input": "Hi"})
            assert answer.json()["status"] == "failure"
            trace_id = answer.json()["metadata"]["trace_id"]
    root = collector.named("invoke_workflow flow")
    assert root.failed and root.attributes["gen_ai.workflow.name"] == "flow"
    assert root.attributes["error.type"]
    assert collector.named("invoke_agent helper").failed
    assert collector.named("orchestration").failed
    spans = of_trace(collector, trace_id)
    assert all(span.attributes["error.type"] for span in spans if span.failed and span.kind != SERVER)
    assert_tree(spans, *(span for span in spans if span.kind == SERVER))


# -- what a span says --------------------------------------------------------------------------------------


async def test_a_request_is_a_server_span_above_its_run(tmp_path: Path) -> None:
    write(tmp_path, manifest("helper"))
    with collecting() as collector:
        told(tmp_path, collector)
        async with server(runtime_of(tmp_path, ScriptedProvider("one", RuntimeError("a bug")))) as http:
            await _rest(http, {})
            failed = await http.post(RUN, json=BODY)
            assert (await http.get("/v1/runs/none")).status_code == 404
            assert (await http.get("/health/live")).status_code == 200
            place = http.base_url
    requests = [span for span in collector.spans if span.kind == SERVER]
    about = [(span.name, span.attributes["http.response.status_code"], span.failed) for span in requests]
    run = "POST /v1/agents/{name}/run"
    assert about == [
        (run, 200, False), (run, failed.status_code, True), ("GET /v1/runs/{run_id}", 404, False),
    ]  # fmt: skip
    assert requests[0].attributes["http.route"] == "/v1/agents/{name}/run"
    assert requests[0].attributes["server.address"] == place.host
    assert requests[0].attributes["server.port"] == place.port
    assert requests[1].attributes["error.type"] == str(failed.status_code)
    first, second = (span for span in collector.spans if span.name == "invoke_agent helper")
    assert [first.parent_id, second.parent_id] == [request.span_id for request in requests[:2]]
    assert "error.type" not in first.attributes
    assert second.attributes["error.type"] == failed.json()["code"]


async def test_who_sends_it_and_by_which_names_is_said(tmp_path: Path) -> None:
    write(tmp_path, manifest("helper"))
    with collecting() as collector:
        told(tmp_path, collector)
        async with server(runtime_of(tmp_path, ScriptedProvider("one"))) as http:
            await _rest(http, {})
    service = (("service.name", "astromesh"), ("service.version", __version__))
    assert collector.scopes == {(*service, SCHEMA_URL, "astromesh", __version__, SCHEMA_URL)}
    page = (ROOT / "docs" / "operations.md").read_text()
    assert SCHEMA_URL.rpartition("/")[2] in page


async def test_model_calls_name_their_server_and_the_model_that_answered(
    tmp_path: Path, mock_llm: MockModel
) -> None:
    """As spans, and as metrics: also of runs whose traces nobody keeps."""
    model = {"provider": "openai", "model": "mock+tokens=4", "endpoint": mock_llm.url, "api_key": "sk-x"}
    write(tmp_path, manifest("helper", model={"primary": model}))
    place = httpx.URL(mock_llm.url)
    mock_llm.script({"text": "Well."}, {"text": "Well."}, {"status": 400})
    with collecting() as collector:
        told(tmp_path, collector)
        async with server(AgentRuntime(tmp_path, data_dir=tmp_path / "data", env={})) as http:
            await _rest(http, {})
            await _rest(http, header(1, sampled=False))
            assert (await http.post(RUN, json=BODY)).status_code == 422
    said, *_ = (span for span in collector.spans if span.name.startswith("chat "))
    assert said.attributes["server.address"] == place.host
    assert said.attributes["server.port"] == place.port
    assert said.attributes["gen_ai.response.model"] == "mock+tokens=4"
    about = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai",
             "gen_ai.request.model": "mock+tokens=4", "server.address": place.host,
             "server.port": place.port}  # fmt: skip
    answered = {**about, "gen_ai.response.model": "mock+tokens=4"}
    tokens = {point[0]["gen_ai.token.type"]: point for point in collector.points(TOKENS)}
    assert tokens.keys() == {"input", "output"}
    for kind, (attributes, count, total) in tokens.items():
        assert attributes == {**answered, "gen_ai.token.type": kind}
        assert count == 2 and total > 0
    seconds = collector.points(SECONDS)
    assert {point[0].get("error.type", ""): point[1] for point in seconds} == {"": 2, "provider_rejected": 1}
    for attributes, _, total in seconds:
        assert about.items() <= attributes.items()
        assert total > 0


# -- content -----------------------------------------------------------------------------------------------

PRIVATE = {"query": "I am ann@example.org, what now?", "session_id": "s"}
#: each side has rules of its own; a name is no pattern of personal data
RULES = {
    "input": [{"type": "pii_detection", "action": "redact"}],
    "output": [{"type": "content_filter", "forbidden_keywords": ["Bluebird"], "action": "redact"}],
}
SCRIPT = (Reply("Looking for Bluebird.", [LOOK]), "Bluebird is bob@example.org.")


async def asked(folder: Path, collector: Collector, **telemetry: Any) -> tuple[str, str, str]:
    """The trace as it is shown, the events as they are shown, and the same trace after a restart."""
    write(folder, manifest("helper", tools=TOOLS, guardrails=RULES, memory=MEMORY))
    told(folder, collector, **telemetry)
    async with server(runtime_of(folder, ScriptedProvider(*SCRIPT))) as http:
        answer = await http.post(RUN, json=PRIVATE)
        done = answer.json()
        where = f"/v1/traces/{done['metadata']['trace_id']}"
        shown = (await http.get(where)).text
        events = (await http.get(f"/v1/runs/{done['run_id']}/events")).text
    runtime = runtime_of(folder, ScriptedProvider())
    async with server(runtime) as http:
        await runtime.durable.open()
        return shown, events, (await http.get(where)).text


async def test_messages_of_models_and_calls_of_tools_are_captured_as_the_rules_leave_them(
    tmp_path: Path,
) -> None:
    """Shown, after a restart and exported by the conventions' schema; what rules take out is nowhere."""
    with collecting() as collector:
        shown, events, after = await asked(tmp_path, collector, capture_content=True)
    first, second = (span for span in collector.spans if span.name == "chat test-model")
    system, user = first.json("gen_ai.input.messages")
    assert (system["role"], "You are helper." in system["parts"][0]["content"]) == ("system", True)
    assert user == {"role": "user", "parts": [{"type": "text", "content": "I am [EMAIL], what now?"}]}
    told = {"query": "private words of [EMAIL]"}
    call = {"type": "tool_call", "id": "c1", "name": "lookup", "arguments": told}
    (said,) = first.json("gen_ai.output.messages")
    assert said["parts"][1] == call and said["finish_reason"] == "tool_call"
    assert said["parts"][0]["content"].startswith("Looking for ")
    result = second.json("gen_ai.input.messages")[-1]
    tool = collector.named("execute_tool lookup")
    assert tool.json("gen_ai.tool.call.arguments") == told
    response = {
        "type": "tool_call_response",
        "id": "c1",
        "response": tool.attributes["gen_ai.tool.call.result"],
    }
    assert (result["role"], result["parts"]) == ("tool", [response])
    assert "[EMAIL]" in response["response"]
    exported = b"".join(collector.bodies).decode(errors="replace")
    for held in (shown, after, exported):
        assert "private words of [EMAIL]" in held
        for secret in ("Bluebird", "@example.org"):
            assert secret not in held
    spans = [span for span in json.loads(shown)["spans"] if span["name"] == "llm.complete"]
    assert spans[0]["attributes"]["input"][1] == {"role": "user", "content": "I am [EMAIL], what now?"}
    assert "You are helper." not in events, "prompts are for traces, not for whoever follows a run"


async def test_without_being_asked_nothing_that_was_said_is_in_a_trace(tmp_path: Path) -> None:
    with collecting() as collector:
        shown, _, after = await asked(tmp_path, collector)
    exported = b"".join(collector.bodies).decode(errors="replace")
    assert "execute_tool lookup" in exported
    for held in (shown, after, exported):
        for word in ("private words", "what now", "You are helper", "messages", "arguments", "[EMAIL]"):
            assert word not in held


async def test_a_failed_model_call_shows_what_it_was_asked(tmp_path: Path) -> None:
    write(tmp_path, manifest("helper"))
    with collecting() as collector:
        told(tmp_path, collector, capture_content=True)
        async with server(runtime_of(tmp_path, ScriptedProvider(ProviderTimeout("slow")))) as http:
            assert (await http.post(RUN, json=BODY)).status_code == 502
    span = next(span for span in collector.spans if span.name.startswith("chat"))
    assert span.failed
    assert span.json("gen_ai.input.messages")[-1]["parts"][0]["content"] == BODY["query"]
    assert "gen_ai.output.messages" not in span.attributes


async def test_a_durable_run_captures_too_and_its_followers_are_not_shown_it(tmp_path: Path) -> None:
    write(tmp_path, manifest("helper", tools=TOOLS, memory=MEMORY))
    with collecting() as collector:
        told(tmp_path, collector, capture_content=True)
        async with server(runtime_of(tmp_path, ScriptedProvider(*SCRIPT))) as http:
            taken = (await http.post("/v1/agents/helper/runs", json=BODY)).json()
            events = (await http.get(f"/v1/runs/{taken['run_id']}/events")).text
    assert "run.completed" in events and "You are helper." not in events and "model.content" not in events
    assert "private words" in collector.named("execute_tool lookup").attributes["gen_ai.tool.call.arguments"]
