"""Whole runtimes on every backend: what a run recalls, and that nothing of an erased principal stays."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from astromesh.access.scopes import Viewer
from astromesh.api.auth import Auth
from astromesh.core.memory import EXPORT_PAGE_SIZE
from astromesh.memory.base import Summary
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.personal_data import erase_principal
from astromesh.runtime.records import TaskRequest
from astromesh.testing import ScriptedProvider
from astromesh.types import CallerContext, SessionKey, ToolCall, Turn
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.workflow.folders import runtime_with, small
from tests.platform.postgres import execute
from tests.platform.valkey import ask

SECRET = "zanzibarquince"
OTHER = "periwinklemango"

#: options of semantic memory on every backend
MEANING: dict[str, Any] = {"embeddings": {"provider": "hashing"}, "auto_index": True, "facts": "rules"}

MEMORIES: Mapping[str, dict[str, Any]] = {
    "sqlite": {
        "conversational": {"backend": "sqlite"},
        "semantic": {"backend": "sqlite", **MEANING},
        "episodic": {"backend": "sqlite"},
    },
    "postgres": {
        "conversational": {"backend": "postgres"},
        "semantic": {"backend": "pgvector", **MEANING},
        "episodic": {"backend": "postgres"},
    },
    "redis": {
        "conversational": {"backend": "redis"},
        "semantic": {"backend": "in_memory", **MEANING},
        "episodic": {"backend": "in_memory"},
    },
}


_TABLES = "select relname from pg_class where relnamespace = 'astromesh'::regnamespace and relkind = 'r'"
#: Lua: how many keys hold a text in their name or their value
_SEARCH = (
    "local n = 0; for _, k in ipairs(redis.call('KEYS', '*')) do local kind = redis.call('TYPE', k).ok;"
    " local all = {k}; if kind == 'hash' then all = redis.call('HGETALL', k) elseif kind == 'list' then"
    " all = redis.call('LRANGE', k, 0, -1) elseif kind == 'zset' then"
    " all = redis.call('ZRANGE', k, 0, -1) end;"
    " if string.find(k .. table.concat(all, ' '), ARGV[1], 1, true) then n = n + 1 end end; return n"
)


class Place(NamedTuple):
    """A configuration, and how to look for a text in everything that it keeps."""

    name: str
    folder: Path
    postgres: str = ""
    redis: str = ""

    def holds(self, text: str) -> list[str]:
        """Where a text, or a word of it, is at rest."""
        data = self.folder / "data"
        found = [p.name for p in data.rglob("*") if p.is_file() and text.encode() in p.read_bytes().lower()]
        if self.postgres:
            tables = execute(self.postgres, _TABLES).split()
            rows = {t: execute(self.postgres, f"select t::text from astromesh.{t} t").lower() for t in tables}
            found += [table for table, content in rows.items() if text in content]
        if self.redis:
            count = ask(self.redis, f'EVAL "{_SEARCH}" 0 {text}')
            found += ["redis"] * int(count.removeprefix(":"))
        return found


@pytest.fixture(params=MEMORIES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made = Place(request.param, tmp_path)
    runtime: dict[str, Any] = {}
    if request.param == "postgres":
        made = made._replace(postgres=request.getfixturevalue("postgres_database"))
        runtime["storage"] = {"url": made.postgres}
    if request.param == "redis":
        made = made._replace(redis=request.getfixturevalue("redis_url"))
        runtime["redis"] = {"url": made.redis}
    write(tmp_path, *(manifest(name, memory=MEMORIES[request.param]) for name in ("helper", "sales")))
    head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": runtime}
    (tmp_path / "runtime.yaml").write_text(yaml.safe_dump(head))
    return made


class Named:
    """Tells callers by their token, which is their name; `root` is an admin."""

    async def authenticate(self, token: str) -> CallerContext:
        scopes = {"admin"} if token == "root" else {"sessions:read", "sessions:write", "agents:run"}
        return CallerContext(token, "default", scopes=frozenset(scopes))


def as_user(name: str) -> dict[str, str]:
    return {"x-api-key": name}


async def talk(runtime: AgentRuntime, who: str, word: str, *, agent: str = "helper") -> None:
    caller = CallerContext(user_id=who, tenant_id="default")
    await runtime.run(agent, f"What is {word}?", f"{who}-1", caller=caller)
    await runtime.agent(agent).memory.wait_until_idle()


def echo() -> ScriptedProvider:
    return ScriptedProvider(lambda request: f"You asked: {request.messages[-1].content}", repeat=True)


async def test_a_run_recalls_what_was_said_in_another_session_with_its_source(place):
    async with runtime_of(place.folder, provider := echo()) as runtime:
        assert not runtime.broken
        caller = CallerContext(user_id="ann", tenant_id="default")
        first = await runtime.run("helper", f"Who keeps the {SECRET}?", "s-1", caller=caller)
        memory = runtime.agent("helper").memory
        await memory.wait_until_idle()
        context = await memory.build_context("helper", "s-2", f"Tell me about {SECRET}", owner="ann")
        assert context.conversation_history == ()
        assert context.semantic_results[0].content.endswith(f"Who keeps the {SECRET}?")
        assert context.semantic_results[0].source == "conversation"
        assert context.semantic_results[0].metadata == {
            "source": "conversation", "session_id": "s-1", "run_id": first.run_id,
        }  # fmt: skip
        again = await memory.build_context("helper", "s-1", "?", owner="ann")
        assert [m.role for m in again.conversation_history] == ["user", "assistant"]
        assert again.episodic_events[-1]["run_id"] == first.run_id
        stranger = await memory.build_context("helper", "s-3", f"Tell me about {SECRET}", owner="bob")
        assert stranger.semantic_results == ()
    assert provider.requests


async def test_facts_are_shown_and_erased_one_by_one(place):
    """The principal and admins see and erase them; a forgotten fact is nowhere at rest."""
    async with runtime_of(place.folder, echo()) as runtime, client_of(runtime, Auth((Named(),))) as client:
        caller = CallerContext(user_id="principalann", tenant_id="default")
        for agent in ("helper", "sales"):
            message = f"I live in {SECRET}. I drive a {OTHER}."
            await runtime.run(agent, message, "s-1", caller=caller)
            await runtime.agent(agent).memory.wait_until_idle()
        path, ann = "/v1/principals/principalann/facts", as_user("principalann")
        listed = (await client.get(path, headers=ann)).json()["facts"]
        assert {(one["agent"], one["content"]) for one in listed} == {
            (agent, text)
            for agent in ("helper", "sales")
            for text in (f"The user lives in {SECRET}.", f"The user drives a {OTHER}.")
        }
        assert listed[0]["since"] == listed[0]["stated"] and listed[0]["said"]
        (fact, *_) = {one["id"] for one in listed if SECRET in one["content"]}
        assert (await client.delete(f"{path}/{fact}", headers=as_user("principalbob"))).status_code == 404
        assert (await client.get(path, headers=as_user("principalbob"))).status_code == 404
        assert (await client.delete(f"{path}/{fact}", headers=as_user("root"))).json()["erased"] == 2
        assert (await client.delete(f"{path}/{fact}", headers=ann)).status_code == 404
        left = (await client.get(path, headers=ann)).json()["facts"]
        assert {one["content"] for one in left} == {f"The user drives a {OTHER}."}
        exported = (await client.get("/v1/principals/principalann/data", headers=ann)).text
        assert [json.loads(line)["kind"] for line in exported.splitlines()].count("fact") == 2


async def test_an_erased_principal_has_left_nothing(place):
    """Files and servers are searched for every word that was said, and for the principal's name."""
    async with runtime_of(place.folder, echo()) as runtime, client_of(runtime, Auth((Named(),))) as client:
        for agent in ("helper", "sales"):
            await talk(runtime, "principalann", SECRET, agent=agent)
            await talk(runtime, "principalbob", OTHER, agent=agent)
        assert place.holds(SECRET)
        answer = await client.delete("/v1/principals/principalann/data", headers=as_user("principalann"))
        assert answer.status_code == 200
        assert answer.json()["erased"] >= 6
        assert place.holds(SECRET) == []
        assert place.holds("principalann") == []
        assert place.holds(OTHER), "another's data is another's"
        memory = runtime.agent("helper").memory
        gone = await memory.build_context("helper", "principalann-1", SECRET, owner="principalann")
        assert (gone.conversation_history, gone.semantic_results, gone.episodic_events) == ((), (), ())
        stays = await memory.build_context("helper", "principalbob-1", OTHER, owner="principalbob")
        assert stays.conversation_history
        assert stays.semantic_results
        assert stays.episodic_events
        runs = await client.get("/v1/runs", headers=as_user("root"))
        assert SECRET not in runs.text
        assert OTHER in runs.text


