"""R5: one name, one run, over every route that starts runs, in one process and in several."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from time import time
from typing import Any

import httpx
import pytest
import yaml

from astromesh.errors import ProviderRateLimited, ProviderUnavailable
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import Reply, ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.platform.at_rest import places_of

RUN, RUNS, CHAT = "/v1/agents/helper/run", "/v1/agents/helper/runs", "/v1/chat/completions"
BODY = {"query": "Hello", "session_id": "s-1"}
CHAT_BODY = {"model": "helper", "messages": [{"role": "user", "content": "Hello"}]}
PATIENCE = 30.0


def named(key: str = "k-1", **more: str) -> dict[str, str]:
    return {"idempotency-key": key, **more}


@pytest.fixture(params=("sqlite", "postgres"))
def storage(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("postgres_database") if request.param == "postgres" else ""


def folder_of(tmp_path: Path, storage: str = "", **spec: Any) -> Path:
    folder = write(tmp_path, manifest(**spec))
    if storage:
        head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
        (folder / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": {"storage": {"url": storage}}}))
    return folder


@asynccontextmanager
async def server(folder: Path, provider: ScriptedProvider) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(runtime_of(folder, provider)) as client:
        yield client


def runtime_in(client: httpx.AsyncClient) -> AgentRuntime:
    return client._transport.app.state.runtime  # type: ignore[attr-defined]


class Held:
    """A model that answers when it is let go."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Any) -> str:
        self.asked.set()
        await asyncio.wait_for(self.go.wait(), PATIENCE)
        return "the answer"


@pytest.mark.parametrize(("path", "body"), [(RUN, BODY), (RUNS, BODY), (CHAT, CHAT_BODY)])
async def test_fifty_duplicates_at_once_in_two_processes_are_one_run(tmp_path, storage, path, body):
    """All fifty get the same bytes, and the model is asked once."""
    folder = folder_of(tmp_path, storage)
    one, two = ScriptedProvider("the answer", repeat=True), ScriptedProvider("the answer", repeat=True)
    async with server(folder, one) as first, server(folder, two) as second:
        asked = [client.post(path, json=body, headers=named()) for client in (first, second) * 25]
        answers = await asyncio.gather(*asked)
        await asyncio.gather(*(runtime_in(c).durable.start() for c in (first, second)))
        async with asyncio.timeout(PATIENCE):
            while not (len(one.requests) + len(two.requests)):
                await asyncio.sleep(0.01)
        listed = (await first.get("/v1/runs")).json()["runs"]
    assert {a.status_code for a in answers} == {202 if path == RUNS else 200}
    assert len({answer.content for answer in answers}) == 1
    assert len(one.requests) + len(two.requests) == 1
    assert len(listed) == 1


async def test_a_repeated_chat_completion_is_the_same_to_the_byte(tmp_path):
    """`created` is when the run was, not when it was answered: a restart lies between the two."""
    folder = folder_of(tmp_path)
    async with server(folder, ScriptedProvider("first")) as client:
        first = await client.post(CHAT, json=CHAT_BODY, headers=named())
    async with server(folder, ScriptedProvider()) as client:
        await asyncio.sleep(1.1 - time() % 1)  # until the next second has begun
        again = await client.post(CHAT, json=CHAT_BODY, headers=named())
    assert again.content == first.content
    assert abs(first.json()["created"] - time()) < 3600


async def test_a_repeated_stream_of_a_chat_completion_has_the_whole_text_over_a_restart(tmp_path):
    """Its deltas are no longer kept, and a client joins nothing else."""
    folder, body = folder_of(tmp_path), {**CHAT_BODY, "stream": True}
    texts = []
    for script in (("the whole answer",), ()):
        async with server(folder, ScriptedProvider(*script)) as client:
            lines = (await client.post(CHAT, json=body, headers=named())).text.split("\n\n")
        chunks = [json.loads(line[6:]) for line in lines if line and "[DONE]" not in line]
        texts.append("".join(c["choices"][0]["delta"].get("content", "") for c in chunks))
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert texts == ["the whole answer"] * 2


