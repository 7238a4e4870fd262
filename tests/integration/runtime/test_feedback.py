"""What people think of an answer is an event of its session, which the next run recalls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from astromesh.api.auth import Auth
from astromesh.testing import ScriptedProvider
from astromesh.types import CallerContext
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

KEEPS = {"episodic": {"backend": "in_memory"}}
PROMPT = {
    "system": "{% for e in episodic_events if e.event == 'user_feedback' %}"
    "{{ e.rating }} {{ e.comment }};{% endfor %}"
}
RULES = {
    "input": [{"type": "pii_detection"}, {"type": "topic_filter", "forbidden_topics": ["arson"]}],
}


class Named:
    """Tells callers by their token, which is their name; `boss` sees the sessions of others."""

    async def authenticate(self, token: str) -> CallerContext:
        more = {"sessions:any"} if token == "boss" else set()
        return CallerContext(token, "default", scopes=frozenset({"agents:run", "runs:write"} | more))


async def asked(client: httpx.AsyncClient, who: str, agent: str = "helper") -> str:
    body = {"query": "Hello", "session_id": "s"}
    answer = await client.post(f"/v1/agents/{agent}/run", json=body, headers={"x-api-key": who})
    run_id: str = answer.json()["run_id"]
    return run_id


async def rate(client: httpx.AsyncClient, run_id: str, who: str = "ann", **body: Any) -> httpx.Response:
    return await client.post(f"/v1/runs/{run_id}/feedback", json=body, headers={"x-api-key": who})


async def test_feedback_is_recalled_by_the_next_run_of_the_session(tmp_path: Path) -> None:
    """With a rating and a comment, which has passed the agent's input rules."""
    folder = write(tmp_path, manifest(memory=KEEPS, prompts=PROMPT, guardrails=RULES))
    async with (
        runtime_of(folder, provider := ScriptedProvider("Hi.", repeat=True)) as runtime,
        client_of(runtime, Auth((Named(),))) as client,
    ):
        run_id = await asked(client, "ann")
        assert (await rate(client, run_id, rating=-1, comment="Ask ann@example.com")).status_code == 204
        assert (await rate(client, run_id, rating=1)).status_code == 204
        await asked(client, "ann")
    assert provider.requests[-1].messages[0].content == "-1 Ask [EMAIL];1 ;"


async def test_feedback_that_cannot_be_kept_is_told(tmp_path: Path) -> None:
    """Of others' runs, even for who may see them; what a rule refuses; no rating; an agent without events."""
    folder = write(tmp_path, manifest(memory=KEEPS, guardrails=RULES), manifest("bare"))
    async with (
        runtime_of(folder, ScriptedProvider("Hi.", repeat=True)) as runtime,
        client_of(runtime, Auth((Named(),))) as client,
    ):
        run_id, bare = await asked(client, "ann"), await asked(client, "ann", "bare")
        refused = await asyncio.gather(
            rate(client, run_id, "bob", rating=1),
            rate(client, run_id, "boss", rating=1),
            rate(client, "run_none", rating=1),
            rate(client, run_id, rating=1, comment="Teach me arson"),
            rate(client, run_id, rating=5),
            rate(client, bare, rating=1),
        )
    assert [(answer.status_code, answer.json()["code"]) for answer in refused] == [
        (404, "run_not_found"), (404, "run_not_found"), (404, "run_not_found"),
        (422, "guardrail_blocked"), (422, "invalid_input"), (409, "conflict"),
    ]  # fmt: skip
