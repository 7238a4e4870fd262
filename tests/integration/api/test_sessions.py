"""Sessions belong to their principals: equal ids are different sessions, and one that is erased is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from astromesh.access.scopes import ADMIN, SCOPES
from astromesh.api.auth import Auth
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import ScriptedProvider
from astromesh.types import CallerContext, CompletionRequest
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

PERSON = frozenset(SCOPES) - {ADMIN, "sessions:any"}
SESSION = "/v1/agents/helper/sessions/s"


class Callers:
    """The token is the principal's name; `root` may see the sessions of others."""

    async def authenticate(self, token: str) -> CallerContext | None:
        return CallerContext(token, "acme", scopes=frozenset({ADMIN}) if token == "root" else PERSON)


def by(who: str) -> dict[str, str]:
    return {"authorization": f"Bearer {who}"}


async def says_what_it_was_shown(request: CompletionRequest) -> str:
    return " | ".join(m.content for m in request.messages if m.role == "user")


def helper(folder: Path, memory: Any, model: Any = says_what_it_was_shown, **spec: Any) -> AgentRuntime:
    agent = manifest(memory={"conversational": memory, "episodic": {"backend": "in_memory"}}, **spec)
    return runtime_of(write(folder, agent), ScriptedProvider(model, repeat=True))


