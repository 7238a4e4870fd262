"""Routes for the console: datasets, reports, and a case of a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from astromesh.evaluation.base import CaseResult, Evaluation
from astromesh.evaluation.reports import store
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.workflow.folders import small

SUITE = "suites:\n  - {name: ci, cases: [{id: double, input: 21, assertions: [{type: status}]}]}\n"


def report(id: str, at: float, passed: bool) -> Evaluation:
    case = CaseResult(suite="all", case="one", status="completed", passed=passed)
    return Evaluation(
        evaluation_id=id, kind="agent", name="helper", started_at=at, passed=passed, cases=(case,)
    )


async def body(answer: httpx.Response, status: int = 200) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_reports_are_listed_shown_and_compared(tmp_path: Path) -> None:
    write(tmp_path, manifest("helper"))
    runtime = runtime_of(tmp_path, ScriptedProvider("Hello.", repeat=True))
    for one in (report("eval_1", 1.0, False), report("eval_2", 2.0, True)):
        store(runtime.data_dir, one)
    async with client_of(runtime) as client:
        listed = (await body(await client.get("/v1/evaluations?name=helper")))["evaluations"]
        shown = await body(await client.get("/v1/evaluations/eval_2?compare=eval_1"))
        none = (await body(await client.get("/v1/evaluations?name=other")))["evaluations"]
        missing = await body(await client.get("/v1/evaluations/eval_3"), 404)
        await body(await client.get("/v1/evaluations/..%2Feval_1"), 404)
    assert [(one["evaluation_id"], one["runs"], one["failed"]) for one in listed] == [
        ("eval_2", 1, 0), ("eval_1", 1, 1),
    ]  # fmt: skip
    assert "cases" not in listed[0] and none == [] and missing["code"] == "evaluation_not_found"
    assert shown["cases"][0]["passed"] and len(shown["comparisons"][0]["better"]) == 1
    assert "may be chance" in shown["comparisons"][0]["hint"]


async def test_datasets_of_agents_and_workflows_are_listed_with_their_faults(tmp_path: Path) -> None:
    write(small(tmp_path, evaluations=SUITE), manifest("helper"))
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "good.jsonl").write_text('{"id": "a", "input": "Hi", "replay": "a.json"}\n')
    (tmp_path / "evals" / "broken.yaml").write_text("case: []\n")
    async with client_of(runtime_of(tmp_path, ScriptedProvider("Hello."))) as client:
        found = (await body(await client.get("/v1/datasets")))["datasets"]
    assert [(one["kind"], one["owner"], one["name"]) for one in found] == [
        ("agent", "broken", "broken"), ("agent", "good", "good"), ("workflow", "small", "evaluations"),
    ]  # fmt: skip
    assert "unknown key `case`" in found[0]["fault"] and found[1]["cases"][0]["recorded"]
    assert found[2]["cases"] == [
        {"suite": "ci", "id": "double", "input": 21, "recorded": False, "checks": ["status"]}
    ]


async def test_a_case_of_a_run_is_shown_and_written_only_if_asked(tmp_path: Path) -> None:
    write(tmp_path, manifest("helper"))
    async with client_of(runtime_of(tmp_path, ScriptedProvider("Hello.", repeat=True))) as client:
        accepted = await client.post("/v1/agents/helper/runs", json={"query": "Hi", "session_id": "s"})
        run_id = accepted.json()["run_id"]
        async with asyncio.timeout(30):
            while not (await client.get(f"/v1/runs/{run_id}")).json()["finished_at"]:
                await asyncio.sleep(0.01)
        route, file = f"/v1/runs/{run_id}/case", tmp_path / "evals" / "helper.yaml"
        shown = await body(await client.post(route, json={"id": "hi"}))
        assert not shown["written"] and not file.exists() and shown["recording"]["calls"]
        written = await body(await client.post(route, json={"id": "hi", "write": True}))
        assert written["written"] and file.read_text() == shown["added"] == written["added"]
        again = await body(await client.post(route, json={"id": "hi", "write": True}), 422)
        assert "already has a case 'hi'" in again["detail"]
        await body(await client.post("/v1/runs/run_none/case", json={}), 404)
        plain = await client.post("/v1/agents/helper/run", json={"query": "Hi", "session_id": "s"})
        refused = await body(await client.post(f"/v1/runs/{plain.json()['run_id']}/case", json={}), 409)
        assert refused["code"] == "not_recorded"


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden"])
async def test_a_dataset_outside_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, manifest("helper"))
    async with client_of(runtime_of(tmp_path, ScriptedProvider("Hello.", repeat=True))) as client:
        accepted = await client.post("/v1/agents/helper/runs", json={"query": "Hi", "session_id": "s"})
        run_id = accepted.json()["run_id"]
        async with asyncio.timeout(30):
            while not (await client.get(f"/v1/runs/{run_id}")).json()["finished_at"]:
                await asyncio.sleep(0.01)
        answer = await client.post(f"/v1/runs/{run_id}/case", json={"dataset": name, "write": True})
        assert "is not the name of a dataset" in (await body(answer, 422))["detail"]