async def shown(client: Any, who: str) -> list[dict[str, Any]]:
    answer = await client.get("/v1/principals/principalann/data", headers=as_user(who))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_a_principal_is_shown_everything_that_was_kept_once(place):
    """Two agents share their stores, and nothing of another principal is among it."""
    async with runtime_of(place.folder, echo()) as runtime, client_of(runtime, Auth((Named(),))) as client:
        for agent in ("helper", "sales"):
            await talk(runtime, "principalann", SECRET, agent=agent)
            await talk(runtime, "principalbob", OTHER, agent=agent)
        records = await shown(client, "principalann")
        kinds = Counter((record["kind"], record.get("agent")) for record in records)
        each = {"turn": 2, "passage": 1, "event": 1, "run": 1}
        agents = ("helper", "sales")
        assert kinds == {("end", None): 1} | {(k, a): n for k, n in each.items() for a in agents}
        assert records[-1] == {"kind": "end", "records": len(records) - 1}
        assert records[0]["content"] == f"What is {SECRET}?"
        assert OTHER not in json.dumps(records)
        assert await shown(client, "root") == records
        await client.delete("/v1/principals/principalann/data", headers=as_user("principalann"))
        assert await shown(client, "principalann") == [{"kind": "end", "records": 0}]


async def test_a_long_session_is_shown_whole_with_its_summary(tmp_path):
    """More turns than are read at once, in order."""
    write(tmp_path, manifest(memory={"conversational": {"backend": "sqlite"}}))
    async with runtime_of(tmp_path, echo()) as runtime, client_of(runtime, Auth((Named(),))) as client:
        store, key = (
            runtime.agent("helper").memory.conversations,
            SessionKey("default", "helper", "s-1", "anonymous"),
        )
        turns = [Turn(("user", "assistant")[n % 2], f"turn {n}") for n in range(2 * EXPORT_PAGE_SIZE + 10)]
        assert store is not None
        await store.append(key, "principalann", turns)
        await store.set_summary(key, Summary("They talked.", 4))
        records = await shown(client, "principalann")
        assert (records[0]["kind"], records[0]["content"], records[0]["upto"]) == (
            "summary",
            "They talked.",
            4,
        )
        assert [r["content"] for r in records[1:-1]] == [turn.content for turn in turns]


