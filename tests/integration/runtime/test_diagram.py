"""The diagram of an agent shows what its runs use, and keeps addresses to itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astromesh.runtime.agent import agent_diagram
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, write

SCRIPTED = {"provider": "scripted", "model": "big"}
TOOLS = [
    {"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"},
    {"name": "pay", "type": "webhook", "endpoint": "http://127.0.0.1:9/secret-path", "approval": "required",
     "parameters": {"type": "object"}},
    {"name": "ask_billing", "type": "agent", "agent": "billing"},
]  # fmt: skip
WHOLE: dict[str, Any] = {
    "model": {
        "primary": SCRIPTED,
        "fallback": [{**SCRIPTED, "model": "small"}],
        "roles": {"planner": {"primary": {**SCRIPTED, "model": "wise"}}},
    },
    "tools": TOOLS,
    "permissions": {"tools": ["lookup", "pay"]},
    "guardrails": {
        "input": [{"type": "pii_detection", "action": "redact"}],
        "output": [{"type": "content_filter", "forbidden_keywords": ["x"], "action": "block"}],
    },
}


async def drawn(folder: Path, agent: dict[str, Any]) -> str:
    runtime = runtime_of(write(folder, agent, manifest("billing")), ScriptedProvider())
    async with runtime:
        return agent_diagram(runtime.agent("helper"))


async def test_models_tools_and_guardrails_are_drawn_with_what_matters_of_them(tmp_path: Path) -> None:
    text = await drawn(tmp_path, manifest("helper", **WHOLE))
    assert text.startswith("flowchart TD\n")
    labels = {part for line in text.splitlines() for part in line.split('"')[1:2]}
    assert {
        "scripted/big", "scripted/small (fallback)", "scripted/wise (planner)",
        "lookup (internal tests.integration.sample_tools:lookup)", "pay (webhook, approval)",
        "ask_billing (agent billing, not permitted)", "pii_detection: redact", "content_filter: block",
    } <= labels  # fmt: skip
    assert {"input --> pattern", "pattern --> output", "pattern -.-> models", "pattern -.-> tools"} <= {
        line.strip() for line in text.splitlines()
    }
    assert "secret-path" not in text


@pytest.mark.parametrize(
    "orchestration",
    [
        {"pattern": "supervisor", "workers": ["billing"]},
        {"pattern": "supervisor", "supervisor": {"workers": ["billing"]}},
    ],
)
async def test_workers_are_drawn(tmp_path: Path, orchestration: dict[str, Any]) -> None:
    text = await drawn(tmp_path, manifest("helper", orchestration=orchestration))
    assert 'workers0["billing"]' in text
    assert "pattern -.-> workers" in text


async def test_what_an_agent_does_not_have_is_not_drawn(tmp_path: Path) -> None:
    text = await drawn(tmp_path, manifest("helper"))
    assert not {"tools", "workers", "input", "output"} & set(text.split())