@pytest.fixture(params=["in_memory", "sqlite", "postgres", "redis"])
def memory(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = {"backend": request.param, "strategy": "sliding_window", "max_turns": 20}
    if request.param == "postgres":
        found["url"] = request.getfixturevalue("postgres_database")
    if request.param == "redis":
        found["url"] = request.getfixturevalue("redis_url")
    return found


@asynccontextmanager
async def serving(runtime: AgentRuntime) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(runtime, Auth((Callers(),))) as client:
        yield client


async def ask(client: httpx.AsyncClient, who: str, query: str, session: str = "s") -> httpx.Response:
    body = {"query": query, "session_id": session}
    return await client.post("/v1/agents/helper/run", json=body, headers=by(who))


async def test_nobody_takes_the_id_of_another_by_using_it_first(tmp_path: Path, memory: Any) -> None:
    async with serving(helper(tmp_path, memory)) as client:
        assert (await ask(client, "mallory", "first")).json()["response"] == "first"
        assert (await ask(client, "ann", "mine")).json()["response"] == "mine"
        assert (await ask(client, "ann", "again")).json()["response"] == "mine | again"
        hers = (await client.get(SESSION, headers=by("ann"))).json()
        listed = (await client.get("/v1/agents/helper/sessions", headers=by("ann"))).json()
        erased = await client.delete(SESSION, headers=by("ann"))
        left = (await client.get(SESSION, headers=by("mallory"))).json()
    assert [turn["content"] for turn in hers["turns"]] == ["mine", "mine", "again", "mine | again"]
    assert [(one["session_id"], one["principal"]) for one in listed["sessions"]] == [("s", "ann")]
    assert erased.status_code == 204
    assert [turn["content"] for turn in left["turns"]] == ["first", "first"]


async def test_who_sees_the_sessions_of_all_names_the_principal(tmp_path: Path, memory: Any) -> None:
    async with serving(helper(tmp_path, memory)) as client:
        await ask(client, "ann", "hers")
        alone = await client.get(SESSION, headers=by("root"))
        await ask(client, "bob", "his")
        both = await client.get(SESSION, headers=by("root"))
        his = await client.get(SESSION, headers=by("root"), params={"principal": "bob"})
        nobodys = await client.get(SESSION, headers=by("root"), params={"principal": "eve"})
        refused = await client.get(SESSION, headers=by("ann"), params={"principal": "bob"})
        erased = await client.delete(SESSION, headers=by("root"), params={"principal": "bob"})
        hers = await client.get(SESSION, headers=by("root"))
    assert [turn["content"] for turn in alone.json()["turns"]] == ["hers", "hers"]
    assert (both.status_code, both.json()["code"]) == (409, "ambiguous_session")
    assert "?principal=" in both.json()["detail"]
    assert [turn["content"] for turn in his.json()["turns"]] == ["his", "his"]
    assert (nobodys.status_code, nobodys.json()["code"]) == (404, "session_not_found")
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert erased.status_code == 204
    assert [turn["content"] for turn in hers.json()["turns"]] == ["hers", "hers"]


@pytest.mark.parametrize(("who", "expected"), [("root", 9), ("ann", 3)])
async def test_pages_hold_sessions_of_one_id(tmp_path: Path, memory: Any, who: str, expected: int) -> None:
    async with serving(helper(tmp_path, memory)) as client:
        for principal in ("ann", "bob", "eve"):
            for session in ("a", "a-b", "ab"):
                await ask(client, principal, "x", session)
        seen: list[tuple[str, str]] = []
        after: str | None = ""
        while after is not None:
            params = {"limit": "2", "after": after}
            page = (await client.get("/v1/agents/helper/sessions", headers=by(who), params=params)).json()
            seen += [(one["session_id"], one["principal"]) for one in page["sessions"]]
            after = page["next"]
    assert len(seen) == len(set(seen)) == expected
    assert seen == sorted(seen)


# -- a session that is erased while a run of it goes on ----------------------------------------------------


class Stuck:
    """A model that says `begun`, streams nothing, and never answers."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def __call__(self, request: CompletionRequest) -> str:
        self.begun.set()
        await asyncio.Event().wait()
        return ""


async def test_erasing_a_session_ends_its_first_run_and_leaves_nothing(tmp_path: Path, memory: Any) -> None:
    stuck = Stuck()
    async with serving(helper(tmp_path, memory, stuck)) as client, asyncio.timeout(60):
        call = asyncio.create_task(ask(client, "ann", "secret"))
        await stuck.begun.wait()
        somebody_elses = await client.delete(SESSION, headers=by("bob"))
        assert not call.done()
        erased = await client.delete(SESSION, headers=by("ann"))
        answer = await call
        left = await client.get(SESSION, headers=by("ann"))
        again = await client.delete(SESSION, headers=by("ann"))
    assert (somebody_elses.status_code, erased.status_code) == (404, 204)
    assert (answer.status_code, answer.json()["code"]) == (409, "interrupted")
    assert left.status_code == 404
    assert again.status_code == 404


async def test_erasing_a_session_ends_its_durable_runs_too(tmp_path: Path) -> None:
    """The one that is running, and the one that is queued behind it."""
    stuck = Stuck()
    async with serving(helper(tmp_path, {"backend": "sqlite"}, stuck)) as client, asyncio.timeout(60):
        body = {"query": "secret", "session_id": "s"}
        accepted = [
            (await client.post("/v1/agents/helper/runs", json=body, headers=by("ann"))).json()["run_id"]
            for _ in range(2)
        ]
        await stuck.begun.wait()
        erased = await client.delete(SESSION, headers=by("ann"))
        states = [(await client.get(f"/v1/runs/{one}", headers=by("ann"))).json() for one in accepted]
        left = await client.get(SESSION, headers=by("ann"))
    assert erased.status_code == 204
    assert [state["status"] for state in states] == ["cancelled", "cancelled"]
    assert left.status_code == 404


async def test_durable_runs_of_one_id_and_two_principals_do_not_wait_for_each_other(tmp_path: Path) -> None:
    begun: list[str] = []
    both = asyncio.Event()

    async def model(request: CompletionRequest) -> str:
        begun.append(request.messages[-1].content)
        if len(begun) == 2:
            both.set()
        await both.wait()
        return "done"

    sessions = {"concurrency": "reject"}
    runtime = helper(tmp_path, {"backend": "sqlite"}, model, sessions=sessions)
    async with serving(runtime) as client, asyncio.timeout(60):
        for who in ("ann", "bob"):
            body = {"query": who, "session_id": "s"}
            accepted = await client.post("/v1/agents/helper/runs", json=body, headers=by(who))
            assert accepted.status_code == 202
        await both.wait()
    assert sorted(begun) == ["ann", "bob"]


async def test_a_session_is_ended_in_another_process(tmp_path: Path, memory: Any) -> None:
    """Two runtimes of one store, as two workers: the one that is asked is not the one that runs."""
    if memory["backend"] == "in_memory":
        memory = {**memory, "backend": "sqlite"}
    stuck = Stuck()
    one, two = helper(tmp_path, memory, stuck), helper(tmp_path, memory)
    async with serving(one) as first, serving(two) as second, asyncio.timeout(60):
        call = asyncio.create_task(ask(first, "ann", "secret"))
        await stuck.begun.wait()
        erased = await second.delete(SESSION, headers=by("ann"))
        answer = await call
        left = await first.get(SESSION, headers=by("ann"))
    assert erased.status_code == 204
    assert (answer.status_code, answer.json()["code"]) == (409, "interrupted")
    assert left.status_code == 404