async def test_an_erased_session_has_left_nothing(place):
    async with runtime_of(place.folder, echo()) as runtime, client_of(runtime, Auth((Named(),))) as client:
        await talk(runtime, "principalann", SECRET)
        answer = await client.delete(
            "/v1/agents/helper/sessions/principalann-1", headers=as_user("principalann")
        )
        assert answer.status_code == 204
        memory = runtime.agent("helper").memory
        gone = await memory.build_context("helper", "s-2", SECRET, owner="principalann")
        assert gone.semantic_results == ()
        assert await memory.erase_owner("default", "principalann") == 0


async def test_tasks_of_an_erased_principal_are_gone_although_this_process_has_seen_none(tmp_path):
    """As of a server that only accepts, or that was just started; the workflow may be gone, too."""
    ann = CallerContext(user_id="ann", tenant_id="default")
    config = small(tmp_path / "config")
    async with runtime_with(config) as runtime:
        row = await runtime.workflows.accept("small", TaskRequest(SECRET), caller=ann)
        await runtime.workflows.tasks.ended(row.task_id, Viewer("default", "ann"))
    (config / "workflows").rename(tmp_path / "elsewhere")
    async with runtime_with(config) as runtime:
        assert await erase_principal(runtime, "default", "ann") == 1
        assert await (await runtime.workflows.store()).get(row.task_id) is None
    assert Place("sqlite", tmp_path).holds(SECRET) == []


async def test_one_erases_oneself_and_an_admin_anybody(tmp_path):
    write(tmp_path, manifest(memory=MEMORIES["sqlite"]))
    async with runtime_of(tmp_path, echo()) as runtime, client_of(runtime, Auth((Named(),))) as client:
        await talk(runtime, "auth0|ann/1", SECRET)
        path = "/v1/principals/auth0%7Cann/1/data"
        refused = await client.delete(path, headers=as_user("bob"))
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
        assert (await client.get(path, headers=as_user("bob"))).status_code == 404
        own = await client.get(path, headers=as_user("auth0|ann/1"))
        assert SECRET in own.text
        erased = await client.delete(path, headers=as_user("root"))
        assert (erased.status_code, erased.json()) == (200, {"principal": "auth0|ann/1", "erased": 4})
        again = await client.delete(path, headers=as_user("root"))
        assert again.json()["erased"] == 0


async def test_tool_calls_are_remembered_with_their_arguments_and_results(tmp_path):
    tool = {"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}
    write(tmp_path, manifest(memory={"episodic": {"backend": "sqlite"}}, tools=[tool]))
    provider = ScriptedProvider(ToolCall("c1", "lookup", '{"query": "x"}'), "found it")
    async with runtime_of(tmp_path, provider) as runtime:
        answer = await runtime.run("helper", "What is x?", "s-1")
        memory = runtime.agent("helper").memory
        events = (await memory.build_context("helper", "s-1", "?")).episodic_events
    told = next(e for e in events if e["event"] == "tool_call")
    assert told == {
        "event": "tool_call", "tool": "lookup", "arguments": {"query": "x"}, "ok": True, "result": "found: x",
        "run_id": answer.run_id,
    }  # fmt: skip
    assert events[-1]["event"] == "run"
    assert {"provider", "model", "latency_ms", "usage"} <= events[-1].keys()


async def test_no_connection_is_held_while_a_model_works(tmp_path, postgres_database):
    """One connection serves any number of runs that wait for their models."""
    write(tmp_path, manifest(memory=MEMORIES["postgres"]))
    spec = {"storage": {"url": f"{postgres_database}?pool_size=1"}}
    (tmp_path / "runtime.yaml").write_text(
        yaml.safe_dump({"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": spec})
    )
    waiting, go = asyncio.Semaphore(0), asyncio.Event()

    async def slow(request):
        waiting.release()
        await go.wait()
        return "done"

    async with runtime_of(tmp_path, ScriptedProvider(slow, repeat=True)) as runtime:
        runs = [asyncio.create_task(runtime.run("helper", "?", f"s-{n}")) for n in range(8)]
        for _ in runs:
            await waiting.acquire()
        await runtime.agent("helper").memory.build_context("helper", "other", "?")
        go.set()
        assert [run.response for run in await asyncio.gather(*runs)] == ["done"] * 8
