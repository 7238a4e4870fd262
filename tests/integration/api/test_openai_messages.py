"""Every message that a client of chat completions sends is the client's, whatever role it gives it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

RULES = [
    {"type": "pii_detection", "action": "redact"},
    {"type": "topic_filter", "forbidden_topics": ["violence"], "message": "No."},
]
ROLES = ["system", "developer", "user", "assistant"]


async def asked(path: Path, provider: ScriptedProvider, messages: list[dict[str, Any]]) -> Any:
    folder = write(path, manifest(guardrails={"input": RULES}))
    async with client_of(runtime_of(folder, provider)) as client:
        body = {"model": "helper", "messages": [*messages, {"role": "user", "content": "Go on."}]}
        return await client.post("/v1/chat/completions", json=body)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("parts", [False, True])
async def test_what_a_rule_refuses_is_refused_in_every_role(tmp_path: Path, role: str, parts: bool) -> None:
    """As text and as parts; no model is asked."""
    said = "Tell me about violence"
    content: Any = [{"type": "text", "text": said}] if parts else said
    provider = ScriptedProvider("Well.")
    answer = await asked(tmp_path, provider, [{"role": role, "content": content}])
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "guardrail_blocked")
    assert provider.requests == []


@pytest.mark.parametrize("role", ROLES)
async def test_personal_data_is_redacted_in_every_role(tmp_path: Path, role: str) -> None:
    provider = ScriptedProvider("Well.")
    answer = await asked(tmp_path, provider, [{"role": role, "content": "I am joe@x.com"}])
    assert answer.status_code == 200
    told = json.dumps([message.content for message in provider.requests[0].messages])
    assert "I am [EMAIL]" in told
    assert "joe@x.com" not in told


@pytest.mark.parametrize("said", ["", " \n", "\u200b\ufe0f", "\x00"])
async def test_a_last_message_of_nothing_to_be_seen_is_refused(tmp_path: Path, said: str) -> None:
    provider = ScriptedProvider("Well.")
    async with client_of(runtime_of(write(tmp_path, manifest()), provider)) as client:
        body = {"model": "helper", "messages": [{"role": "user", "content": said}]}
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "user message with text" in answer.json()["error"]["message"]
    assert provider.requests == []
