"""Runs side by side: steps aligned, the first that differs, diffs, usage, cost and latency."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astromesh.types import ToolCall
from tests.integration.agents_folder import manifest, write
from tests.integration.durable.test_forks import LOOKUP, Server, asks
from tests.integration.durable.test_plain_recordings import plain


async def compared(server: Server, **runs: str) -> dict[str, Any]:
    answer = await server.client.get("/v1/runs/compare", params=runs)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_a_fork_is_compared_with_its_run(tmp_path: Path) -> None:
    """They are equal up to the step that was edited; the diff shows the edit."""
    folder = write(tmp_path, manifest(tools=[LOOKUP]))
    async with Server(folder, asks("a"), "done", "edited") as server:
        run_id = (await server.run())["run_id"]
        at = await server.step(run_id, "tool")
        fork = (await server.fork(run_id, at, {"tool_result": "nothing"}))["run_id"]
        found = await compared(server, a=run_id, b=fork)
    rows = found["steps"]
    assert [row["a"]["step"] for row in rows] == [row["b"]["step"] for row in rows] == list(range(1, 9))
    assert [row["equal"] for row in rows] == [True] * 3 + [False] * 5
    first = found["divergence"]
    assert (first["kind"], first["name"], first["a"]["step"]) == ("tool", "lookup", at)
    assert '-    "content": "found a"' in first["diff"]["b"]
    assert '+    "content": "nothing"' in first["diff"]["b"]
    a, b = found["runs"]["a"], found["runs"]["b"]
    assert (a["response"], b["response"]) == ("done", "edited")
    assert a["model_calls"] == b["model_calls"] == 2
    assert a["usage"]["input_tokens"] > 0 and a["latency_ms"] > 0 and a["usage"]["cost_usd"] == 0.0


async def test_runs_with_other_steps_are_aligned_where_they_are_alike(tmp_path: Path) -> None:
    """The ids that a model makes up for its calls do not count; a step that a run lacks is null."""
    folder = write(tmp_path, manifest(tools=[LOOKUP], recording=True))
    again = [ToolCall("another_id", "lookup", '{"query": "a"}')]
    script = (asks("a"), "done", again, "done", "at once")
    async with Server(folder, *script) as server:
        one, same, other = [await plain(server) for _ in "abc"]
        equal = await compared(server, a=one, b=same)
        assert equal["divergence"] is None and all(row["equal"] for row in equal["steps"])
        found = await compared(server, a=one, b=same, c=other)
    tools = [row for row in found["steps"] if row["kind"] == "tool"]
    assert [(row["b"] is None, row["c"] is None) for row in tools] == [(False, True)]
    first = found["divergence"]
    assert (first["kind"], list(first["diff"])) == ("model", ["c"])
    assert found["runs"]["c"]["tool_calls"] == 0


async def test_runs_that_cannot_be_compared_say_why(tmp_path: Path) -> None:
    async with Server(write(tmp_path, manifest()), "one", "two") as server:
        run_id, plain_id = (await server.run())["run_id"], await plain(server)
        paths = (f"?a={run_id}&b=run_none", f"?a={run_id}&b={plain_id}", f"?a={run_id}")
        answers = [await server.client.get(f"/v1/runs/compare{path}") for path in paths]
    assert [(one.status_code, one.json()["code"]) for one in answers] == [
        (404, "run_not_found"), (409, "not_recorded"), (422, "invalid_input"),
    ]  # fmt: skip
