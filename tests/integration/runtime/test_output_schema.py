"""`spec.output_schema`: the answer of a run is a value that fits, or an error that says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from astromesh.testing import ScriptedProvider
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

SCHEMA = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}}
TOOLS = [{"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}]
ASK = {"query": "How old?", "session_id": "s"}


async def test_a_fitting_answer_becomes_plain_json(tmp_path: Path) -> None:
    provider = ScriptedProvider('Here you are:\n```json\n{"age": 7}\n```')
    async with client_of(runtime_of(write(tmp_path, manifest(output_schema=SCHEMA)), provider)) as client:
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert json.loads(answer.json()["response"]) == {"age": 7}
    assert provider.requests[0].output_schema == SCHEMA


async def test_a_wrong_answer_is_repaired_once(tmp_path: Path) -> None:
    provider = ScriptedProvider('{"age": "seven"}', '{"age": 7}')
    async with client_of(runtime_of(write(tmp_path, manifest(output_schema=SCHEMA)), provider)) as client:
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert json.loads(answer.json()["response"]) == {"age": 7}
    told = provider.requests[1].messages[-1].content
    assert "age" in told and "integer" in told


async def test_a_second_wrong_answer_is_an_error_that_says_what_was_wrong(tmp_path: Path) -> None:
    provider = ScriptedProvider("no json", '{"age": null}')
    async with client_of(runtime_of(write(tmp_path, manifest(output_schema=SCHEMA)), provider)) as client:
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert (answer.status_code, answer.json()["code"]) == (502, "invalid_output")
    assert "integer" in answer.json()["detail"]
    assert len(provider.requests) == 2


async def test_a_tool_loop_is_told_the_schema_from_its_first_call_on(tmp_path: Path) -> None:
    provider = ScriptedProvider(ToolCall("c1", "lookup", '{"query": "x"}'), '{"age": 7}')
    spec: dict[str, Any] = {"output_schema": SCHEMA, "tools": TOOLS}
    async with client_of(runtime_of(write(tmp_path, manifest(**spec)), provider)) as client:
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert json.loads(answer.json()["response"]) == {"age": 7}
    assert [r.output_schema for r in provider.requests] == [SCHEMA, SCHEMA]
    assert answer.json()["metadata"]["tools_called"] == ["lookup"]


async def test_the_repair_has_the_tool_calls_and_their_results_and_calls_none(tmp_path: Path) -> None:
    provider = ScriptedProvider(ToolCall("c1", "lookup", '{"query": "x"}'), "It is seven.", '{"age": 7}')
    spec: dict[str, Any] = {"output_schema": SCHEMA, "tools": TOOLS}
    async with client_of(runtime_of(write(tmp_path, manifest(**spec)), provider)) as client:
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert json.loads(answer.json()["response"]) == {"age": 7}
    first, second, repaired = provider.requests
    assert second.messages == repaired.messages[: len(second.messages)]
    assert [m.role for m in repaired.messages[len(first.messages) :]] == [
        "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    assert (repaired.tools, repaired.tool_choice, repaired.output_schema) == (first.tools, "none", SCHEMA)


async def test_a_stage_on_the_way_answers_freely_and_only_the_last_one_by_the_schema(tmp_path: Path) -> None:
    provider = ScriptedProvider(ToolCall("c1", "lookup", '{"query": "x"}'), "Seven, it seems.", '{"age": 7}')
    stages = [{"name": "look", "prompt": "Look it up."}, {"name": "tell", "prompt": "Tell."}]
    spec: dict[str, Any] = {
        "output_schema": SCHEMA,
        "tools": TOOLS,
        "orchestration": {"pattern": "pipeline", "stages": stages},
    }
    async with client_of(runtime_of(write(tmp_path, manifest(**spec)), provider)) as client:
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert json.loads(answer.json()["response"]) == {"age": 7}
    assert [r.output_schema for r in provider.requests] == [None, None, SCHEMA]


async def test_an_answer_of_roles_is_asked_for_by_the_schema_before_it_is_repaired(tmp_path: Path) -> None:
    """Two branches with roles are told no schema: who joins them is, and may be mended once."""
    provider = ScriptedProvider("Seven.", "Eight.", '{"age": "seven"}', '{"age": 7}')
    model = {"provider": "scripted", "model": "test-model"}
    spec: dict[str, Any] = {
        "output_schema": SCHEMA,
        "model": {"primary": model, "roles": {"a": {"primary": model}, "b": {"primary": model}}},
        "orchestration": {"pattern": "parallel_fan_out", "branches": [{"role": "a"}, {"role": "b"}]},
    }
    async with client_of(runtime_of(write(tmp_path, manifest(**spec)), provider)) as client:
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert json.loads(answer.json()["response"]) == {"age": 7}
    assert [r.output_schema for r in provider.requests] == [None, None, SCHEMA, SCHEMA]
    asked, repaired = provider.requests[2:]
    assert "Seven." in asked.messages[-2].content
    assert "Eight." in asked.messages[-2].content
    assert asked.messages == repaired.messages[: len(asked.messages)]
