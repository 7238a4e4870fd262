"""The twelve steps of a run, through the HTTP surface, with a scripted model."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from astromesh.errors import ProviderUnavailable
from astromesh.plugins import Plugins
from astromesh.runtime.config_loader import load_configuration
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import RecordingSink, ScriptedProvider, plugin_of
from astromesh.types import SessionKey, ToolCall, Turn
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

SQLITE = {"conversational": {"backend": "sqlite", "strategy": "sliding_window", "max_turns": 20}}
TOOLS = [{"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}]
EXPLODE = {"name": "explode", "type": "internal", "function": "tests.integration.sample_tools:explode"}
EVERYTHING: dict[str, Any] = {
    "tools": TOOLS,
    "memory": SQLITE,
    "guardrails": {
        "input": [{"type": "pii_detection", "action": "redact"}],
        "output": [{"type": "content_filter", "forbidden_keywords": ["classified"], "action": "redact"}],
    },
}


async def test_every_step_emits_its_event_in_the_order_of_the_document(tmp_path: Path) -> None:
    provider = ScriptedProvider(ToolCall("c1", "lookup", '{"query": "x"}'), "It is classified.")
    runtime = runtime_of(write(tmp_path, manifest(**EVERYTHING)), provider)
    sink = RecordingSink(wants_deltas=False)
    async with runtime:
        answer = await runtime.run("helper", "Mail me at ann@example.com", "s1", sinks=[sink])
    assert [event.type for event in sink.events] == [
        "run.started",
        "guardrail.action",
        "guardrails.checked",
        "memory.loaded",
        "prompt.rendered",
        "tools.listed",
        "node.started",
        "model.started",
        "model.finished",
        "tool.started",
        "tool.finished",
        "node.finished",
        "node.started",
        "model.started",
        "model.finished",
        "node.finished",
        "guardrail.action",
        "guardrails.checked",
        "memory.persisted",
        "run.completed",
    ]
    assert [event.seq for event in sink.events] == list(range(1, len(sink.events) + 1))
    assert answer.response == "It is [REDACTED]."
    assert answer.metadata["tools_called"] == ["lookup"]
    assert [g["type"] for g in answer.metadata["guardrails"]] == ["pii_detection", "content_filter"]


async def test_the_model_sees_the_redacted_query_the_prompt_and_the_tool(tmp_path: Path) -> None:
    provider = ScriptedProvider("fine")
    runtime = runtime_of(write(tmp_path, manifest(**EVERYTHING)), provider)
    async with runtime:
        await runtime.run("helper", "Mail me at ann@example.com", "s1")
    request = provider.requests[0]
    assert request.messages[0].content == "You are helper. Helps."
    assert request.messages[-1].content == "Mail me at [EMAIL]"
    assert [tool.name for tool in request.tools] == ["lookup"]


async def test_a_run_over_http_has_the_shape_of_the_document(tmp_path: Path) -> None:
    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider("hello"))
    async with client_of(runtime) as client:
        answer = await client.post("/v1/agents/helper/run", json={"query": "hi", "session_id": "s"})
    body = answer.json()
    assert answer.status_code == 200
    assert set(body) == {"response", "agent", "session_id", "run_id", "metadata"}
    assert body["response"] == "hello"
    assert body["run_id"].startswith("run_")
    assert {
        "provider", "model", "tokens_used", "usage", "latency_ms", "tools_called", "pattern", "iterations",
        "stop_reason", "trace_id", "guardrails",
    } <= set(body["metadata"])  # fmt: skip
    assert body["metadata"]["stop_reason"] == "completed"
    assert body["metadata"]["iterations"] == 1


async def test_history_survives_a_restart_and_reaches_the_next_run(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(memory=SQLITE))
    async with runtime_of(folder, ScriptedProvider("first answer")) as runtime:
        await runtime.run("helper", "first question", "s")
    again = ScriptedProvider("second answer")
    async with runtime_of(folder, again) as runtime:
        await runtime.run("helper", "second question", "s")
    said = [(m.role, m.content) for m in again.requests[0].messages[1:]]
    assert said == [
        ("user", "first question"), ("assistant", "first answer"), ("user", "second question"),
    ]  # fmt: skip


async def test_ten_messages_at_once_lose_no_turn_and_alternate(tmp_path: Path) -> None:
    provider = ScriptedProvider(lambda request: "to " + request.messages[-1].content, repeat=True)
    runtime = runtime_of(write(tmp_path, manifest(memory=SQLITE)), provider)
    async with client_of(runtime) as client:
        bodies = [{"query": f"q{n}", "session_id": "s"} for n in range(10)]
        answers = await asyncio.gather(*(client.post("/v1/agents/helper/run", json=b) for b in bodies))
        assert {a.status_code for a in answers} == {200}
        turns = (await client.get("/v1/agents/helper/sessions/s")).json()["turns"]
    assert [t["seq"] for t in turns] == list(range(1, 21))
    assert [t["role"] for t in turns] == ["user", "assistant"] * 10
    assert all(a["content"] == "to " + q["content"] for q, a in zip(turns[::2], turns[1::2], strict=True))


async def test_two_agents_never_share_history(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest("one", memory=SQLITE), manifest("two", memory=SQLITE))
    provider = ScriptedProvider("a", "b")
    async with runtime_of(folder, provider) as runtime:
        await runtime.run("one", "secret of one", "same")
        await runtime.run("two", "hello", "same")
    assert "secret of one" not in str(provider.requests[1].messages)


async def test_history_is_paged_and_erased(tmp_path: Path) -> None:
    runtime = runtime_of(write(tmp_path, manifest(memory=SQLITE)), ScriptedProvider("ok", repeat=True))
    async with client_of(runtime) as client:
        for n in range(3):
            await client.post("/v1/agents/helper/run", json={"query": f"q{n}", "session_id": "s/a b"})
        path = "/v1/agents/helper/sessions/s/a b"
        first = (await client.get(path, params={"limit": 4})).json()
        rest = (await client.get(path, params={"limit": 4, "after": first["next"]})).json()
        listed = (await client.get("/v1/agents/helper/sessions")).json()["sessions"]
        erased = await client.delete(path)
        gone = await client.get(path)
    assert [t["seq"] for t in first["turns"] + rest["turns"]] == [1, 2, 3, 4, 5, 6]
    assert first["next"] is not None and rest["next"] is None
    assert [(s["session_id"], s["turns"]) for s in listed] == [("s/a b", 6)]
    assert erased.status_code == 204
    assert (gone.status_code, gone.json()["code"]) == (404, "session_not_found")


async def test_a_failed_run_leaves_no_turn(tmp_path: Path) -> None:
    provider = ScriptedProvider(ProviderUnavailable("down"), repeat=True)
    runtime = runtime_of(write(tmp_path, manifest(memory=SQLITE)), provider)
    async with client_of(runtime) as client:
        failed = await client.post("/v1/agents/helper/run", json={"query": "q", "session_id": "s"})
        history = await client.get("/v1/agents/helper/sessions/s")
    assert (failed.status_code, failed.json()["code"]) == (502, "all_providers_failed")
    assert history.status_code == 404


async def test_a_blocked_query_is_422_and_reaches_no_model(tmp_path: Path) -> None:
    rule = {"type": "topic_filter", "forbidden_topics": ["violence"], "action": "block", "message": "No."}
    provider = ScriptedProvider("never")
    runtime = runtime_of(write(tmp_path, manifest(guardrails={"input": [rule]}, memory=SQLITE)), provider)
    async with client_of(runtime) as client:
        answer = await client.post("/v1/agents/helper/run", json={"query": "on violence", "session_id": "s"})
        history = await client.get("/v1/agents/helper/sessions/s")
    body = answer.json()
    assert answer.status_code == 422
    assert (body["code"], body["guardrail"], body["detail"]) == ("guardrail_blocked", "topic_filter", "No.")
    assert answer.headers["content-type"] == "application/problem+json"
    assert provider.requests == []
    assert history.status_code == 404


async def test_a_blocked_answer_is_200_with_the_safe_response_and_is_what_is_kept(tmp_path: Path) -> None:
    rule = {
        "type": "content_filter", "forbidden_keywords": ["classified"], "action": "block",
        "safe_response": "Sorry.",
    }  # fmt: skip
    runtime = runtime_of(
        write(tmp_path, manifest(guardrails={"output": [rule]}, memory=SQLITE)),
        ScriptedProvider("classified!"),
    )
    async with client_of(runtime) as client:
        answer = await client.post("/v1/agents/helper/run", json={"query": "q", "session_id": "s"})
        turns = (await client.get("/v1/agents/helper/sessions/s")).json()["turns"]
    assert (answer.status_code, answer.json()["response"]) == (200, "Sorry.")
    assert [t["content"] for t in turns] == ["q", "Sorry."]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"{", "JSON"),
        (b"[]", "JSON object"),
        (b'{"query": "q"}', "session_id"),
        (b'{"query": "", "session_id": "s"}', "query"),
        (b'{"query": 5, "session_id": "s"}', "query"),
        (b'{"query": "q", "session_id": "s", "sesion": 1}', "sesion"),
        (b'{"query": "q", "session_id": "a\\u0000b"}', "session_id"),
    ],
)
async def test_wrong_input_is_422_and_says_what(tmp_path: Path, body: bytes, word: str) -> None:
    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider("ok"))
    async with client_of(runtime) as client:
        answer = await client.post("/v1/agents/helper/run", content=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert word in answer.json()["detail"]


async def test_large_bodies_are_413_declared_or_not(tmp_path: Path) -> None:
    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider("ok"))

    async def undeclared():
        for _ in range(11):
            yield b"x" * 1_000_000

    async with client_of(runtime) as client:
        declared = await client.post("/v1/agents/helper/run", content=b"x" * 10_000_000)
        chunked = await client.post("/v1/agents/helper/run", content=undeclared())
    assert [(a.status_code, a.json()["code"]) for a in (declared, chunked)] == [
        (413, "payload_too_large")
    ] * 2


async def test_unknown_agents_routes_and_methods_are_problem_documents(tmp_path: Path) -> None:
    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider("ok"))
    async with client_of(runtime) as client:
        agent = await client.post("/v1/agents/helpr/run", json={"query": "q", "session_id": "s"})
        route = await client.get("/v1/nothing")
        method = await client.put("/v1/agents/helper/run")
    assert (agent.status_code, agent.json()["code"]) == (404, "agent_not_found")
    assert "Did you mean `helper`?" in agent.json()["detail"]
    assert (route.status_code, route.json()["code"]) == (404, "not_found")
    assert (method.status_code, method.json()["code"]) == (405, "method_not_allowed")
    assert all(a.json()["trace_id"] for a in (agent, route, method))


async def test_a_template_that_fails_in_a_run_is_told_to_the_log_not_to_the_caller(tmp_path: Path) -> None:
    """The answer points to the log, so the log names the agent, the line and the reason."""
    folder = write(tmp_path, manifest(prompts={"system": "one\n{{ 1 / (context.n or 0) }}"}))
    async with client_of(runtime_of(folder, ScriptedProvider("ok", "ok"))) as client:
        with capture_logs() as logged:
            failed = await client.post("/v1/agents/helper/run", json={"query": "q", "session_id": "s"})
        body = {"query": "q", "session_id": "s", "context": {"n": 1}}
        good = await client.post("/v1/agents/helper/run", json=body)
    assert (failed.status_code, failed.json()["code"], good.status_code) == (500, "internal", 200)
    assert "division" not in failed.text
    (entry,) = [one for one in logged if one["event"] == "run_failed"]
    assert (entry["agent"], entry["trace_id"]) == ("helper", failed.json()["trace_id"])
    assert "line 2" in entry["error"]
    assert "division by zero" in entry["error"]


async def test_the_openapi_document_lists_the_routes(tmp_path: Path) -> None:
    """What an unknown path is told to ask answers, and names what can be called."""
    async with client_of(runtime_of(write(tmp_path, manifest()), ScriptedProvider("ok"))) as client:
        answer = await client.get("/openapi.json")
    assert answer.status_code == 200
    assert {"/v1/agents/{name}/run", "/v1/runs/{run_id}/events"} <= set(answer.json()["paths"])


async def test_one_broken_agent_is_503_and_the_others_run(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(), manifest("broken", orchestration={"patern": "react"}))
    async with client_of(runtime_of(folder, ScriptedProvider("ok"))) as client:
        good = await client.post("/v1/agents/helper/run", json={"query": "q", "session_id": "s"})
        bad = await client.post("/v1/agents/broken/run", json={"query": "q", "session_id": "s"})
        listed = {a["name"]: a for a in (await client.get("/v1/agents")).json()["agents"]}
    assert good.status_code == 200
    assert (bad.status_code, bad.json()["code"]) == (503, "agent_unavailable")
    assert "manifest: agents/broken.agent.yaml:" in bad.json()["detail"]
    assert listed["broken"]["errors"][0].startswith("agents/broken.agent.yaml:")
    assert str(tmp_path) not in str([bad.json(), listed])
    assert listed["broken"]["status"] == "unavailable"
    assert "did you mean `pattern`" in listed["broken"]["errors"][0].lower()


def test_functions_that_are_not_there_are_found_at_load_all_at_once(tmp_path: Path) -> None:
    """`validate` and `serve --strict` read no more than this, so that a later start has no surprises."""
    tools = [
        {"name": "one", "type": "internal", "function": "os:get_cwd"},
        {"name": "two", "type": "internal", "function": "no_such_module_here:f"},
    ]
    folder = write(tmp_path, manifest(tools=tools), manifest("other"))
    plugins = Plugins({"providers": {"scripted": plugin_of(ScriptedProvider("ok"))}})
    configuration = load_configuration(folder, plugins, {})
    faults = [str(fault) for fault in configuration.broken["helper"]]
    assert [fault.split(": ")[1] for fault in faults] == ["spec.tools[0].function", "spec.tools[1].function"]
    assert faults[0].endswith("The module `os` has no `get_cwd`. Did you mean `getcwd`?")
    assert re.match(r".*helper\.agent\.yaml:\d+:\d+: ", faults[1])
    assert "other" in configuration.agents


async def test_a_run_is_bounded_by_max_iterations_without_an_extra_call(tmp_path: Path) -> None:
    provider = ScriptedProvider(
        lambda r: ToolCall(f"c{len(r.messages)}", "lookup", '{"query": "x"}'), repeat=True
    )
    spec: dict[str, Any] = {"tools": TOOLS, "orchestration": {"pattern": "react", "max_iterations": 3}}
    async with runtime_of(write(tmp_path, manifest(**spec)), provider) as runtime:
        answer = await runtime.run("helper", "go", "s")
    assert len(provider.requests) == 3
    assert (answer.metadata["iterations"], answer.metadata["stop_reason"]) == (3, "max_iterations")
    assert answer.response
    assert "found" not in answer.response


async def test_a_run_past_its_deadline_is_504_and_the_next_one_works(tmp_path: Path) -> None:
    async def never(_request: object) -> str:
        await asyncio.sleep(60)
        return "late"

    spec: dict[str, Any] = {"orchestration": {"pattern": "react", "timeout_seconds": 0.5}, "memory": SQLITE}
    runtime = runtime_of(write(tmp_path, manifest(**spec)), ScriptedProvider(never, "on time"))
    async with client_of(runtime) as client:
        late = await client.post("/v1/agents/helper/run", json={"query": "q", "session_id": "s"})
        good = await client.post("/v1/agents/helper/run", json={"query": "q", "session_id": "s"})
    assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
    assert good.json()["response"] == "on time"


@contextmanager
def held(database: Path) -> Iterator[None]:
    """Another process writes to the database, for as long as it likes."""
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def kept_of(runtime: AgentRuntime) -> list[tuple[str, str]]:
    """The turns of the session `s1`, once what was queued before has been written."""
    store = runtime.agent("helper").memory.conversations
    assert store is not None
    await store.append(SessionKey("default", "helper", "other", "anonymous"), "ann", (Turn("user", "x"),))
    found = await store.page(SessionKey("default", "helper", "s1", "anonymous"))
    return [(turn.content, turn.status) for turn in found]


async def test_a_run_whose_turns_could_not_be_written_in_time_never_writes_them(tmp_path: Path) -> None:
    """Its caller was told that it failed and sends the message again, which must not stand there twice."""
    spec: dict[str, Any] = {"orchestration": {"pattern": "react", "timeout_seconds": 0.2}, "memory": SQLITE}
    runtime = runtime_of(write(tmp_path, manifest(**spec)), ScriptedProvider("One."))
    body = {"query": "Hello", "session_id": "s1"}
    async with runtime, client_of(runtime) as client:
        with held(tmp_path / "data" / "astromesh.db"):
            late = await client.post("/v1/agents/helper/run", json=body)
        assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
        assert await kept_of(runtime) == []


async def test_a_run_cancelled_before_its_turns_were_written_keeps_what_it_said(tmp_path: Path) -> None:
    """Once, and marked: its text had left."""
    runtime = runtime_of(write(tmp_path, manifest(memory=SQLITE)), ScriptedProvider("It was said."))
    sink = RecordingSink(wants_deltas=True)
    async with runtime:
        with held(tmp_path / "data" / "astromesh.db"):
            run = asyncio.create_task(runtime.run("helper", "Hello", "s1", sinks=[sink]))
            while "node.finished" not in sink.types:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)  # by now it waits for the lock; what is to hold, holds earlier too
            run.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await run
        assert await kept_of(runtime) == [("Hello", "complete"), ("It was said.", "partial")]


async def test_a_tool_that_fails_is_told_to_the_model_and_the_run_goes_on(tmp_path: Path) -> None:
    provider = ScriptedProvider(ToolCall("c1", "explode", "{}"), "I could not.")
    async with runtime_of(write(tmp_path, manifest(tools=[EXPLODE])), provider) as runtime:
        answer = await runtime.run("helper", "go", "s")
    result = provider.requests[1].messages[-1]
    assert (result.role, result.tool_call_id) == ("tool", "c1")
    assert "boom" in result.content
    assert answer.response == "I could not."


async def test_a_tool_without_permission_is_neither_shown_nor_run(tmp_path: Path) -> None:
    spec: dict[str, Any] = {
        "tools": [
            *TOOLS,
            {"name": "explode", "type": "internal", "function": "tests.integration.sample_tools:explode"},
        ],
        "permissions": {"tools": ["lookup"]},
    }
    provider = ScriptedProvider(ToolCall("c1", "explode", "{}"), "done")
    async with runtime_of(write(tmp_path, manifest(**spec)), provider) as runtime:
        await runtime.run("helper", "go", "s")
    assert [t.name for t in provider.requests[0].tools] == ["lookup"]
    assert "boom" not in provider.requests[1].messages[-1].content


async def test_an_agent_tool_runs_the_whole_pipeline_of_the_other_agent_in_one_trace(tmp_path: Path) -> None:
    tool = {
        "name": "ask_billing", "type": "agent", "agent": "billing",
        "context_transform": '{"customer": "{{ query }}"}',
    }  # fmt: skip
    provider = ScriptedProvider(
        ToolCall("c1", "ask_billing", '{"query": "42"}'), "It is paid.", "Billing says it is paid."
    )
    folder = write(
        tmp_path,
        manifest("front", tools=[tool], memory=SQLITE),
        manifest("billing", prompts={"system": "Customer {{ customer }}"}, memory=SQLITE),
    )
    async with client_of(runtime_of(folder, provider)) as client:
        answer = await client.post("/v1/agents/front/run", json={"query": "paid?", "session_id": "s"})
        trace = (await client.get(f"/v1/traces/{answer.json()['metadata']['trace_id']}")).json()
        nested = (await client.get("/v1/agents/billing/sessions/s/ask_billing")).json()
    assert provider.requests[1].messages[0].content == "Customer 42"
    assert [t["content"] for t in nested["turns"]] == ["42", "It is paid."]
    runs = {s["attributes"]["agent"]: s for s in trace["spans"] if s["name"] == "agent.run"}
    call = next(s for s in trace["spans"] if s["name"] == "tool.call")
    assert runs["billing"]["parent_id"] == call["span_id"]
    spent = [s["attributes"]["usage"] for s in trace["spans"] if s["name"] == "llm.complete"]
    assert len(spent) == 3
    assert answer.json()["metadata"]["tokens_used"] == sum(
        u["input_tokens"] + u["output_tokens"] for u in spent
    )


async def test_the_trace_has_the_tree_of_the_document(tmp_path: Path) -> None:
    """Each visit of a node of the pattern's graph is a level between the pattern and its calls."""
    provider = ScriptedProvider(ToolCall("c1", "lookup", '{"query": "x"}'), "done")
    async with client_of(runtime_of(write(tmp_path, manifest(**EVERYTHING)), provider)) as client:
        answer = (await client.post("/v1/agents/helper/run", json={"query": "q", "session_id": "s"})).json()
        trace = (await client.get(f"/v1/traces/{answer['metadata']['trace_id']}")).json()
    names = {s["span_id"]: s["name"] for s in trace["spans"]}
    tree = [(names.get(s["parent_id"]), s["name"]) for s in trace["spans"]]
    assert tree == [
        (None, "agent.run"),
        ("agent.run", "guardrails.input"),
        ("agent.run", "memory_build"),
        ("agent.run", "prompt_render"),
        ("agent.run", "orchestration"),
        ("orchestration", "graph.node"),
        ("graph.node", "llm.complete"),
        ("graph.node", "tool.call"),
        ("orchestration", "graph.node"),
        ("graph.node", "llm.complete"),
        ("agent.run", "guardrails.output"),
        ("agent.run", "memory_persist"),
    ]


