"""Names of tools that a model makes up: what an answer may not say, no event, record or trace says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.testing import RecordingSink, ScriptedProvider
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

TOOLS = [{"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}]
RULES: list[dict[str, Any]] = [
    {"type": "pii_detection", "action": "redact"},
    {"type": "content_filter", "forbidden_keywords": ["codename", "lookup"], "action": "redact"},
]
PAST = "{% for e in episodic_events if e.event == 'tool_call' %}{{ e.tool }} {{ e.result }};{% endfor %}"
SECRETS = ("joe@x.com", "codename", "4111111111111111")


def folder_of(path: Path, output: list[dict[str, Any]], **spec: Any) -> Path:
    return write(path, manifest(tools=TOOLS, guardrails={"output": output}, **spec))


def script() -> ScriptedProvider:
    """Tools that there are none of, one at a time and together, and one that there is."""
    invented = [ToolCall(f"c{n}", name, "{}") for n, name in enumerate(SECRETS)]
    real = ToolCall("c9", "lookup", '{"query": "x"}')
    return ScriptedProvider(invented[0], [*invented[1:], real], "Done.", repeat=True)


@pytest.mark.parametrize("rules", [RULES, [{**rule, "action": "block"} for rule in RULES]])
async def test_no_event_and_no_metadata_hold_a_made_up_name_raw(tmp_path: Path, rules: Any) -> None:
    """The name of the agent's own tool is shown, though a rule forbids the word."""
    sink = RecordingSink()
    async with runtime_of(folder_of(tmp_path, rules), script()) as runtime:
        answer = await runtime.run("helper", "Who?", "s", sinks=[sink])
    said = json.dumps([[event.type, event.data] for event in sink.events]) + json.dumps(answer.to_json())
    assert not [secret for secret in SECRETS if secret in said]
    names = [event.data["name"] for event in sink.events if event.type == "tool.finished"]
    assert len(names) == 4 and "lookup" in names
    assert sorted(answer.metadata["tools_called"]) == sorted(names)


async def test_the_stream_and_the_record_over_http_hold_none_either(tmp_path: Path) -> None:
    body = {"query": "Who?", "session_id": "s"}
    async with client_of(runtime_of(folder_of(tmp_path, RULES), script())) as client:
        streamed = await client.post(
            "/v1/agents/helper/run", json=body, headers={"Accept": "text/event-stream"}
        )
        about = json.loads(streamed.text.rsplit("data: ", 1)[1])
        places = (f"runs/{about['run_id']}", f"traces/{about['metadata']['trace_id']}")
        kept = [await client.get(f"/v1/{place}") for place in places]
    assert [response.status_code for response in (streamed, *kept)] == [200, 200, 200]
    assert "event: tool.started" in streamed.text
    for response in (streamed, *kept):
        assert "[EMAIL]" in response.text
        assert not [secret for secret in SECRETS if secret in response.text]


async def test_no_trace_with_content_and_no_memory_holds_one(tmp_path: Path) -> None:
    """What is kept of a call for later runs has its name as the rules leave it; so has what is captured."""
    folder = folder_of(
        tmp_path, RULES, memory={"episodic": {"backend": "in_memory"}}, prompts={"system": PAST}
    )
    spec = {"telemetry": {"capture_content": True}}
    settings = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": spec}
    (folder / "runtime.yaml").write_text(yaml.safe_dump(settings))
    provider = script()
    async with client_of(runtime_of(folder, provider)) as client:
        body = {"query": "Who?", "session_id": "s"}
        about = (await client.post("/v1/agents/helper/run", json=body)).json()
        await client.post("/v1/agents/helper/run", json=body)
        trace = (await client.get(f"/v1/traces/{about['metadata']['trace_id']}")).text
    told = str(provider.requests[-1].messages[0].content)
    assert "Who?" in trace and "[CREDIT_CARD]" in trace
    assert "lookup" in told and "[EMAIL]" in told
    assert not [secret for secret in SECRETS if secret in told + trace]


async def test_the_model_is_told_the_name_that_it_said(tmp_path: Path) -> None:
    provider = script()
    async with runtime_of(folder_of(tmp_path, RULES), provider) as runtime:
        await runtime.run("helper", "Who?", "s")
    assert "joe@x.com" in provider.requests[1].messages[-1].content


async def test_without_rules_names_are_shown_as_they_are(tmp_path: Path) -> None:
    async with runtime_of(folder_of(tmp_path, []), script()) as runtime:
        answer = await runtime.run("helper", "Who?", "s")
    assert set(SECRETS) <= set(answer.metadata["tools_called"])


@pytest.mark.parametrize("rules", [[], RULES])
async def test_a_made_up_name_without_end_is_cut_wherever_it_is_shown(tmp_path: Path, rules: Any) -> None:
    sink = RecordingSink()
    provider = ScriptedProvider(ToolCall("c1", "xyz " * 25_000, "{}"), "Done.")
    async with runtime_of(folder_of(tmp_path, rules), provider) as runtime:
        answer = await runtime.run("helper", "Who?", "s", sinks=[sink])
    said = [event.data["name"] for event in sink.events if event.type in ("tool.started", "tool.finished")]
    assert [*answer.metadata["tools_called"], *said] == ["xyz " * 16] * 3
