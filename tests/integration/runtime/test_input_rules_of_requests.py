"""Input rules on context and metadata of a request: what they remove reaches no model and no record."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

RUN = "/v1/agents/helper/run"
PII = {"type": "pii_detection", "action": "redact"}
TOPIC = {"type": "topic_filter", "forbidden_topics": ["violence"]}
PROMPT = {"system": "{{ customer.mail }} {{ metadata.note }}"}
BODY = {
    "query": "Hi",
    "session_id": "s",
    "context": {"customer": {"mail": "ann@example.com", "age": 41, "ok": True, "more": ["bob@example.com"]}},
    "metadata": {"note": "call ann@example.com", "ann@example.com": 1},
    "tags": ["shop", "bob@example.com"],
}


@pytest.mark.parametrize("durable", [False, True])
async def test_personal_data_is_removed_from_context_and_metadata(tmp_path: Path, durable: bool) -> None:
    write(tmp_path, manifest(prompts=PROMPT, guardrails={"input": [PII]}))
    provider = ScriptedProvider("Hello.")
    async with client_of(runtime_of(tmp_path, provider)) as client:
        if durable:
            run_id = (await client.post("/v1/agents/helper/runs", json=BODY)).json()["run_id"]
        else:
            answer = (await client.post(RUN, json=BODY)).json()
            run_id = answer["run_id"]
            actions = answer["metadata"]["guardrails"]
            assert [a["type"] for a in actions] == ["pii_detection"] * 4
        async with asyncio.timeout(30):
            while not (run := (await client.get(f"/v1/runs/{run_id}")).json())["finished_at"]:
                await asyncio.sleep(0.01)
        events = (await client.get(f"/v1/runs/{run_id}/events")).text
    assert provider.requests[0].messages[0].content == "[EMAIL] call [EMAIL]"
    assert run["metadata"] == {"note": "call [EMAIL]", "ann@example.com": 1}  # names never change
    assert run["tags"] == ["shop", "[EMAIL]"]
    assert "bob@example.com" not in events and "call ann@example.com" not in events


async def test_a_topic_in_the_context_blocks_the_run(tmp_path: Path) -> None:
    write(tmp_path, manifest(guardrails={"input": [TOPIC]}))
    provider = ScriptedProvider("Hello.", repeat=True)
    async with client_of(runtime_of(tmp_path, provider)) as client:
        for part in ("context", "metadata"):
            body = {"query": "Hi", "session_id": "s", part: {"a": [{"b": "some violence"}]}}
            answer = await client.post(RUN, json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "guardrail_blocked"), part
        runs = (await client.get("/v1/runs")).json()["runs"]
    assert not provider.requests
    assert [run["metadata"] for run in runs] == [{}, {}]


@pytest.mark.parametrize(
    ("rule", "part", "status"),
    [
        ({"type": "max_length", "max_characters": 10}, "context", 200),
        ({"type": "max_length", "max_characters": 10, "apply_to": ["query", "context"]}, "context", 422),
        ({"type": "max_length", "max_characters": 10, "apply_to": ["query", "context"]}, "metadata", 200),
        ({**TOPIC, "apply_to": ["query"]}, "context", 200),
        ({**TOPIC, "apply_to": ["metadata"]}, "metadata", 422),
        ({**TOPIC, "apply_to": ["metadata"]}, "query", 200),
    ],
)
async def test_apply_to_names_the_parts_that_a_rule_checks(
    tmp_path: Path, rule: dict[str, Any], part: str, status: int
) -> None:
    write(tmp_path, manifest(guardrails={"input": [rule]}))
    text = "some violence here"
    body: dict[str, Any] = {"query": "Hi", "session_id": "s"}
    body[part] = text if part == "query" else {"a": text}
    async with client_of(runtime_of(tmp_path, ScriptedProvider("Hello."))) as client:
        assert (await client.post(RUN, json=body)).status_code == status


async def test_apply_to_of_an_output_rule_is_a_fault(tmp_path: Path) -> None:
    rule = {"type": "content_filter", "forbidden_keywords": ["x"], "apply_to": ["query"]}
    write(tmp_path, manifest(guardrails={"output": [rule]}))
    async with runtime_of(tmp_path, ScriptedProvider("Hello.")) as running:
        (found,) = running.broken["helper"]
    assert "apply_to" in str(found) and "output rules do not check" in str(found)


async def test_a_run_without_rules_keeps_what_it_was_given(tmp_path: Path) -> None:
    write(tmp_path, manifest())
    async with client_of(runtime_of(tmp_path, ScriptedProvider("Hello."))) as client:
        await client.post(RUN, json=BODY)
        (run,) = (await client.get("/v1/runs")).json()["runs"]
    assert json.loads(json.dumps(run["metadata"])) == BODY["metadata"]
