"""S10: what an input rule redacts or refuses never reaches the disk. It is sought while the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from astromesh.guardrails.base import CheckContext, Rule, Verdict
from astromesh.testing import ScriptedProvider
from astromesh.types import CompletionRequest, ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.platform.at_rest import places_of

SECRET = "ann.secret"
MAIL = f"{SECRET}@example.com"
PII = {"type": "pii_detection", "action": "redact"}
#: the same text in every part of a request that the rules check
BODY = {
    "query": f"Write to {MAIL} please",
    "session_id": "s-1",
    "context": {"customer": {"mail": MAIL}},
    "metadata": {"note": f"call {MAIL}"},
    "tags": [MAIL, "shop"],
}
CUSTOM = {"type": "custom", "apply_to": ["query", "context", "metadata"]}
RUNS, CHAT = "/v1/agents/helper/runs", "/v1/chat/completions"
PATIENCE = 30.0


class Custom(Rule):
    """A rule of somebody's own that hides the address. It is `broken` for so many checks."""

    type = "custom"
    broken: int = 0

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        if self.broken:
            self.broken -= 1
            raise ValueError("not yet")
        return Verdict("redact", text.replace(MAIL, "[HIDDEN]")) if MAIL in text else None


class Held:
    """A model that waits until it may answer."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: CompletionRequest) -> str:
        self.asked.set()
        await asyncio.wait_for(self.go.wait(), PATIENCE)
        return f"You said {request.messages[-1].content}"


@pytest.fixture(params=("sqlite", "postgres"))
def storage(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("postgres_database") if request.param == "postgres" else ""


@asynccontextmanager
async def server(
    tmp_path: Path, storage: str, model: Any, rules: list[Any], **spec: Any
) -> AsyncIterator[httpx.AsyncClient]:
    memory = {"conversational": {"backend": "sqlite"}}
    write(tmp_path, manifest(guardrails={"input": rules}, memory=memory, **spec))
    if storage:
        head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
        settings = {**head, "spec": {"storage": {"url": storage}}}
        (tmp_path / "runtime.yaml").write_text(yaml.safe_dump(settings))
    plugins = {"guardrails": {"custom": Custom}}
    runtime = runtime_of(tmp_path, ScriptedProvider(model, repeat=True), plugins=plugins)
    async with client_of(runtime) as client:
        yield client


async def ended(client: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while not (run := (await client.get(f"/v1/runs/{run_id}")).json())["finished_at"]:
            await asyncio.sleep(0.01)
    found: dict[str, Any] = run
    return found


@pytest.mark.parametrize(
    ("rules", "hidden"),
    [
        ([PII], "[EMAIL]"),
        ([CUSTOM], "[HIDDEN]"),
        ([CUSTOM, PII], "[HIDDEN]"),
    ],
    ids=["built-in", "custom", "both"],
)
async def test_what_a_rule_redacts_never_reaches_the_disk(tmp_path, storage, rules, hidden):
    """Neither when the run is accepted, nor while it works, nor when it has ended."""
    model, data = Held(), tmp_path / "data"
    async with server(tmp_path, storage, model, rules) as client:
        run_id = (await client.post(RUNS, json=BODY)).json()["run_id"]
        assert places_of(SECRET, data, storage) == []
        await asyncio.wait_for(model.asked.wait(), PATIENCE)
        assert places_of(SECRET, data, storage) == []
        model.go.set()
        run = await ended(client, run_id)
        assert places_of(SECRET, data, storage) == []
        assert places_of(f"Write to {hidden}", data, storage)
    assert run["result"]["response"] == f"You said Write to {hidden} please"
    acted = [action["type"] for action in run["result"]["metadata"]["guardrails"]]
    assert acted == [rules[0]["type"]] * 4


async def test_a_run_that_waits_for_its_turn_has_no_raw_text(tmp_path, storage):
    """Nor have two messages that become one. Their actions are counted together."""
    sessions = {"concurrency": "merge", "merge_window_ms": 1000}
    async with server(tmp_path, storage, "Hello", [PII], sessions=sessions) as client:
        first = (await client.post(RUNS, json=BODY)).json()["run_id"]
        second = (await client.post(RUNS, json={**BODY, "query": f"Or to b.{MAIL}"})).json()["run_id"]
        assert places_of(SECRET, tmp_path / "data", storage) == []
        run = await ended(client, first)
    assert first == second
    assert [action["count"] for action in run["result"]["metadata"]["guardrails"]] == [1] * 8


async def test_what_a_rule_refuses_never_reaches_the_disk(tmp_path, storage):
    """The run fails as if it was checked in step 3."""
    rules = [{"type": "pii_detection", "action": "block", "message": "No addresses."}]
    async with server(tmp_path, storage, "Hello", rules) as client:
        run_id = (await client.post(RUNS, json=BODY)).json()["run_id"]
        assert places_of(SECRET, tmp_path / "data", storage) == []
        run = await ended(client, run_id)
        events = (await client.get(f"/v1/runs/{run_id}/events")).text
        assert places_of(SECRET, tmp_path / "data", storage) == []
    assert run["error"] == {"code": "guardrail_blocked", "detail": "No addresses."}
    assert run["metadata"] == {}
    assert '"type":"pii_detection","action":"block"' in events


async def test_the_messages_of_a_chat_are_checked_before_they_are_stored(tmp_path, storage):
    """A run that waits for a person is durable."""
    tool = {
        "name": "pay",
        "type": "internal",
        "function": "tests.integration.sample_tools:lookup",
        "approval": "required",
    }
    model = lambda _: [ToolCall("1", "pay", '{"query": "x"}')]  # noqa: E731
    messages = [
        {"role": "user", "content": f"I am {MAIL}"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": f"Pay {MAIL}"},
    ]
    async with server(tmp_path, storage, model, [PII], tools=[tool]) as client:
        answer = await client.post(CHAT, json={"model": "helper", "messages": messages})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "approval_required")
        assert places_of(SECRET, tmp_path / "data", storage) == []
        assert places_of("Pay [EMAIL]", tmp_path / "data", storage)


async def test_text_that_a_rule_hides_late_leaves_the_disk_within_seconds(tmp_path, storage):
    """A rule that could not check the request when it was accepted hides its texts when the run begins."""
    model, data = Held(), tmp_path / "data"
    async with server(tmp_path, storage, model, [{**CUSTOM, "broken": 1}]) as client:
        run_id = (await client.post(RUNS, json=BODY)).json()["run_id"]
        if not storage:
            assert places_of(SECRET, data), "else this shows nothing"
        await asyncio.wait_for(model.asked.wait(), PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while places_of(SECRET, data, storage):
                await asyncio.sleep(0.05)
        model.go.set()
        run = await ended(client, run_id)
        async with asyncio.timeout(PATIENCE):
            while places_of(SECRET, data, storage):
                await asyncio.sleep(0.05)
    assert run["result"]["response"] == "You said Write to [HIDDEN] please"
