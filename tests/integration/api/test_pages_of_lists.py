"""Every list, walked in pages of one, has what the whole list has, in its order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from astromesh.access.audit import AuditEntry, AuditLog
from astromesh.api.dependencies import Cursor
from astromesh.errors import InvalidCursor
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, write
from tests.integration.workflow.folders import runtime_with, small, until

LOOKUP = "tests.integration.sample_tools:lookup"
TOOLS = [
    {
        "name": name,
        "type": "internal",
        "function": "tests.integration.sample_tools:lookup",
        "approval": "required",
    }
    for name in ("lookup", "find")
]


def answers(request: Any) -> Any:
    return [ToolCall("c1", "lookup", '{"query": "x"}'), ToolCall("c2", "find", '{"query": "y"}')]


async def walked(http: httpx.AsyncClient, path: str, name: str) -> list[Any]:
    """The entries of a list, in pages of one."""
    found: list[Any] = []
    after: dict[str, Any] = {}
    while True:
        answer = await http.get(path, params={"limit": 1, **after})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page[name]) <= 1
        found += page[name]
        if page["next"] is None:
            return found
        assert len(page[name]) == 1
        after = {"after": page["next"]}


@pytest.mark.parametrize("place", ["no-number", str(2**70), "1-x", "nan"])
def test_a_forged_place_with_the_right_mark_is_refused_where_it_is_no_number(place: str) -> None:
    forged = Cursor("/v1/audit").next(place)
    assert forged is not None
    with pytest.raises(InvalidCursor):
        _ = Cursor.of("/v1/audit", forged).number


async def test_pages_of_one_are_the_whole_list(tmp_path: Path, subtests: pytest.Subtests) -> None:
    folder = write(tmp_path / "config", manifest("helper", tools=TOOLS), manifest("other", tools=TOOLS[:1]))
    small(folder), small(folder, "small2")
    runtime = runtime_with(folder, answers)
    async with client_of(runtime) as http:
        for session in ("a", "b"):
            body = {"query": "q", "session_id": session}
            assert (await http.post("/v1/agents/helper/run", json=body)).status_code == 202
        task = ""
        for n in (1, 2):
            task = (await http.post("/v1/workflows/small/runs", json={"input": n})).json()["task_id"]
            await until(http, task, "success")
        log = AuditLog(runtime.data_dir, runtime.clock)
        for name in ("one", "two"):
            log.append(AuditEntry(name, "x", "done", principal="anonymous", tenant="default"))
        run = (await http.get("/v1/runs")).json()["runs"][0]["run_id"]
        for path, name, least in (
            ("/v1/agents", "agents", 2), ("/v1/tools", "tools", 2), ("/v1/providers", "providers", 1),
            ("/v1/workflows", "workflows", 2), ("/v1/approvals", "approvals", 4), ("/v1/runs", "runs", 2),
            ("/v1/tasks", "tasks", 2), ("/v1/audit", "acts", 2), ("/v1/traces", "traces", 1),
            ("/v1/datasets", "datasets", 0), ("/v1/evaluations", "evaluations", 0),
            ("/v1/budgets", "budgets", 0),
            ("/v1/channels", "channels", 0), ("/v1/faults", "faults", 0),
            (f"/v1/runs/{run}/steps", "steps", 3), (f"/v1/tasks/{task}/steps", "steps", 2),
            (f"/v1/tasks/{task}/artifacts", "artifacts", 1),
        ):  # fmt: skip
            with subtests.test(path):
                whole = (await http.get(path)).json()
                assert len(whole[name]) >= least and whole["next"] is None
                for one in (*whole[name], *(pages := await walked(http, path, name))):
                    one.pop("duration_ms", None)  # a run that waits becomes longer
                assert pages == whole[name]
        other = (await http.get("/v1/runs", params={"limit": 1})).json()["next"]
        paths = (await http.get("/openapi.json")).json()["paths"]
        places = {"{run_id}": run, "{task_id}": task, "{name}": "helper", "{session_id}": "a"}
        for path, route in paths.items():
            names = {one["name"] for one in route.get("get", {}).get("parameters", ())}
            if "after" not in names or path in ("/v1/runs", "/v1/responses/{response_id}/input_items"):
                continue
            listed = path
            for key, value in places.items():
                listed = listed.replace(key, value)
            for after in (other, "made-up", run):
                with subtests.test(listed, after=after):
                    answer = await http.get(listed, params={"after": after})
                    problem = answer.json()
                    assert (answer.status_code, problem["code"]) == (422, "invalid_cursor"), answer.text
                    assert "`next` of the page before" in problem["detail"]
