"""A run that was taken up again has no token: where it needs one it waits until its caller shows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from astromesh.access.scopes import Viewer
from astromesh.errors import Forbidden, InvalidInput
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.runtime.runs import Decision
from astromesh.testing import RecordingTool, ScriptedProvider, plugin_of
from astromesh.tools.mcp.server import AuthMiddleware, HasRole, RequestContext, ToolServer
from astromesh.types import CallerContext, ToolCall
from tests.integration.agents_folder import manifest, runtime_of, write
from tests.integration.mcp_servers import mcp_yaml, serving
from tests.unit.access.tokens import AUDIENCE, SECRET, claims, signed

NOW = 2_000_000_000.0
FAR = NOW + 10**8
ALICE, BOSS = Viewer("default", "alice"), CallerContext("boss")
ASKS = ToolCall("c1", "note", '{"text": "a"}')
REVENUE = ToolCall("c2", "revenue", '{"quarter": "Q1"}')
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}


def alice() -> CallerContext:
    token = signed(claims(NOW, sub="alice", exp=FAR, iat=None))
    return CallerContext("alice", bearer_token=token, roles=frozenset({"analyst"}))


@asynccontextmanager
async def reports(*, required: bool) -> AsyncIterator[tuple[str, list[str]]]:
    """URL of a guarded server, and who called its tool. `required`: it lists its tools to callers only."""
    asked: list[str] = []
    server = ToolServer("reports", auth=AuthMiddleware(secret=SECRET, audience=AUDIENCE, required=required))

    @server.tool(guards=[HasRole("analyst")])
    def revenue(quarter: str, ctx: RequestContext) -> str:
        """Revenue of a quarter."""
        asked.append(ctx.client.subject)
        return f"5 in {quarter}"

    async with serving(server.app()) as place:
        yield f"{place}/mcp", asked


def agent(folder: Path, url: str) -> Path:
    mcp_yaml(folder, reports={"transport": "http", "url": url, "forward_identity": True})
    note = {"name": "note", "type": "note", "effect": "write", "approval": "required"}
    return write(folder, manifest(tools=[note, {"name": "reports", "type": "mcp", "server": "reports"}]))


@asynccontextmanager
async def process(folder: Path, *script: Any) -> AsyncIterator[tuple[AgentRuntime, ScriptedProvider]]:
    """A process that works on runs; when it leaves it hands over what is not done."""
    provider, note = ScriptedProvider(*script), RecordingTool("note", "noted", parameters=TEXT)
    runtime = runtime_of(folder, provider, plugins={"tools": {"note": plugin_of(note)}})
    await runtime.bootstrap()
    await runtime.durable.start()
    try:
        yield runtime, provider
    finally:
        await runtime.close(grace=0.0)


async def rests(runtime: AgentRuntime, run_id: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while (run := await runtime.runs.get(run_id, ALICE))["status"] in ("queued", "running"):
            await asyncio.sleep(0.01)
        return dict(run)


async def begun(folder: Path) -> str:
    """A run that waits for a person, and whose process has gone."""
    async with process(folder, [ASKS]) as (runtime, _):
        row = await runtime.runner.accept(runtime.agent("helper"), RunRequest("go", "s"), caller=alice())
        waiting = await rests(runtime, row.run_id)
    assert waiting["waiting_for"]["kind"] == "approval"
    return row.run_id


@pytest.mark.parametrize("required", [True, False])
async def test_a_run_waits_for_its_callers_token_and_goes_on_with_it(tmp_path: Path, required: bool) -> None:
    """Approved by somebody else; nobody else's token will do; in a third process its caller shows theirs."""
    async with reports(required=required) as (url, asked):
        run_id = await begun(agent(tmp_path, url))
        async with process(tmp_path, [REVENUE], "done") as (runtime, _):
            await runtime.runs.resume(run_id, ALICE, BOSS, Decision("approve"))
            waiting = (await rests(runtime, run_id))["waiting_for"]
            assert (waiting["kind"], "'alice'" in waiting["question"], asked) == ("identity", True, [])
            for other in (BOSS, CallerContext("boss", bearer_token="t"), CallerContext("alice", "acme", "t")):
                with pytest.raises(Forbidden):
                    await runtime.runs.resume(run_id, ALICE, other, Decision("approve"))
            for said, by in (
                (Decision("approve"), CallerContext("alice")),
                (Decision("answer", answer=1), alice()),
            ):
                with pytest.raises(InvalidInput):
                    await runtime.runs.resume(run_id, ALICE, by, said)
        script = ([REVENUE], "done") if required else ("done",)
        async with process(tmp_path, *script) as (runtime, _):
            await runtime.runs.resume(run_id, ALICE, alice(), Decision("approve"))
            run = await rests(runtime, run_id)
    assert (run["status"], run["result"]["response"], asked) == ("completed", "done", ["alice"])
    kept = b"".join(file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file())
    assert alice().bearer_token.encode() not in kept


async def test_who_decides_about_their_own_run_shows_their_token_with_it(tmp_path: Path) -> None:
    """They are not asked a second time."""
    async with reports(required=True) as (url, asked):
        run_id = await begun(agent(tmp_path, url))
        async with process(tmp_path, [REVENUE], "done") as (runtime, _):
            await runtime.runs.resume(run_id, ALICE, alice(), Decision("approve"))
            assert (await rests(runtime, run_id))["status"] == "completed"
    assert asked == ["alice"]


async def test_a_token_that_is_refused_is_a_call_that_is_not_made(tmp_path: Path) -> None:
    """Whoever may decide may refuse; the model is told and ends the run."""
    async with reports(required=False) as (url, asked):
        run_id = await begun(agent(tmp_path, url))
        async with process(tmp_path, [REVENUE], "understood") as (runtime, provider):
            await runtime.runs.resume(run_id, ALICE, BOSS, Decision("approve"))
            assert (await rests(runtime, run_id))["status"] == "waiting"
            await runtime.runs.resume(run_id, ALICE, BOSS, Decision("deny"))
            assert (await rests(runtime, run_id))["result"]["response"] == "understood"
    assert "has denied this call" in provider.requests[-1].messages[-1].content
    assert asked == []


async def test_a_token_that_is_lost_again_is_asked_for_again(tmp_path: Path) -> None:
    """The process that was shown it ends before the call: the next one has a question of its own."""
    async with reports(required=False) as (url, asked):
        run_id = await begun(agent(tmp_path, url))
        async with process(tmp_path, [REVENUE]) as (runtime, _):
            await runtime.runs.resume(run_id, ALICE, BOSS, Decision("approve"))
            await rests(runtime, run_id)
            store = runtime.durable.store  # decided, and never worked on: as if killed at once
            row = await store.get(run_id)
            assert row is not None
            steps = [s for s in await store.steps(run_id) if s.path.endswith("/identity")]
            done = steps[0]._replace(state="done", output={**(steps[0].output or {}), "decision": "approve"})
            await runtime.durable.drain()
            assert await store.advance(run_id, row.segment, [done])
        async with process(tmp_path, "done") as (runtime, _):
            waiting = await rests(runtime, run_id)
            assert (waiting["waiting_for"]["kind"], waiting["waiting_for"]["n"]) == ("identity", 2)
            await runtime.runs.resume(run_id, ALICE, alice(), Decision("approve"))
            assert (await rests(runtime, run_id))["status"] == "completed"
    assert asked == ["alice"]