async def test_circular_agents_are_refused_with_the_circle(tmp_path: Path) -> None:
    def calls(other: str) -> dict[str, Any]:
        return {"tools": [{"name": f"ask_{other}", "type": "agent", "agent": other}]}

    folder = write(tmp_path, manifest("a", **calls("b")), manifest("b", **calls("a")))
    with pytest.raises(ValueError, match="a → b → a"):
        await runtime_of(folder, ScriptedProvider()).bootstrap()


async def test_metrics_count_what_ran(tmp_path: Path) -> None:
    async with client_of(runtime_of(write(tmp_path, manifest()), ScriptedProvider("ok"))) as client:
        await client.post("/v1/agents/helper/run", json={"query": "q", "session_id": "s"})
        text = (await client.get("/metrics")).text
    assert 'astromesh_runs_total{status="completed"} 1.0' in text
    assert 'astromesh_run_duration_seconds_count{agent="helper"} 1.0' in text


async def test_ready_is_503_while_the_only_provider_is_down(tmp_path: Path) -> None:
    provider = ScriptedProvider("ok")
    async with client_of(runtime_of(write(tmp_path, manifest(memory=SQLITE)), provider)) as client:
        up = await client.get("/health/ready")
        provider.down = ProviderUnavailable("gone")
        down = await client.get("/health/ready")
    assert (up.status_code, down.status_code) == (200, 503)
    assert "provider_unavailable" in down.json()["checks"].values()
