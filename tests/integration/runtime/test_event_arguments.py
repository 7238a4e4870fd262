"""Arguments of tools in events: what an answer may not say, a frame may not show either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astromesh.testing import RecordingSink, ScriptedProvider
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

TOOLS = [
    {"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"},
]
RULES: list[dict[str, Any]] = [
    {"type": "pii_detection", "action": "redact"},
    {"type": "content_filter", "forbidden_keywords": ["codename"], "action": "redact"},
]
SAID = {"query": "codename of ann@example.com", "more": {"to": ["4111111111111111", 4111111111111111]}}


def folder_of(path: Path, output: list[dict[str, Any]]) -> Path:
    return write(path, manifest(tools=TOOLS, guardrails={"output": output}))


def script() -> ScriptedProvider:
    return ScriptedProvider(ToolCall("c1", "lookup", json.dumps(SAID)), "Done.", repeat=True)


@pytest.mark.parametrize("rules", [RULES, [{**rule, "action": "block"} for rule in RULES]])
async def test_events_show_arguments_as_the_output_rules_leave_them(tmp_path: Path, rules: Any) -> None:
    """Texts, nested ones and numbers; rules that redact and rules that block."""
    sink = RecordingSink()
    async with runtime_of(folder_of(tmp_path, rules), script()) as runtime:
        await runtime.run("helper", "Who?", "s", sinks=[sink])
    shown = json.dumps(sink.one("tool.started"))
    assert "lookup" in shown
    for secret in ("codename", "ann@example.com", "4111111111111111"):
        assert secret not in shown


async def test_the_tool_itself_gets_what_the_model_said(tmp_path: Path) -> None:
    """Redacted is what is shown; the next model call shows what the tool made of the whole."""
    provider = ScriptedProvider(ToolCall("c1", "lookup", '{"query": "ann@example.com"}'), "Done.")
    async with runtime_of(folder_of(tmp_path, RULES), provider) as runtime:
        await runtime.run("helper", "Who?", "s", sinks=[RecordingSink()])
    assert provider.requests[1].messages[-1].content == "found: ann@example.com"


async def test_the_stream_over_http_shows_no_more(tmp_path: Path) -> None:
    body = {"query": "Who?", "session_id": "s"}
    async with client_of(runtime_of(folder_of(tmp_path, RULES), script())) as client:
        answer = await client.post(
            "/v1/agents/helper/run", json=body, headers={"Accept": "text/event-stream"}
        )
    assert "event: tool.started" in answer.text
    for secret in ("codename", "ann@example.com", "4111111111111111"):
        assert secret not in answer.text


async def test_without_rules_arguments_are_shown_as_they_are(tmp_path: Path) -> None:
    sink = RecordingSink()
    async with runtime_of(folder_of(tmp_path, []), script()) as runtime:
        await runtime.run("helper", "Who?", "s", sinks=[sink])
    assert sink.one("tool.started")["arguments"] == SAID


async def test_arguments_of_any_depth_break_nothing(tmp_path: Path) -> None:
    sink, deep = RecordingSink(), "[" * 1_000 + "1" + "]" * 1_000
    provider = ScriptedProvider(ToolCall("c1", "lookup", f'{{"query": {deep}}}'), "Done.")
    async with runtime_of(folder_of(tmp_path, RULES), provider) as runtime:
        answer = await runtime.run("helper", "Who?", "s", sinks=[sink])
    assert answer.response == "Done."
    assert "…" in str(sink.one("tool.started")["arguments"])