async def test_another_body_is_a_conflict_and_the_order_of_its_keys_is_not(tmp_path):
    async with server(folder_of(tmp_path), ScriptedProvider("Hi")) as client:
        first = await client.post(RUN, json=BODY, headers=named())
        other = await client.post(RUN, json={**BODY, "query": "Bye"}, headers=named())
        spaced = json.dumps(dict(reversed(BODY.items())), indent=2)
        headers = named(**{"content-type": "application/json"})
        same = await client.post(RUN, content=spaced, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
    assert first.json() == same.json()


async def test_a_name_is_its_route_s_own(tmp_path):
    folder = write(folder_of(tmp_path), manifest("other"))
    async with server(folder, provider := ScriptedProvider("Hi", repeat=True)) as client:
        for path in (RUN, "/v1/agents/other/run"):
            assert (await client.post(path, json=BODY, headers=named())).status_code == 200
        chat = [named(**{"x-session-id": session}) for session in ("a", "b")]
        codes = [(await client.post(CHAT, json=CHAT_BODY, headers=h)).status_code for h in chat]
    assert (len(provider.requests), codes) == (3, [200, 422])  # another session is another request


async def test_the_answer_is_kept_over_a_restart(tmp_path, storage):
    """Also where another agent's answer would be another now, and for event streams, which get its end."""
    folder = folder_of(tmp_path, storage)
    async with server(folder, ScriptedProvider("first")) as client:
        first = await client.post(RUN, json=BODY, headers=named())
    async with server(folder, later := ScriptedProvider()) as client:
        again = await client.post(RUN, json=BODY, headers=named())
        streamed = await client.post(RUN, json=BODY, headers=named(accept="text/event-stream"))
    assert (again.json(), later.requests) == (first.json(), [])
    assert streamed.text.startswith("id: 1\nevent: run.completed\n")
    assert json.loads(streamed.text.split("data: ")[1]) == first.json()


BLOCKS = {"input": [{"type": "topic_filter", "forbidden_topics": ["hello"], "action": "block"}]}


@pytest.mark.parametrize(
    ("spec", "code"), [({"guardrails": BLOCKS}, 422), ({}, 502)], ids=("blocked", "providers")
)
async def test_a_failure_is_answered_again_as_it_was(tmp_path, spec, code):
    """The same problem document with the same ids: at once, in another process, after a restart."""
    folder = folder_of(tmp_path, **spec)

    def away() -> ScriptedProvider:
        return ScriptedProvider(
            ProviderUnavailable("Away.", provider="scripted", retryable=False), repeat=True
        )

    async with server(folder, away()) as one, server(folder, away()) as two:
        answers = await asyncio.gather(*(c.post(RUN, json=BODY, headers=named()) for c in (one, two) * 3))
    async with server(folder, away()) as client:
        answers.append(await client.post(RUN, json=BODY, headers=named()))
        shown = (await client.get(f"/v1/runs/{answers[0].json()['run_id']}")).json()
    first = answers[0].json()
    assert {a.status_code for a in answers} == {code}
    assert all(a.json() == first for a in answers)
    assert set(shown["error"]) == {"code", "detail"}
    assert ("guardrail" in first, "failures" in first) == (code == 422, code == 502)


LIMITED = ProviderRateLimited("Slow down.", provider="scripted", status=429, retry_after=30.0)
WITHHELD = Reply("", finish_reason="content_filter")


@pytest.mark.parametrize(
    ("reply", "spec", "code"),
    [
        ("", {"guardrails": BLOCKS}, "guardrail_blocked"),
        (LIMITED, {}, "providers_rate_limited"),
        (WITHHELD, {"output_schema": {"type": "object"}}, "refused"),
    ],
)
async def test_a_durable_run_fails_for_its_caller_as_a_plain_one_does(tmp_path, reply, spec, code):
    """With all fields of the problem document, and the same Retry-After."""
    durable = {"client_tools": [{"name": "t", "parameters": {"type": "object"}}]}
    told = []
    for number, more in enumerate(({}, durable)):
        provider = ScriptedProvider(reply, repeat=True)
        async with server(folder_of(tmp_path / str(number), **spec), provider) as client:
            answer = await client.post(RUN, json={**BODY, **more})
        problem = {key: v for key, v in answer.json().items() if key not in ("run_id", "trace_id")}
        told.append((problem, int(answer.headers.get("retry-after", 0)) // 10))
    assert told[0] == told[1]
    assert (told[0][0]["code"], told[0][1] >= 3) == (code, reply is LIMITED)


async def test_a_caller_that_goes_away_finds_the_answer_later(tmp_path):
    """A named run goes on without its callers; streams of a second caller have every event."""
    held = Held()
    async with server(folder_of(tmp_path), provider := ScriptedProvider(held)) as client:
        gone = asyncio.create_task(client.post(RUN, json=BODY, headers=named()))
        await asyncio.wait_for(held.asked.wait(), PATIENCE)
        gone.cancel()
        await asyncio.wait([gone])
        stream = asyncio.create_task(client.post(RUN, json=BODY, headers=named(accept="text/event-stream")))
        held.go.set()
        back = await client.post(RUN, json=BODY, headers=named())
        events = [line[7:] for line in (await stream).text.splitlines() if line.startswith("event: ")]
    assert (back.json()["response"], len(provider.requests)) == ("the answer", 1)
    assert (events[0], events[-1]) == ("run.started", "run.completed")


async def test_the_key_of_a_caller_that_leaves_before_its_run_begins_is_free(tmp_path):
    """The store is slow, the client gives up, and sends the request again: it used to wait for ever."""
    async with server(folder_of(tmp_path), provider := ScriptedProvider("Hi")) as client:
        runtime = runtime_in(client)
        await runtime.durable.start()
        file = next(tmp_path.rglob("astromesh.db"))
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            gone = asyncio.create_task(client.post(RUN, json=BODY, headers=named()))
            await asyncio.sleep(0.3)  # the row waits for the lock
            gone.cancel()
            await asyncio.wait([gone])
            other.execute("COMMIT")
        again = await asyncio.wait_for(client.post(RUN, json=BODY, headers=named()), PATIENCE)
        listed = (await client.get("/v1/runs")).json()["runs"]
    assert (again.status_code, again.json()["response"], len(provider.requests)) == (200, "Hi", 1)
    assert [run["run_id"] for run in listed] == [again.json()["run_id"]]


async def test_the_run_of_a_process_that_died_is_free_to_be_sent_again(tmp_path):
    """Who waits for it elsewhere is told; the key starts a new run then."""
    held, folder = Held(), folder_of(tmp_path)
    one = runtime_of(folder, ScriptedProvider(held))
    await one.bootstrap()
    async with client_of(one) as first:
        dies = asyncio.create_task(first.post(RUN, json=BODY, headers=named()))
        await asyncio.wait_for(held.asked.wait(), PATIENCE)
        async with server(folder, ScriptedProvider("second")) as second:
            waits = asyncio.create_task(second.post(RUN, json=BODY, headers=named()))
            await asyncio.sleep(0.5)  # the second caller has found the run, and polls its row
            await one.durable.store.release_worker(one.durable.worker)  # as a sweeper does with a dead one
            await one.durable._worker.abandon()
            told = await asyncio.wait_for(waits, PATIENCE)
            again = await second.post(RUN, json=BODY, headers=named())
        held.go.set()
        await dies
    assert (told.status_code, told.json()["code"]) == (409, "interrupted")
    assert "same key" in told.json()["detail"]
    assert (again.status_code, again.json()["response"]) == (200, "second")


async def test_a_key_that_is_none_is_refused(tmp_path):
    async with server(folder_of(tmp_path), ScriptedProvider()) as client:
        for key in ("", "k" * 256, "tab\there"):
            answer = await client.post(RUN, json=BODY, headers=named(key))
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input"), key


async def test_only_hashes_of_key_and_body_are_kept(tmp_path, storage, capfd):
    """S10: while the server runs, in no row, no file and no line of the log."""
    rules = {"input": [{"type": "pii_detection", "action": "redact"}]}
    folder = folder_of(tmp_path, storage, guardrails=rules, memory={"conversational": {"backend": "sqlite"}})
    body, key = {**BODY, "query": "Write to ann.secret@example.com please"}, named("order-of-ann-4711")
    async with server(folder, ScriptedProvider("noted", repeat=True)) as client:
        first = await client.post(RUN, json=body, headers=key)
        again = await client.post(RUN, json=body, headers=key)
        other = await client.post(RUN, json=BODY, headers=key)
        events = await client.get(f"/v1/runs/{first.json()['run_id']}/events")
        for text in ("order-of-ann", "ann.secret"):
            assert places_of(text, folder / "data", storage) == []
        assert places_of(first.json()["run_id"], folder / "data", storage)
    assert (first.content, other.status_code) == (again.content, 422)
    assert "order-of-ann" not in other.text + events.text + "".join(capfd.readouterr())
