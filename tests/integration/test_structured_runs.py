"""`spec.output_schema`: the answer of a run is a value that fits, or an error that says why not."""

from __future__ import annotations

import json
from pathlib import Path

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


async def test_tools_come_first_and_the_schema_does_not_hinder_them(tmp_path: Path) -> None:
    provider = ScriptedProvider(ToolCall("c1", "lookup", '{"query": "x"}'), "It is seven.", '{"age": 7}')
    spec = {"output_schema": SCHEMA, "tools": TOOLS}
    async with client_of(runtime_of(write(tmp_path, manifest(**spec)), provider)) as client:  # type: ignore[arg-type]
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert json.loads(answer.json()["response"]) == {"age": 7}
    assert [r.output_schema for r in provider.requests] == [None, None, SCHEMA]
    assert answer.json()["metadata"]["tools_called"] == ["lookup"]
