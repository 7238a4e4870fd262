"""Replays: a run is made again from its record, without a call, and the first difference is named."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as copied

from astromesh.durable.base import RunRow
from astromesh.testing import ManualClock
from astromesh.types import CompletionRequest
from tests.integration.agents_folder import manifest, write
from tests.integration.durable.test_forks import LOOKUP, MEMORY, SEND, Server, asks
from tests.integration.durable.test_plain_recordings import plain


async def replay(server: Server, run_id: str) -> dict[str, Any]:
    answer = await server.client.post(f"/v1/runs/{run_id}/replay")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


CLOCK = "It is {{ current_date }}. You are {{ agent_name }}."


async def test_a_replay_makes_no_call_and_shows_the_time_of_the_run(tmp_path: Path) -> None:
    """Of a durable run, a recorded plain one, and a fork."""
    agent = manifest(tools=[SEND], memory=MEMORY, recording=True, prompts={"system": CLOCK})
    script, clock = (asks("a"), "done", asks("a"), "done", "edited"), ManualClock()
    async with Server(write(tmp_path, agent), *script, clock=clock) as server:
        durable = (await server.run())["run_id"]
        recorded = await plain(server)
        fork = (await server.fork(durable, 4, {"system": "Another."}))["run_id"]
        before = server.calls
        clock.advance(3 * 86_400.0)
        found = [await replay(server, run_id) for run_id in (durable, recorded, fork)]
        assert server.calls == before
        assert [one["divergence"] for one in found] == [None] * 3
        assert all(one["reproduced"] for one in found)
        assert [one["compared"] for one in found] == [7, 7, 4]
        sessions = (await server.client.get("/v1/agents/helper/sessions/s")).json()["turns"]
        assert len(sessions) == 4


@pytest.mark.parametrize(
    ("kind", "change", "at", "values"),
    [
        ("prompt", {"messages": [{"role": "user", "content": "Bye"}]}, "messages[0].content", ("Bye", None)),
        (
            "tool",
            {"content": "found b", "ok": True, "error": ""},
            "result.messages[1].content",
            ("found a", "found b"),
        ),
    ],
    ids=["prompt", "tool"],
)
async def test_the_first_difference_is_named_with_both_values(
    tmp_path: Path, kind: str, change: Any, at: str, values: tuple[Any, Any]
) -> None:
    """The record is changed by hand: what the run makes of it is not what it has made."""
    async with Server(write(tmp_path, manifest(tools=[LOOKUP])), asks("a"), "done") as server:
        run_id = (await server.run())["run_id"]
        store = server.runtime.durable.store
        step = next(s for s in await store.steps(run_id) if (s.about or {}).get("name") in (kind, "lookup")
                    and (s.kind == kind or s.path == kind))  # fmt: skip
        changed = step._replace(output={**(step.output or {}), **change})
        row = await store.get(run_id)
        assert row is not None
        copy = await store.accept(_copy(row), steps=[
            changed if one == step else one for one in await store.steps(run_id)
        ])  # fmt: skip
        found = (await replay(server, copy.run_id))["divergence"]
    assert found["kind"] == ("prompt" if kind == "prompt" else "node")
    assert found["at"] == at
    assert found["recorded"] == values[0]
    assert values[1] is None or found["replayed"] == values[1]


def _copy(row: RunRow) -> RunRow:
    return copied(row, run_id="run_copy")


async def test_branches_that_share_a_context_are_reproduced(tmp_path: Path) -> None:
    """Both are asked before one answers; a replay makes one after the other."""
    asked = asyncio.Barrier(2)

    async def script(_: CompletionRequest) -> str:
        await asked.wait()
        return "done"

    fan = {"pattern": "parallel_fan_out", "branches": [{"name": "a"}, {"name": "b"}]}
    async with Server(write(tmp_path, manifest(orchestration=fan)), script, script) as server:
        run_id = (await server.run())["run_id"]
        found = await replay(server, run_id)
        fork = (await server.fork(run_id, await server.step(run_id, "rule", -1)))["run_id"]
        query = {"a": run_id, "b": fork}
        compared = (await server.client.get("/v1/runs/compare", params=query)).json()
    assert found["divergence"] is None and found["compared"] > 8
    assert compared["divergence"] is None


async def test_forks_with_an_edited_node_are_reproduced(tmp_path: Path) -> None:
    """The node stays as it was edited, and its run decides again where it leads."""
    script = (asks("a"), "done", "done")
    async with Server(write(tmp_path, manifest(tools=[LOOKUP])), *script) as server:
        run_id = (await server.run())["run_id"]
        for number, edit in ((0, {"state": {"k": 1}}), (1, {"output": "Edited."})):
            fork = await server.fork(run_id, await server.step(run_id, "node", number), edit)
            assert fork["result"]["response"] == edit.get("output", "done")
            assert (await replay(server, fork["run_id"]))["divergence"] is None


async def test_a_run_that_failed_is_reproduced_with_its_error(tmp_path: Path) -> None:
    def fails(_: CompletionRequest) -> str:
        raise RuntimeError("gone")

    async with Server(write(tmp_path, manifest(tools=[LOOKUP])), asks("a"), fails) as server:
        run = await server.run()
        assert run["status"] == "failed"
        assert (await replay(server, run["run_id"]))["divergence"] is None


async def test_a_run_that_waits_cannot_be_replayed(tmp_path: Path) -> None:
    tool = {**SEND, "approval": "required"}
    async with Server(write(tmp_path, manifest(tools=[tool])), asks("a"), "done") as server:
        run = await server.run()
        answer = await server.client.post(f"/v1/runs/{run['run_id']}/replay")
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        await server.client.post(f"/v1/runs/{run['run_id']}/resume", json={"decision": "approve"})
        await server.rests(run["run_id"])
        assert (await replay(server, run["run_id"]))["reproduced"]
        assert len(server.tool.calls) == 1


async def test_a_run_under_output_rules_is_reproduced_as_it_was_redacted(tmp_path: Path) -> None:
    rules = {"output": [{"type": "pii_detection", "action": "redact"}]}
    async with Server(write(tmp_path, manifest(tools=[LOOKUP], guardrails=rules)),
                      asks("ann@example.com"), "Ask ann@example.com") as server:  # fmt: skip
        run = await server.run()
        found = await replay(server, run["run_id"])
    assert found["divergence"] is None
