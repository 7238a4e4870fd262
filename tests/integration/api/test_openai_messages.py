"""Every message that a client of chat completions sends is the client's, whatever role it gives it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from astromesh.errors import ProviderUnavailable
from astromesh.testing import ManualClock, ScriptedProvider
from astromesh.types import CompletionRequest
from tests.integration.agents_folder import client_of, manifest, runtime_of, served, write

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


# -- errors ------------------------------------------------------------------------------------------------

MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"
KEYS = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "metadata": {"name": "runtime"}}


def assert_openai_error(answer: httpx.Response, status: int, code: str, kind: str) -> None:
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["code"], error["type"], error["message"] != "") == (code, kind, True)


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/models/helper"])
async def test_without_a_key_the_error_is_openais(tmp_path: Path, path: str) -> None:
    folder = write(tmp_path, manifest())
    (folder / "runtime.yaml").write_text(yaml.safe_dump({**KEYS, "spec": {"auth": {"mode": "api_key"}}}))
    async with client_of(runtime_of(folder, ScriptedProvider())) as client:
        answer = await client.request("POST" if path == CHAT else "GET", path, json={})
    assert_openai_error(answer, 401, "unauthorized", "authentication_error")


async def test_every_error_of_these_routes_is_openais(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest())
    rate = {"max_calls": 5, "window_seconds": 60}
    (folder / "runtime.yaml").write_text(yaml.safe_dump({**KEYS, "spec": {"api": {"rate_limit": rate}}}))
    async with client_of(runtime_of(folder, ScriptedProvider())) as client:
        wrong = "invalid_request_error"
        assert_openai_error(await client.post(CHAT, content=b"\xff"), 422, "invalid_input", wrong)
        assert_openai_error(await client.post(CHAT, json={}), 400, "invalid_input", wrong)
        assert_openai_error(
            await client.post(CHAT, content=b"x" * (1 << 21)), 413, "payload_too_large", wrong
        )
        assert_openai_error(await client.delete(CHAT), 405, "method_not_allowed", wrong)
        assert_openai_error(await client.get(f"{CHAT}/none"), 404, "not_found", wrong)
        assert_openai_error(await client.get("/v1/models/nobody"), 404, "agent_not_found", wrong)
        assert_openai_error(await client.get("/v1/models?" + "x" * 9000), 414, "uri_too_long", wrong)
        for _ in range(3):
            assert (await client.get("/v1/models")).status_code == 200
        limited = await client.get("/v1/models")
        assert_openai_error(limited, 429, "rate_limited", "rate_limit_error")
        assert limited.headers["retry-after"]
        other = await client.get("/v1/agents/nobody")
    assert "error" not in other.json()


async def test_one_model_is_found_by_its_id(tmp_path: Path) -> None:
    async with client_of(runtime_of(write(tmp_path, manifest()), ScriptedProvider())) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        found = (await client.get("/v1/models/helper")).json()
    assert [found] == listed


async def test_null_for_stream_and_a_refusal_among_the_messages_are_accepted(tmp_path: Path) -> None:
    """Clients send back what they got: an answer of parts, one of them a refusal."""
    provider = ScriptedProvider("Well.")
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I would rather not."}]}
    async with client_of(runtime_of(write(tmp_path, manifest()), provider)) as client:
        body = {"model": "helper", "messages": [*MESSAGES, refused, *MESSAGES], "stream": None}
        answer = await client.post(CHAT, json=body)
    assert answer.json()["choices"][0]["message"]["content"] == "Well."
    assert "I would rather not." in [message.content for message in provider.requests[0].messages]


# -- the head of a stream ----------------------------------------------------------------------------------


async def streamed(path: Path, provider: ScriptedProvider, said: str, **spec: Any) -> httpx.Response:
    async with client_of(runtime_of(write(path, manifest(**spec)), provider)) as client:
        body = {"model": "helper", "messages": [{"role": "user", "content": said}], "stream": True}
        return await client.post(CHAT, json=body)


async def test_a_blocked_question_is_a_status_of_its_stream(tmp_path: Path) -> None:
    answer = await streamed(tmp_path, ScriptedProvider(), "violence", guardrails={"input": RULES})
    assert_openai_error(answer, 422, "guardrail_blocked", "invalid_request_error")
    assert answer.json()["error"]["message"] == "No."


async def test_a_model_that_is_down_is_a_status_of_its_stream(tmp_path: Path) -> None:
    down = [ProviderUnavailable("down")] * 3
    answer = await streamed(tmp_path, ScriptedProvider(*down), "Hello")
    assert_openai_error(answer, 502, "all_providers_failed", "server_error")


async def test_an_agent_that_is_not_there_is_a_status_of_its_stream(tmp_path: Path) -> None:
    async with client_of(runtime_of(write(tmp_path, manifest()), ScriptedProvider())) as client:
        body = {"model": "nobody", "messages": MESSAGES, "stream": True}
        answer = await client.post(CHAT, json=body)
    assert_openai_error(answer, 404, "agent_not_found", "invalid_request_error")


async def test_the_head_of_a_stream_waits_ten_seconds_at_most(tmp_path: Path) -> None:
    """A model that thinks for long: proxies and clients that time heads out see one."""
    clock, go = ManualClock(), asyncio.Event()

    async def slow(request: CompletionRequest) -> str:
        await go.wait()
        return "Well."

    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider(slow), clock=clock)
    async with served(runtime) as at, httpx.AsyncClient(base_url=f"http://{at}", timeout=60) as client:
        body = {"model": "helper", "messages": MESSAGES, "stream": True}
        request = client.build_request("POST", CHAT, json=body)
        head = asyncio.create_task(client.send(request, stream=True))
        while not runtime.runner.active.count:
            await asyncio.sleep(0.005)
        while not head.done():
            clock.advance(1)
            await asyncio.sleep(0.01)
        go.set()
        answer = await head
        text = (await answer.aread()).decode()
    assert clock.monotonic() >= 10
    assert answer.status_code == 200
    assert "Well." in text
    assert text.endswith("data: [DONE]\n\n")
