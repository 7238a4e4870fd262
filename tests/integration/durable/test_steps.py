"""The steps of recorded runs: one numbered list over all branches, nested runs and segments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from astromesh.access.scopes import Viewer
from astromesh.errors import RunNotFound
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import RecordingTool, ScriptedProvider, plugin_of
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
MEMORY = {"conversational": {"backend": "sqlite"}}
LOOKUP = {"name": "lookup", "type": "lookup", "effect": "read"}


@asynccontextmanager
async def serving(
    folder: Path, provider: ScriptedProvider
) -> AsyncIterator[tuple[httpx.AsyncClient, AgentRuntime]]:
    used = RecordingTool("lookup", lambda query: f"found {query}", parameters=QUERY)
    runtime = runtime_of(folder, provider, plugins={"tools": {"lookup": plugin_of(used)}})
    async with client_of(runtime) as client:
        yield client, runtime


async def ended(client: httpx.AsyncClient, agent: str = "helper", query: str = "Hello") -> str:
    """Accepts a durable run and returns its id when it has ended."""
    accepted = await client.post(f"/v1/agents/{agent}/runs", json={"query": query, "session_id": "s"})
    run_id: str = accepted.json()["run_id"]
    async with asyncio.timeout(30):
        while not (await client.get(f"/v1/runs/{run_id}")).json()["finished_at"]:
            await asyncio.sleep(0.01)
    return run_id


async def listed(client: httpx.AsyncClient, run_id: str) -> list[dict[str, Any]]:
    answer = await client.get(f"/v1/runs/{run_id}/steps")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["steps"])


def asks(query: str) -> ToolCall:
    return ToolCall(f"call_{query}", "lookup", json.dumps({"query": query}))


async def test_every_step_of_a_run_has_a_number_its_kind_and_its_name(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(tools=[LOOKUP], memory=MEMORY))
    async with serving(folder, ScriptedProvider(asks("a"), "done")) as (client, _):
        run_id = await ended(client)
        steps = await listed(client, run_id)
        usage = (await client.get(f"/v1/runs/{run_id}")).json()["usage"]
    assert [(s["step"], s["kind"], s["name"], s["path"]) for s in steps] == [
        (1, "rule", "input", "input"),
        (2, "memory", "memory", "memory"),
        (3, "prompt", "prompt", "prompt"),
        (4, "model", "test-model", "react"),
        (5, "tool", "lookup", "react/tool:call_a"),
        (6, "node", "react", "react"),
        (7, "model", "test-model", "react"),
        (8, "node", "react", "react"),
        (9, "rule", "output", "output"),
    ]
    assert all(s["started_at"] > 0 and s["duration_ms"] >= 0 for s in steps)
    models = [s["usage"] for s in steps if s["kind"] == "model"]
    assert sum(u["input_tokens"] for u in models) == usage["input_tokens"]
    assert [s["usage"] for s in steps if s["kind"] in ("rule", "memory", "prompt", "tool")] == [None] * 5


async def contents(client: httpx.AsyncClient, run_id: str) -> list[dict[str, Any]]:
    numbers = [step["step"] for step in await listed(client, run_id)]
    return [(await client.get(f"/v1/runs/{run_id}/steps/{n}")).json() for n in numbers]


async def test_a_step_shows_what_it_has_read_and_written(tmp_path: Path) -> None:
    """The second request of the loop is stored as what differs from the first, and shown whole."""
    folder = write(tmp_path, manifest(tools=[LOOKUP]))
    provider = ScriptedProvider(asks("a"), "done")
    async with serving(folder, provider) as (client, runtime):
        run_id = await ended(client)
        steps = await contents(client, run_id)
        kept = await runtime.durable.store.steps(run_id)
        missing = await client.get(f"/v1/runs/{run_id}/steps/99")
    rule, prompt, models = steps[0], steps[1], [s for s in steps if s["kind"] == "model"]
    (tool,) = [s for s in steps if s["kind"] == "tool"]
    assert rule["output"] == {
        "query": "Hello", "actions": [], "history": None, "preface": [], "continuation": [],
    }  # fmt: skip
    assert [m["role"] for m in prompt["output"]["messages"]] == ["system", "user"]
    for request, step in zip(provider.requests, models, strict=True):
        said = [(m["role"], m.get("content", "")) for m in step["input"]["messages"]]
        assert said == [(m.role, m.content) for m in request.messages]
        assert [tool["name"] for tool in step["input"]["tools"]] == ["lookup"]
    assert models[0]["output"]["tool_calls"][0]["name"] == "lookup"
    assert tool["input"] == {"arguments": '{"query": "a"}'}
    assert tool["output"]["content"] == "found a"
    assert models[1]["output"]["content"] == steps[-1]["output"]["response"] == "done"
    second = next(s for s in kept if s.ordinal == models[1]["step"])
    assert second.about is not None and len(second.about["in"]["messages"]) == 2
    assert missing.status_code == 404


async def test_a_resumed_run_keeps_the_numbers_of_its_steps(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(tools=[{**LOOKUP, "effect": "write", "approval": "required"}]))
    async with serving(folder, ScriptedProvider(asks("a"), "done")) as (client, _):
        accepted = await client.post("/v1/agents/helper/run", json={"query": "Hello", "session_id": "s"})
        run_id = accepted.json()["run_id"]
        before = await listed(client, run_id)
        await client.post(f"/v1/runs/{run_id}/resume", json={"decision": "approve"})
        async with asyncio.timeout(30):
            while not (await client.get(f"/v1/runs/{run_id}")).json()["finished_at"]:
                await asyncio.sleep(0.01)
        after = await listed(client, run_id)
    assert [(s["step"], s["kind"]) for s in before] == [(1, "rule"), (2, "prompt"), (3, "model")]
    assert after[:3] == before
    assert [(s["step"], s["kind"]) for s in after[3:]] == [  # 4 is the decision
        (5, "tool"), (6, "node"), (7, "model"), (8, "node"), (9, "rule"),
    ]  # fmt: skip


async def test_the_steps_of_a_nested_run_are_steps_of_the_run_above(tmp_path: Path) -> None:
    below = {"name": "below", "type": "agent", "agent": "below"}
    folder = write(tmp_path, manifest(tools=[below]), manifest("below"))
    call = ToolCall("c1", "below", '{"query": "Who?"}')
    async with serving(folder, ScriptedProvider(call, "It is me.", "It is them.")) as (client, _):
        run_id = await ended(client)
        steps = await listed(client, run_id)
        runs = (await client.get("/v1/runs?agent=below")).json()["runs"]
        nested = await listed(client, nested_id := runs[0]["run_id"])
        model = (await client.get(f"/v1/runs/{nested_id}/steps/{nested[2]['step']}")).json()
        outside = await client.get(f"/v1/runs/{nested_id}/steps/{steps[0]['step']}")
        refused = await client.post(f"/v1/runs/{nested_id}/fork", json={"at": nested[2]["step"]})
    inside = [s for s in steps if "/run:below:c1" in s["path"]]
    assert [s["kind"] for s in inside] == ["rule", "prompt", "model", "node", "rule"]
    numbers = [s["step"] for s in steps]
    assert numbers == sorted({*numbers})
    assert steps.index(inside[-1]) < steps.index(next(s for s in steps if s["name"] == "below"))
    assert nested == inside and model["output"]["content"] == "It is me."
    assert outside.status_code == 404
    assert (refused.status_code, refused.json()["code"]) == (409, "not_recorded")
    assert run_id in refused.json()["detail"]


async def test_a_rule_step_has_the_verdict_of_each_rule(tmp_path: Path) -> None:
    rules = [{"type": "max_length", "max_chars": 1000}, {"type": "pii_detection", "action": "redact"}]
    folder = write(tmp_path, manifest(guardrails={"input": rules, "output": rules}))
    async with serving(folder, ScriptedProvider("Write to ann@example.com")) as (client, _):
        run_id = await ended(client)
        steps = await listed(client, run_id)
        first, last = [
            (await client.get(f"/v1/runs/{run_id}/steps/{one['step']}")).json()["output"]["verdicts"]
            for one in steps
            if one["kind"] == "rule"
        ]
        replay = (await client.post(f"/v1/runs/{run_id}/replay")).json()
    assert [(one["type"], one["action"]) for one in first] == [
        ("max_length", "pass"), ("pii_detection", "pass"),
    ]  # fmt: skip
    assert [(one["type"], one["action"]) for one in last] == [
        ("max_length", "pass"), ("pii_detection", "redact"),
    ]  # fmt: skip
    assert replay["reproduced"]


async def test_the_nodes_of_a_graph_are_steps_around_their_calls(tmp_path: Path) -> None:
    nodes = [{"name": "first", "kind": "prompt", "instructions": "Begin."},
             {"name": "second", "kind": "prompt", "instructions": "End.", "is_terminal": True}]  # fmt: skip
    graph = {"name": "plan", "entry": "first", "nodes": nodes, "edges": [{"from": "first", "to": "second"}]}
    head = {"apiVersion": "astromesh/v1", "kind": "Graph", "metadata": {"name": "plan"}, "spec": graph}
    folder = write(tmp_path, manifest(orchestration={"pattern": "graph", "graph": "plan"}))
    (folder / "graphs").mkdir()
    (folder / "graphs" / "plan.graph.yaml").write_text(json.dumps(head))
    async with serving(folder, ScriptedProvider("one", "two")) as (client, _):
        steps = await contents(client, await ended(client))
    node = steps[3]
    assert [(s["kind"], s["name"]) for s in steps[2:6]] == [
        ("model", "test-model"), ("node", "first"), ("model", "test-model"), ("node", "second"),
    ]  # fmt: skip
    assert node["output"]["edge"][0] == "second" and node["usage"]["output_tokens"] > 0
    assert node["input"] == {"outputs": {}, "context": {}}
    assert steps[5]["input"]["outputs"] == {"first": "one"}


async def test_what_the_output_rules_hide_is_in_no_step(tmp_path: Path) -> None:
    """Neither shown nor stored, once the run has ended: not in nodes either, and not in what they write."""
    rules = {"output": [{"type": "pii_detection", "action": "redact"}]}
    folder = write(tmp_path, manifest(tools=[LOOKUP], guardrails=rules))
    call = ToolCall("c1", "lookup", '{"query": "ann@example.com"}')
    async with serving(folder, ScriptedProvider(call, "Ask ann@example.com")) as (client, runtime):
        run_id = await ended(client)
        shown = json.dumps(await contents(client, run_id))
        kept = str(await runtime.durable.store.steps(run_id))
    assert "found [EMAIL]" in shown and "Ask [EMAIL]" in shown
    assert "ann@" not in shown + kept


async def test_what_a_node_has_made_is_data_under_the_output_rules(tmp_path: Path) -> None:
    """Whatever its keys are called: only the names and thoughts of the record itself are no data."""
    nodes = [{"name": "first", "kind": "prompt", "instructions": "Begin."},
             {"name": "second", "kind": "prompt", "instructions": "End.", "is_terminal": True}]  # fmt: skip
    graph = {"name": "plan", "entry": "first", "nodes": nodes, "edges": [{"from": "first", "to": "second"}]}
    head = {"apiVersion": "astromesh/v1", "kind": "Graph", "metadata": {"name": "plan"}, "spec": graph}
    rules = {"output": [{"type": "pii_detection", "action": "redact"}]}
    spec = manifest(orchestration={"pattern": "graph", "graph": "plan"}, guardrails=rules)
    folder = write(tmp_path, spec)
    (folder / "graphs").mkdir()
    (folder / "graphs" / "plan.graph.yaml").write_text(json.dumps(head))
    made = {"name": "ann@example.com", "kept": "all", "cards": ["4111111111111111"], "ann@example.com": 1}
    async with serving(folder, ScriptedProvider(json.dumps(made), "two")) as (client, runtime):
        run_id = await ended(client)
        steps = await contents(client, run_id)
        stored = str(await runtime.durable.store.steps(run_id))
        replay = (await client.post(f"/v1/runs/{run_id}/replay")).json()
    output = {"name": "[EMAIL]", "kept": "all", "cards": ["[CREDIT_CARD]"], "[EMAIL]": 1}
    assert steps[3]["output"]["result"]["output"] == output
    assert steps[5]["input"]["outputs"] == {"first": output}
    assert "ann@" not in stored and "4111111111111111" not in stored
    assert replay["reproduced"], replay


async def at_rest(runtime: AgentRuntime, run_id: str) -> str:
    """Returns what is stored of an ended run, when its address has left it."""
    store, kept = runtime.durable.store, "ann@"
    async with asyncio.timeout(30):
        while "ann@" in kept:
            await asyncio.sleep(0.02)
            row = await store.get(run_id)
            if row is not None and row.finished_at:
                kept = f"{row} {await store.steps(run_id)} {await store.events(run_id)}"
    assert "[EMAIL]" in kept
    return kept


@pytest.mark.parametrize("end", ["approve", "cancel", "store"])
async def test_what_the_output_rules_hide_is_in_no_step_of_a_run_that_waits(tmp_path: Path, end: str) -> None:
    """The record needs the texts to continue. Others do not see them, also of a nested run."""
    rules = {"output": [{"type": "pii_detection", "action": "redact"}]}
    below = {"name": "below", "type": "agent", "agent": "below"}
    asking = {**LOOKUP, "name": "ask", "effect": "write", "approval": "required"}
    outer = manifest(tools=[below], guardrails=rules)
    folder = write(tmp_path, outer, manifest("below", tools=[LOOKUP, asking], guardrails=rules))
    script: list[ToolCall | str] = [
        ToolCall("c0", "below", '{"query": "ann@example.com"}'),
        ToolCall("c1", "lookup", '{"query": "ann@example.com"}'),
        ToolCall("c2", "ask", '{"query": "ann@example.com"}'),
        "Asked ann@example.com",
        "Told ann@example.com",
    ]
    provider, used = ScriptedProvider(*script), RecordingTool("lookup", lambda query: query, parameters=QUERY)
    runtime = runtime_of(folder, provider, plugins={"tools": {"lookup": plugin_of(used)}})
    async with client_of(runtime) as client:
        body = {"query": "Hello", "session_id": "s"}
        run_id = (await client.post("/v1/agents/helper/run", json=body)).json()["run_id"]
        waiting = (await client.get(f"/v1/runs/{run_id}")).json()
        shown = json.dumps(await contents(client, run_id))
        compared = (await client.get("/v1/runs/compare", params={"a": run_id, "b": run_id})).text
        if end == "approve":
            await client.post(f"/v1/runs/{run_id}/resume", json={"decision": "approve"})
            assert provider.requests[2].messages[-1].content == "ann@example.com"
        elif end == "cancel":
            await client.post(f"/v1/runs/{run_id}/cancel")
        else:  # as `astromesh runs cancel` does, which does not know the rules
            await runtime.durable.store.cancel(run_id)
        kept = await at_rest(runtime, run_id)
        decisions = (await client.get(f"/v1/runs/{run_id}")).json()["decisions"]
    assert waiting["status"] == "waiting" and "[EMAIL]" in shown
    assert waiting["waiting_for"]["arguments"] == {"query": "ann@example.com"}, "a person must see it"
    assert "'question'" in kept and "run.waiting" in kept
    assert [one["arguments"] for one in decisions] == [{"query": "[EMAIL]"}] * (end == "approve")
    assert "ann@" not in shown + compared


async def test_others_do_not_see_the_steps_of_a_run(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest())
    async with serving(folder, ScriptedProvider("done")) as (client, runtime):
        run_id = await ended(client)
        travel = runtime.time_travel
        strangers = (Viewer("default", "somebody"), Viewer("elsewhere", None))
        tried = [one for who in strangers for one in (travel.steps(run_id, who), travel.step(run_id, 1, who))]
        found = await asyncio.gather(*tried, return_exceptions=True)
    assert [type(one) for one in found] == [RunNotFound] * 4


async def test_a_plain_run_has_no_steps(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest())
    async with serving(folder, ScriptedProvider("done")) as (client, _):
        plain = await client.post("/v1/agents/helper/run", json={"query": "Hello", "session_id": "s"})
        refused = await client.get(f"/v1/runs/{plain.json()['run_id']}/steps")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_recorded")
